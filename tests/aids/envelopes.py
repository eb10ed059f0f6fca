"""Envelopes as another node would send them."""

from __future__ import annotations

from typing import Any

from arrays import f32

from bb_edge.ir.address import site_suffix
from bb_edge.wire import envelope
from bb_edge.wire.codecs import encode_value
from bb_edge.wire.envelope import NONE, Envelope, Fill


def fill(site: int, *values: float) -> Fill:
    """The values as a vector for a site of the receiver."""
    type_hash, payload = encode_value(f32(*values))
    return Fill(site_suffix(site), payload, False, type_hash)


def durable_message(
    site: int, seq: int, value: float = 3, kind: int = NONE, epoch: int = 9, **more: Any
) -> bytes:
    """A durable envelope of one value, the `seq`-th of its sender's, who has had no answer to the first."""
    return envelope.encode(Envelope([fill(site, value)], kind, epoch=epoch, seq=seq, base=1, **more))
