"""Canonical CBOR of plain data, with bounds (RFC 8949, section 4.2.1).

A general decoder takes tags, indefinite lengths and any depth, and allocates what an announced length asks
for. Bytes from a peer are read here instead: no tags, no indefinite lengths, every length checked against the
bytes that are there, items and depth counted. Any CBOR decoder reads what this module writes, and a canonical
encoder writes the same bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping

from bb_edge.ir.errors import BBError

_U64 = 0xFFFFFFFFFFFFFFFF
LARGE = 1 << 16
"""Bytes from which a byte string is a piece of its own: a write of its own costs less than copying it."""
Buffer = bytes | bytearray | memoryview


class CborError(BBError):
    """Bytes that are not plain CBOR within the bounds, or a value that has no such form."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what, "CBOR", hint)


# --- out -----------------------------------------------------------------------------------------------


def head(major: int, number: int) -> bytes:
    """Returns the first bytes of an item: major type 0 … 7, with its number or length of 64 bits at most."""
    major <<= 5
    if number < 24:
        return bytes((major | number,))
    if number < 0x100:
        return bytes((major | 24, number))
    if number < 0x10000:
        return bytes((major | 25,)) + number.to_bytes(2, "big")
    if number < 0x100000000:
        return bytes((major | 26,)) + number.to_bytes(4, "big")
    if number > _U64:
        raise CborError(f"{number} has more than 64 bits")
    return bytes((major | 27,)) + number.to_bytes(8, "big")


def head_bytes(number: int) -> int:
    """Returns how many bytes `head` returns for a number or length."""
    if number < 24:
        return 1
    return 2 if number < 0x100 else 3 if number < 0x10000 else 5 if number < 0x100000000 else 9


def dumps(value: object) -> bytes:
    """Returns a value as CBOR: None, bool, int, float, bytes, str, and lists, tuples and dicts of them.

    Raises CborError for values of other types, and for integers of more than 64 bits.
    """
    out = bytearray()
    _put(value, out, None, None)
    return bytes(out)


