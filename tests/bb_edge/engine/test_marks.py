"""Marks on the wire of one node: who is asked and told what, and what is taken meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from durable_program import greeted, kept, program, records, say, write_down
from envelopes import durable_message
from kinds_of_steps import of
from peers import HERE, SELF, A, B
from times import S

from bb_edge import Node, NodeConfig, install
from bb_edge.engine import steps
from bb_edge.engine.net import features
from bb_edge.engine.steps import Journal, SendEnvelope, WireReceiveFailed
from bb_edge.wire import envelope, marks
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.envelope import Ack, Envelope, Fill
from bb_edge.wire.marks import SUFFIX, Ask, Heard, MarksError, Open, Taken, Took

KNOWS = {features.META: [features.MARKS]}


@pytest.fixture
def make(compile_text):
    text = program(2 * S)

    def made(
        durable: bool = True, addresses: tuple[bytes, ...] = (HERE,), snapshot: bytes | None = None
    ) -> Node:
        data = compile_text(text if durable else text.replace(", durable=1", ""))
        more: dict[str, Any] = {"seed": 3, "durable": durable, "snapshot": snapshot}
        return install(SELF, addresses, data, ["Main"], NodeConfig.edge(), **more)

    return made


def met(node: Node, now_ns: int = 1, epoch: int = 1) -> Node:
    """A, who knows marks, and B, who does not, are up."""
    node.peer_presence(A, True, (HERE,), KNOWS, epoch=epoch)
    return greeted(node, B, now_ns=now_ns)


def said(found: list[steps.EngineStep]) -> list[tuple[Any, Any]]:
    """Whom the node has told which marks."""
    messages = [(s.peer, envelope.decode(s.payload, EDGE_CAPS)) for s in of(SendEnvelope, found)]
    fills = [(peer, fill) for peer, message in messages for fill in message.fills]
    return [(peer, marks.decoded(fill.payload)) for peer, fill in fills if fill.dest_suffix == SUFFIX]


def take(node: Node, now_ns: int, *data: bytes) -> list[steps.EngineStep]:
    """Envelopes of A come, and the disk takes what the node writes."""
    found: list[steps.EngineStep] = []
    for one in data:
        node.deliver_inbound(one, A)
        came = node.poll(now_ns)
        write_down(node, came)
        for step in of(Journal, came):
            node.persisted(step.token)
        found += [*came, *kept(node, now_ns)]
    return found


def test_only_a_node_that_keeps_its_state_says_that_it_knows_marks(make):
    assert features.MARKS in make().presence_meta[features.META]
    assert features.MARKS not in make(durable=False).presence_meta[features.META]


def test_a_peer_that_is_there_and_answers_nothing_else_is_asked_on(make):
    """It may have nothing to say, and what waits for it would wait for ever."""
    node = met(make())
    say(node, to=(A,))
    kept(node, 2)
    for _ in range(NodeConfig.edge().health_threshold):
        node.peer_failed(A)
    assert of(steps.PeerDown, node.poll(3))
    assert [peer for peer, _ in said(node.poll(2 * S))] == [A]
    say(node, to=(A,))
    assert [peer for peer, _ in said(kept(node, 70 * S))] == [A]
    node.peer_presence(A, False, epoch=1)
    node.poll(71 * S)
    assert not [told for n in range(72, 400) for told in said(node.poll(n * S))], "it is gone"


@pytest.mark.parametrize("addresses", [(HERE,), ()], ids=["with an address", "without any"])
def test_marks_tell_where_the_answer_finds_the_node_if_it_has_an_address(make, addresses):
    node = met(make(addresses=addresses))
    say(node, to=(A,))
    asked = take(node, 2)
    told = take(node, 3, marks.encoded(Ask(5)))
    sent = [envelope.decode(s.payload, EDGE_CAPS) for s in of(SendEnvelope, [*asked, *told])]
    of_marks = [message for message in sent if message.fills and message.fills[0].dest_suffix == SUFFIX]
    assert {type(marks.decoded(message.fills[0].payload)) for message in of_marks} == {Ask, Took}
    assert {tuple(message.src_addresses) for message in of_marks} == {addresses}


def test_a_peer_is_asked_before_the_first_record_goes_out_and_again_until_it_answers(make):
    node = met(make())
    say(node, to=(A, B))
    found = kept(node, 2)
    (asked,) = said(found)
    assert asked[0] == A and isinstance(asked[1], Ask) and asked[1].heard == Heard()
    assert [s.peer for s in of(SendEnvelope, found) if s.durable] == [B], "B is of an older version"
    assert said(kept(node, S // 2)) == []
    assert said(kept(node, 1 * S + 10)) == said(kept(node, 3 * S + 10)) == [asked], "after 1 s, doubling"
    found = take(node, 4 * S, marks.encoded(Took(asked[1].token, 77)))
    ((peer, opened),) = said(found)
    assert peer == A and isinstance(opened, Open)
    assert (opened.asked, opened.token, opened.sender_is_old) == (asked[1].token, 77, False)
    (out,) = [s for s in of(SendEnvelope, found) if s.durable]
    message = envelope.decode(out.payload, EDGE_CAPS)
    assert (out.peer, message.epoch, message.seq) == (A, opened.epoch, 1)
    take(node, 5 * S, envelope.encode(Envelope(acks=(Ack(opened.epoch, 1),))))
    assert not said(kept(node, 900 * S)), "who has answered is asked no more"


def test_what_comes_before_its_sender_has_asked_is_refused_and_its_sender_told(make):
    node = met(make())
    found = take(node, 2, durable_message(0xA1, 1))
    assert not of(Journal, found) and node.counters["ingress.closed"] == 1
    ((peer, took),) = said(found)
    assert peer == A and took.echo == 0 and took.windows == ()
    assert said(take(node, 3, durable_message(0xA1, 1))) == [], "once a second"
    ((_, took),) = said(take(node, 4, marks.encoded(Ask(5))))
    assert took.echo == 5
    found = take(node, 5, marks.encoded(Open(5, took.token, 9)), durable_message(0xA1, 1))
    assert len(of(Journal, found)) == 1


def test_a_machine_whose_twin_has_opened_an_epoch_since_is_told_and_asks_anew(make):
    """One name, two machines: the one that is left is not refused for ever, in silence."""

    def told(now_ns: int, *data: bytes) -> list[Took]:
        return [message for _, message in said(take(node, now_ns, *data)) if isinstance(message, Took)]

    node = met(make())
    (took,) = told(2, marks.encoded(Ask(5)))
    take(node, 3, marks.encoded(Open(5, took.token, 9)), durable_message(0xA1, 1, epoch=9))
    (prompt,) = told(4, durable_message(0xA1, 1, epoch=7))
    assert (prompt.echo, prompt.token) == (5, took.token)
    assert told(5, durable_message(0xA1, 2, epoch=7)) == [], "once a second"
    assert told(2 * S, marks.encoded(Open(5, took.token, 9))) == [], "its twin opens it once more"
    assert len(of(Journal, take(node, 2 * S + 1, durable_message(0xA1, 2, epoch=9)))) == 1
    (took,) = told(3 * S, marks.encoded(Ask(6)))
    found = take(node, 3 * S + 1, marks.encoded(Open(6, took.token, 11)), durable_message(0xA1, 1, epoch=11))
    assert len(of(Journal, found)) == 1


def test_what_is_being_written_down_comes_before_the_answer_to_a_question(make):
    node = met(make())
    ((_, took),) = said(take(node, 2, marks.encoded(Ask(5))))
    take(node, 3, marks.encoded(Open(5, took.token, 9)))
    node.deliver_inbound(durable_message(0xA1, 1), A)
    (step,) = of(Journal, node.poll(4))
    node.deliver_inbound(marks.encoded(Ask(6)), A)
    assert said(node.poll(5)) == []
    node.persisted(step.token)
    (took,) = [one for _, one in said(node.poll(6)) if isinstance(one, Took)]
    assert (took.echo, took.windows) == (6, (Taken(9, 1, 0),))


def test_a_presence_that_is_older_than_a_question_does_not_let_anything_in(make):
    node = greeted(make(), A)  # without the word that it knows marks
    ((_, took),) = said(take(node, 2, marks.encoded(Ask(5))))
    assert not of(Journal, take(node, 3, durable_message(0xA1, 1))), "the answer must stay true"
    assert of(Journal, take(node, 4, marks.encoded(Open(5, took.token, 9)), durable_message(0xA1, 1)))


def test_what_comes_before_the_presence_of_its_sender_waits_for_that(make):
    node = make()
    node.presences_come()
    node.poll(1)
    found = take(node, 2, durable_message(0xA1, 1))
    assert not of(Journal, found) and not said(found), "nobody knows whether it reads marks"
    greeted(node, A, now_ns=3)
    assert of(Journal, take(node, 4, durable_message(0xA1, 1)))


@pytest.mark.parametrize("known", [KNOWS, {}], ids=["knows marks", "does not"])
def test_a_presence_of_the_run_before_does_not_let_anything_in(make, known):
    """Both may have been brought up to date since: then marks have ended the epoch that comes late."""
    before = make()
    before.peer_presence(A, True, (HERE,), epoch=1)
    before.poll(1)
    assert of(Journal, take(before, 2, durable_message(0xA1, 1))), "it is of a version without marks"
    node = make(snapshot=before.snapshot(3))
    node.presences_come()
    assert not of(Journal, take(node, 4, durable_message(0xA1, 2)))
    node.peer_presence(A, True, (HERE,), known, epoch=2)
    assert bool(of(Journal, take(node, 5, durable_message(0xA1, 2)))) is (known != KNOWS)


def test_a_peer_that_comes_back_in_a_version_without_marks_is_taken_as_it_is(make):
    node = met(make())
    take(node, 2, marks.encoded(Ask(5)))
    node.peer_presence(A, True, (HERE,), epoch=2)
    node.poll(3)
    assert len(of(Journal, take(node, 4, durable_message(0xA1, 1)))) == 1


def test_what_a_node_says_to_itself_needs_no_marks(make):
    node = met(make())
    node.presences_come()  # nobody tells it of its own
    say(node, to=(SELF,))
    found = kept(node, 2)
    for step in of(Journal, found):
        node.persisted(step.token)
    assert of(Journal, found) and not said([*found, *kept(node, 3)])


@pytest.mark.parametrize("payload", [b"", b"\xff", b"\x80", b"\x83\x01\x09\x00", b"\x82\x02\x00"])
def test_other_bytes_are_told_and_change_nothing(make, payload):
    node = met(make())
    found = take(node, 2, envelope.encode(Envelope([Fill(SUFFIX, payload)])))
    (failed,) = of(WireReceiveFailed, found)
    with pytest.raises(MarksError) as error:
        marks.decoded(payload)
    assert (failed.peer, failed.kind) == (A, "DecodeFailed") and error.value.what in failed.detail
    assert not said(found) and "marks.received" not in node.counters


def test_an_old_state_is_told_once_with_its_numbers(make):
    node = met(make())
    ((_, took),) = said(take(node, 2, marks.encoded(Ask(5))))
    take(node, 3, marks.encoded(Open(5, took.token, 9)), durable_message(0xA1, 1))
    ask = marks.encoded(Ask(6, Heard(9, 3, 0b111)))
    found = take(node, 4, ask, ask)
    (step,) = of(steps.StateRolledBack, found)
    assert step == steps.StateRolledBack(A, True, 9, (2, 3), 2)
    assert step.text == (
        "this node's state lacks 2 durable envelopes that were acknowledged, of the numbers 2 to 3"
    )
    assert node.counters["marks.rolled_back"] == 1
    ((_, took), _) = said(found)
    (step,) = of(steps.StateRolledBack, take(node, 5, marks.encoded(Open(6, took.token, 10, True))))
    assert step == steps.StateRolledBack(A, False, 10)
    assert step.text.startswith("its state lacks durable envelopes that were sent from it")
    assert node.counters["peers.rolled_back"] == 1


def test_an_epoch_that_this_node_never_began_is_told_with_the_records_that_may_come_twice(make):
    node = met(make())
    for _ in range(2):
        say(node, to=(A,))
    ((_, asked),) = said(kept(node, 2))
    ((_, opened),) = said(take(node, 10, marks.encoded(Took(asked.token, 77))))
    ((_, asked),) = said(take(node, 70 * S, marks.encoded(Took(0, 78))))
    other = marks.encoded(Took(asked.token, 78, (Taken(opened.epoch - 1, 5),)))
    found = take(node, 71 * S, other)
    (step,) = of(steps.StateRolledBack, found)
    assert step == steps.StateRolledBack(A, None, opened.epoch - 1, records=(1, 2))
    assert step.text == (
        "one of the two states was put back twice; what this node sends may have come before: "
        "records 1 to 2 of the outbox"
    )
    assert node.counters["marks.rolled_back"] == 1 and "peers.rolled_back" not in node.counters


@pytest.mark.parametrize(
    ("records", "told"),
    [
        ((), ""),
        ((7,), ": records 7 of the outbox"),
        ((9, 3, 4, 5), ": records 3 to 5, 9 of the outbox"),
        (tuple(range(0, 110, 2)), " and 5 more of the outbox"),
    ],
)
def test_records_that_may_come_twice_are_told_as_spans(records, told):
    step = steps.StateRolledBack(A, True, 9, records=records)
    text = (
        "this node's state lacks durable envelopes that were sent from it; what it sends may have come before"
    )
    assert step.text.startswith(text) and step.text.endswith(told)
    assert step.text.count(",") < 50 and (told or step.text == text)


def test_of_more_than_can_be_named_the_bounds_are_told(make):
    node = met(make())
    ((_, took),) = said(take(node, 2, marks.encoded(Ask(5))))
    take(node, 3, marks.encoded(Open(5, took.token, 9)), durable_message(0xA1, 1))
    found = take(node, 4, marks.encoded(Ask(6, Heard(9, 745, (1 << 64) - 1))))
    (step,) = of(steps.StateRolledBack, found)
    assert step == steps.StateRolledBack(A, True, 9, tuple(range(682, 746)), 2)
    assert "lacks 64 to 744 durable" in step.text and "of the numbers 2 to 745" in step.text


def test_what_is_numbered_anew_is_not_repeated_meanwhile(make):
    node = met(make())
    say(node, to=(A,))
    ((_, asked),) = said(kept(node, 2))
    found = take(node, 3, marks.encoded(Took(asked.token, 77)))
    assert [s.peer for s in of(SendEnvelope, found) if s.durable] == [A]
    node.peer_presence(A, True, (HERE,), KNOWS, epoch=2)  # it has begun anew
    found = kept(node, 10 * S)
    assert said(found) and not [s for s in of(SendEnvelope, found) if s.durable]
    assert not [s for s in of(SendEnvelope, kept(node, 90 * S)) if s.durable]


def test_what_is_acknowledged_before_it_went_out_does_not_go_out(make):
    node = met(make())
    say(node, to=(B,))
    found = node.poll(2)
    write_down(node, found)
    (written,) = records(found)
    ack = Envelope(acks=(Ack(written.key.epoch, 1),))
    node.deliver_inbound(envelope.encode(ack), B)
    assert not [s for s in of(SendEnvelope, kept(node, 3)) if s.durable]


def test_a_peer_without_an_address_is_asked_when_it_has_one(make):
    node = make()
    node.peer_presence(A, True, (), KNOWS, epoch=1)
    say(node, to=(A,))
    assert not said(kept(node, 2))
    node.peer_presence(A, True, (HERE,), KNOWS, epoch=1, session=2)
    ((peer, asked),) = said(kept(node, 2 * S))
    assert peer == A and isinstance(asked, Ask)


def test_a_question_of_a_peer_beyond_those_that_have_room_is_not_answered(compile_text):
    node = install(
        SELF,
        (),
        compile_text(program(2 * S)),
        ["Main"],
        NodeConfig.edge().with_(max_peers=1),
        seed=3,
        durable=True,
    )
    node.peer_presence(A, True, (HERE,), epoch=1)
    take(node, 1, durable_message(0xA1, 1))
    node.deliver_inbound(marks.encoded(Ask(6)), B)
    assert not said(kept(node, 3)) and list(node.inspect().sources) == [str(A)]
