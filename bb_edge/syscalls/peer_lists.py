"""ONNX operators over lists of peers (semantics §2): they pick and join, and no backend knows such values.

A list is a tuple of PeerIds. `Squeeze` and `Unsqueeze` leave it as it is: one peer is a list of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bb_edge.engine.parking import OpError
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
        raise OpError(f"no peer {wanted.tolist()} among {count}", hint="ask for fewer, or for more peers")
    return tuple(peers[int(i)] for i in wanted)


def _sliced(inputs: Sequence[Any]) -> Peers:
    """ONNX's bounds: beyond the ends is the end. A list has one axis."""
    peers: Peers = inputs[0]
    starts, ends = np.asarray(inputs[1]).ravel(), np.asarray(inputs[2]).ravel()
    step = int(np.asarray(inputs[4]).ravel()[0]) if len(inputs) > 4 and inputs[4] is not None else 1
    if len(starts) != 1 or len(ends) != 1 or step == 0:
        raise OpError("a list of peers has one axis, and steps are not 0", hint="slice it as peers[0:2]")
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
