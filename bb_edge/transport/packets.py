"""Encodes and parses PUBLISH and PUBACK, the packets that carry envelopes, and cuts a stream into packets.

No IO. paho handles all other packets (CONNECT, SUBSCRIBE, PINGREQ, DISCONNECT, …), and gets them whole from
the `Splitter`. Source: MQTT 5.0 (OASIS), sections 1.5, 2.2.2, 3.3 and 3.4; MQTT 3.1.1 where it differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bb_edge.ir.errors import WireError
from bb_edge.ir.lent_memory import is_free, resize, taken

PUBLISH, PUBACK = 0x30, 0x40
DUP, QOS1, RETAIN = 0x08, 0x02, 0x01
EXPIRY, ALIAS = 0x02, 0x23
QUOTA_EXCEEDED = 0x97
NO_MATCHING_SUBSCRIBERS = 0x10
FAILURE = 0x80
"""Reason codes from this one on are failures."""

CHUNK_OF_READING = 64 * 1024
"""Bytes read at a time: the size of a pipe or of a default socket buffer, allocated once per connection."""
GROWTH_OF_SPARE = 4096
"""Bytes by which the buffer of a large packet is made longer for the next one: answers to one request differ
by some bytes."""
AROUND_AN_ENVELOPE = 4096
"""Bytes beside the payloads of an envelope for which the buffer that is kept has room."""
KEPT_OF_OVERSIZE = 1024
"""Bytes kept of a packet that is too large: enough for its topic and identifier."""

# PUBLISH properties (MQTT 5.0, table 2-4): how long a value is. 0 is a varint, -1 a length of two bytes and
# so many more, -2 two of those.
_SIZES = {0x01: 1, 0x02: 4, 0x03: -1, 0x08: -1, 0x09: -1, 0x0B: 0, 0x23: 2, 0x26: -2}


class PacketError(WireError):
    """Bytes are not an MQTT packet, or not of the kind that they claim; the connection must be closed."""


@dataclass(frozen=True, slots=True)
class Published:
    """One PUBLISH. `mid` is 0 for QoS 0; `alias` is 0 if there is none, and then the topic is not empty."""

    topic: bytes
    payload: bytes | memoryview
    qos: int
    mid: int
    alias: int


def varint(number: int) -> bytes:
    """Encodes MQTT's variable byte integer, of 268 435 455 at most."""
    if number < 128:
        return bytes((number,))
    digits = bytearray()
    while number >= 128:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def publish_header(
    topic: bytes,
    mid: int,
    payload_bytes: int,
    *,
    v5: bool,
    dup: bool = False,
    retain: bool = False,
    alias: int = 0,
    expiry_s: int = 0,
) -> bytes:
    """Encodes everything of a QoS 1 PUBLISH that comes before its payload.

    `alias` with a topic defines the alias, with an empty topic it uses it; `expiry_s` 0 means no expiry.
    """
    first = PUBLISH | QOS1 | (DUP if dup else 0) | (RETAIN if retain else 0)
    if not v5:
        properties = b""
    elif alias or expiry_s:
        fields = b""
        if expiry_s:
            fields = b"\x02" + expiry_s.to_bytes(4, "big")
        if alias:
            fields += b"\x23" + alias.to_bytes(2, "big")
        properties = bytes((len(fields),)) + fields
    else:
        properties = b"\x00"
    variable = b"".join((len(topic).to_bytes(2, "big"), topic, mid.to_bytes(2, "big"), properties))
    return b"".join((bytes((first,)), varint(len(variable) + payload_bytes), variable))


def puback(mid: int, reason: int = 0) -> bytes:
    """Encodes a PUBACK; a reason other than 0 needs MQTT 5."""
    if reason:
        return b"\x40\x03" + mid.to_bytes(2, "big") + bytes((reason,))
    return b"\x40\x02" + mid.to_bytes(2, "big")


def parse_puback(data: bytearray, start: int, end: int) -> tuple[int, int]:
    """Returns (packet identifier, reason code) of a PUBACK's body. Raises PacketError if it is too short."""
    if end - start < 2:
        raise PacketError(f"a PUBACK of {end - start} bytes", "broker")
    return data[start] << 8 | data[start + 1], data[start + 2] if end - start > 2 else 0


