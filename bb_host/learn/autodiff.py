"""Reverse-mode differentiation of ONNX functions: a graph in, its gradient as two graphs of ordinary ops.

`differentiate` splits training the way the runtime runs it: a forward graph that hands out, behind its
output, the activations which the gradient reads, and a backward graph that takes them. The backward graph
reads as little as it can: what follows from inputs by moving data alone is recomputed, dead ops are dropped,
equal ops are one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from bb_edge.ir import keys
from bb_host.errors import LearnError, NotDifferentiableError, place_of
from bb_host.ir.program import Function, Op
from bb_host.ir.queries import has_subgraph, is_onnx, live, uses
from bb_host.ir.rename import rename_op
from bb_host.learn import (  # noqa: F401 (each fills RULES)
    rules_activation,
    rules_elementwise,
    rules_linear,
    rules_norm,
    rules_places,
    rules_quantized,
    rules_recurrent,
    rules_resample,
    rules_sampling,
    rules_shape,
    rules_window,
)
from bb_host.learn.gradient_builder import GradientBuilder
from bb_host.learn.gradient_rules import CARRIERS, RULES, SHAPE_INPUTS, STOPS
from bb_host.learn.shapes import infer_types, with_types
from bb_host.learn.unrolled_loops import FIXED_LENGTH

MINIMUM_OPSET = 18
"""The gradient's ops take axes as inputs and scatter with a sum."""

