"""What a durable request sends to many peers is once in the outbox on disk and once in a snapshot."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kinds_of_steps import of

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine import snapshot
from bb_edge.engine.net.never_left import UNSAVED
from bb_edge.engine.snapshot import SnapshotError
from bb_edge.engine.steps import EngineStep, OutboundDropped, PersistOutbox, SendEnvelope
from bb_edge.node import Node
from bb_edge.state import StateStore, StoreLimits
from bb_edge.state.keeper import Keeper, restore
from bb_edge.targets import InstallError
from bb_edge.wire.bodies import BodyName
from bb_edge.wire.caps import HOST_CAPS
from bb_edge.wire.envelope import REQUEST, Ack, Envelope, decode, encode
from bb_shims import AtomicStorage, StorageError
from bb_shims.testing import CrashMode, FakeDisk

MS, S = 1_000_000, 1_000_000_000
HERE = b"\xe2\x01" + bytes(8)
SELF = PeerId.from_name("node")
LARGE = np.arange(64 * 1024, dtype=np.float32)  # 256 KiB
PEERS = tuple(PeerId.from_name(f"p{number}") for number in range(40))
LIMITS = StoreLimits(outbox_bytes=2 * LARGE.nbytes, snapshot_bytes=4 * LARGE.nbytes)
"""Of forty copies, neither would hold eight."""

TEXT = """
program Demo {module=Demo}
function program.Main(x: F32, ask: PeerIdVec) -> () {entry=1, partition=Main}
  r: WireReqId = wire.SendReqBatched(x, ask, ask) {wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101, durable=1, wire.answer_mode=none, deadline_ns=60000000000}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {wire.wire_id=2, wire.request=1}
  syscall.AppEmit<name="missing">(missing)
