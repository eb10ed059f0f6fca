"""What values weigh, and values of slots, queues and tables as plain data for CBOR, and back, bit for bit.

A value that is not a plain datum is a list whose first item names its kind:

    ["i", decimal]  integers beyond 64 bits        ["p", bytes]        PeerId
    ["t", …]        tuple                          ["A", bytes]        Address
    ["l", …]        list                           ["!"]               TRIGGER
    ["d", [k, v] …] dict                           ["c", [hash, v] …]  Composite
    ["a", dtype, shape, bytes, metadata]  array    ["C", peer, epoch, seq]  Cause
    ["g", dtype, bytes]  NumPy number              ["w", hash, bytes]  any other type that travels

Arrays come back writable and owned by nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bb_edge.ir.address import Address
from bb_edge.ir.annotated import annotate, metadata_of
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.ir.values import TRIGGER, Composite, Trigger
from bb_edge.wire.codecs import NotWireEligibleError, decode_value, encode_value
from bb_edge.wire.outbox import Cause

_I64, _U64 = -(1 << 63), (1 << 64) - 1


_TEXTS = (bytes, bytearray, memoryview, str)

LEAF_BYTES = 8
"""Charge of a value that is neither an array nor a text: a reference."""


def payload_bytes(value: object) -> int:
    """What every byte budget charges for a value: bytes of arrays and texts, through bundles and tuples."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, _TEXTS):
        return len(value)
    if isinstance(value, Composite):
        return sum(payload_bytes(child) for child in value.values)
    if isinstance(value, tuple):
        return sum(payload_bytes(child) for child in value)
    return LEAF_BYTES


class Shift(NamedTuple):
    """How far the clock of the node that restores is ahead of the one that wrote.

    `bodies` are those of the snapshot, which rows name by their places.
    """

    delta_ns: int
    bodies: Sequence[bytes] = ()

    def body(self, place: int) -> bytes:
        """The body at that place of the snapshot; 0: none. LookupError."""
        return self.bodies[place - 1] if place else b""

    def time(self, when_ns: int) -> int:
        """An absolute time; 0 stays 0: none."""
        return when_ns + self.delta_ns if when_ns else 0


class UnsavableError(BBError):
    """A value that has no written form."""


def dump(value: object) -> Any:
    """Plain data for a value. UnsavableError where it has none."""
    kind = type(value)
    if value is None or kind in (bool, float, str, bytes):
        return value
    if kind is int:
        assert isinstance(value, int)
        return value if _I64 <= value <= _U64 else ["i", str(value)]
    if isinstance(value, np.ndarray) and value.dtype != object:
        meta = dict(metadata_of(value))
        data = np.ascontiguousarray(value).tobytes()
        return ["a", value.dtype.str, list(value.shape), data, *([meta] if meta else [])]
    if kind is Cause:
        assert isinstance(value, Cause)
        return ["C", value.peer.to_bytes(), value.epoch, value.seq]
    if kind is tuple or kind is list:
        assert isinstance(value, tuple | list)
        return ["t" if kind is tuple else "l", *map(dump, value)]
    return _dump_other(value)


def _dump_other(value: object) -> Any:
    if isinstance(value, PeerId):
        return ["p", value.to_bytes()]
    if isinstance(value, Trigger):
        return ["!"]
    if isinstance(value, np.generic):
        return ["g", value.dtype.str, value.tobytes()]
    if isinstance(value, dict):
        return ["d", *([dump(k), dump(v)] for k, v in value.items())]
    if isinstance(value, Composite):
        return ["c", *([number, dump(child)] for number, child in value.children)]
    if isinstance(value, Address):
        return ["A", value.to_bytes()]
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    try:
        type_hash, data = encode_value(value)
    except NotWireEligibleError as error:
        raise UnsavableError(
            f"a {type(value).__name__} cannot be written down", "snapshot", "register a codec for its type"
        ) from error
    return ["w", type_hash, bytes(data)]


def load(plain: Any) -> Any:
    """The value of what `dump` gave. ValueError, TypeError, LookupError or BBError for anything else."""
    if type(plain) is not list:
        return plain
    kind, *rest = plain
    loader = _LOADERS.get(kind)
    if loader is None:
        raise ValueError(f"no value of kind {kind!r}")
    return loader(*rest)


def _load_array(dtype: str, shape: list[int], data: bytes, meta: dict[str, str] | None = None) -> Any:
    array = np.frombuffer(data, np.dtype(dtype)).reshape(shape).copy()
    return annotate(array, meta) if meta else array


_LOADERS: dict[str, Any] = {
    "i": int,
    "t": lambda *items: tuple(map(load, items)),
    "l": lambda *items: list(map(load, items)),
    "d": lambda *items: {load(k): load(v) for k, v in items},
    "a": _load_array,
    "g": lambda dtype, data: np.frombuffer(data, np.dtype(dtype))[0],
    "p": PeerId.from_bytes,
    "A": Address.from_bytes,
    "!": lambda: TRIGGER,
    "c": lambda *children: Composite(tuple((number, load(child)) for number, child in children)),
    "C": lambda peer, epoch, seq: Cause(PeerId.from_bytes(peer), epoch, seq),
    "w": decode_value,
}
