"""The types of values: a tree from `Any` down, to which programs can add their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import fnv1a_64


class TypeRegistrationError(BBError):
    """A type whose name, denotation or hash is taken, or that cannot be a type."""


class TypeNode(NamedTuple):
    """One type; `wire_hash` is None where it does not travel, `elem_type` is ONNX's number for tensors."""

    id: str
    parent: TypeNode | None
    abstract: bool
    denotation: str
    wire_hash: int | None = None
    elem_type: int | None = None
    version: int = 1

    def __repr__(self) -> str:
        return self.id


def compute_wire_hash(name: str, version: int) -> int:
    """Returns FNV-1a-64 of `"{name}@{version}"`."""
    return fnv1a_64(f"{name}@{version}".encode())


_NAME = re.compile(r"[\w.<>-]+")


class TypeRegistry:
    """Types by id, denotation and wire hash."""

    def __init__(self) -> None:
        self._by_id: dict[str, TypeNode] = {}
        self._by_denotation: dict[str, TypeNode] = {}
        self._by_hash: dict[int, TypeNode] = {}

    def add(self, node: TypeNode) -> TypeNode:
        """Adds a type. TypeRegistrationError where another one has its name, denotation or hash."""
        known = self._by_id.get(node.id)
        if known == node:
            return known
        if known is not None or node.denotation in self._by_denotation:
            what = "its name or denotation is taken"
            raise TypeRegistrationError(what, f"type {node.id}", "choose another name")
        if node.wire_hash is not None and node.wire_hash in self._by_hash:
            what = f"its wire hash is {self._by_hash[node.wire_hash]}'s"
            raise TypeRegistrationError(what, f"type {node.id}", "change its name or version")
        self._by_id[node.id] = node
        self._by_denotation[node.denotation] = node
        if node.wire_hash is not None:
            self._by_hash[node.wire_hash] = node
        return node

    def register_type(self, name: str, parent: TypeNode | None = None, version: int = 1) -> TypeNode:
        """Registers a user's concrete type, hashed from name and version; once more gives the same type.

        Raises TypeRegistrationError where the name belongs to another parent or version, or the hash is
        taken.
        """
        above = ANY if parent is None else parent
        taken = f"Tensor<{name}>" in self._by_id
        if taken or not isinstance(name, str) or len(name) < 2 or not _NAME.fullmatch(name):
            raise TypeRegistrationError(
                f"{name!r} means a tensor of that element type"
                if taken
                else f"{name!r} cannot be a name of a type",
                "register_type",
                'name it after your package: "acme.Point"',
            )
        return self.add(TypeNode(name, above, False, name, compute_wire_hash(name, version), None, version))

    def by_id(self, name: str) -> TypeNode | None:
        """Returns the type of an id; None where there is none."""
        return self._by_id.get(name)

    def by_denotation(self, denotation: str) -> TypeNode | None:
        """Returns the type of a denotation; None where there is none."""
        return self._by_denotation.get(denotation)

    def by_wire_hash(self, wire_hash: int) -> TypeNode | None:
        """Returns the type of a wire hash; None where there is none."""
        return self._by_hash.get(wire_hash)

    def __iter__(self) -> Iterator[TypeNode]:
        return iter(tuple(self._by_id.values()))


REGISTRY = TypeRegistry()
_add = REGISTRY.add

ANY = _add(TypeNode("Any", None, True, "bb.any"))
TENSOR = _add(TypeNode("Tensor", ANY, True, f"{keys.TENSOR_DENOTATION_PREFIX}any"))
SCALAR = _add(TypeNode("Scalar", ANY, True, "bb.scalar"))