_MOVES = frozenset(
    [
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand"),
        *("Identity", "Shape", "Constant", "ConstantOfShape", "Cast"),
    ]
)
"""Forward ops that are done again rather than kept: they move or spread what is there already."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """A function and its gradient.

    `forward`: inputs as given; outputs are the output, then `activations`. `backward`: inputs are those of
    `forward`, then the activations, then the output's gradient; outputs are one gradient per `wrt`, each in
    the shape and dtype of its input. `unreached` names each `wrt` whose gradient is always zero, with the op
    behind which it ends.
    """

    forward: Function
    backward: Function
    wrt: tuple[str, ...]
    activations: tuple[str, ...]
    unreached: tuple[tuple[str, str], ...] = ()


def differentiable_ops() -> frozenset[str]:
    """The operators that have a gradient rule."""
    return frozenset(RULES)


def differentiate(function: Function, wrt: Sequence[str], *, output: str | None = None) -> Gradient:
    """The gradient of a function's first output (or of `output`) with respect to some of its inputs.

    `function` holds ONNX ops alone, its inputs are typed, and static shapes make a better gradient.
    NotDifferentiableError names every op on the way from `wrt` to the output that has no gradient rule, or
    the first whose form has none; LearnError a function whose types do not fit, or whose opset is below 18.
    """
    where = f"function {function.name}"
    for name in wrt:
        if name not in function.inputs:
            raise LearnError(f"{name!r} is not an input of it", where, "differentiate with respect to inputs")
    target = function.outputs[0] if output is None else output
    if target not in function.outputs:
        raise LearnError(f"{target!r} is not an output of it", where)
    if function.opsets.get(keys.ONNX_DOMAIN, 0) < MINIMUM_OPSET:
        found_opset = function.opsets.get(keys.ONNX_DOMAIN, 0)
        what = f"its ONNX opset is {found_opset}, the gradient needs {MINIMUM_OPSET}"
        raise LearnError(what, where, "convert the model, as import_onnx does")
    function = dataclasses.replace(function, ops=live(function.ops, [target]))
    types = infer_types(function)
    g = GradientBuilder(function, types, function.inputs)
    seed = g.fresh(f"d_{target}")
    found = _reverse(g, function.ops, wrt, target, seed)
    gradients = [_zeros(g, v) if found[v] is None else found[v] for v in wrt]
    ops, outputs = _name_outputs(g, [v for v in gradients if v is not None], [f"d_{v}" for v in wrt], {seed})
    ops, activations = _close(g, live(ops, outputs), function.inputs, {seed})
    forward, activations, ops = _hand_out(g, function, target, activations, ops)
    backward = Function(
        f"{function.name}_gradient",
        function.domain,
        (*function.inputs, *activations, seed),
        tuple(outputs),
        ops,
        opsets=dict(function.opsets),
    )
    forward = with_types(forward)
    known = dict(forward.types)
    if target in known:
        known[seed] = known[target]
    declared = {n: known[n] for n in backward.inputs if n in known}
    declared.update((d, types[v]) for d, v in zip(outputs, wrt, strict=True) if v in types)
    backward = with_types(dataclasses.replace(backward, types=declared))
    unreached = tuple((v, _end_of(g, function.ops, v)) for v in wrt if found[v] is None)
    return Gradient(forward, backward, tuple(wrt), tuple(activations), unreached)


def _zeros(g: GradientBuilder, value: str) -> str:
    """Of an input that the output does not depend on."""
    return g.zeros_like(value)


# --- the sweep ------------------------------------------------------------------------------------


def _reverse(
    g: GradientBuilder, ops: Sequence[Op], wrt: Sequence[str], target: str, seed: str
) -> dict[str, str | None]:
    """Runs the rules backwards; the gradient of each `wrt`, None where there is none."""
    wanted = _wanted(g, ops, wrt)
    _refuse_without_rule(ops, wanted, target)
    partial: dict[str, list[str]] = {target: [seed]}
    for op in reversed(ops):
        gradients = [_total(g, partial.pop(v, ())) if v else None for v in op.outputs]
        if op.op_type in STOPS or all(d is None for d in gradients):
            continue
        wants = [_passes(g, op, i, v, wanted) for i, v in enumerate(op.inputs)]
        if not any(wants):
            continue
        write = RULES[op.op_type]
        for value, wants_it, gradient in zip(op.inputs, wants, write(g, op, gradients, wants), strict=True):
            if wants_it and gradient is not None:
                partial.setdefault(value, []).append(gradient)
    return {v: _total(g, partial.get(v, ())) for v in wrt}


def refuse_operators(function: Function, wrt: Sequence[str]) -> None:
    """NotDifferentiableError as `differentiate` raises it, for a function whose types are not known."""
    wanted = set(wrt)
    for op in function.ops:
        if op.op_type not in STOPS and any(_gets(op, i, v, wanted) for i, v in enumerate(op.inputs)):
            wanted.update(v for v in op.outputs if v)
    _refuse_without_rule(function.ops, wanted, function.outputs[0])


def _has_rule(op: Op) -> bool:
    return op.op_type in RULES and is_onnx(op)


def _refuse_without_rule(ops: Sequence[Op], wanted: set[str], target: str) -> None:
    """All operators between what is trained and the output that have no rule, in one error."""
    needed = {target}
    missing: dict[str, list[Op]] = {}
    for op in reversed(ops):
        if op.op_type in STOPS or not needed.intersection(op.outputs) & wanted:
            continue
        read = [v for i, v in enumerate(op.inputs) if _gets(op, i, v, wanted)]
        needed.update(read)
        if read and not _has_rule(op):
            missing.setdefault(op.op_type, []).insert(0, op)
    if not missing:
        return
    order = {id(op): n for n, op in enumerate(ops)}
    groups = sorted(missing.items(), key=lambda item: order[id(item[1][0])])
    first = groups[0][1][0]
    if len(groups) == 1 and len(groups[0][1]) == 1:
        hint = "freeze the parameters before it, or write it in operators that have a rule"
        raise NotDifferentiableError(first, "there is no gradient rule for it", hint)
    named = "; ".join(
        f"{op_type} ({len(found)} times, first at {place_of(found[0])})"
        if len(found) > 1
        else place_of(found[0])
        for op_type, found in groups
    )
    what = f"operators without a gradient rule: {named}"
    hint = "freeze the parameters before them, or write them in operators that have a rule"
    raise NotDifferentiableError(first, what, hint, tuple(n for n, _ in groups), "model")


def _end_of(g: GradientBuilder, ops: Sequence[Op], value: str) -> str:
    """The op behind which the way from a value to the output ends."""
    reached, end = {value}, ""
    for op in ops:
        if not reached.intersection(op.inputs):
            continue
        through = op.op_type not in STOPS and any(
            _passes(g, op, i, v, reached) for i, v in enumerate(op.inputs)
        )
        moved = _moved(g, op) if through else []
        if moved:
            reached.update(moved)
        elif not end:
            end = place_of(op)
    return end


def _gets(op: Op, position: int, value: str, wanted: set[str]) -> bool:
    return value in wanted and position not in SHAPE_INPUTS.get(op.op_type, ())


def _passes(g: GradientBuilder, op: Op, position: int, value: str, wanted: set[str]) -> bool:
    """Whether a gradient passes from the op to a value; to integers only where they are moved."""
    moved = not g.stands_for_reals(value) or op.op_type == "DequantizeLinear" or op.op_type in CARRIERS
    return moved and _gets(op, position, value, wanted)


def _total(g: GradientBuilder, parts: Sequence[str]) -> str | None:
    total: str | None = None
    for part in parts:
        total = part if total is None else g.op("Add", total, part)
    return total


def _wanted(g: GradientBuilder, ops: Sequence[Op], wrt: Sequence[str]) -> set[str]:
    """The values that move when a `wrt` moves."""
    wanted = set(wrt)
    for op in ops:
        if op.op_type in STOPS:
            continue
        _refuse_captures(op, wanted)
        if any(_passes(g, op, i, v, wanted) for i, v in enumerate(op.inputs)):
            wanted.update(_moved(g, op))
    return wanted


def _moved(g: GradientBuilder, op: Op) -> list[str]:
    """The outputs through which a gradient passes: floats, and the integers of a fake quantization."""
    reals = op.op_type == "QuantizeLinear" or (
        op.op_type in CARRIERS and any(g.stands_for_reals(v) for v in op.inputs)
    )
    if reals:
        g.stand_for(op)
    return [v for v in op.outputs if v and (reals or g.is_float(v))]


def _refuse_captures(op: Op, wanted: set[str]) -> None:
    """NotDifferentiableError where a subgraph of the op reads a wanted value: it cannot be passed over."""
    if not has_subgraph(op) or not wanted.intersection(uses(op)):
        return
    what = "its condition is" if op.op_type == "If" else "the number of its steps is"
    raise NotDifferentiableError(
        op,
        f"its subgraph reads what is to be trained, and {what} not known before the model runs",
        "export the model with that choice made, or freeze the parameters before it"
        if op.op_type == "If"
        else f"{FIXED_LENGTH}; or freeze the parameters before it",
    )


# --- tidying --------------------------------------------------------------------------------------


def _name_outputs(
    g: GradientBuilder, values: Sequence[str], names: Sequence[str], given: set[str]
) -> tuple[tuple[Op, ...], list[str]]:
    """Gives the gradients their names; one that is given, or asked for twice, is copied."""
    rename: dict[str, str] = {}
    outputs = [g.fresh(name) for name in names]
    ops = list(g.ops)
    made = {v for op in g.ops for v in op.outputs}
    for value, name in zip(values, outputs, strict=True):
        if value in given or value in rename or value not in made:
            ops.append(Op("Identity", keys.ONNX_DOMAIN, (value,), (name,)))
        else:
            rename[value] = name
    return tuple(rename_op(op, rename) for op in ops), outputs


def _close(
    g: GradientBuilder, ops: Sequence[Op], inputs: Sequence[str], given: set[str]
) -> tuple[tuple[Op, ...], list[str]]:
    """Takes in what backward ops read of the forward graph: recomputed where it is a move, else kept.

    Returns the ops and the values to keep, in the order in which the forward graph makes them.
    """
    producers = {v: op for op in g.forward for v in op.outputs if v}
    made = {v for op in ops for v in op.outputs} | set(inputs) | given
    again: set[str] = set()
    kept: set[str] = set()
    pending = [v for op in ops for v in op.inputs if v and v not in made]
    while pending:
        value = pending.pop()
        if value in made or value in again or value in kept:
            continue
        op = producers[value]
        # The shape of a value that is not here otherwise is kept, not the value.
        if op.op_type in _MOVES and not (op.op_type == "Shape" and op.inputs[0] not in inputs):
            again.update(op.outputs)
            pending.extend(v for v in op.inputs if v)
        else:
            kept.add(value)
    repeated = tuple(op for op in g.forward if not again.isdisjoint(op.outputs))
    activations = [v for op in g.forward for v in op.outputs if v in kept]
    return (*repeated, *ops), activations


def _hand_out(
    g: GradientBuilder, function: Function, target: str, activations: list[str], ops: Sequence[Op]
) -> tuple[Function, list[str], tuple[Op, ...]]:
    """The forward function with its activations as outputs. The output itself is handed out as a copy."""
    extra: list[Op] = []
    if target in activations:
        copy = g.fresh(f"{target}_kept")
        extra.append(Op("Identity", keys.ONNX_DOMAIN, (target,), (copy,)))
        activations = [copy if v == target else v for v in activations]
        ops = [rename_op(op, {target: copy}) for op in ops]
    outputs = (target, *activations)
    forward_ops = live((*g.forward, *extra), outputs)
    return dataclasses.replace(function, outputs=outputs, ops=forward_ops), activations, tuple(ops)
