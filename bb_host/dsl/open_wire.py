"""`g.wire`: wire ops by hand. Without partner in the program, they are open ports of it."""

from __future__ import annotations

from collections.abc import Sequence

from bb_edge.ir import keys, types
from bb_edge.ir.opsets.wire import OP_RECV, OP_RECV_REQ, OP_RECV_RESP_BATCHED, OP_SEND_REQ, OP_SEND_RESP
from bb_edge.ir.types import ValueType
from bb_host.dsl.drafts import Draft
from bb_host.dsl.literals import TypeLike, as_type
from bb_host.dsl.misuse import Suggests, typed_calls
from bb_host.dsl.output import Output
from bb_host.dsl.tape import UNORDERED, After
from bb_host.dsl.wire import Payload, WireOps
from bb_host.errors import ArityError, ValueTypeError
from bb_host.ir.facts import NO_FACTS, OpFacts

_PEERS = ValueType(types.PEER_ID_VEC)
_REQ_ID = ValueType(types.WIRE_REQ_ID)
_TRIGGER = ValueType(types.TRIGGER)


@typed_calls
class OpenWire(Suggests):
    """`g.wire`: wire ops recorded by hand, without partner; they are open ports of the program."""

    def __init__(self, wire: WireOps) -> None:
        self._wire = wire
        self._graph = wire.graph

    def send(
        self,
        name: str,
        peers: Output,
        value: Payload,
        after: After = UNORDERED,
        *,
        durable: bool = False,
        deadline_ns: int | None = None,
    ) -> None:
        """A Send whose receiver is another program; `durable` and `deadline_ns` are those of `g.net_out`."""
        found = self._wire.net_out(name, peers, value, durable=durable, deadline_ns=deadline_ns, after=after)
        self._graph.may_go_unread.append(found.sender)  # it is read elsewhere

    def recv(self, name: str, *payload_types: TypeLike, trigger: bool = False) -> tuple[Output, ...]:
        """A Recv whose sender is another program: `(payload…, sender)`, and a trigger at the end where
        asked.
        """
        return self._entry(OP_RECV, name, payload_types, keys.CORRELATION_NONE, (), trigger)

    def recv_req(self, name: str, *payload_types: TypeLike, trigger: bool = False) -> tuple[Output, ...]:
        """A RecvReq: `(payload…, sender, req_id)`, and a trigger at the end where asked."""
        return self._entry(
            OP_RECV_REQ, name, payload_types, keys.CORRELATION_REQUEST, (("req", _REQ_ID),), trigger
        )

    def send_resp(
        self, name: str, sender: Output, req_id: Output, value: Payload, after: After = UNORDERED
    ) -> None:
        """The reply to a request that `recv_req` took."""
        g = self._graph
        self._wire.may_send(f"send_resp {name!r}")
        payload, _ = self._wire.payload(value, f"send_resp {name!r}")
        facts = self._wire.wire_facts(name, keys.CORRELATION_RESPONSE, False)
        asked = next((d.facts for d in g.drafts if any(o is req_id for o in d.outputs)), NO_FACTS)
        if asked.wire_id:
            facts |= OpFacts(request=asked.wire_id)
        draft = Draft(
            OP_SEND_RESP, keys.WIRE_DOMAIN, [*payload, self._wire.peers(sender), g.own(req_id)], [], {}, facts
        )
        g.put(draft, after)

    def send_req_batched(
        self, name: str, peers: Output, value: Payload, *, deadline_ns: int, after: After = UNORDERED
    ) -> Output:
        """A request to another program; yields the request id for `recv_resp_batched`."""
        g = self._graph
        self._wire.may_send(f"send_req_batched {name!r}")
        g.port_name(name, "the network port", g.ports)
        payload, _ = self._wire.payload(value, f"send_req_batched {name!r}")
        targets = self._wire.peers(peers)
        req_id = g.fresh(f"{name}_req", _REQ_ID)
        draft = Draft(
            OP_SEND_REQ,
            keys.WIRE_DOMAIN,
            [*payload, targets, targets],
            [req_id],
            {keys.ATTR_DEADLINE_NS: self._wire.duration(deadline_ns)},
            self._wire.wire_facts(name, keys.CORRELATION_REQUEST, False),
        )
        draft.say(OpFacts(answer_mode=keys.ANSWER_BATCH))
        g.put(draft, after)
        return req_id

    def recv_resp_batched(self, req_id: Output, *payload_types: TypeLike) -> tuple[Output, ...]:
        """`(closed, missing, responses…)` of a request that `send_req_batched` asked."""
        g = self._graph
        req_id = g.own(req_id)
        asked = next((d for d in g.drafts if any(o is req_id for o in d.outputs)), None)
        if asked is None or asked.op_type != OP_SEND_REQ:
            raise g.error(
                ValueTypeError, f"{req_id!r} is not a request id of this graph", "see send_req_batched"
            )
        port = asked.facts.port
        outputs = [g.fresh(f"{port}_closed", _TRIGGER), g.fresh(f"{port}_missing", _PEERS)]
        for like in payload_types:
            item = as_type(g, like)
            shape = None if item.shape is None else (None, *item.shape)
            outputs.append(g.fresh(f"{port}_responses", ValueType(item.node, shape)))
        facts = self._wire.wire_facts(port, keys.CORRELATION_RESPONSE, False)
        facts |= OpFacts(request=asked.facts.wire_id)
        g.add(Draft(OP_RECV_RESP_BATCHED, keys.WIRE_DOMAIN, [req_id], list(outputs), {}, facts))
        return tuple(outputs)

    def _entry(
        self,
        op: str,
        name: str,
        payload_types: Sequence[TypeLike],
        correlation: str,
        tail: Sequence[tuple[str, ValueType]],
        trigger: bool,
    ) -> tuple[Output, ...]:
        g = self._graph
        self._wire.may_send(f"{op} {name!r}")
        g.port_name(name, "the network port", g.ports)
        if not payload_types:
            raise g.error(
                ArityError, f"{op} {name!r} wants the type of what arrives", "e.g. 'F32' or 'Trigger'"
            )
        outputs = [g.fresh(name, as_type(g, like)) for like in payload_types]
        outputs.append(g.fresh(f"{name}_sender", _PEERS))
        outputs += [g.fresh(f"{name}_{hint}", value) for hint, value in tail]
        facts = self._wire.wire_facts(name, correlation, False)
        if trigger:
            outputs.append(g.fresh(f"{name}_trigger", _TRIGGER))
            facts |= OpFacts(trigger_output=True)
        attrs = {keys.ATTR_PAYLOAD_TYPE: outputs[0].type}
        g.add(Draft(op, keys.WIRE_DOMAIN, [], list(outputs), dict(attrs), facts))
        return tuple(outputs)
