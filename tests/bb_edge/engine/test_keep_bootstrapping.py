"""Bootstraps of a node that runs unattended: tried again until they are done, with fresh components."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from arrays import f32
from times import S

from bb_edge.engine import steps
from bb_edge.engine.entries.bootstrap import (
    BootstrapStatus,
    MissingInput,
    NotBootstrapped,
    UnknownInput,
    UnknownTarget,
)
from bb_edge.inputs import InvokeError
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.registry import Registry
from bb_edge.roles import Index


class Camera(Index):
    """Fails in its bootstrap as often as a test says; each instance has a number."""

    TYPE_NAME: ClassVar[str] = "test.Camera"
    made: ClassVar[int] = 0
    fails: ClassVar[int] = 0
    broken: ClassVar[bool] = False
    log: ClassVar[list[str]] = []

    def __init__(self) -> None:
        type(self).made += 1
        self.number = type(self).made
        self.ready = False

    @classmethod
    def construct(cls, env: Any) -> Camera:
        if cls.broken:
            raise env.error("no such device", "path")
        return cls()

    def bootstrap(self, ctx: Any) -> None:
        self.log.append(f"bootstrap {self.number}")
        if type(self).fails > 0:
            type(self).fails -= 1
            raise OSError("camera unplugged")
        self.ready = True

    def add(self, ctx: Any, vec: Any) -> None:
        self.log.append(f"add {self.number} {float(vec[0]):g}")
        if vec[0] < 0 and self.number < 3:
            raise ValueError("below zero")

    def search(self, ctx: Any, query: Any, *, k: int) -> Any:
        return np.full(k, self.number, np.int64), np.full(k, float(self.ready), np.float32)

    def serialize(self) -> bytes:
        return b"\x01" if self.ready else b"\x00"

    def restore(self, state: bytes) -> None:
        self.ready = state == b"\x01"


@pytest.fixture
def registry():
    Camera.made, Camera.fails, Camera.broken = 0, 0, False
    Camera.log.clear()
    found = Registry()
    found.register(Camera)
    return found


OWN = """
program Demo {module=Demo, binding.Main.cam="index|test.Camera|1"}
function program.Main(q: F32) -> () {entry=1, partition=self}
  slot cam: index
  ids: I64, d: F32 = role.index.Search<k=1>(q) {slot=cam}
  syscall.AppEmit<name="ids">(ids)
  p: Trigger = syscall.Pulse()
  syscall.AppNotify<name="started">(p)
"""

WITH_INPUT = """
program Demo {module=Demo, binding.Main.cam="index|test.Camera|1"}
function program.Main(q: F32) -> () {entry=1, partition=self}
  slot cam: index
  ids: I64, d: F32 = role.index.Search<k=1>(q) {slot=cam}
  syscall.AppEmit<name="ids">(ids)
  p: Trigger = syscall.Pulse()
  syscall.AppNotify<name="started">(p)
function program.Main__bootstrap(corpus: F32[2]) -> () {module_phase=bootstrap}
  slot cam: index
  cmd: CommandId = role.index.Add(corpus) {slot=cam, source="cam.py:7"}
