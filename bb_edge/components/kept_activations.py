"""What a model's backward passes read of its forward passes: kept for an execution or under a key, bounded.

An execution's activations go with the execution. Those under a key outlive it, so that a gradient that
another node sends later finds them: they go when a backward pass has used them, or for newer ones.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from bb_edge.components.state import pack_array
from bb_edge.ir.ids import PeerId
from bb_edge.ir.values import Composite
from bb_edge.roles.errors import ComponentError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from bb_edge.components.state import StateReader
    from bb_edge.ir.tensors import Array

__all__ = ["Kept", "KeptActivations", "UnknownKey", "key_of"]


class UnknownKey(ComponentError):
    """A backward pass with a key that nothing is kept under: dropped, used already, or never kept."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a backward pass reads: the input and the activations behind it, and the output's form."""

    arrays: tuple[Array, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays)


def key_of(value: object, where: str = "") -> bytes:
    """Returns the bytes that stand for a key: equal integers are equal keys, whatever their dtype.

    A key is an integer (a round, a correlation token), bytes (a peer, a text), or a bundle of such values.
    ComponentError for anything else.
    """
    if isinstance(value, bool | np.bool_):
        pass
    elif isinstance(value, int | np.integer):
        return b"i%d" % int(value)
    elif isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "iu":
        return b"i%d" % int(value.reshape(()))
    elif isinstance(value, bytes):
        return b"b%d:%b" % (len(value), value)
    elif isinstance(value, PeerId):
        return b"p%d:%b" % (len(value.to_bytes()), value.to_bytes())
    elif isinstance(value, Composite):
        return key_of(value.values, where)
    elif isinstance(value, tuple) and value:
        return b"(" + b",".join(key_of(item, where) for item in value) + b")"
    shape = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
    raise ComponentError(
        f"a key of activations is one integer, bytes, a peer, or a bundle of those, got {shape}",
        where,
        "give the round of the request, or the peer that it is about: key=r.round",
    )


