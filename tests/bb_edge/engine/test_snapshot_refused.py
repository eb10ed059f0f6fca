"""What is said where a node cannot be written down, or cannot take a snapshot."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from snapshots import body_of, sealed

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine.snapshot import (
    VERSION,
    SnapshotDamagedError,
    SnapshotError,
    SnapshotForeignError,
    SnapshotVersionError,
)
from bb_edge.ir.errors import BBError
from bb_edge.ir.values import TRIGGER
from bb_edge.node import Node
from bb_edge.registry import Registry
from bb_edge.roles import Codec
from bb_edge.wire import cbor

SELF = PeerId.from_name("node")
TEXT = """
program Demo {module=Demo}
function program.Main(x: Any, go: Trigger) -> () {entry=1, partition=self}
  late: Trigger = syscall.Sleep<duration_ns=3000000>(go)
  y: Any = syscall.GateDispatch(x, late)
  syscall.AppEmit<name="y">(y)
  round: I64[] = syscall.Repeat<times=2, pause_ns=5000000>()
  syscall.AppNotify<name="round">(round)
"""
BEFORE = "use the one before it"
FOREIGN = "give the node the state folder that is its own, or move this one aside to start anew"


@pytest.fixture
def make(compile_text):
    data = compile_text(TEXT)

    def made(snapshot: bytes | None = None) -> Node:
        return install(SELF, (), data, ["Main"], NodeConfig.edge(), seed=5, snapshot=snapshot)

    return made


def said(make, snapshot: bytes) -> tuple[type, str, str, str]:
    with pytest.raises(SnapshotError) as caught:
        make(snapshot)
    error = caught.value
    return type(error), error.what, error.where, error.hint


def test_bytes_that_are_no_snapshot_or_not_whole(make):
    data = make().snapshot(1)
    body = data[50:]
    cut = (SnapshotDamagedError, "it is no snapshot, or cut off", "snapshot", BEFORE)
    for bad in (b"", data[:49], b"X" + data[1:], data[1:]):
        assert said(make, bad) == cut
    wrong = (SnapshotDamagedError, "its checksum is wrong", "snapshot", BEFORE)
    changed = bytes([*data[:20], data[20] ^ 1, *data[21:]])
    for bad in (
        *(data[:-1], data + b"\x00", data[:50], changed),
        *(sealed(body, size=len(body) + 1), sealed(body, size=len(body) + (1 << 56))),
    ):
        assert said(make, bad) == wrong
    assert said(make, sealed(b""))[1].startswith("its body is damaged: ")
    assert said(make, sealed(cbor.dumps({}))) == (
        *(SnapshotDamagedError, "its body is damaged: 'identity'"),
        *("snapshot", ""),
    )
    make(sealed(body))


@pytest.mark.parametrize("version", [VERSION + 1, 0x100, 0x200, 0xFFFF])
def test_what_a_newer_runtime_wrote(make, version):
    data = sealed(make().snapshot(1)[50:], version)
    what = f"schema version {version}, this runtime reads {VERSION}"
    assert said(make, data) == (SnapshotVersionError, what, "snapshot", "update the runtime")


@pytest.mark.parametrize("version", [0, VERSION - 1])
def test_what_an_older_runtime_wrote(make, version):
    """Rows have other columns since: they would be read as something else, not only refused."""
    data = sealed(make().snapshot(1)[50:], version)
    what = f"schema version {version}, this runtime reads {VERSION}"
    hint = "run the runtime that wrote it, or move the state folder aside to start anew"
    assert said(make, data) == (SnapshotVersionError, what, "snapshot", hint)


def test_what_another_node_wrote(make):
    body = body_of(make().snapshot(1))
    assert body["identity"][:2] == [SELF.to_bytes(), "Demo"]
    for at, what, other in (
        (0, "peer", b"x"),
        (1, "module", "x"),
        (1, "module", None),
        (2, "artifact", "x"),
        (3, "targets", ["x"]),
    ):
        identity = [*body["identity"][:at], other, *body["identity"][at + 1 :]]
        assert said(make, sealed(cbor.dumps({**body, "identity": identity}))) == (
            *(SnapshotForeignError, f"it is of another {what}"),
            *("snapshot", FOREIGN),
        )


def test_a_part_that_does_not_fit_is_named(make):
    body = body_of(make().snapshot(1))
    for name, value, what in (
        ("now_ns", "x", "ValueError: "),
        ("now_ns", None, "TypeError: "),
        ("cycle", {**body["cycle"], "rounds": []}, "ValueError: "),
        ("cycle", {**body["cycle"], "rounds": body["cycle"]["rounds"] * 2}, "ValueError: "),
        ("components", [*body["components"], ["bb.FedAvg", b""]], "ValueError: "),
        ("components", [["bb.FedAvg", b""]], "ValueError: the state of a bb.FedAvg for a bb.NumPyBackend"),
        ("claims", [[0, 0], *body["claims"][1:]], "ValueError: claims of another number of components"),
    ):
        kind, text, where, _ = said(make, sealed(cbor.dumps({**body, name: value})))
        assert (kind, where) == (SnapshotDamagedError, "snapshot")
        assert text.startswith(f"its part {name!r} does not fit: {what}")


def test_a_value_without_a_written_form_is_named_with_what_to_do(make):
    node = make()
    node.invoke("Main", {"x": object(), "go": TRIGGER})
    node.poll(1)
    with pytest.raises(SnapshotError) as caught:
        node.snapshot(2)
    error = caught.value
    assert (type(error), error.what) == (SnapshotError, "executions: a object cannot be written down")
    assert (error.where, error.hint) == ("snapshot", "register a codec for its type")


class Stubborn(Codec):
    """Cannot be written down, and does not say where."""

    TYPE_NAME: ClassVar[str] = "test.Stubborn"
    where: ClassVar[str] = ""

    @classmethod
    def construct(cls, env: Any) -> Stubborn:
        return cls()

    def serialize(self) -> bytes:
        raise BBError("it has lost count", self.where, "count anew")

    def restore(self, state: bytes) -> None: ...

    def compress(self, ctx: Any, t: Any) -> Any:
        return t

    def decompress(self, ctx: Any, code: Any) -> Any:
        return code


@pytest.mark.parametrize(("where", "expected"), [("", ""), ("its counter", "its counter: ")])
def test_a_component_that_cannot_be_written_down_is_heard(compile_text, where, expected):
    text = (
        'program Demo {module=Demo, binding.Main.c="codec|test.Stubborn|1"}\n'
        "function program.Main(x: F32[2]) -> (y) {entry=1, partition=self}\n"
        "  slot c: codec\n  y: F32[2] = role.compressor.Compress(x) {slot=c}\n"
    )
    registry = Registry()
    registry.register(type("Placed", (Stubborn,), {"where": where}))
    node = install(SELF, (), compile_text(text), ["Main"], registry=registry, seed=1)
    with pytest.raises(SnapshotError) as caught:
        node.snapshot(1)
    error = caught.value
    said = f"components: test.Stubborn.serialize: {expected}it has lost count, at "
    assert error.what.startswith(said)
    assert (error.where, error.hint) == ("slot 'c'", "count anew")
    node.invoke("Main", {"x": np.ones(2, np.float32)})
    assert node.poll(2), "and the node goes on"