"""


def states(b: Any) -> list[str]:
    return [f"{s.slot or s.target} {s.status.value}" for s in b.node.bootstraps]


def test_a_failed_one_is_tried_again_with_fresh_components_and_entries_wait(bench, registry):
    Camera.fails = 2
    b = bench(OWN, registry=registry)
    b.node.keep_bootstrapping()
    b.poll()
    assert states(b) == ["cam failed"]
    (failed,) = b.of(steps.BootstrapComplete)
    assert failed.failed and failed.wait_ns == S and "OSError: camera unplugged" in failed.reason
    assert "slot 'cam' (test.Camera.bootstrap)" in failed.reason
    assert b.events("started") == []
    b.poll(S)
    assert b.of(steps.BootstrapComplete)[-1].wait_ns == 2 * S
    b.poll(2 * S - 1)
    assert len(b.of(steps.BootstrapComplete)) == 2
    b.poll(1)
    b.settle(until_ns=b.now_ns)
    assert states(b) == ["cam done"]
    assert len(b.events("started")) == 1
    assert Camera.log == ["bootstrap 1", "bootstrap 2", "bootstrap 3"]
    assert [type(s) for s in b.said if isinstance(s, steps.BootstrapStarted)] == [steps.BootstrapStarted] * 3
    b.node.invoke("Main", {"q": f32(0).reshape(())})
    b.poll()
    assert b.events("ids")[0].tolist() == [3]  # ops are bound to the one that is ready


def test_a_body_op_between_two_tries_fails_and_says_why(bench, registry):
    Camera.fails = 1
    b = bench(OWN, registry=registry)
    b.node.keep_bootstrapping()
    b.poll()
    b.node.invoke("Main", {"q": f32(0).reshape(())})
    b.poll()
    failed = b.of(steps.OpFailed)[-1]
    assert isinstance(failed.error, NotBootstrapped)
    assert "camera unplugged" in failed.text and "in 1 s" in failed.text
    assert b.node.counters["executions.active"] == 0


def test_waits_double_up_to_a_minute(bench, registry):
    Camera.fails = 9
    b = bench(OWN, registry=registry)
    b.node.keep_bootstrapping()
    b.poll()
    while b.node.bootstraps[0].status is not BootstrapStatus.DONE:
        b.poll(b.node.bootstraps[0].next_try_ns - b.now_ns)
        b.settle(until_ns=b.now_ns)
    waits = [s.wait_ns // S for s in b.of(steps.BootstrapComplete)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 0]


def test_inputs_are_kept_for_the_next_try_and_what_is_shared_starts_anew(bench, registry):
    b = bench(WITH_INPUT, registry=registry)
    b.node.keep_bootstrapping({"Main": {"corpus": f32(-1, 0)}})
    b.poll()
    assert states(b) == ["cam done", "Main failed"]
    assert "cam.py:7" in b.node.bootstraps[1].reason
    b.poll(S)
    assert states(b) == ["cam done", "Main failed"]
    b.poll(2 * S)
    b.settle(until_ns=b.now_ns)
    assert states(b) == ["cam done", "Main done"]
    assert Camera.log == ["bootstrap 1", "add 1 -1", "bootstrap 2", "add 2 -1", "bootstrap 3", "add 3 -1"]
    assert len(b.events("started")) == 1


def test_a_component_that_cannot_be_constructed_anew_is_one_more_failed_try(bench, registry):
    Camera.fails = 1
    b = bench(OWN, registry=registry)
    b.node.keep_bootstrapping()
    b.poll()
    Camera.broken = True
    b.poll(S)
    assert "no such device" in b.node.bootstraps[0].reason
    assert b.of(steps.BootstrapComplete)[-1].wait_ns == 2 * S
    Camera.broken = False
    b.poll(2 * S)
    b.settle(until_ns=b.now_ns)
    assert states(b) == ["cam done"]


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        ({}, MissingInput),
        ({"Main": {"corpsu": f32(0, 0)}}, UnknownInput),
        ({"Mian": {"corpus": f32(0, 0)}}, UnknownTarget),
        ({"Main": {"corpus": f32(0, 0, 0)}}, InvokeError),
        ({"Main": {"corpus": np.zeros(2)}}, InvokeError),
    ],
)
def test_inputs_are_checked_before_anything_starts(bench, registry, inputs, error):
    b = bench(WITH_INPUT, registry=registry)
    with pytest.raises(error):
        b.node.keep_bootstrapping(inputs)
    assert states(b) == ["cam ready", "Main ready"]


@pytest.mark.parametrize("when", ["done", "failed", "ready"])
def test_after_a_restore_only_what_is_not_done_runs(bench, registry, compile_text, when):
    Camera.fails = 1 if when == "failed" else 0
    b = bench(OWN, registry=registry)
    if when != "ready":
        b.node.keep_bootstrapping()
        b.poll()
        b.settle(until_ns=b.now_ns)
    data = b.node.snapshot(b.now_ns)
    Camera.log.clear()
    node = install(
        PeerId.from_name("node"),
        (),
        compile_text(OWN),
        ["Main"],
        registry=registry,
        seed=8,
        snapshot=data,
        now_ns=5,
    )
    node.keep_bootstrapping()
    found = [step for now in range(6, 12) for step in node.poll(now)]
    assert [s.status.value for s in node.bootstraps] == ["done"]
    assert len(Camera.log) == (0 if when == "done" else 1)
    started = [s for s in found if isinstance(s, steps.AppEvent) and s.topic == "started"]
    assert len(started) == (0 if when == "done" else 1)


def test_a_tracer_sees_the_ops_of_fresh_components(bench, registry):
    Camera.fails = 1
    b = bench(OWN, registry=registry)
    seen = []

    def wrap(op: Any) -> Any:
        run = op.run

        def observed(*inputs: Any) -> Any:
            seen.append(op.spec.op_type)
            return run(*inputs)

        return observed

    b.node.observe_ops(wrap)
    b.node.keep_bootstrapping()
    b.poll()
    b.poll(S)
    b.settle(until_ns=b.now_ns)
    b.node.invoke("Main", {"q": f32(0).reshape(())})
    b.poll()
    assert seen.count("Search") == 1 and b.events("ids")[0].tolist() == [2]


def test_a_snapshot_is_wanted_when_one_is_done(registry, compile_text):
    node = install(
        PeerId.from_name("node"), (), compile_text(OWN), ["Main"], registry=registry, seed=8, durable=True
    )
    node.keep_bootstrapping()
    found = [step for now in range(1, 4) for step in node.poll(now)]
    assert [s.reason for s in found if isinstance(s, steps.SnapshotWanted)] == ["a bootstrap"]
