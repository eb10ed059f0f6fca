"""What can be wrong with a node's state on disk."""

from __future__ import annotations

from bb_edge.ir.errors import BBError


class StateError(BBError):
    """Base of what can be wrong with the files of a node."""


class StateWriteError(StateError):
    """Something could not be written: full disk, worn flash. What was on disk before is still there."""


class StateReadError(StateError):
    """A file is there but cannot be read: the disk's fault, perhaps only now."""


class StateFullError(StateError):
    """A budget of the store is used up, whatever room the disk has; nothing was written."""


class StateDamagedError(StateError):
    """No snapshot can be read, and the journals do not reach back to the beginning."""


class StateVersionError(StateError):
    """A newer version of this software wrote the files."""
