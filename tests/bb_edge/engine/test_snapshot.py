"""A node that is written down and restored at any poll goes on as if nothing had happened (semantics §9)."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from bb_edge import NodeConfig, PeerId, install, load
from bb_edge.engine import steps
from bb_edge.engine.snapshot import SnapshotDamagedError, SnapshotForeignError, SnapshotVersionError
from bb_edge.ir.values import TRIGGER

MS = 1_000_000

FEDERATION = """
program Demo {module=Demo, binding.Server.agg="aggregator|bb.FedAvg|1"}
function program.Server() -> () {entry=1, partition=Server}
  slot agg: aggregator
  round: I64[] = syscall.Repeat<times=6, pause_ns=5000000>()
  ten: F32 = Cast<to=1>(round)
  ones: F32[4] = Constant<value=F32[4]{1.0, 1.0, 1.0, 1.0}>()
  x: F32[4] = Add(ones, ten)
"""


def app_events(found: list[steps.EngineStep]) -> list[Any]:
    return [
        (s.topic, s.value.tolist() if isinstance(s.value, np.ndarray) else repr(s.value))
        for s in found
        if isinstance(s, steps.AppEvent)
    ]


class Reborn:
    """A node that may be replaced by its own snapshot between any two polls."""

    def __init__(self, data: bytes, target: str, when, name: str = "node", **more: Any) -> None:
        self.program = load(data)
        self.args = (PeerId.from_name(name), (b"\xe2\x01" + bytes(8),), self.program, [target])
        self.more = {"config": NodeConfig.edge(), "seed": 7, **more}
        self.node = install(*self.args, **self.more)
        self.when = when
        self.polls = self.births = 0
        self.events: list[Any] = []

    def poll(self, now_ns: int) -> list[steps.EngineStep]:
        self.polls += 1
        if self.when(self.polls):
            self.births += 1
            data = self.node.snapshot(now_ns)
            self.node = install(*self.args, **self.more, snapshot=data, now_ns=now_ns)
            assert self.node.snapshot(now_ns)[:-1], "and it can be written down again at once"
        found = self.node.poll(now_ns)
        assert not [s for s in found if isinstance(s, steps.OpFailed)], found
        self.events += app_events(found)
        return found

    def run(self, until_ns: int, now_ns: int = 0) -> int:
        while True:
            due = self.node.next_deadline_ns()
            if due is None or due > until_ns:
                return now_ns
            now_ns = max(now_ns + 1, due)
            self.poll(now_ns)


STATEFUL = """
program Demo {module=Demo, binding.Main.i="index|bb.FlatIndex|1"}
function program.Main(x: F32[2], go: Trigger) -> () {entry=1, partition=self}
  slot i: index
  late: Trigger = syscall.Sleep<duration_ns=3000000>(go)
  in: Trigger = syscall.Limit.Acquire<name="l", n=1>(late)
  y: F32[2] = syscall.GateDispatch(x, in)
  z: F32[2] = module.Twice(y)
  again: Trigger = syscall.After<delay_ns=2000000>(in)
  w: F32[2] = syscall.GateDispatch(z, again)
  syscall.AppEmit<name="w">(w)
  n: Trigger = syscall.Threshold<n=3>(again)
  syscall.AppNotify<name="third">(n)
  syscall.Hold.Stash<slot="h">(z)
  h: F32[2] = syscall.Hold.Flush<slot="h">(again)
  syscall.AppEmit<name="held">(h)
  done: Trigger = syscall.Serialize.Enqueue<queue="q">(w)
  taken: F32[2] = syscall.Serialize.Dequeue<queue="q">(go)
  syscall.AppEmit<name="taken">(taken)
  syscall.Record<name="r">(z)
  r: U64 = syscall.RngU64(again)
  syscall.AppEmit<name="random">(r)
  out: Trigger = syscall.Limit.Release<name="l">(w)
function module.Twice(v: F32[2]) -> (w) {}
  s: Trigger = syscall.Sleep<duration_ns=1000000>(v)
  u: F32[2] = syscall.GateDispatch(v, s)
  w: F32[2] = Add(u, u)
"""

ALWAYS = [lambda n: True, lambda n: n % 3 == 0, lambda n: n % 2 == 1]


@pytest.mark.parametrize("when", ALWAYS)
def test_every_stateful_op_goes_on_where_it_was(compile_text, when):
    data = compile_text(STATEFUL)
    found = []
    for rule in (lambda n: False, when):
        one = Reborn(data, "Main", rule)
        now = 0
        for k in range(5):
            one.node.invoke("Main", {"x": np.full(2, k, np.float32), "go": TRIGGER})
            now = one.run(now + 2 * MS, now)
        one.run(10**12, now)
        assert one.node.ring("r")
        found.append((one.events, one.node.counters, [r.tolist() for r in one.node.ring("r")]))
    assert found[0][0], "it says something"
    assert found[0] == found[1]
    assert one.births > 3
