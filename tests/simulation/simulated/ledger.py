"""Who watches: what was promised to be sent once, what was counted, and whether both agree."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.engine import steps
from bb_edge.engine.net.never_left import LATE, UNSAVED, UNTOLD, UNWRITTEN, WAITED
from bb_edge.ir.ids import PeerId
from bb_edge.state.keeper import Restored
from bb_edge.wire import durable_rows, envelope
from bb_edge.wire.caps import EDGE_CAPS
from simulated.flaky import WHY
from simulated.programs import contribution

if TYPE_CHECKING:
    from simulated.machine import Machine
    from simulated.world import World

NOT_SENT = (LATE, WAITED, UNWRITTEN, UNTOLD, UNSAVED)
ALLOWED = (
    steps.StorageFailed,
    steps.SendEnvelope,
    steps.AppEvent,
    steps.RequestClosed,
    steps.RoundsCompleted,
    steps.RoundBackedOff,
    steps.RoundWaits,
    steps.SentToNobody,
    steps.PeerUp,
    steps.PeerDown,
    steps.PeerResolveFailed,
    steps.PersistOutbox,
    steps.Journal,
    steps.SnapshotWanted,
    steps.ExecutionEnded,
    steps.LifecycleFired,
)
"""What may come out of a poll. Anything else is a fault: an op failed, something was dropped or starved."""

CAPS = EDGE_CAPS


def _is_injected(step: steps.EngineStep) -> bool:
    """Whether a fault that the world has injected says itself: an op that it broke, and what follows."""
    if isinstance(step, steps.OpFailed):
        return WHY in str(step.error)
    if isinstance(step, steps.RequestFailed):
        return WHY in step.detail
    return isinstance(step, steps.PeerFailing)


Report = tuple[PeerId, PeerId, int]
"""Who told whom which number."""


class Ledger:
    """Everything that counts about one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: Counter[str] = Counter()
        self.promised: dict[tuple[str, PeerId, bytes], set[int]] = {}
        self.heard: Counter[Report] = Counter()
        self.told: dict[int, tuple[Any, ...]] = {}
        self.shards = {m.peer: m.seat.shard for m in world.machines if m.seat.shard is not None}
        self._lives: Counter[tuple[int, Report]] = Counter()

    def failed(self, step: steps.EngineStep) -> None:
        """What a keeper says."""
        self.seen[type(step).__name__] += 1

    def step(self, step: steps.EngineStep, machine: Machine) -> None:
        """One step that a node handed out, after it was written down."""
        self.seen[type(step).__name__] += 1
        if isinstance(step, steps.PeerRestarts):
            self._restarts(step)
        elif isinstance(step, steps.OutboundDropped) and step.reason in NOT_SENT:
            # A durable request to a peer that is up, and that does not say in time what it has taken.
            self.seen["not sent"] += 1
            assert self.world.plan.durable, f"{machine.name}: {step}"
        elif not _is_injected(step):
            assert isinstance(step, ALLOWED), f"{machine.name}: {step}"
        if isinstance(step, steps.PersistOutbox):
            if step.token in machine.written:
                self.promise(step.record, machine)
        elif isinstance(step, steps.AppEvent):
            value: Any = step.value
            if step.topic == "report":
                self._report(value.values, machine)
            elif step.topic == "round":
                self._round(*value.values)
            else:
                self._asked(*value.values)

    def _restarts(self, step: steps.PeerRestarts) -> None:
        """A peer is said to start often, which it does; nobody has a twin here."""
        assert not step.reason.startswith("two machines"), str(step)
        assert self.world.by_peer[step.peer].births > step.times, str(step)

    def restored(self, found: Restored) -> None:
        assert not found.losses, "crashes and faults that a disk reports lose nothing"
        self.seen["restored"] += bool(found.generation)
        self.seen["replayed"] += found.journal
        self.seen["adopted"] += found.outbox

    def promise(self, data: bytes, machine: Machine) -> None:
        """A report that is in an outbox on disk: it must be counted once, as one record."""
        for number, record in durable_rows.read([data], {}).records.items():
            message = envelope.decode(record.encoded, CAPS)
            if message.kind == envelope.NONE and message.fills:
                content = bytes(message.fills[0].payload)
                self.promised.setdefault((machine.name, record.key.peer, content), set()).add(number)

    def _report(self, value: Any, machine: Machine) -> None:
        number, sender = value
        report = (sender[0], machine.peer, int(number))
        self.heard[report] += 1
        if not self.world.plan.durable:
            # Who comes up anew starts at 1 again and knows nobody's numbers; no process counts one twice.
            life = (machine.births, report)
            self._lives[life] += 1
            assert self._lives[life] <= self.world.by_peer[sender[0]].births, f"{report} was counted twice"

    def _accounted(self, what: str, heard: set[PeerId], missing: Any, peers: Any) -> None:
        assert not heard & set(missing), (
            f"{what}: {heard & set(missing)} are said to be missing and are counted"
        )
        assert heard | set(missing) == set(peers), f"{what}: asked {peers}, heard {heard}, missing {missing}"

    def _round(self, number: Any, mean: Any, total: Any, missing: Any, peers: Any) -> None:
        """A round's mean is that of an oracle over the same clients, bit for bit."""
        n = int(number)
        what = f"round {n}"
        count = int(total)
        who = round(float(mean.reshape(-1)[0]) * count / n) if mean.size else 0
        heard = {peer for peer, shard in self.shards.items() if who >> shard & 1}
        assert len(heard) == count, f"{what}: {count} counted, {who:b} are in the sum: somebody counts twice"
        self._accounted(what, heard, missing, peers)
        if count:
            parts = [contribution(self.shards[peer]) * np.float32(n) for peer in heard]
            oracle = (np.sum(parts, axis=0, dtype=np.float64) / count).astype(np.float32)
            assert oracle.tobytes() == mean.tobytes(), f"{what}: {mean}, the oracle says {oracle}"
        self.told_once(n, (who, count, tuple(missing)), bool(heard))

    def _asked(self, number: Any, responses: Any, missing: Any, peers: Any) -> None:
        """What a relay answers is the sum over some leaves, each once."""
        n = int(number)
        rows = responses.reshape(-1, 3) if responses.size else np.empty((0, 3), np.float32)
        assert len(rows) + len(missing) == len(peers), f"round {n}: {rows}, {missing} of {peers}"
        for row in rows:
            who = round(float(row[0]) / n)
            assert 0 <= who < 1 << len(self.shards), f"round {n}: {row}"
            parts = [contribution(s)[0] * np.float32(n) for s in self.shards.values() if who >> s & 1]
            oracle = np.sum(parts, axis=0) if parts else np.zeros(3, np.float32)
            assert np.allclose(oracle, row, rtol=1e-6), f"round {n}: {row}, the oracle says {oracle}"
        self.told_once(n, (rows.tobytes(), tuple(missing)), len(rows) > 0)

    def told_once(self, n: int, value: tuple[Any, ...], heard: bool) -> None:
        """A durable round is what it was, however often it is told, and whoever is missing in it.

        One that heard nobody is not counted: it comes again under its number.
        """
        if not heard:
            self.seen["heard nobody"] += 1
            assert n not in self.told or not self.world.plan.durable, f"round {n} comes again"
            return
        before = self.told.setdefault(n, value)
        self.seen["told again"] += before is not value
        if self.world.plan.durable:
            assert before == value, f"round {n} was {before}, and is {value}"
        self.told[n] = value

    # --- the end ----------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether all rounds, reports and acknowledgements are over."""
        for machine in self.world.machines:
            node = machine.node
            if node is None or not self.is_through(machine) or node.pending_sends:
                return False
            counters = node.counters
            if counters["requests.open"] or counters["executions.active"]:
                return False
        return not self.world.plan.durable or self._counted() >= len(self.promised)

    def is_through(self, machine: Machine) -> bool:
        """Whether a machine's rounds are over."""
        return machine.node is not None and not machine.node.open_rounds

    def _counted(self) -> int:
        nodes = [machine.node for machine in self.world.machines]
        return sum(node.counters.get("reports", 0) for node in nodes if node is not None)

    def check_end(self) -> None:
        """What holds once all is done."""
        plan = self.world.plan
        if plan.durable:
            several = {what: keys for what, keys in self.promised.items() if len(keys) > 1}
            assert not several, f"reports under several numbers: {several}"
            counted = self._counted()
            assert counted == len(self.promised), f"{len(self.promised)} promised, {counted} counted"
            assert len(self.heard) == counted, f"{counted} counted, {len(self.heard)} heard"
        for machine in self.world.machines:
            assert machine.node is not None
            counters = machine.node.counters
            assert counters["ingress.bytes"] == 0, f"{machine.name} holds {counters['ingress.bytes']} bytes"
            assert counters["pending_async.count"] == 0, machine.name
        if plan.kind != "gossip":
            assert sorted(self.told) == list(range(1, plan.rounds + 1)), sorted(self.told)

    def state(self) -> str:
        """For messages: what every node says."""
        world = self.world
        sums = f"{len(self.promised)} promised, {self._counted()} counted, faults {dict(world.faults)}"
        lines = [f"{world.plan}", f"rounds {sorted(self.told)}, {sums}"]
        for machine in world.machines:
            node = machine.node
            lines.append(
                f"{machine.name}: "
                + (
                    "down"
                    if node is None
                    else f"open {node.open_rounds} pending {node.pending_sends} {dict(node.counters)}"
                )
            )
        return "\n".join(lines)
