"""What recording warns about: calls that can be recorded and do nothing, or never what they say.

A counter that the node's own would be mixed up with, or that counts down, is refused, and so are numbers of
peers or neighbours by which nobody is ever chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType

from bb_edge.ir import keys, opsets, types
from bb_edge.ir.bodies import BODY_ATTRS
from bb_edge.ir.counters import is_own
from bb_edge.ir.opsets import Effect, Ready
from bb_edge.ir.opsets.wire import OP_RECV_RESP_BATCHED, OP_SEND, OP_SEND_REQ, OP_SEND_RESP
from bb_host.dsl.drafts import Draft, SubgraphDraft
from bb_host.dsl.names import snake
from bb_host.dsl.output import Output
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.session import Session
from bb_host.errors import AttributeValueError
from bb_host.ir.program import Function
from bb_host.ir.queries import AFTER, ONNX_DOMAINS

MILLISECOND_NS = 1_000_000

_KEEP_STATE = frozenset(
    {"Threshold", "Serialize.Enqueue", "Serialize.Dequeue", "Hold.Stash", "Hold.Flush", "Limit.Acquire"}
)
"""Syscalls with results whose work outlives the execution."""

_TIMES = {"Interval": "period_ns", "After": "delay_ns", "Sleep": "duration_ns", "Repeat": "pause_ns"}
_TO_THE_HOST = frozenset({"AppEmit", "AppNotify", "Record", "IncrMetric"})
_FORWARD = frozenset({"Forward", "ForwardKeyed"})
_BACKWARD = frozenset({"Backward", "BackwardKeyed", "BackwardInput"})
_PEERS_PASS = frozenset({"Gate", "GateDispatch", "PassThrough"})
_MOST_PARTS = 3
"""Parts that a warning lists, the first ones."""


def has_effect(domain: str, op_type: str) -> bool:
    """Whether an op does more than yield its results. Ops of unknown domains count as such."""
    if domain in ONNX_DOMAINS:
        return False
    row = opsets.lookup(domain, op_type) if domain in opsets.FRAMEWORK_DOMAINS else None
    if row is None or domain in (keys.WIRE_DOMAIN, keys.GATE_DOMAIN):
        return True
    if row.effect is Effect.WRITE or row.name in _KEEP_STATE or row.name in BODY_ATTRS:
        return True
    return all(p.type == types.TRIGGER.id and p.ready is Ready.OPTIONAL for p in row.outputs)  # "has run"


# --- one call ---------------------------------------------------------------------------------------------


def has_remarks(domain: str, op_type: str) -> bool:
    """Whether `on_call` may have something to say about an op."""
    if domain == keys.SYSCALL_DOMAIN:
        return op_type in _TO_THE_HOST or op_type in _TIMES
    return domain in (keys.ROLE_INDEX_DOMAIN, keys.ROLE_PEER_SELECTOR_DOMAIN)


def on_call(graph: Recorder, draft: Draft) -> None:
    """Warns about the attributes of an op of the catalog."""
    if draft.domain == keys.SYSCALL_DOMAIN:
        if draft.op_type in _TO_THE_HOST and draft.attrs.get("name") == b"":
            graph.warn("empty-name", f"{draft.op_type} has an empty name", "give it one: the host goes by it")
        if draft.op_type == "IncrMetric":
            _counter(graph, draft)
        attribute = _TIMES.get(draft.op_type, "")
        time_ns = draft.attrs.get(attribute)
        if isinstance(time_ns, int) and 0 < time_ns < MILLISECOND_NS:
            graph.warn(
                "short-period",
                f"{draft.op_type}: {attribute}={time_ns} is less than a millisecond",
                f"times are nanoseconds: from bb_host import MS, S; {attribute}=30 * S",
            )
        return
    if draft.domain == keys.ROLE_INDEX_DOMAIN:
        _at_least_one(graph, draft, "k", "neighbours")
        return
    _at_least_one(graph, draft, "n", "peers")
    n, least = draft.attrs.get("n"), draft.attrs.get("min")
    if isinstance(n, int) and isinstance(least, int) and least > n:
        raise graph.error(
            AttributeValueError,
            f"{snake(draft.op_type)}: min={least} is above n={n}: it chooses {n} peers at most",
            f"write min={n} or less, or n={least} or more",
        )


def _counter(graph: Recorder, draft: Draft) -> None:
    """AttributeValueError for a counter that goes down, or has the name of one of the node's own."""
    name, delta = draft.attrs.get("name"), draft.attrs.get("delta", 1)
    if isinstance(delta, int) and delta < 0:
        raise graph.error(
            AttributeValueError,
            f"incr_metric: a counter only goes up, delta is {delta}",
            "count the two directions under two names, or show a value that falls with g.record",
        )
    if isinstance(name, bytes) and is_own(name.decode()):
        raise graph.error(
            AttributeValueError,
            f"incr_metric: {name.decode()!r} begins as the node's own counters do",
            f"put a word of your own in front: 'app.{name.decode()}'",
        )


