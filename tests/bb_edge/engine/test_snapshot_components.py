"""Components whose answers are to come, or that somebody holds, and a restart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from components import Diary, slow
from kinds_of_steps import of
from snapshots import body_of, look, resealed

from bb_edge import PeerId, install
from bb_edge.engine import steps
from bb_edge.engine.snapshot import SnapshotDamagedError
from bb_edge.engine.steps import AppEvent, OpFailed
from bb_edge.ir.values import TRIGGER
from bb_edge.registry import Registry
from bb_edge.roles import Aggregator
from bb_edge.roles.errors import CompletionLostError

MS = 1_000_000
SELF = PeerId.from_name("node")


SLOW = """
program Demo {module=Demo, binding.Main.a="codec|test.Slow|1"}
function program.Main(x: F32[2], go: Trigger) -> (y) {entry=1, partition=self}
  slot a: codec
  z: F32[2] = role.compressor.Compress(x) {slot=a}
  y: F32[2] = Neg(z)
  late: Trigger = syscall.Sleep<duration_ns=10000000>(go)
  syscall.AppNotify<name="late">(late)
"""


@pytest.mark.parametrize("restartable", [True, False])
def test_an_op_whose_answer_is_lost_runs_again_or_fails_and_its_siblings_go_on(compile_text, restartable):
    registry = Registry()
    registry.register(slow(restartable))
    data = compile_text(SLOW)
    more: dict[str, Any] = {"registry": registry, "seed": 1}
    node = install(SELF, (), data, ["Main"], **more)
    for k in (1, 2):  # the second waits for the component, and sleeps
        node.invoke("Main", {"x": np.full(2, k, np.float32), "go": TRIGGER})
    node.poll(1)
    again = install(SELF, (), data, ["Main"], **more, snapshot=node.snapshot(2), now_ns=2)
    found = again.poll(3)
    failed = of(OpFailed, found)
    if restartable:
        assert not failed
    else:
        ((error, name),) = [(step.error, step.op) for step in failed]
        assert type(error) is CompletionLostError
        assert (error.what, error.where) == ("the node was restarted while its component worked on it", name)
    for _ in range(2):
        for later, t in again.component("a").open:
            later.complete(t)
        again.component("a").open.clear()
        found += again.poll(4)
    found += again.poll(11 * MS)
    values = [s.value.tolist() for s in of(AppEvent, found) if s.topic == "y"]
    assert values == ([[-1, -1], [-2, -2]] if restartable else [[-2, -2]])
    assert len([s for s in of(AppEvent, found) if s.topic == "late"]) >= 1
    assert again.counters["executions.active"] == 0


CLAIMED = """
program Demo {module=Demo, binding.Main.m="model|test.Diary|1"}
function program.Main(x: F32[1]) -> () {entry=1, partition=self}
  slot m: model
  c: CommandId = role.model.ApplyDelta(x) {slot=m}
  late: Trigger = syscall.Sleep<duration_ns=10000000>(c)
  y: F32[1] = syscall.GateDispatch(x, late)
  d: CommandId = role.model.ApplyDelta(y) {slot=m}
"""


@pytest.mark.parametrize("waiting", [0, 2])
def test_a_component_stays_with_who_has_it(compile_text, waiting):
    registry = Registry()
    registry.register(Diary)
    data = compile_text(CLAIMED)
    more: dict[str, Any] = {"registry": registry, "seed": 1}
    node = install(SELF, (), data, ["Main"], **more)
    node.poll(1)
    for k in range(1 + waiting):
        node.invoke("Main", {"x": np.full(1, k + 1, np.float32)})
        node.poll(2 + k)
    again = install(SELF, (), data, ["Main"], **more, snapshot=node.snapshot(5), now_ns=5)
    assert look(again) == look(node)
    again.invoke("Main", {"x": np.full(1, 9, np.float32)})
    now_ns = 5
    while (due := again.next_deadline_ns()) is not None:
        now_ns = max(now_ns + 1, due)
        again.poll(now_ns)
    expected = [1, 1, *(n for k in range(waiting) for n in (k + 2, k + 2)), 9, 9]
    assert again.component("m").log == expected, "who comes new waits behind them"


@pytest.mark.parametrize("change", [lambda rows: rows[:-1], lambda rows: [*rows, rows[-1]]])
def test_inputs_of_another_op_are_damage(compile_text, change):
    registry = Registry()
    registry.register(slow(restartable=True))
    data = compile_text(SLOW)
    more: dict[str, Any] = {"registry": registry, "seed": 1}
    node = install(SELF, (), data, ["Main"], **more)
    node.invoke("Main", {"x": np.full(2, 1, np.float32), "go": TRIGGER})
    node.poll(1)
    body = body_of(node.snapshot(2))
    (row,) = [row for row in body["parked"][1] if row[-1] is not None]
    row[-1] = change(row[-1])
    with pytest.raises(
        SnapshotDamagedError, match=r"its part 'parked' does not fit: ValueError: zip\(\) argument 2 is "
    ):
        install(SELF, (), data, ["Main"], **more, snapshot=resealed(body), now_ns=2)


SUM = """
program Demo {module=Demo, binding.Main.sum="aggregator|test.Sum|1"}
function program.Main(x: F32[2]) -> () {entry=1, partition=self}
  slot sum: aggregator
  c: CommandId = role.aggregator.Contribute(x) {slot=sum}
"""


class Sum(Aggregator):
    """Adds up, and does not say so to a snapshot."""

    TYPE_NAME = "test.Sum"

    @classmethod
    def construct(cls, env):
        return cls()

    def contribute(self, ctx, contribution, weight=None, peer=None, round=None, sent=None): ...

    def aggregate(self, ctx, stack=None, round=None): ...

    def current_tensor(self, ctx, trigger=None): ...


class Stateless(Sum):
    stateless = True


class Keeping(Sum):
    def serialize(self):
        return b"kept"

    def restore(self, state):
        assert state == b"kept"


@pytest.mark.parametrize(("kind", "said"), [(Sum, ["sum"]), (Stateless, []), (Keeping, [])])
def test_a_component_that_forgets_says_so_after_a_restart(compile_text, kind, said):
    registry = Registry()
    registry.register(kind)
    data = compile_text(SUM)
    more: dict[str, Any] = {"registry": registry, "seed": 1}
    node = install(SELF, (), data, ["Main"], **more)
    node.invoke("Main", {"x": np.zeros(2, np.float32)})
    assert not of(steps.StateForgotten, node.poll(1))
    again = install(SELF, (), data, ["Main"], **more, snapshot=node.snapshot(2), now_ns=2)
    assert [(s.slot, s.type_name) for s in of(steps.StateForgotten, again.poll(3))] == [
        (slot, "test.Sum") for slot in said
    ]
    assert not of(steps.StateForgotten, again.poll(4))
