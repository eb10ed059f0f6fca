"""The gradient of a model with respect to its input, for whoever has computed that input."""

from __future__ import annotations

from collections.abc import Sequence

from bb_edge.ir import types
from bb_host.errors import LearnError
from bb_host.ir.text.printer import print_type
from bb_host.learn.autodiff import Gradient, differentiate
from bb_host.learn.onnx_import import ImportedModel

_FLOATS = (types.TENSOR_F32, types.TENSOR_F64, types.TENSOR_F16)


def with_input_gradient(model: ImportedModel, wrt: Sequence[str]) -> Gradient:
    """The gradient with respect to the parameters `wrt` and, last, to the model's input.

    LearnError for an input of integers or bools, and for one that the output does not depend on;
    NotDifferentiableError for an operator on the way that has no gradient rule.
    """
    (name,) = model.inputs
    known = model.function.types[name]
    where = f"the gradient of its input {name!r}"
    if known.node not in _FLOATS:
        raise LearnError(
            f"its input is {print_type(known)}, which has no gradient",
            where,
            "cut the model behind what looks the integers up: that half keeps them, the other gets floats",
        )
    gradient = differentiate(model.function, (*wrt, name))
    end = dict(gradient.unreached).get(name)
    if end is not None:
        raise LearnError(
            f"no gradient reaches it: it ends at {end or 'the graph'}",
            where,
            "cut the model behind that operator",
        )
    return gradient
