"""Offloaded work whose result would come too late is not begun: a node that is asked too much answers some."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from components import Slow
from envelopes import fill
from peers import HERE
from times import MS, S

from bb_edge.engine import steps
from bb_edge.engine.paces import AGAIN, FEWEST, SEEN, Pace
from bb_edge.engine.run.turns import TOO_LATE
from bb_edge.ir.ids import PeerId
from bb_edge.registry import Registry
from bb_edge.wire.caps import HOST_CAPS
from bb_edge.wire.envelope import REQUEST, RESPONSE, Envelope, decode, encode

SERVICE = """program Demo {module=Demo, binding.Main.s="codec|test.Hard|1"}
function program.Main() -> () {entry=1, partition=Main}
  slot s: codec
  x: F32[1], from: PeerIdVec, number: WireReqId = wire.RecvReq() {wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101}
  y: F32[1] = role.compressor.Compress(x) {slot=s}
  h: Trigger = wire.SendResp(y, from, number) {wire.wire_id=2, wire.site_ids=a2, wire.type_hashes=101, wire.request=1}
"""
TAKES = 240 * MS
DEADLINE = S


class OneThread:
    """An executor whose only thread takes `TAKES` for whatever it does, in the time that the test makes."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.free_ns = 0
        self.waits: deque[Callable[[], object]] = deque()
        self.began = 0

    def submit(self, work: Callable[[], object], /) -> object:
        self.waits.append(work)
        return None

    def clock(self) -> int:
        return self.now_ns

    def run_until(self, now_ns: int, told: Callable[[int], object]) -> None:
        """Does what waits, as far as it begins before `now_ns`; `told` is called whenever a piece has ended."""
        while self.waits and self.free_ns < now_ns:
            self.now_ns = max(self.free_ns, self.now_ns)
            self.waits.popleft()()
            self.free_ns = self.now_ns
            told(self.now_ns)
        self.now_ns = max(self.now_ns, now_ns)

    def work(self, passes: Callable[[int], object]) -> None:
        """What a piece of work does: time passes, in which the node polls."""
        self.began += 1
        passes(self.now_ns + TAKES)
        self.now_ns += TAKES


def answers(bench, every_ns: int, for_ns: int) -> tuple[int, int, Any]:
    """Asks a service again and again: (answers in time, pieces of work begun, the bench)."""
    thread = OneThread()

    class Hard(Slow):
        """Compresses on the node's executor."""

        TYPE_NAME: ClassVar[str] = "test.Hard"
        concurrent: ClassVar[bool] = True

        def compress(self, ctx: Any, t: Any) -> Any:
            return ctx.offload(lambda: (thread.work(b.settle), t + 1)[1])

    registry = Registry()
    registry.register(Hard)
    b = bench(SERVICE, registry=registry, executor=thread, clock=thread.clock)
    asker = PeerId.from_name("asker")
    b.node.peer_presence(asker, True, (HERE,), {"features": ["failures"]}, epoch=1)
    due: dict[int, int] = {}
    in_time = 0

    def turn(now_ns: int) -> None:
        nonlocal in_time
        b.now_ns = max(b.now_ns, now_ns)
        for step in b.poll():
            if isinstance(step, steps.SendEnvelope):
                message = decode(step.payload, HOST_CAPS)
                if message.kind == RESPONSE and message.failure is None:
                    in_time += b.now_ns < due[message.wire_req_id]

    for number in range(1, for_ns // every_ns):
        now_ns = number * every_ns
        thread.run_until(now_ns, turn)
        due[number] = now_ns + DEADLINE
        made = Envelope([fill(0xA1, 3)], REQUEST, number, DEADLINE, epoch=5, seq=number)
        b.node.deliver_inbound(encode(made), asker)
        turn(now_ns)
        thread.run_until(now_ns + 1, turn)
    return in_time, thread.began, b


def test_a_service_that_is_asked_too_much_answers_as_many_as_it_can(bench):
    in_time, began, b = answers(bench, every_ns=100 * MS, for_ns=30 * S)  # 2.4 times what it can do
    assert began >= 115  # of 125: the thread is hardly ever idle
    assert in_time >= 0.9 * began
    declined = b.of(steps.RequestDeclined)
    assert len(declined) >= 100 and {s.why for s in declined} == {TOO_LATE}
    failures = [
        m.failure.name
        for s in b.of(steps.SendEnvelope)
        if (m := decode(s.payload, HOST_CAPS)).kind == RESPONSE and m.failure is not None
    ]
    assert failures.count("DECLINED") == len(declined) and set(failures) <= {"DECLINED", "OUT_OF_TIME"}


def test_a_service_that_can_do_what_it_is_asked_refuses_nothing(bench):
    in_time, began, b = answers(bench, every_ns=250 * MS, for_ns=30 * S)
    assert in_time >= began - 1 and began == 119 and b.of(steps.OpFailed) == []


def seen(pace: Pace, times: list[int], *, late: bool = False) -> int:
    now_ns = 0
    for taken in times:
        now_ns += taken
        pace.took(taken, now_ns, late=late)
    return now_ns


def test_nothing_is_refused_before_something_came_too_late():
    pace = Pace()
    now_ns = seen(pace, [100] * SEEN)
    assert pace.fits(1, now_ns)
    pace.took(100, now_ns + 100, late=True)
    assert not pace.fits(1, now_ns + 100) and pace.fits(200, now_ns + 100)


def test_little_is_known_from_few():
    pace = Pace()
    now_ns = seen(pace, [100] * (FEWEST - 1), late=True)
    assert pace.fits(1, now_ns)
    pace.took(100, now_ns, late=True)
    assert not pace.fits(1, now_ns)


def test_a_few_long_ones_do_not_refuse_the_others():
    pace = Pace()
    now_ns = seen(pace, [100, 5000, 100, 5000, 100], late=True)
    assert pace.fits(120, now_ns) and not pace.fits(110, now_ns)


def test_after_a_while_one_is_tried_again_and_the_latest_count():
    pace = Pace()
    now_ns = seen(pace, [1000] * SEEN, late=True)
    assert not pace.fits(500, now_ns + AGAIN * 1000 - 1)
    assert pace.fits(500, now_ns + AGAIN * 1000)
    assert not pace.fits(500, now_ns + AGAIN * 1000), "one"
    seen(pace, [100] * (SEEN // 2 + 1))
    assert pace.fits(500, now_ns)
