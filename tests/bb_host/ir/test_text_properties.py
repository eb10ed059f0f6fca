"""Random programs: their text gives them back, and so do their protos."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from program_text import parse

from bb_edge.ir import keys, types
from bb_edge.ir.types import ValueType
from bb_host.ir.program import Function, Op, Program, Slot, Subgraph
from bb_host.ir.proto import from_proto, to_proto
from bb_host.ir.spelling import function_facts, op_facts, program_facts
from bb_host.ir.text import print_program

NAMES = st.one_of(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=6),
    st.sampled_from(["slot", "function", "type", "extra", "a::b", "/conv/W:0", "0x1f", "1", "graph", '"q"']),
)
DOMAINS = st.sampled_from(
    [
        "",
        keys.SYSCALL_DOMAIN,
        keys.WIRE_DOMAIN,
        keys.ROLE_MODEL_DOMAIN,
        keys.COMPONENT_DOMAIN,
        "user.app",
        "odd one",
    ]
)
NODES = st.sampled_from(
    [
        types.ANY,
        types.TENSOR,
        types.TENSOR_F32,
        types.TENSOR_BOOL,
        types.TENSOR_BF16,
        types.TRIGGER,
        types.SCALAR_F32,
    ]
)
DIMS = st.one_of(st.none(), st.integers(0, 9), st.sampled_from(["n", "batch size", "0"]))


@st.composite
def value_types(draw: Any) -> ValueType:
    node = draw(NODES)
    if not types.is_subtype(node, types.TENSOR):
        return ValueType(node)
    return ValueType(node, draw(st.one_of(st.none(), st.lists(DIMS, max_size=3).map(tuple))))


ARRAYS = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.uint8, np.int8, np.bool_, np.uint64]),
    hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=5),
)
FLOATS = st.floats(width=32, allow_nan=False)  # a NaN is written `nan`, whatever its bits
TEXTS = st.one_of(st.binary(max_size=6), st.text(max_size=6).map(str.encode))
INTS = st.integers(-(2**63), 2**63 - 1)
FLAT: st.SearchStrategy[Any] = st.one_of(
    INTS,
    FLOATS,
    TEXTS,
    st.lists(INTS, max_size=3),
    st.lists(FLOATS, min_size=1, max_size=3),
    st.lists(TEXTS, min_size=1, max_size=3),
    ARRAYS,
    value_types(),
)
METAS = st.dictionaries(
    st.one_of(
        NAMES, NAMES.map(lambda n: f"{keys.PREFIX}.{n}"), st.sampled_from([keys.SLOT_KEY, keys.PORT_KEY])
    ),
    st.text(max_size=8),
    max_size=3,
)
ATTR_NAMES = st.one_of(NAMES, st.just(keys.CHILD_COUNT_ATTR))


@st.composite
def op_lists(draw: Any, depth: int) -> tuple[Op, ...]:
    ops = []
    for _ in range(draw(st.integers(0, 3))):
        attrs = draw(st.dictionaries(ATTR_NAMES, FLAT, max_size=3))
        if depth and draw(st.booleans()):
            attrs["body"] = draw(subgraphs(depth - 1))
        inputs = draw(st.lists(st.one_of(NAMES, st.just("")), max_size=3))
        outputs = draw(st.lists(st.one_of(NAMES, st.just("")), max_size=2))
        op_type = draw(st.one_of(NAMES, st.sampled_from(["Limit.Acquire", "Add", "model.forward#a"])))
        ops.append(
            Op(
                op_type,
                draw(DOMAINS),
                tuple(inputs),
                tuple(outputs),
                attrs,
                op_facts(draw(METAS)),
                draw(st.sampled_from(["", "n"])),
            )
        )
    return tuple(ops)


def _types(draw: Any, names: Any) -> dict[str, ValueType]:
    return {name: draw(value_types()) for name in dict.fromkeys(names) if name and draw(st.booleans())}


@st.composite
def subgraphs(draw: Any, depth: int) -> Subgraph:
    ops = draw(op_lists(depth))
    inputs = tuple(draw(st.lists(NAMES, max_size=2, unique=True)))
    outputs = tuple(n for op in ops for n in op.outputs if n and n not in inputs)
    outputs = tuple(dict.fromkeys(outputs))
    known = _types(draw, [*inputs, *outputs])
    tensors = draw(st.dictionaries(NAMES, ARRAYS, max_size=2))
    return Subgraph(draw(NAMES), inputs, outputs, ops, known, tensors, draw(METAS))


def _in_order(model: Any) -> Any:
    """The model with opsets and value infos by name: their order is not part of the text."""
    opsets = sorted(model.opset_import, key=lambda opset: opset.domain)
    del model.opset_import[:]
    model.opset_import.extend(opsets)
    stack = list(model.functions)
    while stack:
        owner = stack.pop()
        infos = sorted(owner.value_info, key=lambda info: info.name)
        del owner.value_info[:]
        owner.value_info.extend(infos)
        attributes = [a for node in owner.node for a in node.attribute]
        attributes += getattr(owner, "attribute_proto", [])
        stack += [a.g for a in attributes if a.HasField("g")]
    return model


@st.composite
def functions(draw: Any) -> Function:
    ops = draw(op_lists(2))
    inputs = tuple(draw(st.lists(NAMES, max_size=2, unique=True)))
    values = [*inputs, *(n for op in ops for n in op.outputs)]
    slots = {
        name: Slot(
            draw(st.sampled_from(keys.ROLES)),
            "t.T",
            draw(st.sampled_from(["", "Client"])),
            draw(st.sampled_from(["", "Server"])),
            draw(st.one_of(st.none(), st.binary(max_size=4), subgraphs(0))),
        )
        for name in draw(st.lists(NAMES, max_size=2, unique=True))
    }
    ordered = {n: s for flag in (False, True) for n, s in slots.items() if s.is_concrete is flag}
    opsets = draw(st.dictionaries(DOMAINS, st.integers(1, 30), max_size=3))
    return Function(
        draw(NAMES),
        draw(DOMAINS),
        inputs,
        tuple(values[:1]),
        ops,
        _types(draw, values),
        ordered,
        function_facts(draw(METAS)),
        opsets,
    )


# Without shrinking: it would take minutes, and the text of a failing program says enough.
@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
@given(st.data())
def test_text_and_protos_give_programs_back(data: Any) -> None:
    program = Program(
        data.draw(NAMES),
        tuple(data.draw(st.lists(functions(), max_size=2))),
        program_facts(data.draw(METAS)),
        data.draw(st.dictionaries(DOMAINS, st.integers(1, 30), max_size=3)),
    )
    text = print_program(program)
    again = parse(text)
    assert print_program(again) == text
    model = to_proto(program)
    assert to_proto(from_proto(model)) == model
    assert _in_order(to_proto(again)) == _in_order(model)
