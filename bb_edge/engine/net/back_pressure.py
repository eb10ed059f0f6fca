"""Tracks who should slow down: what peers have asked of this node, and what this node asks of peers.

Rule W22 of the specification.
"""

from __future__ import annotations

from typing import Any

from bb_edge.engine import steps
from bb_edge.engine.plain import Shift
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.wire import cbor
from bb_edge.wire.backoff import Backoff
from bb_edge.wire.bounds import forget_oldest
from bb_edge.wire.codecs import BYTES_HASH, WireReceiveError, WireReceiveErrorKind
from bb_edge.wire.envelope import Envelope, Fill

BACKOFF_OP = "Backoff"
"""The engine's own remote op, of component 0: its caller wants fewer envelopes from this node."""
_BACKOFF_SUFFIX = Address.empty().with_component(0, BACKOFF_OP).to_bytes()
NOTICE_INTERVAL_NS = 1_000_000_000
"""A peer is asked to slow down at most once in this time, and asked to wait that long."""
NOTICES_BEFORE_BLOCK = 3
"""How often a peer may ignore that before it is blocked until the queue drains."""


def backoff_notice(min_backoff_ns: int) -> Fill:
    """Asks a peer to send nothing for so long."""
    return Fill(_BACKOFF_SUFFIX, cbor.dumps({"min_backoff_ns": min_backoff_ns}), False, BYTES_HASH)


class BackPressure:
    """Peers that asked for patience, peers that were asked to slow down, and those that did not.

    Nobody else writes these tables; each has `max_peers` rows at most.
    """

    __slots__ = ("_backoff", "_runtime", "blocked", "imposed", "noticed")

    def __init__(self, runtime: Runtime, backoff: Backoff) -> None:
        self._runtime = runtime
        self._backoff = backoff
        self.imposed: dict[PeerId, int] = {}  # peers that asked for patience, and until when
        self.noticed: dict[PeerId, tuple[int, int]] = {}  # peer -> (last notice, how many)
        self.blocked: set[PeerId] = set()

    # --- what peers ask -------------------------------------------------------------------------------

    def told(self, peer: PeerId, fill: Fill, _message: Envelope) -> None:
        """Serves `BACKOFF_OP`: leaves the peer alone as long as it asks. WireReceiveError for a bad one."""
        try:
            notice = cbor.loads(fill.payload)
        except cbor.CborError as error:
            raise WireReceiveError(WireReceiveErrorKind.DecodeFailed, error.what) from error
        wait = notice.get("min_backoff_ns") if isinstance(notice, dict) else None
        if type(wait) is not int or wait < 0:
            raise WireReceiveError(
                WireReceiveErrorKind.DecodeFailed, "a back-off notice without min_backoff_ns"
            )
        now_ns = self._runtime.now_ns
        self._backoff.impose(peer, now_ns, wait)
        if len(self.imposed) < self._runtime.config.max_peers:
            self.imposed[peer] = now_ns + wait
        self._runtime.count("backpressure.heeded")

    def patience_until(self, peer: PeerId) -> int:
        """Until when the peer has asked to be left alone, monotonic; 0 where it has not."""
        return self.imposed.get(peer, 0) if self.imposed else 0

    # --- what this node asks --------------------------------------------------------------------------

    def notice(self, peer: PeerId, now_ns: int) -> Fill | None:
        """What tells a peer to slow down; None where it is too early for that.

        One that has not heeded it is blocked instead.
        """
        last, count = self.noticed.get(peer, (-NOTICE_INTERVAL_NS, 0))
        if now_ns - last < NOTICE_INTERVAL_NS:
            return None
        if count >= NOTICES_BEFORE_BLOCK:
            self.block(peer)
            return None
        if peer not in self.noticed:
            forget_oldest(self.noticed, self._runtime.config.max_peers)
        self.noticed[peer] = (now_ns, count + 1)
        self._runtime.count("backpressure.notices")
        return backoff_notice(NOTICE_INTERVAL_NS)

    def is_blocked(self, peer: PeerId) -> bool:
        """Whether nothing is taken from the peer, because it did not heed back-off notices."""
        return peer in self.blocked

    def block(self, peer: PeerId) -> None:
        """Takes nothing from the peer until `relieve`; nothing where it is so, or too many are."""
        if peer in self.blocked or len(self.blocked) >= self._runtime.config.max_peers:
            return
        self.blocked.add(peer)
        self._runtime.count("peers.blocked")
        self._runtime.emit(steps.PeerBlocked(peer, "did not heed back-off notices"))

    def relieve(self) -> None:
        """Everybody may send again."""
        self.noticed.clear()
        self.blocked.clear()

    def save(self) -> dict[str, Any]:
        """All tables as plain values; `restore` takes them."""
        return {
            "blocked": sorted(peer.to_bytes() for peer in self.blocked),
            "imposed": [[peer.to_bytes(), until] for peer, until in self.imposed.items()],
            "noticed": [[peer.to_bytes(), *row] for peer, row in self.noticed.items()],
        }

    def restore(self, data: Any, shift: Shift) -> None:
        """Takes what `save` gave; times move by `shift`."""
        self.blocked.update(PeerId.from_bytes(peer) for peer in data["blocked"])
        self.imposed.update((PeerId.from_bytes(peer), shift.time(until)) for peer, until in data["imposed"])
        for peer, last_ns, count in data["noticed"]:
            self.noticed[PeerId.from_bytes(peer)] = (last_ns + shift.delta_ns, count)
