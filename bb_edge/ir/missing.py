"""Why a peer that was asked is among the missing of a request: what `r.missing_reasons` holds."""

from __future__ import annotations

import enum


class MissingReason(enum.IntEnum):
    """One reason per missing peer. Programs and snapshots hold the numbers."""

    DEADLINE = 1
    """It had not answered when the deadline had passed."""
    DOWN = 2
    """It went down, or was down when it was asked."""
    FAILED = 3
    """It answered that an op failed there, or that its reply starved."""
    REFUSED = 4
    """It refused the request, or what it answered was refused here."""
    TOO_LARGE = 5
    """Its reply is larger than this node takes."""
    NOT_SENT = 6
    """The request never left this node."""
    CUT = 7
    """The deadline of whoever asked this node left too little time, for this node or for the peer."""
    ENOUGH = 8
    """Others had answered, and they were enough."""
    FAILING = 9
    """It has left requests unanswered: it was not asked, or tried without being waited for."""
    BACKING_OFF = 10
    """It has asked for patience, or is tried again later."""
    NOTHING = 11
    """It has nothing to reply with: nobody answered what it asked in turn."""
    OFFLINE = 12
    """This node lost its connection while it waited, so that the request or its answer may be lost with it,
    or has just got it back, and nothing of the peer has come since.
    """
    OUT_OF_TIME = 13
    """It says that its reply was not there when all the time that the request gives was over."""
    TAKES_LESS = 14
    """The request is larger than what the peer says that it takes."""
    DECLINED = 15
    """On purpose: it trains only under conditions that do not hold there now, or has no time left for it."""
    FAULT_HERE = 16
    """It answered, and a component of this node, or its program, failed on the way to count that."""

    @property
    def text(self) -> str:
        """The reason as logs and steps tell it."""
        return self.name.lower().replace("_", " ")


BLAMES_THE_PEER = frozenset(
    {
        MissingReason.DEADLINE,
        MissingReason.DOWN,
        MissingReason.FAILED,
        MissingReason.REFUSED,
        MissingReason.TOO_LARGE,
        MissingReason.OUT_OF_TIME,
        MissingReason.TAKES_LESS,
    }
)
"""Reasons after which a peer counts as one that left a request unanswered. CUT is none: this node had no time
left, whatever the peer did; one that is not there at all is found by its silence (`wire/health.py`).
"""
