"""Declared outputs reach the host: whoever reads them too, wherever and out of whatever they are computed."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from times import S
from wire_ops import ASK, REPLY

from bb_edge import PeerId, install
from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.transport.in_process import Simulation

HEAD = "program Demo {module=Demo}\nfunction program.Main"
TAIL = " {entry=1, partition=self}\n"


def told(b: Any) -> list[tuple[str, object]]:
    return [(s.topic, np.asarray(s.value).tolist()) for s in b.of(steps.AppEvent)]


@pytest.mark.parametrize("way", ["direct", "loop", "traced"])
def test_outputs_that_are_read_come_once_each(bench: Any, way: str) -> None:
    text = f"""{HEAD}(x: F32[2]) -> (a, b, c, same){TAIL}  a: F32[2] = Neg(x)
  b: F32[2] = Add(a, x)
  c: F32[2] = Mul(b, a)
  same: F32[2] = Identity(a)
"""
    b = bench(text, config=NodeConfig(trace=way == "traced"))
    if way == "loop":
        b.node.observe_ops(lambda op: op.run)
    for _ in range(2):
        b.node.invoke("Main", {"x": np.array([1, 2], np.float32)})
    b.settle()
    found = told(b)
    assert sorted(found) == sorted([("a", [-1, -2]), ("b", [0, 0]), ("c", [0, 0]), ("same", [-1, -2])] * 2)
    assert b.node.counters.get("ops.failed", 0) == 0


def test_an_input_is_an_output_and_one_that_is_missing_is_none(bench: Any) -> None:
    b = bench(f"{HEAD}(x: F32[1], y: F32[1]) -> (x, y, z){TAIL}  z: F32[1] = Neg(x)\n")
    b.node.invoke("Main", {"x": np.ones(1, np.float32)})
    b.settle()
    assert sorted(told(b)) == [("x", [1]), ("z", [-1])]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("c: I64 = Constant<value_int=7>()", 7),
        ("c: F32[2] = Constant<value=F32[2]{1, 2}>()", [1, 2]),
        ("k: I64 = Constant<value_int=7>()\n  c: I64 = Add(k, k)", 14),
        ('c: Bytes = syscall.Constant<value="hi">()', b"hi"),
    ],
)
def test_constants_come_with_every_invoke(bench: Any, line: str, value: object) -> None:
    b = bench(f"{HEAD}(x: F32[1]) -> (c, y){TAIL}  {line}\n  y: F32[1] = Neg(x)\n")
    for inputs in ({"x": np.ones(1, np.float32)}, {}):
        b.said.clear()
        b.node.invoke("Main", inputs)
        b.settle()
        assert [v for t, v in told(b) if t == "c"] == [value]
        assert len(told(b)) == 1 + len(inputs)


ENTRIES = {
    "t: Trigger = syscall.Pulse()": 1,
    "t: Timestamp = syscall.Interval<period_ns=100>()": 3,
    "t: Tensor<I64>[] = syscall.Repeat<times=2>()": 2,
    "t: Trigger = syscall.LifecyclePhase<phase=2>()": 1,
    "t: EventKind = syscall.EventSource<kind=2>()": 1,
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_constants_come_at_each_firing_of_the_only_entry(bench: Any, entry: str) -> None:
    text = f"{HEAD}() -> (c, t){TAIL}  {entry}\n  c: I64 = Constant<value_int=7>()\n"
    b = bench(text)
    b.poll()
    b.node.fire_lifecycle(2)
    b.node.peer_presence(PeerId.from_name("p"), True)
    b.settle(until_ns=350)
    assert [t for t, _ in told(b)].count("t") == ENTRIES[entry]
    assert [v for t, v in told(b) if t == "c"] == [7] * ENTRIES[entry]


def test_among_several_entries_constants_belong_to_none(bench: Any) -> None:
    text = f"""{HEAD}() -> (c){TAIL}  c: I64 = Constant<value_int=7>()
  p: Trigger = syscall.Pulse()
  t: Timestamp = syscall.Interval<period_ns=100>()
