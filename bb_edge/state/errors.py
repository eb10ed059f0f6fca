"""The errors of a node's state on disk."""

from __future__ import annotations

from bb_edge.ir.errors import BBError


class StateError(BBError):
    """Base of all errors of a node's files."""


class StateWriteError(StateError):
    """The disk did not take a write (it is full, the flash is worn). What was on it before is still there."""


class StateReadError(StateError):
    """A file is there and cannot be read: the disk's fault, and perhaps it passes."""


class StateDeniedError(StateReadError):
    """A file is there and whole, for all that is known, and this user may not read it."""


class StateFullError(StateError):
    """A limit of the store is reached, however much space the disk has left; nothing was written."""


class StateDamagedError(StateError):
    """The files cannot be put together: no snapshot can be read, or a row of the outbox is not a row."""


class StateVersionError(StateError):
    """A newer version of this software wrote the files."""


class StateForeignError(StateError):
    """A file in the folder was written by another node, or for another program."""
