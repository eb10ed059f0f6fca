"""Adds the receiving half of every wire op (docs/design/artifact.md, "Compiled form").

1. A Send whose received values somebody reads becomes a Send with a handle (`__send_sentinel_<wire id>`)
   and a Recv, on the class that its peers are of, which yields those values under their names.
2. A Send that nobody reads from stays an open port: another program receives it.
3. A request becomes SendReqBatched and RecvReq; its reply SendResp, and RecvResp where answers are read one
   by one. RecvRespBatched stands in the asking class in any case; where answers are not read one by one it
   has one output per reply payload. Exactly one reply: `UnpairedWireRequest`.
4. Both halves carry wire id, port, correlation, durability and site ids (FNV-1a-64 of
   `module/port/{ask|reply}/index`). Two sends of one name would share sites: `DuplicatePort`.
5. Ops without a wire id get one. Hand-made halves are open ports and are only stamped.
6. A request id on the receiving side is a value of its own there. Idempotent.
7. Requests of a class that aggregates, and that no op sends to, are stamped: one peer of it should ask.
"""

from __future__ import annotations

import dataclasses

from bb_edge.ir import keys, types
from bb_edge.ir.class_names import SELF_CLASS, class_of_module
from bb_edge.ir.ids import site_id
from bb_edge.ir.opsets.wire import (
    OP_RECV,
    OP_RECV_REQ,
    OP_RECV_RESP,
    OP_RECV_RESP_BATCHED,
    OP_SEND,
    OP_SEND_REQ,
    OP_SEND_RESP,
)
from bb_edge.ir.types import ValueType
from bb_host.errors import DuplicatePort, MalformedWireOp, UnpairedWireRequest, named
from bb_host.ir.facts import OpFacts
from bb_host.ir.program import Function, Op, Program, are_same
from bb_host.ir.spelling import spelled
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.sound_names import all_names
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options

_CORRELATIONS = {
    OP_SEND_REQ: keys.CORRELATION_REQUEST,
    OP_RECV_REQ: keys.CORRELATION_REQUEST,
    OP_SEND_RESP: keys.CORRELATION_RESPONSE,
    OP_RECV_RESP: keys.CORRELATION_RESPONSE,
    OP_RECV_RESP_BATCHED: keys.CORRELATION_RESPONSE,
}
_SHARED = ("wire_id", "correlation", "port", "durable", "sites")
_REPLIES = frozenset({OP_SEND_RESP, OP_RECV_RESP, OP_RECV_RESP_BATCHED})


def run(program: Program, options: Options, stats: Stats) -> Program:
    stats.count("wire_recvs_synthesized", 0)
    if flow.is_partitioned(program) or not flow.has_wire(program.functions[0]):
        return program
    root = _Surfaces(program.functions[0], options.module, stats).run()
    return program.with_functions((root, *program.functions[1:]))


