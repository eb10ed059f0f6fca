"""Processes of `bb-edge`, waited for by what they say."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading

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
        def found() -> str | None:
            return next((line for line in self.lines if re.search(pattern, line)), None)

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
