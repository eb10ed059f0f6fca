"""Finds which sum each op of an aggregator works on, and the layout of what it is given.

1. One sum per asking execution, where that is plain: a slot has one `Aggregate`; all its `Contribute`s run in
   that execution or handle answers to its requests, one of them at least the latter; and a single entry
   starts it all. Each op says how many executions up the asking one is.
2. Else one sum per round, where every `Contribute` and `Aggregate` is given `round`.
3. Else one sum. `round` on `Contribute` alone tells repetitions of a peer apart.
4. An `Aggregate` that does not wait for the answers that it should sum gives a warning, as does one that runs
   once for each of them, one of a sum that another `Aggregate` of the same execution has taken, and a second
   `Contribute` of one peer.
5. What stands in a branch or a loop runs in the execution of the op that runs it, and is found there. An
   `Aggregate` in each branch of one `If` is one of them: only one of them runs. One in a loop may run often,
   so that its sum is that of rule 2 or 3.
6. A `Contribute` says which shape it is given, as far as it is known. One that can never be the shape of its
   `sent` is refused, and so are a weight that can never be one number and a sample of several as the peer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from bb_edge.ir import keys
from bb_edge.ir.bodies import BODY_ATTRS, body_keys
from bb_edge.ir.opsets.wire import OP_RECV_RESP, OP_RECV_RESP_BATCHED, OP_SEND_REQ
from bb_edge.ir.stamped_shapes import shape_text, write_shapes
from bb_edge.ir.types import ValueType
from bb_host.errors import MissingRound, TypeConstraintFailed, named, source
from bb_host.ir.facts import NO_FACTS, OpFacts
from bb_host.ir.program import Function, Op, walk_ops
from bb_host.ir.queries import is_constant, is_entry, reads, same_values
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.joins import Joins, check_joins
from bb_host.passes.one_pass import Stats

Key = tuple[str, str]

_ROUND_INPUT = {"Contribute": 3, "Aggregate": 1}
"""Where the ops have their round."""

_WEIGHT_INPUT, _PEER_INPUT, _SENT_INPUT = 1, 2, 4
_STACK_INPUT = 0
_BESIDE = frozenset(
    {"PassThrough", "GateDispatch", "GateManyDispatch", "AppEmit", "AppNotify", "Record", "IncrMetric"}
)
_DECIDES = frozenset({"Contribute", *BODY_ATTRS})
_OWN = ("", "0", keys.COHORT_ROUND)
"""Cohorts of contributions that are not answers to a request."""


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A `Contribute` or `Aggregate`: where it stands, and the op of the main that runs it, itself or not.

    `path` are the ops whose bodies it stands in, from the main on, each with the body.
    """

    function: Function
    index: int
    op: Op
    host: Op
    path: tuple[tuple[Op, Key], ...] = ()

    def excludes(self, other: _Place) -> bool:
        """Whether the two stand in two branches of one `If`."""
        for (op, body), (others, another) in zip(self.path, other.path, strict=False):
            if op is not others:
                return False
            if body != another:
                return True
        return False

    @property
    def is_looped(self) -> bool:
        return any(op.op_type == "Loop" for op, _ in self.path)


def with_sums(functions: tuple[Function, ...], stats: Stats) -> tuple[Function, ...]:
    """Returns the functions with their aggregators' ops stamped; the same ones where there are none."""
    if not any(map(_has_sums, functions)):
        return functions
    keyed = {f.key: f for f in functions}
    changed: dict[Key, dict[int, Op]] = {}
    for function in filter(flow.is_main, functions):
        places = list(_places(function, keyed))
        if places:
            for place, new in _stamped(function, places, functions, stats):
                changed.setdefault(place.function.key, {})[place.index] = new
    return tuple(flow.restamped(f, changed.get(f.key, {})) for f in functions)


def _has_sums(function: Function) -> bool:
    return keys.ROLE_AGGREGATOR_DOMAIN in flow.summary(function.ops).domains