_PREFIX = keys.TENSOR_DENOTATION_PREFIX
# Name, ONNX element type, NumPy dtype, in the order of their wire hashes.
_ELEMENTS = (
    ("F32", 1, np.float32),
    ("F64", 11, np.float64),
    ("F16", 10, np.float16),
    ("U8", 2, np.uint8),
    ("I32", 6, np.int32),
    ("BOOL", 9, np.bool_),
    ("BF16", 16, np.uint16),  # kept as its 16 bits: NumPy has no bfloat16
    ("I8", 3, np.int8),
    ("I16", 5, np.int16),
    ("I64", 7, np.int64),
    ("U16", 4, np.uint16),
    ("U32", 12, np.uint32),
    ("U64", 13, np.uint64),
)
TENSOR_HASHES = range(0x0101, 0x0101 + len(_ELEMENTS))
"""The wire hashes of tensors."""
_TENSORS = {
    name: _add(TypeNode(f"Tensor<{name}>", TENSOR, False, _PREFIX + name.lower(), wire_hash, elem))
    for wire_hash, (name, elem, _) in zip(TENSOR_HASHES, _ELEMENTS, strict=True)
}
TENSOR_F32, TENSOR_F64, TENSOR_F16 = _TENSORS["F32"], _TENSORS["F64"], _TENSORS["F16"]
TENSOR_U8, TENSOR_U16, TENSOR_U32, TENSOR_U64 = (_TENSORS[n] for n in ("U8", "U16", "U32", "U64"))
TENSOR_I8, TENSOR_I16, TENSOR_I32, TENSOR_I64 = (_TENSORS[n] for n in ("I8", "I16", "I32", "I64"))
TENSOR_BOOL, TENSOR_BF16 = _TENSORS["BOOL"], _TENSORS["BF16"]

SCALAR_F32, SCALAR_F64, SCALAR_F16, SCALAR_U8, SCALAR_I32 = (
    _add(TypeNode(f"Scalar<{name}>", SCALAR, False, f"bb.scalar.{name.lower()}", 0x0201 + i))
    for i, name in enumerate(("F32", "F64", "F16", "U8", "I32"))
)

TRIGGER = _add(TypeNode("Trigger", ANY, False, "bb.trigger", 0x0A))
BYTES = _add(TypeNode("Bytes", ANY, False, "bb.bytes", 0x0B))
PEER_ID = _add(TypeNode("PeerId", ANY, False, "bb.peer_id", 0x10))
WIRE_REQ_ID = _add(TypeNode("WireReqId", ANY, False, "bb.wire_req_id", 0x11))
PEER_ID_VEC = _add(TypeNode("PeerIdVec", ANY, False, "bb.peer_id_vec", 0x12))
MULTIADDRESS = _add(TypeNode("Multiaddress", ANY, False, "bb.multiaddress", 0x0301))
COMPOSITE = _add(TypeNode("Composite", ANY, False, "bb.composite", 0x0302))
ADDRESS_VEC = _add(TypeNode("AddressVec", ANY, False, "bb.address_vec", 0x0303))
REQUEST_ID, COMMAND_ID, TIMESTAMP, EVENT_KIND, CORRELATION_TOKEN, RESPONSE_BATCH = (
    _add(TypeNode(name, ANY, False, denotation))
    for name, denotation in (
        ("RequestId", "bb.request_id"),
        ("CommandId", "bb.command_id"),
        ("Timestamp", "bb.timestamp"),
        ("EventKind", "bb.event_kind"),
        ("CorrelationToken", "bb.correlation_token"),
        ("ResponseBatch", "bb.response_batch"),
    )
)

NUMBERS = {
    SCALAR_F32: TENSOR_F32,
    SCALAR_F64: TENSOR_F64,
    SCALAR_F16: TENSOR_F16,
    SCALAR_U8: TENSOR_U8,
    SCALAR_I32: TENSOR_I32,
    TIMESTAMP: TENSOR_I64,
    EVENT_KIND: TENSOR_I64,
    CORRELATION_TOKEN: TENSOR_U64,
}
"""Types whose values are single numbers, and the tensors that hold such numbers."""

_BY_ELEM = {elem: _TENSORS[name] for name, elem, _ in _ELEMENTS}
_DTYPE_OF_ELEM: dict[int, np.dtype[Any]] = {elem: np.dtype(dtype) for _, elem, dtype in _ELEMENTS}
_ELEM_OF_DTYPE = {np.dtype(dtype): elem for name, elem, dtype in _ELEMENTS if name != "BF16"}


