"""The queue of a node towards its broker: what waits to be sent, and what waits for its PUBACK. No IO.

At most the broker's receive maximum is under way. The rest waits here, bounded by a count and by bytes; at
the bound the oldest envelope is dropped that the node does not keep, and counted. Items under way when a
connection breaks are sent again at the next one (MQTT 5.0, section 4.4), with the same packet identifier in
the same session.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, MutableMapping

from bb_edge.ir.ids import PeerId
from bb_edge.transport.broker import MAX_PACKET_BYTES
from bb_edge.transport.chunks import HEADER_BYTES, Chunk, cut
from bb_edge.transport.packets import FAILURE, NO_MATCHING_SUBSCRIBERS, publish_header
from bb_edge.wire.bodies import Body, HeldBodies

FIRST_MID, LAST_MID = 1024, 65_535
"""The packet identifiers that we use; paho uses lower ones, one per SUBSCRIBE."""
MAX_WINDOW = 64
"""Publishes under way, even if the broker allows more.

A broker that dies loses what it has taken and not passed on; 64 fill a link of 100 ms round trip with 600
envelopes a second.
"""
AT_ONCE = 256 * 1024
"""Bytes in the socket's queue above which no more packets are made: a Linux socket buffer or so."""
JOINED_UP_TO = 4096
"""Bytes of a PUBLISH up to which its parts are joined: a page, which is copied in less time than a second
buffer takes."""
MAX_OVERHEAD = 32
"""Most bytes of a PUBLISH beside topic and payload: fixed header, lengths, identifier and properties."""
LEAST_CHUNK = 256
"""Fewest bytes of an envelope in a chunk; below it the headers would cost more than the envelope."""
MAX_ALIASES = 256
"""Topic aliases that we use of those that a broker offers; each costs a topic in memory on both sides."""
ALIAS_PATIENCE = 8
"""An alias that was unused for this many times the number of aliases, in publishes, gets another topic."""


class Item:
    """One PUBLISH before it is sent: an envelope, a chunk of one, or a presence.

    What it carries is `body`, which items to other peers may share, and then `payload`.
    """

    __slots__ = (
        "body",
        "chunk_topic",
        "expires_ns",
        "head",
        "kept",
        "mid",
        "once",
        "payload",
        "peer",
        "retain",
        "topic",
    )

    def __init__(
        self,
        topic: bytes,
        payload: bytes | memoryview,
        *,
        peer: PeerId | None = None,
        expires_ns: int = 0,
        kept: bool = False,
        retain: bool = False,
        once: bool = False,
        chunk_topic: bytes = b"",
        head: bytes = b"",
        body: Body = b"",
    ) -> None:
        self.topic = topic
        self.body = body
        self.payload = payload
        self.peer = peer
        self.expires_ns = expires_ns  # monotonic nanoseconds; 0: never
        self.kept = kept
        self.retain = retain
        self.once = once or retain  # of this connection alone: each one sends its own
        self.chunk_topic = chunk_topic  # topic of its chunks; empty: it is never cut
        self.head = head  # the header of a chunk; empty for a whole envelope
        self.mid = 0

    # Reckoned, not held: a request to a thousand peers is as many items.

    @property
    def chunk(self) -> bool:
        """Whether it is a chunk of an envelope."""
        return bool(self.head)

    @property
    def size(self) -> int:
        """The bytes of header, body and payload."""
        return len(self.head) + len(self.body) + len(self.payload)


def packet_bytes(topic: bytes, payload: int) -> int:
    """The bytes of a packet that surely holds a payload of that many under this topic."""
    return MAX_OVERHEAD + len(topic) + payload


def least_packet(item: Item) -> int:
    """The bytes of the smallest packets in which an item goes: whole, or in chunks where it may be cut."""
    whole = packet_bytes(item.topic, item.size)
    if not item.chunk_topic:
        return whole
    return min(whole, packet_bytes(item.chunk_topic, HEADER_BYTES + LEAST_CHUNK))


