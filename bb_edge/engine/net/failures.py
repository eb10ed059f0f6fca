"""What this node tells whoever asked it, where there is no reply and none will come.

An execution that a request started, and that ends without having handed out its reply, answers with a
failure; so does the node for what it has not. The first reply or failure under a request id is final. Only
peers whose presence says that they read failures are told; others wait for their deadline.
"""

from __future__ import annotations

from bb_edge.engine import steps
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.units import Unit
from bb_edge.engine.run.frames import Execution
from bb_edge.engine.runtime import Runtime
from bb_edge.ir import keys
from bb_edge.ir.ids import PeerId
from bb_edge.wire.envelope import RESPONSE, Envelope
from bb_edge.wire.envelope_records import Failure, FailureCode

STRANGER_NS = 1_000_000_000
"""Peers that are not up are refused at most once in this time: nobody has this node answer to floods."""

HAS_NOTHING = "request.has_nothing"
"""The callback `Failures.has_nothing`."""
REMEDY = (
    "look at the peers that this node asks: their reasons stand in RequestClosed, bb-edge peers lists them"
)


class Failures:
    """Answers requests that get no reply."""

    def __init__(self, runtime: Runtime, peers: PeerStates, outgoing: Outgoing) -> None:
        self._runtime = runtime
        self._peers = peers
        self._outgoing = outgoing
        self._stranger_ns = -STRANGER_NS
        runtime.callbacks.register("request.ended", self.ended)
        runtime.callbacks.register(HAS_NOTHING, self.has_nothing)

    def has_nothing(self, execution: Execution, request: int, asker: PeerId) -> bool:
        """Whether an empty reply to that request is none: the end of the execution tells the asker why."""
        return execution.ends_unheard(request) and self._peers.reads_failures(asker)

    def ended(self, execution: Execution) -> None:
        """An execution has ended that a request started, and has not handed out its reply."""
        asker, reply, failure = execution.source, execution.reply, execution.fault
        assert asker is not None
        if failure is None and reply is not None and reply.defers:
            return  # another execution has the request id, and may still reply
        if execution.heard_nobody and (failure is None or failure.code == FailureCode.STARVED):
            why = "nobody answered what it asked in turn"
            if not execution.asked_somebody:
                why = "nobody was there whom it could ask in turn"
            failure = Failure(FailureCode.NOTHING, why)
            self._runtime.emit(steps.NobodyHeard(asker, execution.target, why, REMEDY))
        elif failure is None and execution.expired:
            failure = Failure(FailureCode.OUT_OF_TIME, "its deadline passed before the reply was there")
        elif failure is None:
            failure = Failure(FailureCode.STARVED, "the execution ended without a reply")
        durable = reply is not None and reply.op.spec.meta.get(keys.DURABLE_KEY) == "1"
        unit = Unit(
            asker,
            (),
            kind=RESPONSE,
            wire_req_id=execution.owes,
            deadline_ns=execution.deadline_ns,
            durable=durable,
            wire_id=0 if reply is None else reply.wire_id,
            cause=execution.cause,
            failure=failure,
        )
        if self._peers.reads_failures(asker):
            self._runtime.count("requests.failures_sent")
            self._outgoing.queue(unit, execution.target, execution.id, "reply")

    def refuse(self, peer: PeerId, message: Envelope, why: str) -> None:
        """Answers a request that starts no execution, and will not when it comes again."""
        if not self._peers.reads_failures(peer):
            return
        now_ns = self._runtime.now_ns
        if not self._peers.presences.is_up(peer) and peer != self._runtime.own_peer:
            if now_ns - self._stranger_ns < STRANGER_NS:
                return
            self._stranger_ns = now_ns
        failure = Failure.of(FailureCode.REFUSED, why)
        unit = Unit(peer, (), kind=RESPONSE, wire_req_id=message.wire_req_id, deadline_ns=0, failure=failure)
        self._runtime.count("requests.failures_sent")
        self._outgoing.queue(unit, "", 0, "reply")
