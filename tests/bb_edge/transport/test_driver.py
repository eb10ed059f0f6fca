"""The driver's turn of the loop: what a keeper sees, and when what was written down goes out."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from types import FrameType

import pytest

from bb_edge.engine import steps
from bb_edge.ir.ids import PeerId
from bb_edge.transport.driver import LAST_WORDS_NS, Driver, next_due_ns
from bb_edge.transport.in_process import Simulation

PEER = PeerId.from_name("other")


class Loop:
    """A node, a transport, a keeper and a clock in one, that say in which order they were called."""

    peer_id = PeerId.from_name("self")
    epoch = 1
    classes = ()

    def __init__(self, polls: Sequence[list[steps.EngineStep]], ask_snapshot: bool = False) -> None:
        self.presence_meta: dict[str, object] = {}
        self.polls = list(polls)
        self.said: list[str] = []
        self.snapshots = 0
        self.next_ns: int | None = None
        self.waited: list[float | None] = []
        self.ask_snapshot = ask_snapshot
        self.holding = False
        self.has_chore = False
        self.ready: list[bool] = []  # after each of the last polls
        self.now_ns, self.step_ns = 1, 0

    # --- the node

    def poll(self, now_ns: int) -> list[steps.EngineStep]:
        self.said.append("poll")
        return self.polls.pop(0) if self.polls else []

    def next_deadline_ns(self) -> int | None:
        return 0 if self.polls else None

    @property
    def has_ready(self) -> bool:
        return bool(self.ready and self.ready.pop(0))

    def presences_come(self) -> None:
        return None

    def set_waker(self, waker: object) -> None:
        return None

    def fire_lifecycle(self, phase: int) -> None:
        self.said.append(f"phase {phase}")
        if self.ask_snapshot:
            self.polls.append([steps.SnapshotWanted("end")])

    # --- the transport

    def start(self) -> None:
        return None

    def stop(self) -> None:
        self.said.append("stop")

    def wait(self, timeout_s: float | None) -> None:
        self.waited.append(timeout_s)

    def wake(self) -> None:
        return None

    def send(self, step: steps.SendEnvelope) -> None:
        self.said.append(f"send {step.payload!r}")

    # --- the keeper

    def settle(self, wait: bool) -> None:
        self.said += ["settle all"] * wait

    def tidy(self) -> None:
        self.said.append("tidy")
        self.has_chore = False

    def close(self) -> None:
        self.said.append("close")

    def take(self, found: Sequence[steps.EngineStep], now_ns: int) -> None:
        self.said.append("take")
        self.next_ns = None
        if any(isinstance(step, steps.SnapshotWanted) for step in found):
            self.snapshot(now_ns)

    def announce(self) -> None:
        self.said.append("announce")

    def snapshot(self, now_ns: int) -> bool:
        self.said.append("snapshot")
        self.snapshots += 1
        return True

    # --- the clock

    def monotonic_ns(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


def envelope(payload: bytes) -> steps.SendEnvelope:
    return steps.SendEnvelope(PEER, payload)


def drive(loop: Loop, keeper: bool = True, report: bool = False) -> list[str]:
    turns = len(loop.polls)
    listen = (lambda step: loop.said.append(type(step).__name__)) if report else None
    driver = Driver(loop, loop, loop, listen, keeper=loop if keeper else None)
    driver.run(lambda: driver.polls >= turns)
    return loop.said


def test_what_a_poll_asks_to_be_kept_is_kept_before_it_is_sent_on() -> None:
    said = drive(Loop([[envelope(b"a"), envelope(b"b")], [envelope(b"c")]]))
    assert said[:7] == ["poll", "take", "send b'a'", "send b'b'", "poll", "take", "send b'c'"]


@pytest.mark.parametrize("keeper", [True, False])
def test_the_host_hears_of_an_event_before_it_is_kept_that_it_has(keeper: bool) -> None:
    event, fault = steps.AppEvent("Main", 1, "x"), steps.IngressDropped(None, "full")
    said = drive(Loop([[fault, envelope(b"a"), event]]), keeper, report=True)
    if keeper:
        assert said[:5] == ["poll", "AppEvent", "take", "IngressDropped", "send b'a'"]
        assert said.count("AppEvent") == 1
    else:
        assert said[:4] == ["poll", "IngressDropped", "send b'a'", "AppEvent"]


def test_the_end_writes_a_last_snapshot_after_what_was_written_down_went_out() -> None:
    loop = Loop([])
    loop.fire_lifecycle = lambda phase: loop.polls.extend([[], [envelope(b"ack")]])  # type: ignore[method-assign]
    assert drive(loop) == [
        "poll",
        "take",
        "announce",
        "poll",
        "take",
        "send b'ack'",
        "snapshot",
        "close",
        "stop",
    ]


def test_a_snapshot_that_the_shutdown_asked_for_is_the_last() -> None:
    said = drive(Loop([], ask_snapshot=True))
    assert said == ["phase 1", "poll", "take", "snapshot", "poll", "take", "close", "stop"]


def test_where_an_envelope_finds_no_room_the_node_is_told_of_all_that_is_written_and_polled_then() -> None:
    loop = Loop([[]])
    loop.holding = True
    assert drive(loop)[:3] == ["settle all", "poll", "take"]


def test_a_chore_waits_until_nothing_is_due_and_what_was_sent_has_left() -> None:
    loop = Loop([[steps.SnapshotWanted("x")], [envelope(b"a")], [], []])
    loop.has_chore, after = True, []
    loop.tidy = lambda: (after.extend(loop.waited), setattr(loop, "has_chore", False))  # type: ignore[method-assign]
    drive(loop)
    assert after == [0.0, 0.0, 0.0, 0.0], "a wait after each poll, the last of which would have been long"
    assert loop.waited == after


def test_without_a_keeper_nothing_is_kept() -> None:
    assert drive(Loop([[envelope(b"a")]]), keeper=False) == ["poll", "send b'a'", "phase 1", "poll", "stop"]


@pytest.mark.parametrize(("node_ns", "keeper_ns", "due"), [(5, None, 5), (None, 7, 7), (5, 7, 5), (9, 7, 7)])
def test_who_has_something_to_do_first_is_waited_for(
    node_ns: int | None, keeper_ns: int | None, due: int
) -> None:
    loop = Loop([])
    assert next_due_ns(loop, None) is None
    loop.next_deadline_ns, loop.next_ns = lambda: node_ns, keeper_ns  # type: ignore[method-assign]
    assert next_due_ns(loop, loop) == due
    loop.take = lambda found, now_ns: loop.said.append("take")  # type: ignore[method-assign]
    driver = Driver(loop, loop, loop, keeper=loop)
    driver.run(lambda: driver.polls >= 1)
    assert loop.waited == [pytest.approx((due - 1) / 1e9)], "the clock says 1"


def test_a_stop_may_interrupt_a_stop_at_each_of_its_lines() -> None:
    """`timeout` sends SIGTERM to the process and to its group: the second handler runs within the first."""
    loop = Loop([[]])
    driver = Driver(loop, loop, loop)
    interrupted = set[int]()

    def again(frame: FrameType, _event: str, _value: object) -> object:
        interrupted.add(frame.f_lineno)
        driver.stop()
        return again

    def stop() -> None:
        sys.settrace(again)
        try:
            driver.stop()
        finally:
            sys.settrace(None)

    handler = threading.Thread(target=stop, daemon=True)
    handler.start()
    handler.join(10)
    assert not handler.is_alive(), "a stop waits for the one that it has interrupted"
    assert len(interrupted) >= 3
    driver.run()
    assert driver.polls == 1, "no turn of the loop, but the poll of the end"


def test_the_simulation_goes_on_to_when_a_keeper_has_something_to_do() -> None:
    loop, world = Loop([]), Simulation()
    loop.next_ns = 7_000_000_000
    world.add(loop, loop)
    world.run()
    assert loop.said == ["poll", "take"] and world.now_ns == 7_000_000_000


def test_the_simulation_keeps_too() -> None:
    loop = Loop([[envelope(b"a")]])
    world = Simulation()
    world.add(loop, loop)
    world.run()
    assert loop.said == ["poll", "take"]
    assert world.lost == 1
    world.remove(loop.peer_id)
    loop.polls, loop.said = [[envelope(b"b")]], []
    world.add(loop)
    world.run()
    assert loop.said == ["poll"]


def test_the_last_words_have_several_polls() -> None:
    loop = Loop([])
    loop.ready = [True, True, False]
    assert drive(loop)[:4] == ["phase 1", "poll", "take", "poll"] and loop.said.count("poll") == 4


def test_the_last_words_end() -> None:
    loop = Loop([])
    loop.ready, loop.step_ns = [True] * 100, 10**9
    assert drive(loop, keeper=False).count("poll") == 1 + LAST_WORDS_NS // 10**9 // 2
