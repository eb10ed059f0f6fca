"""Sends and requests (their layouts are in docs/design/artifact.md, "Recorded form").

A send is seen from both sides in one body: its inputs are the sender's, what it returns is the receiver's. A
request pairs one such send with one reply and one close, by their wire ids.

Rules P15 to P19 of the specification.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

from bb_edge.ir import keys, types
from bb_edge.ir.opsets.wire import (
    OP_RECV_RESP_BATCHED,
    OP_SEND,
    OP_SEND_REQ,
    OP_SEND_RESP,
)
from bb_edge.ir.types import ValueType
from bb_host.author_lines import author_line, short_line
from bb_host.dsl.drafts import Draft
from bb_host.dsl.literals import lift, type_hint
from bb_host.dsl.misuse import Suggests, typed_calls
from bb_host.dsl.output import Output, Value
from bb_host.dsl.port_graph import PortGraph
from bb_host.dsl.received import Received, counted, one_or_many, unreplied_error
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.remarks import on_deadline, on_enough
from bb_host.dsl.tape import UNORDERED, After
from bb_host.errors import (
    AnswerModeError,
    ArityError,
    AttributeValueError,
    MissingDeadline,
    UnpairedWireRequest,
    ValueTypeError,
    WireInBootstrap,
    WireInSubgraph,
)
from bb_host.ir.facts import OpFacts
from bb_host.whole_numbers import whole

Payload: TypeAlias = "Value | Sequence[Value]"
"""What travels: one value, or a list that travels in one envelope."""

_PEERS = ValueType(types.PEER_ID_VEC)
_REQ_ID = ValueType(types.WIRE_REQ_ID)
_TRIGGER = ValueType(types.TRIGGER)


@typed_calls
class Request(Suggests):
    """A request that was asked: the receiver's side, the answers, and the close.

    `value` and `sender` are seen by each peer that is asked; there `reply(v)` is recorded, once. Back home
    either `answer` (ops on it run once per answer) or `responses` (the whole batch) may be read, beside
    `missing` (peers without an accepted answer), `missing_reasons` and `closed` (a trigger).
    """

    def __init__(
        self, wire: WireOps, port: str, ask: Draft, req_id: Output, single: bool, durable: bool
    ) -> None:
        self._wire = wire
        self._graph = wire.graph
        self.port = port
        self._ask = ask
        self._req_id = req_id
        self._single = single
        self._durable = durable
        self._line = author_line()
        self._reply: Draft | None = None
        self._reply_line = self._line
        self._reply_single = True
        self._tail: Draft | None = None
        self._responses: list[Output] | None = None
        self._answer_read = False
        self._reasons: Output | None = None
        received = ask.outputs[1:-1]
        sender = ask.outputs[-1]
        about = f"request {port!r} asks with {counted(len(received))} at {short_line(self._line)}"
        self._value = one_or_many(received, sender, single, about)

    @property
    def value(self) -> Received:
        """The value as the asked peer sees it (a tuple where a list was asked), with `.sender`."""
        return cast(Received, self._value)

    @property
    def values(self) -> tuple[Output, ...]:
        """The values as the asked peer sees them, always as a tuple."""
        return tuple(self._ask.outputs[1:-1])

    @property
    def sender(self) -> Output:
        """Who asks, as the asked peer sees it."""
        return self._ask.outputs[-1]

    def reply(self, value: Payload, *, after: After = UNORDERED) -> None:
        """Records the reply: one value or a list. UnpairedWireRequest at a second one."""
        g = self._graph
        if self._reply is not None:
            raise g.error(
                UnpairedWireRequest,
                f"request {self.port!r} has a second reply (the first is at line {self._reply_line[1]})",
                "reply once, with a list of all values",
            )
        payload, self._reply_single = self._wire.payload(value, f"the reply to {self.port!r}")
        answers = [g.received(f"{self.port}_answer", v) for v in payload]
        sender = g.fresh(f"{self.port}_answer_sender", _PEERS)
        draft = Draft(
            OP_SEND_RESP,
            keys.WIRE_DOMAIN,
            [*payload, self.sender, self._req_id],
            [*answers, sender],
            {},
            self._wire.wire_facts(self.port, keys.CORRELATION_RESPONSE, self._durable),
        )
        draft.say(OpFacts(request=self._ask.facts.wire_id))
        g.put(draft, after)
        self._reply = draft
        self._reply_line = author_line()
        self._open_tail()

    @property
    def answer(self) -> Received:
        """One answer, as home sees it: ops on it run once per answer. A tuple where the reply was a list.

        It has `.sender`, and unpacks where it is a tuple.
        """
        if self._reply is None:
            raise unreplied_error("answer", self.port)
        if self._responses is not None:
            raise self._both()
        self._answer_read = True
        self._ask.say(OpFacts(answer_mode=keys.ANSWER_EACH))
        *values, sender = self._reply.outputs
        return cast(Received, one_or_many(values, sender, self._reply_single, self._replied()))

    @property
    def responses(self) -> Output:
        """All answers, stacked along a new first axis in order of arrival; a tuple where the reply was a
        list.

        0 rows where nobody answered or was asked: their mean is NaN, and a model that is trained on it is
        lost. Let what needs answers wait for `g.when(g.onnx.size(r.responses) > 0)`.
        """
        if self._reply is None:
            raise unreplied_error("responses", self.port)
        if self._answer_read:
            raise self._both()
        if self._responses is None:
            self._responses = [self._stack(value) for value in self._reply.outputs[:-1]]
            self._open_tail().outputs.extend(self._responses)
            self._ask.say(OpFacts(answer_mode=keys.ANSWER_BATCH))
        return cast(Output, one_or_many(self._responses, None, self._reply_single, self._replied()))

    @property
    def closed(self) -> Output:
        """A trigger, once, when enough or all peers have answered or are down, or the deadline has passed."""
        return self._open_tail().outputs[0]

    @property
    def missing(self) -> Output:
        """The authored peers without an accepted answer, when the request is closed."""
        return self._open_tail().outputs[1]

    @property
    def missing_reasons(self) -> Output:
        """Why each of `missing` is, in the same order: an I64[peers] of `bb_host.MissingReason` numbers."""
        if self._reasons is None:
            g = self._graph
            self._reasons = g.fresh(f"{self.port}_missing_reasons", ValueType(types.TENSOR_I64, (None,)))
            facts = OpFacts(request=self._ask.facts.wire_id)
            g.add(Draft("MissingReasons", keys.SYSCALL_DOMAIN, [self.missing], [self._reasons], {}, facts))
        return self._reasons

    def finish(self) -> None:
        """At the end of the body: UnpairedWireRequest where there was no reply."""
        if self._reply is None:
            raise self._graph.error(
                UnpairedWireRequest,
                f"request {self.port!r} has no reply",
                "record r.reply(…) on the receiving side, or use g.net_out",
                self._line,
            )
        self._open_tail()

    def _replied(self) -> str:
        assert self._reply is not None
        count = len(self._reply.outputs) - 1
        return f"request {self.port!r} was replied with {counted(count)} at {short_line(self._reply_line)}"

    def _both(self) -> AnswerModeError:
        return self._graph.error(
            AnswerModeError,
            f"request {self.port!r}: both .answer and .responses are read",
            "take answers one by one, or as a batch",
        )

    def _stack(self, value: Output) -> Output:
        if not types.compatible(value.node, types.TENSOR):
            travels = value.node.abstract or value.node.wire_hash is not None
            raise self._graph.error(
                ValueTypeError,
                f"request {self.port!r}: {value!r} is not a Tensor, and cannot be stacked",
                "read r.answer, one by one"
                if travels
                else f"a {value.node} does not travel: reply with a tensor, r.reply(value, after=…)",
            )
        shape = None if value.shape is None else (None, *value.shape)
        node = value.node if types.is_subtype(value.node, types.TENSOR) else types.TENSOR
        return self._graph.fresh(f"{self.port}_responses", ValueType(node, shape))

    def _open_tail(self) -> Draft:
        """The RecvRespBatched; it stands where it is first needed."""
        if self._tail is None:
            g = self._graph
            facts = self._wire.wire_facts(self.port, keys.CORRELATION_RESPONSE, self._durable, minted=False)
            facts |= OpFacts(request=self._ask.facts.wire_id)
            outputs = [g.fresh(f"{self.port}_closed", _TRIGGER), g.fresh(f"{self.port}_missing", _PEERS)]
            self._tail = g.add(
                Draft(OP_RECV_RESP_BATCHED, keys.WIRE_DOMAIN, [self._req_id], outputs, {}, facts)
            )
        if self._reply is not None:
            self._tail.say(OpFacts(wire_id=self._reply.facts.wire_id))
        return self._tail


@typed_calls
class WireOps:
    """What `Graph` has for the wire."""

    def __init__(self, graph: PortGraph) -> None:
        self.graph = graph
        self.requests: list[Request] = []

    def finish(self) -> None:
        """At the end of the body: UnpairedWireRequest for a request without reply."""
        for request in self.requests:
            request.finish()

    def net_out(
        self,
        name: str,
        peers: Output,
        value: Payload,
        *,
        durable: bool = False,
        deadline_ns: int | None = None,
        after: After = UNORDERED,
    ) -> Received:
        """Sends `value` to each of `peers` and returns it as its receivers see it, with `.sender`.

        A list of values travels in one envelope and comes back as a tuple; a list of numbers alone is one
        tensor, `[1.0, 2]` an F32[2]. Peers of an input (`g.input("to", "PeerIdVec")`) have no class: their
        partition is called as the input is. `durable`: survives a restart on both sides. `deadline_ns`:
        dropped, and counted, where it has not arrived by then.
        """
        g = self.graph
        self.may_send(f"net_out {name!r}")
        name = g.port_name(name, "the network port", g.ports)
        payload, single = self.payload(value, f"net_out {name!r}")
        values = [g.received(name, v) for v in payload]
        sender = g.fresh(f"{name}_sender", _PEERS)
        draft = Draft(
            OP_SEND,
            keys.WIRE_DOMAIN,
            [*payload, self.peers(peers)],
            [*values, sender],
            {} if deadline_ns is None else {keys.ATTR_DEADLINE_NS: self.duration(deadline_ns)},
            self.wire_facts(name, keys.CORRELATION_NONE, durable),
        )
        g.put(draft, after)
        about = f"net_out {name!r} sends {counted(len(values))} at {draft.facts.source}"
        found = one_or_many(values, sender, single, about)
        g.ports[name] = found
        return cast(Received, found)

    def request(
        self,
        name: str,
        peers: Output,
        value: Payload,
        *,
        deadline_ns: int | None = None,
        enough: int | None = None,
        durable: bool = False,
        after: After = UNORDERED,
    ) -> Request:
        """Asks each of `peers` and gathers what they reply, until `enough` or all have, or the deadline
        passes.

        An empty peer list closes at once. MissingDeadline without `deadline_ns` (nanoseconds, > 0).
        """
        g = self.graph
        self.may_send(f"request {name!r}")
        name = g.port_name(name, "the network port", g.ports)
        if deadline_ns is None:
            raise g.error(
                MissingDeadline,
                f"request {name!r} has no deadline",
                "say deadline_ns=30 * S: a peer may never answer",
            )
        fewest = whole(enough)
        if enough is not None and (fewest is None or fewest < 1):
            raise g.error(
                AttributeValueError,
                f"request {name!r}: enough is a number of peers above 0, not {enough!r}",
                "say enough=1 or more, or leave it out to wait for all",
            )
        payload, single = self.payload(value, f"request {name!r}")
        targets = self.peers(peers)
        req_id = g.fresh(f"{name}_req", _REQ_ID)
        values = [g.received(name, v) for v in payload]
        sender = g.fresh(f"{name}_sender", _PEERS)
        facts = self.wire_facts(name, keys.CORRELATION_REQUEST, durable)
        facts |= OpFacts(answer_mode=keys.ANSWER_NONE)
        if fewest is not None:
            facts |= OpFacts(enough=fewest)
            on_enough(g, name, targets, fewest)
        draft = Draft(
            OP_SEND_REQ,
            keys.WIRE_DOMAIN,
            [*payload, targets, targets],
            [req_id, *values, sender],
            {keys.ATTR_DEADLINE_NS: self.duration(deadline_ns)},
            facts,
        )
        g.put(draft, after)
        found = Request(self, name, draft, req_id, single, durable)
        g.ports[name] = cast(Received, found._value)
        self.requests.append(found)
        return found

    # --- parts

    def wire_facts(self, port: str, correlation: str, durable: bool, *, minted: bool = True) -> OpFacts:
        """What a wire op says: a wire id of its own, its part in a request, its port."""
        if not isinstance(durable, bool):
            raise self.graph.error(
                AttributeValueError, f"{port!r}: durable is {durable!r}", "it is True or False: durable=True"
            )
        wire_id = self.graph.session.next_wire_id() if minted else ""
        facts = OpFacts(wire_id=wire_id, correlation=correlation, port=port)
        return facts | OpFacts(durable=True) if durable else facts

    def payload(self, value: object, what: str) -> tuple[list[Output], bool]:
        """The values that travel, and whether the author gave one alone."""
        if isinstance(value, (list, tuple)) and not (
            value and all(isinstance(v, (int, float)) for v in value)
        ):
            if not value:
                raise self.graph.error(
                    ArityError, f"{what}: an empty list", "send a trigger where only the news matters"
                )
            return [lift(self.graph, v) for v in value], False
        return [lift(self.graph, value)], True

    def peers(self, value: object) -> Output:
        found = self.graph.own(value, "a PeerIdVec")
        if not types.compatible(found.node, types.PEER_ID_VEC):
            raise self.graph.error(
                ValueTypeError,
                f"peers are a PeerIdVec, got {found!r}",
                type_hint(types.PEER_ID_VEC, found.node),
            )
        return found

    def duration(self, value: object) -> int:
        number = whole(value)
        if number is None or not 0 < number < 2**63:
            takes = "a number of nanoseconds above 0"
            if number is not None and number >= 2**63:
                takes += ", at most 2**63 - 1"
            raise self.graph.error(
                AttributeValueError,
                f"deadline_ns is {takes}, not {value!r}",
                "write 30 * S: from bb_host import S",
            )
        on_deadline(self.graph, number)
        return number

    def may_send(self, what: str) -> None:
        graph: Recorder = self.graph
        while graph.parent is not None:
            graph = graph.parent
        if graph.phase == keys.MODULE_PHASE_BOOTSTRAP:
            raise self.graph.error(WireInBootstrap, f"{what} stands in a bootstrap", "record it in the body")
        if self.graph.parent is not None:
            raise self.graph.error(WireInSubgraph, f"{what} stands in a branch", "send outside If and Loop")