def parse_publish(
    first: int, data: bytearray, start: int, end: int, v5: bool, own: bool = False
) -> Published:
    """Parses the body of a PUBLISH, `data[start:end]`. Raises PacketError where its lengths do not fit.

    The payload is a copy, or a read-only view where `data` is the packet's `own`, which nobody writes to.
    """
    at = start + 2
    if at > end:
        raise PacketError("a PUBLISH without a topic", "broker")
    at += data[start] << 8 | data[start + 1]
    qos = first >> 1 & 3
    mid = 0
    after = at + 2 if qos else at
    if after > end or qos == 3:
        raise PacketError(f"a PUBLISH of {end - start} bytes that ends in its topic", "broker")
    topic = bytes(data[start + 2 : at])
    if qos:
        mid = data[at] << 8 | data[at + 1]
    alias = 0
    if v5:
        if after >= end:
            raise PacketError("a PUBLISH without properties", "broker")
        length = data[after]
        after += 1
        if length:
            if length >= 128:
                length, after = _read_varint(data, after - 1, end)
            stop = after + length
            if stop > end:
                raise PacketError("properties beyond the end of a PUBLISH", "broker")
            alias = _alias(data, after, stop)
            after = stop
    if own:
        return Published(topic, memoryview(data).toreadonly()[after:end], qos, mid, alias)
    # The payload outlives the buffer, so it is copied, once.
    with memoryview(data) as view:
        payload = bytes(view[after:end])
    return Published(topic, payload, qos, mid, alias)


def _payload_at(first: int, data: bytearray, body: int, end: int, v5: bool) -> int:
    """Where the payload of a PUBLISH begins whose first bytes are there; `body` where they don't reach it."""
    at = body + 2 + (data[body] << 8 | data[body + 1]) + (2 if first >> 1 & 3 else 0)
    if v5 and at < end:
        length, at = _read_varint(data, at, end)
        at += length
    return at if at <= end else body


def _read_varint(data: bytearray, at: int, end: int) -> tuple[int, int]:
    """Returns (number, position after it)."""
    number = 0
    for shift in (0, 7, 14, 21):
        if at >= end:
            break
        digit = data[at]
        at += 1
        number |= (digit & 127) << shift
        if digit < 128:
            return number, at
    raise PacketError("a length that does not end", "broker")


def _alias(data: bytearray, at: int, end: int) -> int:
    """The topic alias in the properties of a PUBLISH, 0 if there is none; other properties are skipped."""
    alias = 0
    while at < end:
        kind = data[at]
        size = _SIZES.get(kind)
        at += 1
        if size is None:
            raise PacketError(f"property {kind:#04x} in a PUBLISH", "broker")
        if size == 0:
            _, at = _read_varint(data, at, end)
        elif size > 0:
            if kind == ALIAS and at + 2 <= end:
                alias = data[at] << 8 | data[at + 1]
            at += size
        else:
            for _ in range(-size):
                at += 2 + (data[at] << 8 | data[at + 1] if at + 2 <= end else end)
    if at != end:
        raise PacketError("a property beyond the end of its list", "broker")
    return alias