def _places(
    function: Function,
    keyed: Mapping[Key, Function],
    host: Op | None = None,
    path: tuple[tuple[Op, Key], ...] = (),
) -> Iterator[_Place]:
    """The `Contribute`s and `Aggregate`s of a function and of the bodies that its ops run."""
    for index, op in enumerate(function.ops):
        if op.domain == keys.ROLE_AGGREGATOR_DOMAIN and op.op_type in _ROUND_INPUT:
            yield _Place(function, index, op, host or op, path)
        for key in body_keys(op.domain, op.op_type, op.attrs) if op.op_type in BODY_ATTRS else ():
            if key in keyed:
                yield from _places(keyed[key], keyed, host or op, (*path, (op, key)))


def _stamped(
    function: Function, places: Sequence[_Place], functions: tuple[Function, ...], stats: Stats
) -> Iterator[tuple[_Place, Op]]:
    """The ops of a main, those in bodies too, that say more than they did."""
    by_slot: dict[str, list[_Place]] = {}
    for place in places:
        by_slot.setdefault(place.op.slot, []).append(place)
    joins = check_joins(function)
    makers = _makers(function)
    _warn_of_early(function, places, makers, stats)
    if joins is not None:
        _warn_of_each(function, places, makers, joins, stats)
    _warn_of_spent(by_slot.values(), makers, stats)
    _warn_of_second(by_slot.values(), makers, stats)
    for slot, found in by_slot.items():
        elsewhere = len(found) < sum(_uses(f, slot) for f in functions if _beside(f, function))
        for place in found:
            op, types = place.op, place.function.types
            cohort = "" if elsewhere else _cohort(found, place, joins)
            stamp = OpFacts(cohort=cohort) if cohort else NO_FACTS
            if op.op_type == "Contribute":
                known = types.get(op.inputs[0])
                if _has(op, _SENT_INPUT):
                    _check_sent(op, known, types.get(flow.data_inputs(op)[_SENT_INPUT]))
                if _has(op, _PEER_INPUT):
                    _check_peer(op, _makers(place.function) if place.path else makers)
                if _has(op, _WEIGHT_INPUT):
                    _check_weight(op, types.get(flow.data_inputs(op)[_WEIGHT_INPUT]))
                shapes = write_shapes([known.shape if known is not None else None])
                if shapes:
                    stamp |= OpFacts(shapes=shapes)
                if cohort not in _OWN and (not shapes or "?" in shapes) and not _has(op, _SENT_INPUT):
                    _warn(op, shapes, stats)
            new = op.saying(stamp)
            if new is not op:
                yield place, new


def _makers(function: Function) -> dict[str, Op]:
    return {name: op for op in function.ops for name in op.outputs}


def _warn(op: Op, shapes: str, stats: Stats) -> None:
    known = f"only {shapes}" if shapes else "nothing"
    stats.warn(
        "layout-unknown",
        f"slot {op.slot!r}: {known} is known of the shape of what is contributed: the first peer that answers"
        " decides it, and those that differ are refused",
        source(op),
        "give what was sent, contribute(…, sent=params), or reshape what is replied",
    )


def _warn_of_early(
    function: Function, places: Sequence[_Place], makers: Mapping[str, Op], stats: Stats
) -> None:
    """Warns of aggregates that run with the request whose answers they should sum, so one round too early.

    One that another entry starts as well, such as an interval, is meant so.
    """
    answered = {
        place.op.slot
        for place in places
        if place.op.op_type == "Contribute" and _meets(place.host, makers, OP_RECV_RESP)
    }
    asking = [op for op in function.ops if op.domain == keys.WIRE_DOMAIN and op.op_type == OP_SEND_REQ]
    asks = {id(op) for request in asking for op in _above(request, makers)}
    for place in places:
        op, host = place.op, place.host
        if op.op_type != "Aggregate" or op.slot not in answered or _meets(host, makers, *_ANSWERS):
            continue
        above = _above(host, makers)
        # What a condition is computed from says nothing of when its branch should run.
        started = all(id(other) in asks or (place.path and _only_computes(other)) for other in above)
        if started and (above or _started_by_readers(host, function, makers)):
            stats.warn(
                "early-aggregate",
                f"slot {op.slot!r} sums answers, and this aggregate does not wait for them: it gives what"
                " came of the round before, or nothing",
                source(op),
                "aggregate(g, after=r.closed), r being the request"
                if not place.path
                else "after=r.closed in the branch or loop, r being the request",
            )