class _Surfaces:
    """One function: reads all wire ops first, then writes the new list of ops."""

    def __init__(self, function: Function, module: str, stats: Stats) -> None:
        self.function = function
        self.module = module
        self.stats = stats
        self.home = flow.home_class(function)
        self.peers = flow.peer_classes(function.ops)
        self.peers.update(
            (n, n) for n in function.inputs if (t := function.types.get(n)) and t.node is types.PEER_ID_VEC
        )
        self.types: dict[str, ValueType] = {}
        self.taken = all_names(function)
        self.wire: list[Op] = flow.wire_ops(function)
        self.read = flow.read_of(function, [name for op in self.wire for name in op.outputs])
        self.sole = self._sole()
        self.next_id = 1 + max((int(i) for op in self.wire if (i := flow.wire_id(op)).isdigit()), default=0)
        self.requests: dict[str, Op] = {}
        self.replies: dict[str, Op] = {}
        self.collectors: dict[str, Op] = {}
        self.has_answers: set[str] = set()

    def run(self) -> Function:
        ops = self.function.ops
        numbered = [self._numbered(op) for op in self.wire]
        self._pair(numbered)
        self._ports(numbered)
        halves = {
            index: self._surface(op) for index, op in zip(flow.summary(ops).wire, numbered, strict=True)
        }
        new = flow.spliced(ops, halves)
        if are_same(new, ops):
            return self.function
        made = [op for piece in halves.values() for op in piece]
        return self.function.with_ops(new, {**self._kept_types(made), **self.types})

    def _kept_types(self, made: list[Op]) -> dict[str, ValueType]:
        """All but those of values that wire ops yielded and none of the ops yields that are made of them."""
        kept = dict(self.function.types)
        for name in {n for op in self.wire for n in op.outputs} - {n for op in made for n in op.outputs}:
            kept.pop(name, None)
        return kept

    # --- reading

    def _numbered(self, op: Op) -> Op:
        if flow.wire_id(op).isdigit():
            return op
        number, self.next_id = self.next_id, self.next_id + 1
        return op.saying(OpFacts(wire_id=str(number)))

    def _pair(self, ops: list[Op]) -> None:
        for op in ops:
            if op.op_type == OP_SEND_REQ:
                self.requests[flow.wire_id(op)] = op
            elif op.op_type == OP_RECV_RESP:
                self.has_answers.add(op.facts.request)
        for op in ops:
            asked = op.facts.request
            if op.op_type == OP_SEND_RESP:
                if asked in self.replies:
                    raise UnpairedWireRequest(
                        f"its request has a reply already: {named(self.replies[asked])}",
                        hint="reply once",
                        op=op,
                    )
                if asked not in self.requests and flow.is_recorded_form(op):
                    raise UnpairedWireRequest("it answers no request of this program", op=op)
                self.replies[asked] = op
            elif op.op_type == OP_RECV_RESP_BATCHED:
                if asked not in self.requests:
                    raise UnpairedWireRequest("it gathers the answers to no request of this program", op=op)
                self.collectors[asked] = op
        for number, op in self.requests.items():
            if flow.is_recorded_form(op) and number not in self.replies:
                raise UnpairedWireRequest(
                    "nobody replies to it", hint="record r.reply(…) on the receiving side", op=op
                )

    def _ports(self, ops: list[Op]) -> None:
        seen: dict[tuple[str, str], Op] = {}
        for op in ops:
            if not flow.is_send_flavored(op) and op.op_type != OP_RECV and op.op_type != OP_RECV_REQ:
                continue
            half = "out" if flow.is_send_flavored(op) else "in"
            key = (f"{half} {self._port(op)}", _direction(op))
            if key in seen:
                raise DuplicatePort(
                    f"port {self._port(op)!r} is that of {named(seen[key])} too",
                    hint="give it another name",
                    op=op,
                )
            seen[key] = op

    def _port(self, op: Op) -> str:
        """The port's name: the author's, a reply's is its request's."""
        own = op.facts.port
        if own:
            return own
        request = self.requests.get(op.facts.request)
        return self._port(request) if request is not None else f"wire{flow.wire_id(op)}"

    def _sole(self) -> set[str]:
        """Classes that aggregate and that nobody chooses among: two would train the same peers by turns."""
        sums = [op for op in self.function.ops if op.op_type == "Aggregate"]
        gather = {where for op in sums for where in op.facts.classes or (self.home,)}
        return gather - {self.peers.get(flow.peers_input(op), "") for op in self.wire if _leads(op)}

    # --- writing

    def _surface(self, op: Op) -> list[Op]:
        recorded = flow.is_send_flavored(op) and flow.is_recorded_form(op)
        if op.op_type == OP_SEND:
            return self._send(op) if recorded else [self._stamped(op, len(flow.payload_inputs(op)))]
        if op.op_type == OP_SEND_REQ:
            return self._request(op) if recorded else [self._stamped(op, len(flow.payload_inputs(op)))]
        if op.op_type == OP_SEND_RESP:
            return self._reply(op) if recorded else [self._stamped(op, len(flow.payload_inputs(op)))]
        if op.op_type == OP_RECV_RESP_BATCHED:
            return [self._collector(op)]
        tail = 2 if op.op_type == OP_RECV_REQ else 1
        count = len(op.outputs) - tail - (op.facts.trigger_output)
        if count < 1:
            raise MalformedWireOp("it has no output for a payload", op=op)
        return [self._stamped(op, count)]

    def _stamped(self, op: Op, payloads: int, **changes: tuple[str, ...]) -> Op:
        """The op with the stamps of rule 4; the same one where it has them."""
        if payloads < 1 and op.op_type != OP_RECV_RESP_BATCHED:
            raise MalformedWireOp("it sends nothing", op=op)
        port = self._port(op)
        stamp = OpFacts(port=port, correlation=_CORRELATIONS.get(op.op_type, keys.CORRELATION_NONE))
        if payloads:
            stamp |= OpFacts(sites=self._sites(port, _direction(op), payloads))
        if op.op_type in _REPLIES:
            request = self.requests.get(op.facts.request)
            if request is not None and request.facts.durable:
                stamp |= OpFacts(durable=True)
        op = op.saying(stamp)
        if "outputs" in changes:
            op = dataclasses.replace(op, outputs=changes["outputs"])
        if "inputs" in changes:
            op = dataclasses.replace(op, inputs=changes["inputs"])
        return op

    def _sites(self, port: str, direction: str, count: int) -> tuple[int, ...]:
        return tuple(site_id(self.module, port, direction, i) for i in range(count))

    def _receiver(self, op: Op, kind: str, outputs: tuple[str, ...], where: str | None) -> Op:
        """A Recv-flavored op with the stamps of its partner."""
        facts = _stamps(op) | OpFacts(made_from=flow.wire_id(op))
        if kind in _REPLIES:
            facts |= op.facts.only("request")
        facts |= op.facts.only("source") | op.facts.only("scope")
        if where is not None:
            facts |= OpFacts(classes=(where,))
        sender = outputs[-2] if kind == OP_RECV_REQ else outputs[-1]
        sender_class = self.peers.get(sender)
        if sender_class is not None:
            facts |= OpFacts(leads={sender: sender_class})
            if kind in (OP_RECV, OP_RECV_REQ):  # answers are known by the id of their request
                alone = sender_class == SELF_CLASS
                facts |= OpFacts(sender_class=class_of_module(self.module) if alone else sender_class)
            if kind == OP_RECV_REQ and sender_class in self.sole:
                facts |= OpFacts(sole_sender=True)
        self.stats.count("wire_recvs_synthesized")
        return Op(kind, keys.WIRE_DOMAIN, (), outputs, {}, facts)

    def _without_peer_class(self, op: Op) -> Op:
        facts = op.facts.without("leads")
        return op if facts is op.facts else op.with_facts(facts)

    def _there(self, op: Op) -> str | None:
        """The class that an op sends to, where classes are stamped at all."""
        if not op.facts.classes:
            return None
        return self.peers.get(flow.peers_input(op), self.home)

    def _handle(self, op: Op) -> tuple[str, ...]:
        name = f"{keys.SEND_SENTINEL_PREFIX}{flow.wire_id(op)}"
        self.types[name] = ValueType(types.TRIGGER)
        return (name,)

    def _send(self, op: Op) -> list[Op]:
        wanted = not self.read.isdisjoint(op.outputs)
        there = self._there(op)
        sent = self._stamped(op, len(flow.payload_inputs(op)), outputs=self._handle(op))
        recv = [self._receiver(sent, OP_RECV, op.outputs, there)] if wanted else []
        return [self._without_peer_class(sent), *recv]

    def _request(self, op: Op) -> list[Op]:
        there = self._there(op)
        sent = self._stamped(op, len(flow.payload_inputs(op)), outputs=op.outputs[:1])
        received = self._receiver(sent, OP_RECV_REQ, (*op.outputs[1:], self._asked(op)), there)
        self.types[self._asked(op)] = ValueType(types.WIRE_REQ_ID)
        return [self._without_peer_class(sent), received]

    def _asked(self, request: Op) -> str:
        """The request's id as the receiving side knows it."""
        return f"{request.outputs[0]}__asked"

    def _reply(self, op: Op) -> list[Op]:
        request = self.requests[op.facts.request]
        inputs = (*op.inputs[:-1], self._asked(request))
        count = len(flow.payload_inputs(op))
        sent = self._stamped(op, count, inputs=inputs, outputs=self._handle(op))
        found = [self._without_peer_class(sent)]
        home = next(iter(request.facts.classes), None)
        if self._each(request):
            found.append(self._receiver(sent, OP_RECV_RESP, op.outputs, home))
        elif not self.read.isdisjoint(op.outputs):
            raise MalformedWireOp(
                "its answers are read one by one, and its request keeps a batch",
                hint=f"{spelled(OpFacts(answer_mode=keys.ANSWER_EACH))} on the request",
                op=op,
            )
        asked = op.facts.request
        if asked not in self.collectors:
            found.append(self._new_collector(request, sent, home))
        return found

    def _each(self, request: Op) -> bool:
        return request.facts.answer_mode == keys.ANSWER_EACH

    def _new_collector(self, request: Op, reply: Op, home: str | None) -> Op:
        """The RecvRespBatched of a request whose author looks at nothing of it."""
        stem = request.outputs[0]
        outputs = (f"{stem}__closed", f"{stem}__missing")
        self.types[outputs[0]] = ValueType(types.TRIGGER)
        self.types[outputs[1]] = ValueType(types.PEER_ID_VEC)
        facts = _stamps(reply).without("sites") | OpFacts(request=flow.wire_id(request)) | request.beside()
        if home is not None:
            facts |= OpFacts(classes=(home,))
        self.stats.count("wire_recvs_synthesized")
        op = Op(OP_RECV_RESP_BATCHED, keys.WIRE_DOMAIN, (stem,), outputs, {}, facts)
        self.collectors[flow.wire_id(request)] = op
        return self._collector(op)

    def _collector(self, op: Op) -> Op:
        request = self.requests[op.facts.request]
        reply = self.replies.get(flow.wire_id(request))
        if reply is None:  # an open port: its author said what comes
            return self._stamped(op, len(op.outputs) - 2)
        op = op.saying(OpFacts(wire_id=flow.wire_id(reply)))
        if self._each(request):
            if len(op.outputs) > 2 and not self.read.isdisjoint(op.outputs[2:]):
                raise MalformedWireOp("answers are read one by one and as a batch", op=op)
            return self._stamped(op, 0, **({"outputs": op.outputs[:2]} if len(op.outputs) > 2 else {}))
        payloads = flow.payload_inputs(reply)
        if len(op.outputs) - 2 == len(payloads):
            return self._stamped(op, len(payloads))
        if len(op.outputs) > 2:
            raise MalformedWireOp(
                f"{len(op.outputs) - 2} stacks for {len(payloads)} values of a reply", op=op
            )
        stacks = tuple(f"{op.outputs[0]}__response_{i}" for i in range(len(payloads)))
        for name, source in zip(stacks, payloads, strict=True):
            self.types[name] = _stacked(self.function.types.get(source))
        return self._stamped(op, len(payloads), outputs=(*op.outputs, *stacks))


def _stamps(op: Op) -> OpFacts:
    """What both halves say, in this order."""
    said = vars(op.facts)
    return OpFacts(**{name: said[name] for name in _SHARED if name in said})


def _leads(op: Op) -> bool:
    """Whether the op sends to peers that its program chose."""
    return flow.is_send_flavored(op) and op.op_type != OP_SEND_RESP


def _direction(op: Op) -> str:
    return "reply" if op.op_type in _REPLIES else "ask"


def _stacked(known: ValueType | None) -> ValueType:
    """A stack of tensors; of what is not a tensor nothing is ever stacked."""
    if known is None or not types.is_subtype(known.node, types.TENSOR):
        return ValueType(types.TENSOR)
    return ValueType(known.node, None if known.shape is None else (None, *known.shape))
