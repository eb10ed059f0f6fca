"""Machines whose disks are put back, lost and asleep: each letter is heard once, or somebody says why not."""

from __future__ import annotations

import pytest
from simulated.__main__ import LETTERS, simulate, simulate_all
from simulated.letters import LettersWorld
from simulated.world import WorldError

from bb_edge.wire import durable_rows
from bb_edge.wire.durable_receiver import DurableReceiver
from bb_edge.wire.marks import Heard

SEEDS = 100
OFTEN = {
    "put back": 40,
    "put back together": 4,
    "lost": 3,
    "crash and asleep": 30,
    "crash at a write": 40,
    "crash at a start": 2,
    "full disks": 25,
    "another's folder": 10,
    "dropped by hand": 5,
    "forged": 600,
    "dropped": 800,
}
SEEN = {
    "StateRolledBack": 70,
    "PeerBeganAnew": 10,
    "StorageFailed": 100,
    "restored": 100,
    "replayed": 250,
    "heard": 3000,
    "lost, and told": 70,
    "heard twice, and told": 10,
    "questions": 300,
    "answers": 300,
    "answers missing": 80,
    "forged, and heard": 30,
    "not taken: no room": 8,
}
"""What the worlds must see, at least so often: about a half of what they do see."""


def test_each_letter_is_heard_once_or_somebody_says_why_not():
    tally = simulate(range(SEEDS), True, LETTERS)
    assert not tally.failures, "\n".join(tally.failures[:3])
    assert {what: tally.faults[what] for what, least in OFTEN.items() if tally.faults[what] < least} == {}
    assert {what: tally.seen[what] for what, least in SEEN.items() if tally.seen[what] < least} == {}


@pytest.mark.parametrize(
    ("short", "seeds"),
    [
        (True, (383, 398, 2_002_147)),
        (True, (139, 193, 221)),
        (False, (2_000_060,)),
        (False, (2_000_088, 2_000_170)),
        (False, (2_000_147,)),
        (False, (6_000_346, 6_002_397)),
    ],
    ids=[
        "what waited for room in a snapshot was sent again by the node that went back to it",
        "an operator dropped the only row that had a number",
        "a question that waited in a snapshot, and was on disk since, was asked twice",
        "a peer that left questions of the program without an answer was not asked for its marks",
        "a question that waited for room beyond its deadline ended the poll in an error",
        "a sender that went back to a lower epoch, then to a higher one, sent again without a word",
    ],
)
def test_seeds_that_have_shown_a_fault(short, seeds):
    for seed in seeds:
        LettersWorld(seed, short=short).run()


def test_a_long_world_holds_too_and_any_number_of_processes_sees_the_same():
    alone = simulate(range(100_000, 100_002), False, LETTERS)
    assert not alone.failures, alone.failures
    assert alone.delivered > 500
    assert simulate_all(100_000, 2, 2, False, LETTERS).hashes == alone.hashes


@pytest.mark.parametrize(
    ("owner", "name", "replaced", "found"),
    [
        (Heard, "lost", lambda *_: (), "nobody said so"),
        (durable_rows, "keeping", lambda *_: [], "nobody has put that state back"),
        (DurableReceiver, "has_taken", lambda *_: True, ""),
    ],
    ids=[
        "a receiver that is old is not noticed",
        "a number goes with the record that is dropped",
        "something that changes no promise",
    ],
)
def test_the_oracle_finds_what_is_wrong_and_nothing_else(monkeypatch, owner, name, replaced, found):
    monkeypatch.setattr(owner, name, replaced)
    failures = []
    for seed in (*range(24), 139, 221):
        try:
            LettersWorld(seed, short=True).run()
        except WorldError as error:
            failures.append(str(error))
    assert any(found in failure for failure in failures) if found else not failures
