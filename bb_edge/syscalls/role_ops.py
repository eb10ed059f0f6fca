"""Role ops: each calls one Contract method of the component that the slot is bound to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bb_edge.components.kept_value import KeptValue
from bb_edge.engine import steps
from bb_edge.engine.binding import BindEnv, OpContext, Run, make_gather
from bb_edge.engine.errors import OpError
from bb_edge.engine.program.build import build_graph
from bb_edge.engine.program.program import GraphSlot
from bb_edge.engine.run.bound import BoundGraph, BoundOp
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.run.waiting import PENDING, WaitingRoom
from bb_edge.ir import keys, types
from bb_edge.ir.once import each_time
from bb_edge.ir.onnx_pb2 import FunctionProto
from bb_edge.ir.opsets import AttrKind, Effect, OpDef, OpKind, Ready
from bb_edge.ir.types import ValueType
from bb_edge.ir.values import Composite
from bb_edge.roles import Aggregator, DataSource, Model, ProtocolComponent, method_name, offers
from bb_edge.roles.completion import Later
from bb_edge.syscalls import batches, contributions
from bb_edge.syscalls.notes import NO_NOTES, Notes, begun_anew, is_shipped, kept_notes, tell
from bb_edge.syscalls.reserving import reserve
from bb_edge.syscalls.results import Check, ResultError, checker, described, sized

if TYPE_CHECKING:
    from bb_edge.roles import Component


def attributes(op: BoundOp, definition: OpDef) -> dict[str, object]:
    """Returns the op's attributes as keyword arguments, with texts decoded and defaults filled in."""
    keywords: dict[str, object] = {}
    for attr in definition.attrs:
        value = op.spec.attrs.get(attr.name)
        if value is None:
            if attr.required:
                raise OpError(f"attribute {attr.name} is missing", where=op.spec.name)
            value = attr.default
        if attr.kind is AttrKind.STRING and isinstance(value, bytes):
            value = value.decode()
        if value is not None:
            keywords[attr.name] = value
    return keywords


def bind(op: BoundOp, env: BindEnv) -> Run:
    """Binds a role op. OpError where the slot has no component, or the component does not offer the op."""
    slot = op.spec.meta.get(keys.SLOT_KEY, "")
    components = env.scheduler.components
    index = components.slots.get((env.graph.target, slot))
    if index is None:
        raise OpError(f"slot {slot!r} has no component", where=op.spec.name, hint="bind it at compile time")
    component = components[index]
    definition = op.spec.definition or _own_op(op, component)
    # It follows from the op and the class that it calls, but for an opset of the component's own.
    once, key = each_time if op.spec.definition is None else env.once, (id(op.spec), type(component))
    held = once(key, lambda: _held(op, env.graph.slot, component, definition))
    keywords, op.check = held.keywords, held.check
    op.component = op.touches = index
    op.busy_key = -1 if component.concurrent else index
    op.later_ns = _deadline(op)
    op.takes_first = len(definition.outputs) > 1 and len(op.outs) == 1
    op.writes = definition.effect is Effect.WRITE and not component.shared
    op.yields_command = bool(definition.outputs) and definition.outputs[0].type == types.COMMAND_ID.id
    method = getattr(component, held.method)
    if not is_shipped(type(component)):
        method = _lending(method)
    if isinstance(component, Aggregator) and op.spec.domain == keys.ROLE_AGGREGATOR_DOMAIN:
        method = contributions.bind(op, component, method)
    if isinstance(component, Model) and op.spec.op_type == "Params":
        reserve(op, component, component.reserve, "for a copy of the parameters")
    if isinstance(component, Model) and op.spec.op_type in ("Forward", "ForwardKeyed"):
        method = _counting(component, method)
    notes: Notes | None = NO_NOTES
    if isinstance(component, Model) and op.spec.op_type == "Step":
        notes = kept_notes(component, slot, steps.ModelNoted)
        if notes is None:
            method = _noting(component, slot, method)
    if isinstance(component, KeptValue):
        notes = begun_anew(component, slot)
    if isinstance(component, DataSource) and op.spec.op_type == "NextBatch":
        method, notes = batches.bind(op, component, slot, method, env.once, env.graph.of_data)
    return calls_of(
        env.scheduler.waiting, component, method, keywords, op.takes_first, op.check, notes or NO_NOTES,
        none_fits=op.yields_command,
    )  # fmt: skip


class _Held(NamedTuple):
    """The name of the method that an op calls, the keywords of its calls, and the check of their results."""

    method: str
    keywords: dict[str, object]
    check: Check


def _held(op: BoundOp, graph: GraphSlot, component: Component, definition: OpDef) -> _Held:
    if not offers(component, op.spec.op_type):
        slot = op.spec.meta.get(keys.SLOT_KEY, "")
        raise OpError(f"{component.TYPE_NAME} does not offer {op.spec.op_type}", where=f"slot {slot!r}")
    known, promised = graph.output_types, _promised(component, definition)
    keywords = attributes(op, definition)
    check = checker(definition, [known.get(s) or p for s, p in zip_longest(op.outs, promised)])
    return _Held(method_name(op.spec.op_type), keywords, sized(check, definition, keywords))


def _lending(method: Callable[..., object]) -> Callable[..., object]:
    """Returns a method of an author's component that gets arrays which cannot be written to.

    Other ops read the same arrays: what is written into one of them would change what those see.
    """

    @wraps(method)
    def call(ctx: OpContext, *inputs: object, **keywords: object) -> object:
        return method(ctx, *map(_lent, inputs), **keywords)

    return call


