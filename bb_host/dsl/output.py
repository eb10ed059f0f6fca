"""Handles of recorded values: what DSL calls take and return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeAlias, overload

import numpy as np

from bb_edge.ir.types import TypeNode, ValueType
from bb_host.dsl.errors import AnswerModeError, ValueTypeError, authoring_error
from bb_host.program import Array

if TYPE_CHECKING:
    from bb_host.dsl.recorder import Recorder

Literal: TypeAlias = "int | float | bool | Array | np.generic | Sequence[int] | Sequence[float]"
"""Numbers that become constants where an op wants a tensor."""

Value: TypeAlias = "Output | Literal"
"""What a tensor input takes."""


class Output:
    """A value of a graph: no data, only a name-to-be and a type.

    Arithmetic records ONNX ops: `+ - * / ** @ -x abs(x) < > <= >=` and slicing. A number beside it becomes a
    constant of the same element type (F32 where that is not known). `==` compares handles; use `equal`.
    """

    __slots__ = ("graph", "hint", "line", "parts", "type")
    __array_ufunc__ = None  # `array + output` asks the output, not each element

    def __init__(self, graph: Recorder, type: ValueType, hint: str, line: tuple[str, int]) -> None:
        self.graph = graph
        self.type = type
        self.hint = hint
        self.line = line
        self.parts: tuple[ValueType, ...] = ()

    @property
    def node(self) -> TypeNode:
        """The type without its shape."""
        return self.type.node

    @property
    def shape(self) -> tuple[int | str | None, ...] | None:
        """The shape as far as it is known at recording; None for unknown rank."""
        return self.type.shape

    def __repr__(self) -> str:
        return f"<{self.hint}: {self.type}>"

    def __bool__(self) -> NoReturn:
        raise authoring_error(
            ValueTypeError,
            f"{self!r} has no truth value while a program is recorded",
            "record g.onnx.where(…) or g.onnx.if_(…)",
        )

    def __iter__(self) -> Iterator[Output]:
        # Typed as if it could: `weights, n = r.answer` is a tuple where the reply was a list.
        raise authoring_error(ValueTypeError, f"{self!r} is one value and cannot be unpacked")

    def _binary(self, op: str, left: Value, right: Value) -> Output:
        return self.graph.onnx_op(op, (left, right))

    def __add__(self, other: Value) -> Output:
        return self._binary("Add", self, other)

    def __radd__(self, other: Value) -> Output:
        return self._binary("Add", other, self)

    def __sub__(self, other: Value) -> Output:
        return self._binary("Sub", self, other)

    def __rsub__(self, other: Value) -> Output:
        return self._binary("Sub", other, self)

    def __mul__(self, other: Value) -> Output:
        return self._binary("Mul", self, other)

    def __rmul__(self, other: Value) -> Output:
        return self._binary("Mul", other, self)

    def __truediv__(self, other: Value) -> Output:
        return self._binary("Div", self, other)

    def __rtruediv__(self, other: Value) -> Output:
        return self._binary("Div", other, self)

    def __pow__(self, other: Value) -> Output:
        return self._binary("Pow", self, other)

    def __rpow__(self, other: Value) -> Output:
        return self._binary("Pow", other, self)

    def __matmul__(self, other: Value) -> Output:
        return self._binary("MatMul", self, other)

    def __rmatmul__(self, other: Value) -> Output:
        return self._binary("MatMul", other, self)

    def __neg__(self) -> Output:
        return self.graph.onnx_op("Neg", (self,))

    def __abs__(self) -> Output:
        return self.graph.onnx_op("Abs", (self,))

    def __gt__(self, other: Value) -> Output:
        return self._binary("Greater", self, other)

    def __lt__(self, other: Value) -> Output:
        return self._binary("Less", self, other)

    def __ge__(self, other: Value) -> Output:
        return self._binary("GreaterOrEqual", self, other)

    def __le__(self, other: Value) -> Output:
        return self._binary("LessOrEqual", self, other)

    def equal(self, other: Value) -> Output:
        """Elementwise `==`, BOOL."""
        return self._binary("Equal", self, other)

    def __getitem__(self, key: int | slice | tuple[int | slice, ...]) -> Output:
        """NumPy's basic indexing by numbers and slices, one entry per leading axis."""
        entries = key if isinstance(key, tuple) else (key,)
        starts: list[int] = []
        ends: list[int] = []
        axes: list[int] = []
        steps: list[int] = []
        drop: list[int] = []
        for axis, entry in enumerate(entries):
            if isinstance(entry, slice):
                step = 1 if entry.step is None else entry.step
                if entry.start is None and entry.stop is None and step == 1:
                    continue
                far = np.iinfo(np.int64).max
                start = entry.start if entry.start is not None else (0 if step > 0 else far)
                end = entry.stop if entry.stop is not None else (far if step > 0 else -far)
            elif isinstance(entry, int):
                start, end, step = entry, (entry + 1 if entry != -1 else np.iinfo(np.int64).max), 1
                drop.append(axis)
            else:
                raise authoring_error(
                    ValueTypeError, f"an index is a number or a slice, not {entry!r}", "use g.onnx.gather(…)"
                )
            for target, number in ((starts, start), (ends, end), (axes, axis), (steps, step)):
                target.append(int(number))
        found: Output = self
        if axes:
            found = self.graph.onnx_op("Slice", (found, starts, ends, axes, steps))
        return self.graph.onnx_op("Squeeze", (found, drop)) if drop else found

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise authoring_error(
            ValueTypeError, "values do not change", "build a new one, e.g. with g.onnx.where"
        )


class Received(Output):
    """A value as its receiver sees it; `sender` is the peer that sent it (a PeerIdVec of one)."""

    __slots__ = ("sender",)

    def __init__(self, graph: Recorder, type: ValueType, hint: str, line: tuple[str, int]) -> None:
        super().__init__(graph, type, hint, line)
        self.sender: Output


class Answers(tuple[Output, ...]):
    """Several values that arrive together, in the order of sending; `sender` is who sent them."""

    sender: Output

    @classmethod
    def of(cls, values: Sequence[Output], sender: Output) -> Answers:
        found = cls(values)
        found.sender = sender
        return found


@overload
def one_or_many(values: Sequence[Output], sender: Output, single: bool) -> Received | Answers: ...
@overload
def one_or_many(values: Sequence[Output], sender: None, single: bool) -> Output | tuple[Output, ...]: ...
def one_or_many(
    values: Sequence[Output], sender: Output | None, single: bool
) -> Received | Answers | Output | tuple[Output, ...]:
    """The one value, where the author sent one; the tuple, where a list was sent."""
    if sender is None:
        return values[0] if single else tuple(values)
    if not single:
        return Answers.of(values, sender)
    value = values[0]
    assert isinstance(value, Received)
    value.sender = sender
    return value


def refuse_unreplied(what: str, port: str) -> AnswerModeError:
    """For reading what only a reply makes."""
    return authoring_error(
        AnswerModeError, f"request {port!r}: .{what} is read before .reply(…) says what an answer is"
    )