"""
    b = bench(text)
    b.settle(until_ns=350)
    assert told(b) == []
    b.node.invoke("Main")
    b.settle(until_ns=350)
    assert told(b) == [("c", 7)]


def test_an_output_out_of_sources_comes_where_it_is_asked_for(bench: Any) -> None:
    """By an op that runs and reads it, or by an invoke without inputs; to run a source is an effect."""
    head = 'program Demo {module=Demo, binding.Main.peers="peer_selector|bb.PresenceSelector|1"}'
    text = f"""{head}
function program.Main(x: F32[1], z: F32[1]) -> (view, y, w){TAIL}  slot peers: peer_selector peer_class=Main
  view: PeerIdVec = role.peer_selector.CurrentView() {{slot=peers}}
  y: F32[1] = Neg(x)
  w: F32[1] = syscall.Gate(z, view)
"""
    b = bench(text)
    for given, topics in (("x", ["y"]), ("z", ["view", "w"]), ("", ["view"])):
        b.said.clear()
        b.node.invoke("Main", {name: np.zeros(1, np.float32) for name in given})
        b.settle()
        assert sorted(s.topic for s in b.of(steps.AppEvent)) == topics


def test_an_entry_does_not_run_sources_for_outputs(bench: Any) -> None:
    head = 'program Demo {module=Demo, binding.Main.peers="peer_selector|bb.PresenceSelector|1"}'
    text = f"""{head}
function program.Main() -> (view, c){TAIL}  slot peers: peer_selector peer_class=Main
  t: Trigger = syscall.Pulse()
  k: I64 = Constant<value_int=7>()
  c: I64 = syscall.PassThrough(k)
  view: PeerIdVec = role.peer_selector.CurrentView() {{slot=peers}}
"""
    b = bench(text)
    b.settle()
    assert told(b) == [("c", 7)]


def test_values_that_are_no_tensors_come_too(bench: Any) -> None:
    text = f"""{HEAD}(p: PeerIdVec, x: F32[1]) -> (p, t, both, stamp){TAIL}  t: Trigger = syscall.OnTrigger(x)
  both: Composite = composite.Bundle<child_count=2, child_types="F32,F32">(x, x)
  stamp: Timestamp = syscall.Clock(t)
"""
    b = bench(text)
    peers = (PeerId.from_name("a"), PeerId.from_name("b"))
    b.node.invoke("Main", {"p": peers, "x": np.ones(1, np.float32)})
    b.settle()
    found = {s.topic: s.value for s in b.of(steps.AppEvent)}
    assert set(found) == {"p", "t", "both", "stamp"}
    assert found["p"] == peers and len(found["both"].values) == 2


def test_an_output_of_a_called_function_is_the_callers(bench: Any) -> None:
    text = f"""{HEAD}(x: F32[1]) -> (y, z){TAIL}  y: F32[1] = module.Inner(x)
  z: F32[1] = Neg(y)
function module.Inner(v: F32[1]) -> (w, inner) {{}}
  w: F32[1] = Neg(v)
  inner: F32[1] = Neg(w)
