"""What gradient rules write with: ops of the backward graph, and what is known of the forward graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bb_edge.ir import keys
from bb_edge.ir.types import ValueType, dtype_of_elem, elem_of_dtype
from bb_host.errors import NotDifferentiableError
from bb_host.ir.program import Array, AttrValue, Function, Op
from bb_host.ir.rename import fresh_name
from bb_host.ir.values import constant_array
from bb_host.learn.shapes import Shape


class GradientBuilder:
    """Collects the ops of a backward graph.

    Rules name forward values freely; `autodiff` later turns those that are read into inputs. `forward` may
    grow while rules run: further outputs of its ops (`extra_output`) and shapes of its values.
    """

    def __init__(self, forward: Function, types: Mapping[str, ValueType], inputs: Sequence[str]) -> None:
        self.forward = list(forward.ops)
        self.ops: list[Op] = []
        self.opsets = forward.opsets
        self._types = dict(types)
        self._inputs = tuple(inputs)  # forward values that the backward graph has anyway
        self._names = {*forward.inputs, *(v for op in forward.ops for v in (*op.inputs, *op.outputs))}
        self._numbers: dict[str, int] = {}  # of the next value of a name: a loop's steps make thousands
        self._memo: dict[object, str] = {}
        self._constants: dict[str, Array] = {}
        self._real: dict[str, np.dtype[np.generic]] = {}
        self._expanded: dict[str, str] = {}  # what Expand has written, and of what
        for op in forward.ops:
            value = constant_array(op)
            if value is not None:
                self._constants[op.outputs[0]] = value

    # --- writing ----------------------------------------------------------------------------------

    def fresh(self, base: str) -> str:
        """A value name that nothing has."""
        name = fresh_name(base, self._names, self._numbers.get(base, 2))
        if name != base:
            self._numbers[base] = int(name.rpartition("_")[2]) + 1
        return name

    def op(self, op_type: str, *inputs: str, **attrs: AttrValue) -> str:
        """Writes an op with one output and returns that; the same op twice is written once."""
        return self.op_n(op_type, 1, *inputs, **attrs)[0]

    def op_n(self, op_type: str, n_outputs: int, *inputs: str, **attrs: AttrValue) -> tuple[str, ...]:
        """Writes an op with several outputs."""
        key = (op_type, n_outputs, inputs, repr(sorted(attrs.items())))
        if key in self._memo:
            return tuple(self._memo[key].split("\0"))
        base = "g_" + op_type.lower()
        outputs = tuple(self.fresh(base) for _ in range(n_outputs))
        self.ops.append(Op(op_type, keys.ONNX_DOMAIN, inputs, outputs, dict(attrs)))
        self._memo[key] = "\0".join(outputs)
        if op_type == "Expand":
            self._expanded[outputs[0]] = inputs[0]
        return outputs

    def times(self, dy: str, factor: str, y: str) -> str:
        """dy · factor, for `dy` in the shape of `y`.

        A gradient that was only expanded to that shape is multiplied as it was, where the factor has the
        shape: an Expand costs as much as the product.
        """
        shape = self.shape(y)
        if shape is not None and None not in shape and self.shape(factor) == shape:
            dy = self._expanded.get(dy, dy)
        return self.op("Mul", dy, factor)

    def const(self, array: Array) -> str:
        """A constant; equal ones are one."""
        key = ("const", array.dtype.str, array.shape, array.tobytes())
        if key not in self._memo:
            name = self.fresh("g_const")
            self.ops.append(Op("Constant", keys.ONNX_DOMAIN, (), (name,), {"value": array}))
            self._memo[key] = name
            self._constants[name] = array
        return self._memo[key]

    def ints(self, *values: int) -> str:
        """A 1-D int64 constant."""
        return self.const(np.array(values, np.int64))

    def scalar(self, value: float, like: str) -> str:
        """A 0-D constant of the dtype of a forward value's gradient."""
        return self.const(np.array(value, self._real.get(like, self.dtype(like))))

    def extra_output(self, op: Op, position: int, base: str) -> str:
        """A further output of a forward op, the one that stands at `position`."""
        mark = next(v for v in op.outputs if v)
        index = next(i for i, known in enumerate(self.forward) if mark in known.outputs)
        known = self.forward[index]
        outputs = [*known.outputs, *[""] * (position + 1 - len(known.outputs))]
        if not outputs[position]:
            outputs[position] = self.fresh(base)
            self.forward[index] = dataclasses.replace(known, outputs=tuple(outputs))
        return outputs[position]

    # --- knowing ----------------------------------------------------------------------------------

    def shape(self, value: str) -> Shape | None:
        known = self._types.get(value)
        return None if known is None else known.shape

    def dtype(self, value: str) -> np.dtype[np.generic]:
        known = self._types.get(value)
        dtype = None
        if known is not None and known.node.elem_type is not None:
            dtype = dtype_of_elem(known.node.elem_type)
        return np.dtype(np.float32) if dtype is None else dtype

    def is_float(self, value: str) -> bool:
        return self.dtype(value).kind == "f"

    def stand_for(self, op: Op) -> None:
        """The op's integers stand for real values, those of its first input: gradients pass them."""
        source = op.inputs[0]
        for value in op.outputs:
            self._real[value] = self._real.get(source, self.dtype(source))

    def stands_for_reals(self, value: str) -> bool:
        """Whether a value holds integers through which a gradient passes."""
        return value in self._real

    def maker(self, value: str) -> Op | None:
        """The forward op that writes a value."""
        return next((op for op in self.forward if value in op.outputs), None)

    def rank(self, op: Op, value: str) -> int:
        """The rank of a forward value; NotDifferentiableError where it is unknown."""
        shape = self.shape(value)
        if shape is None:
            hint = (
                "export it so that shapes are known: torch.onnx.export(…, dynamo=True), or all input"
                " dimensions but the batch as numbers"
            )
            raise NotDifferentiableError(op, f"the rank of {value!r} is unknown", hint)
        return len(shape)

    def static_dims(self, op: Op, value: str, axes: Sequence[int]) -> list[int]:
        """Dims of a forward value that must be numbers."""
        shape = self.shape(value)
        dims = [None if shape is None else shape[axis] for axis in axes]
        found = [d for d in dims if isinstance(d, int)]
        if len(found) != len(dims):
            raise NotDifferentiableError(
                op, f"the shape of {value!r} is not known in numbers", "give the model's input a fixed shape"
            )
        return found

    def constant(self, value: str) -> Array | None:
        """The contents of a constant forward value."""
        return self._constants.get(value)

    def int_list(self, op: Op, attribute: str, position: int) -> list[int] | None:
        """Integers given as attribute (older opsets) or as constant input; None where they are left out."""
        if attribute in op.attrs:
            given = op.attrs[attribute]
            assert isinstance(given, list)
            return [int(v) for v in given]
        if position >= len(op.inputs) or not op.inputs[position]:
            return None
        known = self.constant(op.inputs[position])
        if known is None:
            raise NotDifferentiableError(op, f"its {attribute} are computed", "make them constants")
        return [int(v) for v in known.reshape(-1)]

    def cast(self, value: str, dtype: np.dtype[np.generic]) -> str:
        """Converted to a dtype."""
        elem = elem_of_dtype(dtype)
        assert elem is not None
        return self.op("Cast", value, to=elem)

    # --- shapes in the graph ----------------------------------------------------------------------

    def shape_value(self, value: str) -> str:
        """The shape of a forward value as a 1-D int64 value of the backward graph.

        Taken from its type as far as that goes: a symbol is looked up in the shape of an input. Else the
        forward graph hands out the shape.
        """
        pieces: list[str] = []
        run: list[int] = []
        shape = self.shape(value)
        for dim in (None,) if shape is None else shape:
            if isinstance(dim, int):
                run.append(dim)
                continue
            found = self._find_symbol(dim)
            if found is None:
                return self.op("Shape", value) if value in self._inputs else self._forward_shape(value)
            if run:
                pieces.append(self.ints(*run))
                run = []
            pieces.append(self.op("Shape", found[0], start=found[1], end=found[1] + 1))
        if run or not pieces:
            pieces.append(self.ints(*run))
        return pieces[0] if len(pieces) == 1 else self.op("Concat", *pieces, axis=0)

    def _find_symbol(self, symbol: str | None) -> tuple[str, int] | None:
        for name in self._inputs if symbol else ():
            for axis, dim in enumerate(self.shape(name) or ()):
                if dim == symbol:
                    return name, axis
        return None

    def _forward_shape(self, value: str) -> str:
        key = ("forward shape", value)
        if key not in self._memo:
            name = self.fresh(f"{value}_shape")
            self.forward.append(Op("Shape", keys.ONNX_DOMAIN, (value,), (name,)))
            self._memo[key] = name
        return self._memo[key]

    def reshape_like(self, gradient: str, value: str) -> str:
        """The gradient in the shape of a forward value with as many entries."""
        shape = self.shape(value)
        if shape is not None and sum(not isinstance(d, int) for d in shape) <= 1 and 0 not in shape:
            target = self.ints(*(d if isinstance(d, int) else -1 for d in shape))
        else:
            target = self.shape_value(value)
        return self.op("Reshape", gradient, target)

    def zeros_like(self, value: str) -> str:
        """Zeros in the shape of a forward value."""
        return self.op("ConstantOfShape", self.shape_value(value), value=np.zeros(1, self.dtype(value)))

    def reduce_to(self, gradient: str, from_value: str, to_value: str) -> str:
        """Sums a gradient in the shape of `from_value` over the axes along which `to_value` was broadcast."""
        return self._reduced(gradient, from_value, to_value, 0)

    def reduce_leading(self, gradient: str, from_value: str, to_value: str) -> str:
        """Sums a product's gradient over the axes before the last two along which `to_value` was broadcast.

        The gradient's last two axes are those of `to_value`, the others those of `from_value`.
        """
        return self._reduced(gradient, from_value, to_value, 2)

    def _reduced(self, gradient: str, from_value: str, to_value: str, kept: int) -> str:
        """Sums over the axes along which `to_value` was broadcast, but for the last `kept` ones."""
        big, small = self.shape(from_value), self.shape(to_value)
        if big is None or small is None:
            return self._reduce_at_run_time(gradient, to_value)
        lead, dims = len(big) - len(small), small[: len(small) - kept]
        if not _is_settled(big[: len(big) - kept], dims):
            return self._reduce_at_run_time(gradient, to_value)
        ones = [lead + i for i, dim in enumerate(dims) if dim == 1 and big[lead + i] != 1]
        return self._sum_axes(gradient, lead, ones)

    def _sum_axes(self, gradient: str, lead: int, ones: Sequence[int]) -> str:
        """Sums `lead` leading axes away, and `ones` to length 1."""
        axes = [*range(lead), *ones]
        if not axes:
            return gradient
        if not lead:
            return self.op("ReduceSum", gradient, self.ints(*axes), keepdims=1)
        summed = self.op("ReduceSum", gradient, self.ints(*axes), keepdims=0)
        return self.op("Unsqueeze", summed, self.ints(*(i - lead for i in ones))) if ones else summed

    def _reduce_at_run_time(self, gradient: str, to_value: str) -> str:
        """The axes are worked out from the shapes: those where the small shape, with ones put before it,
        differs from the large one.
        """
        big, small = self.op("Shape", gradient), self.shape_value(to_value)
        lead = self.op("Sub", self.op("Shape", big), self.op("Shape", small))
        ones = self.op("ConstantOfShape", lead, value=np.ones(1, np.int64))
        padded = self.op("Concat", ones, small, axis=0)
        differs = self.op("Not", self.op("Equal", big, padded))
        axes = self.op("Squeeze", self.op("NonZero", differs), self.ints(0))
        summed = self.op("ReduceSum", gradient, axes, keepdims=1, noop_with_empty_axes=1)
        return self.op("Reshape", summed, small)


def _is_settled(big: Shape, small: Shape) -> bool:
    """Whether it is known for every axis if it was broadcast."""
    lead = len(big) - len(small)
    if lead < 0:
        return False
    return all(
        isinstance(dim, int) or (dim is not None and dim == big[lead + axis])
        for axis, dim in enumerate(small)
    )
