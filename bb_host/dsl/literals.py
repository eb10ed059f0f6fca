"""From what authors write to what ops hold: numbers to constants, Python values to attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.ir import types
from bb_edge.ir.onnx_pb2 import TensorProto
from bb_edge.ir.opsets import AttrKind
from bb_edge.ir.suggestions import suggestion
from bb_edge.ir.types import TypeNode, TypeRegistrationError, ValueType
from bb_host import artifact_size
from bb_host.dsl.errors import AttributeValueError, TooLargeError, ValueTypeError
from bb_host.dsl.output import Output
from bb_host.program import Array, AttrValue, RawAttribute, RawTensor, Subgraph

if TYPE_CHECKING:
    from bb_host.dsl.recorder import Recorder

TypeLike = Any
"""A TypeNode, ValueType, NumPy dtype, element name (`F32`) or type id (`PeerIdVec`)."""


def as_type(graph: Recorder, like: TypeLike, shape: Sequence[int | str | None] | None = None) -> ValueType:
    """The type that an author names. ValueTypeError where there is none."""
    if isinstance(like, ValueType):
        return like
    node: TypeNode | None
    if isinstance(like, TypeNode):
        node = like
    elif isinstance(like, str) and (types.by_id(like) or types.by_id(f"Tensor<{like}>")):
        node = types.by_id(like) or types.by_id(f"Tensor<{like}>")
    else:
        try:
            node = types.tensor_type(like)
        except (TypeError, TypeRegistrationError) as error:
            near = suggestion(like, _type_names(), "") if isinstance(like, str) else ""
            hint = near if near.startswith("did") else "a NumPy dtype, 'F32', 'PeerIdVec' or a TypeNode"
            raise graph.error(ValueTypeError, f"{like!r} names no type", hint) from error
    assert node is not None
    if shape is None:
        return ValueType(node)
    if not types.is_subtype(node, types.TENSOR):
        raise graph.error(ValueTypeError, f"{node} has no shape")
    return ValueType(node, tuple(shape))


def _type_names() -> list[str]:
    names = [node.id for node in types.REGISTRY]
    return [*names, *(name[len("Tensor<") : -1] for name in names if name.startswith("Tensor<"))]


def as_array(graph: Recorder, value: object, wanted: TypeNode | None) -> Array:
    """A number, array or list as an array of the wanted element type.

    Without one, arrays keep theirs, integers are I64, floats F32. ValueTypeError where the number is none of
    that type.
    """
    if isinstance(value, (list, tuple)) and any(isinstance(v, Output) for v in value):
        raise graph.error(
            ValueTypeError,
            "a list that holds values is no tensor",
            "join 1-D values with g.onnx.concat(x, y, axis=0); g.constant makes one of a number",
        )
    if wanted is types.TENSOR_BF16:
        raise no_bfloat16(graph, "a constant")
    natural = np.asarray(value)
    if natural.dtype.kind not in "biuf" and not (natural.size == 0 and isinstance(value, (list, tuple))):
        hint = "pass what a DSL call returned"
        if hasattr(value, "after_values"):
            hint = "it says when, and holds no value: pass it as after="
        raise graph.error(ValueTypeError, f"{value!r} is no value and no number", hint)
    dtype = None if wanted is None or wanted.elem_type is None else types.dtype_of_elem(wanted.elem_type)
    if dtype is None:
        if isinstance(value, (np.ndarray, np.generic)):
            dtype = natural.dtype
        else:
            kinds = {"b": np.bool_, "i": np.int64, "u": np.int64}
            dtype = np.dtype(kinds.get(natural.dtype.kind, np.float32))
    nbytes = natural.size * np.dtype(dtype).itemsize
    if nbytes > artifact_size.MAX_BYTES:
        raise graph.error(
            TooLargeError,
            f"a constant of {nbytes:,} bytes, and a program holds {artifact_size.MAX_BYTES:,} at most",
            artifact_size.LOAD_INSTEAD,
        )
    if natural.dtype != dtype:
        with np.errstate(over="ignore", invalid="ignore"):
            found = natural.astype(dtype)
        exact = natural.dtype.kind == "f" and dtype.kind == "f"
        if not exact and natural.size and not np.array_equal(found.astype(natural.dtype), natural):
            raise graph.error(
                ValueTypeError, f"{value!r} is no {wanted or dtype}", "cast the other side with g.onnx.cast"
            )
        natural = found
    return natural


def no_bfloat16(graph: Recorder, what: str) -> ValueTypeError:
    """The error for computing with bfloat16, whose bytes a device passes on and no more."""
    return graph.error(
        ValueTypeError, f"{what}: no device computes with BF16", "use F16 or F32; cast weights on the host"
    )


def lift(graph: Recorder, value: object, wanted: TypeNode | None = None) -> Output:
    """A value as it is, a number as a constant."""
    if isinstance(value, Output):
        return graph.own(value)
    return graph.tensor_constant(as_array(graph, value, wanted))


def element_number(graph: Recorder, like: TypeLike) -> int:
    """ONNX's element type number, from a number or anything that names a tensor type."""
    if isinstance(like, (int, np.integer)) and not isinstance(like, bool):
        if int(like) not in TensorProto.DataType.values() or not int(like):
            raise graph.error(
                AttributeValueError,
                f"ONNX has no element type {int(like)}",
                "name one: 'F32', 'I64', np.float32, …",
            )
        return int(like)
    node = as_type(graph, like).node
    if node.elem_type is None:
        raise graph.error(ValueTypeError, f"{node} has no element type")
    return node.elem_type


