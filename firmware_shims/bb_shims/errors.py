"""The errors of the board. They say what failed, where, and what to do about it.

=======================  ==========================================================================
error                    raised by
=======================  ==========================================================================
BoardError               :func:`bb_shims.detect`, where a board lacks a function that it must have
ClockError               the clock, where the machine has no such clock
EntropyError             the entropy source
MemoryInfoError          the memory shim, where the kernel's accounts cannot be read
MemoryLimitError         :func:`bb_shims.require_memory`, with requested, available and missing bytes
StorageError             every operation on stored files (also StorageFullError, MissingFileError)
SensorError              thermal zones, power status and sensors that answer nonsense
WatchdogError            watchdogs and the service manager's socket
=======================  ==========================================================================
"""

from __future__ import annotations

import errno


class ShimError(Exception):
    """Base of every error of this package."""


class BoardError(ShimError):
    """A board cannot be used, because a function that it must have is missing or broken."""


class ClockError(ShimError):
    """A clock cannot be read."""


class EntropyError(ShimError):
    """Random bytes are not available, or a call asked for an impossible number of them."""


class MemoryInfoError(ShimError):
    """The kernel's memory accounts cannot be read or understood."""


class SensorError(ShimError):
    """A sensor that the kernel lists cannot be read or understood."""


class WatchdogError(ShimError):
    """A watchdog cannot be opened, configured or petted."""


class MemoryLimitError(ShimError):
    """A plan needs more memory than the board has left.

    Attributes: ``purpose`` (what for), ``requested``, ``available``, ``missing`` (bytes), ``source`` (whose
    limit).
    """

    def __init__(self, purpose: str, requested: int, available: int, source: str) -> None:
        """Keep the numbers and say what is missing."""
        self.purpose = purpose
        self.requested = requested
        self.available = available
        self.missing = requested - available
        self.source = source
        super().__init__(
            f"{purpose} needs {requested} bytes, {available} are available ({source}), "
            f"{self.missing} are missing: lower the node's budgets or raise the service's MemoryMax="
        )


class StorageError(ShimError):
    """An operation on a stored file failed.

    Attributes: ``path`` (folder and file, as text), ``operation`` (which step), ``cause`` (the reason: an
    ``OSError`` or a sentence).
    """

    def __init__(self, path: str, operation: str, cause: OSError | str, advice: str = "") -> None:
        """Keep path, operation and cause; ``advice`` says what to do."""
        self.path = path
        self.operation = operation
        self.cause = cause
        reason = cause if isinstance(cause, str) else (cause.strerror or str(cause) or type(cause).__name__)
        super().__init__(f"{operation} {path}: {reason}" + (f": {advice}" if advice else ""))


class ConditionError(ShimError):
    """A condition that does not exist, or that this board has no sensor for."""


class StorageFullError(StorageError):
    """The bytes do not fit (ENOSPC, EDQUOT), or exceed the file system's largest file (EFBIG)."""


class MissingFileError(StorageError, FileNotFoundError):
    """No file has that name. This is also a ``FileNotFoundError``."""

    def __init__(self, path: str, operation: str, cause: OSError | str, advice: str = "") -> None:
        """Keep path, operation and cause, and ENOENT as ``errno``."""
        StorageError.__init__(self, path, operation, cause, advice)
        self.errno = errno.ENOENT  # what a caller who catches FileNotFoundError may look at
