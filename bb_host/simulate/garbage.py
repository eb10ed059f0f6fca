"""When a worker looks for garbage: between windows, and through everything only when that has doubled.

A node is some eight hundred containers that stay. Python looks through all of them each time a quarter more
are there, which is a third of what waking a client costs; and what a window leaves in circles is little.
"""

from __future__ import annotations

import gc

AT_LEAST = 1_000_000
"""New objects before which nothing older than a window is looked through: some 100 MB, or 1,000 nodes."""


class BetweenWindows:
    """Takes over from Python's own timing in this process, which has nothing else to do."""

    def __init__(self) -> None:
        gc.disable()
        gc.collect()
        self._known = len(gc.get_objects())
        self._new = 0

    def collect(self) -> None:
        """Frees what the last window has left in circles, and from time to time what older ones have."""
        self._new += gc.get_count()[0]  # made and not freed since the last time
        gc.collect(0)
        if self._new > max(AT_LEAST, self._known):
            gc.collect()
            self._known, self._new = len(gc.get_objects()), 0
