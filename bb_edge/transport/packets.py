"""The two MQTT packets that carry envelopes, PUBLISH and PUBACK, and how a stream is cut into packets.

No IO. Everything else of the protocol (CONNECT, SUBSCRIBE, pings, goodbyes) is paho's, which gets its packets
whole from the `Splitter`. References: MQTT 5.0 (OASIS) sections 1.5, 2.2.2, 3.3, 3.4; 3.1.1 where it differs.
"""

from __future__ import annotations

from dataclasses import dataclass

from bb_edge.ir.errors import WireError

PUBLISH, PUBACK = 0x30, 0x40
DUP, QOS1, RETAIN = 0x08, 0x02, 0x01
EXPIRY, ALIAS = 0x02, 0x23
QUOTA_EXCEEDED = 0x97
NO_MATCHING_SUBSCRIBERS = 0x10
FAILURE = 0x80
"""Reason codes from here on are failures."""

CHUNK_OF_READING = 64 * 1024
KEPT_OF_OVERSIZE = 1024
"""Enough of a packet that is thrown away to read its topic and identifier."""

# PUBLISH properties (MQTT 5.0, table 2-4): how long a value is. 0 is a varint, -1 a length of two bytes and
# so many more, -2 two of those.
_SIZES = {0x01: 1, 0x02: 4, 0x03: -1, 0x08: -1, 0x09: -1, 0x0B: 0, 0x23: 2, 0x26: -2}


class PacketError(WireError):
    """Bytes that are no MQTT packet, or not the one that they claim to be; the connection cannot go on."""


@dataclass(frozen=True, slots=True)
class Published:
    """One PUBLISH: `mid` is 0 for QoS 0, `alias` 0 where there is none (then the topic is not empty)."""

    topic: bytes
    payload: bytes
    qos: int
    mid: int
    alias: int


def varint(number: int) -> bytes:
    """MQTT's variable byte integer; at most 268 435 455."""
    if number < 128:
        return bytes((number,))
    found = bytearray()
    while number >= 128:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


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
    """Everything of a QoS 1 PUBLISH before its payload.

    `alias` with a topic defines it, with an empty topic uses it; `expiry_s` 0 is for ever.
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
    """A PUBACK; a reason other than 0 needs MQTT 5."""
    if reason:
        return b"\x40\x03" + mid.to_bytes(2, "big") + bytes((reason,))
    return b"\x40\x02" + mid.to_bytes(2, "big")


def parse_puback(data: bytearray, start: int, end: int) -> tuple[int, int]:
    """(packet identifier, reason code) of a PUBACK's body."""
    if end - start < 2:
        raise PacketError(f"a PUBACK of {end - start} bytes", "broker")
    return data[start] << 8 | data[start + 1], data[start + 2] if end - start > 2 else 0


def parse_publish(first: int, data: bytearray, start: int, end: int, v5: bool) -> Published:
    """A PUBLISH's body, `data[start:end]`. PacketError where its lengths do not fit."""
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
    # One copy: the payload outlives the buffer that it came in.
    with memoryview(data) as view:
        payload = bytes(view[after:end])
    return Published(topic, payload, qos, mid, alias)


def _read_varint(data: bytearray, at: int, end: int) -> tuple[int, int]:
    """(number, where it ends)."""
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
    """The topic alias among a PUBLISH's properties, 0 without; the others mean nothing to us."""
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
    """Cuts what a socket gives into packets; keeps no packet whose body is above `limit` bytes.

    The reader puts bytes into `room()` and says `filled(n)`; then `take()` gives packet after packet. A large
    one is read straight into a buffer of its own size, so its bytes are moved once.
    """

    __slots__ = ("_data", "_end", "_length", "_limit", "_skip", "_small", "_start", "oversize")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._small = bytearray(CHUNK_OF_READING)
        self._data = self._small
        self._start = 0
        self._end = 0
        self._skip = 0
        self._length = 0
        self.oversize = 0
        """Size of the packet that `take` just gave, if only its beginning was kept, else 0."""

    def room(self) -> memoryview:
        """Where the next bytes go; never empty as long as `take` was called until it gave nothing."""
        return memoryview(self._data)[self._end :]

    def filled(self, count: int) -> None:
        """`count` bytes were put into `room()`."""
        if self._skip:
            skipped = min(self._skip, count)
            self._skip -= skipped
            self._start, self._end = (skipped, count) if skipped < count else (0, 0)
            return
        self._end += count

    def take(self) -> tuple[int, bytearray, int, int, int] | None:
        """(first byte, buffer, where the packet, its body and its end are), or None: more bytes are needed.

        The buffer is valid until the next `room`. Of a packet above the limit only the beginning is given,
        `oversize` says so, and the rest is thrown away as it comes. PacketError where there is no length.
        """
        data, start, end = self._data, self._start, self._end
        self.oversize = 0
        wanted = 0
        body = self._body(data, start, end)
        if body:
            after = body + self._length
            if self._length > self._limit:
                if after > end and end - start < KEPT_OF_OVERSIZE:
                    wanted = KEPT_OF_OVERSIZE
                else:
                    self.oversize = after - start
                    self._skip = max(0, after - end)
                    after = min(after, end)
            elif after > end:
                wanted = after - start
            if not wanted:
                self._next(after)
                return data[start], data, start, body, after
        self._make_room(data, start, end, wanted)
        return None

    def _body(self, data: bytearray, start: int, end: int) -> int:
        """Where the body of the packet at `start` begins, its length in `_length`; 0 where that is open."""
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
                self._data = self._small

    def _make_room(self, data: bytearray, start: int, end: int, wanted: int) -> None:
        """Makes room for a packet of `wanted` bytes that has begun at `start`."""
        have = end - start
        if wanted > len(data):
            grown = bytearray(wanted)
            grown[:have] = data[start:end]
            self._data = grown
            self._start, self._end = 0, have
        elif start and (wanted > len(data) - start or len(data) - end < KEPT_OF_OVERSIZE):
            data[:have] = data[start:end]
            self._start, self._end = 0, have
