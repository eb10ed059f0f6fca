"""Processes of `bb-edge`, waited for by what they say."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

PATIENCE_S = 60
"""Seconds until a process must have said or done what a test waits for; wide, for emulated machines."""


class NodeProcess:
    """A `bb-edge` with its output, waited for by what it says."""

    def __init__(self, *words: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bb_edge.cli", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()

    def says(self, pattern: str) -> str:
        """Returns the first line with the pattern, once there is one."""
        return self.says_one(lambda line: re.search(pattern, line) is not None)

    def says_one(self, is_it: Callable[[str], bool], since: int = 0) -> str:
        """Returns the first line behind the first `since` that is wanted, once there is one."""

        def found() -> str | None:
            return next(filter(is_it, self.lines[since:]), None)

        with self._changed:
            assert self._changed.wait_for(lambda: found() is not None, PATIENCE_S), "".join(self.lines)
            return found() or ""

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def id_of(shown: str) -> str:
    """The id of a peer that an event shows, `kitchen (QmYw…)` or the id alone."""
    return shown.rpartition("(")[2].rstrip(")")
