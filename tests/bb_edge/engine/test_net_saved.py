"""What the net knows of peers and what waits to leave comes back from its saved form, whatever it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kinds_of_steps import of
from link_ends import sources
from times import S

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.drawing import Drawing
from bb_edge.engine.net.back_pressure import backoff_notice
from bb_edge.engine.net.durable import Durable
from bb_edge.engine.net.marks import Marks
from bb_edge.engine.net.never_left import LATE
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.peer_limits import LIMITS_META
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.records import Records
from bb_edge.engine.net.units import Unit
from bb_edge.engine.net.until_snapshot import SnapshotWish
from bb_edge.engine.plain import Shift
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire import cbor, envelope
from bb_edge.wire.delivery import Links
from bb_edge.wire.durable_sender import DurableSender
from bb_edge.wire.envelope import Envelope, Fill, RttReport
from bb_edge.wire.outbox import Cause
from bb_edge.wire.outbox_room import OutboxRoom

NOW, LATER = 3 * S, 103 * S
ADDRESS = b"\xe2\x01" + bytes(8)
PEERS = tuple(PeerId.from_name(name) for name in ("a", "b", "c"))

peers = st.sampled_from(PEERS)
numbers = st.integers(0, 2**63 - 1)
times = st.sampled_from((0, 5 * S, 90 * S))


def plain(value: Any) -> Any:
    """As a snapshot keeps it."""
    return cbor.loads(cbor.dumps(value), max_items=1 << 16, max_depth=32)


class Net:
    """The sending side of one node, at some time."""

    def __init__(self, now_ns: int, durable: bool = True, outbox: int = 3) -> None:
        config = NodeConfig(health_threshold=2, outbound_queue=64)
        self.runtime = Runtime(config, PeerId.from_name("node"), Drawing(1), Drawing(2))
        self.runtime.advance(now_ns)
        links = Links(1, sources())
        self.peers = PeerStates(self.runtime, links, ("Main",))
        wish = SnapshotWish(self.runtime, durable)
        sender = DurableSender(lambda: 1, OutboxRoom(outbox, 1 << 20))
        marks = Marks(self.runtime, self.peers, durable)
        records = Records(self.runtime, links, self.peers, marks, sender, wish.until(""))
        kept = Durable(self.runtime, self.peers, records, wish)
        self.outgoing = Outgoing(self.runtime, links, self.peers, kept, lambda _data: True)

    def asked(self) -> list[tuple[int, bytes]]:
        """The records that the driver is asked to write."""
        found = self.runtime.take_steps()
        return [(step.token, step.record) for step in found if isinstance(step, steps.PersistOutbox)]


# --- peers --------------------------------------------------------------------------------------------

limits = st.none() | st.lists(st.integers(1, 1 << 20), min_size=4, max_size=4)
reports = st.builds(RttReport, numbers, numbers, numbers, numbers, numbers, numbers)
news = st.one_of(
    st.tuples(st.just("presence"), peers, st.booleans(), st.integers(0, 3), limits),
    st.tuples(st.just("failed"), peers),
    st.tuples(st.just("heard"), peers),
    st.tuples(st.just("block"), peers),
    st.tuples(st.just("back off"), peers, st.integers(0, 200 * S)),
    st.tuples(st.just("report"), peers, reports),
)


def tell(states: PeerStates, what: tuple[Any, ...]) -> None:
    kind, peer, *more = what
    if kind == "presence":
        up, epoch, accepts = more
        meta = {} if accepts is None else {LIMITS_META: accepts}
        states.presence(peer, up, epoch, ("Main",), (ADDRESS,), meta)
    elif kind == "failed":
        states.failed(peer)
    elif kind == "heard":
        states.heard(peer, NOW)
    elif kind == "block":
        states.back_pressure.block(peer)
    elif kind == "back off":
        states.back_pressure.told(peer, backoff_notice(more[0]), Envelope())
    else:
        states.round_trips.take(peer, more)


@given(st.lists(news, max_size=12))
def test_all_that_is_known_of_peers_comes_back_and_its_times_move(told: list[tuple[Any, ...]]) -> None:
    before, after = Net(NOW).peers, Net(LATER).peers
    for what in told:
        tell(before, what)
    saved = plain(before.save())
    after.restore(saved, Shift(LATER - NOW))
    assert after.round_trips.by_peer == before.round_trips.by_peer
    assert after.up_peers("Main") == before.up_peers("Main")
    for peer in PEERS:
        assert after.is_up(peer) == before.is_up(peer)
        assert after.back_pressure.is_blocked(peer) == before.back_pressure.is_blocked(peer)
        assert after.limits_of(peer) == before.limits_of(peer)
        assert after.limits.told(peer) == before.limits.told(peer)
        assert after.address_book.lookup(peer) == before.address_book.lookup(peer)
        assert after.probe(peer) == before.probe(peer)
        until = before.back_pressure.patience_until(peer)
        assert after.back_pressure.patience_until(peer) == (until + LATER - NOW if until else 0)
    assert not after.changes, "what was told is not told again"
    same = Net(NOW).peers
    same.restore(saved, Shift(0))
    assert plain(same.save()) == saved


def test_limits_that_are_none_are_left_out() -> None:
    saved, states = Net(NOW).peers.save(), Net(NOW).peers
    states.restore({**saved, "limits": [[PEERS[0].to_bytes(), [0, 0, 0, 0]]]}, Shift(0))
    assert states.limits_of(PEERS[0]) == Net(NOW).peers.limits_of(PEERS[0])


# --- what leaves --------------------------------------------------------------------------------------

units = st.builds(
    Unit,
    peers,
    st.lists(
        st.builds(Fill, st.binary(max_size=8), st.binary(max_size=8), st.booleans(), numbers), max_size=3
    ),
    kind=st.sampled_from((envelope.NONE, envelope.REQUEST, envelope.RESPONSE)),
    wire_req_id=numbers,
    deadline_ns=times,
    durable=st.booleans(),
    group=st.none() | st.tuples(numbers, st.text(max_size=3), numbers),
    wire_id=numbers,
    cause=st.none() | st.builds(Cause, peers, numbers, numbers),
)


@given(units)
def test_a_unit_comes_back_as_it_was_and_its_deadline_moves(unit: Unit) -> None:
    moved = unit.deadline_ns + LATER - NOW if unit.deadline_ns else 0
    assert Unit.restored(plain(unit.save()), Shift(0)) == unit
    assert Unit.restored(plain(unit.save()), Shift(LATER - NOW)) == replace(unit, deadline_ns=moved)


@pytest.mark.parametrize("fill", [("/x", b"", False, 1), (b"/x", "", False, 1), (b"/x", b"", False, 1.0)])
def test_a_fill_of_other_types_is_refused(fill: tuple[object, ...]) -> None:
    row = plain(Unit(PEERS[0], [Fill(b"/x", b"")]).save())
    row[1] = [list(fill)]
    with pytest.raises(TypeError, match="a fill of other types"):
        Unit.restored(row, Shift(0))


@given(st.lists(units, max_size=8), st.lists(units, max_size=4), st.sets(st.integers(1, 3)))
def test_what_is_queued_waits_and_is_being_written_comes_back(
    flushed: list[Unit], queued: list[Unit], failed: set[int]
) -> None:
    before, after = Net(NOW), Net(NOW)
    for unit in flushed:
        before.outgoing.units.append(replace(unit, durable=True))
    before.outgoing.flush(NOW)
    written = before.asked()
    for token in failed:
        before.outgoing.durable.records.persist_failed(token, OSError("full"))
    before.outgoing.units.extend(queued)
    saved = plain(before.outgoing.save())
    after.outgoing.restore(saved, Shift(0))
    after.outgoing.adopt([], NOW, 0, lambda _: True)
    assert after.asked() == written, "what was not on disk is asked for again"
    assert list(after.outgoing.units) == queued
    assert list(after.outgoing.durable.waiting) == list(before.outgoing.durable.waiting)
    assert plain(after.outgoing.save()) == saved


@given(st.lists(units, max_size=4))
def test_a_node_that_keeps_nothing_takes_what_is_queued_and_no_more(queued: list[Unit]) -> None:
    before, nothing = Net(NOW), Net(NOW, durable=False)
    before.outgoing.units.extend(queued)
    before.outgoing.durable.waiting.append(Unit(PEERS[0], [], durable=True))
    nothing.outgoing.restore(plain(before.outgoing.save()), Shift(0))
    assert list(nothing.outgoing.units) == queued and not nothing.outgoing.durable.waiting
    keeps = Net(NOW)
    keeps.outgoing.restore(plain(nothing.outgoing.save()), Shift(0))
    assert list(keeps.outgoing.units) == queued and not keeps.outgoing.durable.waiting


def test_a_node_that_keeps_nothing_sends_what_is_durable_like_any_other() -> None:
    nothing = Net(NOW, durable=False)
    nothing.peers.presence(PEERS[0], True, 1, ("Main",), (ADDRESS,), {})
    nothing.outgoing.units.append(Unit(PEERS[0], [Fill(b"", b"x", False, 0x0B)], durable=True))
    nothing.outgoing.flush(NOW)
    kept = nothing.outgoing.durable
    assert (list(kept.resume(NOW)), list(kept.publishable(NOW)), kept.busy) == ([], [], False)
    assert [step.peer for step in of(steps.SendEnvelope, nothing.runtime.take_steps())] == [PEERS[0]]
    assert kept.adopt([], NOW, NOW, lambda _number: True, ()) == []
    assert kept.snapshot_written(lambda _cause: True) == []


def test_what_comes_to_be_sent_at_its_deadline_is_told_unless_it_is_an_answer() -> None:
    net = Net(NOW)
    told = Unit(PEERS[0], [Fill(b"", b"x", False, 0x0B)], durable=True, deadline_ns=NOW)
    answer = Unit(PEERS[1], [], kind=envelope.RESPONSE, durable=True, deadline_ns=NOW)
    net.outgoing.units.extend([told, answer])
    net.outgoing.flush(NOW)
    found = net.runtime.take_steps()
    assert [(step.peer, step.reason) for step in of(steps.OutboundDropped, found)] == [(PEERS[0], LATE)]
    assert net.runtime.counters["deadlines.expired"] == 2
    assert not of(steps.PersistOutbox, found)


def test_a_time_that_is_none_does_not_move() -> None:
    assert [Shift(7).time(when) for when in (0, 1, 5 * S)] == [0, 8, 5 * S + 7]
    assert Shift(-7).time(10) == 3
