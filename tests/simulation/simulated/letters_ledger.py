"""Who watches machines that write each other: each letter is heard once, or somebody says why not."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bb_edge.engine import steps
from bb_edge.ir.ids import PeerId
from bb_edge.wire import cbor, envelope
from bb_edge.wire.outbox import OutboxRecord
from simulated.forger import FORGED
from simulated.ledger import ALLOWED, CAPS, Ledger
from simulated.machine import Machine
from simulated.plan import S

if TYPE_CHECKING:
    from simulated.letters import LettersWorld

AFTER_NS = 130 * S
"""How long a world goes on after the faults: a sender that was told that it is old asks a minute later."""
REPORTS = (steps.StateRolledBack, steps.PeerBeganAnew)
REFUSED = (steps.IngressDropped, steps.IngressPutOff)
TOLD = (*REPORTS, *ALLOWED, steps.PeerFailing, steps.OutboundDropped, *REFUSED)
"""What may come out of a poll. What is dropped on its way out was on no disk; what finds no room on its way
in is on its sender's.
"""


class Letter(NamedTuple):
    """One envelope to one peer, by the places of the machines; `kind` is that of envelopes."""

    source: int
    target: int
    number: int
    kind: int = envelope.NONE


class Report(NamedTuple):
    """Who said what of whom; `kind` says whose state is old: "receiver", "sender", "anew"."""

    by: int
    peer: int
    kind: str
    sender: int
    receiver: int
    at_ns: int


class LettersLedger(Ledger):
    """What was promised by which disk, and who reported what."""

    world: LettersWorld

    def __init__(self, world: LettersWorld) -> None:
        super().__init__(world)
        self.places = {machine.peer: place for place, machine in enumerate(world.machines)}
        self.by_disk: list[dict[Letter, int]] = [{} for _ in world.machines]
        """The records on the disk of each machine, settled or not, and since when."""
        self.reports: list[Report] = []
        self.older: Counter[int] = Counter()
        """How often the disk of a machine was put back, or lost."""
        self._rows: dict[bytes, Letter | None] = {}

    def step(self, step: steps.EngineStep, machine: Machine) -> None:
        self.seen[type(step).__name__] += 1
        if isinstance(step, REFUSED):
            assert step.reason in ("full", "blocked"), f"{machine.name}: {step}"
        if isinstance(step, steps.PeerRestarts):
            if not self._is_forger(step.peer):  # who says another epoch with each presence
                self._restarts(step)
            return
        if isinstance(step, steps.PeerBlocked):
            # Notices are best-effort: where three are lost, a peer that got none looks as if it heeded none.
            assert self.world.plan.weather.drop, f"{machine.name}: {step}"
            self.seen["blocked, its notices lost"] += 1
            return
        assert isinstance(step, TOLD), f"{machine.name}: {step}"
        if isinstance(step, steps.PersistOutbox):
            if step.token in machine.written:
                self.promise(step.record, machine)
        elif isinstance(step, REPORTS):
            self._reported(step, machine)
        elif isinstance(step, steps.OutboundDropped):
            assert "records with" in step.reason or "not sent before" in step.reason, (
                f"{machine.name}: {step}"
            )
            self.seen["not taken: " + ("no room" if "records with" in step.reason else "too late")] += 1

    def letter(self, row: bytes) -> Letter | None:
        """What a row of an outbox is about; None for one of numbers."""
        if row not in self._rows:
            version, number, *more = cbor.loads(row, max_items=len(row) + 1, max_depth=2)
            self._rows[row] = None
            if version == 3 and isinstance(number, int):
                record = OutboxRecord.from_bytes(more[0])
                message = envelope.decode(record.encoded, CAPS)
                place = self.places.get(record.key.peer)
                if message.fills and place is not None:
                    told = np.frombuffer(bytes(message.fills[0].payload)[-4:], np.float32)
                    self._rows[row] = Letter(-1, place, int(told[0]), message.kind)
        return self._rows[row]

    def promise(self, data: bytes, machine: Machine) -> None:
        """A row of an outbox that is on disk."""
        letter = self.letter(data)
        if letter is not None:
            place = self.places[machine.peer]
            self.by_disk[place].setdefault(letter._replace(source=place), self.world.network.now_ns)

    def _reported(self, step: steps.StateRolledBack | steps.PeerBeganAnew, machine: Machine) -> None:
        if self._is_forger(step.peer):
            self.seen["reports of a forger"] += 1
            return
        by, peer = self.places[machine.peer], self.places[step.peer]
        if isinstance(step, steps.PeerBeganAnew):
            kind, sender, receiver, older = "anew", by, peer, peer
        else:
            older, other = (peer, by) if step.own is False else (by, peer)
            kind = "receiver" if step.numbers else "sender"
            sender, receiver = (other, older) if step.numbers else (older, other)
            if step.own is None and not self.older[by]:
                older = peer  # one of the two was put back
        assert self.older[older], f"{machine.name}: {step}: nobody has put that state back"
        self.reports.append(Report(by, peer, kind, sender, receiver, self.world.network.now_ns))

    def _is_forger(self, peer: PeerId) -> bool:
        return self.world.forger is not None and peer == self.world.forger.peer

    # --- the end ----------------------------------------------------------------------------------------

    def done(self) -> bool:
        if self.world.network.now_ns < self.world.plan.calm_ns + AFTER_NS:
            return False
        for machine in self.world.machines:
            node = machine.node
            if node is None or node.pending_sends or node.counters["executions.active"]:
                return False
        return True

    def in_notebook(self, place: int, slot: str) -> Counter[int]:
        """How often which number is in a notebook of a machine."""
        node = self.world.machines[place].node
        assert node is not None
        found: Counter[int] = node.component(slot).numbers
        return found

    def check_end(self) -> None:
        """Each letter that a disk promised was heard, or a report covered it; and none twice without one."""
        places = range(len(self.world.machines))
        heard = {envelope.NONE: [self.in_notebook(place, "heard") for place in places]}
        heard[envelope.REQUEST] = [self.in_notebook(place, "asked") for place in places]
        for promised in self.by_disk:
            for letter, at_ns in promised.items():
                self.seen[f"promised, kind {letter.kind}"] += 1
                if letter.kind != envelope.NONE or heard[letter.kind][letter.target][letter.number]:
                    continue
                covered = any((r.sender, r.receiver) == letter[:2] and r.at_ns >= at_ns for r in self.reports)
                assert covered, f"{letter} is lost, and nobody said so"
                self.seen["lost, and told"] += 1
        for place in places:
            for numbers in heard.values():
                self._none_twice(place, numbers[place])
            self._all_over(place)
        for machine in self.world.machines:
            assert machine.node is not None and machine.node.counters["ingress.bytes"] == 0

    def _none_twice(self, place: int, numbers: Counter[int]) -> None:
        for number, count in numbers.items():
            if number >= FORGED:
                self.seen["forged, and heard"] += count
                continue
            self.seen["heard"] += 1
            if count == 1:
                continue
            source = self.world.sources[number]
            twice = any(
                r.kind == "sender" and (r.sender, r.receiver) == (source, place) for r in self.reports
            )
            # A state that is put back twice may come to know again what the one in between did not.
            between = self.older[place] > 1
            assert twice or between, f"{number} from {source} came to {place} {count} times"
            self.seen["heard twice, and told"] += 1

    def _all_over(self, place: int) -> None:
        """Every question that a machine knows of is over; each answer to it came once, or was missing."""
        world, node = self.world, self.world.machines[place].node
        assert node is not None
        asks, closed = self.in_notebook(place, "asks"), self.in_notebook(place, "closed")
        assert asks == closed, f"{place} asked {asks - closed} without an end, and ended {closed - asks}"
        assert set(asks.values()) <= {1}, f"{place} asked twice: {asks}"
        answered = self.in_notebook(place, "answered")
        missing = sum(map(len, node.ring("missing")))  # type: ignore[arg-type]
        for number, count in answered.items():
            assert count <= world.asked[number], f"{place} has {count} answers to {number}"
        wanted = sum(world.asked[number] for number in asks)
        came = answered.total()
        assert wanted == came + missing, f"{place}: {wanted} answers wanted, {came} came, {missing} missing"
        self.seen["questions"] += asks.total()
        self.seen["answers"] += came
        self.seen["answers missing"] += missing
        for other in range(len(world.machines)):
            unknown = [
                n for n in self.in_notebook(other, "asked") if world.sources.get(n) == place and n not in asks
            ]
            assert not unknown or self.older[place], (
                f"{place} does not know that it asked {unknown} of {other}"
            )

    def state(self) -> str:
        return "\n".join([super().state(), *map(str, self.reports)])