class KeptActivations:
    """Bounded: `executions` and `keys` are numbers of forward passes, `key_bytes` bytes of those under keys.

    At a bound the oldest goes, and is counted: `dropped`, of executions and of keys together.
    """

    def __init__(self, executions: int, keys: int, key_bytes: int, where: str = "") -> None:
        self._executions = executions
        self._keys = keys
        self._key_bytes = key_bytes
        self._where = where
        self._by_execution: OrderedDict[int, Kept] = OrderedDict()  # newest last
        self._by_key: OrderedDict[bytes, Kept] = OrderedDict()
        self.held_bytes = 0
        """Bytes that are kept under keys."""
        self.dropped = 0
        """How many were dropped for newer ones before anybody used them."""

    # --- of executions ---------------------------------------------------------------------------------

    def keep(self, execution: int, kept: Kept) -> None:
        """Keeps what an execution's `Backward` reads, in place of what it had."""
        self._by_execution.pop(execution, None)
        if len(self._by_execution) >= self._executions:
            self._by_execution.popitem(last=False)
            self.dropped += 1
        self._by_execution[execution] = kept

    def find(self, execution: int, key: object = None) -> Kept:
        """Returns what was kept for an execution, or under a key where one is given; it stays.

        ComponentError, with a key UnknownKey, where there is nothing.
        """
        if key is not None:
            return self._under(key_of(key, self._where))
        kept = self._by_execution.get(execution)
        if kept is None:
            raise ComponentError(
                "Backward without a Forward before it in this execution",
                self._where,
                "forward first; kept_activations bounds the executions whose activations are kept",
            )
        return kept

    def forget(self, execution: int) -> None:
        """Drops what was kept for an execution, where there is something."""
        self._by_execution.pop(execution, None)

    # --- under keys ------------------------------------------------------------------------------------

    def keep_under(self, key: object, kept: Kept) -> None:
        """Keeps what a backward pass with this key reads, in place of what is there under the key.

        ComponentError, keeping what is there, for an invalid key, and for more bytes than may be kept at all.
        """
        self._put(key_of(key, self._where), kept)

    def use(self, key: object) -> None:
        """Drops what is kept under a key: a backward pass has used it."""
        self._pop(key_of(key, self._where))

    def _put(self, key: bytes, kept: Kept) -> None:
        size = kept.nbytes
        if size > self._key_bytes:
            raise ComponentError(
                f"its activations take {size:,} bytes, kept_key_bytes is {self._key_bytes:,}",
                self._where,
                "raise kept_key_bytes, or give it smaller batches",
            )
        self._pop(key)
        while len(self._by_key) >= self._keys or self.held_bytes + size > self._key_bytes:
            self._pop(next(iter(self._by_key)))
            self.dropped += 1
        self._by_key[key] = kept
        self.held_bytes += size

    def _under(self, key: bytes) -> Kept:
        kept = self._by_key.get(key)
        if kept is None:
            raise UnknownKey(
                f"no activations are kept under this key ({_shown(key)}): they were used, dropped for newer,"
                f" or never kept; {len(self._by_key)} of at most {self._keys} are there,"
                f" {self.held_bytes:,} of {self._key_bytes:,} bytes, and {self.dropped} were dropped so far",
                self._where,
                "record forward with the same key before it; each serves one backward. Where they are"
                " dropped, raise kept_keys or kept_key_bytes, or let the gradient come sooner",
            )
        return kept

    def _pop(self, key: bytes) -> None:
        kept = self._by_key.pop(key, None)
        if kept is not None:
            self.held_bytes -= kept.nbytes

    def clear(self) -> int:
        """Drops all. Returns of how many forward passes there was something."""
        count = len(self._by_execution) + len(self._by_key)
        self._by_execution.clear()
        self._by_key.clear()
        self.held_bytes = 0
        return count

    # --- snapshots -------------------------------------------------------------------------------------

    def save(self) -> dict[str, list[object]]:
        """Returns what `restore` reads, as two fields of a component's state."""
        return {
            "activations": list(_saved(self._by_execution)),
            "keyed_activations": list(_saved(self._by_key)),
        }

    @staticmethod
    def read(read: StateReader) -> tuple[OrderedDict[int, Kept], OrderedDict[bytes, Kept]]:
        """Reads what `save` wrote. ComponentStateError where it is damaged."""
        executions, keys = (
            OrderedDict(_loaded(read, name, kind))
            for name, kind in (("activations", int), ("keyed_activations", bytes))
        )
        return cast("Any", executions), cast("Any", keys)

    def restore(self, saved: tuple[OrderedDict[int, Kept], OrderedDict[bytes, Kept]]) -> None:
        """Puts what `read` gave in the place of what is kept; the newest keys, where bounds shrank."""
        self._by_execution, keyed = saved
        self._by_key, self.held_bytes = OrderedDict(), 0
        for key, kept in keyed.items():
            if kept.nbytes <= self._key_bytes:
                self._put(key, kept)


def _saved(kept: OrderedDict[Any, Kept]) -> Iterator[list[object]]:
    for key, one in kept.items():
        yield [key, list(one.shape), one.dtype.str, [pack_array(a) for a in one.arrays]]


def _loaded(read: StateReader, name: str, kind: type[Hashable]) -> Iterator[tuple[Any, Kept]]:
    for item in read.optional_items(name):
        try:
            key, shape, dtype, packed = cast("Any", item)
            kept = Kept(tuple(read.decode(p) for p in packed), tuple(map(int, shape)), np.dtype(dtype))
        except (TypeError, ValueError) as error:
            raise read.error("its activations are damaged") from error
        if not isinstance(key, kind):
            raise read.error("its activations are damaged")
        yield key, kept


def _shown(key: bytes) -> str:
    if key[:1] == b"i":
        return key[1:].decode()
    text = key.hex()
    return text if len(text) <= 24 else f"{text[:24]}…"
