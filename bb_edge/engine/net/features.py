"""What a node's presence says that it understands beyond the first version of the wire."""

from __future__ import annotations

from bb_edge.wire.presence import Presence

META = "features"
"""Where a presence names them, as texts."""
FAILURES = "failures"
"""The feature of a node that reads failures in place of replies."""
REFUSALS = "refusals"
"""The feature of a node that wants to hear which of its answers are refused."""
MARKS = "marks"
"""The feature of a node that keeps its state, and exchanges marks before durable envelopes."""
OWN = (FAILURES, REFUSALS)
"""What every node says of itself."""


def names(presence: Presence | None, feature: str) -> bool:
    """Whether a presence, if there is one, names the feature."""
    told = None if presence is None else presence.meta.get(META)
    return isinstance(told, list) and feature in told
