"""What waits to come in or to go out has every field of it in the restored node."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from components import Slow
from durable_program import greeted
from envelopes import fill
from kinds_of_steps import of

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine import steps
from bb_edge.engine.entries.bootstrap import BootstrapStatus, ModuleNames, Slots
from bb_edge.engine.steps import AppEvent, PersistOutbox, SendEnvelope, SnapshotWanted
from bb_edge.node import Node
from bb_edge.registry import Registry
from bb_edge.roles import Index
from bb_edge.wire import envelope
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.envelope import REQUEST, Ack, Envelope
from bb_edge.wire.outbox import OutboxRecord

MS, S = 1_000_000, 1_000_000_000
HERE = b"\xe2\x01" + bytes(8)
SELF, A, B = (PeerId.from_name(name) for name in ("node", "a", "b"))
SAY = "wire.wire_id=3, wire.site_ids=c1, wire.type_hashes=101"
SAID = "wire.wire_id=4, wire.site_ids=c2, wire.type_hashes=101, durable=1"
ASK = "wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101"
REPLY = "wire.wire_id=2, wire.request=1, wire.site_ids=b1, wire.type_hashes=101"
TEXT = f"""
program Demo {{module=Demo}}
function program.Main(to: PeerIdVec) -> () {{entry=1, partition=Main}}
  x: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  late: Trigger = syscall.Sleep<duration_ns=10000000>(x)
  y: F32[1] = syscall.GateDispatch(x, late)
  syscall.AppEmit<name="y">(y)
  syscall.AppEmit<name="to">(to)
function program.Clock() -> () {{entry=1, partition=Clock}}
  tick: I64 = syscall.Interval<period_ns=7000000>()
  syscall.AppEmit<name="tick">(tick)
