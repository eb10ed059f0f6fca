"""The printer of the text notation (see `bb_host.ir.text`)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from bb_edge.ir import keys
from bb_edge.ir.types import TENSOR, ValueType, tensor_type
from bb_host.ir.program import (
    Array,
    AttrValue,
    Function,
    Op,
    Program,
    RawTensor,
    Slot,
    Subgraph,
)
from bb_host.ir.spelling import written
from bb_host.ir.text.names import (
    KEYWORDS,
    META_WORD,
    NAME_OF_ELEM,
    SHORT_OF_DOMAIN,
    WORD,
    implied_opsets,
    implied_program_opsets,
    split_op,
)

_INLINE_ELEMENTS = 16
"""Tensors up to this many elements are printed as numbers, larger ones as hex bytes."""


def print_program(program: Program, omit: Sequence[str] = ()) -> str:
    """The whole program; `omit` names facts to leave out, such as `source`."""
    head = f"program {_word(program.name)}{_meta(written(program.facts.without(*omit)))}"
    if program.graph_name:
        head += f" graph {_word(program.graph_name)}"
    lines = [head]
    if program.extra:
        lines.append(f"extra 0x{program.extra.hex()}")
    if program.opsets != implied_program_opsets(program.functions):
        lines.append(_opsets(program.opsets))
    for function in program.functions:
        lines += ["", print_function(function, omit).rstrip("\n")]
    return "\n".join(lines) + "\n"


def print_function(function: Function, omit: Sequence[str] = ()) -> str:
    """One function, as it stands in a program's text."""
    inputs = ", ".join(_value(name, function.types) for name in function.inputs)
    outputs = ", ".join(map(_word, function.outputs))
    name = _qualified(function.domain, function.name)
    lines = [f"function {name}({inputs}) -> ({outputs}){_meta(written(function.facts.without(*omit)))}"]
    if function.extra:
        lines.append(f"  extra 0x{function.extra.hex()}")
    if function.opsets != implied_opsets(function.ops):
        lines.append("  " + _opsets(function.opsets))
    lines += ["  " + _slot(name, slot) for name, slot in function.slots.items()]
    lines += _body(function.ops, function.types, function.foreign_types, function.inputs, omit, "  ")
    return "\n".join(lines) + "\n"


def print_op(
    op: Op, types: Mapping[str, ValueType] | None = None, omit: Sequence[str] = (), indent: str = ""
) -> str:
    """One op, with the types of its outputs where `types` has them."""
    outputs = ", ".join(_value(name, types or {}) for name in op.outputs)
    text = f"{outputs} = " if op.outputs else ""
    text += _qualified(op.domain, op.op_type)
    if op.attrs:
        attrs = (f"{_attr_name(name)}={_attr(value, indent)}" for name, value in op.attrs.items())
        text += f"<{', '.join(attrs)}>"
    text += f"({', '.join(map(_word, op.inputs))})"
    if op.name:
        text += f" @{_word(op.name)}"
    if op.extra:
        text += f" extra 0x{op.extra.hex()}"
    return text + _meta(written(op.facts.without(*omit)))


def _body(
    ops: Sequence[Op],
    types: Mapping[str, ValueType],
    foreign: Mapping[str, bytes],
    inputs: Sequence[str],
    omit: Sequence[str],
    indent: str,
) -> list[str]:
    defined = {*inputs, *(name for op in ops for name in op.outputs)}
    lines = [f"{indent}type {_value(name, types)}" for name in types if name not in defined]
    lines += [f"{indent}type {_word(name)} extra 0x{data.hex()}" for name, data in foreign.items()]
    lines += [indent + print_op(op, types, omit, indent) for op in ops]
    return lines


def _word(name: str) -> str:
    return name if WORD.fullmatch(name) and name not in KEYWORDS else json.dumps(name)


def _qualified(domain: str, name: str) -> str:
    short = SHORT_OF_DOMAIN.get(domain)
    if domain == keys.ONNX_DOMAIN:
        whole = name
    elif short is not None:
        whole = f"{short}.{name}"
    else:
        return f"{json.dumps(domain)}::{_word(name)}"
    if WORD.fullmatch(whole) and split_op(whole) == (domain, name) and whole not in KEYWORDS:
        return whole
    return f"{json.dumps(domain)}::{json.dumps(name)}"


def _value(name: str, types: Mapping[str, ValueType]) -> str:
    value = types.get(name)
    return _word(name) if value is None else f"{_word(name)}: {print_type(value)}"