class Splitter:
    """Cuts the bytes of a socket into packets; keeps no packet whose body is above `limit` bytes.

    The reader puts bytes into `room()` and calls `filled(n)`; then `take()` returns packet after packet. A
    large packet is read straight into a buffer of its own, in which the payload of a PUBLISH begins at a
    multiple of 8 bytes. That buffer is used again for the next one, if nobody looks at it any more; one for
    envelopes of `kept` bytes is there from the start, and stays.
    """

    __slots__ = (
        "_data",
        "_end",
        "_kept",
        "_length",
        "_limit",
        "_skip",
        "_small",
        "_spare",
        "_spare_used",
        "_start",
        "_stop",
        "_v5",
        "oversize",
        "own",
    )

    def __init__(self, limit: int, v5: bool = True, kept: int = 0) -> None:
        self._limit = limit
        self._small = bytearray(CHUNK_OF_READING)
        self._kept = taken(kept + AROUND_AN_ENVELOPE) if CHUNK_OF_READING < kept <= limit else bytearray()
        self.begin(v5)

    def begin(self, v5: bool) -> None:
        """Begins with the first byte of a new stream; what was kept for large packets stays."""
        self._v5 = v5
        self._data = self._small
        self._stop = CHUNK_OF_READING
        self._spare: bytearray | None = None  # of the large packet before
        self._spare_used = False
        self._start = 0
        self._end = 0
        self._skip = 0
        self._length = 0
        self.oversize = 0
        """Bytes of the packet that `take` has just returned, if only its beginning was kept; else 0."""
        self.own = False
        """Whether the buffer that `take` has just returned has that packet alone, for as long as somebody
        looks at it."""

    def room(self) -> memoryview:
        """The buffer for the next bytes; never empty if `take` was called until it returned None."""
        return memoryview(self._data)[self._end : self._stop]

    def filled(self, count: int) -> None:
        """Tells that `count` bytes were put into `room()`."""
        if self._skip:
            skipped = min(self._skip, count)
            self._skip -= skipped
            self._start, self._end = (skipped, count) if skipped < count else (0, 0)
            return
        self._end += count

    def take(self) -> tuple[int, bytearray, int, int, int] | None:
        """Returns (first byte, buffer, start, body, end) of the next packet; None if more bytes are needed.

        `start`, `body` and `end` are positions in the buffer, which is valid until the next `room`, or as
        long as the caller likes where it is the packet's `own`. Of a
        packet above the limit only the beginning is returned, with its size in `oversize`; the rest is thrown
        away as it comes. Raises PacketError for a length that does not end.
        """
        data, start, end = self._data, self._start, self._end
        self.oversize = 0
        wanted = 0
        body = self._body(data, start, end)
        if body:
            after = body + self._length
            if self._length > self._limit:
                kept = self._head_of(data, start, body, end)
                if after > end and end - start < kept:
                    wanted = min(kept, after - start)
                else:
                    self.oversize = after - start
                    self._skip = max(0, after - end)
                    after = min(after, end)
            elif after > end:
                wanted = after - start
                if wanted > len(data) and end - start < KEPT_OF_OVERSIZE:
                    wanted = KEPT_OF_OVERSIZE  # so much says where its payload begins
            if not wanted:
                self.own = data is not self._small
                self._next(after)
                return data[start], data, start, body, after
        self._make_room(data, start, body, end, wanted)
        return None

    @staticmethod
    def _head_of(data: bytearray, start: int, body: int, end: int) -> int:
        """How many bytes of a packet above the limit are kept: those that its acknowledgement needs."""
        if data[start] & 0xF0 != PUBLISH or end < body + 2:
            return KEPT_OF_OVERSIZE
        return max(KEPT_OF_OVERSIZE, body - start + 4 + (data[body] << 8 | data[body + 1]))

    def _body(self, data: bytearray, start: int, end: int) -> int:
        """The position of the body of the packet at `start`; 0 while its length is incomplete.

        The length of the body is in `_length` then.
        """
        if end - start < 2:
            return 0
        self._length = data[start + 1]
        body = start + 2
        if self._length < 128:
            return body
        length, shift = self._length & 127, 7
        while shift <= 21:
            if body >= end:
                return 0
            digit = data[body]
            body += 1
            length |= (digit & 127) << shift
            if digit < 128:
                self._length = length
                return body
            shift += 7
        raise PacketError("a packet whose length does not end", "broker")

    def _next(self, after: int) -> None:
        self._start = after
        if after == self._end:
            self._start = self._end = 0
            if self._data is not self._small:
                if self._data is not self._kept:
                    self._spare = self._data
                self._data, self._stop = self._small, CHUNK_OF_READING

    def tidy(self) -> None:
        """Frees the buffer for packets that nobody announced, if none came since the last call."""
        if not self._spare_used:
            self._spare = None
        self._spare_used = False

    def _make_room(self, data: bytearray, start: int, body: int, end: int, wanted: int) -> None:
        """Makes space for a packet of `wanted` bytes whose beginning is at `start`."""
        have = end - start
        if wanted > len(data):
            before = 0
            if data[start] & 0xF0 == PUBLISH:
                before = (start - _payload_at(data[start], data, body, end, self._v5)) % 8
            grown = self._large(before + wanted)
            grown[before : before + have] = data[start:end]
            self._data, self._stop = grown, before + wanted
            self._start, self._end = before, before + have
        elif start and data is self._small and max(wanted - have, KEPT_OF_OVERSIZE) > len(data) - end:
            data[:have] = data[start:end]
            self._start, self._end = 0, have

    def _large(self, size: int) -> bytearray:
        kept = self._kept
        if size <= len(kept) and is_free(kept):
            return kept
        spare, self._spare, self._spare_used = self._spare, None, True
        if spare is not None and size - len(spare) <= GROWTH_OF_SPARE and resize(spare, size):
            return spare
        return bytearray(size)


def subscribe_bytes(filters: Sequence[str]) -> int:
    """Returns the bytes of a SUBSCRIBE of MQTT 5 without properties, of less than 16 KiB."""
    rest = 2 + 1 + sum(2 + len(name.encode()) + 1 for name in filters)
    return 1 + (1 if rest < 128 else 2) + rest
