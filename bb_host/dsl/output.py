"""Handles of recorded values: what DSL calls take and return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np

from bb_edge.ir import types
from bb_edge.ir.suggestions import suggestion
from bb_edge.ir.types import TypeNode, ValueType
from bb_host.author_lines import authoring_error
from bb_host.dsl.numpy_names import numpy_alternative
from bb_host.dsl.tape import Tape
from bb_host.errors import UnknownAttributeError, ValueTypeError
from bb_host.ir.program import Array

Literal: TypeAlias = "int | float | bool | Array | np.generic | Sequence[int] | Sequence[float]"
"""Numbers that become constants where an op wants a tensor."""

Value: TypeAlias = "Output | Literal"
"""What a tensor input takes."""

_Operator: TypeAlias = "Callable[[Output, Value], Output]"


_FLOATS = (types.TENSOR_F32, types.TENSOR_F64, types.TENSOR_F16)

_LISTS = {
    types.PEER_ID_VEC: "g.peer_count(peers) counts them, g.peer_at(peers, i) takes one",
    types.ADDRESS_VEC: "g.address_at(addresses, 0) takes one",
}
"""What to do instead of counting a list or going through it, by its type."""

_FAR = int(np.iinfo(np.int64).max)
"""Beyond the end of every axis."""


def _bound(number: object) -> int:
    """A bound or a step of a slice; what lies beyond 64 bits lies beyond the end as well."""
    if isinstance(number, (int, np.integer)) and not isinstance(number, bool):
        return max(-_FAR, min(int(number), _FAR))
    raise authoring_error(
        ValueTypeError, f"a slice goes by whole numbers, not by {number!r}", _index_hint(number)
    )


def _index_hint(entry: object) -> str:
    if entry is None:
        return "a new axis is g.onnx.unsqueeze(x, [0])"
    if entry is Ellipsis:
        return "write one slice per axis: x[:, 0]"
    if isinstance(entry, (bool, np.bool_)):
        return "True and False choose nothing here: g.onnx.where(condition, x, y), or x[0], x[1]"
    if isinstance(entry, (float, str)):
        return "write whole numbers: x[0], x[1:3]"
    return "use g.onnx.gather(x, indices), or g.onnx.slice for bounds that are values"


def _pair(first: Output, second: Output) -> tuple[Output, Output]:
    """Results of one expression, of which either may go unread."""
    for value in (first, second):
        value.graph.may_go_unread.append(value)
    return first, second


def _operator(what: str) -> tuple[_Operator, _Operator]:
    """Python's operator of two operands, and the same with the value on the right.

    `what`: the ONNX operator that it records, or its own symbol where the element type decides.
    """
    if not what.isalpha():
        return (
            lambda self, other: self._by_element(what, self, other),
            lambda self, other: self._by_element(what, other, self),
        )

    def left(self: Output, other: Value) -> Output:
        graph = self.graph
        if not isinstance(other, Output) or other.graph is not graph:
            graph = self._graph_with(what, other)
        return graph.onnx_op(what, (self, other))

    def right(self: Output, other: Value) -> Output:
        graph = self.graph
        if not isinstance(other, Output) or other.graph is not graph:
            graph = self._graph_with(what, other)
        return graph.onnx_op(what, (other, self))

    return left, right


def _refused(what: str, hint: str) -> Callable[..., NoReturn]:
    """A method for what would need numbers."""

    def refuse(self: Output, *args: object, **kwargs: object) -> NoReturn:
        raise self._refusal(what, hint)

    return refuse


@dataclass(slots=True, eq=False, repr=False)
class Output:
    """A value of a graph: no data, only a name-to-be and a type.

    Operators record ONNX ops, elementwise as in NumPy:

    - `+ - * @ -x abs(x)`, `< > <= >=`, slicing; `==` is Equal and `!=` its Not, both BOOL.
    - `/` is Div on floats; integers are refused (ONNX rounds toward zero). `**` is Pow of one element type.
    - `//` is Div on unsigned integers, and on floats what NumPy gives; signed integers are refused (ONNX
      rounds toward zero).
    - `%` has the sign of the divisor, as in Python: Mod on integers; on floats Mod with `fmod`, corrected.
    - `& | ^ ~` are logical on BOOL and bitwise on integers.

    A number beside a value becomes a constant of the same element type (F32 where that is not known). Two
    handles are the same value where `a is b`, and `id(a)` is a key of a dict or set. What cannot be recorded
    (`bool(x)`, `float(x)`, `len(x)`, `hash(x)`, iteration, NumPy's methods and functions) raises
    ValueTypeError or UnknownAttributeError at the author's line, which names what to use instead.
    """

    graph: Tape[Output]
    type: ValueType
    hint: str
    line: tuple[str, int]
    parts: tuple[ValueType, ...] = ()
    _array: Array | None = None
    """Of a constant."""

    # NumPy leaves `array + output` to the output, and asks `__array__` for anything else.
    __array_priority__ = 1000.0

    @property
    def is_constant(self) -> bool:
        """Whether its numbers are known at recording."""
        return self._array is not None

    @property
    def node(self) -> TypeNode:
        """The type without its shape."""
        return self.type.node

    @property
    def shape(self) -> tuple[int | str | None, ...] | None:
        """The shape as far as it is known at recording; None for unknown rank."""
        return self.type.shape

    @shape.setter
    def shape(self, value: object) -> NoReturn:
        raise authoring_error(
            ValueTypeError, "values do not change, nor does their shape", "use g.onnx.reshape(x, shape)"
        )

    def __repr__(self) -> str:
        return f"<{self.hint}: {self.type}>"

    def _by_element(self, symbol: str, left: Value, right: Value) -> Output:
        return self._graph_with(symbol, right if left is self else left).by_element(symbol, left, right)

    def _graph_with(self, what: str, other: object) -> Tape[Output]:
        """The innermost graph of two operands. ValueTypeError where the other one is None."""
        if isinstance(other, Output):
            outer: Tape[Output] | None = other.graph
            while outer is not None:
                if outer is self.graph:
                    return other.graph
                outer = outer.parent
        elif other is None:
            raise authoring_error(
                ValueTypeError,
                f"{what}: one operand is None, the other {self!r}",
                "a call that yields nothing returned it; `x is None` asks whether there is a value",
            )
        return self.graph

    # --- operators

    __add__, __radd__ = _operator("Add")
    __sub__, __rsub__ = _operator("Sub")
    __mul__, __rmul__ = _operator("Mul")
    __matmul__, __rmatmul__ = _operator("MatMul")
    __gt__, __lt__ = _operator("Greater")[0], _operator("Less")[0]
    __ge__, __le__ = _operator("GreaterOrEqual")[0], _operator("LessOrEqual")[0]
    __floordiv__, __rfloordiv__ = _operator("//")
    __mod__, __rmod__ = _operator("%")
    __and__, __rand__ = _operator("&")
    __or__, __ror__ = _operator("|")
    __xor__, __rxor__ = _operator("^")

    def __truediv__(self, other: Value) -> Output:
        return self._divide(self, other)

    def __rtruediv__(self, other: Value) -> Output:
        return self._divide(other, self)

    def _divide(self, left: Value, right: Value) -> Output:
        if self.type.node in _FLOATS:  # the other one is of the same type, or is refused
            other = right if left is self else left
            return self._graph_with("Div", other).onnx_op("Div", (left, right))
        return self._by_element("/", left, right)

    def __divmod__(self, other: Value) -> tuple[Output, Output]:
        return _pair(self // other, self % other)

    def __rdivmod__(self, other: Value) -> tuple[Output, Output]:
        return _pair(self.__rfloordiv__(other), self.__rmod__(other))

    def __pow__(self, other: Value, modulo: object = None) -> Output:
        if modulo is not None:
            raise authoring_error(ValueTypeError, "pow(x, y, z) cannot be recorded", "write x**y % z")
        return self._by_element("**", self, other)

    def __rpow__(self, other: Value) -> Output:
        return self._by_element("**", other, self)

    def __neg__(self) -> Output:
        return self.graph.onnx_op("Neg", (self,))

    def __pos__(self) -> Output:
        return self

    def __abs__(self) -> Output:
        return self.graph.onnx_op("Abs", (self,))

    def __invert__(self) -> Output:
        return self.graph.by_element("~", self, self)

    def __ne__(self, other: Value) -> Output:  # type: ignore[override]
        equal = self.equal(other)
        return equal.graph.onnx_op("Not", (equal,))

    def equal(self, other: Value) -> Output:
        """Elementwise `==`, BOOL."""
        return self._graph_with("Equal", other).onnx_op("Equal", (self, other))

    __eq__ = equal  # type: ignore[assignment]

    def __hash__(self) -> int:
        raise self._refusal(
            "a look-up in a set or dict",
            "record a choice: x == item, g.onnx.where(…), g.onnx.gather(table, x); id(x) tells handles apart",
        )

    # --- parts

    def __getitem__(self, key: int | slice | tuple[int | slice, ...]) -> Output:
        """NumPy's basic indexing by numbers and slices, one entry per leading axis."""
        if self.node is types.ADDRESS_VEC:
            raise authoring_error(
                ValueTypeError, f"{self!r} has no parts by index", "take one: g.address_at(addresses, 0)"
            )
        entries = key if isinstance(key, tuple) else (key,)
        starts: list[int] = []
        ends: list[int] = []
        axes: list[int] = []
        steps: list[int] = []
        drop: list[int] = []
        sizes = () if self.shape is None else self.shape[: len(entries)]
        known = len(sizes) == len(entries) and all(isinstance(size, int) for size in sizes)
        gather = not known and self.node is not types.PEER_ID_VEC
        for axis, entry in enumerate(entries):
            if isinstance(entry, slice):
                step = 1 if entry.step is None else _bound(entry.step)
                if step == 0:
                    raise authoring_error(
                        ValueTypeError,
                        "a slice has a step of 0",
                        "leave it out, or say 1, or -1 from the end",
                    )
                if entry.start is None and entry.stop is None and step == 1:
                    continue
                start = _bound(entry.start) if entry.start is not None else (0 if step > 0 else _FAR)
                end = _bound(entry.stop) if entry.stop is not None else (_FAR if step > 0 else -_FAR)
            elif isinstance(entry, (int, np.integer)) and not isinstance(entry, bool):
                self._within(int(entry), axis)
                drop.append(axis)
                if gather:
                    continue
                start, end, step = int(entry), (int(entry) + 1 if entry != -1 else _FAR), 1
            else:
                raise authoring_error(
                    ValueTypeError, f"an index is a number or a slice, not {entry!r}", _index_hint(entry)
                )
            for target, number in ((starts, start), (ends, end), (axes, axis), (steps, step)):
                target.append(number)
        found: Output = self
        if axes:
            found = self.graph.onnx_op("Slice", (found, starts, ends, axes, steps))
        if gather:  # an axis of open size may be too short, which only Gather finds
            for axis in reversed(drop):
                found = self.graph.onnx_op("Gather", (found, int(entries[axis])), axis=axis)  # type: ignore[arg-type]
            return found
        return self.graph.onnx_op("Squeeze", (found, drop)) if drop else found

    def _within(self, index: int, axis: int) -> None:
        """ValueTypeError for an index outside of a size that is known."""
        shape = self.type.shape
        size = None if shape is None or axis >= len(shape) else shape[axis]
        if isinstance(size, int) and not -size <= index < size:
            raise authoring_error(
                ValueTypeError,
                f"index {index} is out of range: axis {axis} of {self!r} has {size} elements",
                f"give an index from {-size} to {size - 1}" if size else "",
            )

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise authoring_error(
            ValueTypeError, "values do not change", "build a new one, e.g. with g.onnx.where"
        )

    def __delitem__(self, key: object) -> NoReturn:
        raise authoring_error(ValueTypeError, "values do not change", "take the parts that stay: x[1:]")

    # --- what Python and NumPy would want numbers for

    def _refusal(self, what: str, hint: str) -> ValueTypeError:
        return authoring_error(
            ValueTypeError, f"{what}: {self!r} has no numbers while a program is recorded", hint
        )

    def __bool__(self) -> NoReturn:
        raise authoring_error(
            ValueTypeError,
            f"{self!r} has no truth value while a program is recorded",
            "record g.onnx.where(…) or g.onnx.if_(…), join conditions with & | ~, find a handle with `is`",
        )

    def __iter__(self) -> Iterator[Output]:
        if self.node in _LISTS:
            raise authoring_error(
                ValueTypeError,
                f"{self!r} has no items while a program is recorded: each run has a list of its own",
                _LISTS[self.node],
            )
        # Typed as if it could: `weights, n = r.answer` is a tuple where the reply was a list.
        raise authoring_error(
            ValueTypeError,
            f"{self!r} is one value and cannot be unpacked",
            "take parts with x[0], x[1:3] or g.onnx.split(x, …)",
        )

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise authoring_error(
            ValueTypeError, f"{self!r} is a value, not a function", "call g.onnx.…, a slot's method or g.call"
        )

    __lshift__ = __rlshift__ = _refused(
        "<<", "use g.onnx.bit_shift(x, n, direction='LEFT') on unsigned integers"
    )
    __rshift__ = __rrshift__ = _refused(
        ">>", "use g.onnx.bit_shift(x, n, direction='RIGHT') on unsigned integers"
    )
    __reversed__ = _refused("reversed(x)", "use x[::-1]")
    __contains__ = _refused(
        "`in`", "record x == item and reduce it: g.onnx.reduce_max(g.onnx.cast(x == item, 'I32'))"
    )

    __enter__ = __exit__ = _refused(
        "`with`", "what runs after a value takes it as after=; g.rounds, g.loop, g.when and g.at open blocks"
    )

    def __len__(self) -> NoReturn:
        hint = _LISTS.get(self.node, "x.shape[0] where it is known, else g.onnx.shape(x)[0]")
        raise self._refusal("len(x)", hint)

    __float__ = _refused("float(x)", "use g.onnx.cast(x, to='F32')")
    __int__ = _refused("int(x)", "use g.onnx.cast(x, to='I64')")
    __index__ = _refused(
        "an index or a count", "use g.onnx.gather, g.onnx.slice or g.onnx.loop, which take values"
    )
    __complex__ = _refused("complex(x)", "programs hold no complex numbers")
    __round__ = _refused("round(x)", "use g.onnx.round(x), which rounds halves to even")
    __floor__ = _refused("math.floor(x)", "use g.onnx.floor(x)")
    __ceil__ = _refused("math.ceil(x)", "use g.onnx.ceil(x)")
    __trunc__ = _refused("math.trunc(x)", "use g.onnx.cast(x, to='I64'), which rounds toward zero")
    __array__ = _refused(
        "a NumPy function", "use the operators, or g.onnx.… (g.onnx.add, g.onnx.reduce_mean)"
    )

    def __format__(self, spec: str) -> str:
        if spec:
            raise self._refusal(f"format {spec!r}", "send its value to the host: g.app_emit(…)")
        return repr(self)

    def __array_function__(
        self, func: Callable[..., object], kinds: object, args: object, kwargs: object
    ) -> NoReturn:
        name = func.__name__
        raise self._refusal(f"np.{name}(…)", numpy_alternative(name) or "use the operators, or g.onnx.…")

    if not TYPE_CHECKING:  # mypy finds unknown attributes by itself

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            if name == "sender":
                hint = "values that arrive have one: what g.net_out returns, r.value, r.answer"
            else:
                hint = numpy_alternative(name) or suggestion(name, ("node", "shape", "type", "equal"))
            raise authoring_error(
                UnknownAttributeError, f"{self!r} is a recorded value and has no .{name}", hint
            )
