"""Machines whose disks are put back, lost and asleep: each letter is heard once, or somebody says why not."""

from __future__ import annotations

from collections import Counter

import pytest
from simulated.letters import LettersWorld
from simulated.world import WorldError

from bb_edge.wire.durable_receiver import DurableReceiver
from bb_edge.wire.marks import Heard

SEEDS = 60
OFTEN = {
    "crash and put back": 20,
    "crash and lost": 2,
    "crash and asleep": 20,
    "crash at a write": 20,
    "dropped": 500,
    "StateRolledBack": 40,
    "PeerBeganAnew": 10,
    "restored": 80,
}
"""What the worlds must see, at least so often: about a half of what they do see."""


def test_each_letter_is_heard_once_or_somebody_says_why_not():
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = LettersWorld(seed).run()
        seen.update(world.faults)
        seen.update(world.ledger.seen)
    assert {what: seen[what] for what, least in OFTEN.items() if seen[what] < least} == {}


@pytest.mark.parametrize(
    ("owner", "name", "found"),
    [(Heard, "lost", "nobody said so"), (DurableReceiver, "has_taken", "")],
    ids=["a receiver that is old is not noticed", "something that changes no promise"],
)
def test_the_oracle_finds_what_is_wrong_and_nothing_else(monkeypatch, owner, name, found):
    replaced = (lambda *_: ()) if found else (lambda *_: True)
    monkeypatch.setattr(owner, name, replaced)
    failures = []
    for seed in range(SEEDS):
        try:
            LettersWorld(seed).run()
        except WorldError as error:
            failures.append(str(error))
    assert any(found in failure for failure in failures) if found else not failures
