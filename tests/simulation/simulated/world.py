"""One federation in one world: machines with disks, a network, a schedule of faults, and who watches it.

    install or restore ──► polls ──► crash (between two polls, or at any system call of its disk) ──► restart

Faults stop at `calm_ns`; from there on everything must come to its end within `MAX_POLLS` polls.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from bb_edge import PeerId
from bb_edge.engine import steps
from bb_edge.transport.in_process import classes_heard
from bb_edge.wire import envelope
from bb_edge.wire.caps import EDGE_CAPS
from bb_shims.testing import CrashMode, Fault, FaultKind, PowerCut
from simulated.ledger import Ledger
from simulated.machine import Machine
from simulated.network import CALM, MS, Network
from simulated.plan import Plan, S, plan_of

MAX_POLLS = 30_000
"""Of all nodes, after the faults ended."""

WALL_NS = 1_700_000_000 * S
CUTS = (FaultKind.CUT_BEFORE, FaultKind.CUT_INSIDE, FaultKind.CUT_AFTER)
ERRORS = (FaultKind.FAIL, FaultKind.FULL, FaultKind.TORN, FaultKind.SHORT)


class WorldError(AssertionError):
    """Something that must never happen has happened; the message begins with the seed."""


class World:
    """A world with a seed. `run` returns once all is done, or raises WorldError."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.seed = seed
        self.plan = plan = plan or plan_of(seed)
        self.rng = random.Random(seed)
        self.network = Network(self.rng, plan.weather)
        self.polls = 0
        self.wall_ns = WALL_NS  # of simulated time 0
        self.trace = hashlib.sha256()
        self.machines = [Machine(self, seat, plan.program_of(seat)) for seat in plan.seats]
        self.by_peer = {machine.peer: machine for machine in self.machines}
        self.ledger = self.make_ledger()

    def make_ledger(self) -> Ledger:
        return Ledger(self)

    # --- what happens -----------------------------------------------------------------------------------

    def send(self, source: Machine, step: steps.SendEnvelope) -> None:
        target = self.by_peer[step.peer]
        if source.is_mute and envelope.decode(step.body + step.payload, EDGE_CAPS).kind == envelope.RESPONSE:
            self.network.faults["mute"] += 1
            return
        self.trace.update(
            b"%d %s>%s " % (self.network.now_ns, source.name.encode(), target.name.encode()) + step.payload
        )

        def deliver() -> bool:
            node = target.node
            if node is None or not self.is_reached(target):
                self.keep(target, source.peer, step.payload)
                return False
            node.deliver_inbound(step.payload, source.peer)
            target.due = 0
            return True

        self.network.send(source.name, target.name, deliver)

    def is_reached(self, target: Machine) -> bool:
        """Whether what the broker has for a node that is up reaches it now."""
        return True

    def came_up(self, machine: Machine) -> None:
        node = machine.node
        assert node is not None
        self.trace.update(b"%d up %s" % (self.network.now_ns, machine.name.encode()))
        node.presences_come()
        for other in self.machines:
            if other is not machine and other.node is not None:
                self._tell(other, machine)
                self._tell(machine, other)
        self.deliver_kept(machine)

    def keep(self, target: Machine, source: PeerId, payload: bytes) -> None:
        """The broker keeps an envelope for the session of a node that it does not reach."""
        target.kept.append((source, payload))

    def deliver_kept(self, machine: Machine) -> None:
        """A node is there again: what the broker kept for it, and has not forgotten."""
        node, rng = machine.node, self.rng
        assert node is not None
        kept, machine.kept = machine.kept, []
        for peer, payload in kept:
            if rng.random() >= self.network.weather.forget:
                node.deliver_inbound(payload, peer)
                self.network.delivered += 1

    def _tell(self, listener: Machine, about: Machine) -> None:
        node = about.node
        assert node is not None

        def tell() -> None:
            heard = () if listener.node is None else classes_heard(listener.node, node)
            if listener.node is not None and about.node is node and heard:
                meta = self.meta_told(listener, about)
                listener.node.peer_presence(
                    about.peer, True, (about.address,), meta, epoch=node.epoch, classes=heard, session=1
                )
                listener.due = 0

        self.network.at(self.network.now_ns + self.rng.randrange(1, 5 * MS), tell)

    def meta_told(self, listener: Machine, about: Machine) -> dict[str, Any]:
        """What one machine is told that the presence of another, which is up, says."""
        assert about.node is not None
        return about.node.presence_meta

    def crashed(self, machine: Machine, why: str) -> None:
        """The power of a machine is gone; it comes back later."""
        node, rng = machine.node, self.rng
        if node is None:
            return
        epoch = node.epoch
        self.network.faults[f"crash {why}"] += 1
        self.trace.update(b"%d down %s" % (self.network.now_ns, machine.name.encode()))
        machine.node = machine.keeper = None
        machine.disk.disarm()
        machine.disk.crash(
            rng.choice(list(CrashMode)[1:] if rng.random() < 0.5 else [CrashMode.LOSE]), rng.getrandbits(32)
        )
        self.went_down(machine, epoch)
        self.network.at(self.network.now_ns + rng.randrange(1, 700 * MS), lambda: self._start(machine))

    def went_down(self, machine: Machine, epoch: int) -> None:
        """The others learn of it, each at a time of its own."""
        for other in self.machines:
            if other is not machine:

                def tell(other: Machine = other) -> None:
                    if other.node is not None:
                        other.node.peer_presence(machine.peer, False, epoch=epoch, session=1)
                        other.due = 0

                self.network.at(self.network.now_ns + self.rng.randrange(1, 300 * MS), tell)

    def _start(self, machine: Machine) -> None:
        network, rng = self.network, self.rng
        faults = self.plan.durable and self.plan.crashes and network.now_ns < self.plan.calm_ns
        if faults and rng.random() < 0.2:
            machine.disk.inject(Fault(rng.choice(CUTS), rng.randrange(1, 12)))
        try:
            machine.start()
        except PowerCut:
            network.faults["crash at a start"] += 1
            machine.disk.disarm()
            machine.disk.crash(rng.choice(list(CrashMode)), rng.getrandbits(32))
            network.at(network.now_ns + 100 * MS, lambda: self._start(machine))

    # --- the schedule of faults -------------------------------------------------------------------------

    def _times(self, per_world: float) -> list[int]:
        count = int(self.rng.expovariate(1 / per_world)) if per_world else 0
        return [self.rng.randrange(self.plan.calm_ns) for _ in range(min(count, 20))]

    def _schedule(self) -> None:
        plan, rng, network = self.plan, self.rng, self.network
        for machine in self.machines:
            for when in self._times(plan.crashes):
                if plan.durable and rng.random() < 0.5:
                    network.at(when, lambda m=machine: self._arm(m, CUTS, rng.randrange(1, 40)))
                else:
                    network.at(when, lambda m=machine: self.crashed(m, "between polls"))
            for when in self._times(plan.disk_errors if plan.durable else 0.0):
                network.at(when, lambda m=machine: self._arm(m, ERRORS, rng.randrange(1, 20)))
        for machine in self.machines:
            for when in self._times(plan.mute):
                network.at(when, lambda m=machine: self._misbehaves(m, "mute_until_ns"))
            for when in self._times(plan.broken if machine.seat.shard is not None else 0.0):
                network.at(when, lambda m=machine: self._misbehaves(m, "broken_until_ns"))
        names = [machine.name for machine in self.machines]
        for when in self._times(plan.partitions):
            a, b = rng.sample(names, 2)
            network.at(when, lambda a=a, b=b: network.cut(a, b, rng.randrange(1, 2 * S)))
        for when in self._times(plan.broker_restarts):
            network.at(when, self._broker_restarts)
        network.at(plan.calm_ns, self._calm)

    def _arm(self, machine: Machine, kinds: Sequence[FaultKind], at: int) -> None:
        if machine.node is not None:
            kind = self.rng.choice(list(kinds))
            machine.disk.inject(Fault(kind, at))
            self.network.faults[kind.name] += 1

    def _misbehaves(self, machine: Machine, how: str) -> None:
        until = self.network.now_ns + self.rng.randrange(1, 3 * S)
        setattr(machine, how, min(until, self.plan.calm_ns))

    def _broker_restarts(self) -> None:
        self.network.restart_broker()
        for machine in self.machines:
            machine.kept.clear()
            for other in self.machines:
                if other is not machine and other.node is not None and machine.node is not None:
                    self._tell(machine, other)

    def _calm(self) -> None:
        self.network.weather = CALM
        for machine in self.machines:
            machine.disk.disarm()

    # --- running ----------------------------------------------------------------------------------------

    def run(self) -> World:
        """Everything, to the end. WorldError says what was violated, and the seed."""
        for machine in self.machines:
            self.network.at(self.rng.randrange(1, 200 * MS), lambda m=machine: self._start(m))
        self._schedule()
        try:
            self._run()
            self.ledger.check_end()
        except Exception as error:
            raise WorldError(
                f"seed {self.seed}: {type(error).__name__}: {error}\n{self.ledger.state()}"
            ) from error
        return self

    def _run(self) -> None:
        calm_ns, limit = self.plan.calm_ns, MAX_POLLS

        def over() -> bool:
            nonlocal limit
            if self.network.now_ns < calm_ns:
                limit = self.polls + MAX_POLLS
                return False
            if self.polls > limit:
                raise WorldError(f"no end after {MAX_POLLS} polls")
            return self.ledger.done()

        self._advance(over)

    def _advance(self, over: Callable[[], bool]) -> None:
        """Time goes on until `over()`, which is asked when nothing more is due at its moment."""
        network, machines = self.network, self.machines
        while True:
            network.run_due()
            now = network.now_ns
            busy, left = True, MAX_POLLS
            while busy:
                busy = False
                for machine in machines:
                    if machine.node is not None and machine.due is not None and machine.due <= now:
                        busy = True
                        machine.poll()
                left -= 1
                if not left:
                    raise WorldError(f"{MAX_POLLS} polls at one moment")
            if over():
                return
            times = [
                machine.due for machine in machines if machine.node is not None and machine.due is not None
            ]
            if network.next_ns is not None:
                times.append(network.next_ns)
            if not times:
                raise WorldError("nothing is due, and not all is done")
            network.now_ns = max(now, min(times))

    @property
    def trace_hash(self) -> str:
        """A digest over all that was sent and all crashes."""
        return self.trace.hexdigest()

    @property
    def faults(self) -> Counter[str]:
        return self.network.faults
