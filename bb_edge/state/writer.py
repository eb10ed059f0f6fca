"""One write at a time on a thread of its own, while the poller's goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from bb_edge.state.errors import StateError


class Writer(Protocol):
    """Does one piece of work at a time, somewhere else; `ThreadWriter` is one. For the poller's thread."""

    @property
    def least_bytes(self) -> int:
        """From how many bytes on a write is worth the way."""

    @property
    def busy(self) -> bool:
        """Whether work was begun that `finish` has not ended yet."""

    @property
    def done(self) -> bool:
        """Whether the work that was begun is done, so that `finish` does not wait."""

    def begin(self, work: Callable[[], None]) -> None:
        """Begins the work; nothing else may be under way."""

    def finish(self) -> StateError | None:
        """Waits until the work is done; returns the StateError that it raised, and raises any other."""

    def close(self) -> None:
        """Waits for the work that is under way."""


class ThreadWriter:
    """A thread that begins with the first piece of work; `wake` is called there when one is done."""

    least_bytes = 128 << 10  # as much takes some 0.1 ms, like two switches between threads

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._thread: threading.Thread | None = None
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._over = threading.Event()
        self._error: BaseException | None = None
        self.busy = False

    @property
    def done(self) -> bool:
        return self.busy and self._over.is_set()

    def begin(self, work: Callable[[], None]) -> None:
        if self._thread is None:
            # A daemon: whoever ends without `close`, because something else went wrong, must not hang.
            self._thread = threading.Thread(target=self._run, name="bb-journal", daemon=True)
            self._thread.start()
        self.busy = True
        self._over.clear()
        self._work.put(work)

    def finish(self) -> StateError | None:
        self._over.wait()
        self.busy = False
        error, self._error = self._error, None
        if error is None or isinstance(error, StateError):
            return error
        raise error

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._work.put(None)
            thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 (told where the work was begun)
                self._error = error
            del work  # with all that it wrote
            self._over.set()
            self._wake()
