"""Requests of components: who answers, who is told that nobody does, and when."""

from __future__ import annotations

from typing import Any, ClassVar

from link_ends import sources
from times import S

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.drawing import Drawing
from bb_edge.engine.net.calls import CALL, Calls
from bb_edge.engine.net.durable import Durable
from bb_edge.engine.net.marks import Marks
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.outlets import Outlet
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.records import Records
from bb_edge.engine.net.until_snapshot import SnapshotWish
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.ir.opsets import Opset, Table
from bb_edge.roles import ProtocolComponent
from bb_edge.wire import envelope
from bb_edge.wire.delivery import Links
from bb_edge.wire.durable_sender import DurableSender
from bb_edge.wire.envelope import Envelope, Fill
from tests.aids.transitions import assert_decides_by

ADDRESS = b"\xe2\x01" + bytes(8)
HERE, THERE = PeerId.from_name("here"), PeerId.from_name("there")


class Asker(ProtocolComponent):
    """Keeps what it hears."""

    TYPE_NAME: ClassVar[str] = "test.Asker"

    def __init__(self) -> None:
        self.heard: list[bytes | None] = []

    @classmethod
    def atomic_opset(cls) -> Opset:
        table = Table("test.asker")
        table.op("Op", "sender:PeerId, payload:Bytes", "reply:Bytes", remote=True)
        return table.opset()

    def answered(self, _ctx: Any, reply: bytes | None) -> None:
        self.heard.append(reply)


class World:
    """The calls of one node, and what a poll does for them."""

    def __init__(self, config: NodeConfig | None = None, known: bool = True) -> None:
        self.runtime = Runtime(config or NodeConfig(), HERE, Drawing(1), Drawing(2))
        links = Links(1, sources())
        self.peers = PeerStates(self.runtime, links, ())
        if known:
            self.peers.presence(THERE, True, 1, (), (ADDRESS,), {})
            self.peers.take_changes()
        wish = SnapshotWish(self.runtime, kept=False)
        marks = Marks(self.runtime, self.peers, kept=False)
        records = Records(self.runtime, links, self.peers, marks, DurableSender(lambda: 1), wish.until(""))
        kept = Durable(self.runtime, self.peers, records, wish)
        self.outgoing = Outgoing(self.runtime, links, self.peers, kept, lambda _data: True)
        self.calls = Calls(self.runtime, self.outgoing, self.peers)
        self.asker = Asker()
        self.outlet = Outlet(
            self.runtime, self.outgoing, 1, self.asker, "Main", "asker", lambda _outlet: None
        )

    @property
    def heard(self) -> list[bytes | None]:
        return self.asker.heard

    def ask(self, deadline_ns: int = S) -> int:
        """Asks, and gives the number of the request."""
        before = set(self.calls.waiting)
        self.calls.ask(self.outlet, THERE, "Op", b"?", deadline_ns, self.asker.answered)
        (number,) = set(self.calls.waiting) - before
        return number

    def poll(self, now_ns: int) -> None:
        """Fires due timers, and hands on what they have brought."""
        self.runtime.advance(now_ns)
        while (due := self.runtime.timers.pop_due(now_ns)) is not None:
            due.callback(now_ns, *due.args)
            for change in self.peers.take_changes():
                if isinstance(change, steps.PeerDown):
                    self.calls.peer_down(change.peer)
            self.calls.tell_overdue()

    def over(self) -> bool:
        return not self.calls.waiting and not len(self.runtime.timers)


def answer(payload: bytes, op: str = "Op") -> Envelope:
    suffix = Address.empty().with_component(1, op).to_bytes()
    return Envelope(fills=[Fill(suffix, payload, False, 0x0B)], kind=envelope.RESPONSE)


def test_a_call_ends_by_its_table() -> None:
    def answered() -> None:
        world = World()
        world.calls.answer(world.ask(), answer(b"yes"))
        assert world.heard == [b"yes"] and world.over()

    def expired(threshold: int) -> None:
        """With a threshold of 1 the deadline takes the peer down, and the call is lost as well."""
        world = World(NodeConfig(health_threshold=threshold))
        world.ask()
        world.poll(S - 1)
        assert not world.heard
        world.poll(S)
        assert world.heard == [None] and world.over()

    def lost() -> None:
        world = World()
        assert world.calls.lost(world.ask(), THERE)
        assert not world.heard, "the component is still in the call that asks"
        world.poll(1)
        assert world.heard == [None] and world.over()

    def lost_twice() -> None:
        world = World()
        number = world.ask()
        world.calls.lost(number, THERE)
        world.calls.peer_down(THERE)
        world.poll(1)
        assert world.heard == [None] and world.over()

    def lost_and_answered() -> None:
        world = World()
        number = world.ask()
        world.calls.lost(number, THERE)
        world.calls.answer(number, answer(b"yes"))
        world.poll(1)
        assert world.heard == [b"yes"] and world.over()

    def lost_before_a_restart() -> None:
        world, after = World(), World()
        number = world.ask()
        world.calls.lost(number, THERE)
        after.calls.restore(world.calls.save(), {"asker": after.outlet})
        (timer,) = world.runtime.timers.running()
        name = world.runtime.callbacks.name_of(timer.due.callback)
        after.runtime.callbacks.get(str(name))(1, *timer.due.args)
        assert after.heard == [None] and after.over()

    def walk() -> None:
        answered()
        expired(threshold=5)
        expired(threshold=1)
        lost()
        lost_twice()
        lost_and_answered()
        lost_before_a_restart()

    assert_decides_by(CALL, walk)


def test_who_waits_for_a_peer_hears_that_it_is_down_before_the_one_whose_deadline_has_passed_asks_again() -> (
    None
):
    world = World(NodeConfig(health_threshold=1))
    world.ask(2 * S)
    first = world.ask()
    asked_again: list[int] = []
    call = world.calls.waiting[first]
    call.done = lambda _ctx, _reply: asked_again.append(world.ask(5 * S))
    world.poll(S)
    world.poll(S + 1)
    assert world.heard == [None], "the other one, in the next poll"
    assert list(world.calls.waiting) == asked_again, "the new request waits for its own deadline"
    world.poll(6 * S)
    assert world.heard == [None, None]


def test_an_answer_from_somebody_else_or_to_another_op_is_none() -> None:
    world = World()
    number = world.ask()
    assert not world.calls.expects(number, HERE) and not world.calls.expects(number + 1, THERE)
    assert world.calls.expects(number, THERE)
    world.calls.answer(number, answer(b"yes", op="Other"))
    assert world.heard == [None] and world.runtime.counters["wire.receive_errors"] == 1


def test_a_peer_that_nobody_knows_is_lost_at_once_and_heard_of_in_the_next_poll() -> None:
    world = World(known=False)
    world.ask()
    assert not world.heard
    world.poll(1)
    assert world.heard == [None]


def test_without_a_connection_nobody_is_to_blame() -> None:
    world = World(NodeConfig(health_threshold=1))
    world.ask(2 * S)
    world.outgoing.flush(0)
    world.peers.uplink.tell(False)
    world.ask(3 * S)
    world.outgoing.flush(S)
    world.poll(2 * S)
    assert world.runtime.counters["requests.offline"] == 1
    world.poll(3 * S)
    assert world.runtime.counters["requests.not_sent"] == 1
    assert world.peers.is_up(THERE) and world.heard == [None, None]
    assert "control.unanswered" not in world.runtime.counters
