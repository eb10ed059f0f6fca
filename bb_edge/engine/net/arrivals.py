"""Inbound envelopes: their bytes, and what reading them has shown."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from bb_edge.engine import steps
from bb_edge.engine.plain import dump, load
from bb_edge.ir.ids import PeerId
from bb_edge.wire.envelope import NONE, Envelope
from bb_edge.wire.outbox import Cause

Data: TypeAlias = "bytes | memoryview"
"""The bytes of an envelope: what large fills hold are views of them."""


@dataclass(slots=True)
class Raw:
    """An inbound envelope as it came; `observed` is the address that its sender was seen at.

    Once a snapshot holds it, it has a `cause`: for what it starts, where it is not durable itself.
    """

    data: Data
    peer: PeerId
    observed: bytes | None
    cause: Cause | None = None

    def save(self) -> list[Any]:
        """Plain values for a snapshot."""
        return [bytes(self.data), self.peer.to_bytes(), self.observed, dump(self.cause)]

    @classmethod
    def restored(cls, row: Sequence[Any]) -> Raw:
        """The envelope of what `save` gave."""
        data, peer, observed, cause = row
        return cls(data, PeerId.from_bytes(peer), observed, load(cause))


class Kind(enum.Enum):
    """What an envelope brings, which decides what is asked before it is taken."""

    ENTRY = "starts an execution"
    CONTROL = "calls remote ops of components alone"
    ANSWER = "answers a request"

    # By identity, in C: that of an enumeration is a Python call, and each envelope's checks are found by it.
    __hash__ = object.__hash__


class Refusal(enum.Enum):
    """Why an envelope is not taken: the name of its counter, and whether a step tells it."""

    SPOOFED = "spoofed", True
    BLOCKED = "blocked", True
    ACK_ONLY = "", False
    DUPLICATE = "duplicates", False
    BELOW_WINDOW = "below_window", False
    BEYOND_WINDOW = "beyond_window", False
    CLOSED = "closed", False
    NO_ROOM = "no_room", True
    DISK = "disk", False
    BOOTSTRAPPING = "bootstrapping", True
    FULL = "full", True
    LATE_ANSWER = "late_answers", False
    TRIAL_ANSWER = "trial_answers", False
    OTHER_PROGRAM = "other_program", False
    CLASS_UNTOLD = "class_untold", False
    CLASS_MISMATCH = "class_mismatch", False

    @property
    def is_final(self) -> bool:
        """Whether it stays so when the envelope comes again; who asked is told."""
        return self in (Refusal.OTHER_PROGRAM, Refusal.CLASS_MISMATCH)

    def told(self, peer: PeerId, durable: bool) -> tuple[str, steps.EngineStep] | None:
        """The counter and the step that tell it; None where nothing does.

        A `durable` envelope that found no place is not dropped: its sender keeps it, and sends it again.
        """
        name, tells = self.value
        if not tells:
            return None
        if durable and self in (Refusal.NO_ROOM, Refusal.BOOTSTRAPPING, Refusal.FULL):
            return "ingress.put_off", steps.IngressPutOff(peer, name)
        return "ingress.dropped", steps.IngressDropped(peer, name)


@dataclass(slots=True, eq=False)
class Arrival:
    """An envelope that has been read; `deadline_ns` is absolute, 0: none."""

    raw: Raw
    message: Envelope
    kind: Kind
    deadline_ns: int

    @property
    def is_durable(self) -> bool:
        """Whether its sender keeps it until it is acknowledged, however long that takes."""
        return bool(self.message.base and self.message.seq)


def deadline_of(message: Envelope, now_ns: int) -> int:
    """When nobody waits any more for what an envelope starts, 0 where it starts no answer or has none.

    A durable one that asks nothing had its deadline for the way: what is taken is acted upon.
    """
    if not message.remaining_deadline_ns or (message.kind == NONE and message.base and message.seq):
        return 0
    return message.deadline_after(now_ns)
