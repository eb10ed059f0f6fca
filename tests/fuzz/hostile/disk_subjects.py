"""What reads a node's own files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from bb_edge import install, load
from bb_edge.engine import snapshot
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.net.journal import JournalRecord
from bb_edge.ir.errors import BBError
from bb_edge.state import StateError, StateStore, record_framing
from bb_edge.wire import cbor, durable_rows
from bb_edge.wire.cbor import Buffer
from bb_edge.wire.marks import Heard
from bb_edge.wire.outbox import Cause, EnvelopeKey, OutboxRecord

from . import mutations, programs
from .campaign import Subject
from .wire_subjects import Hostile, full_envelope

KIB, MIB = 1 << 10, 1 << 20
SMALL = 64 * KIB
PEER = programs.peer("somebody")


def _snapshots(target: str) -> list[bytes]:
    """Snapshots of a node in the middle of what it does."""
    found = []
    hostile = Hostile(target, True)
    seeds = [d for _, _, d in programs.traffic()]
    for number, data in enumerate(seeds):
        hostile.left = 1000 * 16 + number
        try:
            hostile.read(data)
        except BBError:
            continue
        if number % 10 == 0:
            hostile.poll()
            found.append(hostile.node.snapshot(hostile.now_ns))
    return found


def snapshots(target: str) -> Callable[[], Subject]:
    """Damaged snapshots are refused by their checksum; those that somebody sealed again, by their parts."""

    def make() -> Subject:
        program = load(programs.artifacts(True)[target])
        peer = programs.peer("victim")
        config = NodeConfig(max_executions=4, max_peers=64, ingress_entries=64, ingress_bytes=1 << 20)
        head = len(snapshot.MAGIC) + 2 + 8 + 32

        def read(data: bytes) -> object:
            return install(
                peer, (), program, [target], config, seed=7, durable=True, snapshot=data, now_ns=10**9
            )

        def sealed(data: bytes, seeds: Sequence[bytes], rng: Random) -> bytes:
            try:
                body = mutations.items(data[head:], seeds, rng)
            except BBError:
                body = mutations.blind(data[head:], seeds, rng)
            size = len(body).to_bytes(8, "big")
            return data[:10] + size + hashlib.sha256(body).digest() + body

        change = (sealed, sealed, sealed, mutations.blind)
        return Subject(
            f"snapshots of {target}", _snapshots(target), change, read, lambda n: 256 * n + 16 * MIB
        )

    return make


def records() -> Subject:
    """Records of the outbox and of the journal."""
    full = full_envelope()
    outbox = OutboxRecord(EnvelopeKey(PEER, 3, 4), full, 7, Cause(PEER, 1, 2), 10**18)
    seeds = [
        outbox.to_bytes(),
        JournalRecord(PEER, full, 10**18, b"\xa5\x03").to_bytes(),
        durable_rows.record_row(7, outbox),
        durable_rows.Numbers(PEER, 3, 1, (7, 8), Heard(2, 9, 0b101)).to_bytes(),
    ]

    def read(data: bytes) -> object:
        try:
            journaled = JournalRecord.from_bytes(data)
            assert JournalRecord.from_bytes(journaled.to_bytes()) == journaled
        except BBError:
            pass
        durable_rows.read([data], {})
        found = OutboxRecord.from_bytes(data)
        assert OutboxRecord.from_bytes(found.to_bytes()) == found
        return found

    return Subject(
        "outbox and journal records",
        seeds,
        (mutations.blind, mutations.items),
        read,
        lambda n: 64 * n + SMALL,
    )


class _Memory:
    """A folder in memory."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def write_atomic(self, name: str, data: bytes | Sequence[Buffer]) -> None:
        self.files[name] = bytes(data) if isinstance(data, bytes) else b"".join(data)

    def read(self, name: str) -> bytes:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def size(self, name: str) -> int:
        return len(self.read(name))

    def append(self, name: str, data: bytes | Sequence[Buffer], sync: bool) -> None:
        self.files[name] = self.files.get(name, b"") + (data if isinstance(data, bytes) else b"".join(data))

    def list(self) -> list[str]:
        return sorted(self.files)

    def remove(self, name: str, sync: bool = True) -> None:
        self.files.pop(name, None)


def folders() -> Subject:
    """State folders, packed as [[name, bytes], …]; damaged ones are refused, or opened and written to."""
    disk = _Memory({})
    store = StateStore(disk, (OSError,))
    store.open()
    record = JournalRecord(PEER, full_envelope(), 10**18).to_bytes()
    packed = []
    for number in range(3):
        store.append_journal([record, record])
        keys = [b"key%d" % (10 * number + n) for n in range(3)]
        store.append_outbox([(key, record) for key in keys])
        packed.append(cbor.dumps([[name, data] for name, data in sorted(disk.files.items())]))
        store.write_snapshot(b"the snapshot's bytes %d" % number)
        store.drop(keys[:2])
        packed.append(cbor.dumps([[name, data] for name, data in sorted(disk.files.items())]))

    def read(data: bytes) -> object:
        try:
            rows = cbor.loads(data, max_items=1000)
            files = {name: found for name, found in rows if type(name) is str and type(found) is bytes}
        except (BBError, ValueError, TypeError):
            raise StateError("no folder at all") from None
        again = StateStore(_Memory(files), (OSError,))
        found = again.open()
        again.append_journal([record])
        again.append_outbox([(b"new", record)])
        again.write_snapshot(b"another one")
        last = StateStore(_Memory(files), (OSError,)).open()
        assert last.snapshot == b"another one" and record in last.outbox
        return found

    def resealed(data: bytes, seeds: Sequence[bytes], rng: Random) -> bytes:
        """A file whose frames are sound and say something else."""
        rows: Any = cbor.loads(data, max_items=1000)
        at = int(rng.random() * len(rows))
        name, content = rows[at]
        kind = {"snapshot": 1, "journal": 2, "outbox": 3}.get(name.partition("-")[0], 1)
        number = rng.choice((0, 1, 2, 3, int(name.rpartition("-")[2])))
        parsed = record_framing.parse(content, kind, int(name.rpartition("-")[2]), name)
        bodies = [mutations.blind(b, parsed.bodies, rng) if rng.random() < 0.3 else b for b in parsed.bodies]
        floor = rng.choice((0, number))
        whole = record_framing.header(kind, number, floor) + record_framing.framed(kind, number, 1, bodies)
        rows[at] = [rng.choice((name, f"{name.partition('-')[0]}-{number}", f"{name}0")), whole]
        return cbor.dumps(rows)

    return Subject(
        "state folders", packed, (mutations.items, mutations.items, resealed), read, lambda n: 64 * n + SMALL
    )
