"""Values, steps and logs as people and tools read them: one JSON object a line."""

from __future__ import annotations

import json
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
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
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
    """A step as a flat record: its kind, and its fields."""
    record: dict[str, object] = {"step": type(step).__name__}
    for spec in fields(step):
        record[spec.name] = plain(getattr(step, spec.name))
    return record


class Output:
    """App events and the summary on stdout, logs on stderr; a closed pipe ends the talk, not the node."""

    def __init__(
        self, as_json: bool, level: str, out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self._json = as_json
        self._rank = LEVELS.index(level)
        self._out: TextIO | None = out or sys.stdout
        self._err: TextIO | None = err or sys.stderr

    def record(self, record: dict[str, object]) -> None:
        """One line on stdout."""
        self._out = _write(self._out, json.dumps(record))

    def log(self, level: str, message: str, **more: object) -> None:
        """One line on stderr, when the level is asked for."""
        if LEVELS.index(level) < self._rank:
            return
        if self._json:
            line = json.dumps({"time": round(time.time(), 3), "level": level, "message": message, **more})
        else:
            extra = "".join(f" {key}={value}" for key, value in more.items())
            line = f"{time.strftime('%H:%M:%S')} {level:7} {message}{extra}"
        self._err = _write(self._err, line)


LEVELS = ("debug", "info", "warning", "error")


def _write(stream: TextIO | None, line: str) -> TextIO | None:
    if stream is None:
        return None
    try:
        stream.write(line + "\n")
        stream.flush()
    except (BrokenPipeError, ValueError):  # nobody reads any more
        return None
    return stream
