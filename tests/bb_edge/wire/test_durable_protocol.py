"""What durable flows and their sources may become, by their tables, and the marks that both ends exchange."""

from __future__ import annotations

import pytest
from durable_ends import asked_by, emptied, marks_in, receiver, record, sender, state
from peers import A

from bb_edge.wire import cbor, envelope, marks
from bb_edge.wire.caps import UNBOUNDED_CAPS
from bb_edge.wire.durable_flows import FLOW
from bb_edge.wire.durable_questions import (
    ASK_AGAIN_NS,
)
from bb_edge.wire.durable_receiver import SOURCE
from bb_edge.wire.marks import Ask, Heard, Open, Taken, Took
from tests.aids.transitions import assert_decides_by


def test_the_table_of_flows_decides() -> None:
    def walk() -> None:
        one = sender()
        one.send(record(), 0)
        assert state(one) == "SILENT"
        one.took(A, Took(0, 1), 0)
        one.took(A, Took(0, 1), 0)
        assert state(one) == "ASKING"
        one.peer_down(A)
        assert state(one) == "SILENT"
        now = 0
        for events in (
            ["up", "again", "answer", "moved"],
            ["plain"],
            ["up", "plain", "up", "plain", "took"],
            ["up", "answer", "again"],
            ["up", "answer", "plain"],
            ["up", "answer", "took"],
            ["up", "answer", "moved", "again"],
            ["up", "answer", "moved", "plain"],
            ["up", "answer", "moved", "took"],
            ["up", "drop", "answer", "again"],
            ["up", "drop", "answer", "plain"],
            ["up", "drop", "answer", "took"],
        ):
            machine = sender()
            number = machine.send(record(), 0)
            expected = "SILENT"
            for run, event in enumerate(events):
                now += 2 * ASK_AGAIN_NS
                if event in ("up", "again"):
                    machine.peer_up(A, run, True, now)
                    expected = "ASKING"
                elif event == "plain":
                    machine.peer_up(A, run, False, now)
                    expected = "PLAIN"
                elif event == "drop":
                    machine.drop(number)
                elif event == "answer":
                    machine.due(now)
                    machine.took(A, Took(asked_by(machine).token, 7), now)
                    expected = "HEARD" if "drop" in events else "MOVING"
                elif event == "moved":
                    for token in range(1, 10):
                        machine.persisted(token)
                    expected = "OPEN"
                else:
                    machine.took(A, Took(0, 9), now)
                    expected = "ASKING"
                assert state(machine) == expected, events

    assert_decides_by(FLOW, walk)


def test_the_table_of_sources_decides() -> None:
    def walk() -> None:
        machine = receiver()
        for knows, expected in ((True, "CLOSED"), (False, "PLAIN"), (False, "PLAIN"), (True, "CLOSED")):
            machine.peer_up(A, knows)
            assert state(machine) == expected
        for _ in range(2):
            machine.asked(A, Ask(len(machine.out) + 3))
            took = marks.decoded(marks_in(emptied(machine)[-1].payload))
            assert isinstance(took, Took) and took.windows == ()
            assert machine.opened(A, Open(took.echo, took.token, 5))
            machine.peer_up(A, True)
            assert state(machine) == "OPEN"
            machine.asked(A, Ask(1000 + took.token))
            assert state(machine) == "CLOSED"
        machine.peer_up(A, False)
        machine.asked(A, Ask(99))
        assert state(machine) == "CLOSED"
        last = marks.decoded(marks_in(emptied(machine)[-1].payload))
        assert isinstance(last, Took) and machine.opened(A, Open(last.echo, last.token, 6))
        machine.peer_up(A, False)
        assert state(machine) == "PLAIN"

    assert_decides_by(SOURCE, walk)


def test_what_is_heard_covers_the_last_64() -> None:
    heard = Heard().with_number(5, 2).with_number(5, 4).with_number(5, 3)
    assert heard == Heard(5, 4, 0b111) and heard.with_number(6, 1) == Heard(6, 1, 1)
    assert heard.lost(()) == () == heard.lost((Taken(6, 0, 1),)) == heard.lost((Taken(5, 4),))
    assert heard.lost((Taken(4, 9),)) == (2, 3, 4)
    assert heard.lost((Taken(5, 1, 0b10),)) == (2, 4)
    assert Heard.of(Taken(5, 100, 0b10)).high == 102


@pytest.mark.parametrize(
    "said",
    [
        Ask(1, Heard(2, 3, 4)),
        Took(1, 2),
        Took(1, 2, (Taken(3, 4, 5), Taken(6))),
        Took(0, (1 << 64) - 1, tuple(Taken(n) for n in range(marks.MAX_WINDOWS))),
        Open(1, 2, 3),
        Open(1, 2, 3, True),
    ],
)
def test_marks_are_read_as_they_were_written(said: Ask | Took | Open) -> None:
    message = envelope.decode(marks.encoded(said), UNBOUNDED_CAPS)
    assert message.fills[0].dest_suffix == marks.SUFFIX and not message.seq
    assert marks.decoded(marks_in(marks.encoded(said))) == said


NUMBERS = "expected a list of unsigned numbers"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "ends at byte 0"),
        (b"\xff", "an indefinite length or reserved form at byte 0"),
        (cbor.dumps([1, [1]]), "nested too deeply"),
        *((cbor.dumps(other), NUMBERS) for other in (5, {}, [1, -1, 1], [1, 0, True, 0, 0, 0], [1.0])),
        (cbor.dumps([]), "version -1, this node reads 1"),
        (cbor.dumps([2, 0, 1, 2, 3, 4]), "version 2, this node reads 1"),
        (cbor.dumps([1]), "kind -1 with 0 numbers"),
        *((cbor.dumps([1, 0, *range(n)]), f"kind 0 with {n} numbers") for n in (1, 3, 5)),
        *((cbor.dumps([1, 1, *range(n)]), f"kind 1 with {n} numbers") for n in (0, 1, 3, 4)),
        *((cbor.dumps([1, 2, *range(n)]), f"kind 2 with {n} numbers") for n in (2, 3, 5)),
        (cbor.dumps([1, 3, *range(4)]), "kind 3 with 4 numbers"),
        (cbor.dumps([1, 1, *range(2 + 3 * marks.MAX_WINDOWS + 3)]), "too many items"),
    ],
)
def test_other_bytes_are_no_marks(data: bytes, what: str) -> None:
    with pytest.raises(marks.MarksError) as caught:
        marks.decoded(data)
    assert (caught.value.what, caught.value.where) == (what, "marks")
