"""When a durable record goes again, what it says of its deadline then, and how it is counted."""

from __future__ import annotations

from typing import Any

import pytest
from busy_nodes import patience
from durable_program import greeted, kept, program, rows, say, write_down
from envelopes import fill
from kinds_of_steps import of
from peers import HERE, SELF, A, B, C
from snapshots import body_of, resealed
from times import S

from bb_edge import NodeConfig, install
from bb_edge.engine import steps
from bb_edge.engine.net import features
from bb_edge.engine.net.writing import RETRY_NS, Writing
from bb_edge.engine.snapshot import SnapshotDamagedError
from bb_edge.engine.steps import Journal, PersistOutbox, SendEnvelope
from bb_edge.node import Node
from bb_edge.wire import envelope, marks
from bb_edge.wire.durable_flows import Write
from bb_edge.wire.envelope import REQUEST, Ack, Envelope
from bb_edge.wire.marks import SUFFIX, Ask, Open, Took

KNOWS = {features.META: [features.MARKS]}


@pytest.fixture
def make(compile_text):
    data = compile_text(program(20 * S))

    def made(snapshot: bytes | None = None, now_ns: int = 0, **config: int) -> Node:
        more: dict[str, Any] = {"seed": 3, "durable": True, "snapshot": snapshot, "now_ns": now_ns}
        return install(SELF, (HERE,), data, ["Main"], NodeConfig.edge().with_(**config), **more)

    return made


def sent(found: list[steps.EngineStep]) -> list[Any]:
    return [step for step in of(SendEnvelope, found) if step.durable]


def message_of(step: Any) -> Envelope:
    return envelope.decode(step.payload, NodeConfig.edge().caps)


def acknowledge(node: Node, step: Any, now_ns: int) -> list[steps.EngineStep]:
    """The peer acknowledges what the step has sent."""
    message = message_of(step)
    node.deliver_inbound(envelope.encode(Envelope(acks=(Ack(message.epoch, message.seq),))), step.peer)
    return node.poll(now_ns)


def reply(node: Node, now_ns: int, deadline_ns: int, seq: int = 1, peer: Any = A) -> list[steps.EngineStep]:
    """The peer asks durably; gives what the node says, its reply not being on disk yet."""
    ask = Envelope([fill(0xA1, 3)], REQUEST, wire_req_id=70 + seq, epoch=9, seq=seq, base=1)
    ask.remaining_deadline_ns = deadline_ns
    node.deliver_inbound(envelope.encode(ask), peer)
    for step in of(Journal, node.poll(now_ns)):
        node.persisted(step.token)
    return [*node.poll(now_ns), *node.poll(now_ns)]


def again_after(node: Node, began_ns: int) -> int:
    """How long after its first copy the only open record goes again."""
    due_ns = node.next_deadline_ns()
    assert due_ns is not None
    while not sent(node.poll(due_ns)):
        before, due_ns = due_ns, node.next_deadline_ns() or 0
        assert due_ns > before
    return due_ns - began_ns


def test_a_repetition_is_told_from_the_first_copy_and_counted(make):
    node = greeted(make(), A)
    say(node, to=(A,))
    (first,) = sent(kept(node, 2))
    assert (first.resent, first.kept, first.expires_in_ns) == (False, True, 0)
    assert (node.counters["wire.sent"], node.counters["wire.sent_bytes"]) == (1, first.size)
    for number, now_ns in enumerate((2 * S, 4 * S, 9 * S), 1):
        (again,) = sent(node.poll(now_ns))
        assert (again.resent, again.kept, again.expires_in_ns) == (True, True, 0)
        assert again.payload == first.payload
        assert node.counters["wire.resent"] == number
    assert node.counters["wire.sent"] == node.pending_sends == 1
    acknowledge(node, first, 10 * S)
    assert node.pending_sends == 0


