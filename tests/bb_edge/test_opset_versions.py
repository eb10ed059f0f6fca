"""Versions of our domains: what an artifact imports, who refuses it, and that changed rows raise them."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from arrays import f32
from kinds_of_steps import of
from peers import A
from seals import changed
from texts import compiled
from times import S

from bb_edge import load
from bb_edge.components import FedAvg
from bb_edge.engine import steps
from bb_edge.installer import install
from bb_edge.ir import keys, opsets
from bb_edge.ir.ids import PeerId
from bb_edge.ir.values import TRIGGER
from bb_edge.loading import IncompatibleRuntime
from bb_host import AggregatorSlot, Compiler, Graph, Module
from bb_host.build import compile_edge

RECORDED = {
    "ai.bytesandbrains.syscall": (3, "27305c6c365b1577"),
    "ai.bytesandbrains.wire": (1, "ccea91edf8ac503c"),
    "ai.bytesandbrains.gate": (1, "359873bdd8798602"),
    "ai.bytesandbrains.composite": (1, "5ce3602551de4bd9"),
    "ai.bytesandbrains.address_book": (1, "6515be85540bb7cc"),
    "ai.bytesandbrains.role.index": (1, "9532d298e0e8fd94"),
    "ai.bytesandbrains.role.model": (2, "6983c5fef2f7f6cb"),
    "ai.bytesandbrains.role.aggregator": (2, "76b429d16fafd027"),
    "ai.bytesandbrains.role.compressor": (1, "bd6d0363dc0dc435"),
    "ai.bytesandbrains.role.data_loader": (1, "d16ed0b9e2117fed"),
    "ai.bytesandbrains.role.peer_selector": (2, "e0624ab5707d5b2a"),
}
"""Version and digest of each domain's rows. Whoever changes a row gives it `since=` the next version, which
older devices refuse by name, and records both here."""

AGGREGATOR = keys.ROLE_AGGREGATOR_DOMAIN
SUM = """program Demo {module=Demo, targets="Server", binding.Server.agg="aggregator|bb.FedAvg|1"}
function program.Server(x: F32[?], w: F32[], p: PeerIdVec, go: Trigger) -> () {entry=1, partition=Server}
  c: CommandId = role.aggregator.Contribute(x, w, p) {slot=agg}
  t: Tensor, total: F32[] = role.aggregator.Aggregate(go) {slot=agg, control_inputs=1}
  syscall.AppEmit<name="mean">(t)
"""


class Averages(Module):
    def body(self, g: Graph) -> None:
        aggregator = AggregatorSlot("agg")
        aggregator.contribute(g, g.input("x", "F32", (4,)))
        g.app_emit("mean", aggregator.aggregate(g, after=g.interval(S))[0])


class Ticks(Module):
    def body(self, g: Graph) -> None:
        g.app_emit("tick", g.interval(S))


def digest(domain: str) -> str:
    table = opsets.opset(domain)
    assert table is not None
    rows = "\n".join(
        repr((op.name, op.inputs, op.outputs, op.attrs, op.since)) for _, op in sorted(table.ops.items())
    )
    return hashlib.sha256(rows.encode()).hexdigest()[:16]


@pytest.mark.parametrize("domain", [d for d in opsets.FRAMEWORK_DOMAINS if d != keys.ONNX_DOMAIN])
def test_rows_change_with_their_version_only(domain: str) -> None:
    table = opsets.opset(domain)
    assert table is not None
    assert (table.version, digest(domain)) == RECORDED[domain], "read what RECORDED says"


def artifact(module: Module, compiler: Compiler) -> bytes:
    (found,) = compile_edge(module, compiler).artifacts
    return found.data


def test_an_artifact_imports_the_oldest_version_that_has_its_ops() -> None:
    averages = load(artifact(Averages(), Compiler().bind_aggregator("agg", FedAvg))).opsets
    assert (averages[AGGREGATOR], averages[keys.SYSCALL_DOMAIN]) == (2, 1)
    assert load(artifact(Ticks(), Compiler())).opsets[keys.SYSCALL_DOMAIN] == 1


def test_a_device_that_has_an_older_version_refuses_the_artifact_by_name(monkeypatch) -> None:
    data = artifact(Averages(), Compiler().bind_aggregator("agg", FedAvg))
    now = opsets.opset

    def before(domain: str) -> opsets.Opset | None:
        table = now(domain)
        return table if table is None or domain != AGGREGATOR else replace(table, version=1)

    monkeypatch.setattr(opsets, "opset", before)
    with pytest.raises(IncompatibleRuntime) as caught:
        load(data)
    assert f"it needs {AGGREGATOR} version 2, this runtime knows version 1" in str(caught.value)


def test_a_device_takes_an_artifact_of_the_version_before() -> None:
    def older(model) -> None:
        for entry in (*model.opset_import, *(o for f in model.functions for o in f.opset_import)):
            entry.version = 1 if entry.domain == AGGREGATOR else entry.version

    data = changed(compiled(SUM), older)
    assert load(data).opsets[AGGREGATOR] == 1
    node = install(PeerId.from_name("server"), (), data, ["Server"], seed=1)
    node.poll(0)
    node.invoke("Server", {"x": f32(1, 2), "w": np.float32(2), "p": (A,)})
    node.poll(1)
    node.invoke("Server", {"go": TRIGGER})
    (event,) = of(steps.AppEvent, node.poll(2))
    assert list(event.value) == [1, 2]
