"""The reasons why a request has not left before its deadline."""

from __future__ import annotations

from typing import Final

from bb_edge.wire.durable_sender import DurableSender

LATE = "not sent before its deadline, which had passed before it could be written down"
WAITED = "not sent before its deadline: it waited for room"
UNWRITTEN = "not sent before its deadline: it was not on disk yet"
UNTOLD = "not sent before its deadline: its peer has not said yet what it has of earlier envelopes"
UNSAVED = "not sent before its deadline: no snapshot holds what asks yet"
NO_CONNECTION = "not sent before its deadline: this node has no connection"
BY_DEADLINE: Final = frozenset((LATE, WAITED))
"""What its author has ended, by a deadline."""


def held_back(sender: DurableSender, number: int) -> str:
    """Returns why a record that is open has not gone out."""
    if sender.is_being_written(number):
        return UNWRITTEN
    return UNSAVED if sender.is_numbered(number) else UNTOLD
