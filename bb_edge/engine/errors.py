"""The errors of programs and of running ops."""

from __future__ import annotations

from bb_edge.ir.errors import BBError


class LoadError(BBError):
    """The artifact cannot be loaded; nothing is kept of it."""


class OpError(BBError):
    """An op cannot do what it was asked to; its branch ends."""


class CapacityError(OpError):
    """A capacity of NodeConfig is exhausted."""
