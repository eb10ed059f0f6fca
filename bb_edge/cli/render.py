"""Writes values, steps and logs for people and tools, as one JSON object per line.

Every line is JSON by RFC 8259. Numbers that JSON cannot write are the texts "NaN", "Infinity" and
"-Infinity", which Python's `float` and JavaScript's `Number` read.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TextIO

import numpy as np

from bb_edge.cli.arguments import LEVELS
from bb_edge.cli.line_limits import LineLimits
from bb_edge.engine import steps
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.roles import Composite, Trigger
from bb_edge.roles.errors import ContributionRefused

MAX_ELEMENTS = 64
"""Elements up to which an array is shown whole, so that its line fits a screen; else shape and dtype."""


def plain(value: object, named: Callable[[PeerId], str] = str) -> object:
    """Converts any value of a program to what JSON can write; `named` writes peers."""
    if isinstance(value, np.ndarray):
        if value.size > MAX_ELEMENTS:
            return {"shape": list(value.shape), "dtype": str(value.dtype)}
        return plain(value.tolist(), named)
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, PeerId):
        return named(value)
    if isinstance(value, Address):
        return str(value)
    if isinstance(value, Composite):
        return [plain(child, named) for child in value.values]
    if isinstance(value, tuple | list):
        return [plain(child, named) for child in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": len(value)}
    if isinstance(value, Trigger):
        return True
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def step_record(step: steps.EngineStep, named: Callable[[PeerId], str] = str) -> dict[str, object]:
    """Converts a step to a flat record of its kind and fields; a failure becomes one text with its origin.

    `named` writes peers.
    """
    record: dict[str, object] = {"step": type(step).__name__}
    if isinstance(step, steps.OpFailed):
        record |= {"target": step.target, "execution": step.execution, "op": step.op}
        if step.peer is not None:
            record["peer"] = named(step.peer)
        record["error_class"] = class_of_fault(step.error)
        return record | ({"source": step.source} if step.source else {}) | {"error": step.text}
    record |= {name: plain(getattr(step, name), named) for name in step.__match_args__}
    if isinstance(step, steps.RequestClosed) and not step.remedy:
        del record["remedy"]
    if isinstance(step, steps.OutboundDropped):
        return {name: value for name, value in record.items() if value or name == "reason"}
    return record


def class_of_fault(error: BaseException) -> str:
    """The class of what a component raised, by which a host tells faults apart: also of what ours wraps."""
    raised = error.__cause__ if isinstance(error, ContributionRefused) and error.__cause__ else error
    return type(raised).__name__


def one_line(text: str) -> str:
    """A text with its control characters as `\\n`: peers choose some texts, and a terminal obeys them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def in_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns of equal width, under `head`."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]


def utc_time() -> str:
    """The time by the wall clock, as ISO 8601 in UTC with milliseconds: `2026-11-22T18:20:01.123Z`."""
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds // 1_000_000:03}Z"


class Log(Protocol):
    """Takes one line of the log, with what belongs to it by name; `Output.log` is one."""

    def __call__(self, level: str, message: str, *, kind: str = "", **more: object) -> None: ...


class Output:
    """Writes app events and the summary to stdout, and logs to stderr; a failure of either ends nothing.

    Lines that stdout refuses are counted in `lost`. The first refusal is logged, and the next line that
    succeeds.
    """

    def __init__(
        self, as_json: bool, level: str, out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self._json = as_json
        self._rank = LEVELS.index(level)
        self._out: TextIO | None = out or sys.stdout
        self._err: TextIO | None = err or sys.stderr
        self._fails = False
        self._limits = LineLimits()
        self.lost = 0
        """Lines that could not be written, to a full disk for example; without those after a reader left."""

    def record(self, record: dict[str, object]) -> None:
        """Writes one line to stdout; the values must be such as `plain` returns."""
        out = self._out
        if out is None:
            return
        try:
            _write(out, json.dumps(record, allow_nan=False))
        except (BrokenPipeError, ValueError):
            self._out = None
            _let_go(out)
            self.log("warning", "nobody reads stdout any more: events are dropped from here on")
        except OSError as error:
            self.lost += 1
            if not self._fails:
                self.log("error", f"stdout cannot be written: {error.strerror}; events are lost")
            self._fails = True
        else:
            if self._fails:
                self.log("warning", "stdout can be written again", lost=self.lost)
            self._fails = False

    def beat(self, now_ns: int) -> None:
        """Tells of the lines that were left out; called once per turn of the driver's loop."""
        for summary in self._limits.due(now_ns):
            self.line(summary.level, str(summary))

    @property
    def omitted(self) -> int:
        """Lines of the log that were left out, because there were many of their kind."""
        return self._limits.omitted

    def close(self) -> None:
        """Logs how many lines were left out, and how many were lost."""
        for summary in self._limits.close():
            self.line(summary.level, str(summary))
        if self.lost:
            self.log("error", f"{self.lost} lines could not be written to stdout")
        if self._fails and self._out is not None:
            _let_go(self._out)

    def tells(self, level: str) -> bool:
        """Whether lines of this level are written."""
        return LEVELS.index(level) >= self._rank

    def admits(self, level: str, kind: str, about: str = "") -> bool:
        """Whether a line is written now; counted where it is not because there were many of its kind.

        `about` is whom or what it is about. Debug lines have no limit: who asks for them wants all.
        """
        return self.tells(level) and (level == "debug" or self._limits.admit(level, kind, about))

    def log(self, level: str, message: str, *, kind: str = "", **more: object) -> None:
        """Writes one line to stderr if its level, and the limits of its kind, let it through.

        `kind` is the message itself where it is always the same. A `peer` or `target` among `more` is whom
        the line is about.
        """
        if self.admits(level, kind or message, str(more.get("peer") or more.get("target") or "")):
            self.line(level, message, **more)

    def line(self, level: str, message: str, **more: object) -> None:
        """Writes one line to stderr, whatever its level and kind."""
        if self._json:
            record = {"time": utc_time(), "level": level, "message": message}
            line = json.dumps(record | {key: plain(value) for key, value in more.items()}, allow_nan=False)
        else:
            extra = "".join(f" {key}={value}" for key, value in more.items())
            text = one_line(message + extra)
            line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {level:7} {text}"
        if self._err is not None:
            try:
                _write(self._err, line)
            except (BrokenPipeError, ValueError):
                self._err = None
            except OSError:  # the disk is full, and there is no other place for the line
                pass


def _write(stream: TextIO, line: str) -> None:
    stream.write(line + "\n")
    stream.flush()


def _let_go(stream: TextIO) -> None:
    """Points a stream to /dev/null: Python flushes stdout at its exit, and would fail again."""
    with contextlib.suppress(OSError, ValueError):  # the stream is not a file of the system
        number = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)