def print_type(value: ValueType) -> str:
    """`F32[2,n,?]`, `PeerIdVec`."""
    node = value.node
    text = NAME_OF_ELEM[node.elem_type] if node.elem_type is not None else node.id
    if node.elem_type is None and node is not TENSOR:
        text = _word(text) if "<" not in text else json.dumps(text)
    if value.shape is None:
        return text
    return f"{text}[{','.join(_dim(d) for d in value.shape)}]"


def _dim(dim: int | str | None) -> str:
    return "?" if dim is None else str(dim) if isinstance(dim, int) else _word(dim)


def _meta(meta: Mapping[str, str]) -> str:
    entries = []
    prefix = keys.PREFIX + "."
    for key, value in meta.items():
        short = key[len(prefix) :]
        plain = key.startswith(prefix) and WORD.fullmatch(short)
        text = value if META_WORD.fullmatch(value) else json.dumps(value)
        entries.append(f"{short if plain else json.dumps(key)}={text}")
    return f" {{{', '.join(entries)}}}" if entries else ""


def _opsets(opsets: Mapping[str, int]) -> str:
    entries = (f"{SHORT_OF_DOMAIN.get(d) or json.dumps(d)} {version}" for d, version in opsets.items())
    return "opset " + (", ".join(entries) or "-")


def _slot(name: str, slot: Slot) -> str:
    text = f"slot {_word(name)}: {slot.role or '-'}"
    if slot.peer_class:
        text += f" peer_class={_word(slot.peer_class)}"
    if slot.at:
        text += f" at={_word(slot.at)}"
    if slot.concrete_type or slot.state is not None:
        text += f" = {_word(slot.concrete_type)}"
    if slot.state is not None:
        state = f"0x{slot.state.hex()}" if isinstance(slot.state, bytes) else _attr(slot.state, "  ")
        text += f"({state})"
    return text


def _attr_name(name: str) -> str:
    if name.startswith(keys.PREFIX + ".") and WORD.fullmatch(name[len(keys.PREFIX) + 1 :]):
        return name[len(keys.PREFIX) :]
    return name if WORD.fullmatch(name) else json.dumps(name)


def _attr(value: AttrValue, indent: str) -> str:
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, bytes):
        return _bytes(value)
    if isinstance(value, np.ndarray):
        return _tensor(value)
    if isinstance(value, list):
        return f"[{', '.join(_attr(v, indent) for v in value)}]"
    if isinstance(value, Subgraph):
        return _graph(value, indent)
    if isinstance(value, ValueType):
        return f"type({print_type(value)})"
    if isinstance(value, RawTensor):
        shape = ",".join(map(str, value.shape))
        return f"tensor({value.elem_type})[{shape}]0x{value.data.hex()}"
    return f"attribute({value.kind})0x{value.data.hex()}"


def _float(value: float) -> str:
    """The shortest text that is the same float32, which is all that an ONNX attribute holds."""
    if math.isnan(value) or math.isinf(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    text = str(np.float32(value))
    return text if any(c in text for c in ".en") else text + ".0"


def _bytes(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "0x" + value.hex()
    return json.dumps(text) if text.isprintable() else "0x" + value.hex()


def _tensor(array: Array) -> str:
    value = ValueType(tensor_type(array.dtype), tuple(int(d) for d in array.shape))
    floating = array.dtype.kind == "f"
    if array.size > _INLINE_ELEMENTS or (floating and not bool(np.isfinite(array).all())):
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return f"{print_type(value)}0x{little.tobytes().hex()}"
    numbers = (str(int(v)) if array.dtype.kind == "b" else str(v) for v in array.ravel())
    return f"{print_type(value)}{{{', '.join(numbers)}}}"


def _graph(graph: Subgraph, indent: str) -> str:
    inner = indent + "  "
    inputs = ", ".join(_value(name, graph.types) for name in graph.inputs)
    outputs = ", ".join(map(_word, graph.outputs))
    lines = [f"graph {_word(graph.name)}({inputs}) -> ({outputs}) {{"]
    if graph.config:
        lines.append(f"{inner}meta{_meta(graph.config)}")
    if graph.extra:
        lines.append(f"{inner}extra 0x{graph.extra.hex()}")
    for name, tensor in graph.initializers.items():
        lines.append(f"{inner}init {_word(name)} = {_attr(tensor, inner)}")
    lines += _body(graph.ops, graph.types, graph.foreign_types, graph.inputs, (), inner)
    return "\n".join([*lines, indent + "}"])