def _warn_of_each(
    function: Function, places: Sequence[_Place], makers: Mapping[str, Op], joins: Joins, stats: Stats
) -> None:
    """Warns of aggregates that run once for each answer, and so sum that answer alone.

    Not where a condition, a threshold or a wait comes between the answer and the aggregate; where something
    else is contributed with each answer, such as the parameters that it is mixed with; or where one peer is
    asked.
    """
    for place in places:
        op = place.op
        entry = None if place.path else _entry(place, joins)
        if op.op_type != "Aggregate" or _has(op, _STACK_INPUT) or entry is None or entry < 0:
            continue
        answer = function.ops[entry]
        if answer.domain != keys.WIRE_DOMAIN or answer.op_type != OP_RECV_RESP:
            continue
        together = [
            other
            for other in places
            if other.op.op_type == "Contribute" and other.op.slot == op.slot and _entry(other, joins) == entry
        ]
        between = [
            one
            for one in _above(op, makers)
            if one.domain not in (keys.WIRE_DOMAIN, keys.GATE_DOMAIN)
            and any(entry in joins.values.get(name, ()) for name in one.outputs)
        ]
        if (
            len(together) == 1
            and all(one.op_type == "Contribute" or _only_computes(one) for one in between)
            and not _asks_one(answer.facts.request, function, makers)
        ):
            stats.warn(
                "early-aggregate",
                f"slot {op.slot!r}: this aggregate runs once for each answer, and gives that answer alone or"
                " nothing, never the mean of all of them",
                source(op),
                "aggregate(g, after=r.closed), r being the request",
            )


def _asks_one(number: str, function: Function, makers: Mapping[str, Op]) -> bool:
    """Whether a request goes to one peer at most."""
    for op in function.ops:
        if op.op_type == OP_SEND_REQ and op.domain == keys.WIRE_DOMAIN and flow.wire_id(op) == number:
            *_, origin = same_values(flow.data_inputs(op)[-1], makers)
            maker = makers.get(origin)
            if maker is None:
                return False
            if maker.domain == keys.ROLE_PEER_SELECTOR_DOMAIN:
                return maker.attrs.get("n") == 1
            if maker.op_type == "PeerList":
                return len(flow.data_inputs(maker)) == 1
            return maker.domain == keys.WIRE_DOMAIN and is_entry(maker)  # the sender of what came
    return False


def _warn_of_spent(slots: Iterable[list[_Place]], makers: Mapping[str, Op], stats: Stats) -> None:
    """Warns of aggregates whose sum an earlier one of the same execution has taken.

    Two aggregates meet in one sum where they have the same round, and where nothing that brings or delays a
    contribution, and no condition, comes between: what one of them alone waits for computes, no more.
    """
    for found in slots:
        closing = [
            place.op
            for place in found
            if place.op.op_type == "Aggregate" and not place.path and not _has(place.op, _STACK_INPUT)
        ]
        if len(closing) < 2:
            continue
        before: list[tuple[Op, dict[int, Op]]] = []
        for op in closing:
            above = {id(one): one for one in _above(op, makers)}
            for first, others in before:
                between = _of_one_alone(above, others)
                if _round(op) == _round(first) and all(map(_only_computes, between)):
                    stats.warn(
                        "spent-aggregate",
                        f"the aggregate of slot {op.slot!r} at {source(first)} takes the same sum: nothing is"
                        " left for this one, whose result is empty and whose total is 0",
                        source(op),
                        "call it once and use both of its results: mean, total = agg.aggregate(g, …)",
                    )
                    break
            else:
                before.append((op, above))


