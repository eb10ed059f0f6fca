"""A durable request runs while its row of the journal is written; nothing that came of it leaves before."""

from __future__ import annotations

import pytest
from durable_machines import Machine, Net
from durable_program import program, say
from kinds_of_steps import of
from times import MS, S

from bb_edge import NodeConfig, PeerId
from bb_edge.engine.drawing import Drawing
from bb_edge.engine.net.ahead import AHEAD_BYTES, Ahead
from bb_edge.engine.plain import Shift
from bb_edge.engine.runtime import Runtime
from bb_edge.engine.steps import (
    EngineStep,
    Journal,
    PersistOutbox,
    SendEnvelope,
    SnapshotWanted,
    StorageFailed,
)
from bb_edge.wire import envelope
from bb_edge.wire.caps import EDGE_CAPS

BOSS, HAND, OTHER = (PeerId.from_name(name) for name in ("boss", "hand", "other"))
FULL = OSError("full")


def machines(compile_text, knows_marks: bool = True, **config: int) -> Net:
    """Machines that have exchanged marks with each other by a first question."""
    net = Net(compile_text(program(3600 * S)), dict.fromkeys(("boss", "hand", "other"), "Main"), knows_marks)
    net.run(20 * MS)
    for peer, machine in zip((BOSS, OTHER), (net.machines["boss"], net.machines["other"]), strict=True):
        assert machine.node.peer_id == peer
        say(machine.node, ask=(HAND,))
    net.run(S)
    assert all(net.machines[name].events == [("missing", [])] for name in ("boss", "other"))
    return net


def question(net: Net, name: str = "boss") -> bytes:
    """A further question to the hand, on its way."""
    machine = net.machines[name]
    say(machine.node, ask=(HAND,))
    before = len(net.sent)
    while not (found := [s for p, s in net.sent[before:] if p == machine.node.peer_id and s.durable]):
        net.run(net.now_ns + MS, deliver=False)
    return found[0].payload


def hear(net: Net, *questions: tuple[PeerId, bytes]) -> list[EngineStep]:
    """What the hand says in the poll in which they come, before the disk has said anything."""
    hand = net.machines["hand"].node
    for peer, payload in questions:
        hand.deliver_inbound(payload, peer)
    return hand.poll(net.now_ns)


def acks(found: list[EngineStep], asked: bytes) -> list[envelope.Ack]:
    """What is acknowledged of the flow of a question."""
    sent = [envelope.decode(step.payload, EDGE_CAPS) for step in of(SendEnvelope, found)]
    epoch = envelope.decode(asked, EDGE_CAPS).epoch
    return [ack for message in sent for ack in message.acks if ack.epoch == epoch]


def replies(found: list[EngineStep]) -> list[SendEnvelope]:
    return [step for step in of(SendEnvelope, found) if step.durable]


def test_the_answer_is_asked_for_in_the_poll_of_the_question_and_nothing_leaves(compile_text):
    net = machines(compile_text)
    hand = net.machines["hand"].node
    asked = question(net)
    found = hear(net, (BOSS, asked))
    row, answer = [step for step in found if isinstance(step, Journal | PersistOutbox)]
    assert isinstance(row, Journal) and row.ahead and not row.patient
    assert isinstance(answer, PersistOutbox) and answer.with_journal and not answer.with_snapshot
    assert not replies(found) and not acks(found, asked)
    later = hand.poll(net.now_ns + 10 * S)
    assert not replies(later) and not acks(later, asked), "not even after a long time"
    hand.persisted(row.token)
    later = hand.poll(net.now_ns + 11 * S)
    assert not replies(later), "the answer is on no disk"
    hand.persisted(answer.token)
    later += hand.poll(net.now_ns + 12 * S)
    assert len(replies(later)) == 1 and len(acks(later, asked)) == 1
    assert not of(Journal, later), "it runs once"


def test_what_comes_again_while_it_is_written_runs_once_and_is_not_acknowledged(compile_text):
    net = machines(compile_text)
    asked = question(net)
    first = hear(net, (BOSS, asked))
    again = hear(net, (BOSS, asked))
    assert of(Journal, first) and not of(Journal, again) and not of(PersistOutbox, again)
    assert not acks(net.machines["hand"].node.poll(net.now_ns + S), asked)


def test_of_a_peer_without_marks_nothing_runs_before_it_is_written(compile_text):
    net = machines(compile_text, knows_marks=False)
    found = hear(net, (BOSS, question(net)))
    (row,) = of(Journal, found)
    assert not row.ahead and not of(PersistOutbox, found)


def word(net: Net) -> bytes:
    """What the boss tells the hand and needs no answer to, on its way."""
    boss = net.machines["boss"]
    say(boss.node, to=(HAND,))
    net.run(net.now_ns + 50 * MS, deliver=False)
    told: SendEnvelope = next(step for peer, step in reversed(net.sent) if peer == BOSS and step.durable)
    return told.payload


def test_what_only_tells_waits_for_its_row(compile_text):
    net = machines(compile_text)
    (row,) = of(Journal, hear(net, (BOSS, word(net))))
    assert not row.ahead


