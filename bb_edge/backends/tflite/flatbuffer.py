"""Reads flatbuffers of any schema within their bounds: tables, vectors and strings.

Every position is checked before it is read. The bytes that are read are counted, so that parts which refer to
each other in circles, or many times, come to an end. Only FlatbufferError is raised, whatever the bytes.
"""

from __future__ import annotations

from struct import Struct

__all__ = ["FlatbufferError", "Reader", "Table"]

_U32, _I32, _U16 = Struct("<I").unpack_from, Struct("<i").unpack_from, Struct("<H").unpack_from
_SCALARS = {"b": Struct("<b"), "B": Struct("<B"), "i": Struct("<i"), "I": Struct("<I"), "f": Struct("<f")}

Table = tuple[int, tuple[int, ...]]
"""(start of the table, offset of each slot's value from the start, 0 for a slot without a value)."""


class FlatbufferError(ValueError):
    """The bytes hold an offset, a size or an alignment that no writer makes."""


class Reader:
    """The bytes of one flatbuffer."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._size = len(data)
        self._left = 2 * len(data)  # sound files need each byte once, except for parts that are shared
        self._vtables: dict[int, tuple[int, tuple[int, ...]]] = {}

    def root(self) -> Table:
        if self._size < 8:
            raise FlatbufferError("it is too short")
        return self._table(_U32(self.data, 0)[0])

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise FlatbufferError("its parts refer to each other too often")

    def _table(self, at: int) -> Table:
        if at & 3 or not 4 <= at <= self._size - 4:
            raise FlatbufferError("a table lies outside of it")
        start = at - _I32(self.data, at)[0]
        known = self._vtables.get(start)
        if known is None:
            if start & 1 or not 0 <= start <= self._size - 4:
                raise FlatbufferError("a table's slots lie outside of it")
            length, width = _U16(self.data, start)[0], _U16(self.data, start + 2)[0]
            if length & 1 or length < 4 or start + length > self._size or width < 4:
                raise FlatbufferError("a table's slots have a wrong size")
            slots = Struct(f"<{length // 2 - 2}H").unpack_from(self.data, start + 4)
            if any(slot and not 4 <= slot < width for slot in slots):
                raise FlatbufferError("a slot lies outside of its table")
            known = self._vtables[start] = width, slots
            self._spend(length)
        width, slots = known
        if at + width > self._size:
            raise FlatbufferError("a table ends outside of it")
        self._spend(width)
        return at, slots

    def has(self, table: Table, slot: int) -> bool:
        return slot < len(table[1]) and table[1][slot] != 0

    def expect_slots(self, table: Table, allowed: frozenset[int], what: str) -> None:
        """Raises FlatbufferError where a table has values in other slots."""
        for slot, place in enumerate(table[1]):
            if place and slot not in allowed:
                raise FlatbufferError(f"{what} holds something unknown (slot {slot})")

    def scalar(self, table: Table, slot: int, kind: str, default: float = 0) -> int | float:
        """The number in a slot; `kind` is one of `struct`'s b, B, i, I, f."""
        at, slots = table
        if slot >= len(slots) or not slots[slot]:
            return default
        reader = _SCALARS[kind]
        at += slots[slot]
        if at % reader.size or at + reader.size > self._size:
            raise FlatbufferError("a number is misaligned")
        number: int | float = reader.unpack_from(self.data, at)[0]
        return number

    def integer(self, table: Table, slot: int, kind: str, default: int = 0) -> int:
        return int(self.scalar(table, slot, kind, default))

    def _target(self, table: Table, slot: int) -> int:
        """The position that a slot's offset leads to; 0 for a slot without a value."""
        at, slots = table
        if slot >= len(slots) or not slots[slot]:
            return 0
        return self._follow(at + slots[slot])

    def _follow(self, at: int) -> int:
        if at & 3 or at + 4 > self._size:
            raise FlatbufferError("an offset is misaligned")
        distance = _U32(self.data, at)[0]
        if distance < 4 or at + distance > self._size - 4:
            raise FlatbufferError("an offset leads outside")
        return int(at + distance)

    def child(self, table: Table, slot: int) -> Table | None:
        at = self._target(table, slot)
        return self._table(at) if at else None

    def span(self, table: Table, slot: int, width: int, alignment: int = 0) -> tuple[int, int]:
        """(start, number of elements) of a vector of `width` bytes each; (0, 0) without a value."""
        at = self._target(table, slot)
        if not at:
            return 0, 0
        return self._span(at, width, alignment or width)

    def _span(self, at: int, width: int, alignment: int) -> tuple[int, int]:
        if at & 3:
            raise FlatbufferError("a vector is misaligned")
        count = _U32(self.data, at)[0]
        at += 4
        if count * width > self._size - at or (count and at % alignment):
            raise FlatbufferError("a vector ends outside of it, or is misaligned")
        self._spend(count * width)
        return at, count

    def numbers(self, table: Table, slot: int, kind: str) -> tuple[int, ...]:
        """The numbers of a vector; `kind` is one of `struct`'s i, q, f."""
        reader_width = 8 if kind == "q" else 4
        at, count = self.span(table, slot, reader_width)
        return Struct(f"<{count}{kind}").unpack_from(self.data, at) if count else ()

    def contents(self, start: int, count: int) -> tuple[int, ...]:
        """The int32 numbers of a span that was checked."""
        return Struct(f"<{count}i").unpack_from(self.data, start)

    def children(self, table: Table, slot: int) -> list[Table]:
        """The tables of a vector."""
        at, count = self.span(table, slot, 4)
        return [self._table(self._follow(at + 4 * i)) for i in range(count)]

    def text(self, table: Table, slot: int) -> bytes:
        """The bytes of a string, without the zero byte at its end."""
        at = self._target(table, slot)
        if not at:
            return b""
        start, count = self._span(at, 1, 1)
        if start + count >= self._size or self.data[start + count]:
            raise FlatbufferError("a text has no end")
        return self.data[start : start + count]
