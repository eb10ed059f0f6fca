"""SIGTERM while a node starts: the stop that was asked for, as it is later.

It may come at any moment: the service manager stops a node that it has just started. A node that has not
begun has sent and written nothing of its own, so what was opened is closed, and the exit code is DONE.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopAsked(KeyboardInterrupt):
    """SIGTERM came before the node ran; no error, so it is no Exception."""


class StopAtStart:
    """A context in which SIGTERM raises StopAsked, once; `run` replaces the handler when its loop begins."""

    def __init__(self) -> None:
        self._asked = False
        self._before: Any = None

    def __enter__(self) -> StopAtStart:
        if threading.current_thread() is threading.main_thread():  # others may set no handlers
            self._before = signal.signal(signal.SIGTERM, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        if not self._asked:
            self._asked = True
            raise StopAsked

    def check(self) -> None:
        """Raises StopAsked where the signal has come: code of others may have swallowed the first one."""
        if self._asked:
            raise StopAsked