"""
    b = bench(text)
    b.node.invoke("Main", {"x": np.ones(1, np.float32)})
    b.settle()
    assert sorted(told(b)) == [("y", [-1]), ("z", [1])]


ANSWERS = f"""program Demo {{module=Demo, targets="Server,Client", binding.Server.peers="peer_selector|bb.PresenceSelector|1"}}
function program.Server(x: F32[1]) -> (asked, y, sum, who, missing) {{entry=1, partition=Server}}
  slot peers: peer_selector peer_class=Client
  asked: F32[1] = Neg(x)
  all: PeerIdVec = role.peer_selector.CurrentView() {{slot=peers}}
  r: WireReqId = wire.SendReqBatched(asked, all, all) {{{ASK}, wire.answer_mode=each, deadline_ns=5000000000}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  y: F32[1], who: PeerIdVec = wire.RecvResp() {{{REPLY}}}
  sum: F32[1] = Add(y, x)
  t: Trigger = syscall.Threshold<n=1>(sum)
function program.Client() -> (got, back) {{entry=1, partition=Client}}
  got: F32[1], s: PeerIdVec, q: WireReqId = wire.RecvReq() {{{ASK}}}
  back: F32[1] = Mul(got, got)
  h: Trigger = wire.SendResp(back, s, q) {{{REPLY}}}
"""


def test_outputs_of_answers_come_once_per_answer_and_those_of_a_partition_where_it_runs(
    compile_text: Any,
) -> None:
    sim = Simulation(seed=3)
    data = compile_text(ANSWERS)
    server = install(PeerId.from_name("server"), (), data, ["Server"], seed=1)
    sim.add(server)
    clients = [install(PeerId.from_name(f"c{i}"), (), data, ["Client"], seed=10 + i) for i in range(3)]
    for client in clients:
        sim.add(client)
    sim.run(for_ns=S // 10)
    server.invoke("Server", {"x": np.full(1, 3, np.float32)})
    sim.run(for_ns=S)
    events = [(s.peer, s.step) for s in sim.seen if isinstance(s.step, steps.AppEvent)]
    of_server = [e for peer, e in events if peer == server.peer_id]
    count = {
        name: sum(e.topic == name for e in of_server) for name in ("asked", "y", "sum", "who", "missing")
    }
    assert count == {"asked": 1, "y": 3, "sum": 3, "who": 3, "missing": 1}
    assert {e.value[0] for e in of_server if e.topic == "who"} == {c.peer_id for c in clients}
    assert len({e.execution for e in of_server if e.topic == "y"}) == 3
    for client in clients:
        assert sorted(e.topic for peer, e in events if peer == client.peer_id) == ["back", "got"]


def test_a_constant_comes_where_an_envelope_is_the_only_way_in(compile_text: Any) -> None:
    text = ANSWERS.replace("-> (got, back)", "-> (got, version)").replace(
        "  back: F32[1] = Mul", "  version: I64 = Constant<value_int=7>()\n  back: F32[1] = Mul"
    )
    sim, data = Simulation(seed=3), compile_text(text)
    server = install(PeerId.from_name("server"), (), data, ["Server"], seed=1)
    client = install(PeerId.from_name("c"), (), data, ["Client"], seed=2)
    sim.add(server)
    sim.add(client)
    sim.run(for_ns=S // 10)
    for _ in range(2):
        server.invoke("Server", {"x": np.full(1, 3, np.float32)})
        sim.run(for_ns=S)
    assert [int(e.value) for e in sim.events("version")] == [7, 7]


@pytest.mark.parametrize("polls", range(6))
def test_a_restored_node_tells_what_the_old_one_had_not_told(compile_text: Any, polls: int) -> None:
    text = f"""{HEAD}(x: F32[1]) -> (a, late, c){TAIL}  a: F32[1] = Neg(x)
  c: I64 = Constant<value_int=7>()
  t: Trigger = syscall.Sleep<duration_ns=1000>(a)
  late: F32[1] = syscall.GateDispatch(a, t)
  b: F32[1] = Neg(late)
"""
    data = compile_text(text)
    config = NodeConfig(cycle_op_budget=1)

    def node(snapshot: bytes | None) -> Any:
        return install(PeerId.from_name("n"), (), data, ["Main"], config, seed=1, snapshot=snapshot)

    def topics(found: list[Any]) -> list[str]:
        return [s.topic for s in found if isinstance(s, steps.AppEvent)]

    old = node(None)
    old.invoke("Main", {"x": np.ones(1, np.float32)})
    heard = [topic for _ in range(polls) for topic in topics(old.poll(0))]
    new = node(old.snapshot(0))
    for now in (*[0] * 20, *[1000] * 20):
        heard += topics(new.poll(now))
    assert sorted(heard) == ["a", "c", "late"]
