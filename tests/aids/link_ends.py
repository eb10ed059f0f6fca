"""Two ends of a link, and what goes between them."""

from __future__ import annotations

from bb_edge.ir.ids import PeerId
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.delivery import (
    EnvelopeKey,
    LinkConfig,
    Links,
    Outgoing,
    Verdict,
)
from bb_edge.wire.envelope import NONE, Envelope, Fill, decode, encode

A, B, C, D = (PeerId.from_int(n) for n in range(4))
EPOCH, OUTBOX = 11, 12


def links(**changes: int) -> Links:
    return Links(EPOCH, OUTBOX, LinkConfig(**changes))


def fills() -> list[Fill]:
    return [Fill(payload=b"p")]


def send(
    sender: Links, kind: int = NONE, now: int = 0, durable: bool = False, deadline: int = 0, peer: PeerId = B
) -> tuple[Envelope, EnvelopeKey]:
    envelope = Envelope(fills=fills(), kind=kind)
    key = sender.stamp(peer, envelope, now, durable, durable or kind != NONE, deadline)
    sender.sent(peer, key, encode(envelope))
    return envelope, key


def take(receiver: Links, envelope: Envelope, now: int = 0, peer: PeerId = A) -> Verdict:
    verdict = receiver.receive(peer, envelope, now)
    if verdict in (Verdict.NEW, Verdict.DUPLICATE):
        receiver.mark(peer, envelope, now)
    return verdict


def read(outgoing: Outgoing) -> Envelope:
    return decode(outgoing.payload, EDGE_CAPS)