def _warn_of_second(slots: Iterable[list[_Place]], makers: Mapping[str, Op], stats: Stats) -> None:
    """Warns of contributions of one peer to a sum in which another of them counts.

    They have the same peer and the same round, and what one of them alone waits for computes, or contributes:
    behind a condition, or an aggregate that ends the sum, both may count.
    """
    for found in slots:
        giving: dict[tuple[str, ...], list[tuple[Op, dict[int, Op]]]] = {}
        for place in found:
            op = place.op
            if op.op_type != "Contribute" or place.path or not _has(op, _PEER_INPUT):
                continue
            names = (flow.data_inputs(op)[_PEER_INPUT], _round(op))
            whose = tuple([*same_values(name, makers)][-1] for name in names)
            above = {id(one): one for one in _above(op, makers)}
            before = giving.setdefault(whose, [])
            first = next((one for one, others in before if _meet_in_one_sum(above, others)), None)
            before.append((op, above))
            if first is not None:
                stats.warn(
                    "second-contribution",
                    f"slot {op.slot!r} gets another contribution of the same peer at {source(first)}: of the"
                    " two, the one that comes first counts, and the other is left out",
                    source(op),
                    "use a slot for each of them, or contribute one value that holds both",
                )


def _meet_in_one_sum(above: Mapping[int, Op], others: Mapping[int, Op]) -> bool:
    """Whether two contributions that wait for these ops come to one sum for certain."""
    between = _of_one_alone(above, others)
    return all(
        one.op_type == "Contribute" or (one.op_type != "Aggregate" and _only_computes(one)) for one in between
    )


def _of_one_alone(above: Mapping[int, Op], others: Mapping[int, Op]) -> list[Op]:
    """The ops that one of two ops waits for, and the other does not."""
    return [one for key, one in {**above, **others}.items() if (key in above) != (key in others)]


def _only_computes(op: Op) -> bool:
    """Whether an op neither waits, asks, contributes nor decides."""
    if op.domain == keys.SYSCALL_DOMAIN:
        return op.op_type in _BESIDE
    return op.domain not in (keys.WIRE_DOMAIN, keys.GATE_DOMAIN) and op.op_type not in _DECIDES


def _round(op: Op) -> str:
    return flow.data_inputs(op)[_ROUND_INPUT[op.op_type]] if _has_round(op) else ""


def _started_by_readers(op: Op, function: Function, makers: Mapping[str, Op]) -> bool:
    """Whether an op that waits for nothing runs since one that reads its results waits for something else."""
    for other in function.ops:
        above = _above(other, makers)
        if any(one is op for one in above) and any(
            one is not op and not reads(one) and not is_constant(one) for one in above
        ):
            return True
    return False  # `never-started` says so


_ANSWERS = (OP_RECV_RESP, OP_RECV_RESP_BATCHED)


def _meets(op: Op, makers: Mapping[str, Op], *kinds: str) -> bool:
    """Whether an op waits for a wire op of these kinds."""
    return any(one.domain == keys.WIRE_DOMAIN and one.op_type in kinds for one in _above(op, makers))


def _above(op: Op, makers: Mapping[str, Op]) -> list[Op]:
    """All ops that an op waits for."""
    seen: dict[int, Op] = {}
    waiting = [op]
    while waiting:
        for name in reads(waiting.pop()):
            maker = makers.get(name)
            if maker is not None and id(maker) not in seen:
                seen[id(maker)] = maker
                waiting.append(maker)
    return list(seen.values())


def _check_weight(op: Op, given: ValueType | None) -> None:
    """TypeConstraintFailed where a weight cannot be one number: every contribution would be refused."""
    shape = (given and given.shape) or ()
    if any(isinstance(size, int) and size != 1 for size in shape):
        raise TypeConstraintFailed(
            f"its weight has shape {shape_text(shape)}, and a contribution weighs one number",
            hint="give a 0-D value, such as the number of samples: weight=source.num_samples(g)",
            op=op,
        )