KINDS = {
    AttrKind.INT: "a whole number",
    AttrKind.FLOAT: "a number",
    AttrKind.STRING: "a text",
    AttrKind.INTS: "a list of whole numbers",
    AttrKind.FLOATS: "a list of numbers",
    AttrKind.STRINGS: "a list of texts",
    AttrKind.TENSOR: "an array or numbers",
    AttrKind.TYPE_PROTO: "a type: 'F32', 'PeerIdVec', np.float32",
}
"""What an attribute of a kind takes, for messages."""


def as_attribute(graph: Recorder, op: str, name: str, kind: AttrKind, value: object) -> AttrValue:
    """The attribute value of a kind. AttributeValueError where the author's value is none."""
    converted = _convert(graph, name, kind, value)
    if converted is None:
        raise graph.error(
            AttributeValueError,
            f"{op}: attribute {name} is {kind.name.lower()}, not {value!r}",
            f"pass {KINDS.get(kind, 'a value')}",
        )
    return converted


def _integer(value: object) -> bool:
    return isinstance(value, (int, np.integer, np.bool_))


def _number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _text(value: object) -> bytes | None:
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else None


def _convert(graph: Recorder, name: str, kind: AttrKind, value: Any) -> AttrValue | None:
    sequence = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim == 1)
    if kind is AttrKind.INT:
        if name in ("to", "dtype"):
            return element_number(graph, value)
        return int(value) if _integer(value) else None
    if kind is AttrKind.FLOAT:
        return float(np.float32(value)) if _number(value) else None
    if kind is AttrKind.STRING:
        return _text(value)
    if kind is AttrKind.TENSOR:
        return value if isinstance(value, RawTensor) else as_array(graph, value, None)
    if kind is AttrKind.GRAPH:
        return value if isinstance(value, Subgraph) else None
    if kind is AttrKind.TYPE_PROTO:
        return as_type(graph, value)
    if kind is AttrKind.INTS and sequence and all(map(_integer, value)):
        return [int(v) for v in value]
    if kind is AttrKind.FLOATS and sequence and all(map(_number, value)):
        return [float(np.float32(v)) for v in value]
    if kind is AttrKind.STRINGS and sequence:
        texts = [_text(v) for v in value]
        return [t for t in texts if t is not None] if None not in texts else None
    if kind is AttrKind.ANY:
        if isinstance(value, (bytes, str)):
            return _text(value)
        if isinstance(value, (RawAttribute, RawTensor, Subgraph, ValueType)):
            return value
        return as_array(graph, value, None)
    return None


def check_names(graph: Recorder, op: str, given: Mapping[str, object], known: Sequence[str]) -> None:
    """AttributeValueError for a keyword that the op does not know."""
    for name in given:
        if name not in known:
            hint = suggestion(name, known, "it has ") or "it has none"
            raise graph.error(AttributeValueError, f"{op} has no attribute or input {name!r}", hint)


def type_hint(node: TypeNode, given: TypeNode | None = None) -> str:
    """What to do where a `node` is expected and a value of another type, or no value, was given."""
    if given is types.PEER_ID_VEC and node is types.PEER_ID:
        return "take one of the list: g.peer_at(peers, 0)"
    if given is types.PEER_ID and node is types.PEER_ID_VEC:
        return "make a list of it: g.peer_list(peer)"
    if given is types.ADDRESS_VEC and node is types.MULTIADDRESS:
        return "take one of the list: g.address_at(addresses, 0)"
    if given is types.MULTIADDRESS and node is types.ADDRESS_VEC:
        return "make a list of it: g.address_list(address)"
    if node is types.MULTIADDRESS:
        return "addresses come from an input, g.address_at(…), or g.address_of(peer)"
    if given is types.TIMESTAMP and types.is_subtype(node, types.TENSOR):
        return "a difference is g.elapsed(since, until), a number of nanoseconds g.as_tensor(value)"
    if given in types.NUMBERS and types.is_subtype(node, types.TENSOR):
        return "take its number: g.as_tensor(value)"
    if node is types.PEER_ID_VEC:
        return "peers come from a PeerSelectorSlot, an input, or a .sender"
    if node.elem_type is not None:
        return "cast it with g.onnx.cast(x, to=…)"
    if node is types.TRIGGER:
        return "a trigger comes from g.pulse, g.threshold(1, value), r.closed or an input"
    if node is types.TENSOR:
        return "a tensor comes from an input, g.constant, g.onnx or a component"
    return f"a {node} comes from an input or from an op that yields one (docs/ops.md)"
