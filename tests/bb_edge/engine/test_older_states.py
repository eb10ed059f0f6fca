"""States that are put back though the world has gone on: what is noticed, what is told, what is delivered."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from durable_machines import Disk, Machine, Net
from durable_program import SAY
from times import S

from bb_edge.engine import steps

TEXT = f"""
program Demo {{module=Demo}}
function program.Teller(x: F32[1], to: PeerIdVec) -> () {{entry=1, partition=Teller}}
  h: Trigger = wire.Send(x, to) {{{SAY}}}
  own: EventKind = syscall.EventSource<kind=6>()
  syscall.AppEmit<name="own">(own)
  other: EventKind = syscall.EventSource<kind=7>()
  syscall.AppEmit<name="other">(other)
  anew: EventKind = syscall.EventSource<kind=8>()
  syscall.AppEmit<name="anew">(anew)
function program.Hearer() -> () {{entry=1, partition=Hearer}}
  own: EventKind = syscall.EventSource<kind=6>()
  syscall.AppEmit<name="own">(own)
  other: EventKind = syscall.EventSource<kind=7>()
  syscall.AppEmit<name="other">(other)
  x: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  syscall.Record<name="heard">(x)
"""


class Pair:
    """A teller and a hearer, who have told each other's presences."""

    def __init__(self, data: bytes) -> None:
        self.net = Net(data, {"teller": "Teller", "hearer": "Hearer"})
        self.teller, self.hearer = self.net.machines["teller"], self.net.machines["hearer"]
        self.run()

    def run(self, for_ns: int = 2 * S) -> None:
        self.net.run(self.net.now_ns + for_ns)

    def say(self, *numbers: float) -> None:
        for number in numbers:
            to = (self.hearer.node.peer_id,)
            self.teller.node.invoke("Teller", {"x": np.full(1, number, np.float32), "to": to})
        self.run()

    @property
    def heard(self) -> list[float]:
        """What the hearer's state holds."""
        return [float(value[0]) for value in self.hearer.node.ring("heard")]

    def restart(self, machine: Machine, disk: Disk | None = None) -> None:
        """The machine starts anew, with a disk that somebody has put there."""
        machine.disk = disk or machine.disk
        machine.start(self.net.now_ns)
        self.net.greet(machine)
        self.run()

    def events(self, machine: Machine) -> list[str]:
        """The events of its bus that reached the machine's program."""
        return [step.topic for step in machine.said if isinstance(step, steps.AppEvent)]

    def told(self, machine: Machine) -> list[tuple[bool, tuple[int, ...]]]:
        """What a machine has told of older states: whose, and which numbers."""
        found = [step for step in machine.said if isinstance(step, steps.StateRolledBack)]
        peers = {step.peer for step in found}
        assert peers <= {self.teller.node.peer_id, self.hearer.node.peer_id} - {machine.node.peer_id}
        return [(step.own, step.numbers) for step in found]


@pytest.fixture
def pair(compile_text) -> Pair:
    return Pair(compile_text(TEXT))


def test_crashes_alone_are_told_nobody_and_lose_nothing(pair):
    for number in range(4):
        pair.say(number)
        for machine in (pair.teller, pair.hearer)[: 1 + number % 2]:
            pair.restart(machine)
    pair.say(9)
    assert pair.heard == [0, 1, 2, 3, 9]
    assert not pair.told(pair.teller) and not pair.told(pair.hearer)
    assert pair.teller.node.counters["marks.sent"] and pair.hearer.node.counters["marks.received"]


def test_a_hearer_that_is_put_back_is_told_at_both_ends_with_the_numbers_that_it_lost(pair):
    pair.say(1)
    old = copy.deepcopy(pair.hearer.disk)
    pair.say(2, 3)
    pair.restart(pair.hearer, old)
    assert pair.told(pair.teller) == [(False, (2, 3))]
    assert pair.told(pair.hearer) == [(True, (2, 3))]
    assert pair.teller.node.counters["peers.rolled_back"] == 1
    assert pair.hearer.node.counters["marks.rolled_back"] == 1
    assert (pair.events(pair.teller), pair.events(pair.hearer)) == (["other"], ["own"])
    pair.say(4)
    assert pair.heard == [1, 4], "what it had acknowledged does not come again"
    pair.restart(pair.hearer)
    assert len(pair.told(pair.teller)) == len(pair.told(pair.hearer)) == 1, "once"


