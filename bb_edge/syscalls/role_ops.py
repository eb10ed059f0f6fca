"""Role ops: one call of a Contract method of the component that the slot is bound to (semantics §8)."""

from __future__ import annotations

from typing import Any

from bb_edge.engine.binding import BindEnv, Run
from bb_edge.engine.executions import BoundOp
from bb_edge.engine.parking import PENDING, OpError
from bb_edge.ir import keys, types
from bb_edge.ir.opsets import AttrKind, Effect, OpDef
from bb_edge.roles import method_name, offers
from bb_edge.roles.completion import Later


def attributes(op: BoundOp, definition: OpDef) -> dict[str, object]:
    """The op's attributes as keyword arguments: texts decoded, the catalog's defaults filled in."""
    found: dict[str, object] = {}
    for attr in definition.attrs:
        value = op.spec.attrs.get(attr.name)
        if value is None:
            if attr.required:
                raise OpError(f"attribute {attr.name} is missing", where=op.spec.name)
            value = attr.default
        if attr.kind is AttrKind.STRING and isinstance(value, bytes):
            value = value.decode()
        if value is not None:
            found[attr.name] = value
    return found


def bind(op: BoundOp, env: BindEnv) -> Run:
    """Binds a role op. OpError where the slot has no component, or the component does not offer the op."""
    definition = op.spec.definition
    assert definition is not None
    slot = op.spec.meta.get(keys.SLOT_KEY, "")
    engine = env.engine
    index = engine.slots.get((env.graph.target, slot))
    if index is None:
        raise OpError(
            f"slot {slot!r} is bound to nothing", where=op.spec.name, hint="bind it at compile time"
        )
    component = engine.components[index]
    if not offers(component, op.spec.op_type):
        raise OpError(f"{component.TYPE_NAME} does not offer {op.spec.op_type}", where=f"slot {slot!r}")
    op.component = op.touches = index
    op.busy_key = -1 if component.concurrent or component.shared else index
    op.writes = definition.effect is Effect.WRITE and not component.shared
    op.yields_command = bool(definition.outputs) and definition.outputs[0].type == types.COMMAND_ID.id
    method = getattr(component, method_name(op.spec.op_type))
    keywords = attributes(op, definition)
    several = len(op.outs) > 1

    def run(ctx: Any, *inputs: object) -> object:
        result = method(ctx, *inputs, **keywords)
        token = ctx.later_token
        if token:
            ctx.later_token = 0
            if isinstance(result, Later):
                return PENDING
            engine.parking.withdraw(token)
        if several or not isinstance(result, tuple) or not definition.outputs:
            return result
        # A node may leave trailing outputs of a several-output op unnamed; a PeerIdVec is one value.
        return result[0] if len(definition.outputs) > 1 else result

    return run