def register_type(name: str, parent: TypeNode | None = None, version: int = 1) -> TypeNode:
    """Registers a user's type in the default registry."""
    return REGISTRY.register_type(name, parent, version)


def by_id(name: str) -> TypeNode | None:
    """Returns the type of an id; None where there is none."""
    return REGISTRY.by_id(name)


def by_denotation(denotation: str) -> TypeNode | None:
    """Returns the type of a denotation; None where there is none."""
    return REGISTRY.by_denotation(denotation)


by_wire_hash = REGISTRY.by_wire_hash
"""`by_wire_hash(number)`: the type of a wire hash, or None."""


def is_subtype(a: TypeNode, b: TypeNode) -> bool:
    """Returns whether every `a` is a `b`."""
    node: TypeNode | None = a
    while node is not None:
        if node is b or node == b:
            return True
        node = node.parent
    return False


def compatible(a: TypeNode, b: TypeNode) -> bool:
    """Returns whether one type is a subtype of the other, so that a value could be both."""
    return is_subtype(a, b) or is_subtype(b, a)


def join(a: TypeNode, b: TypeNode) -> TypeNode:
    """Returns the least common ancestor."""
    node: TypeNode | None = a
    while node is not None and not is_subtype(b, node):
        node = node.parent
    return ANY if node is None else node


def tensor_of_elem(elem_type: int) -> TypeNode | None:
    """Returns the tensor type of an ONNX element type; None for those without one (strings, float8, …)."""
    return _BY_ELEM.get(elem_type)


dtype_of_elem = _DTYPE_OF_ELEM.get
"""`dtype_of_elem(number)`: NumPy's dtype of an ONNX element type, or None; bfloat16 is held as uint16."""

elem_of_dtype = _ELEM_OF_DTYPE.get
"""`elem_of_dtype(dtype)`: ONNX's element type of a native-endian dtype, or None; uint16 is U16, not BF16."""


def tensor_type(dtype: Any) -> TypeNode:
    """Returns the tensor type of a NumPy dtype; uint16 is U16, never BF16.

    Raises TypeRegistrationError for a dtype without one.
    """
    elem = _ELEM_OF_DTYPE.get(np.dtype(dtype))
    if elem is None:
        raise TypeRegistrationError(f"no tensor type for dtype {np.dtype(dtype)}", "tensor_type")
    return _BY_ELEM[elem]


class ValueType(NamedTuple):
    """A value's type: the node, and a tensor's shape.

    A dimension is a number, a symbol, or None where it is unknown; a shape of None is an unknown rank.
    """

    node: TypeNode
    shape: tuple[int | str | None, ...] | None = None

    def __str__(self) -> str:
        if self.shape is None:
            return self.node.id
        return f"{self.node.id}[{','.join('?' if d is None else str(d) for d in self.shape)}]"


SharedDims: TypeAlias = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
"""Names of free sizes that occur at several places, each with its places as (input, axis)."""


def shared_dims(declared: Mapping[str, ValueType]) -> SharedDims:
    """Returns the free sizes that several inputs share by name, and so must agree on."""
    places: dict[str, list[tuple[str, int]]] = {}
    for name, kind in declared.items():
        for axis, dim in enumerate(kind.shape or ()):
            if isinstance(dim, str):
                places.setdefault(dim, []).append((name, axis))
    return tuple((dim, tuple(found)) for dim, found in places.items() if len(found) > 1)


def differing_dim(shared: SharedDims, shapes: Mapping[str, Sequence[int]]) -> str:
    """Returns the first shared size on which inputs disagree, in words; "" where they agree.

    `shapes` have the declared ranks; an input without a shape is left out.
    """
    for dim, places in shared:
        found = [(shapes[name][axis], name, axis) for name, axis in places if name in shapes]
        for size, name, axis in found[1:]:
            first, other, there = found[0]
            if size != first:
                return f"{dim!r} is {first} (axis {there} of {other!r}) and {size} (axis {axis} of {name!r})"
    return ""