def test_where_whole_epochs_are_lost_the_text_says_that_older_ones_may_be(pair):
    pair.say(1)
    old = copy.deepcopy(pair.hearer.disk)
    for number in (2, 3):
        pair.restart(pair.teller)
        pair.say(number)
    pair.restart(pair.hearer, old)
    (step,) = [step for step in pair.hearer.said if isinstance(step, steps.StateRolledBack)]
    assert (step.own, step.numbers, step.first) == (True, (1,), 1), "the teller knows of its last epoch alone"
    assert step.text.endswith("of the numbers 1 to 1 and maybe all of the epochs before")
    pair.say(4)
    assert pair.heard == [1, 4]


def test_nothing_is_said_of_what_only_lost_histories_knew(pair):
    pair.say(1)
    old_hearer = copy.deepcopy(pair.hearer.disk)
    pair.say(2)
    pair.teller.take_snapshot(pair.net.now_ns)  # it has heard that 2 was taken
    old_teller = copy.deepcopy(pair.teller.disk)
    pair.say(3)
    pair.hearer.disk = old_hearer
    pair.hearer.start(pair.net.now_ns)
    pair.restart(pair.teller, old_teller)
    pair.net.greet(pair.hearer)
    pair.run()
    assert pair.told(pair.hearer) == [(True, (2,))], "of 3 nobody knows"
    pair.say(4)
    assert pair.heard == [1, 4]


def test_a_teller_that_is_put_back_is_told_at_both_ends_and_goes_on_with_new_numbers(pair):
    pair.say(1)
    old = copy.deepcopy(pair.teller.disk)
    pair.say(2, 3)
    pair.restart(pair.teller, old)
    pair.say(4)
    assert pair.told(pair.teller) == [(True, ())]
    assert pair.told(pair.hearer) == [(False, ())]
    assert (pair.events(pair.teller), pair.events(pair.hearer)) == (["own"], ["other"])
    assert pair.heard == [1, 2, 3, 4], "a new record under an old number is not an old one"


def test_a_teller_that_is_put_back_names_the_records_that_may_come_twice(pair):
    pair.say(1)
    pair.net.down["hearer"] = pair.net.now_ns + 5 * S
    pair.teller.node.peer_presence(pair.hearer.node.peer_id, False, epoch=pair.hearer.node.epoch)
    pair.say(2, 3)
    old = copy.deepcopy(pair.teller.disk)
    pair.run(8 * S)
    assert pair.heard == [1, 2, 3]
    pair.restart(pair.teller, old)
    (step,) = [step for step in pair.teller.said if isinstance(step, steps.StateRolledBack)]
    assert step.own and step.records == (1, 2, 3), "no snapshot says that the first was taken"
    assert step.text.endswith("; what it sends may have come before: records 1 to 3 of the outbox")
    assert pair.heard == [1, 2, 3, 1, 2, 3]
    assert [step.records for step in pair.hearer.said if isinstance(step, steps.StateRolledBack)] == [()]


def test_a_hearer_with_an_empty_folder_has_begun_anew_which_is_a_note(pair):
    pair.say(1)
    pair.restart(pair.hearer, Disk())
    pair.say(2)
    assert pair.heard == [2]
    found = [step for step in pair.teller.said if isinstance(step, steps.PeerBeganAnew)]
    assert [step.peer for step in found] == [pair.hearer.node.peer_id]
    assert pair.teller.node.counters["peers.began_anew"] == 1
    assert (pair.events(pair.teller), pair.events(pair.hearer)) == (["anew"], [])
    assert not pair.told(pair.teller) and not pair.told(pair.hearer)


def test_what_waits_for_a_peer_that_is_away_is_delivered_once_when_it_comes(pair):
    pair.say(1)
    pair.net.down["hearer"] = pair.net.now_ns + 10 * S
    pair.teller.node.peer_presence(pair.hearer.node.peer_id, False, epoch=pair.hearer.node.epoch)
    pair.say(2, 3)
    pair.restart(pair.teller)
    assert pair.heard == [1]
    pair.run(12 * S)
    assert pair.heard == [1, 2, 3]
    assert not pair.told(pair.teller) and not pair.told(pair.hearer)
