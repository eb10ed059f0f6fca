"""Own components' state, messages and wire forms that are not bytes, or raise: reported and survived."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bb_edge import PeerId, install
from bb_edge.engine import steps
from bb_edge.engine.snapshot import SnapshotDamagedError, SnapshotError
from bb_edge.extend import (
    Codec,
    ComponentStateError,
    OpTable,
    ProtocolComponent,
    StateReader,
    pack_array,
    pack_state,
    register_codec,
    register_type,
)
from bb_edge.registry import Registry
from bb_edge.wire.codecs import NotWireEligibleError, WireReceiveError, decode_value, encode_value
from bb_host import CodecSlot, Compiler, Module, ProtocolSlot
from bb_host.ir.proto import to_bytes
from tests.aids.refusals import refused

HERE = "test_component_state.py:"


class Keeps(Codec):
    TYPE_NAME = "acme.Keeps"
    state: Any = b""

    @classmethod
    def construct(cls, env):
        return cls()

    def compress(self, ctx, t):
        return t

    def decompress(self, ctx, code):
        return code

    def serialize(self):
        return self.state() if callable(self.state) else self.state

    def restore(self, state):
        self.n = StateReader(self, 1, state).integer("n")


class Coded(Module):
    codec = CodecSlot("codec")

    def body(self, g):
        x = g.input("x", "F32", (2,))
        g.output("y", self.codec.decompress(g, self.codec.compress(g, x)))


def node_of(kind, snapshot=None):
    registry = Registry()
    registry.register(kind)
    data = to_bytes(Compiler().bind_codec("codec", Keeps).compile_program(Coded()))
    return install(PeerId.from_name("n"), (), data, ["Coded"], registry=registry, snapshot=snapshot)


def fails():
    raise KeyError("x")


@pytest.mark.parametrize("state", [None, "text", {"n": 3}, 3, [b"x"]])
def test_a_state_that_is_no_bytes_is_no_snapshot(state):
    node = node_of(Keeps)
    node.component("codec").state = lambda: state
    kind = type(state).__name__
    with refused(SnapshotError, "slot 'codec'", f"acme.Keeps.serialize gives a {kind}", marked=False):
        node.snapshot(1)
    node.component("codec").state = b"good"
    assert node.snapshot(2)


def test_what_serialize_raises_names_slot_type_and_line():
    node = node_of(Keeps)
    node.component("codec").state = fails
    with refused(
        SnapshotError, "slot 'codec'", "acme.Keeps.serialize: KeyError: 'x', at ", HERE, marked=False
    ):
        node.snapshot(1)
    node.component("codec").state = lambda: pack_state(node.component("codec"), 1, {"a": np.zeros(2)})
    with refused(
        SnapshotError, "slot 'codec'", "the field 'a', a ndarray", "pack_array(array)", marked=False
    ):
        node.snapshot(1)


def test_numpy_numbers_are_written_as_numbers():
    component = Keeps()
    fields = {
        "n": np.int64(3),
        "x": np.float32(0.5),
        "ok": np.bool_(True),
        "many": [np.uint8(1), {"k": np.int16(-1)}],
    }
    reader = StateReader(component, 1, pack_state(component, 1, {**fields, "a": pack_array(np.arange(2))}))
    assert (reader.integer("n"), reader.number("x")) == (3, 0.5)
    assert reader.items("many") == [1, {"k": -1}]
    assert reader.array("a").tolist() == [0, 1]


def test_each_kind_of_field_is_read_by_its_name():
    plain = {"on": True, "name": "barn", "raw": b"\x01", "n": 2, "x": 0.5, "no": None}
    reader = StateReader(Keeps(), 1, pack_state(Keeps(), 1, {**plain, "by": {"a": 1}, "many": [3]}))
    assert (reader.flag("on"), reader.text("name"), reader.data("raw")) == (True, "barn", b"\x01")
    assert (reader.mapping("by"), reader.items("many")) == ({"a": 1}, [3])
    assert (reader.integer("n"), reader.number("x"), reader.optional_items("no")) == (2, 0.5, [])
    for read in (reader.flag, reader.text, reader.data, reader.mapping):
        with pytest.raises(ComponentStateError, match=r"acme\.Keeps: field 'n' is int, [a-z]+ is expected"):
            read("n")


def test_a_field_that_is_not_there_is_missing():
    reader = StateReader(Keeps(), 1, pack_state(Keeps(), 1, {"cut": 3}))
    with refused(ComponentStateError, "'cutt' is missing", "did you mean 'cut'?", marked=False):
        reader.integer("cutt")


@pytest.mark.parametrize(
    ("wrote", "reads", "words"),
    [
        (1, 2, "it has version 1, this component reads 2 (StateReader(…, oldest=1) reads it"),
        (3, 2, "it has version 3, this component reads 2 (run the component that wrote it"),
    ],
)
def test_a_state_of_another_version_is_told_with_what_to_do(wrote, reads, words):
    with refused(ComponentStateError, words, marked=False):
        StateReader(Keeps(), reads, pack_state(Keeps(), wrote, {}))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": 1, "a": np.zeros(3)}, "the field 'a', a ndarray"),
        ({"o": object()}, "the field 'o', a object"),
        ({"deep": [[np.zeros(1)]]}, "the field 'deep', a list"),
        ({"version": 3}, "the field 'version' is its own"),
        ({"type": "x"}, "the field 'type' is its own"),
    ],
)
def test_fields_that_have_no_written_form(fields, words):
    with refused(ComponentStateError, "state of acme.Keeps", words, marked=False):
        pack_state(Keeps(), 1, fields)


def test_what_restore_raises_names_slot_type_and_line():
    node = node_of(Keeps)
    node.component("codec").state = b"no cbor"
    with refused(
        SnapshotDamagedError, "slot 'codec'", "acme.Keeps.restore: ", "it is damaged", HERE, marked=False
    ):
        node_of(Keeps, node.snapshot(1))


def test_a_component_that_begins_to_keep_state_starts_anew():
    before = type("Keeps", (Keeps,), {"serialize": Codec.serialize, "restore": Codec.restore})
    again = node_of(Keeps, node_of(before).snapshot(1))
    assert [(s.slot, s.type_name) for s in again.poll(2) if isinstance(s, steps.StateForgotten)] == [
        ("codec", "acme.Keeps")
    ]


# --- messages -------------------------------------------------------------------------------------------


class Tells(ProtocolComponent):
    TYPE_NAME = "acme.Tells"

    @classmethod
    def construct(cls, env):
        return cls()

    @classmethod
    def atomic_opset(cls):
        table = OpTable(cls.TYPE_NAME)
        table.op("Double", "t:Tensor", "u:Tensor")
        table.op("Hear", "sender:PeerId, payload:Bytes", "", remote=True)
        return table.opset()

    def double(self, ctx, t):
        return t + t

    def hear(self, ctx, sender, payload): ...

    def started(self, ctx):
        self.say(ctx)


class Talking(Module):
    p = ProtocolSlot("p", opset=Tells.atomic_opset())

    def body(self, g):
        g.output("y", self.p.double(g, g.input("x", "F32", (2,))))


@pytest.mark.parametrize("payload", ["hello", np.zeros(2), None, 3])
@pytest.mark.parametrize("asks", [False, True])
def test_a_payload_that_is_no_bytes(payload, asks):
    def say(self, ctx):
        me = PeerId.from_name("n")
        ctx.request(me, "Hear", payload, 10, print) if asks else ctx.send(me, "Hear", payload)

    kind = type("Tells", (Tells,), {"say": say})
    registry = Registry()
    registry.register(kind)
    data = to_bytes(Compiler().bind_protocol("p", kind).compile_program(Talking()))
    node = install(PeerId.from_name("n"), (), data, ["Talking"], registry=registry)
    (failed,) = [s for s in node.poll(1) if isinstance(s, steps.OpFailed)]
    assert f"slot 'p' (acme.Tells.started): acme.Tells sends a {type(payload).__name__}" in str(failed.text)
    assert "bytes are expected" in str(failed.error)


# --- codecs of types of one's own -----------------------------------------------------------------------


class Point:
    pass


@pytest.mark.parametrize("given", ["text", None, 3])
def test_an_encode_that_gives_no_bytes(given):
    node = register_type(f"acme.Point{given}")
    register_codec(node, lambda value: given, lambda data: None)
    with refused(
        NotWireEligibleError,
        f"encode of acme.Point{given} returned a {type(given).__name__}",
        "bytes",
        marked=False,
    ):
        encode_value(Point(), node.wire_hash)
    with pytest.raises(WireReceiveError, match=f"decode of acme.Point{given} returned None"):
        decode_value(node.wire_hash, b"x")


def test_an_encode_that_raises_names_type_and_exception():
    node = register_type("acme.Raises")
    register_codec(node, lambda value: {}["k"], bytes)
    with pytest.raises(NotWireEligibleError, match=r"expected acme\.Raises, got Point: KeyError: 'k'"):
        encode_value(Point(), node.wire_hash)


def test_a_codec_of_no_functions():
    node = register_type("acme.Three")
    with refused(NotWireEligibleError, "encode of acme.Three is 3, which cannot be called", marked=False):
        register_codec(node, 3, bytes)
    with refused(NotWireEligibleError, "decode of acme.Three is None", marked=False):
        register_codec(node, bytes, None)
    with refused(NotWireEligibleError, "python_type of acme.Three is 'Point'", marked=False):
        register_codec(node, bytes, bytes, "Point")
