"""Lists of peers: ONNX operators over them, which no backend knows, and ops of our own.

A list is a tuple of PeerIds. `Squeeze` and `Unsqueeze` leave it as it is: one peer is a list of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bb_edge.engine.binding import Bind, BindEnv, OpContext, Run
from bb_edge.engine.errors import OpError
from bb_edge.engine.run.bound import BoundOp
from bb_edge.ir.ids import PeerId

Peers = tuple[PeerId, ...]
Pick = Callable[[Sequence[Any]], Peers]


def _same(inputs: Sequence[Any]) -> Peers:
    peers: Peers = inputs[0]
    return peers


def _joined(inputs: Sequence[Any]) -> Peers:
    return tuple(peer for peers in inputs for peer in peers)


def _gathered(inputs: Sequence[Any]) -> Peers:
    peers, wanted = inputs[0], np.asarray(inputs[1]).ravel()
    count = len(peers)
    if any(not -count <= i < count for i in wanted):
        raise OpError(f"no peer {wanted.tolist()} among {count}", hint="gather fewer peers, or sample more")
    return tuple(peers[int(i)] for i in wanted)


def _sliced(inputs: Sequence[Any]) -> Peers:
    """Slices a list, which has one axis, with ONNX's bounds: positions beyond the ends mean the ends."""
    peers: Peers = inputs[0]
    starts, ends = np.asarray(inputs[1]).ravel(), np.asarray(inputs[2]).ravel()
    step = int(np.asarray(inputs[4]).ravel()[0]) if len(inputs) > 4 and inputs[4] is not None else 1
    if len(starts) != 1 or len(ends) != 1 or step == 0:
        raise OpError(
            "a list of peers has one axis, and its steps cannot be 0", hint="slice it as peers[0:2]"
        )
    start, end = int(starts[0]), int(ends[0])
    if step < 0 and end < -len(peers):  # beyond the first: Python would count it from the other end
        return peers[start::step]
    return peers[start:end:step]


OVER_PEERS: Mapping[str, Pick] = {
    "Identity": _same,
    "Squeeze": _same,
    "Unsqueeze": _same,
    "Concat": _joined,
    "Gather": _gathered,
    "Slice": _sliced,
}


def peer_of(value: Any, ctx: OpContext) -> PeerId:
    """Returns a value that is a single peer. OpError for anything else."""
    if not isinstance(value, PeerId):
        raise OpError(f"expected a PeerId, got {value!r}", where=ctx.op.spec.name)
    return value


def element(values: Any, index: Any, what: str, ctx: OpContext) -> object:
    """Returns one entry of a list, counted from 0, or from the end below 0. OpError beyond its ends."""
    place = np.asarray(index)
    if place.size != 1:
        raise OpError(f"expected one index, got {place.tolist()}", where=ctx.op.spec.name)
    number = int(place.ravel()[0])
    if not -len(values) <= number < len(values):
        raise OpError(
            f"no {what} at {number}: the list has {len(values)}",
            where=ctx.op.spec.name,
            hint="make the op wait for a list that is long enough"
            + (", or slice: peers[0:1] may be empty" if what == "peer" else ""),
        )
    return values[number]


def _peer_at(op: BoundOp, env: BindEnv) -> Run:
    return lambda ctx, peers, index: element(peers, index, "peer", ctx)


def _peer_list(op: BoundOp, env: BindEnv) -> Run:
    return lambda ctx, *peers: tuple(peer_of(peer, ctx) for peer in peers)


def _peer_count(op: BoundOp, env: BindEnv) -> Run:
    return lambda ctx, peers: np.asarray(len(peers), np.int64)


BINDERS: dict[str, Bind] = {"PeerAt": _peer_at, "PeerList": _peer_list, "PeerCount": _peer_count}
