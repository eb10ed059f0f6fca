"""Removes ops that hand their input on.

1. `Identity`; `Dropout` of inference whose mask nobody reads; `Cast` to the type that the value has;
`Concat`, `Sum`, `Max`, `Min`, `Mean` of one input; `Transpose` that permutes nothing. 2. `Reshape`,
`Flatten`, `Squeeze`, `Unsqueeze`, `Expand`, `Pad`, `Slice`, `Tile` whose result has the shape of its input,
all dims known (padding nothing, repeating nothing, cutting nothing with steps of 1). 3. `Relu`, `Abs`,
`Ceil`, `Floor`, `Round`, `Sign` of their own result. 4. Readers of the result read the input. A result that
is an output of the function gives its name to the input where an op of this function makes that and it is not
an output itself; else the op stays.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from bb_host.ir.program import Function, Op
from bb_host.ir.queries import is_onnx
from bb_host.ir.values import Values, rename_values

_SAME_SHAPE = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Tile"})
_OF_ONE = frozenset({"Concat", "Sum", "Max", "Min", "Mean"})
_IDEMPOTENT = frozenset({"Relu", "Abs", "Ceil", "Floor", "Round", "Sign"})


def run(function: Function) -> Function:
    """The function without the ops that do nothing; itself where there are none."""
    values = Values(function)
    names: dict[str, str] = {}
    removed: set[int] = set()
    outputs = set(function.outputs)
    promoted: dict[str, str] = {}  # value → the output whose name it takes over
    for op in function.ops:
        if not _does_nothing(op, values):
            continue
        source, result = op.inputs[0], op.outputs[0]
        while source in names:
            source = names[source]
        if result in outputs:
            maker = values.maker.get(source)
            if maker is None or id(maker) in removed or source in outputs or source in promoted:
                continue
            promoted[source] = result
        else:
            names[result] = source
        removed.add(id(op))
    if not removed:
        return function
    shorter = function.with_ops(op for op in function.ops if id(op) not in removed)
    shorter = rename_values(rename_values(shorter, names), promoted)
    return shorter.with_ops(
        dataclasses.replace(op, outputs=tuple(promoted.get(name, name) for name in op.outputs))
        if any(name in promoted for name in op.outputs)
        else op
        for op in shorter.ops
    )


def _does_nothing(op: Op, values: Values) -> bool:
    if not is_onnx(op) or not op.inputs or not op.inputs[0]:
        return False
    kind = op.op_type
    if kind == "Identity":
        return True
    if kind == "Dropout":
        unread = all(not values.uses[name] for name in op.outputs[1:] if name)
        flag = values.constants.get(op.inputs[2]) if len(op.inputs) > 2 and op.inputs[2] else np.False_
        return unread and flag is not None and not flag.any()
    if kind == "Cast":
        elem = values.elem_type(op.inputs[0])
        return elem is not None and elem == op.attrs.get("to")
    if kind in _OF_ONE:
        return len(op.inputs) == 1
    if kind in _IDEMPOTENT:
        maker = values.maker.get(op.inputs[0])
        return maker is not None and is_onnx(maker) and maker.op_type == kind
    if kind == "Transpose":
        perm = op.attrs.get("perm")
        if isinstance(perm, list):
            return perm == list(range(len(perm)))
        return (values.rank(op.inputs[0]) or 2) <= 1
    before, after = values.shape(op.inputs[0]), values.shape(op.outputs[0])
    if before is None or before != after:
        return False
    if kind in _SAME_SHAPE:
        return True
    if kind == "Slice":
        return _steps_forward(op, values)
    return kind == "Pad" and _pads_nothing(op, values)


def _steps_forward(op: Op, values: Values) -> bool:
    if len(op.inputs) < 5 or not op.inputs[4]:
        return True
    steps = values.constants.get(op.inputs[4])
    return steps is not None and bool((steps == 1).all())


def _pads_nothing(op: Op, values: Values) -> bool:
    pads = op.attrs.get("pads")
    if isinstance(pads, list):
        return not any(pads)
    known = values.constants.get(op.inputs[1]) if len(op.inputs) > 1 else None
    return known is not None and not known.any()