class Aliases:
    """The topic aliases of one connection: a topic is sent once, and then takes two bytes."""

    __slots__ = ("_clock", "_maximum", "_used")

    def __init__(self, maximum: int) -> None:
        self._maximum = min(maximum, MAX_ALIASES)
        self._used: OrderedDict[bytes, tuple[int, int]] = OrderedDict()  # topic -> (alias, last use)
        self._clock = 0

    def of(self, topic: bytes) -> tuple[int, bool]:
        """Returns (alias, whether this publish defines it); (0, False) if the topic gets no alias."""
        if not self._maximum:
            return 0, False
        self._clock += 1
        known = self._used.get(topic)
        if known is not None:
            self._used[topic] = (known[0], self._clock)
            self._used.move_to_end(topic)
            return known[0], False
        if len(self._used) < self._maximum:
            alias = len(self._used) + 1
        else:
            # If topics took aliases from each other in turns, each publish would define one and save nothing.
            oldest, (alias, last) = next(iter(self._used.items()))
            if self._clock - last < ALIAS_PATIENCE * self._maximum:
                return 0, False
            del self._used[oldest]
        self._used[topic] = (alias, self._clock)
        return alias, True


class Outgoing:
    """The sending half of a connection. It outlives the connection, and is used by the next one."""

    def __init__(
        self,
        max_waiting: int,
        max_bytes: int,
        counters: MutableMapping[str, int],
        too_large: Callable[[Item], object] = lambda _item: None,
    ) -> None:
        """`too_large(item)` is called where an item is dropped because no packet of the broker's holds it."""
        self._too_large = too_large
        self._max_waiting = max_waiting
        self._max_bytes = max_bytes
        self._counters = counters
        self._first: deque[Item] = deque()  # sent before all others: presence, repetitions
        self._waiting: deque[Item] = deque()
        self._flying: dict[int, Item] = {}
        self._cut: Iterator[Chunk] | None = None
        self._whole: Item | None = None  # the envelope that is being cut
        self._bytes = 0
        self._bodies = HeldBodies()
        self._next_mid = FIRST_MID
        self._next_transfer = 0
        self._same_session = False
        self._v5 = True
        self._window = 0
        self._packet_bytes = MAX_PACKET_BYTES
        self._aliases = Aliases(0)

    def __len__(self) -> int:
        return len(self._first) + len(self._waiting) + len(self._flying) + (self._whole is not None)

    @property
    def bytes_held(self) -> int:
        """Payload bytes of everything that waits or is under way; a body that items share counts once."""
        return self._bytes

    @property
    def congested(self) -> bool:
        """Whether items wait because the broker's window is full."""
        return bool(self._waiting)

    # --- putting items in ------------------------------------------------------------------------------

    def put(self, item: Item) -> Item | None:
        """Takes an item. At the bound the oldest goes that its sender does not keep, else this one.

        Items that are kept are bounded by their sender, and always taken. Returns the last that went.
        """
        gone: Item | None = None
        body = item.body
        size = item.size
        while self._over(size - len(body) + self._bodies.adds(body) if body else size):
            dropped = self._drop_oldest()
            if dropped is not None:
                gone = dropped
            elif item.kept:
                break
            else:
                self._counters["dropped"] += 1
                return item
        self._hold(item)
        self._waiting.append(item)
        return gone

    def put_first(self, item: Item) -> None:
        """Takes an item that is sent before all others and never dropped; for what is small and seldom."""
        self._hold(item)
        self._first.append(item)

    def _over(self, size: int) -> bool:
        if not self._bytes:
            return False  # one envelope may be larger than the bound
        return len(self._waiting) >= self._max_waiting or self._bytes + size > self._max_bytes

    def _drop_oldest(self) -> Item | None:
        for index, item in enumerate(self._waiting):
            if not item.kept:
                del self._waiting[index]
                self._gone(item, "dropped")
                return item
        return None

    def _hold(self, item: Item) -> None:
        self._bytes += item.size
        if item.body:
            self._bytes += self._bodies.hold(item.body) - len(item.body)

    def _let_go(self, item: Item) -> None:
        self._bytes -= item.size
        if item.body:
            self._bytes += len(item.body) - self._bodies.drop(item.body)

    def _gone(self, item: Item, counter: str) -> None:
        self._let_go(item)
        self._counters[counter] += 1

    # --- connections -----------------------------------------------------------------------------------

    def connected(
        self, *, v5: bool, same_session: bool, window: int, aliases: int, packet_bytes: int, transfer: int
    ) -> None:
        """Starts a connection with what the broker allows; `transfer` is a random start for transfer numbers.

        `window` counts publishes under way, `packet_bytes` is the largest body of a packet.
        """
        self._v5 = v5
        self._same_session = same_session
        self._window = min(window, MAX_WINDOW)
        self._aliases = Aliases(aliases if v5 else 0)
        self._packet_bytes = packet_bytes
        self._next_transfer = transfer

    def disconnected(self) -> None:
        """Ends a connection; what was under way is sent first at the next one, in the same order."""
        again = [*self._flying.values(), *self._first]
        for item in again:
            if item.once:
                self._let_go(item)
        self._flying.clear()
        self._first = deque(item for item in again if not item.once)
        self._window = 0

    # --- packets ---------------------------------------------------------------------------------------

    def pieces(self, queued_bytes: int, now_ns: int) -> Iterator[bytes | memoryview]:
        """Makes packets until the broker's window or `AT_ONCE` is full, and yields their bytes."""
        while len(self._flying) < self._window and queued_bytes < AT_ONCE:
            item = self._take(now_ns)
            if item is None:
                return
            header = self._header(item, now_ns)
            size = item.size
            queued_bytes += len(header) + size
            counters = self._counters
            counters["sent"] += not (item.chunk or item.peer is None)
            counters["chunks_sent"] += item.chunk
            counters["sent_bytes"] += len(header) + size
            if size <= JOINED_UP_TO:
                yield b"".join((header, item.head, item.body, item.payload))
            else:
                yield header + item.head
                if item.body:
                    yield item.body
                yield item.payload

    def _take(self, now_ns: int) -> Item | None:
        """The next item that has not expired and fits into a packet; None if there is none."""
        while True:
            if self._first:
                item = self._first.popleft()
            elif self._cut is not None:
                chunk = next(self._cut, None)
                if chunk is None:
                    self._end_cut("cut")
                    continue
                whole = self._whole
                assert whole is not None
                item = Item(
                    whole.chunk_topic,
                    chunk.data,
                    peer=whole.peer,
                    expires_ns=whole.expires_ns,
                    kept=whole.kept,
                    head=chunk.head,
                )
                self._hold(item)
            elif self._waiting:
                item = self._waiting.popleft()
            else:
                return None
            if item.expires_ns and item.expires_ns <= now_ns:
                self._gone(item, "expired")
                if item.chunk:
                    self._end_cut("expired")
                continue
            if packet_bytes(item.topic, item.size) <= self._packet_bytes:
                return item
            if least_packet(item) > self._packet_bytes:
                self._gone(item, "too_large")
                self._too_large(item)
                continue
            room = self._packet_bytes - packet_bytes(item.chunk_topic, HEADER_BYTES)
            self._end_cut("cut")  # of a transfer that a broken connection has left
            self._next_transfer = (self._next_transfer + 1) & 0xFFFF_FFFF_FFFF_FFFF
            whole_bytes = b"".join((item.body, item.payload)) if item.body else item.payload
            self._cut, self._whole = cut(whole_bytes, room, self._next_transfer), item

    def _end_cut(self, counter: str) -> None:
        whole, self._cut, self._whole = self._whole, None, None
        if whole is not None:
            self._gone(whole, counter)

    def _header(self, item: Item, now_ns: int) -> bytes:
        dup = bool(item.mid) and self._same_session
        if not dup:
            item.mid = self._mint()
        self._flying[item.mid] = item
        alias, new = (0, False) if item.retain else self._aliases.of(item.topic)
        expiry = -(-(item.expires_ns - now_ns) // 1_000_000_000) if item.expires_ns else 0
        return publish_header(
            item.topic if new or not alias else b"",
            item.mid,
            item.size,
            v5=self._v5,
            dup=dup,
            retain=item.retain,
            alias=alias,
            expiry_s=min(expiry, 0xFFFF_FFFF),
        )

    def _mint(self) -> int:
        flying = self._flying
        mid = self._next_mid
        while mid in flying:
            mid = mid + 1 if mid < LAST_MID else FIRST_MID
        self._next_mid = mid + 1 if mid < LAST_MID else FIRST_MID
        return mid

    def acknowledged(self, mid: int, reason: int) -> Item | None:
        """Ends an item that the broker has taken, or refused (reason 128 or more); returns the item.

        Returns None for an identifier that is not ours.
        """
        item = self._flying.pop(mid, None)
        if item is None:
            return None
        self._let_go(item)
        if reason >= FAILURE:
            self._counters["refused"] += 1
        elif reason == NO_MATCHING_SUBSCRIBERS:
            self._counters["unheard"] += 1
        return item
