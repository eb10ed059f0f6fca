"""A poll of a node with a clock ends when its time is over, and what can only come too late is declined."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from arrays import f32
from components import Slow
from envelopes import fill
from peers import HERE
from times import MS, S

from bb_edge.engine import steps
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.registry import Registry
from bb_edge.wire.caps import HOST_CAPS
from bb_edge.wire.envelope import REQUEST, RESPONSE, Envelope, decode, encode

SERVICE = """program Demo {module=Demo, targets="Main,Clock", binding.Main.s="codec|test.Hard|1"}
function program.Main(v: F32[1]) -> () {entry=1, partition=Main}
  slot s: codec
  x: F32[1], from: PeerIdVec, number: WireReqId = wire.RecvReq() {wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101}
  y: F32[1] = role.compressor.Compress(x) {slot=s}
  h: Trigger = wire.SendResp(y, from, number) {wire.wire_id=2, wire.site_ids=a2, wire.type_hashes=101, wire.request=1}
  a: F32[1] = role.compressor.Compress(v) {slot=s}
  b: F32[1] = role.compressor.Compress(a) {slot=s}
  c: F32[1] = role.compressor.Compress(b) {slot=s}
  d: F32[1] = role.compressor.Compress(c) {slot=s}
  e: F32[1] = role.compressor.Compress(d) {slot=s}
  syscall.AppEmit<name="a">(a)
  syscall.AppEmit<name="e">(e)
  syscall.AppEmit<name="c">(c)
function program.Clock() -> () {entry=1, partition=Clock}
  t: Timestamp = syscall.Interval<period_ns=100000000>()
  syscall.AppEmit<name="tick">(t)
"""
DEADLINE = S
ASKER = PeerId.from_name("asker")


@dataclass
class Machine:
    """A node whose component takes `takes_ns` for each op, in the time of `clock`."""

    node: Any
    now_ns: int = 0
    takes_ns: int = 0
    worked: int = 0
    order: list[float] = field(default_factory=list)  # what it worked on

    def clock(self) -> int:
        return self.now_ns

    def poll(self) -> list[steps.EngineStep]:
        return self.node.poll(self.now_ns)

    def ask(self, number: int, deadline_ns: int = DEADLINE) -> None:
        made = Envelope([fill(0xA1, 3)], REQUEST, number, deadline_ns, epoch=5, seq=number)
        self.node.deliver_inbound(encode(made), ASKER)


@pytest.fixture
def machine(compile_text) -> Callable[..., Machine]:
    """`machine(takes_ns, timed, targets)`: without a clock it knows of ops alone."""

    def make(takes_ns: int, timed: bool = True, targets: tuple[str, ...] = ("Main",)) -> Machine:
        made = Machine(None, takes_ns=takes_ns)

        class Hard(Slow):
            TYPE_NAME: ClassVar[str] = "test.Hard"
            shared: ClassVar[bool] = True  # no execution claims it

            def compress(self, ctx: Any, t: Any) -> Any:
                made.worked += 1
                made.order.append(float(t[0]))
                made.now_ns += made.takes_ns
                return t + 1

        registry = Registry()
        registry.register(Hard)
        clock = made.clock if timed else None
        made.node = install(
            PeerId.from_name("n"), (), compile_text(SERVICE), targets, registry=registry, seed=1, clock=clock
        )
        made.node.peer_presence(ASKER, True, (HERE,), {"features": ["failures"]}, epoch=1)
        made.poll()
        return made

    return make


def replies(said: list[steps.EngineStep]) -> list[Envelope]:
    found = [decode(s.payload, HOST_CAPS) for s in said if isinstance(s, steps.SendEnvelope)]
    return [message for message in found if message.kind == RESPONSE]


def topics(said: list[steps.EngineStep]) -> list[str]:
    return [s.topic for s in said if isinstance(s, steps.AppEvent)]


def test_a_poll_ends_when_its_time_is_over(machine):
    m = machine(60 * MS)
    m.node.invoke("Main", {"v": f32(1)})
    said = m.poll()
    assert m.worked == 1 and topics(said) == []
    assert m.node.next_deadline_ns() == 0
    said += [step for _ in range(4) for step in m.poll()]
    assert m.worked == 5 and topics(said) == ["a", "c", "e"]
    assert m.node.counters["cycles.over_time"] == 4
    assert not [s for s in said if isinstance(s, steps.CycleBudgetExceeded)]


def test_a_poll_without_a_clock_ends_when_its_ops_have_run(machine):
    m = machine(30 * MS, timed=False)
    m.node.invoke("Main", {"v": f32(1)})
    assert topics(m.poll()) == ["a", "c", "e"] and m.worked == 5


def test_a_reply_leaves_before_the_next_request_is_worked_on(machine):
    m = machine(60 * MS)
    for number in (1, 2, 3):
        m.ask(number)
    assert [len(replies(m.poll())) for _ in range(3)] == [1, 1, 1]


def test_requests_whose_time_is_over_while_others_run_are_not_begun(machine):
    m = machine(400 * MS)
    for number in range(1, 6):
        m.ask(number)
    said = [step for _ in range(8) for step in m.poll()]
    assert m.worked == 3  # at 0, 400 and 800 ms
    assert [r.failure is None for r in replies(said)][:2] == [True, True]
    assert m.node.counters["deadlines.expired"] >= 2


def test_who_takes_long_lets_others_have_their_turn(machine):
    m = machine(60 * MS)
    m.node.invoke("Main", {"v": f32(1)})
    m.node.invoke("Main", {"v": f32(100)})
    for _ in range(10):
        m.poll()
    assert m.worked == 10 and not m.node.has_ready
    assert m.order.index(100) < m.order.index(5)


def test_timers_fire_while_somebody_takes_long(machine):
    m = machine(60 * MS, targets=("Main", "Clock"))
    m.node.invoke("Main", {"v": f32(1)})
    ticks = topics([step for _ in range(6) for step in m.poll()]).count("tick")
    assert m.worked == 5 and ticks == 3  # at 100, 200 and 300 ms


def serve(m: Machine, every_ns: int, for_ns: int) -> int:
    """Asks again and again; what arrives is read when a poll begins. Returns how many answers are in time."""
    asked, in_time = 0, 0
    while m.now_ns < for_ns:
        while (asked + 1) * every_ns <= m.now_ns:
            asked += 1
            m.ask(asked)
        for message in replies(m.poll()):
            if message.failure is None:
                in_time += m.now_ns < message.wire_req_id * every_ns + DEADLINE
            else:
                assert message.failure.name in ("DECLINED", "OUT_OF_TIME")
        if m.node.next_deadline_ns() != 0:
            m.now_ns = max(m.now_ns, (asked + 1) * every_ns)
    return in_time


def test_a_service_that_is_asked_too_much_answers_as_many_as_it_can(machine):
    m = machine(240 * MS)
    in_time = serve(m, every_ns=100 * MS, for_ns=30 * S)  # 2.4 times what it can do
    assert m.worked >= 115 and in_time >= 0.85 * m.worked
    assert m.node.counters["requests.declined"] >= 100


def test_a_service_that_can_do_what_it_is_asked_declines_nothing(machine):
    m = machine(240 * MS)
    assert serve(m, every_ns=250 * MS, for_ns=30 * S) == m.worked
    assert m.node.counters.get("requests.declined", 0) == 0


def test_a_request_that_nobody_stands_behind_is_worked_on_whatever_is_known(machine):
    m = machine(1100 * MS)
    for number in range(1, 6):
        m.ask(number)
        said = m.poll()
        assert not [s for s in said if isinstance(s, steps.RequestDeclined)]
    assert m.worked == 5
