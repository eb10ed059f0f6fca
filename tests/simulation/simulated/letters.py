"""Machines that write each other durably, while disks are put back, lost, full and asleep, and others forge.

What a state has heard is part of it, and goes back with it. Each letter and each question has a number of its
own, so that what every state holds at the end can be compared with what was written down, and with what was
reported. `./dev simulate --kind letters` runs them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bb_edge.engine import steps
from bb_edge.engine.ledger import IngressFull
from bb_edge.engine.snapshot import Identity
from bb_edge.state import Owner, StateStore
from bb_edge.state.errors import StateForeignError
from bb_edge.state.keeper import key_bytes
from bb_edge.wire import durable_rows
from bb_shims import AtomicStorage, StorageError
from bb_shims.storage import TEMP_PREFIX
from bb_shims.testing import CrashMode, FakeDisk
from bb_shims.testing.fake_disk import DEFAULT_CAPACITY_BYTES
from simulated.forger import Forger
from simulated.letters_ledger import AFTER_NS, Letter, LettersLedger
from simulated.letters_plan import LettersPlan, plan_of_letters
from simulated.machine import CONFIG, Machine
from simulated.network import MS
from simulated.plan import S
from simulated.world import World

ROOM = CONFIG.with_(record_entries=4096)
NO_ROOM = ROOM.with_(outbox_records=24)


class Image(NamedTuple):
    """A disk as somebody has kept it."""

    at_ns: int
    disk: FakeDisk
    promised: dict[Letter, int]


class LettersWorld(World):
    """A world of letters; everybody knows everybody, up or not."""

    ledger: LettersLedger
    plan: LettersPlan

    def __init__(self, seed: int, plan: LettersPlan | None = None, short: bool = False) -> None:
        plan = plan or plan_of_letters(seed, short)
        super().__init__(seed, plan)
        self.sources: dict[int, int] = {}
        """Who has written which letter, or asked which question."""
        self.asked: dict[int, int] = {}
        """How many are asked a question."""
        self.images: list[list[Image]] = [[] for _ in self.machines]
        self.asleep_until: dict[str, int] = {}
        self.marks_unknown_to = {machine.name for machine in self.machines[: plan.older]}
        """The machines of an older version."""
        self.forger = Forger(self, self.rng) if plan.forged else None
        for machine in self.machines:
            machine.config = NO_ROOM if plan.small else ROOM
            machine.snapshot_ns = plan.snapshot_ns

    def make_ledger(self) -> LettersLedger:
        return LettersLedger(self)

    # --- the schedule -----------------------------------------------------------------------------------

    def _schedule(self) -> None:
        super()._schedule()
        plan, rng, network = self.plan, self.rng, self.network
        network.at(plan.calm_ns + AFTER_NS, lambda: None)
        for place, machine in enumerate(self.machines):
            for kind, count in (("letters", plan.letters), ("questions", plan.questions)):
                while count > 0:
                    several = min(count, rng.randint(1, plan.burst))
                    count -= several
                    when = rng.randrange(300 * MS, plan.calm_ns + S)
                    network.at(when, lambda p=place, k=kind, n=several: self._write(p, k, n))
            for when in self._times(2 * (plan.put_back + plan.together)):
                network.at(when, lambda p=place: self._keep_image(p))
            for when in self._times(plan.put_back):
                network.at(when, lambda p=place: self._put_back(p))
            for when in self._times(plan.lost):
                network.at(when, lambda p=place: self._lose(p))
            for when in self._times(plan.asleep):
                network.at(when, lambda m=machine: self._sleeps(m))
            for when in self._times(plan.full):
                network.at(when, lambda m=machine: self._fills(m))
        for when in self._times(plan.together):
            network.at(when, self._all_put_back)
        if self.forger is not None:
            for _ in range(plan.forged):
                network.at(rng.randrange(plan.calm_ns), self.forger.speaks)

    def _calm(self) -> None:
        super()._calm()
        for machine in self.machines:
            machine.disk.capacity_bytes = DEFAULT_CAPACITY_BYTES

    def _write(self, place: int, kind: str, count: int) -> None:
        machine, rng = self.machines[place], self.rng
        if machine.node is None:
            return
        others = [other for other in range(len(self.machines)) if other != place]
        for _ in range(count):
            number = len(self.sources) + 1
            self.sources[number] = place
            to = tuple(self.machines[other].peer for other in rng.sample(others, rng.randint(1, len(others))))
            x = np.full(1, number, np.float32)
            inputs: dict[str, Any] = {"x": x, "to": to} if kind == "letters" else {"q": x, "ask": to}
            if kind == "questions":
                self.asked[number] = len(to)
            try:
                machine.node.invoke("Post", inputs)
            except IngressFull:
                self.ledger.seen["not taken: ingress full"] += 1
        machine.due = 0

    # --- disks ------------------------------------------------------------------------------------------

    def _keep_image(self, place: int) -> None:
        machine = self.machines[place]
        if machine.node is None:
            return
        disk = copy.deepcopy(machine.disk)
        disk.disarm()
        disk.crash(CrashMode.LOSE)
        disk.capacity_bytes = DEFAULT_CAPACITY_BYTES
        self.images[place].append(Image(self.network.now_ns, disk, dict(self.ledger.by_disk[place])))
        self.network.faults["image"] += 1

    def _put_back(self, place: int, images: Sequence[Image] = ()) -> None:
        """Back to an image of it, whether the machine is up or not."""
        machine = self.machines[place]
        images = images or self.images[place]
        if not images:
            return
        image = self.rng.choice(images)
        self.crashed(machine, "and put back")
        machine.disk = copy.deepcopy(image.disk)
        self.ledger.by_disk[place] = dict(image.promised)
        self.ledger.older[place] += 1
        self.network.faults["put back"] += 1

    def _all_put_back(self) -> None:
        """All at one moment: to images of about one moment, or of any."""
        before = self.rng.randrange(self.network.now_ns + 1) if self.rng.random() < 0.5 else None
        self.network.faults["put back together"] += 1
        for place, images in enumerate(self.images):
            older = [image for image in images if before is not None and image.at_ns <= before]
            self._put_back(place, older[-1:])

    def _lose(self, place: int) -> None:
        machine = self.machines[place]
        self.crashed(machine, "and lost")
        machine.disk = FakeDisk()
        self.ledger.by_disk[place] = {}
        self.ledger.older[place] += 1
        self.network.faults["lost"] += 1

    def _fills(self, machine: Machine) -> None:
        """Others fill the disk; it has room again later."""
        disk, rng = machine.disk, self.rng
        disk.capacity_bytes = sum(map(len, disk.files.values())) + rng.randrange(6000)
        self.network.faults["full disks"] += 1

        def freed() -> None:
            disk.capacity_bytes = DEFAULT_CAPACITY_BYTES

        self.network.at(self.network.now_ns + rng.randrange(100 * MS, 4 * S), freed)

    # --- starts -----------------------------------------------------------------------------------------

    def _sleeps(self, machine: Machine) -> None:
        if machine.node is None:
            return
        self.asleep_until[machine.name] = self.network.now_ns + self.rng.randrange(S, 6 * S)
        self.crashed(machine, "and asleep")

    def _start(self, machine: Machine) -> None:
        until = self.asleep_until.pop(machine.name, 0)
        if until > self.network.now_ns:
            self.network.at(until, lambda: self._start(machine))
        elif machine.node is None:
            if machine.births and self.network.now_ns < self.plan.calm_ns:
                self._prepare(machine)
            super()._start(machine)

    def _prepare(self, machine: Machine) -> None:
        """What is done to a machine that is down, before it comes up again."""
        plan, rng = self.plan, self.rng
        if machine.name in self.marks_unknown_to and rng.random() < 0.3:
            self.marks_unknown_to.remove(machine.name)
            self.network.faults["brought up to date"] += 1
        if rng.random() < plan.strange:
            self._try_other(machine)
        if rng.random() < plan.dropped:
            self._drop_some(machine)

    def _try_other(self, machine: Machine) -> None:
        """Somebody gives the machine another one's folder: it is refused, and nothing of it changes."""
        other = self.rng.choice([other for other in self.machines if other is not machine])
        disk = copy.deepcopy(other.disk)
        disk.disarm()
        disk.crash(CrashMode.LOSE)
        found = StateStore(AtomicStorage(copy.deepcopy(disk).open()), (StorageError,)).open()
        if found.snapshot is None and not (found.journal or found.outbox):
            return  # files that are empty, or torn in their first bytes, say nothing
        identity = Identity.of(machine.peer, machine.program, [machine.seat.target])
        # What a torn write has left goes when any folder is opened, and is not part of a state.
        before = {name: data for name, data in disk.files.items() if not name.startswith(TEMP_PREFIX)}
        try:
            StateStore(
                AtomicStorage(disk.open()), (StorageError,), None, Owner(identity.peer, identity.program)
            ).open()
        except StateForeignError:
            self.network.faults["another's folder"] += 1
        else:
            raise AssertionError(f"{machine.name} has taken the folder of {other.name}")
        assert disk.files == before, f"{machine.name} has changed the folder of {other.name}"

    def _drop_some(self, machine: Machine) -> None:
        """An operator drops records of a machine that is stopped, as `bb-edge outbox --drop` does."""
        place, disk = self.machines.index(machine), machine.disk
        if disk.capacity_bytes < DEFAULT_CAPACITY_BYTES:
            return
        store = StateStore(AtomicStorage(disk.open()), (StorageError,))
        found = durable_rows.read(store.open().outbox, {})
        rows = found.records
        chosen = [
            number for number, record in rows.items() if record.cause is None and self.rng.random() < 0.3
        ]
        numbers = durable_rows.keeping([rows[number] for number in chosen], found.given, {})
        numbers += durable_rows.over((number, rows[number]) for number in chosen)
        rows_kept = [(key_bytes(row.name), row.to_bytes()) for row in numbers]
        store.discard([key_bytes(number) for number in chosen], rows_kept)
        disk.crash(CrashMode.LOSE)
        promised = self.ledger.by_disk[place]
        for number in chosen:
            letter = self.ledger.letter(durable_rows.record_row(number, rows[number]))
            if letter is not None:
                promised.pop(letter._replace(source=place), None)
                self.network.faults["dropped by hand"] += 1

    # --- what is said -----------------------------------------------------------------------------------

    def send(self, source: Machine, step: steps.SendEnvelope) -> None:
        if self.forger is not None:
            if step.peer == self.forger.peer:
                self.forger.hears(source, step)
                return
            self.forger.listens(step.payload)
        super().send(source, step)

    def meta_told(self, listener: Machine, about: Machine) -> dict[str, Any]:
        """As ever; where one of the two is of an older version, the presence names no marks."""
        meta = super().meta_told(listener, about)
        if self.marks_unknown_to.isdisjoint((listener.name, about.name)):
            return meta
        return {**meta, "features": [one for one in meta["features"] if one != "marks"]}
