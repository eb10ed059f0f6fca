"""Many clients of a federation in one process: a real MQTT 5 connection each, and one answer that they share.

    python benchmarks/load_clients.py PORT FEDERATION COUNT SERVER ARTIFACT [durable]

Says `{"up": COUNT - 1}` once all but the last are connected and have said their presence; the last one comes
with SIGUSR1, and SIGTERM ends it. One real node of ARTIFACT answers the first request of a round; the others
answer with the same fills, under numbers of their own. As a node does, a client acknowledges what it is sent,
and repeats its answer after 1 s, or later where acknowledgements take longer, doubling, until that is
acknowledged. What it does not do: train, keep anything, die.
"""

from __future__ import annotations

import heapq
import json
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), *(str(ROOT / folder) for folder in ("kernels", "firmware_shims"))]

from bb_edge import NodeConfig, PeerId, install  # noqa: E402
from bb_edge.engine import steps  # noqa: E402
from bb_edge.ir.address import Address  # noqa: E402
from bb_edge.transport.packets import PUBLISH, Splitter, parse_publish, puback, publish_header  # noqa: E402
from bb_edge.transport.topics import Topics  # noqa: E402
from bb_edge.wire import envelope  # noqa: E402
from bb_edge.wire.body_bytes import shared_body  # noqa: E402
from bb_edge.wire.caps import EnvelopeCaps, PeerLimits  # noqa: E402
from bb_edge.wire.envelope import REQUEST, RESPONSE, Ack, Envelope  # noqa: E402
from bb_edge.wire.presence import Presence, encode_presence  # noqa: E402
from bb_edge.wire.round_trip import RoundTrip  # noqa: E402

EPOCH, DURABLE_EPOCH = 5, 6
CONNACK, SUBACK = 0x20, 0x90
LARGEST = 1 << 28
CAPS = EnvelopeCaps(total_bytes=1 << 26, fills=256, fill_bytes=1 << 26, suffix_bytes=4096)
"""Of parameters in one piece: a node's own caps grow with what its program is planned to take."""
LIMITS = {"limits": PeerLimits.of(CAPS).meta()}
NS = 1_000_000_000
AGAIN_NS, MOST_AGAIN_NS = 1 * NS, 64 * NS
DIAL_AT_ONCE = 50
"""Connections that are greeted at a time: mosquitto listens with a short backlog."""


def text(value: str) -> bytes:
    """A string of MQTT."""
    data = value.encode()
    return len(data).to_bytes(2, "big") + data


def packet(first: int, body: bytes) -> bytes:
    """A packet of less than 16 KB."""
    length = bytes((len(body),)) if len(body) < 128 else bytes((len(body) & 127 | 128, len(body) >> 7))
    return bytes((first,)) + length + body


def fills_asked(told: Iterable[steps.EngineStep]) -> bytes | None:
    """The fills of the first request among a node's steps, as bytes; None where it sends none."""
    for step in told:
        if isinstance(step, steps.SendEnvelope):
            read = envelope.decode(step.payload, CAPS)
            if read.kind == REQUEST and read.fills:
                return envelope.encode(Envelope(read.fills, schema_version=0))
    return None


class Answers:
    """What a real client answers: its fills as bytes, which are made anew for each request's own."""

    def __init__(self, artifact: Path, server: PeerId, durable: bool) -> None:
        config = NodeConfig.edge().with_(caps=CAPS, ingress_bytes=LARGEST)
        self.peer = PeerId.from_name("client-0")
        self._node = install(
            self.peer, (), artifact.read_bytes(), ["Client"], config, seed=1, durable=durable
        )
        way = Address.empty().with_peer(server).to_bytes()
        self._node.peer_presence(server, True, (way,), epoch=1, classes=("Server",))
        self._node.poll(1)
        self._server = server
        self._now_ns = 1
        self._asked, self._durable = b"", int(durable)
        self.body = b""

    def to(self, asked: bytes) -> bytes:
        """The fills of an answer to a request with these fills."""
        if asked == self._asked:
            return self.body
        self._now_ns += 1_000_000_000
        number = self._now_ns // 1_000_000_000
        again = Envelope((), REQUEST, number, epoch=EPOCH, seq=number, base=self._durable)
        self._node.deliver_inbound(asked + envelope.encode(again), self._server)
        for _ in range(20):
            self._now_ns += 1_000_000
            for step in self._node.poll(self._now_ns):
                if isinstance(step, steps.Journal | steps.PersistOutbox):
                    self._node.persisted(step.token)
                elif isinstance(step, steps.SendEnvelope):
                    read = envelope.decode(step.payload, CAPS)
                    if read.wire_req_id and read.kind == RESPONSE and read.fills:
                        self._asked = asked
                        payloads = [(len(fill.payload), [fill.payload]) for fill in read.fills]
                        self.body = shared_body(read.fills, payloads)
                        return self.body
        raise AssertionError("the client's node did not answer")


