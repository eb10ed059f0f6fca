"""Federations on a broker, whose peers misbehave in what they are and what they say of it.

Several editions of the program, machines of two classes, connections that break and are taken over, wills
that come late, presences that come long after what their peers send or not at all, and crowds of strangers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bb_edge.engine import steps
from bb_edge.engine.net.unanswered import NO_CONNECTION
from bb_edge.ir.ids import PeerId
from bb_edge.roles import ContributionRefused
from bb_edge.wire import envelope
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.codecs import encode_value
from bb_edge.wire.programs import ProgramClaim
from simulated.broker import Broker, Client, Shell
from simulated.ledger import Ledger
from simulated.machine import Machine, identity
from simulated.network import MS
from simulated.plan import MixedPlan, S, talks
from simulated.programs import EDITIONS
from simulated.world import World, WorldError

LATE_NS = 6 * S
"""How long a node may hear nothing of its peers: three times as long as entries wait for a presence."""
END_NS = 1_200 * S
"""After the faults. A machine whose name was taken dials again after 45 s at most."""
OTHER_SHAPE = encode_value(np.ones(2, np.float32))[1]
"""A tensor that no program of these asks for."""
FIRST = ("server", "-0")
"""The ends of names of machines that keep their edition, so that somebody of each class talks to others."""
CROWD = "crowd"
"""An edition that nobody else has: nothing but its digest differs from the others'."""


class MixedLedger(Ledger):
    """The same, and who may talk to whom."""

    world: MixedWorld

    def __init__(self, world: MixedWorld) -> None:
        super().__init__(world)
        self.mismatched: set[tuple[PeerId, PeerId]] = set()
        """Who refused whom for a class that it had not been told of."""

    def step(self, step: steps.EngineStep, machine: Machine) -> None:
        if isinstance(step, steps.ProgramMismatch):
            self.seen["ProgramMismatch"] += 1
            assert not self._always_talk(machine, step.peer), f"{machine.name}: {step}"
        elif isinstance(step, steps.ProgramAccepted):
            self.seen["ProgramAccepted"] += 1
            pairs = [(one, two) for one in self.world.had[machine.name] for two in self._had(step.peer)]
            assert any(one != two and talks(one, two) for one, two in pairs), f"{machine.name}: {step}"
        elif isinstance(step, steps.ClassMismatch):
            self.seen["ClassMismatch"] += 1
            name = step.reason.rsplit(" ", 1)[1]
            assert (step.peer, name) not in self.world.told[machine.name], f"{machine.name}: {step}"
            self.mismatched.add((machine.peer, step.peer))
        elif isinstance(step, steps.OpFailed) and isinstance(step.error, ContributionRefused):
            self.seen["contribution refused"] += 1
            assert step.peer in self.world.spoilers, f"{machine.name}: {step}"
        elif isinstance(step, steps.AnswerRefused):
            self.seen["AnswerRefused"] += 1
            assert machine.peer in self.world.spoilers, f"{machine.name}: {step}"
        elif isinstance(step, steps.WireReceiveFailed) and step.kind == "ShapeMismatch":
            self.seen["ShapeMismatch"] += 1
            assert step.peer in self.world.spoilers, f"{machine.name}: {step}"
        elif isinstance(step, steps.WireReceiveFailed) and step.kind == "Unroutable":
            self.seen["unroutable"] += 1  # another program's, which came before its presence did
            assert not self._always_talk(machine, step.peer), f"{machine.name}: {step}"
        elif isinstance(step, steps.OutboundDropped) and step.reason == NO_CONNECTION:
            self.seen["nothing left"] += 1  # a connection that a twin took is dialled again much later
            assert not self.world.is_reached(machine), f"{machine.name}: {step}"
        elif isinstance(step, steps.RequestFailed) and "it is not known as" in step.detail:
            self.seen["RequestFailed: class"] += 1
            assert (step.peer, machine.peer) in self.mismatched, f"{machine.name}: {step}"
        elif isinstance(step, steps.RequestFailed) and "its program is" in step.detail:
            self.seen["RequestFailed: program"] += 1
            assert not self._always_talk(machine, step.peer), f"{machine.name}: {step}"
        else:
            super().step(step, machine)

    def _restarts(self, step: steps.PeerRestarts) -> None:
        if step.reason.startswith("two machines"):
            self.seen["two machines"] += 1
            assert step.peer in self.world.twinned, str(step)
        elif step.peer not in self.world.twinned:
            super()._restarts(step)

    def _always_talk(self, machine: Machine, peer: PeerId) -> bool:
        """Whether two are to talk in whatever edition they have run."""
        return all(talks(one, two) for one in self.world.had[machine.name] for two in self._had(peer))

    def _had(self, peer: PeerId) -> set[str]:
        machine = self.world.by_peer.get(peer)
        return {CROWD} if machine is None else self.world.had[machine.name]

    def _report(self, value: Any, machine: Machine) -> None:
        super()._report(value, machine)
        sender = value[1][0]
        mine = self.world.had[machine.name]
        self.seen["across editions"] += not mine & self._had(sender)
        assert any(talks(one, two) for one in mine for two in self._had(sender)), f"{machine.name}: {value}"

    def _accounted(self, what: str, heard: set[PeerId], missing: Any, peers: Any) -> None:
        super()._accounted(what, heard, missing, peers)
        server = self.world.machines[0]
        for peer in peers:
            assert any(talks(server.seat.edition, one) for one in self._had(peer)), f"{what}: {peer} is asked"

    def state(self) -> str:
        lines = [super().state()]
        for machine in self.world.machines:
            if found := self.world.unknown_to(machine):
                lines.append(f"{machine.name} does not know {', '.join(found)}")
        return "\n".join(lines)

    def done(self) -> bool:
        return super().done() and self.world.is_known_whole()

    def is_through(self, machine: Machine) -> bool:
        """Who asks others, and finds nobody that talks to it, waits for one."""
        wanted = {"Client": "Server", "Gossip": "Gossip"}.get(machine.seat.target, "")
        others = [other.seat for other in self.world.machines if other is not machine]
        asked = [seat.edition for seat in others if seat.target == wanted]
        is_alone = wanted and not any(talks(machine.seat.edition, one) for one in asked)
        return bool(is_alone) or super().is_through(machine)


