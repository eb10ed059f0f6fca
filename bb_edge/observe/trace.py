"""Writes `--trace FILE`: what a node did and when, in the Trace Event Format (a JSON array).

Perfetto and chrome://tracing show it. Polls and the ops in them are complete events ("X") of one thread, so
ops nest in their poll; other steps are instants. Times are microseconds since the trace began. The file is
bounded: at the limit, or when the disk is full, the trace ends and says so, and the node goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from bb_edge.engine import steps
from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.waiting import PENDING
from bb_edge.input_files import refuse_special
from bb_edge.ir.errors import BBError
from bb_edge.new_files import remedy_of

MAX_BYTES = 256 * 1024 * 1024
"""Bytes of a trace, some two million events; browsers show no more either."""
BUFFERED_EVENTS = 2_000
"""Events per write to the file: some 250 KB."""
POLLS, TRANSPORT = 1, 2

_QUIET = (steps.OpCompleted, steps.OpSink, steps.AsyncSuspended, steps.OpTrigger)


class TraceError(BBError):
    """The trace file cannot be written."""


def check_trace(path: Path) -> None:
    """Raises what `Trace` raises for this path. A file that is there is left as it is, and none is made."""
    there = os.path.lexists(path)
    _opened(path, "a").close()
    if not there:
        path.unlink()


def _opened(path: Path | str, mode: str) -> TextIO:
    refuse_special(path)
    try:
        return open(path, mode, encoding="utf-8")  # type: ignore[return-value]
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}", "trace", remedy_of(error)) from error


class Trace:
    """Writes one trace. All methods belong to the driver's thread."""

    def __init__(
        self, path: Path | str, name: str, clock_ns: Callable[[], int], max_bytes: int = MAX_BYTES
    ) -> None:
        """Opens the file; viewers show `name`. Raises TraceError where it cannot be written.

        Raises FileRefused for a FIFO, which would be waited for, or a device.
        """
        self._clock_ns = clock_ns
        self._began_ns = clock_ns()
        self._left = max_bytes
        self._lines: list[str] = []
        self.dropped = 0
        """Events that were left out because they are beyond the limit."""
        self.error = ""
        """Why the trace has ended early; empty if it has not."""
        self._file: TextIO | None = _opened(path, "w")
        self._file.write("[\n")
        for thread, label in ((0, name), (POLLS, "polls and ops"), (TRANSPORT, "steps")):
            kind = "thread_name" if thread else "process_name"
            self._add({"name": kind, "ph": "M", "pid": 1, "tid": thread, "args": {"name": label}})

    def wrap(self, op: BoundOp) -> Callable[..., Any]:
        """Returns a timed version of an op's `run`, for `Node.observe_ops`."""
        run, clock_ns, add, began_ns = op.run, self._clock_ns, self._add, self._began_ns
        name, category = op.spec.op_type, op.spec.domain or "ai.onnx"
        node, target = op.spec.name, op.target

        def timed(ctx: Any, *inputs: Any) -> Any:
            start = clock_ns()
            outcome = "failed"
            try:
                result = run(ctx, *inputs)
                outcome = "suspended" if result is PENDING else "done"
                return result
            finally:
                add(
                    {
                        "name": name,
                        "cat": category,
                        "ph": "X",
                        "ts": (start - began_ns) / 1000,
                        "dur": (clock_ns() - start) / 1000,
                        "pid": 1,
                        "tid": POLLS,
                        "args": {
                            "node": node,
                            "target": target,
                            "execution": ctx.execution.id,
                            "outcome": outcome,
                        },
                    }
                )

        return timed

    def polled(self, began_ns: int, ended_ns: int, polled: Sequence[steps.EngineStep]) -> None:
        """Adds one poll and its steps; polls without steps are left out."""
        if not polled:
            return
        ts = (began_ns - self._began_ns) / 1000
        self._add(
            {
                "name": "poll",
                "cat": "engine",
                "ph": "X",
                "ts": ts,
                "dur": (ended_ns - began_ns) / 1000,
                "pid": 1,
                "tid": POLLS,
                "args": {"steps": len(polled)},
            }
        )
        at = (ended_ns - self._began_ns) / 1000
        for step in polled:
            if isinstance(step, _QUIET):
                continue
            event: dict[str, object] = {
                "name": type(step).__name__,
                "cat": "step",
                "ph": "i",
                "s": "t",
                "ts": at,
                "pid": 1,
                "tid": TRANSPORT,
            }
            event["args"] = _arguments(step)
            self._add(event)

    def _add(self, event: dict[str, object]) -> None:
        if self._file is None:
            return
        line = json.dumps(event, separators=(",", ":"))
        self._left -= len(line) + 2
        if self._left < 0:
            self.dropped += 1
            return
        self._lines.append(line)
        if len(self._lines) >= BUFFERED_EVENTS:
            self.flush()

    def flush(self) -> None:
        """Writes the buffered events. If the disk refuses them, the trace ends and `error` says why."""
        file, lines, self._lines = self._file, self._lines, []
        if file is None or not lines:
            return
        try:
            file.write("".join(f"{line},\n" for line in lines))
        except OSError as error:
            self._file = None
            self.error = f"{file.name}: {error.strerror} ({remedy_of(error)})"
            with contextlib.suppress(OSError):
                file.close()

    def close(self) -> None:
        """Ends the JSON array and closes the file. Viewers also take a file without its end."""
        self.flush()
        file, self._file = self._file, None
        if file is None:
            return
        last = {"name": "trace_end", "ph": "M", "pid": 1, "tid": 0, "args": {"dropped_events": self.dropped}}
        try:
            with file:
                file.write(json.dumps(last) + "\n]\n")
        except OSError as error:
            self.error = f"{file.name}: {error.strerror} ({remedy_of(error)})"


def _arguments(step: steps.EngineStep) -> dict[str, object]:
    arguments: dict[str, object] = {}
    if isinstance(step, steps.SendEnvelope):
        return {"peer": str(step.peer), "bytes": step.size, "resent": step.resent}
    for name in ("target", "execution", "op", "peer", "reason", "topic", "round", "port", "failed", "error"):
        value = getattr(step, name, None)
        if value is not None:
            arguments[name] = value if isinstance(value, int | bool) else str(value)[:200]
    return arguments