class Encoded:
    """An item that is encoded already, in pieces; `pieces` takes it in the place of a value."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Buffer]) -> None:
        self.parts = parts


def pieces(value: object, other: Callable[[object], object] | None = None) -> list[Buffer]:
    """Returns a value as CBOR in pieces, which are its bytes one after the other.

    Byte strings of `LARGE` bytes and more are pieces of their own, and not copied: they must not change until
    the pieces are used. `other` gives plain values for those of other types. CborError as in `dumps`.
    """
    found: list[Buffer] = []
    small = bytearray()
    _put(value, small, found, other)
    if small:
        found.append(small)
    return found


def _put(
    value: object, out: bytearray, found: list[Buffer] | None, other: Callable[[object], object] | None
) -> None:
    """Adds the bytes of a value to `out`; what is large goes to `found`, behind what `out` had before it.

    Most values of a snapshot are small numbers, texts and lists, so these come first, and without a call.
    """
    kind = type(value)
    if kind is int:
        number: int = value  # type: ignore[assignment]
        if 0 <= number < 24:
            out.append(number)
        else:
            out += head(0, number) if number >= 0 else head(1, -1 - number)
    elif isinstance(value, (list, tuple)):
        count = len(value)
        out += head(4, count) if count >= 24 else _SHORT_LISTS[count]
        for item in value:
            _put(item, out, found, other)
    elif kind is str:
        out += _text(value)  # type: ignore[arg-type]
    elif isinstance(value, (bytes, bytearray, memoryview)):
        out += head(2, len(value))
        _part(value, out, found)
    elif value is None:
        out += b"\xf6"
    elif kind is bool:
        out += b"\xf5" if value else b"\xf4"
    elif isinstance(value, Mapping):
        out += head(5, len(value))
        entries = [(_text(key) if type(key) is str else dumps(key), item) for key, item in value.items()]
        entries.sort(key=_canonical)
        for key, item in entries:
            out += key
            _put(item, out, found, other)
    elif isinstance(value, int):
        _put(int(value), out, found, other)
    elif isinstance(value, float):
        out += _float(value)
    elif isinstance(value, str):
        out += _text(value)
    elif isinstance(value, Encoded):
        for part in value.parts:
            _part(part, out, found)
    elif other is not None:
        _put(other(value), out, found, other)
    else:
        raise CborError(f"a {type(value).__name__} has no plain CBOR form")


def _part(part: Buffer, out: bytearray, found: list[Buffer] | None) -> None:
    if found is None or len(part) < LARGE:
        out += part
        return
    found.append(bytes(out))  # there is some: before each large part comes the head of its bytes
    out.clear()
    found.append(part)


_SHORT_LISTS = [bytes((4 << 5 | count,)) for count in range(24)]


def _text(value: str) -> bytes:
    text = value.encode()
    size = len(text)
    return (bytes((3 << 5 | size,)) if size < 24 else head(3, size)) + text


def _canonical(entry: tuple[bytes, object]) -> tuple[int, bytes]:
    return len(entry[0]), entry[0]


def _float(value: float) -> bytes:
    """Returns the shortest of the three widths that keeps the value."""
    if math.isnan(value):
        return b"\xf9\x7e\x00"
    for lead, form in ((b"\xf9", ">e"), (b"\xfa", ">f")):
        try:
            packed = struct.pack(form, value)
        except OverflowError:
            continue
        if struct.unpack(form, packed)[0] == value:
            return lead + packed
    return b"\xfb" + struct.pack(">d", value)


# --- in ------------------------------------------------------------------------------------------------


def loads(data: bytes | bytearray | memoryview, max_items: int = 1024, max_depth: int = 8) -> object:
    """Reads one item with nothing after it; arrays come as lists.

    Raises CborError for other bytes, more than `max_items` items, or deeper nesting than `max_depth`.
    """
    reader = Reader(data, max_items)
    value = reader.item(max_depth)
    reader.done()
    return value


class Reader:
    """Reads items one after the other; a caller that knows what must come asks for exactly that.

    All methods raise CborError where the bytes are something else.
    """

    __slots__ = ("_data", "_items", "_pos")

    def __init__(self, data: bytes | bytearray | memoryview, max_items: int = 1024) -> None:
        self._data = data
        self._pos = 0
        self._items = max_items

    def done(self) -> None:
        """Raises CborError where bytes are left."""
        if self._pos != len(self._data):
            raise CborError(f"{len(self._data) - self._pos} bytes after the value")

    def head(self) -> tuple[int, int, int]:
        """Reads the head of the next item; returns (major type, additional information, number)."""
        data, pos = self._data, self._pos
        self._items -= 1
        if self._items < 0:
            raise CborError("too many items")
        if pos >= len(data):
            raise CborError(f"ends at byte {pos}")
        first = data[pos]
        pos += 1
        info = first & 0x1F
        if info < 24:
            self._pos = pos
            return first >> 5, info, info
        if info > 27:
            raise CborError(f"an indefinite length or reserved form at byte {pos - 1}")
        size = 1 << (info - 24)
        if pos + size > len(data):
            raise CborError(f"ends inside an item at byte {pos}")
        self._pos = pos + size
        return first >> 5, info, int.from_bytes(data[pos : pos + size], "big")

    def _take(self, size: int) -> bytes:
        start = self._pos
        if size > len(self._data) - start:
            raise CborError(f"{size} bytes announced at byte {start}, {len(self._data) - start} are there")
        self._pos = start + size
        return bytes(self._data[start : start + size])

    def uint(self) -> int:
        """Reads an unsigned integer."""
        major, _, number = self.head()
        if major != 0:
            raise CborError(f"expected an unsigned integer, got major type {major}")
        return number

    def byte_string(self) -> bytes:
        """Reads a byte string."""
        major, _, size = self.head()
        if major != 2:
            raise CborError(f"expected a byte string, got major type {major}")
        return self._take(size)

    def array(self) -> int:
        """Reads the head of an array; returns its length. Its items come next."""
        major, _, count = self.head()
        if major != 4:
            raise CborError(f"expected an array, got major type {major}")
        if count > len(self._data) - self._pos:  # an item has a byte at least
            raise CborError(f"{count} items announced, {len(self._data) - self._pos} bytes are there")
        return count

    def item(self, max_depth: int) -> object:
        """Reads any plain item, nested at most `max_depth` deep."""
        major, info, number = self.head()
        if major == 0:
            return number
        if major == 1:
            return -1 - number
        if major == 2:
            return self._take(number)
        if major == 3:
            try:
                return self._take(number).decode()
            except UnicodeDecodeError as error:
                raise CborError("a text is not UTF-8") from error
        if major in (4, 5):
            return self._container(major, number, max_depth)
        if major == 7:
            return _simple(info, number)
        raise CborError("a tag is not plain data", hint="send maps, lists, texts, bytes and numbers only")

    def _container(self, major: int, count: int, max_depth: int) -> object:
        if max_depth < 1:
            raise CborError("nested too deeply")
        if count > len(self._data) - self._pos:
            raise CborError(f"{count} items announced, {len(self._data) - self._pos} bytes are there")
        if major == 4:
            return [self.item(max_depth - 1) for _ in range(count)]
        entries: dict[object, object] = {}
        for _ in range(count):
            key = self.item(0)  # depth 0: keys are not containers, so they can be hashed
            if key in entries:
                raise CborError(f"key {key!r} comes twice")
            entries[key] = self.item(max_depth - 1)
        return entries


_SIMPLE: dict[int, object] = {20: False, 21: True, 22: None}
_FLOATS = {25: ">e", 26: ">f", 27: ">d"}


def _simple(info: int, number: int) -> object:
    if info in _FLOATS:
        value: float = struct.unpack(_FLOATS[info], number.to_bytes(1 << (info - 24), "big"))[0]
        return value
    if info not in _SIMPLE:
        raise CborError(f"simple value {number} is not plain data")
    return _SIMPLE[info]
