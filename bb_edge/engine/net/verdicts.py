"""What becomes of answers: whose answer does not count is told why, and this node hears the same of its own.

The first reply under a request id is final, so that a refusal is not part of that exchange: it is a notice to
the engine of the node that answered, best-effort, and only to peers whose presence says that they read it.
"""

from __future__ import annotations

from bb_edge.engine import steps
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.ir.missing import MissingReason
from bb_edge.wire import cbor
from bb_edge.wire.bounds import forget_oldest
from bb_edge.wire.codecs import BYTES_HASH, WireReceiveError, WireReceiveErrorKind
from bb_edge.wire.envelope import Envelope, Fill
from bb_edge.wire.envelope_records import Failure, FailureCode

ANSWER_REFUSED_OP = "AnswerRefused"
"""The engine's own remote op, of component 0: its caller has refused an answer of this node."""
SUFFIX = Address.empty().with_component(0, ANSWER_REFUSED_OP).to_bytes()
INTERVAL_NS = 1_000_000_000
"""A peer is told at most once in this time; the next notice has how many it stands for."""
TEXT = 200
"""Letters of a reason and of a port that are taken: a line of a log."""

_FAILED: dict[int, MissingReason] = {
    FailureCode.REFUSED: MissingReason.REFUSED,
    FailureCode.TOO_LARGE: MissingReason.TOO_LARGE,
    FailureCode.NOTHING: MissingReason.NOTHING,
    FailureCode.OUT_OF_TIME: MissingReason.OUT_OF_TIME,
    FailureCode.DECLINED: MissingReason.DECLINED,
}
_REFUSED: dict[int, MissingReason] = {
    FailureCode.OUT_OF_TIME: MissingReason.CUT,
    FailureCode.FAULT_HERE: MissingReason.FAULT_HERE,
}


def why_failed(failure: Failure, *, cut: bool) -> MissingReason:
    """Why a peer is missing that answers with a failure; `cut`: its request had been cut."""
    why = _FAILED.get(failure.code, MissingReason.FAILED)
    return MissingReason.CUT if cut and why is MissingReason.OUT_OF_TIME else why


def why_refused(fault: Failure | None) -> MissingReason:
    """Why a peer is missing whose answer was worked on, with that fault."""
    return MissingReason.REFUSED if fault is None else _REFUSED.get(fault.code, MissingReason.REFUSED)


class Verdicts:
    """Tells peers that their answers are refused. Nothing of it is saved: the next refusal tells it again."""

    __slots__ = ("_outgoing", "_peers", "_runtime", "_told")

    def __init__(self, runtime: Runtime, outgoing: Outgoing, peers: PeerStates) -> None:
        self._runtime = runtime
        self._outgoing = outgoing
        self._peers = peers
        self._told: dict[PeerId, tuple[int, int]] = {}  # peer -> (last notice, refused since)

    def refuse(self, peer: PeerId, port: str, fault: Failure | None) -> None:
        """An answer of the peer, to the request of that port, does not count, because of that fault."""
        self._runtime.count("requests.refused")
        if not self._peers.reads_refusals(peer):
            return
        now_ns = self._runtime.now_ns
        last_ns, untold = self._told.get(peer, (now_ns - INTERVAL_NS, 0))
        if now_ns - last_ns < INTERVAL_NS:
            self._told[peer] = last_ns, untold + 1
            return
        if peer not in self._told:
            forget_oldest(self._told, self._runtime.config.max_peers)
        self._told[peer] = now_ns, 0
        why = "" if fault is None else fault.detail
        notice = cbor.dumps({"port": port[:TEXT], "times": untold + 1, "why": why[:TEXT]})
        self._outgoing.notify(peer, Fill(SUFFIX, notice, False, BYTES_HASH))

    def told(self, peer: PeerId, fill: Fill, _message: Envelope) -> None:
        """Serves `ANSWER_REFUSED_OP`: says so here. WireReceiveError for other bytes."""
        try:
            notice = cbor.loads(fill.payload)
        except cbor.CborError as error:
            raise WireReceiveError(WireReceiveErrorKind.DecodeFailed, error.what) from error
        said = notice if isinstance(notice, dict) else {}
        port, times, why = said.get("port"), said.get("times"), said.get("why")
        if not (isinstance(port, str) and type(times) is int and times > 0 and isinstance(why, str)):
            raise WireReceiveError(
                WireReceiveErrorKind.DecodeFailed, "a notice of a refused answer without port, times or why"
            )
        self._runtime.count("requests.answers_refused")
        self._runtime.emit(steps.AnswerRefused(peer, why[:TEXT], port[:TEXT], times))
