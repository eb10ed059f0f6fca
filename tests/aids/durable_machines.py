"""Nodes and what outlives them: disks that stop a machine at any write, the shortest keeper, a network.

Nothing is lost on the way, so what goes missing was lost by a node.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from peers import HERE
from times import MS

from bb_edge import NodeConfig, PeerId, install
from bb_edge.adoption import Former
from bb_edge.engine import steps
from bb_edge.engine.steps import Journal, PersistOutbox, SendEnvelope, SnapshotWanted
from bb_edge.wire.outbox import body_record


class Crash(Exception):
    """The machine stops here."""


class Disk:
    """What outlives a machine. `crash_at` counts writes: that one is made, or not, and nothing after it."""

    def __init__(self) -> None:
        self.snapshot: bytes | None = None
        self.journal: list[bytes] = []
        self.outbox: dict[Any, bytes] = {}
        self.enclosed: dict[Any, bytes] = {}  # rows of the outbox that came with the snapshot
        self.writes = 0
        self.crash_at: tuple[int, bool] | None = None
        self.full = False

    def write(self, make) -> None:
        self.writes += 1
        at, made = self.crash_at or (0, False)
        if self.writes != at or made:
            make()
        if self.writes == at:
            self.crash_at = None
            raise Crash


class Machine:
    """A node and its disk, the keeper between them in its shortest form."""

    def __init__(self, data: bytes, target: str, name: str, **config: int) -> None:
        self.args = (PeerId.from_name(name), (HERE,), data, [target])
        self.config = NodeConfig.edge().with_(**config)
        self.disk = Disk()
        self.starts = 0
        self.events: list[tuple[str, Any]] = []
        self.said: list[steps.EngineStep] = []
        self.enclosing: dict[Any, bytes] = {}
        self.start(0)

    def start(self, now_ns: int) -> None:
        self.starts += 1
        disk = self.disk
        more: dict[str, Any] = {"config": self.config, "seed": 100 + self.starts, "durable": True}
        self.node = install(*self.args, **more, snapshot=disk.snapshot, now_ns=now_ns)
        self.enclosing = {}
        self.node.adopt_outbox([*disk.enclosed.values(), *disk.outbox.values()], now_ns, now_ns)
        self.node.replay(disk.journal)

    def recompiled(self, data: bytes, now_ns: int) -> Former:
        """The machine gets another program, which adopts what the disk has; its disk is a new one."""
        self.args = (*self.args[:2], data, self.args[3])
        self.old, self.disk = self.disk, Disk()
        return self.adopt(now_ns)

    def adopt(self, now_ns: int) -> Former:
        """Starts without a snapshot of its own, upon the disk of the program before."""
        self.starts += 1
        old, disk = self.old, self.disk
        assert old.snapshot is not None and disk.snapshot is None
        former = Former.of(old.snapshot, [*old.enclosed.values(), *old.outbox.values()], now_ns)
        more: dict[str, Any] = {"config": self.config, "seed": 100 + self.starts, "durable": True}
        self.node = install(*self.args, **more, adopt=former, now_ns=now_ns)
        for name, row in former.outbox:
            disk.outbox.setdefault(name, row)
        self.node.adopt_outbox(list(disk.outbox.values()), now_ns, now_ns)
        self.node.replay(disk.journal)
        return former

    def poll(self, now_ns: int) -> list[steps.EngineStep]:
        found = self.node.poll(now_ns)
        self.said += found
        for step in found:
            if isinstance(step, steps.AppEvent):
                self.events.append((step.topic, np.asarray(step.value).tolist()))
        self.keep(found, now_ns)
        return found

    def keep(self, found: Iterable[steps.EngineStep], now_ns: int) -> None:
        node, disk = self.node, self.disk
        for step in found:
            if isinstance(step, PersistOutbox | Journal) and disk.full:
                node.persist_failed(step.token, OSError("full"))
            elif isinstance(step, PersistOutbox):
                name, row = step.name, step.record
                if step.with_snapshot:
                    if step.body:
                        self.enclosing[step.body_name] = body_record(step.body)
                    self.enclosing[name] = row
                    node.persisted(step.token)
                    continue
                if step.body:
                    disk.outbox[step.body_name] = body_record(step.body)
                disk.write(lambda name=name, row=row: disk.outbox.update({name: row}))
                node.persisted(step.token)
            elif isinstance(step, Journal):
                disk.write(lambda record=step.record: disk.journal.append(record))
                node.persisted(step.token)
        if any(isinstance(step, SnapshotWanted) for step in found) and not disk.full:
            self.take_snapshot(now_ns)

    def take_snapshot(self, now_ns: int) -> None:
        disk, data = self.disk, self.node.snapshot(now_ns)
        rows = {**disk.enclosed, **self.enclosing}
        enclosed = {name: row for name, row in rows.items() if self.node.needs_row(name)}

        def replace() -> None:
            disk.snapshot, disk.enclosed = data, enclosed
            disk.journal.clear()

        disk.write(replace)
        self.enclosing = {}
        for key in self.node.snapshot_written():
            disk.outbox.pop(key, None)


class Net:
    """Machines and a network without loss; what is sent to one that is down is lost."""

    def __init__(
        self, data: bytes, machines: dict[str, str], knows_marks: bool = True, **config: int
    ) -> None:
        """Presences are those that nodes say; without marks, those of nodes of an older version."""
        self.knows_marks = knows_marks
        self.machines = {n: Machine(data, target, n, **config) for n, target in machines.items()}
        self.by_peer = {m.node.peer_id: m for m in self.machines.values()}
        self.down: dict[str, int] = {}
        self.sent: list[tuple[PeerId, SendEnvelope]] = []
        self.now_ns = 0
        for a in self.machines.values():
            self.greet(a)

    def greet(self, a: Machine) -> None:
        for b in self.machines.values():
            if a is not b:
                for here, other in ((a.node, b.node), (b.node, a.node)):
                    here.peer_presence(
                        other.peer_id,
                        True,
                        (HERE,),
                        other.presence_meta if self.knows_marks else {},
                        epoch=other.epoch,
                        classes=other.classes,
                    )

    def run(self, until_ns: int, deliver: bool = True) -> None:
        while self.now_ns < until_ns:
            self.now_ns += MS
            for name, machine in self.machines.items():
                if self.down.get(name, 0) > self.now_ns:
                    continue
                if self.down.pop(name, 0):
                    machine.start(self.now_ns)
                    self.greet(machine)
                due = machine.node.next_deadline_ns()
                if due is None or due > self.now_ns:
                    continue
                try:
                    found = machine.poll(self.now_ns)
                except Crash:
                    self.down[name] = self.now_ns + 20 * MS
                    continue
                for step in found:
                    if isinstance(step, SendEnvelope):
                        self.sent.append((machine.node.peer_id, step))
                        to = self.by_peer[step.peer]
                        alive = next(n for n, m in self.machines.items() if m is to) not in self.down
                        if deliver and alive:
                            to.node.deliver_inbound(step.payload, machine.node.peer_id)