"""


class Machine:
    """A node, and its files on a disk; `start` is a restart after a power cut."""

    def __init__(self, data: bytes, limits: StoreLimits = LIMITS) -> None:
        self.data, self.disk, self.limits = data, FakeDisk(), limits
        self.seed = 0
        self.start(0)
        for peer in PEERS:
            self.node.peer_presence(peer, True, (HERE,), epoch=1)
        self.poll(1)

    def make(self, snapshot: bytes | None, now_ns: int = 0) -> Node:
        self.seed += 1
        more: dict[str, Any] = {"seed": self.seed, "durable": True, "snapshot": snapshot, "now_ns": now_ns}
        return install(SELF, (), self.data, ["Main"], NodeConfig.host(), **more)

    def start(self, now_ns: int) -> None:
        self.disk.crash(CrashMode.KEEP)
        self.store = StateStore(AtomicStorage(self.disk.open()), (StorageError,), self.limits)
        self.node, self.restored = restore(self.store, self.make, SnapshotError, now_ns, now_ns)
        self.keeper = Keeper(self.node, self.store)

    def poll(self, now_ns: int) -> list[Any]:
        """What leaves, once everything that has to be on disk is there."""
        found: list[EngineStep] = []
        for _ in range(4):
            steps = self.node.poll(now_ns)
            found += steps
            self.keeper.take(steps, now_ns)
        return found

    def ask(self, now_ns: int) -> list[Any]:
        self.node.invoke("Main", {"x": LARGE, "ask": PEERS})
        return [step for step in of(SendEnvelope, self.poll(now_ns)) if step.durable]

    def acknowledge(self, asked: list[Any], now_ns: int) -> None:
        for step in asked:
            message = decode(step.rest, HOST_CAPS)
            self.node.deliver_inbound(encode(Envelope(acks=(Ack(message.epoch, message.seq),))), step.peer)
        self.poll(now_ns)


@pytest.fixture
def machine(compile_text):
    return Machine(compile_text(TEXT))


def test_a_request_to_many_is_once_on_disk_and_once_in_the_snapshot(machine):
    before = machine.keeper.counters["state.bytes_written"]
    asked = machine.ask(2)
    assert [step.peer for step in asked] == list(PEERS)
    counters = machine.keeper.counters
    assert LARGE.nbytes < counters["state.outbox_bytes"] < LARGE.nbytes + 40 * 300
    # In the snapshot is nothing of it.
    written = counters["state.bytes_written"] - before
    assert written < 2 * LARGE.nbytes and counters["state.failures"] == 0
    assert counters["state.outbox_records"] == 81, "each record, each flow's first number, and the body"


def test_all_that_share_a_body_are_lost_with_it(machine):
    asked = machine.ask(2)
    machine.acknowledge(asked[:10], 3)
    assert machine.node.unkept(lambda name: isinstance(name, BodyName)) == dict.fromkeys(PEERS[10:], 1)
    assert not machine.node.unkept(lambda name: False)


def test_who_comes_back_asks_all_of_them_with_one_body(machine):
    asked = machine.ask(2)
    machine.acknowledge(asked[:10], 3)
    machine.start(4)
    again = [step for step in of(SendEnvelope, machine.poll(5)) if step.durable]
    numbers = {step.peer: decode(step.payload, HOST_CAPS) for step in again}
    assert set(numbers) >= set(PEERS[10:])
    assert len({id(step.body) for step in again}) == 1
    message = numbers[PEERS[20]]
    assert message.kind == REQUEST and bytes(message.fills[0].payload).endswith(LARGE.tobytes())


def test_the_body_goes_with_the_last_record_that_names_it(machine):
    asked = machine.ask(2)
    machine.acknowledge(asked[:-1], 3)
    machine.keeper.snapshot(4)
    assert machine.keeper.counters["state.outbox_records"] == 3, "one record, its number, and the body"
    machine.acknowledge(asked[-1:], 5)
    machine.keeper.snapshot(6)
    assert machine.keeper.counters["state.outbox_records"] == 0
    for now_ns in (7, 8, 9):
        machine.keeper.snapshot(now_ns)
    assert machine.keeper.counters["state.outbox_bytes"] < LARGE.nbytes, "two snapshots later its bytes go"
    machine.start(10)
    assert machine.restored.outbox == 0


def test_a_body_is_needed_while_a_record_that_names_it_is_open(machine):
    machine.node.invoke("Main", {"x": LARGE, "ask": PEERS})
    found = machine.poll(2)
    (body,) = {step.body_name for step in of(PersistOutbox, found) if step.body_name}
    asked = [step for step in of(SendEnvelope, found) if step.durable]
    assert machine.node.needs_row(body)
    machine.acknowledge(asked[:-1], 3)
    assert machine.node.needs_row(body)
    machine.acknowledge(asked[-1:], 4)
    assert not machine.node.needs_row(body)


def test_who_does_not_acknowledge_is_sent_all_of_it_again(machine):
    asked = {step.peer: step for step in machine.ask(2)}
    again = [step for step in of(SendEnvelope, machine.poll(2 * S)) if step.durable]
    assert {step.peer for step in again} == set(PEERS)
    assert {step.body for step in again} == {asked[PEERS[0]].body} != {b""}


def test_rows_that_a_snapshot_alone_has_are_written_with_their_body(machine):
    machine.node.invoke("Main", {"x": LARGE, "ask": PEERS})
    asked = of(PersistOutbox, [*machine.node.poll(2), *machine.node.poll(2)])
    bodies = {(step.body_name, step.body) for step in asked if step.body}
    assert len(bodies) == 1
    again = machine.make(machine.node.snapshot(3), 4)
    again.adopt_outbox([], 4, 4)
    written = of(PersistOutbox, [*again.poll(5), *again.poll(5)])
    assert {(step.body_name, step.body) for step in written if step.body} == bodies
    assert len([step for step in written if step.body]) == len(PEERS)


def test_the_same_body_is_written_again_after_it_has_gone(machine):
    machine.acknowledge(machine.ask(2), 3)
    machine.keeper.snapshot(4)
    machine.ask(5)
    machine.start(6)
    assert machine.restored.outbox == 41, "their numbers are in the records: the flows go on"
    assert len([step for step in of(SendEnvelope, machine.poll(7)) if step.durable]) == 40


def test_what_no_snapshot_can_hold_is_not_sent_and_no_fault_of_the_peers(compile_text):
    tight = StoreLimits(outbox_bytes=2 * LARGE.nbytes, snapshot_bytes=15_000)
    machine = Machine(compile_text(TEXT), tight)
    assert machine.ask(2) == []
    found = machine.poll(2 + 60 * S)
    dropped = of(OutboundDropped, found)
    assert [step.peer for step in dropped] == list(PEERS)
    assert {step.reason for step in dropped} == {UNSAVED}
    assert machine.node.counters["requests.not_sent"] == 40
    assert "requests.unanswered" not in machine.node.counters
    assert not machine.node.inspect().outbox["needs_snapshot"]


class Narrow(Machine):
    """A node whose own bounds are narrow."""

    def __init__(self, data: bytes, **bounds: int) -> None:
        self.config = NodeConfig.host().with_(**bounds)
        super().__init__(data)

    def make(self, snapshot: bytes | None, now_ns: int = 0) -> Node:
        more: dict[str, Any] = {"seed": 1, "durable": True, "snapshot": snapshot, "now_ns": now_ns}
        return install(SELF, (), self.data, ["Main"], self.config, **more)


def test_those_that_find_no_place_in_the_outbox_wait(compile_text):
    machine = Narrow(compile_text(TEXT), outbox_records=8)
    assert len({step.peer for step in machine.ask(2)}) == 8
    assert not of(OutboundDropped, machine.poll(3))


@pytest.mark.parametrize("fills", [1, 16])
def test_whatever_the_bound_a_request_is_on_disk_or_waits(compile_text, fills):
    """Of many fills, what stands around their payloads is more than is reckoned with."""
    sites = ",".join(f"a{n:x}" for n in range(1, fills + 1))
    types = ",".join(["101"] * fills)
    text = TEXT.replace("SendReqBatched(x, ask", f"SendReqBatched({'x, ' * fills}ask")
    text = text.replace(
        "wire.site_ids=a1, wire.type_hashes=101", f'wire.site_ids="{sites}", wire.type_hashes="{types}"'
    )
    data, found = compile_text(text), set()
    with pytest.raises(InstallError, match=r"raise limits\.outbox_bytes to 256"):
        Narrow(data, outbox_bytes=40)
    for bound in range(160, 400 + 240 * fills, 2 * fills):
        node = Narrow(data, outbox_bytes=bound)
        node.node.invoke("Main", {"x": LARGE[:32], "ask": PEERS[:1]})
        left = [step for step in of(SendEnvelope, node.poll(2)) if step.durable]
        assert not of(OutboundDropped, node.poll(3))
        assert len(left) == len(node.node.inspect().outbox["records"])
        found.add(len(left))
    assert found == {0, 1}


def test_what_has_no_written_form_is_named(compile_text, monkeypatch):
    machine = Machine(compile_text(TEXT))
    monkeypatch.setattr(snapshot, "_sections", lambda parts, shift: (("links", object, None),))
    with pytest.raises(SnapshotError, match="links: a object has no plain CBOR form"):
        machine.node.snapshot(5)
