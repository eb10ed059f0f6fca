"""Threads for what components offload, begun with the first piece of work: most nodes have none."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

MOST_THREADS = 4
"""Of a board's cores, as many as it has up to this: what is offloaded computes, and so does the node."""


class Offloading:
    """A `bb_edge.engine.runtime.Executor`. For the poller's thread; `close` ends it."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], object], /) -> object:
        """Has the work done on a thread, after what was submitted before it."""
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # here: few nodes need it

            self._pool = ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), "bb-offload")
        return self._pool.submit(work)

    def close(self) -> None:
        """Drops what has not begun. What has is not waited for here; the process ends when it does."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
