"""Traces: whole JSON, ops inside their poll, bounded, and harmless when the disk is full."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator

import numpy as np
import pytest

from bb_edge.engine import steps
from bb_edge.observe.trace import Trace, TraceError

PROGRAM = """program P {module=P, targets="Main"}
function program.Main(x: F32[2]) -> () {entry=1, partition=Main}
  y: F32[2] = Add(x, x)
  z: F32[3] = MatMul(x, y)
  syscall.AppEmit<name="y">(y)
  syscall.AppEmit<name="z">(z)
"""


class Ticks:
    """A clock that goes on by a microsecond at each look."""

    def __init__(self) -> None:
        self.now = 5_000

    def __call__(self) -> int:
        self.now += 1_000
        return self.now


def traced(bench, path, x, **more) -> list[dict]:
    node = bench(PROGRAM).node
    clock = Ticks()
    trace = Trace(path, "node", clock, **more)
    node.observe_ops(trace.wrap)
    node.invoke("Main", {"x": x})
    began = clock()
    found = node.poll(began)
    trace.polled(began, clock(), found)
    trace.polled(clock(), clock(), [])
    trace.close()
    return json.loads(path.read_text())


def test_ops_lie_in_their_poll_with_execution_and_outcome(bench, tmp_path):
    events = traced(bench, tmp_path / "t.json", np.float32([1, 2]))
    spans = [event for event in events if event["ph"] == "X"]
    [poll] = [event for event in spans if event["name"] == "poll"]
    ops = {event["name"]: event for event in spans if event["name"] != "poll"}
    assert {"Add", "MatMul", "AppEmit"} <= set(ops)
    for op in ops.values():
        assert poll["ts"] <= op["ts"] and op["ts"] + op["dur"] <= poll["ts"] + poll["dur"]
        assert op["dur"] == 1.0
        assert op["args"]["target"] == "Main"
    assert len({op["args"]["execution"] for op in ops.values()}) == 1
    assert ops["Add"]["args"]["outcome"] == "done"
    instants = [event["name"] for event in events if event["ph"] == "i"]
    assert "AppEvent" in instants


def test_a_failing_op_is_in_the_trace_as_one_and_fails_as_before(bench, tmp_path):
    node = bench(PROGRAM).node
    trace = Trace(tmp_path / "t.json", "node", Ticks())

    def broken(op):
        run = op.run

        def fail(ctx, *inputs):
            if op.spec.op_type == "Add":
                raise ValueError("no")
            return run(ctx, *inputs)

        return fail

    node.observe_ops(broken)
    node.observe_ops(trace.wrap)
    node.invoke("Main", {"x": np.float32([1, 2])})
    assert any(isinstance(step, steps.OpFailed) for step in node.poll(1))
    trace.close()
    [add] = [e for e in json.loads((tmp_path / "t.json").read_text()) if e["name"] == "Add"]
    assert add["args"]["outcome"] == "failed"


def test_a_trace_is_bounded_and_says_what_is_missing(bench, tmp_path):
    path = tmp_path / "t.json"
    events = traced(bench, path, np.float32([1, 2]), max_bytes=400)
    assert path.stat().st_size < 600
    assert events[-1]["name"] == "trace_end"
    assert events[-1]["args"]["dropped_events"] > 0


@pytest.fixture
def little_space() -> Iterator[None]:
    """No file of this process grows beyond 64 KiB, as if the disk were full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_ends_the_trace_and_not_the_op(bench, tmp_path, little_space):
    node = bench(PROGRAM).node
    trace = Trace(tmp_path / "trace.json", "node", Ticks())
    node.observe_ops(trace.wrap)
    for _ in range(3000):
        node.invoke("Main", {"x": np.float32([1, 2])})
        found = node.poll(1)
        assert not any(isinstance(step, steps.OpFailed) for step in found if "MatMul" not in str(step))
        trace.polled(1, 2, found)
        if trace.error:
            break
    assert "File too large (name another place, or raise the limit of a file's size" in trace.error
    trace.close()


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"nowhere/t.json: No such file .* \(make the folder first\)"):
        Trace(tmp_path / "nowhere" / "t.json", "node", Ticks())
    with pytest.raises(TraceError, match=r"Is a directory \(it is a folder: name a file in it\)"):
        Trace(tmp_path, "node", Ticks())