def _at_least_one(graph: Recorder, draft: Draft, name: str, what: str) -> None:
    """AttributeValueError for a number of peers or neighbours below one."""
    count = draft.attrs.get(name)
    if isinstance(count, int) and count < 1:
        everybody = "; current_view(g) gives all peers that are up" if what == "peers" else ""
        raise graph.error(
            AttributeValueError,
            f"{snake(draft.op_type)}: {name}={count} is not a number of {what}",
            f"write {name}=1 or more{everybody}",
        )


def on_deadline(graph: Recorder, deadline_ns: int) -> None:
    """Warns about a deadline that no network meets: seconds or milliseconds were meant."""
    if deadline_ns < MILLISECOND_NS:
        graph.warn(
            "short-deadline",
            f"deadline_ns={deadline_ns} is less than a millisecond",
            "deadlines are nanoseconds: from bb_host import MS, S; deadline_ns=30 * S",
        )


def on_enough(graph: Recorder, name: str, peers: Output, enough: int) -> None:
    """Warns about a request that waits for more answers than peers are asked."""
    n = _sampled(graph, peers)
    if n is not None and 1 <= n < enough:
        graph.warn(
            "enough-above-n",
            f"request {name!r} waits for {enough} answers and asks {n} peers at most: it never has enough",
            f"say enough={n} or less, or sample n={enough} or more",
        )


def _sampled(graph: Recorder, peers: Output) -> int | None:
    """How many peers a list holds at most, where a selector's op said so."""
    at: Recorder | None = graph
    while at is not None:
        for draft in reversed(at.drafts):
            if any(output is peers for output in draft.outputs):
                n = draft.attrs.get("n")
                if draft.domain == keys.ROLE_PEER_SELECTOR_DOMAIN and isinstance(n, int):
                    return n
                source = draft.inputs[0] if draft.op_type in _PEERS_PASS else None
                return None if source is None else _sampled(graph, source)
        at = at.parent
    return None


# --- one body ---------------------------------------------------------------------------------------------


def unread_results(graph: Recorder, functions: Iterable[Function]) -> None:
    """Warns, at the end of a body, about ops without effect whose results nothing reads."""
    read = {id(value) for value in (*graph.outputs.values(), *graph.may_go_unread)}
    used = set(read)
    drafts = list(_all(graph.drafts, read, used))
    backward = {d.facts.slot for d in drafts if d.op_type in _BACKWARD}
    called = {f.key: f for f in functions}
    for draft in drafts:
        _half_read(graph, draft, read, used)
        if draft.domain == keys.WIRE_DOMAIN and draft.op_type == OP_SEND_REQ:
            unused = tuple(_unused(draft, used))
            if unused:
                graph.session.unread_requests[draft.facts.wire_id] = unused, draft.facts.source
        if not draft.outputs or not read.isdisjoint(map(id, draft.outputs)):
            continue
        if draft.domain == keys.WIRE_DOMAIN and draft.op_type == OP_SEND:
            graph.session.unread_sends[draft.facts.wire_id] = draft.facts.source
            continue
        if draft.op_type == "Constant" or matters(draft.domain, draft.op_type, called):
            continue
        if draft.op_type in _FORWARD and draft.facts.slot in backward:
            continue  # `backward` needs what it keeps
        graph.warn_at(
            draft,
            "unread-result",
            f"nothing reads the result of {draft.op_type}, and it has no other effect",
            "remove it, or pass its result on: to an op, to g.output, or to after=",
        )


def _half_read(graph: Recorder, draft: Draft, read: set[int], used: set[int]) -> None:
    """Warns about an op of whose results some are read, and not those that its work is for."""
    unread = [id(value) not in read for value in draft.outputs]
    if draft.op_type == "Aggregate" and draft.domain == keys.ROLE_AGGREGATOR_DOMAIN:
        taken = any(d.op_type == "CurrentTensor" and d.facts.slot == draft.facts.slot for d in graph.drafts)
        if not all(unread) and id(draft.outputs[0]) not in used and not taken:
            what = "the total of this aggregate is read, and its result is not"
            if not unread[0]:
                what = "the result of this aggregate is waited for (after=), and nothing uses it"
            graph.warn_at(
                draft,
                "unread-aggregate",
                f"slot {draft.facts.slot!r}: {what}",
                "use the result: model.load_parameters(g, result)",
            )
        return
    if draft.domain != keys.WIRE_DOMAIN:
        return
    first, last = {OP_SEND_RESP: (0, -1), OP_RECV_RESP_BATCHED: (2, None)}.get(draft.op_type, (0, 0))
    parts = unread[first:last]
    if any(parts) and not all(parts):
        numbers = [number for number, is_unread in enumerate(parts, 1) if is_unread]
        graph.warn_at(
            draft,
            "unread-answer",
            f"nothing reads part {_listed(numbers)} of the {len(parts)} that answer request"
            f" {draft.facts.port!r}, and every peer sends it",
            "read it from r.answer or r.responses, or leave it out of r.reply([…])",
        )


