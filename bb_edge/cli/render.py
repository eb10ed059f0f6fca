"""Values, steps and logs as people and tools read them: one JSON object a line.

Every line is JSON as RFC 8259 has it. Numbers that JSON has no word for are the texts "NaN", "Infinity" and
"-Infinity", which Python's `float` and JavaScript's `Number` read.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from dataclasses import fields
from typing import TextIO

import numpy as np

from bb_edge.engine import steps
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.roles import Composite, Trigger

MAX_ELEMENTS = 64
"""Arrays up to here are shown whole, larger ones by shape and dtype."""


def plain(value: object) -> object:
    """A JSON form of any value in a slot."""
    if isinstance(value, np.ndarray):
        if value.size > MAX_ELEMENTS:
            return {"shape": list(value.shape), "dtype": str(value.dtype)}
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, PeerId | Address):
        return str(value)
    if isinstance(value, Composite):
        return [plain(child) for child in value.values]
    if isinstance(value, tuple | list):
        return [plain(child) for child in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": len(value)}
    if isinstance(value, Trigger):
        return True
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def step_record(step: steps.EngineStep) -> dict[str, object]:
    """A step as a flat record: its kind, and its fields. A failure is told in one text, with its origin."""
    record: dict[str, object] = {"step": type(step).__name__}
    if isinstance(step, steps.OpFailed):
        record |= {"target": step.target, "execution": step.execution, "op": step.op}
        return record | ({"source": step.source} if step.source else {}) | {"error": step.text}
    for spec in fields(step):
        record[spec.name] = plain(getattr(step, spec.name))
    return record


def unix_time() -> float:
    """Seconds since 1970 as this machine's wall clock has them, to the millisecond."""
    return round(time.time(), 3)


class Output:
    """App events and the summary on stdout, logs on stderr; neither ends the node where it cannot be written.

    What stdout does not take is counted in `lost`, and said on stderr: once, until it takes something again.
    """

    def __init__(
        self, as_json: bool, level: str, out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self._json = as_json
        self._rank = LEVELS.index(level)
        self._out: TextIO | None = out or sys.stdout
        self._err: TextIO | None = err or sys.stderr
        self._fails = False
        self.lost = 0
        """Lines that a full disk, or its like, has cost; not those that nobody wanted to read any more."""

    def record(self, record: dict[str, object]) -> None:
        """One line on stdout. Its values are such as `plain` gives."""
        out = self._out
        if out is None:
            return
        try:
            _write(out, json.dumps(record, allow_nan=False))
        except (BrokenPipeError, ValueError):
            self._out = None
            _let_go(out)
            self.log("warning", "nobody reads stdout any more: what the program says is dropped from here on")
        except OSError as error:
            self.lost += 1
            if not self._fails:
                self.log(
                    "error", f"stdout cannot be written: {error.strerror}; what the program says is lost"
                )
            self._fails = True
        else:
            if self._fails:
                self.log("warning", "stdout can be written again", lost=self.lost)
            self._fails = False

    def close(self) -> None:
        """Says how much was lost."""
        if self.lost:
            self.log("error", f"{self.lost} lines could not be written to stdout")
        if self._fails and self._out is not None:
            _let_go(self._out)

    def tells(self, level: str) -> bool:
        """Whether lines of a level are asked for."""
        return LEVELS.index(level) >= self._rank

    def log(self, level: str, message: str, **more: object) -> None:
        """One line on stderr, when the level is asked for."""
        if not self.tells(level):
            return
        if self._json:
            record = {"time": unix_time(), "level": level, "message": message}
            line = json.dumps(record | {key: plain(value) for key, value in more.items()}, allow_nan=False)
        else:
            extra = "".join(f" {key}={value}" for key, value in more.items())
            line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {level:7} {message}{extra}"
        if self._err is not None:
            try:
                _write(self._err, line)
            except (BrokenPipeError, ValueError):
                self._err = None
            except OSError:  # the disk is full: there is no place to say so
                pass


LEVELS = ("debug", "info", "warning", "error")


def _write(stream: TextIO, line: str) -> None:
    stream.write(line + "\n")
    stream.flush()


def _let_go(stream: TextIO) -> None:
    """Python flushes stdout once more when it exits: what it still holds has nowhere to go."""
    with contextlib.suppress(OSError, ValueError):  # no file of the system
        number = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)