class Client:
    """One connection."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet = fleet
        self.peer = PeerId.from_name(f"client-{number}")
        topics = Topics(fleet.federation, self.peer)
        self._topics, self._to = topics, topics.names(fleet.server).envelope
        self._splitter = Splitter(LARGEST)
        self._pieces: deque[bytes | memoryview] = deque()
        self._seq = self._mid = 0
        self._taken: set[tuple[int, int]] = set()
        self._trip = RoundTrip()
        self._sent: dict[int, float] = {}  # what was sent once
        self.unheard: dict[int, tuple[bytes, float]] = {}
        self.socket = socket.create_connection(("127.0.0.1", fleet.port))
        self.socket.setblocking(False)
        fleet.selector.register(self.socket, selectors.EVENT_READ, self)
        goodbye = encode_presence(Presence(False, EPOCH, session=1))
        will = b"\0" + text(topics.presence("Client", self.peer)) + len(goodbye).to_bytes(2, "big") + goodbye
        flags = 0x02 | 0x04 | 0x08 | 0x20  # clean start; a will of QoS 1 that is retained
        name = text(f"load-{fleet.federation}-{number}")
        self._write(packet(0x10, text("MQTT") + bytes((5, flags, 0, 0, 0)) + name + will))

    # --- out ------------------------------------------------------------------------------------------

    def _write(self, *pieces: bytes | memoryview) -> None:
        idle = not self._pieces
        self._pieces.extend(piece for piece in pieces if piece)
        if idle:
            self.flush()

    def flush(self) -> None:
        pieces = self._pieces
        try:
            while pieces:
                sent = self.socket.sendmsg([*pieces][:16])
                while sent:
                    first = pieces.popleft()
                    if sent < len(first):
                        pieces.appendleft(memoryview(first)[sent:])
                        break
                    sent -= len(first)
        except BlockingIOError:
            pass
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if pieces else 0)
        self.fleet.selector.modify(self.socket, events, self)

    def _publish(self, topic: bytes, body: bytes, rest: bytes, retain: bool = False) -> None:
        self._mid = self._mid % 65535 + 1
        header = publish_header(topic, self._mid, len(body) + len(rest), v5=True, retain=retain)
        self._write(header, memoryview(body), rest)

    def again(self, seq: int, now: float) -> None:
        """Repeats an answer that was not acknowledged."""
        kept = self.unheard.get(seq)
        if kept is None:
            return
        tail, wait = kept
        if not self._pieces:  # else the answer itself may still wait here
            self.fleet.repeated += 1
            self._publish(self._to, self.fleet.answers.body, tail)
        wait = min(2 * wait, MOST_AGAIN_NS / NS)
        self._sent.pop(seq, None)
        self._trip.repeated(int(wait * NS), int(now * NS))
        self.unheard[seq] = tail, wait
        self.fleet.later(now + wait, self, seq)

    # --- in -------------------------------------------------------------------------------------------

    def read(self) -> None:
        splitter = self._splitter
        try:
            count = self.socket.recv_into(splitter.room())
        except BlockingIOError:
            return
        if not count:
            raise SystemExit("the broker closed a connection")
        splitter.filled(count)
        while (found := splitter.take()) is not None:
            first, data, _, body, end = found
            kind = first & 0xF0
            if kind == PUBLISH:
                message = parse_publish(first, data, body, end, True)
                if message.mid:
                    self._write(puback(message.mid))
                self._take(message.payload)
            elif kind == CONNACK:
                if data[body + 1]:
                    raise SystemExit(f"the broker refuses a connection: {data[body + 1]:#04x}")
                inbox = text(self._topics.inbox)
                self._write(packet(0x82, b"\0\1\0" + inbox + b"\1"))
            elif kind == SUBACK:
                address = Address.empty().with_peer(self.peer).to_bytes()
                presence = Presence(True, EPOCH, addresses=(address,), session=1, seq=1, meta=LIMITS)
                topic = self._topics.presence("Client", self.peer)
                self._publish(topic.encode(), b"", encode_presence(presence), retain=True)
                self.fleet.up += 1

    def _take(self, payload: bytes | memoryview) -> None:
        read = envelope.decode(payload, CAPS)
        for ack in read.acks:
            if ack.epoch in (EPOCH, DURABLE_EPOCH):
                for seq in [seq for seq in self.unheard if seq <= ack.up_to or seq in ack.also]:
                    del self.unheard[seq]
                    if seq in self._sent:
                        self._trip.measured(int((time.monotonic() - self._sent.pop(seq)) * NS))
        if not read.seq:
            return
        owed = Ack(read.epoch, 0, (read.seq,))
        known = (read.epoch, read.seq) in self._taken
        self._taken.add((read.epoch, read.seq))
        if known or read.kind != REQUEST:
            self._publish(self._to, b"", envelope.encode(Envelope((), acks=(owed,))))
            return
        self._seq += 1
        fleet = self.fleet
        fills = envelope.encode(Envelope(read.fills, schema_version=0))
        body = fleet.answers.to(fills)
        epoch, base = EPOCH, 0
        if read.base:  # a durable request has a durable answer
            epoch, base = DURABLE_EPOCH, min(self.unheard, default=self._seq)
        reply = Envelope((), RESPONSE, read.wire_req_id, epoch=epoch, seq=self._seq, base=base, acks=(owed,))
        tail = envelope.encode(reply)
        now = time.monotonic()
        remaining = read.remaining_deadline_ns
        wait = self._trip.interval_ns(AGAIN_NS, MOST_AGAIN_NS, remaining) / NS
        self.unheard[self._seq], self._sent[self._seq] = (tail, wait), now
        fleet.later(now + wait, self, self._seq)
        fleet.answered += 1
        self._publish(self._to, body, tail)


class Fleet:
    """All clients, in one loop."""

    def __init__(self, port: int, federation: str, server: PeerId, answers: Answers) -> None:
        self.port, self.federation, self.server, self.answers = port, federation, server, answers
        self.selector = selectors.DefaultSelector()
        self.up = self.answered = self.repeated = 0
        self._timers: list[tuple[float, int, Client, int]] = []
        self._timer = 0

    def later(self, when: float, client: Client, seq: int) -> None:
        self._timer += 1
        heapq.heappush(self._timers, (when, self._timer, client, seq))

    def turn(self) -> None:
        """One round of the loop."""
        for key, events in self.selector.select(0.2):
            if events & selectors.EVENT_WRITE:
                key.data.flush()
            if events & selectors.EVENT_READ:
                key.data.read()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, client, seq = heapq.heappop(self._timers)
            client.again(seq, now)


def main(port: str, federation: str, count: str, server: str, artifact: str, durable: str = "") -> None:
    asker = PeerId.from_name(server)
    fleet = Fleet(int(port), federation, asker, Answers(Path(artifact), asker, bool(durable)))
    told: set[int] = set()
    for one in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(one, lambda number, _frame: told.add(number))
    clients: list[Client] = []
    for number in range(int(count) - 1):
        clients.append(Client(fleet, number))
        while len(clients) - fleet.up >= DIAL_AT_ONCE:
            fleet.turn()
    while fleet.up < len(clients):
        fleet.turn()
    print(json.dumps({"up": fleet.up}), flush=True)
    while not told:
        fleet.turn()
    clients.append(Client(fleet, len(clients)))
    while signal.SIGTERM not in told:
        fleet.turn()
    print(json.dumps({"answered": fleet.answered, "repeated": fleet.repeated}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
