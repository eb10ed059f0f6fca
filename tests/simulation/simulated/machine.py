"""One machine: a node with its disk, its keeper, and what is wrong with it."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from bb_edge import Node, NodeConfig, PeerId, install
from bb_edge.engine import steps
from bb_edge.engine.program.program import Program
from bb_edge.engine.snapshot import Identity, SnapshotDamagedError
from bb_edge.ir.address import Address
from bb_edge.state import Owner, StateError, StateStore
from bb_edge.state.keeper import Keeper, restore
from bb_edge.state.limits import OLD_GENERATIONS
from bb_edge.transport.driver import next_due_ns
from bb_shims import AtomicStorage, StorageError
from bb_shims.testing import FakeDisk, PowerCut
from simulated.network import MS
from simulated.plan import Seat
from simulated.programs import shard_path

if TYPE_CHECKING:
    from simulated.world import World

CONFIG = NodeConfig.edge().with_(ingress_bytes=1 << 20)


class Machine:
    """One node with its disk; `node` is None while it is down."""

    def __init__(self, world: World, seat: Seat, program: Program) -> None:
        self.world = world
        self.seat = seat
        self.name = seat.name
        self.program = program
        self.peer, self.address = identity(seat.name)
        self.disk = FakeDisk()
        self.node: Node | None = None
        self.keeper: Keeper | None = None
        self.store: StateStore | None = None
        self.slow: Slow | None = None
        """What writes beside the polls, in every other life."""
        self.config = CONFIG
        self.snapshot_ns = 500 * MS
        """Between two snapshots that nobody asked for."""
        self.due: int | None = 0
        """When its node must be polled, as far as it is known."""
        self.births = 0
        self.written: set[int] = set()
        """Tokens of the last poll's records that are on the disk."""
        self.kept: list[tuple[PeerId, bytes]] = []  # by the broker, for when it is back
        self.mute_until_ns = 0
        """Until when nothing that it answers leaves it."""
        self.broken_until_ns = 0
        """Until when what it is asked fails there."""
        self.spoiled_until_ns = 0
        """Until when its data hold no numbers."""
        self.misshapen_until_ns = 0
        """Until when its answers have another shape."""

    def runs(self, edition: str, program: Program) -> None:
        """From its next start on, another edition of the program."""
        self.seat, self.program = replace(self.seat, edition=edition), program

    @property
    def is_mute(self) -> bool:
        """Whether nothing that it answers leaves it now."""
        return self.world.network.now_ns < self.mute_until_ns

    def start(self) -> None:
        """Comes up from what its disk holds."""
        world = self.world
        self.births += 1
        incarnation = world.rng.getrandbits(64)
        now = world.network.now_ns
        components = {} if self.seat.shard is None else {"shard": {"path": shard_path(self.seat.shard)}}

        def make(snapshot: bytes | None) -> Node:
            return install(
                self.peer,
                (self.address,),
                self.program,
                self.seat.targets,
                self.config,
                components=components,
                seed=hash_of(self.name),
                incarnation=incarnation,
                clock_offset_ns=world.wall_ns,
                durable=world.plan.durable,
                snapshot=snapshot,
                now_ns=now,
            )

        if world.plan.durable:
            identity = Identity.of(self.peer, self.program, [self.seat.target])
            owner = Owner(identity.peer, identity.program)
            storage, old = AtomicStorage(self.disk.open()), (0, 3, OLD_GENERATIONS)[self.births % 3]
            store = self.store = StateStore(storage, (StorageError,), None, owner, old)
            watched, restored = restore(
                store,
                lambda snapshot: Watched(make(snapshot), self),
                SnapshotDamagedError,
                now,
                now + world.wall_ns,
            )
            self.node = watched.node
            self.slow = Slow(world, hash_of(f"{self.name} {self.births}")) if self.births % 2 else None
            self.keeper = Keeper(
                watched, store, interval_ns=self.snapshot_ns, report=world.ledger.failed, writer=self.slow
            )
            world.ledger.restored(restored)
        else:
            self.node, self.keeper = make(None), None
        if self.seat.shard is not None:
            shard = self.node.component("shard")
            shard.broken = lambda: world.network.now_ns < self.broken_until_ns
            shard.spoiled = lambda: world.network.now_ns < self.spoiled_until_ns
        self.due = 0
        world.came_up(self)

    def poll(self) -> None:
        """One poll, what it asks to be written, and what it sends; the power may go in between."""
        node, world = self.node, self.world
        assert node is not None
        now = world.network.now_ns
        if self.keeper is not None:
            try:
                self.keeper.settle(False)
            except PowerCut:
                world.crashed(self, "at a write")
                return
        found = node.poll(now)
        world.polls += 1
        for step in found:
            # The host hears of an event before a snapshot may say that it did.
            if not isinstance(step, (steps.SendEnvelope, steps.PersistOutbox)):
                world.ledger.step(step, self)
        if self.keeper is not None:
            self.written.clear()
            try:
                self.keeper.take(found, now)
            except PowerCut:
                world.crashed(self, "at a write")
                return
        for step in found:
            if isinstance(step, steps.SendEnvelope):
                world.send(self, step)
            elif isinstance(step, steps.PersistOutbox):
                world.ledger.step(step, self)
        self.due = next_due_ns(node, self.keeper)
        if self.keeper is not None and self.keeper.has_chore and (self.due is None or self.due > now):
            try:
                self.keeper.tidy()
            except PowerCut:
                world.crashed(self, "at a write")
                return
        if self.slow is not None and self.slow.busy:
            self.due = self.slow.until_ns if self.due is None else min(self.due, self.slow.until_ns)