def _check_peer(op: Op, makers: Mapping[str, Op]) -> None:
    """TypeConstraintFailed where a contribution's peer is a list that a selector gives of several."""
    *_, origin = same_values(flow.data_inputs(op)[_PEER_INPUT], makers)
    maker = makers.get(origin)
    if maker is None or maker.domain != keys.ROLE_PEER_SELECTOR_DOMAIN:
        return
    most = maker.attrs.get("n")
    if isinstance(most, int) and most > 1:
        raise TypeConstraintFailed(
            f"its peer is {named(maker)}, which gives up to {most} peers, and a contribution comes from one",
            hint="give the peer that answered, peer=r.answer.sender, r being the request, or select one, n=1",
            op=op,
        )


def _check_sent(op: Op, given: ValueType | None, sent: ValueType | None) -> None:
    """TypeConstraintFailed where no contribution can have the shape of what was sent."""
    if given is None or sent is None or given.shape is None or sent.shape is None:
        return
    fits = len(given.shape) == len(sent.shape) and not any(
        isinstance(a, int) and isinstance(b, int) and a != b
        for a, b in zip(given.shape, sent.shape, strict=True)
    )
    if not fits:
        raise TypeConstraintFailed(
            f"it is given {shape_text(given.shape)}, and `sent` is {shape_text(sent.shape)}: contributions of"
            " another shape than what was sent are refused, so none would count",
            hint="reply with a value of the shape that was sent, or leave sent= out",
            op=op,
        )


def _beside(other: Function, main: Function) -> bool:
    """Whether a function may run on the target of `main`: itself, its bootstrap, and what they may call."""
    if other is main or other.name == main.name + keys.BOOTSTRAP_SUFFIX:
        return True
    return not flow.is_main(other) and not flow.is_bootstrap(other)


def _uses(function: Function, slot: str) -> int:
    """How often a slot is contributed to or aggregated in a function, its branches included."""
    return _has_sums(function) and sum(
        op.domain == keys.ROLE_AGGREGATOR_DOMAIN and op.op_type in _ROUND_INPUT and op.slot == slot
        for op in walk_ops(function.ops)
    )


def _cohort(found: list[_Place], place: _Place, joins: Joins | None) -> str:
    """The stamp of an op, of all that use its slot. MissingRound where sums and rounds do not meet."""
    closing = [each for each in found if each.op.op_type == "Aggregate"]
    giving = [each for each in found if each.op.op_type == "Contribute"]
    if joins is not None and closing and giving and _is_one(closing):
        asking = _entry(closing[0], joins)
        ups = {id(each): _levels(_entry(each, joins), asking, joins) for each in found}
        if None not in ups.values() and any(ups.values()):
            return str(ups[id(place)])
    if any(_has_round(each.op) for each in closing):
        without = next((each.op for each in found if not _has_round(each.op)), None)
        if without is not None:
            raise MissingRound(
                "another op of its slot has a round, which chooses the sum",
                hint="give round=… to every contribute and aggregate of the slot",
                op=without,
            )
        return keys.COHORT_ROUND
    return ""


def _is_one(closing: Sequence[_Place]) -> bool:
    """Whether one of these aggregates runs at most, and once at most, in one execution."""
    return not any(each.is_looped for each in closing) and all(
        one.excludes(other) for one, other in combinations(closing, 2)
    )


def _entry(place: _Place, joins: Joins) -> int | None:
    """The only entry that starts the executions in which an op runs; None where there are several."""
    where = next((joins.values[name] for name in place.host.outputs if name in joins.values), None)
    return next(iter(where)) if where is not None and len(where) == 1 else None


def _levels(entry: int | None, asking: int | None, joins: Joins) -> int | None:
    """How many executions above that of `entry` the one of `asking` is; None where it is not above."""
    levels = 0
    while entry is not None and asking is not None:
        if entry == asking:
            return levels
        above = joins.parents.get(entry, frozenset())
        entry, levels = (next(iter(above)) if len(above) == 1 else None), levels + 1
    return None


def _has_round(op: Op) -> bool:
    return _has(op, _ROUND_INPUT[op.op_type])


def _has(op: Op, place: int) -> bool:
    inputs = flow.data_inputs(op)
    return len(inputs) > place and bool(inputs[place])