def test_nothing_overtakes_what_waits_for_the_disk(compile_text):
    net = machines(compile_text)
    told = word(net)
    asked = question(net, "other")
    found = hear(net, (BOSS, told), (OTHER, asked))
    assert [row.ahead for row in of(Journal, found)] == [False, False]
    assert not of(PersistOutbox, found)


@pytest.mark.parametrize("beside", [0, AHEAD_BYTES])
def test_much_that_comes_together_is_written_first(compile_text, beside: int):
    net = machines(compile_text)
    asked = question(net)
    hand = net.machines["hand"].node
    hand.deliver_inbound(asked, BOSS)
    if beside:
        hand.deliver_inbound(bytes(beside), OTHER)
    (row,) = of(Journal, hand.poll(net.now_ns))
    assert row.ahead == (not beside)


def test_what_the_disk_refuses_is_asked_for_again_and_holds_up_what_came_of_it(compile_text):
    net = machines(compile_text)
    hand, now_ns = net.machines["hand"].node, net.now_ns
    first, second = question(net), question(net, "other")
    found = hear(net, (BOSS, first))
    (row,), (answer,) = of(Journal, found), of(PersistOutbox, found)
    hand.persist_failed(row.token, FULL)
    hand.persist_failed(answer.token, FULL)
    now_ns = net.now_ns + MS
    found = hand.poll(now_ns)
    assert [step.what for step in of(StorageFailed, found)] == ["journal", "outbox"]
    assert of(SnapshotWanted, found), "a snapshot would have it"
    # Nothing more is taken, or it would be on the disk without what ran before it.
    hand.deliver_inbound(second, OTHER)
    assert not of(Journal, hand.poll(now_ns + MS))
    assert hand.counters["ingress.disk"] == 1 and hand.counters["storage.failed"] == 2
    # Its own row is asked for once a second, doubling, and no row of the outbox before it is there.
    say(hand, to=(BOSS,))
    rows = []
    for second_s in range(1, 9):
        found = hand.poll(net.now_ns + second_s * S)
        rows += [(second_s, type(s).__name__) for s in found if isinstance(s, Journal | PersistOutbox)]
        for step in of(Journal, found):
            assert step is row
            hand.persist_failed(row.token, FULL)
        assert not replies(found) and not acks(found, first)
    assert rows == [(1, "Journal"), (3, "Journal"), (7, "Journal")]
    hand.persisted(row.token)
    found = []
    for second_s in range(9, 140):
        polled = hand.poll(net.now_ns + second_s * S)
        for step in of(PersistOutbox, polled):
            hand.persisted(step.token)
        found += polled
    assert len({step.token for step in of(PersistOutbox, found)}) == 2, "the answer, and what it says itself"
    assert acks(found, first) and replies(found)
    hand.deliver_inbound(second, OTHER)
    assert [step.ahead for step in of(Journal, hand.poll(net.now_ns + 140 * S))] == [True], "taken by now"


def test_it_is_asked_for_after_a_second_again_once_the_disk_has_taken_some(compile_text):
    net = machines(compile_text)
    hand = net.machines["hand"].node
    for name, peer in (("boss", BOSS), ("other", OTHER)):
        found = hear(net, (peer, question(net, name)))
        (row,) = of(Journal, found)
        for step in (row, *of(PersistOutbox, found)):
            hand.persist_failed(step.token, FULL)
        begun = net.now_ns
        assert not of(Journal, hand.poll(begun + S - MS))
        assert of(Journal, hand.poll(begun + S)) == [row]
        hand.persisted(row.token)
        net.now_ns = begun + 4 * S
        for step in of(PersistOutbox, hand.poll(net.now_ns)):
            hand.persisted(step.token)


def test_rows_of_one_poll_are_asked_for_again_together_and_in_their_order(compile_text):
    net = machines(compile_text)
    hand = net.machines["hand"].node
    asked = (BOSS, question(net)), (OTHER, question(net, "other"))
    found = hear(net, *asked)
    rows = of(Journal, found)
    assert [row.ahead for row in rows] == [True, True]
    for step in (*rows, *of(PersistOutbox, found)):
        hand.persist_failed(step.token, FULL)
    assert of(Journal, hand.poll(net.now_ns + S)) == rows
    hand.persisted(rows[0].token)
    hand.persist_failed(rows[1].token, FULL)
    assert of(Journal, hand.poll(net.now_ns + 3 * S)) == rows[1:], "two seconds later, and what is missing"


@pytest.mark.parametrize(
    "attribute,many,patient",
    [("", 16, [True, False]), (", enough=1", 16, [False, False]), ("", 0, [False, False])],
)
def test_an_answer_is_patient_while_others_are_to_come(compile_text, monkeypatch, attribute, many, patient):
    monkeypatch.setattr("bb_edge.engine.net.cohort.MANY", many)
    text = program(3600 * S).replace("wire.answer_mode=each", f"wire.answer_mode=each{attribute}")
    net = Net(compile_text(text), dict.fromkeys(("boss", "hand", "other"), "Main"))
    boss = net.machines["boss"]
    net.run(20 * MS)
    say(boss.node, ask=(HAND, OTHER))
    net.run(S)
    assert [row.patient for row in of(Journal, boss.said)] == patient
    say(boss.node, ask=(HAND,))
    net.run(2 * S)
    assert not of(Journal, boss.said)[-1].patient, "nobody else is asked"


