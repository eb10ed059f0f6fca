"""Slots: generic and concrete, their metadata, their ops, and what cannot be declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import cbor2
import numpy as np
import pytest
from components import Slow

from bb_edge.ir import keys, opsets, types
from bb_edge.ir.opsets import Opset, Ready, Table
from bb_edge.ir.types import ValueType
from bb_edge.roles import ComponentEnv, ProtocolComponent
from bb_host import (
    AggregatorSlot,
    BackendSlot,
    CodecSlot,
    DataSourceSlot,
    Graph,
    IndexSlot,
    ModelSlot,
    Module,
    Output,
    PeerSelectorSlot,
    ProtocolSlot,
)
from bb_host.dsl.names import snake
from bb_host.errors import SlotError, UnknownOp
from bb_host.ir.program import Function, Program, Subgraph
from bb_host.ir.proto import to_proto
from bb_host.ir.spelling import written

Record = Callable[..., Program]

ROLE_SLOTS = [ModelSlot, AggregatorSlot, DataSourceSlot, PeerSelectorSlot, CodecSlot, IndexSlot]


class Quantizer(Slow):
    TYPE_NAME: ClassVar[str] = "test.Quantizer"


@pytest.mark.parametrize("slot_type", ROLE_SLOTS)
def test_every_op_of_a_role_is_a_method(record: Record, slot_type: Any) -> None:
    slot = slot_type("it")
    table = opsets.opset(slot.DOMAIN)
    assert table is not None

    def body(g: Graph) -> None:
        for op in table.ops.values():
            inputs = [
                g.input(f"{snake(op.name)}_{p.name}", p.type)
                for p in op.inputs
                if p.ready is not Ready.OPTIONAL
            ]
            attrs = {a.name: 3 for a in op.attrs if a.required}
            found = getattr(slot, snake(op.name))(g, *inputs, **attrs)
            count = 1 if isinstance(found, Output) else len(found)
            assert count == len(op.outputs)

    ops = record(body).functions[0].ops
    assert [op.op_type for op in ops] == list(table.ops)
    for op in ops:
        assert op.facts.slot == "it"
        assert op.facts.trait == slot.ROLE
        assert written(op.facts)[keys.SLOT_ID_KEY] == "1"
        assert keys.INSTANCE_KEY not in written(op.facts)


def test_optional_inputs_left_out_are_empty_names(record: Record) -> None:
    agg = AggregatorSlot("agg")

    def body(g: Graph) -> None:
        x, peer, t = g.input("x", "F32"), g.input("peer", "PeerIdVec"), g.input("t", "Trigger")
        agg.contribute(g, x)
        agg.contribute(g, x, peer=peer)
        agg.contribute(g, x, weight=2, round=7)
        agg.aggregate(g, after=t)
        agg.aggregate(g, x)
        agg.current_tensor(g)

    program = record(body)
    inputs = [op.inputs for op in program.functions[0].ops if op.op_type != "Constant"]
    assert inputs == [
        ("x",),
        ("x", "", "peer"),
        ("x", "const_1", "", "const_2"),
        ("", "", "t"),
        ("x",),
        (),
    ]
    numbers = [op.attrs["value"] for op in program.functions[0].ops if op.op_type == "Constant"]
    assert [n.dtype.name for n in numbers if isinstance(n, np.ndarray)] == ["int64", "int64"]


def test_slots_stand_in_the_function_in_order_of_declaration(record: Record) -> None:
    class Declared(Module):
        model = ModelSlot("model", at="Client")
        peers = PeerSelectorSlot("peers", peer_class="Client", at="Server")
        unused = BackendSlot("fast")

        def __init__(self) -> None:
            self.codec = CodecSlot("codec", Quantizer, {"bits": 8, "a": [1]})

        def body(self, g: Graph) -> None:
            g.app_emit("x", self.codec.compress(g, self.model.params(g)))

    program = record(Declared())
    function = program.functions[0]
    assert list(function.slots) == ["model", "peers", "fast", "codec"]
    assert function.slots["model"].at == "Client"
    assert function.slots["peers"].peer_class == "Client"
    codec = function.slots["codec"]
    assert (codec.role, codec.concrete_type) == (keys.ROLE_CODEC, "test.Quantizer")
    assert codec.state == cbor2.dumps({"a": [1], "bits": 8}, canonical=True)
    model = to_proto(program)
    assert list(model.functions[0].attribute) == ["model", "peers", "fast"]
    assert [a.name for a in model.functions[0].attribute_proto] == ["codec"]
    meta = {e.key: e.value for e in model.functions[0].metadata_props}
    assert meta[keys.CONCRETE_TYPE_PREFIX + "codec"] == "test.Quantizer"
    assert meta[keys.SLOT_ROLE_PREFIX + "fast"] == keys.ROLE_BACKEND
    assert meta[keys.SLOT_AT_PREFIX + "peers"] == "Server"


def test_concrete_instances_are_numbered_per_type(record: Record) -> None:
    slots = [CodecSlot(n, t) for n, t in (("a", Quantizer), ("b", "test.Other"), ("c", Quantizer))]

    def body(g: Graph) -> None:
        x = g.input("x", "F32")
        for slot in slots:
            slot.compress(g, x)

    found = [
        (op.facts.concrete_type, written(op.facts)[keys.INSTANCE_KEY]) for op in record(body).functions[0].ops
    ]
    assert found == [("test.Quantizer", "0"), ("test.Other", "0"), ("test.Quantizer", "1")]


def test_a_config_may_bring_its_own_state_and_graphs(record: Record) -> None:
    @dataclass
    class Made:
        attribute: Subgraph
        functions: tuple[Function, ...]

    class Config:
        def construct(self, slot: str) -> Made:
            state = Subgraph("state", initializers={"w": np.ones(3, np.float32)}, config={"lr": "0.1"})
            forward = Function(f"{slot}.forward", keys.COMPONENT_DOMAIN, ("x",), ("x",), opsets={"": 21})
            return Made(state, (forward,))

    slot = ModelSlot("net", "test.Net", Config())
    program = record(lambda g: slot.forward(g, g.input("x", "F32")))
    state = program.functions[0].slots["net"].state
    assert isinstance(state, Subgraph)
    np.testing.assert_array_equal(state.initializers["w"], np.ones(3, np.float32))
    assert [f.key for f in program.functions[1:]] == [(keys.COMPONENT_DOMAIN, "net.forward")]


def test_backends_take_onnx_ops(record: Record) -> None:
    fast = BackendSlot("fast")

    def body(g: Graph) -> None:
        x = g.input("x", "F32", (2, 2))
        assert fast.matmul(g, x, x).shape == (2, 2)
        fast.onnx(g).softmax(x, axis=1)

    ops = record(body).functions[0].ops
    assert [(op.op_type, op.facts.slot, op.facts.trait) for op in ops] == [
        ("MatMul", "fast", keys.ROLE_BACKEND),
        ("Softmax", "fast", keys.ROLE_BACKEND),
    ]


def _store() -> Opset:
    table = Table("user.store")
    table.op("PutRow", "key:Bytes, row:Tensor", "cmd:CommandId")
    table.op("GetRow", "key:Bytes", "row:Tensor<F32>, age:Tensor<I64>", "limit:int=1")
    return table.opset()


class Store(ProtocolComponent):
    TYPE_NAME: ClassVar[str] = "user.Store"

    @classmethod
    def construct(cls, env: ComponentEnv) -> Store:
        return cls()

    @classmethod
    def atomic_opset(cls) -> Opset:
        return _store()

    def put_row(self, ctx: object, key: bytes, row: object) -> None: ...

    def get_row(self, ctx: object, key: bytes, *, limit: int) -> object: ...


@pytest.mark.parametrize("slot", [ProtocolSlot("store", Store), ProtocolSlot("store", opset=_store())])
def test_protocols_bring_their_ops(record: Record, slot: Any) -> None:
    def body(g: Graph) -> None:
        key = g.constant("k")
        done = slot.put_row(g, key, [1.0, 2.0])
        row, age = slot.get_row(g, key, limit=3, after=done)
        assert (row.node, age.node) == (types.TENSOR_F32, types.TENSOR_I64)

    program = record(body)
    assert program.opsets["user.store"] == 1
    assert [op.op_type for op in program.functions[0].ops if op.domain == "user.store"] == [
        "PutRow",
        "GetRow",
    ]


def test_one_name_is_one_slot(record: Record) -> None:
    a, b = ModelSlot("model"), ModelSlot("model")

    def body(g: Graph) -> None:
        a.params(g)
        b.params(g)

    assert {written(op.facts)[keys.SLOT_ID_KEY] for op in record(body).functions[0].ops} == {"1"}


def test_params_are_flat_and_losses_scalar(record: Record) -> None:
    model = ModelSlot("model")

    def body(g: Graph) -> None:
        assert model.params(g).type == ValueType(types.TENSOR_F32, (None,))
        x = g.input("x", "F32")
        assert model.evaluate(g, x, x).type == ValueType(types.TENSOR_F32, ())

    record(body)


@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("'a b' is not a valid name for a slot", lambda: ModelSlot("a b")),
        ("'a b' is not a valid name for a class", lambda: ModelSlot("a", at="a b")),
        ("is not a valid name for a class", lambda: PeerSelectorSlot("p", peer_class="")),
        ("has a config and no type", lambda: ModelSlot("a", config={"x": 1})),
        ("int has no TYPE_NAME", lambda: ModelSlot("a", int)),
        ("protocol slot 'p' has no opset", lambda: ProtocolSlot("p", "x.Y")),
    ],
)
def test_declarations_refused(what: str, make: Callable[[], object]) -> None:
    with pytest.raises(SlotError, match=r"test_slots\.py:") as caught:
        make()
    assert what in caught.value.what


@pytest.mark.parametrize(
    ("kind", "what", "body"),
    [
        (SlotError, "declared twice", lambda g: (ModelSlot("s").params(g), CodecSlot("s").compress(g, 1.0))),
        (SlotError, "declared twice", lambda g: (ModelSlot("s").params(g), ModelSlot("s", at="C").params(g))),
        (SlotError, "config has no CBOR form", lambda g: ModelSlot("s", "t.T", {"f": object()}).params(g)),
        (SlotError, "a config is a mapping", lambda g: ModelSlot("s", "t.T", 3).params(g)),
        (UnknownOp, "role.model has no op 'fly'", lambda g: ModelSlot("s").op(g, "fly")),
        (UnknownOp, "slot 's' has no op 'fly'", lambda g: ProtocolSlot("s", Store).fly(g)),
    ],
)
def test_uses_refused(
    module: Callable[..., Any], kind: type[Exception], what: str, body: Callable[[Graph], object]
) -> None:
    with pytest.raises(kind, match=r"test_slots\.py:") as caught:
        module(body).record()
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("second", "differs"),
    [
        (lambda: ModelSlot("s", "t.T", {"b": 2}), "config is {'a': 1} there, and {'b': 2} here"),
        (lambda: ModelSlot("s", "t.T", {"a": 1}), "each has a config of its own, which reads the same"),
        (lambda: ModelSlot("s", "t.T"), "config is {'a': 1} there, and none here"),
        (lambda: ModelSlot("s", "t.U"), "type is t.T there, and t.U here"),
        (lambda: ModelSlot("s", "t.T", at="C"), "at is none there, and C here"),
    ],
)
def test_two_declarations_of_a_slot_are_told_by_their_lines_and_what_differs(
    module: Callable[..., Any], second: Callable[[], ModelSlot], differs: str
) -> None:
    first, other = ModelSlot("s", "t.T", {"a": 1}), second()
    with pytest.raises(SlotError) as caught:
        module(lambda g: (first.params(g), other.params(g))).record()
    assert f"declared twice, {first.where} and here: {differs}" in caught.value.what
    assert (caught.value.where, caught.value.line) == (other.where, int(other.where.rpartition(":")[2]))
