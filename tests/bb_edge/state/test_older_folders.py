"""State folders that earlier versions wrote: each node goes on where it stood, and nothing counts twice.

`data/write.py` has the program, and how the folders of each version came to be.
"""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import HERE
from times import MS, S

from bb_edge import NodeConfig, PeerId, install
from bb_edge.adoption import Former
from bb_edge.cli import main
from bb_edge.engine import steps
from bb_edge.engine.snapshot import VERSION, Identity, SnapshotDamagedError, SnapshotVersionError
from bb_edge.loading import load
from bb_edge.state import StateStore
from bb_edge.state.keeper import Keeper, restore
from bb_edge.state.record_framing import Owner
from bb_shims import StorageError, detect

DATA = Path(__file__).parent / "data"
SCHEMAS = {"b5e50c7": 2, "955531e": 2, "9880fd4": 3}
"""Of the snapshots that these commits wrote."""
WALL_NS = 1_780_000_001 * S


class Woken:
    """A node from its folder, in this version."""

    def __init__(self, folder: Path, target: str, now_ns: int = S) -> None:
        self.target, self.said = target, []
        self.storage = detect().storage(folder / target)
        program = load((folder / f"{target}.onnx").read_bytes())
        peer = PeerId.from_name(target.lower())
        owner = Owner(peer.to_bytes(), Identity.of(peer, program, [target]).program)
        self.store = StateStore(self.storage, (StorageError,), owner=owner)

        def make(snapshot: bytes | None) -> Any:
            assert snapshot is not None
            self.schema = int.from_bytes(snapshot[8:10], "big")
            more = {"seed": 7, "durable": True, "snapshot": snapshot, "now_ns": now_ns}
            return install(peer, (HERE,), program, [target], NodeConfig.edge(), **more)

        self.node, self.restored = restore(self.store, make, SnapshotDamagedError, now_ns, WALL_NS + now_ns)
        self.keeper = Keeper(self.node, self.store)

    def ring(self, name: str) -> list[float]:
        return [float(np.ravel(value)[0]) for value in self.node.ring(name)]

    def told(self, kind: type) -> list[Any]:
        return [step for step in self.said if isinstance(step, kind)]


class Field:
    """The hub and the device of a folder, who hear of each other."""

    def __init__(self, folder: Path, now_ns: int = S) -> None:
        self.folder, self.now_ns = folder, now_ns
        self.hub, self.device = Woken(folder, "Hub", now_ns), Woken(folder, "Device", now_ns)
        self.nodes = {woken.node.peer_id: woken for woken in (self.hub, self.device)}
        for here, other in ((self.hub.node, self.device.node), (self.device.node, self.hub.node)):
            here.peer_presence(
                other.peer_id,
                True,
                (HERE,),
                other.presence_meta,
                epoch=other.epoch,
                classes=other.classes,
            )

    def run(self, for_ns: int) -> None:
        until_ns = self.now_ns + for_ns
        while self.now_ns < until_ns:
            self.now_ns += MS
            for woken in self.nodes.values():
                due = woken.node.next_deadline_ns()
                if due is None or due > self.now_ns:
                    continue
                found = woken.node.poll(self.now_ns)
                woken.said += found
                woken.keeper.take(found, self.now_ns)
                for step in found:
                    if isinstance(step, steps.SendEnvelope):
                        self.nodes[step.peer].node.deliver_inbound(step.payload, woken.node.peer_id)

    def stop(self) -> None:
        for woken in self.nodes.values():
            assert woken.keeper.snapshot(self.now_ns)
            woken.storage.close()


@pytest.fixture(params=SCHEMAS)
def commit(request) -> str:
    return request.param


@pytest.fixture
def folder(commit, tmp_path) -> Path:
    copy = tmp_path / commit
    shutil.copytree(DATA / commit, copy)
    return copy


def consecutive(numbers: list[float]) -> bool:
    return bool(numbers) and all(b == a + 1 for a, b in pairwise(numbers))


def test_both_nodes_go_on_and_every_report_and_round_counts_once(folder, commit):
    before = json.loads((folder / "told.json").read_text())
    field = Field(folder)
    assert field.hub.schema == field.device.schema == SCHEMAS[commit]
    assert not field.hub.restored.losses and not field.device.restored.losses
    assert field.device.restored.outbox > before["Device"]["pending"]
    assert field.hub.restored.journal == 3
    field.run(2 * S)
    reports, rounds = field.hub.ring("reports"), field.hub.ring("rounds")
    assert reports[: len(before["Hub"]["rings"]["reports"])] == before["Hub"]["rings"]["reports"]
    assert consecutive(reports) and reports[-1] > 100, "no report is lost, none comes twice"
    assert consecutive(rounds) and rounds[-1] > before["Hub"]["rounds_ended"] + 10
    assert field.hub.node.counters["rounds.ended"] > before["Hub"]["rounds_ended"] + 10
    assert not field.hub.told(steps.OpFailed) and not field.device.told(steps.OpFailed)
    assert not field.hub.told(steps.StateRolledBack) and not field.device.told(steps.StateRolledBack)
    assert field.device.ring("told")[-1] - reports[-1] < 5
    field.stop()

    again = Field(folder, field.now_ns)  # from what this version has written
    assert again.hub.schema == again.device.schema == VERSION
    assert not again.hub.restored.notes
    again.run(S)
    assert not again.hub.told(steps.StateUpgraded)
    assert consecutive(again.hub.ring("reports")) and again.hub.ring("reports")[-1] > reports[-1] + 30
    assert consecutive(again.hub.ring("rounds"))
    again.stop()


def test_what_the_older_version_did_not_write_down_is_said_by_name(folder, commit):
    field = Field(folder)
    field.run(10 * MS)
    told = field.hub.told(steps.StateUpgraded)
    assert {step.version for step in told} == {SCHEMAS[commit]}
    assert any("what peers have acknowledged" in step.anew for step in told)
    field.stop()


def test_the_outbox_of_an_older_folder_is_listed(folder, capsys):
    assert main(["outbox", "--state", str(folder / "Device"), "--json"]) == 0
    records = json.loads(capsys.readouterr().out)["records"]
    assert len(records) >= 8 and {record["what"] for record in records} >= {"send"}


def test_another_program_adopts_an_older_state_where_that_names_its_slots(folder, commit, capsys):
    storage = detect().storage(folder / "Device")
    opened = StateStore(storage, (StorageError,)).open()
    storage.close()
    assert opened.snapshot is not None
    if commit == "b5e50c7":
        with pytest.raises(SnapshotVersionError, match=r"does not tell whose state is of which slot.*once"):
            Former.of(opened.snapshot, opened.outbox, WALL_NS)
        woken = Woken(folder, "Device")  # the old program, once
        assert woken.keeper.snapshot(2 * S)
        woken.storage.close()
        storage = detect().storage(folder / "Device")
        opened = StateStore(storage, (StorageError,)).open()
        storage.close()
        assert opened.snapshot is not None
        assert main(["outbox", "--state", str(folder / "Device"), "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["records"]) >= 8, "what it had to send as well"
    former = Former.of(opened.snapshot, opened.outbox, WALL_NS)
    assert former.identity.module == "Field"


def test_a_version_before_these_is_refused_by_its_number(folder):
    storage = detect().storage(folder / "Device")
    data = StateStore(storage, (StorageError,)).open().snapshot
    storage.close()
    assert data is not None
    with pytest.raises(SnapshotVersionError, match=r"schema version 1, this runtime reads 2 to 4"):
        Former.of(data[:8] + b"\0\1" + data[10:])
