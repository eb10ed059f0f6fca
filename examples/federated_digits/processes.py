"""Child processes whose output is one stream of events, and which end when they are told to."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

TAIL_LINES = 20
KILL_AFTER_S = 10.0
"""A process that was told to end and has not by then is killed."""


class ChildError(Exception):
    """A process could not be started, or ended when it should not have; the message holds its last lines."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line that a child wrote; `record` is what it says where it is a JSON object."""

    child: Child
    text: str
    error: bool
    record: dict[str, object]


@dataclass(frozen=True, slots=True)
class Ended:
    """A child is gone, and all its lines have been read."""

    child: Child
    code: int


class Interrupted(Exception):
    """Ctrl-C, or a SIGTERM."""


class Events:
    """What all children say, and what the user does, in order of arrival."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Line | Ended | Interrupted] = queue.SimpleQueue()

    def put(self, event: Line | Ended | Interrupted) -> None:
        """From any thread and from signal handlers (one that raises could lose a child half-started)."""
        self._queue.put(event)

    def next(self, deadline: float) -> Line | Ended | None:
        """The next event; None once `deadline` (of time.monotonic) has passed. Raises Interrupted."""
        try:
            event = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if isinstance(event, Interrupted):
            raise event
        return event

    def drain(self) -> Iterator[Line | Ended]:
        """What is there already; interrupts are over by now."""
        while not self._queue.empty():
            event = self._queue.get()
            if not isinstance(event, Interrupted):
                yield event


class Child:
    """A process; its lines go to `events`, and those of its standard error to a log file too."""

    def __init__(self, name: str, command: Sequence[str | Path], log: Path, events: Events) -> None:
        """Starts it. Raises ChildError where that is not possible."""
        self.name = name
        self.ended = threading.Event()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._events = events
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            # A session of its own: Ctrl-C reaches the demo alone, which then ends its children in order.
            self._process = subprocess.Popen(
                [str(part) for part in command],
                env=environment(),
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise ChildError(f"{name} could not be started: {error}") from error
        out, err = self._process.stdout, self._process.stderr
        assert out is not None and err is not None
        self._readers = [
            threading.Thread(target=self._read, args=(out, None), daemon=True),
            threading.Thread(target=self._read, args=(err, log), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        threading.Thread(target=self._wait, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def tail(self) -> str:
        """The last lines of its standard error."""
        return "\n".join(self._tail)

    def signal(self, number: signal.Signals) -> None:
        if not self.ended.is_set():
            self._process.send_signal(number)

    def end(self, within_s: float = KILL_AFTER_S) -> bool:
        """Waits for it to end, killing it after `within_s`; whether it ended by itself."""
        if self.ended.wait(within_s):
            return True
        self._process.kill()
        self.ended.wait()
        return False

    def _read(self, stream: IO[str], log: Path | None) -> None:
        copy = log.open("w", encoding="utf-8") if log is not None else None
        for line in stream:
            text = line.rstrip("\n")
            if copy is not None:
                self._tail.append(text)
                copy.write(line)
                copy.flush()
            self._events.put(Line(self, text, copy is not None, {} if copy is not None else _record(text)))
        stream.close()
        if copy is not None:
            copy.close()

    def _wait(self) -> None:
        code = self._process.wait()
        for reader in self._readers:
            reader.join()
        self.ended.set()
        self._events.put(Ended(self, code))


def environment() -> dict[str, str]:
    """The children's: they find the packages that this interpreter finds, and use one thread each."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = os.pathsep.join(part for part in sys.path if part)
    return {**os.environ, **one_thread, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def _record(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
