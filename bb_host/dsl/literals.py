"""From what authors write to what ops hold: numbers to constants, Python values to attributes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bb_edge.ir import types
from bb_edge.ir.onnx_pb2 import TensorProto
from bb_edge.ir.opsets import AttrKind
from bb_edge.ir.suggestions import suggestion
from bb_edge.ir.types import TypeNode, TypeRegistrationError, ValueType
from bb_host.dsl.names import VALUE_IN_NAME, holds_value
from bb_host.dsl.output import Output
from bb_host.dsl.recorder import Recorder
from bb_host.errors import AttributeValueError, TooLargeError, ValueTypeError
from bb_host.ir import artifact_size
from bb_host.ir.program import Array, AttrValue, RawAttribute, RawTensor, Subgraph

TypeLike = Any
"""A TypeNode, ValueType, NumPy dtype, element name (`F32`) or type id (`PeerIdVec`)."""


def as_type(graph: Recorder, like: TypeLike, shape: Sequence[int | str | None] | None = None) -> ValueType:
    """The type that an author names. Raises ValueTypeError for an unknown type, or a wrong `shape`."""
    if isinstance(like, ValueType):
        return like
    node: TypeNode | None
    if isinstance(like, TypeNode):
        node = like
    elif isinstance(like, str) and (types.by_id(like) or types.by_id(f"Tensor<{like}>")):
        node = types.by_id(like) or types.by_id(f"Tensor<{like}>")
    else:
        try:
            if like is None:  # which NumPy takes for F64
                raise TypeError("no type")
            node = types.tensor_type(like)
        except (TypeError, ValueError, SyntaxError, TypeRegistrationError) as error:
            near = suggestion(like, _type_names(), "") if isinstance(like, str) else ""
            hint = near if near.startswith("did") else "a NumPy dtype, 'F32', 'PeerIdVec' or a TypeNode"
            raise graph.error(ValueTypeError, f"{like!r} names no type", hint) from error
    assert node is not None
    if shape is None:
        return ValueType(node)
    if not types.is_subtype(node, types.TENSOR):
        raise graph.error(ValueTypeError, f"{node} has no shape")
    return ValueType(node, _shape(graph, shape))


_FREE_SIZE = re.compile(r"[A-Za-z_][\w.-]*")


def _shape(graph: Recorder, shape: object) -> tuple[int | str | None, ...]:
    """The sizes of a declared shape: numbers, names of free sizes, None."""
    if not isinstance(shape, (list, tuple)):
        near = f"one axis of {shape} is ({shape},)" if _whole(shape) else "write ('n', 4) or (None, 4)"
        raise graph.error(ValueTypeError, f"a shape is a tuple of sizes, not {shape!r}", near)
    found: list[int | str | None] = []
    for size in shape:
        if _whole(size) and 0 <= int(size) < 2**63:
            found.append(int(size))
        elif size is None or (isinstance(size, str) and _FREE_SIZE.fullmatch(size)):
            found.append(size)
        else:
            raise graph.error(
                ValueTypeError,
                f"{size!r} in the shape {tuple(shape)!r} is not a size",
                "a size is a number from 0, the name of a free size ('n'), or None where it is not known",
            )
    return tuple(found)


def _type_names() -> list[str]:
    names = [node.id for node in types.REGISTRY]
    return [*names, *(name[len("Tensor<") : -1] for name in names if name.startswith("Tensor<"))]


_F32_MAX = float(np.finfo(np.float32).max)
_F32_WHOLE = 2**24
"""Up to here F32 holds every whole number."""


def as_array(graph: Recorder, value: object, wanted: TypeNode | None) -> Array:
    """A number, array or list as an array of the wanted element type.

    Without one, arrays keep theirs, integers are I64, floats F32. ValueTypeError where the number is none of
    that type.
    """
    # What most constants are, first: a plain number that its type holds.
    if type(value) is float and (wanted is None or wanted is types.TENSOR_F32) and _fits(value):
        return np.array(value, np.float32)
    if type(value) is int and (wanted is None or wanted is types.TENSOR_I64) and _fits(value):
        return np.array(value, np.int64)
    if type(value) is int and wanted is types.TENSOR_F32 and -_F32_WHOLE <= value <= _F32_WHOLE:
        return np.array(value, np.float32)
    if wanted is types.TENSOR_BF16:
        raise no_bfloat16(graph, "a constant")
    natural = _natural(graph, value)
    dtype = None if wanted is None or wanted.elem_type is None else types.dtype_of_elem(wanted.elem_type)
    if dtype is None:
        if isinstance(value, (np.ndarray, np.generic)):
            dtype = natural.dtype
        else:
            kinds = {"b": np.bool_, "i": np.int64, "u": np.int64}
            dtype = np.dtype(kinds.get(natural.dtype.kind, np.float32))
    nbytes = natural.size * np.dtype(dtype).itemsize
    refuse_too_large(graph, nbytes)
    if natural.dtype == dtype:
        return natural
    with np.errstate(over="ignore", invalid="ignore"):
        found = natural.astype(dtype)
    if not _holds(found, natural):
        element = wanted if wanted is not None and wanted.elem_type is not None else types.tensor_type(dtype)
        raise graph.error(
            ValueTypeError,
            f"{value!r} does not fit {element}",
            "give a number that the type holds, or cast the other side with g.onnx.cast"
            if wanted is not None
            else "name an element type that holds it: g.constant(…, 'F64'), 'U64'",
        )
    return found


def refuse_too_large(graph: Recorder, nbytes: int) -> None:
    """TooLargeError for a constant of so many bytes that no program holds it."""
    if nbytes > artifact_size.MAX_BYTES:
        raise graph.error(
            TooLargeError,
            f"a constant of {nbytes:,} bytes, and a program holds {artifact_size.MAX_BYTES:,} at most",
            artifact_size.LOAD_INSTEAD,
        )


def _natural(graph: Recorder, value: object) -> Array:
    """The array of a number, array or list, in an element type of tensors. ValueTypeError without one."""
    if isinstance(value, (list, tuple)) and any(isinstance(v, Output) for v in value):
        remedy = (
            "g.bundle([…]) makes one value of several; 1-D values of one type are joined with"
            " g.onnx.concat(x, y, axis=0); g.constant makes one of a number"
        )
        if len(value) == 1:
            remedy = "a list arrives as a tuple: take its one value, [0], or send x, not [x]"
        raise graph.error(ValueTypeError, "a list of recorded values is not a tensor", remedy)
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise graph.error(
            ValueTypeError,
            f"{value!r} has masked elements, and a tensor has no mask",
            "fill them first: x.filled(0.0)",
        )
    try:
        found = np.asarray(value)
    except ValueError as error:
        raise graph.error(
            ValueTypeError,
            f"{value!r} is not a tensor: its rows differ in length",
            "give all rows the same number of elements",
        ) from error
    if isinstance(value, (np.ndarray, np.generic)):
        element_of(graph, value)
        return found.astype(found.dtype.newbyteorder("="), copy=False)
    if found.dtype.kind in "biuf" or (found.size == 0 and isinstance(value, (list, tuple))):
        return found
    if found.dtype.kind == "O" and all(isinstance(v, (int, float)) for v in found.ravel()):
        raise graph.error(
            ValueTypeError, f"{value!r} is beyond 64 bits", "the largest integer is 2**64 - 1, of U64"
        )
    hint = "pass what a DSL call returned"
    if hasattr(value, "after_values"):
        hint = SAYS_WHEN
    elif value is None:
        hint += "; x.shape is None where no shape is known: record g.onnx.shape(x)"
    elif isinstance(value, tuple) and all(v is None or isinstance(v, (int, str)) for v in value):
        hint += "; of a shape with open sizes record g.onnx.shape(x)"
    elif isinstance(value, (str, bytes)):
        hint = f"g.constant({value!r}) makes Bytes of a text, which events and requests take"
    raise graph.error(ValueTypeError, f"{value!r} is neither a recorded value nor a number", hint)


def element_of(graph: Recorder, array: Array | np.generic) -> TypeNode:
    """The tensor type of a NumPy value, in whatever order its bytes are. ValueTypeError without one."""
    try:
        return types.tensor_type(array.dtype.newbyteorder("="))
    except TypeRegistrationError:
        raise graph.error(
            ValueTypeError,
            f"an array of dtype {array.dtype} is not a tensor",
            "make it one of numbers: np.asarray(a, np.float32); tensors hold BOOL, I8 … I64, U8 … U64, F16, "
            "F32 and F64",
        ) from None


def _holds(found: Array, natural: Array) -> bool:
    """Whether numbers are still what they were, but for the digits that a smaller float has not."""
    both_float = natural.dtype.kind == "f" and found.dtype.kind == "f"
    if not natural.ndim:  # most constants are one number, for which NumPy's functions are slow
        before, after = natural.item(), found.item()
        return math.isinf(before) == math.isinf(after) if both_float else bool(before == after)
    if both_float:
        return np.array_equal(np.isinf(found), np.isinf(natural))
    # An integer that wraps may come back the same; its sign does not.
    if not np.array_equal(found.astype(natural.dtype), natural):
        return False
    return found.dtype.kind == "b" or np.array_equal(found < 0, natural < 0)


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


def no_bundle(graph: Recorder, value: Output) -> Output:
    """A value that a loop may carry and a body yield. ValueTypeError for a Composite: of what comes out of it
    nobody could tell which parts it has.
    """
    if types.is_subtype(value.node, types.COMPOSITE):
        raise graph.error(
            ValueTypeError,
            f"a body takes and yields single values, not {value!r}",
            "give the parts one by one, and bundle them behind it",
        )
    return value


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
    converted = _to_attribute(graph, name, kind, value)
    if isinstance(value, str) and holds_value(value):
        what = f"{op}: {name} {value!r} holds the text of a recorded value, which has no number yet"
        raise graph.error(AttributeValueError, what, VALUE_IN_NAME)
    if converted is None:
        takes = "True or False" if name in _FLAGS else KINDS.get(kind, "a value")
        numbers = value if isinstance(value, (list, tuple)) else [value]
        if all(isinstance(v, (int, float)) for v in numbers) and not all(map(_fits, numbers)):
            takes = (
                f"{takes} that {'F32' if kind in (AttrKind.FLOAT, AttrKind.FLOATS) else '64 bits'} can hold"
            )
        raise graph.error(
            AttributeValueError,
            f"{op}: attribute {name} is {kind.name.lower()}, not {value!r}",
            f"pass {takes}",
        )
    return converted


# fmt: off
_FLAGS = frozenset((
    "align_corners", "allowzero", "antialias", "ceil_mode", "center_point_box", "count_include_pad",
    "detect_negative", "detect_positive", "exclude_outside", "exclusive", "fmod", "input_forget", "inverse",
    "is_causal", "keepdims", "largest", "linear_before_reset", "new_axis", "noop_with_empty_axes", "onesided",
    "periodic", "reverse", "select_last_index", "sorted", "training_mode", "transA", "transB", "upper",
))
"""Attributes of ONNX that are whole numbers and mean yes or no."""

_COUNTS = frozenset((
    "axis", "batch_axis", "batch_dims", "blocksize", "delta", "fanout", "group", "hidden_size", "k", "min",
    "n", "p",
    "num_groups", "num_heads", "num_outputs", "seed", "size", "start", "end", "time_axis", "times",
))
"""Attributes of which True is not a value."""
# fmt: on


def _whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _fits(value: Any) -> bool:
    """Whether a number has 64 bits, or as a float those of F32."""
    return bool(abs(value) <= _F32_MAX if isinstance(value, float) else -(2**63) <= value < 2**63)


def _integer(value: object, name: str = "") -> bool:
    """Whether a value is a whole number of 64 bits; True and False are 1 and 0 where they can be meant."""
    if isinstance(value, (bool, np.bool_)):
        return name not in _COUNTS and not name.endswith("_ns")
    if not isinstance(value, (int, np.integer)) or not _fits(value):
        return False
    return name not in _FLAGS or int(value) in (0, 1)


def _float(value: Any) -> float | None:
    """A number as F32 holds it; None where it would be infinite there."""
    if not _number(value) or (isinstance(value, int) and abs(value) > _F32_MAX):
        return None
    with np.errstate(over="ignore"):
        found = float(np.float32(value))
    return None if math.isinf(found) and not math.isinf(value) else found


def _number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _text(value: object) -> bytes | None:
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else None


def _to_attribute(graph: Recorder, name: str, kind: AttrKind, value: Any) -> AttrValue | None:
    sequence = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim == 1)
    if kind is AttrKind.INT:
        if name in ("to", "dtype"):
            return element_number(graph, value)
        return int(value) if _integer(value, name) else None
    if kind is AttrKind.FLOAT:
        return _float(value)
    if kind is AttrKind.STRING:
        return _text(value)
    if kind is AttrKind.TENSOR:
        return value if isinstance(value, RawTensor) else as_array(graph, value, None)
    if kind is AttrKind.GRAPH:
        return value if isinstance(value, Subgraph) else None
    if kind is AttrKind.TYPE_PROTO:
        return as_type(graph, value)
    if kind is AttrKind.INTS and sequence and all(_whole(v) and _fits(v) for v in value):
        return [int(v) for v in value]
    if kind is AttrKind.FLOATS and sequence:
        numbers = [_float(v) for v in value]
        return [n for n in numbers if n is not None] if None not in numbers else None
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


SAYS_WHEN = "it says when, and holds no value: pass it as after="


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
    return f"a {node} comes from an input or from an op that yields one (docs/reference/ops.md)"
