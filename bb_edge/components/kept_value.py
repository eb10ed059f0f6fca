"""`bb.KeptValue`: a tensor, or a bundle of tensors, that stays on a node between executions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bb_edge.components.state import StateReader, pack_array, pack_state
from bb_edge.components.without_settings import WithoutSettings
from bb_edge.ir.opsets import Effect, Opset, Table
from bb_edge.ir.values import Composite
from bb_edge.roles.adoption import Adoption
from bb_edge.roles.errors import KeptValueError

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.context import ProtocolCtx

__all__ = ["KeptValue"]

_VERSION = 1


class KeptValue(WithoutSettings):
    """Keeps one value between executions: a tensor, or a bundle of tensors.

    A program declares it with `ValueSlot`. `read(g, first)` gives what is kept, or `first` as long as nothing
    was written. `write(g, value)` keeps a copy of a value; `add(g, value)` adds one to what is kept, and
    gives the sum. The value that came first decides shape and element type, of each part of a bundle too:
    other ones are refused (`KeptValueError`), those of `first` as well. An empty tensor, as an aggregate over
    nothing is, changes nothing. Each op is done as a whole, so that executions which only `add` lose nothing;
    between a `read` and a `write` another execution may write.

    The value is in the node's snapshots. A program that adopts the state of an older one takes it over. Where
    that program gives it a value of another shape or element type, it begins anew, as if nothing had been
    written: a warning `ValueBeganAnew` names the slot and both, `components.kept_anew` counts them.
    """

    TYPE_NAME: ClassVar[str] = "bb.KeptValue"
    shared: ClassVar[bool] = True

    def __init__(self, where: str = "") -> None:
        super().__init__(where)
        self._value: Array | Composite | None = None
        self._adopted = False  # whether another program wrote it, and this one has not met it yet
        self.anew: list[tuple[str, str]] = []
        """What an adopted value was, and what came, where it began anew and the node has not told it yet."""

    @classmethod
    def atomic_opset(cls) -> Opset:
        table = Table(cls.TYPE_NAME)
        table.op(
            "Read",
            "first:T",
            "value:T",
            "",
            "Returns what is kept; `first` where nothing was written yet.",
            effect=Effect.READ,
        )
        table.op("Write", "value:T", "cmd:CommandId", "", "Keeps a copy of the value.", effect=Effect.WRITE)
        table.op(
            "Add",
            "value:T",
            "sum:T",
            "",
            "Adds to what is kept, to zeros where nothing was written yet, and returns the sum.",
            effect=Effect.WRITE,
        )
        return table.opset()

    def read(self, ctx: ProtocolCtx, first: object) -> object:
        """Returns what is kept. KeptValueError where `first` is of another shape or element type."""
        kept = self._meet(first)
        return first if kept is None else kept

    def write(self, ctx: ProtocolCtx, value: object) -> None:
        """Keeps a copy of the value. KeptValueError where it differs in shape from what is kept."""
        self._meet(value)
        if not _is_nothing(value):
            self._value = _copied(value)

    def add(self, ctx: ProtocolCtx, value: object) -> object:
        """Adds the value, and returns the sum. KeptValueError where it differs in shape from what is kept."""
        kept = self._meet(value)
        if _is_nothing(value):
            return value if kept is None else kept
        self._value = _copied(value) if kept is None else _sum(kept, value)
        return self._value

    def _meet(self, value: object) -> Array | Composite | None:
        """What is kept, where the value goes with it."""
        kind, kept = self._kind(value), self._value
        if kept is None:
            return None
        own = self._kind(kept)
        if own == kind or _is_nothing(value):
            self._adopted = self._adopted and own != kind
            return kept
        if self._adopted:
            self.anew.append((own, kind))
            self._value, self._adopted = None, False
            return None
        raise KeptValueError(
            f"the slot keeps {own}, and was given {kind}",
            self._where,
            "give it values of one shape and element type, or keep the other one in a slot of its own",
        )

    def _kind(self, value: object) -> str:
        """Element type and shape in words, of each part of a bundle."""
        if isinstance(
            value, (np.ndarray, np.generic)
        ):  # what tensor work yields of 0-D may be a NumPy scalar
            return f"{value.dtype}{list(value.shape)}"
        if isinstance(value, Composite):
            return f"({', '.join(map(self._kind, value.values))})"
        raise KeptValueError(
            f"the slot keeps tensors and bundles of tensors, and was given a {type(value).__name__}",
            self._where,
            "make a number of it: g.as_tensor(value)"
            if isinstance(value, int | float)
            else "it is not a number; a component of your own can keep it",
        )

    # --- state ----------------------------------------------------------------------------------------

    def serialize(self) -> bytes:
        value = [] if self._value is None else [_packed(self._value)]
        return pack_state(self, _VERSION, {"value": value, "adopted": self._adopted})

    def restore(self, state: bytes) -> None:
        """Takes the value over. ComponentStateError for bytes of another kind."""
        read = StateReader(self, _VERSION, state)
        packed = read.items("value")
        self._value = _unpacked(read, packed[0]) if packed else None
        self._adopted = read.flag("adopted")

    def adopt(self, state: bytes) -> Adoption:
        self.restore(state)
        if self._value is None:
            return Adoption((), ())
        self._adopted = True
        kind = self._kind(self._value)
        return Adoption(
            (f"the value that it keeps, {kind} (it begins anew if the program gives it another shape)",)
        )


def _is_nothing(value: object) -> bool:
    """Whether a value is what an aggregator gives where nobody has contributed."""
    return isinstance(value, np.ndarray) and value.shape == (0,)


def _copied(value: object) -> Array | Composite:
    """A copy that nobody can write to: what comes in is not ours, what goes out stays as it is."""
    if isinstance(value, Composite):
        return Composite(tuple((type_hash, _copied(part)) for type_hash, part in value.children))
    copied: Array = np.array(value)
    copied.setflags(write=False)
    return copied


def _sum(kept: object, value: object) -> Array | Composite:
    """The sum of two values of one kind; whole numbers wrap around, as everywhere in NumPy."""
    if isinstance(kept, Composite) and isinstance(value, Composite):
        pairs = zip(kept.children, value.values, strict=True)
        return Composite(tuple((type_hash, _sum(part, other)) for (type_hash, part), other in pairs))
    total: Array = np.asarray(np.add(kept, value))  # type: ignore[call-overload]
    total.setflags(write=False)
    return total


def _packed(value: object) -> object:
    if isinstance(value, Composite):
        return [[type_hash, _packed(part)] for type_hash, part in value.children]
    assert isinstance(value, np.ndarray)
    return pack_array(value)


def _unpacked(read: StateReader, packed: object) -> Array | Composite:
    if not isinstance(packed, list):
        array = read.decode(packed)
        array.setflags(write=False)
        return array
    children: list[tuple[int, object]] = []
    for row in packed:
        if not isinstance(row, list) or len(row) != 2 or not isinstance(row[0], int):
            raise read.error("the bundle that it keeps is damaged")
        children.append((row[0], _unpacked(read, row[1])))
    return Composite(tuple(children))