class MixedWorld(World):
    """A world whose presences go over a broker."""

    plan: MixedPlan
    ledger: MixedLedger

    def __init__(self, seed: int, plan: MixedPlan) -> None:
        super().__init__(seed, plan)
        self.broker = Broker(self.network, self.rng)
        self.clients: dict[str, Client] = {}
        self.had = {machine.name: {machine.seat.edition} for machine in self.machines}
        """Which editions each machine has run."""
        self.told: dict[str, set[tuple[PeerId, str]]] = {}
        """Whom a node was told of in its life, in which class."""
        self.twinned: set[PeerId] = set()
        """Under whose name a second machine was up at some time."""
        self.spoilers: set[PeerId] = set()
        """Whose answers were not sound at some time."""

    def make_ledger(self) -> Ledger:
        return MixedLedger(self)

    # --- presences ----------------------------------------------------------------------------------------

    def came_up(self, machine: Machine) -> None:
        node, rng = machine.node, self.rng
        assert node is not None
        self.trace.update(b"%d up %s" % (self.network.now_ns, machine.name.encode()))
        known = self.told[machine.name] = set()

        def told(peer: PeerId, peer_class: str, up: bool) -> None:
            known.add((peer, peer_class))
            machine.due = 0

        def up() -> None:
            self.deliver_kept(machine)
            machine.due = 0

        client = Client(self.broker, machine.name, node, told, self.ledger.seen, up)
        if self.network.now_ns < self.plan.calm_ns and rng.random() < self.plan.late:
            self.network.faults["late presences"] += 1
            client.deaf_until_ns = self.network.now_ns + rng.randrange(2 * S, LATE_NS)
        self.clients[machine.name] = client
        self.broker.after(rng.randrange(1, 20 * MS), client.connect)

    def went_down(self, machine: Machine, epoch: int) -> None:
        client = self.clients.pop(machine.name)
        client.dies()
        client.forget()

    # --- envelopes ----------------------------------------------------------------------------------------

    def send(self, source: Machine, step: steps.SendEnvelope) -> None:
        if self.is_reached(source):
            super().send(source, self._as_sent(source, step))
        else:
            self.network.faults["not connected"] += 1

    def _as_sent(self, source: Machine, step: steps.SendEnvelope) -> steps.SendEnvelope:
        """What a machine sends: an answer of another shape while it answers so."""
        if self.network.now_ns >= source.misshapen_until_ns:
            return step
        message = envelope.decode(step.payload, EDGE_CAPS)
        if message.kind != envelope.RESPONSE or not message.fills:
            return step
        self.network.faults["misshapen"] += 1
        message.fills[0] = replace(message.fills[0], payload=OTHER_SHAPE)
        return steps.SendEnvelope(step.peer, envelope.encode(message))

    def is_reached(self, target: Machine) -> bool:
        client = self.clients.get(target.name)
        return client is not None and client.wire is not None

    def keep(self, target: Machine, source: PeerId, payload: bytes) -> None:
        if self.broker.serves(target.name, self.clients.get(target.name)):
            super().keep(target, source, payload)
        else:
            self.network.faults["taken by a twin"] += 1

    # --- presences, as they are to be in the end ----------------------------------------------------------

    def is_known_whole(self) -> bool:
        """Whether everybody knows everybody whom its artifact needs, as it is: its epoch and its classes."""
        return not any(self.unknown_to(listener) for listener in self.machines)

    def unknown_to(self, listener: Machine) -> list[str]:
        """Whom a node does not know as it is, of those that are up."""
        found: list[str] = []
        if listener.node is None:
            return found
        rows, hears = listener.node.inspect().peers, listener.node.hears
        for other in self.machines:
            node = other.node
            if node is None:
                continue
            heard = {name for name in node.classes if hears is None or name in hears}
            if other is listener or not heard:
                continue
            row = rows.get(str(other.peer))
            if row is None or not (
                row["present"] and row["epoch"] == node.epoch and heard <= {*row["classes"]}
            ):
                found.append(f"{other.name} as {sorted(heard)}")
        return found

    # --- faults -------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        super()._schedule()
        plan, rng, network = self.plan, self.rng, self.network
        for machine in self.machines:
            for when in self._times(plan.reconnects):
                network.at(when, lambda m=machine: self._reconnects(m))
            for when in self._times(plan.takeovers):
                network.at(when, lambda m=machine: self._is_taken_over(m))
        for machine in self.machines:
            if plan.kind == "federation" and machine.seat.shard is not None:
                for what in ("spoiled", "misshapen"):
                    for when in self._times(getattr(plan, what)):
                        network.at(when, lambda m=machine, what=what: self._spoils(m, what))
        network.faults["crowds"] += bool(plan.crowd)
        network.faults["two classes"] += plan.two_classes
        first = self.machines[0].seat.edition
        strange = [one for one in self.machines if not talks(one.seat.edition, first)]
        network.faults["strangers"] += len(strange)
        network.faults["other editions"] += sum(m.seat.edition != first for m in self.machines) - len(strange)
        meta = ProgramClaim(bytes(32), contracts=self.machines[0].program.identity.contracts).meta()
        for number in range(plan.crowd):
            peer, _ = identity(f"stranger-{number}")
            shell = Shell(peer, rng.getrandbits(63) | 1, (plan.crowded,), meta)
            client = Client(self.broker, f"stranger-{number}", shell)
            network.at(rng.randrange(1, 100 * MS), client.connect)

    def _spoils(self, machine: Machine, how: str) -> None:
        self.network.faults[how] += how == "spoiled"  # answers of another shape are counted one by one
        self.spoilers.add(machine.peer)
        self._misbehaves(machine, f"{how}_until_ns")

    def _reconnects(self, machine: Machine) -> None:
        client = self.clients.get(machine.name)
        if client is not None and client.wire is not None:
            self.network.faults["reconnects"] += 1
            client.lose()

    def _is_taken_over(self, machine: Machine) -> None:
        """A second machine comes up under the name, hears what is for it, and is switched off again."""
        node = machine.node
        if node is None:
            return
        shell = Shell(machine.peer, self.rng.getrandbits(63) | 1, node.classes, node.presence_meta)
        twin = Client(self.broker, machine.name, shell)
        self.network.faults["twins"] += 1
        self.twinned.add(machine.peer)
        twin.connect()

        def ends() -> None:
            twin.dies()
            twin.forget()

        self.broker.after(self.rng.randrange(100 * MS, 3 * S), ends)

    def _broker_restarts(self) -> None:
        self.network.restart_broker()
        for machine in self.machines:
            machine.kept.clear()
        self.broker.restarts(keeps=self.rng.random() < 0.5)

    def _start(self, machine: Machine) -> None:
        plan, rng = self.plan, self.rng
        again = machine.births and not machine.name.endswith(FIRST) and not plan.durable
        if again and self.network.now_ns < plan.calm_ns and rng.random() < plan.replaced:
            edition = rng.choice(EDITIONS)
            if edition != machine.seat.edition:
                self.network.faults["replaced"] += 1
            machine.runs(edition, plan.program_in(edition))
            self.had[machine.name].add(edition)
        super()._start(machine)

    def _run(self) -> None:
        self.network.at(self.plan.calm_ns + END_NS, self._is_too_late)
        super()._run()

    def _is_too_late(self) -> None:
        raise WorldError(f"no end after {END_NS // S} s")
