"""What reads bytes that came over the wire."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from random import Random

import numpy as np

from bb_edge.engine import steps
from bb_edge.engine.ledger import IngressFull
from bb_edge.ir import types
from bb_edge.ir.address import Address, parse_suffix
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.ir.tensors import encode_tensor, tensor_metadata
from bb_edge.ir.values import Composite
from bb_edge.transport.chunks import Reassembly, cut
from bb_edge.transport.packets import Splitter, parse_puback, parse_publish
from bb_edge.wire import cbor, envelope
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.codecs import decode_value, encode_value, wire_type_hash
from bb_edge.wire.envelope import Ack, Envelope, Fill, RttReport
from bb_edge.wire.presence import Presence, decode_presence, encode_presence
from tests.aids.peers import numbered

from . import mutations, programs
from .campaign import Subject

KIB, MIB = 1 << 10, 1 << 20
SMALL = 64 * KIB
PEER = programs.peer("somebody")


def full_envelope() -> bytes:
    """Every field of an envelope, several times where that is allowed."""
    row = encode_tensor(np.arange(4, dtype=np.float32))
    return envelope.encode(
        Envelope(
            [
                Fill(b"\xe2\x01" + bytes(8), row, False, 0x101),
                Fill(b"\xe3\x01abcd\xe4\x01\x02op", b"", True, 7),
            ],
            kind=1,
            wire_req_id=99,
            remaining_deadline_ns=5,
            src_peer=PEER.to_bytes(),
            src_addresses=(Address.empty().with_peer(PEER).to_bytes(),),
            dest_addresses=(Address(site=3).to_bytes(),),
            epoch=2**56 - 1,
            seq=300,
            acks=(Ack(1, 2, (5, 9)), Ack(2**63, 1, ())),
            base=200,
            schema_version=1,
            rtt_reports=(RttReport(1, 2, 3, 4, 5, 6),),
        )
    )


def envelopes() -> Subject:
    """The codec alone; what it takes survives being written and read again."""

    def read(data: bytes) -> object:
        found = envelope.decode(data, EDGE_CAPS)
        again = envelope.decode(envelope.encode(found), EDGE_CAPS)
        assert again == found, "an envelope changes by being written and read"
        return found

    seeds = [full_envelope(), *(data for _, _, data in programs.traffic())]
    return Subject("envelopes", seeds, (mutations.blind, mutations.protobuf), read, lambda n: 8 * n + SMALL)


class Hostile:
    """A node that is given envelopes by peers it knows and others, and polled now and then.

    Half of them are given a number that was not there yet, and the newest request that the node has open:
    what comes last in an envelope counts.
    """

    LIFE = 40_000

    def __init__(self, target: str, durable: bool) -> None:
        self._make = lambda: programs.make_node(target, "victim", durable)
        self._senders = [programs.peer(name) for name in ("server", "client-0", "client-1")]
        self._senders += [numbered(n) for n in range(100)]
        self.rebirth()

    def rebirth(self) -> None:
        self.node, self.now_ns, self.left = self._make(), 0, self.LIFE
        self.request, self.number = 0, 0
        for peer, kind in zip(self._senders, ("Server", "Client", "Client"), strict=False):
            address = Address.empty().with_peer(peer).to_bytes()
            self.node.peer_presence(peer, True, (address,), epoch=1, classes=(kind,))
        self.poll()

    def read(self, data: bytes) -> None:
        self.left -= 1
        if self.left < 0:
            self.check()
            self.rebirth()
        if self.left & 2:
            self.number += 1
            data += b"\xb0\x06" + mutations.varint(self.number)
            if self.left & 4 and self.request:
                body = b"\x10" + mutations.varint(self.request)
                data += b"\x1a" + bytes([len(body)]) + body
        sender = self._senders[3 * self.left % len(self._senders) if self.left & 7 == 0 else self.left % 3]
        try:
            self.node.deliver_inbound(data, sender)
        except IngressFull:
            self.poll()
            raise
        if self.left & 15 == 0:
            self.poll()

    def counted(self) -> dict[str, int]:
        """What the node of this life has refused, by reason, and what it has run."""
        wanted = ("ingress.", "executions.", "outbound.")
        return {k: v for k, v in self.node.counters.items() if k.startswith(wanted)}

    def poll(self) -> None:
        self.now_ns += 5 * programs.MS
        try:
            said = self.node.poll(self.now_ns)
        except BBError as error:
            raise AssertionError(f"out of a poll comes {error!r}") from error
        for step in said:
            if isinstance(step, steps.Journal | steps.PersistOutbox):
                self.node.persisted(step.token)
            elif isinstance(step, steps.SnapshotWanted):
                self.node.snapshot(self.now_ns)
                self.node.snapshot_written()
            elif isinstance(step, steps.SendEnvelope):
                self.request = envelope.decode(step.payload, EDGE_CAPS).wire_req_id or self.request

    def check(self) -> None:
        """After a life of hostile traffic: all within its ceiling, and it can still be written down."""
        counters, config = self.node.counters, self.node.config
        assert counters["executions.active"] <= config.max_executions * (1 + config.max_children)
        assert 0 <= counters["ingress.bytes"] <= config.ingress_bytes
        assert counters["requests.open"] <= config.max_requests
        assert self.node.pending_sends <= 2 * config.outbound_queue
        self.node.snapshot(self.now_ns)


def nodes(target: str, durable: bool) -> Callable[[], Subject]:
    def make() -> Subject:
        seeds = [data for _, _, data in programs.traffic()]
        name = f"nodes of {target}, {'durable' if durable else 'best effort'}"
        hostile = Hostile(target, durable)
        return Subject(name, seeds, (mutations.blind, mutations.protobuf), hostile.read, lambda n: 8 * MIB)

    return make


def addresses() -> Subject:
    def read(data: bytes) -> object:
        with contextlib.suppress(BBError):
            parse_suffix(data)
        with contextlib.suppress(BBError):
            Address.from_text(data.decode("latin-1"))
        found = Address.from_bytes(data)
        assert found.to_bytes() == data
        assert Address.from_text(found.to_text()) == found
        return found

    whole = Address(PEER, 2**63).with_component(7, "op")
    seeds = [whole.to_bytes(), whole.to_text().encode(), Address(site=1).to_bytes()]
    return Subject("addresses", seeds, (mutations.blind,), read, lambda n: 8 * n + SMALL)


def peer_ids() -> Subject:
    def read(data: bytes) -> object:
        with contextlib.suppress(BBError):
            PeerId.from_text(data.decode("latin-1"))
        found = PeerId.from_bytes(data)
        assert found.to_bytes() == data
        assert PeerId.from_text(found.to_text()) == found
        return found

    seeds = [PEER.to_bytes(), PEER.to_text().encode(), numbered(5).to_bytes()]
    return Subject("peer ids", seeds, (mutations.blind,), read, lambda n: 8 * n + SMALL)


def cbor_values() -> Subject:
    def read(data: bytes) -> object:
        found = cbor.loads(data)
        written = cbor.dumps(found)
        assert cbor.dumps(cbor.loads(written)) == written, "what is written can be read"
        return found

    seeds = [
        cbor.dumps([None, True, {"a": [1, -1, 2.5, b"x"], "b": {}}, "text", 2**63]),
        cbor.dumps([[[[1]]]] * 20),
    ]
    return Subject("CBOR", seeds, (mutations.blind, mutations.items), read, lambda n: 64 * n + SMALL)


VALUES: tuple[object, ...] = (
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.zeros((2, 0), np.int64),
    (PEER, numbered(4)),
    (Address(site=3),),
    b"some bytes",
    Composite(tuple((wire_type_hash(v), v) for v in (np.ones(2, np.float32), b"x", (PEER,)))),
)


def typed_values() -> Subject:
    """The type hash stands in the first eight bytes."""

    def read(data: bytes) -> object:
        found = decode_value(int.from_bytes(data[:8], "big"), data[8:], EDGE_CAPS)
        wire_type_hash(found)
        return found

    def other_type(data: bytes, seeds: Sequence[bytes], rng: Random) -> bytes:
        return rng.choice(hashes) + data[8:]

    def payload(change: mutations.Mutate) -> mutations.Mutate:
        return lambda data, seeds, rng: data[:8] + change(data[8:], seeds, rng)

    hashes = [n.wire_hash.to_bytes(8, "big") for n in types.REGISTRY if n.wire_hash]
    pairs = [encode_value(value) for value in VALUES]
    seeds = [h.to_bytes(8, "big") + data for h, data in pairs]
    change = (payload(mutations.blind), payload(mutations.protobuf), other_type)
    return Subject("typed values", seeds, change, read, lambda n: 256 * n + 4 * SMALL)


def tensors() -> Subject:
    from bb_edge.ir.tensors import decode_tensor

    def read(data: bytes) -> object:
        tensor_metadata(data)
        return decode_tensor(data)

    arrays = [np.arange(6, dtype=d).reshape(2, 3) for d in ("float32", "int64", "uint8", "float16")]
    seeds = [encode_tensor(a) for a in arrays]
    return Subject("tensors", seeds, (mutations.blind, mutations.protobuf), read, lambda n: 64 * n + SMALL)


def presences() -> Subject:
    presence = Presence(
        True, 7, ("Client",), (Address.empty().with_peer(PEER).to_bytes(),), {"limits": [1, 2, 3]}
    )
    seeds = [encode_presence(presence), encode_presence(Presence(False, 7))]

    def read(data: bytes) -> object:
        found = decode_presence(data)
        encode_presence(found)
        return found

    return Subject("presences", seeds, (mutations.blind, mutations.items), read, lambda n: 64 * n + SMALL)


def chunks() -> Subject:
    inbox = Reassembly(8, 64 * KIB, 32 * KIB, 10**9)
    clock = itertools.count()

    def read(data: bytes) -> object:
        now = next(clock)
        found = inbox.add(numbered(now % 5), data, now * 10**6)
        assert inbox.bytes_held <= 64 * KIB and len(inbox) <= 8
        return found

    envelope_bytes = bytes(range(200)) * 3
    seeds = [c.head + bytes(c.data) for number in range(4) for c in cut(envelope_bytes, 160, number)]
    return Subject("chunks", seeds, (mutations.blind,), read, lambda n: 64 * n + SMALL)


def packets() -> Subject:
    """What comes from a broker's socket, in pieces as it comes."""

    def read(data: bytes) -> object:
        splitter, at, found = Splitter(64 * KIB), 0, []
        while at < len(data):
            room = splitter.room()
            size = min(len(room), len(data) - at, 1 + at % 37)
            room[:size] = data[at : at + size]
            room.release()
            splitter.filled(size)
            at += size
            while (packet := splitter.take()) is not None:
                first, buffer, _start, body, end = packet
                if splitter.oversize:
                    continue
                if first >> 4 == 3:
                    found.append(parse_publish(first, buffer, body, end, len(found) % 2 == 0))
                elif first >> 4 == 4:
                    found.append(parse_puback(buffer, body, end))
        return found

    seeds = _packet_seeds()
    return Subject("MQTT packets", seeds, (mutations.blind,), read, lambda n: 64 * n + 256 * KIB)


def _packet_seeds() -> list[bytes]:
    body = b"\x00\x03a/b\x00\x05\x00payload"
    alias = b"\x00\x03a/b\x00\x05\x0a\x23\x00\x07\x01\x01\x02\x00\x00\x00\x09payload"
    texts = b"\x00\x03a/b\x00\x05\x0d\x26\x00\x01k\x00\x01v\x0b\x05\x09\x00\x01z more"
    found = [bytes([0x32, len(b)]) + b for b in (body, alias, texts)]
    return [
        *found,
        b"\x40\x02\x00\x05",
        b"\x40\x04\x00\x05\x10\x00",
        b"".join(found) * 2,
        b"\x32\x80\x80\x80\x01" + body,
    ]