function program.Out(x: F32[1], to: PeerIdVec, ask: PeerIdVec) -> () {{entry=1, partition=Out}}
  h: Trigger = wire.Send(x, to) {{{SAID}}}
  r: WireReqId = wire.SendReqBatched(x, ask, ask) {{{ASK}, wire.answer_mode=each, deadline_ns=4000000000}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  y: F32[1], who: PeerIdVec = wire.RecvResp() {{{REPLY}}}
  syscall.AppEmit<name="y">(y)
"""
DURABLE_ASK = TEXT.replace(f"{{{ASK}", f"{{{ASK}, durable=1").replace(
    f"{{{REPLY}}}", f"{{{REPLY}, durable=1}}"
)


@pytest.fixture
def make(compile_text):
    """`make(targets, snapshot, now_ns)`"""
    data = {False: compile_text(TEXT), True: compile_text(DURABLE_ASK)}

    def made(
        *targets: str,
        snapshot: bytes | None = None,
        now_ns: int = 0,
        durable: bool = True,
        durable_ask: bool = False,
        **config: int,
    ) -> Node:
        settings = NodeConfig.edge().with_(**config)
        more: dict[str, Any] = {"seed": 3, "durable": durable, "snapshot": snapshot, "now_ns": now_ns}
        return install(SELF, (HERE,), data[durable_ask], targets, settings, **more)

    return made


def said(value: float, seq: int, **more: Any) -> bytes:
    return envelope.encode(Envelope([fill(0xC1, value)], epoch=9, seq=seq, **more))


def told(found: list[steps.EngineStep]) -> list[Any]:
    return [
        (s.topic, np.asarray(s.value).tolist() if isinstance(s.value, np.ndarray) else s.value)
        for s in of(AppEvent, found)
    ]


def until(node: Node, end_ns: int, now_ns: int) -> list[tuple[int, steps.EngineStep]]:
    """Polls whenever something is due; when and what."""
    found: list[tuple[int, steps.EngineStep]] = []
    while (due := node.next_deadline_ns()) is not None and due <= end_ns:
        now_ns = max(now_ns + 1, due)
        found += [(now_ns, step) for step in node.poll(now_ns)]
    return found


# --- in -----------------------------------------------------------------------------------------------


def test_ticks_go_on_with_the_clock_of_the_restored_node(make):
    node = make("Clock")
    until(node, 15 * MS, 0)
    data = node.snapshot(16 * MS)
    expected = [(when, told([step])) for when, step in until(node, 100 * MS, 16 * MS)]
    assert len(expected) == 12
    for shift_ns in (50 * S, -10 * MS, 0):
        now_ns = 16 * MS + shift_ns
        again = make("Clock", snapshot=data, now_ns=now_ns)
        found = [(when - shift_ns, step) for when, step in until(again, 100 * MS + shift_ns, now_ns)]
        assert [(when, [("tick", s.value - shift_ns)]) for when, s in found] == expected


def test_what_has_arrived_comes_back_with_where_it_was_seen_to_come_from(make):
    node = make("Main")
    node.poll(1)
    node.deliver_inbound(said(1, 1), A, HERE)
    node.deliver_inbound(said(2, 1), B)
    again = make("Main", snapshot=node.snapshot(2), now_ns=2)
    for one in (node, again):
        one.poll(3)
    peers = again.inspect().peers
    assert peers == node.inspect().peers
    assert peers[str(A)]["addresses"] and not peers.get(str(B), {}).get("addresses")


def test_what_a_node_told_itself_has_its_place_however_much_that_is(make):
    small = {"ingress_entries": 8, "answer_entries": 8}
    node = make("Out", **small)
    node.poll(1)
    asked = []
    for now_ns in (2, 3):
        for value in range(8):
            say(node, value, to=(SELF,))
        asked += of(PersistOutbox, node.poll(now_ns))
    for step in asked:
        node.persisted(step.token)
    node.poll(4)
    waiting = node.inspect().ingress["envelopes"]
    assert len(waiting) > 8, "more than a share"
    again = make("Out", snapshot=node.snapshot(4), now_ns=4, **small)
    assert again.inspect().ingress["envelopes"] == waiting


LATER = """
program Demo {module=Demo, binding.Main.a="codec|test.Slow|1"}
function program.Main(x: F32[2]) -> (y) {entry=1, partition=self}
  slot a: codec
  y: F32[2] = role.compressor.Compress(x) {slot=a}
"""
UNKNOWN = "its result could not be kept"


@pytest.mark.parametrize(
    ("answer", "result", "error"),
    [
        (np.ones(2, np.float32), "Tensor<F32>[2]", ""),
        (object(), "None", UNKNOWN),
        (ValueError(), "None", UNKNOWN),
        (ValueError("the sensor is gone"), "None", "the sensor is gone"),
    ],
)
def test_a_completion_comes_back_as_its_result_or_says_what_was_lost(compile_text, answer, result, error):
    registry = Registry()
    registry.register(Slow)
    data = compile_text(LATER)
    more: dict[str, Any] = {"registry": registry, "seed": 1}
    node = install(SELF, (), data, ["Main"], **more)
    node.invoke("Main", {"x": np.ones(2, np.float32)})
    node.poll(1)
    ((later, _),) = node.component("a").open
    later.complete(answer) if not isinstance(answer, Exception) else later.fail(answer)
    (before,) = node.inspect().ingress["completions"]
    again = install(SELF, (), data, ["Main"], **more, snapshot=node.snapshot(1), now_ns=1)
    assert again.inspect().ingress["completions"] == [{**before, "result": result, "error": error}]


# --- bootstraps ---------------------------------------------------------------------------------------


class Store(Index):
    """Is filled by a bootstrap of its own, which a test completes."""

    TYPE_NAME: ClassVar[str] = "test.Store"

    def __init__(self) -> None:
        self.log: list[str] = []

    @classmethod
    def construct(cls, env: Any) -> Store:
        return cls()

    def bootstrap(self, ctx: Any) -> None:
        self.log.append("bootstrap")

    def add(self, ctx: Any, vec: Any) -> None:
        self.log.append("add")

    def search(self, ctx: Any, query: Any, *, k: int) -> Any:
        return np.zeros(k, np.int64), np.zeros(k, np.float32)


STORES = """
program Demo {module=Demo, binding.Main.a="index|test.Store|1"}
function program.Main(q: F32[1], go: Trigger) -> () {entry=1, partition=Main}
  slot a: index
  late: Trigger = syscall.Sleep<duration_ns=10000000>(go)
  w: F32[1] = syscall.GateDispatch(q, late)
  c: CommandId = role.index.Add(w) {slot=a}
function program.Main__bootstrap() -> () {module_phase=bootstrap}
  slot a: index
  one: F32[1] = Constant<value=F32[1]{9.0}>()
  cmd: CommandId = role.index.Add(one) {slot=a}
"""


def test_bootstraps_of_slots_and_targets_come_back_each_in_its_state(compile_text):
    registry = Registry()
    registry.register(Store)
    data = compile_text(STORES)

    def node(snapshot: bytes | None = None) -> Node:
        settings = NodeConfig.edge().with_(max_executions=1)
        more: dict[str, Any] = {"registry": registry, "seed": 1, "snapshot": snapshot}
        return install(SELF, (), data, ["Main"], settings, **more)

    def states(one: Node) -> list[tuple[object, ...]]:
        rows = one.inspect().bootstraps
        return [(row["target"], row["slot"], BootstrapStatus(row["status"]), row["staged"]) for row in rows]

    first = node()
    ready, queued = BootstrapStatus.READY, BootstrapStatus.QUEUED
    assert [row[2:] for row in states(first)] == [(ready, False)] * 2
    first.run_bootstrap(Slots(("a",)))
    assert states(node(first.snapshot(1))) == states(first)
    assert queued in [row[2] for row in states(first)]
    first.run_bootstrap(ModuleNames(("Main",)))
    found = []
    before, again = states(first), node(first.snapshot(1))
    assert states(again) == before
    for one in (first, again):
        done = [
            (when, step.target, step.slot)
            for when, step in until(one, S, 1)
            if isinstance(step, steps.BootstrapComplete)
        ]
        found.append((done, one.component("a").log, states(one)))
    assert found[0] == found[1] and found[0][1] == ["bootstrap", "add"]
    assert [row[2:] for row in found[0][2]] == [(BootstrapStatus.DONE, False)] * 2


# --- out ----------------------------------------------------------------------------------------------


def say(node: Node, value: float, to: tuple[PeerId, ...] = (), ask: tuple[PeerId, ...] = ()) -> None:
    given = {name: peers for name, peers in (("to", to), ("ask", ask)) if peers}
    node.invoke("Out", {"x": np.full(1, value, np.float32), **given})


def test_a_request_is_asked_again_once_however_often_the_node_comes_back(make):
    node = greeted(make("Out"), A, B)
    say(node, 5, ask=(A, B))
    ((first, _)) = of(SendEnvelope, node.poll(2))
    number = envelope.decode(first.payload, EDGE_CAPS).wire_req_id
    once = make("Out", snapshot=node.snapshot(3), now_ns=3)
    units = once.inspect().outgoing
    assert [(unit["peer"], unit["kind"], unit["deadline_ns"]) for unit in units] == [
        (str(A), REQUEST, 4 * S + 2),
        (str(B), REQUEST, 4 * S + 2),
    ]
    twice = make("Out", snapshot=once.snapshot(4), now_ns=4 + S)
    assert twice.inspect().outgoing == [{**unit, "deadline_ns": 5 * S + 2} for unit in units]
    found = [(s.peer, envelope.decode(s.payload, EDGE_CAPS)) for s in of(SendEnvelope, twice.poll(5 + S))]
    assert [(peer, m.kind, m.remaining_deadline_ns) for peer, m in found] == [
        (A, REQUEST, 4 * S - 3),
        (B, REQUEST, 4 * S - 3),
    ]
    assert found[0][1].wire_req_id == number


def test_what_waits_for_room_comes_back_with_its_deadline_and_leaves_in_turn(make):
    node = greeted(make("Out"), A, B)
    for k in range(66):
        say(node, k, to=(A,))
    asked = of(PersistOutbox, node.poll(2))
    assert len(asked) == 64
    before = node.inspect().outbox
    again = make("Out", snapshot=node.snapshot(3), now_ns=3)
    after = again.inspect().outbox
    assert after["waiting"] == before["waiting"] and len(before["waiting"]) == 2
    assert after["writing"] == before["writing"] and len(before["writing"]) == 64
    again.adopt_outbox([step.record for step in asked], 3, 3)
    for step in asked:
        again.persisted(step.token)
    out = [envelope.decode(s.payload, EDGE_CAPS) for s in of(SendEnvelope, again.poll(4)) if s.durable]
    assert len(out) == 64
    for message in out:
        again.deliver_inbound(envelope.encode(Envelope(acks=(Ack(message.epoch, message.seq),))), A)
    found = [*again.poll(5), *again.poll(6)]
    assert [step.token for step in of(PersistOutbox, found)] == [65, 66], "tokens go on"


def test_a_record_that_is_being_written_keeps_what_it_is_and_how_long_it_waits(make):
    node = greeted(make("Out", durable_ask=True), A, B)
    say(node, 1, ask=(A,))
    (asked,) = of(PersistOutbox, node.poll(2))
    node.persist_failed(asked.token, OSError("full"))
    node.poll(3)
    again = make("Out", snapshot=node.snapshot(4), now_ns=4, durable_ask=True)
    again.adopt_outbox([asked.record], 4, 4)
    assert asked in again.poll(5)
    again.persist_failed(asked.token, OSError("full"))
    found = until(again, 3 * S, 6)
    assert [when for when, step in found if isinstance(step, PersistOutbox)] == [S + 2, 2 * S + 5]
    again.persisted(asked.token)
    wanted = of(SnapshotWanted, again.poll(3 * S + 1))
    assert [step.reason for step in wanted] == ["a durable request"], "as a request it waits for a snapshot"
    waiting = again.inspect().outbox["needs_snapshot"]
    assert [row["seq"] for row in waiting] == [OutboxRecord.from_bytes(asked.record).key.seq]