class Slow:
    """A writer that takes up to 20 ms; what it writes is on the disk from the beginning, or at the end.

    Every other one is there for large writes alone: then old files are removed in a pause.
    """

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._rng = random.Random(seed)
        self.least_bytes = 1 << 16 if seed & 1 else 0
        self.until_ns = 0
        self._work: Callable[[], None] | None = None
        self._error: StateError | None = None
        self.busy = False

    @property
    def done(self) -> bool:
        return self.busy and self._world.network.now_ns >= self.until_ns

    def begin(self, work: Callable[[], None]) -> None:
        self.busy, self._work = True, work
        self.until_ns = self._world.network.now_ns + self._rng.randrange(20 * MS)
        if self._rng.getrandbits(1):
            self._do()

    def _do(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            try:
                work()
            except StateError as error:
                self._error = error

    def finish(self) -> StateError | None:
        self._do()
        error, self._error, self.busy = self._error, None, False
        return error

    def close(self) -> None:
        self._do()


class Watched:
    """A node's doors for its keeper; the machine remembers which records are on its disk."""

    def __init__(self, node: Node, machine: Machine) -> None:
        self.node = node
        self._machine = machine
        self.replay = node.replay
        self.snapshot_pieces = node.snapshot_pieces
        self.snapshot_written = node.snapshot_written
        self.persist_failed = node.persist_failed
        self.needs_row = node.needs_row

    @property
    def counters(self) -> Mapping[str, int]:
        return self.node.counters

    def persisted(self, token: int) -> None:
        self._machine.written.add(token)
        self.node.persisted(token)

    def adopt_outbox(self, records: Iterable[bytes], now_ns: int, wall_ns: int) -> None:
        found = list(records)
        for record in found:
            self._machine.world.ledger.promise(record, self._machine)
        self.node.adopt_outbox(found, now_ns, wall_ns)


@functools.cache
def identity(name: str) -> tuple[PeerId, bytes]:
    """A name's peer id and address."""
    peer = PeerId.from_name(name)
    return peer, Address.empty().with_peer(peer).to_bytes()


@functools.cache
def hash_of(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