def test_every_copy_says_what_is_left_of_the_deadline(make):
    node = greeted(make(), A)
    found = reply(node, 2, 20 * S)
    node.poll(S)  # the disk takes a second
    write_down(node, found)
    (first,) = sent(node.poll(S))
    (again,) = sent(node.poll(3 * S))
    for step, now_ns in ((first, S), (again, 3 * S)):
        assert step.expires_in_ns == message_of(step).remaining_deadline_ns == 20 * S + 2 - now_ns


@pytest.mark.parametrize(("at_ns", "leaves"), [(2 * S + 1, True), (2 * S + 2, False)])
def test_at_its_deadline_a_record_that_gets_on_disk_does_not_leave(make, at_ns, leaves):
    node = greeted(make(), A)
    found = reply(node, 2, 2 * S)
    write_down(node, found)
    assert bool(sent(node.poll(at_ns))) is leaves
    assert node.counters.get("outbound.expired", 0) == (not leaves)


def test_all_that_expire_at_once_are_given_up_at_once_and_counted(make):
    node = greeted(make(), A, B)
    write_down(node, [*reply(node, 2, 2 * S, peer=A), *reply(node, 2, 2 * S, peer=B)])
    assert len(sent(node.poll(3))) == 2
    node.poll(2 * S + 2)
    assert node.counters["outbound.expired"] == 2
    assert not sent([step for n in range(3, 70) for step in node.poll(n * S)])