def _listed(numbers: Sequence[int]) -> str:
    first = ", ".join(map(str, numbers[:_MOST_PARTS]))
    return first if len(numbers) <= _MOST_PARTS else f"{first}, … ({len(numbers)} in all)"


def _unused(draft: Draft, used: set[int]) -> Iterator[int]:
    """The outputs of a request that the asked peer does not use.

    Where it uses none of them they are a signal, which may be a number or a constant.
    """
    unread = [index for index in range(1, len(draft.outputs) - 1) if id(draft.outputs[index]) not in used]
    some = len(unread) < len(draft.outputs) - 2
    for index in unread:
        sent = draft.inputs[index - 1]
        if some or (sent is not None and not sent.is_constant and _holds_many(sent)):
            yield index


def _holds_many(value: Output) -> bool:
    """Whether a value is known to be more than a number; a shape that nothing tells may be that of one."""
    return types.compatible(value.node, types.TENSOR) and bool(value.shape)


def _all(drafts: Iterable[Draft], read: set[int], used: set[int]) -> Iterator[Draft]:
    """The drafts, those of branches included; adds to `read` the values that they read, and to `used` those
    of which they need more than that they are there.
    """
    for draft in drafts:
        read.update(map(id, draft.inputs))
        count = 1 if draft.op_type in AFTER else len(draft.inputs) - draft.facts.control
        used.update(map(id, draft.inputs[:count]))
        yield draft
        for value in draft.attrs.values():
            if isinstance(value, SubgraphDraft):
                read.update(map(id, value.outputs))
                used.update(map(id, value.outputs))
                yield from _all(value.drafts, read, used)


def matters(domain: str, op_type: str, called: Mapping[tuple[str, str], Function]) -> bool:
    """Whether an op has an effect; a call has one if its callee does more than compute."""
    callee = called.get((domain, op_type))
    if callee is None:
        return has_effect(domain, op_type)
    return any(matters(op.domain, op.op_type, called) for op in callee.ops)


# --- one module -------------------------------------------------------------------------------------------


def misspelt(module: object, base: type) -> Iterator[tuple[str, str]]:
    """Texts and methods of a module that are nearly called as what `base` reads: (name, what is read)."""
    found: dict[str, object] = {}
    for cls in type(module).__mro__:
        if cls is base:
            break
        found.update(vars(cls))
    found.update(vars(module))
    for name, value in found.items():
        wanted = ("name", "home", "domain") if isinstance(value, str) else ("body", "bootstrap")
        if name in wanted or name.startswith("_") or not isinstance(value, (str, FunctionType)):
            continue
        if isinstance(value, FunctionType) and value.__code__.co_argcount != 2:
            continue
        for meant in wanted:
            near = abs(len(name) - len(meant)) < 2 and len(set(name) ^ set(meant)) < 2
            if near and (sorted(name) == sorted(meant) or _alike(name, meant)):
                yield name, meant


def _alike(name: str, meant: str) -> bool:
    import difflib

    return difflib.SequenceMatcher(None, name, meant).ratio() > 0.85


# --- the program ------------------------------------------------------------------------------------------


def unread_sends(session: Session, functions: Iterable[Function]) -> Iterator[tuple[str, str, str]]:
    """(what, where, hint) per `net_out` of which nothing reads what arrives, in its module or in another.

    A module's port that another one reads is an output of the function that sends.
    """
    waiting = session.unread_sends
    for function in functions if waiting else ():
        for op in function.ops:
            line = waiting.get(op.facts.wire_id)
            if line is not None and op.op_type == OP_SEND and set(op.outputs).isdisjoint(function.outputs):
                yield (
                    f"nothing reads what net_out {op.facts.port!r} sends: no device takes it",
                    line,
                    "use what it returns, or say g.wire.send where another program receives it",
                )


def unread_requests(session: Session, functions: Iterable[Function]) -> Iterator[tuple[str, str, str]]:
    """(what, where, hint) per request of which the asked peer does not use all, in any module."""
    waiting = session.unread_requests
    for function in functions if waiting else ():
        for op in function.ops:
            if op.op_type != OP_SEND_REQ or op.facts.wire_id not in waiting:
                continue
            indices, line = waiting[op.facts.wire_id]
            numbers = [i for i in indices if op.outputs[i] not in function.outputs]
            count = len(op.outputs) - 2
            part = f"part {_listed(numbers)} of the {count} that request" if count > 1 else "what request"
            if numbers:
                yield (
                    f"no asked peer uses {part} {op.facts.port!r} sends",
                    line,
                    "use r.value, as model.load_parameters(g, r.value) does; or send a number as a signal",
                )


def unused_slots(session: Session) -> Iterator[tuple[str, str, str]]:
    """(what, where, hint) per declared slot that no op uses."""
    for name, use in session.slots.items():
        # The slot `backend` serves every ONNX op without a call; slots of embedded models are the model's.
        if use.used or name == keys.ROLE_BACKEND or not use.declared.where:
            continue
        yield (
            f"no op uses slot {name!r}",
            use.declared.where,
            "remove it and its binding, or call one of its ops in the body",
        )