def _lent(value: object) -> object:
    if isinstance(value, Composite):
        children = tuple((type_hash, _lent(child)) for type_hash, child in value.children)
        return Composite(children)
    if not isinstance(value, np.ndarray) or not value.flags.writeable:
        return value
    lent = value.view()
    lent.flags.writeable = False
    return lent


def _counting(component: Model, method: Callable[..., object]) -> Callable[..., object]:
    """Returns a forward pass that counts the activations which had to go for what it keeps."""

    def forward(ctx: OpContext, *inputs: object) -> object:
        before = component.activations_dropped
        result = method(ctx, *inputs)
        if component.activations_dropped != before:
            ctx.runtime.count("activations.dropped", component.activations_dropped - before)
        return result

    return forward


def _noting(component: Model, slot: str, method: Callable[..., object]) -> Callable[..., object]:
    """Returns a `step` that afterwards reports what the model notes of its training."""
    if type(component).take_notes is Model.take_notes:
        return method

    def step(ctx: OpContext, *inputs: object) -> object:
        result = method(ctx, *inputs)
        tell(component, slot, steps.ModelNoted, ctx)
        return result

    return step


def _promised(component: Component, definition: OpDef) -> list[ValueType | None]:
    """Returns the types that the class declares, for artifacts that do not repeat them.

    What `STORAGE_TYPES` says, and else an author's own `port_types`.
    """
    declared, said = getattr(component, "STORAGE_TYPES", {}), component.promised_types
    ports = [f"{definition.name}.{port.name}" for port in definition.outputs]
    nodes = {port: types.by_id(declared[port]) for port in ports if port in declared}
    stored = {port: ValueType(node) for port, node in nodes.items() if node is not None}
    return [stored.get(port) or said.get(port) for port in ports]


def _own_op(op: BoundOp, component: Component) -> OpDef:
    """Returns the row of a component's own opset. OpError where it has no such op, or one that cannot run."""
    table = component.atomic_opset() if isinstance(component, ProtocolComponent) else None
    row = table.ops.get(op.spec.op_type) if table is not None and table.domain == op.spec.domain else None
    if row is None:
        raise OpError(
            f"{component.TYPE_NAME} has no op {op.spec.domain}::{op.spec.op_type}", where=op.spec.name
        )
    if row.kind is OpKind.ENTRY or any(port.ready is Ready.ANY for port in row.inputs):
        raise OpError(
            "an op of a component cannot be an entry, and must wait for all its inputs", where=op.spec.name
        )
    return row


def calls_of(
    waiting: WaitingRoom,
    component: Component,
    method: Callable[..., object],
    keywords: Mapping[str, object],
    takes_first: bool = False,
    check: Check | None = None,
    notes: Notes = NO_NOTES,
    *,
    none_fits: bool = False,
) -> Run:
    """Returns the call of a component's method, which gives PENDING where it answers with a `Later`.

    `check` gets the result first, None only where it does not say `none_fits`; a later result meets it when
    the parked op is resumed. `notes` are told behind each call that leaves some.
    """

    call = partial(method, **keywords) if keywords else method
    untold, tell_them = notes

    def run(ctx: OpContext, *inputs: object) -> object:
        try:
            result = call(ctx, *inputs)
        except BaseException:
            waiting.withdraw(ctx)
            raise
        finally:
            if untold:
                tell_them(ctx)
        if token := ctx.later_token:
            if isinstance(result, Later) and result.handle.token == token:
                ctx.later_token = 0
                return PENDING
            waiting.withdraw(ctx)
        if result is None and none_fits:
            return None
        if isinstance(result, Later):
            raise OpError(
                f"{component.TYPE_NAME} answers with a Later of another call",
                where=ctx.op.spec.name,
                hint="return what ctx.later() returned in this call",
            )
        if check is not None:
            result = check(result)
        # A node may leave trailing outputs unnamed: it has one output then, and the result several values.
        # (A PeerIdVec is a tuple as well, and one value.)
        return result[0] if takes_first and isinstance(result, tuple) else result

    return run


def component_bootstrap(scheduler: Scheduler, target: str, slot: str, index: int, number: int) -> BoundGraph:
    """Returns a graph of one op that calls the `bootstrap` method of a component."""
    function = FunctionProto(name=f"{slot}{keys.BOOTSTRAP_SUFFIX}", domain=keys.COMPONENT_DOMAIN)
    node = function.node.add(op_type="Bootstrap", domain=keys.COMPONENT_DOMAIN, name=f"{slot}.bootstrap")
    node.metadata_props.add(key=keys.SLOT_KEY, value=slot)
    graph = BoundGraph(build_graph(function, False), number, target)
    (op,) = graph.ops
    component = scheduler.components[index]
    op.component = op.touches = index
    op.busy_key = -1 if component.concurrent else index
    op.gather = make_gather((), graph.slot.absent)
    op.check = _no_result
    op.run = bound_bootstrap(scheduler.waiting, component)
    return graph


def bound_bootstrap(waiting: WaitingRoom, component: Component) -> Run:
    """Returns the call of a component's own bootstrap, which has no result, now or later."""
    return calls_of(waiting, component, component.bootstrap, {}, check=_no_result)


def _no_result(result: object) -> None:
    if result is not None:
        raise ResultError(
            f"gave {described(result)}, a bootstrap has no result",
            hint="return nothing, or a Later that is completed with nothing; raise where it fails",
        )


def _deadline(op: BoundOp) -> int:
    """Returns the deadline of an op that may answer later, as stamped by the compiler; nanoseconds, or 0."""
    text = op.spec.meta.get(keys.DEADLINE_NS_KEY, "0")
    if not text.isdigit():
        raise OpError(f"deadline {text!r} is not a number of nanoseconds", where=op.spec.name)
    return int(text)