def test_a_peer_that_took_long_is_given_longer_the_next_time(make):
    node = greeted(make(), A, B)
    say(node, to=(A,))
    (first,) = sent(kept(node, 2))
    acknowledge(node, first, 2 + 8 * S // 10)
    say(node, to=(A,))
    (second,) = sent(kept(node, 2 * S))
    assert second.peer == A
    assert abs(again_after(node, 2 * S) - 24 * S // 10) < 10, "0.8 s, and four times half of that"
    acknowledge(node, second, 10 * S)
    write_down(node, reply(node, 20 * S, 8 * S))
    assert len(sent(node.poll(20 * S))) == 1
    assert again_after(node, 20 * S) == 2 * S, "a quarter of what remains"
    say(node, to=(B,))
    kept(node, 40 * S)
    assert again_after(node, 40 * S) - S < 10, "nothing is known of another peer"


def test_where_one_had_to_be_repeated_the_next_waits_as_long_as_that_did(make):
    node = greeted(make(), A)
    say(node, to=(A,))
    (first,) = sent(kept(node, 2))
    (again,) = sent(node.poll(2 + S + 2))
    acknowledge(node, again, 2 * S)
    say(node, to=(A,))
    kept(node, 3 * S)
    assert abs(again_after(node, 3 * S) - 2 * S) < 10 and first.peer == A


def test_what_expires_says_nothing_of_its_peer(make):
    node = greeted(make(), A)
    write_down(node, reply(node, 2, 9 * S // 10))
    assert len(sent(node.poll(2))) == 1
    node.poll(S)
    assert node.counters["outbound.expired"] == 1
    say(node, to=(A,))
    kept(node, 2 * S)
    assert abs(again_after(node, 2 * S) - S) < 10


def test_who_was_away_and_comes_back_gets_at_once_what_it_did_not_acknowledge(make):
    node = greeted(make(), A)
    say(node, to=(A,))
    assert len(sent(kept(node, 2))) == 1
    node.poll(5 * S)
    node.peer_presence(A, False, epoch=1)
    node.poll(6 * S)
    node.peer_presence(A, True, (HERE,), epoch=1, session=2)
    assert [step.peer for step in sent(node.poll(6 * S + 1))] == [A]


def test_where_nobody_tells_of_presences_a_peer_is_there_once_it_has_an_address(make):
    node = make()
    say(node, to=(A,))
    assert not sent(kept(node, 2))
    node.deliver_inbound(envelope.encode(Envelope(src_addresses=(HERE,))), A)
    assert [step.peer for step in sent(kept(node, 20))] == [A]
    assert not sent(kept(node, 30)), "once"


@pytest.mark.parametrize("told", [True, False], ids=["presences come", "no presences"])
def test_a_peer_of_whom_a_snapshot_has_the_address_alone_is_there_where_no_presences_come(make, told):
    """Else its presence tells whether it is asked before it is sent to: the state may have been put back."""
    before = make()
    say(before, to=(A,))
    before.deliver_inbound(envelope.encode(Envelope(src_addresses=(HERE,))), A)
    written = rows(kept(before, 2))
    node = make(before.snapshot(10), 20)
    node.adopt_outbox(written, 20, 20)
    if told:
        node.presences_come()  # the transport is there once the node is whole
    assert [step.peer for step in sent(kept(node, 21))] == ([] if told else [A])
    node.peer_presence(A, True, (HERE,), KNOWS, epoch=5)
    found = kept(node, 30)
    assert not sent(found) and [type(said) for said in marks_said(found)] == [Ask]


# --- peers that know marks ----------------------------------------------------------------------------


def marks_said(found: list[steps.EngineStep]) -> list[Any]:
    fills = [one for step in of(SendEnvelope, found) for one in message_of(step).fills]
    return [marks.decoded(one.payload) for one in fills if one.dest_suffix == SUFFIX]


def meet(node: Node, now_ns: int, epoch: int) -> list[steps.EngineStep]:
    """A has come up in that run, is asked, and says that it has taken nothing; all is written down."""
    node.peer_presence(A, True, (HERE,), KNOWS, epoch=epoch)
    (asked,) = [said for said in marks_said(kept(node, now_ns)) if isinstance(said, Ask)]
    node.deliver_inbound(marks.encoded(Took(asked.token, 70 + epoch)), A)
    found = kept(node, now_ns + 10)
    assert [type(said) for said in marks_said(found)] == [Open]
    return found


def test_what_is_asked_for_anew_does_not_hold_up_what_goes_to_others(make):
    node = greeted(make(), B)
    say(node, to=(A,))
    kept(node, 2)
    assert [step.peer for step in sent(meet(node, 10, 1))] == [A]
    node.peer_presence(A, True, (HERE,), KNOWS, epoch=2)
    assert not sent(kept(node, 2 * S)), "A is asked, and due again at 3 s"
    say(node, to=(B,))
    assert [step.peer for step in sent(kept(node, 25 * S // 10))] == [B]
    assert [step.peer for step in sent(kept(node, 4 * S))] == [B], "B is due behind A"


def test_a_record_that_is_on_disk_does_not_leave_while_its_peer_is_asked_anew(make):
    node = greeted(make(), B)
    say(node, to=(A,))
    kept(node, 2)
    meet(node, 10, 1)
    say(node, to=(A,))
    write_down(node, node.poll(2 * S))
    node.peer_presence(A, True, (HERE,), KNOWS, epoch=2)
    found = node.poll(2 * S + 1)
    assert not sent(found) and [type(said) for said in marks_said(found)] == [Ask]


def test_a_request_that_went_out_goes_under_its_new_number_without_another_snapshot(make):
    node = make()
    node.peer_presence(A, True, (HERE,), KNOWS, epoch=1)
    node.poll(1)
    say(node, ask=(A,))
    assert not sent(meet(node, 2, 1)), "no snapshot holds who asks"
    node.snapshot(30)
    node.snapshot_written()
    (first,) = sent(kept(node, 31))
    (again,) = sent(meet(node, S, 2))
    assert message_of(again).epoch > message_of(first).epoch
    assert message_of(again).wire_req_id == message_of(first).wire_req_id


def test_questions_are_repeated_however_many_timers_run(make):
    node = make(max_timers=1)
    node.peer_presence(A, True, (HERE,), KNOWS, epoch=1)
    greeted(node, B)
    node.deliver_inbound(patience(60 * S), B)
    reply(node, 1, 0, peer=B)
    assert node.counters["outbound.put_off"] == 1, "which has the only timer"
    say(node, to=(A,))
    kept(node, 2)
    assert [type(said) for said in marks_said(node.poll(2 * S))] == [Ask]


def test_one_timer_serves_all_questions_that_are_open(make):
    node = greeted(make(), B)
    for peer in (A, C):
        node.peer_presence(peer, True, (HERE,), KNOWS, epoch=1)
    for turn in range(10):
        say(node, to=(A, C))
        node.peer_presence(A, True, (HERE,), KNOWS, epoch=2 + turn)
        kept(node, 10 * turn + 2)
    _, running = body_of(node.snapshot(200))["timers"]
    assert [name for _, _, name, *_ in running if name == "marks.ask"] == ["marks.ask"]


# --- restarts -----------------------------------------------------------------------------------------


def test_the_names_of_timers_in_a_snapshot_are_those_that_other_versions_read(make):
    node = make()
    node.peer_presence(A, True, (HERE,), KNOWS, epoch=1)
    say(node, to=(A,))
    for step in of(PersistOutbox, node.poll(2)):
        node.persist_failed(step.token, OSError("full"))
    node.poll(3)
    _, running = body_of(node.snapshot(4))["timers"]
    assert {name for _, _, name, *_ in running} == {"outbox.retry", "marks.ask"}


def test_a_peer_that_a_snapshot_has_as_there_is_asked_before_its_presence_comes_again(make):
    before = make()
    before.presences_come()
    before.peer_presence(A, True, (HERE,), KNOWS, epoch=7)
    say(before, to=(A,))
    written = rows(kept(before, 2))
    node = make(before.snapshot(10), 20)
    node.adopt_outbox(written, 20, 20)
    node.presences_come()
    (asked,) = marks_said(kept(node, 21))
    node.deliver_inbound(marks.encoded(Took(asked.token, 70)), A)
    assert [step.peer for step in sent(kept(node, 30))] == [A]
    node.peer_presence(A, True, (HERE,), KNOWS, epoch=7)
    assert not sent(kept(node, 40)) and not marks_said(kept(node, 50)), "it is in the same run still"
    node.peer_presence(A, True, (HERE,), KNOWS, epoch=8)
    assert [type(said) for said in marks_said(kept(node, 2 * S))] == [Ask]


def test_what_a_snapshot_says_of_flows_is_read_when_it_is_restored(make):
    node = greeted(make(), A)
    say(node, to=(A,))
    kept(node, 2)
    body = body_of(node.snapshot(3))
    body["outbound"]["flows"][1][0][0] = b"nobody"
    with pytest.raises(SnapshotDamagedError, match="outbound"):
        make(resealed(body), 4)


def test_a_row_waits_for_one_answer_of_the_disk_at_a_time():
    writing = Writing(Write(1, 1, b""))
    assert not writing.due(RETRY_NS), "the disk has been asked"
    assert writing.put_off(5) == RETRY_NS + 5
    assert not writing.due(RETRY_NS + 4)
    assert writing.due(RETRY_NS + 5) and not writing.due(RETRY_NS + 5), "it is asked once"
    assert writing.put_off(RETRY_NS + 5) == 3 * RETRY_NS + 5


def test_what_is_lost_does_not_wait_as_long_as_when_its_peer_was_slow(make):
    """A machine that slept takes that for a round trip: the next window waits as long, at first."""
    node = greeted(make(), A, B)
    say(node, to=(A,))
    (first,) = sent(kept(node, 2))
    acknowledge(node, first, 40 * S)
    for _ in range(40):
        say(node, to=(A,))
    lost, *rest = sent(kept(node, 41 * S))
    missing = message_of(lost)
    for number, step in enumerate(rest):
        came = Ack(missing.epoch, missing.seq - 1, (message_of(step).seq,))
        node.deliver_inbound(envelope.encode(Envelope(acks=(came,))), A)
        node.poll(41 * S + 10 + number)
    again = [step for step in sent(node.poll(44 * S)) if step.resent]
    assert [message_of(step).seq for step in again] == [missing.seq]
