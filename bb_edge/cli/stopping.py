"""SIGTERM while a node starts: the stop that was asked for, as it is later; and Ctrl-C while a verb starts.

It may come at any moment: the service manager stops a node that it has just started. A node that has not
begun has sent and written nothing of its own, so what was opened is closed, and the exit code is DONE.

Until start.py has imported this module, SIGTERM kills the process: it imports as little as it can.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any

IMPORTS = "<frozen importlib"
"""Where Python's own code that imports modules says it is from."""
TOLD = "bb-edge: asked to stop before the node ran"
INTERRUPTED_TOLD = "bb-edge: interrupted"
INTERRUPTED = 130
"""What shells report for a process that SIGINT ended; Ctrl-C before a node runs."""


class StopAsked(KeyboardInterrupt):
    """SIGTERM came before the node ran; no error, so it is not an Exception."""


def end_at_once(_number: int, _frame: FrameType | None) -> None:
    """Ends the process with 0: there is nothing to close yet."""
    try:
        os.write(2, f"{TOLD}\n".encode())
    finally:  # also where nobody reads stderr any more
        os._exit(0)


def tell_interrupted() -> None:
    """Says that Ctrl-C ended the command."""
    os.write(2, f"{INTERRUPTED_TOLD}\n".encode())


def interrupt(_number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt; while a module is imported it ends the process, with `INTERRUPTED`."""
    if not _imports(frame):
        raise KeyboardInterrupt
    try:
        tell_interrupted()
    finally:
        os._exit(INTERRUPTED)


class StopAtStart:
    """A context in which SIGTERM raises StopAsked, once; `run` replaces the handler when its loop begins.

    While a module is imported it ends the process instead: NumPy and other extensions make an ImportError of
    every exception that comes while they begin.
    """

    def __init__(self) -> None:
        self._asked = False
        self._before: Any = None

    def __enter__(self) -> StopAtStart:
        import threading

        if threading.current_thread() is threading.main_thread():  # others may set no handlers
            self._before = signal.signal(signal.SIGTERM, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if _imports(frame):
            end_at_once(number, frame)
        if not self._asked:
            self._asked = True
            raise StopAsked

    def check(self) -> None:
        """Raises StopAsked where the signal has come: code of others may have swallowed the first one."""
        if self._asked:
            raise StopAsked


def _imports(frame: FrameType | None) -> bool:
    """Whether a module is imported in that frame, or in one that has called it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORTS):
            return True
        frame = frame.f_back
    return False
