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
from bb_edge.wire.durable_receiver import DurableReceiver
from bb_edge.wire.envelope import NONE, Envelope, Fill, decode, encode
from tests.aids.peers import numbered

A, B, C, D = (numbered(n) for n in range(4))
EPOCH, OUTBOX = 11, 12


def sources() -> DurableReceiver:
    """Windows of durable envelopes; what it draws does not matter here."""
    return DurableReceiver(lambda: 1)


def links(**changes: int) -> Links:
    return Links(EPOCH, sources(), LinkConfig(**changes))


def fills() -> list[Fill]:
    return [Fill(payload=b"p")]


def durable(seq: int, base: int = 1, epoch: int = OUTBOX) -> Envelope:
    """A durable envelope, whoever has numbered it."""
    return Envelope(fills=fills(), epoch=epoch, seq=seq, base=base)


def send(
    sender: Links, kind: int = NONE, now: int = 0, deadline: int = 0, peer: PeerId = B
) -> tuple[Envelope, EnvelopeKey]:
    envelope = Envelope(fills=fills(), kind=kind)
    key = sender.stamp(peer, envelope, now, kind != NONE, deadline)
    sender.sent(peer, key, encode(envelope))
    return envelope, key


def take(receiver: Links, envelope: Envelope, now: int = 0, peer: PeerId = A) -> Verdict:
    if envelope.base:
        return take_durable(receiver, envelope, now, peer)
    verdict = receiver.receive(peer, envelope, now)
    if verdict in (Verdict.NEW, Verdict.DUPLICATE):
        receiver.mark(peer, envelope, now)
    return verdict


def take_durable(
    receiver: Links, envelope: Envelope, now: int = 0, peer: PeerId = A, hold: bool = False
) -> Verdict:
    """Takes a durable envelope of a peer of an older version; unless `hold`, it is written down at once."""
    windows, epoch, seq, base = receiver.sources, envelope.epoch, envelope.seq, envelope.base
    windows.peer_up(peer, knows_marks=False)
    verdict = windows.receive(peer, epoch, seq, base)
    if verdict is Verdict.NEW:
        windows.hold(peer, epoch, seq, base)
        if not hold:
            windows.journaled(peer, epoch, seq)
    elif verdict is Verdict.DUPLICATE:
        windows.again(peer, epoch, seq)
    receiver.owe_durable(peer, now)
    return verdict


def read(outgoing: Outgoing) -> Envelope:
    return decode(outgoing.payload, EDGE_CAPS)