def test_a_snapshot_has_what_has_run_and_it_does_not_run_again(compile_text):
    net = machines(compile_text)
    hand, asked = net.machines["hand"], question(net)
    found = hear(net, (BOSS, asked))
    (row,) = of(Journal, found)
    hand.node.persist_failed(row.token, FULL)
    for step in of(PersistOutbox, found):
        hand.node.persist_failed(step.token, FULL)
    hand.take_snapshot(net.now_ns)
    assert acks(hand.node.poll(net.now_ns + 2 * S), asked), "it is on disk"
    again = Machine(*hand.args[2:3], "Main", "hand")
    again.disk = hand.disk
    again.start(net.now_ns + S)
    assert not again.node.inspect().ingress["entries"]
    found = [step for second in range(1, 5) for step in again.poll(net.now_ns + second * S)]
    assert len({step.name for step in of(PersistOutbox, found)}) == 1, "the answer, from the snapshot"


@pytest.mark.parametrize("crash", range(1, 8))
@pytest.mark.parametrize("made", [False, True])
def test_a_crash_at_any_write_answers_each_question_once(compile_text, crash: int, made: bool):
    net = machines(compile_text)
    hand, boss = net.machines["hand"], net.machines["boss"]
    hand.disk.crash_at = hand.disk.writes + crash, made
    for _ in range(3):
        say(boss.node, ask=(HAND,))
        net.run(net.now_ns + 5 * S)
    net.run(net.now_ns + 60 * S)
    assert hand.disk.crash_at is None or crash > 6
    assert boss.events == [("missing", [])] * 4
    assert "ingress.late_answers" not in boss.node.counters


# --- rows that are asked for again ---------------------------------------------------------------------


class Alone:
    """What runs ahead in a node that has nothing else, not even a place for a timer."""

    def __init__(self) -> None:
        self.runtime = Runtime(NodeConfig(max_timers=1), BOSS, Drawing(1), Drawing(2))
        self.runtime.timers.at(3600 * S, print)
        self.wanted: list[str] = []
        self.ahead = Ahead(self.runtime, self.wanted.append)

    def add(self, *tokens: int, size: int = 10) -> None:
        for token in tokens:
            self.ahead.add(Journal(token, BOSS, (b"row",), ahead=True), size)

    def asked(self, now_ns: int) -> list[int]:
        """The rows that are asked for by then."""
        self.runtime.advance(now_ns)
        while (due := self.runtime.timers.pop_due(now_ns)) is not None:
            due.callback(now_ns, *due.args)
        found = [step.token for step in of(Journal, self.runtime.steps)]
        self.runtime.steps.clear()
        return found


def test_bytes_are_those_of_all_rows_that_are_on_no_disk():
    alone = Alone()
    alone.add(1)
    alone.add(2, size=5)
    assert alone.ahead.bytes == 15
    alone.ahead.written(1, 10)
    assert alone.ahead.bytes == 5 and 2 in alone.ahead and 1 not in alone.ahead
    alone.ahead.written(2, 5)
    assert alone.ahead.bytes == 0 and not alone.ahead


def test_rows_are_asked_for_again_a_second_later_and_then_after_twice_that():
    alone = Alone()
    alone.add(1, 2)
    assert alone.asked(0) == [1, 2]
    now_ns = 0
    for wait_ns in (S, 2 * S, 4 * S, 8 * S, 16 * S, 32 * S, 64 * S, 64 * S):
        alone.ahead.failed()
        alone.ahead.failed()  # a further row of the same write
        assert alone.ahead.failing
        assert not alone.asked(now_ns + wait_ns - 1)
        now_ns += wait_ns
        assert alone.asked(now_ns) == [1, 2]
    assert set(alone.wanted) == {"journal"}, "a snapshot would hold them as well"


def test_the_timer_of_rows_that_are_on_disk_asks_for_no_others():
    alone = Alone()
    alone.add(1)
    alone.ahead.failed()
    alone.ahead.written(1, 10)
    assert not alone.ahead.failing
    alone.asked(S // 2)
    alone.add(2)
    assert alone.asked(S // 2) == [2]
    assert not alone.asked(S)
    alone.ahead.failed()
    assert not alone.asked(2 * S - 1) and alone.asked(2 * S) == [2], "a second again, not two"


def test_the_timer_of_an_earlier_run_finds_a_node_that_has_nothing_to_ask_for():
    """Its name is that of older snapshots."""
    alone = Alone()
    alone.ahead.failed()
    saved = alone.runtime.timers.save(alone.runtime.callbacks)
    assert [row[2] for row in saved[1]] == ["journal.retry"]
    again = Alone()
    again.runtime.timers.restore(saved, Shift(0), again.runtime.callbacks)
    again.add(1)
    assert again.asked(0) == [1] and not again.asked(S)
