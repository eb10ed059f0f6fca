"""Runs one flatbuffer, with an interpreter per set of input shapes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.backends.tflite.errors import TFLiteModelError
from bb_edge.backends.tflite.flatbuffer import FlatbufferError
from bb_edge.backends.tflite.memory import Place, are_there, places_of
from bb_edge.backends.tflite.verify import verify
from bb_edge.ir.sha256 import fresh_sha256
from bb_edge.roles.errors import BackendRunError, TensorBytesError
from bb_edge.roles.programs import BackendProgram, Runner, Wiring

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array
    from bb_edge.ir.types import ValueType

__all__ = ["MAX_INTERPRETERS", "TFLiteProgram"]

MAX_INTERPRETERS = 4
"""Interpreters that are allocated at a time, one per set of input shapes; each has its own memory."""

FAILURES = (ValueError, RuntimeError, SystemError, TypeError, MemoryError, OverflowError, LookupError)
"""The exceptions that the Python classes of interpreters raise."""

WATCHED_RUNS = 3
"""Runs of an interpreter after which its memory is taken to stay where it is."""

_Shapes = tuple[tuple[int, ...], ...]
_Feed = tuple[int, "Array", tuple[int, ...], "np.dtype[Any]"]


class _Allocated:
    """An interpreter for some input shapes: its bytes beyond one row, and the memory of its ports.

    Inputs have no places where it does not give one for each, or has moved them; a result has none where it
    is 0-D.
    """

    __slots__ = ("inputs", "interpreter", "needed", "results", "watched")

    def __init__(
        self, interpreter: Any, needed: int, inputs: tuple[Place, ...], results: tuple[Place | None, ...]
    ) -> None:
        self.interpreter, self.needed = interpreter, needed
        self.inputs, self.results = inputs, results
        self.watched = 0  # runs


class TFLiteProgram(BackendProgram):
    """A flatbuffer on an interpreter; `made` counts the interpreters that were allocated.

    `tensor_bytes` bounds the tensors that batches of other sizes than one ask for, 0 does not: a run with a
    larger batch raises TensorBytesError, before an interpreter allocates them, and interpreters for other
    sizes go. Raises TFLiteModelError where
    the bytes, their digest or the number of ports are wrong.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        model: bytes,
        sha256: bytes,
        n_inputs: int,
        n_outputs: int,
        threads: int,
        where: str,
        tensor_bytes: int = 0,
    ) -> None:
        if len(model) < 16 or model[4:8] != b"TFL3":
            raise TFLiteModelError("its model is not a TFLite flatbuffer", where, "compile the program again")
        content = fresh_sha256(len(model))
        content.update(model)
        if content.hexdigest().encode() != sha256.lower():
            raise TFLiteModelError("its model is damaged (sha256)", where, "copy the artifact again")
        try:
            self._row_bytes = verify(model)
        except FlatbufferError as error:
            raise TFLiteModelError(
                f"its model is not sound: {error}", where, "compile it for this release"
            ) from error
        self._make, self._model, self._threads, self._where = make, model, threads, where
        self._tensor_bytes = tensor_bytes
        self._kept: OrderedDict[_Shapes, _Allocated] = OrderedDict()
        self._shapes: _Shapes = ()
        self.made = 0
        try:
            first = make(model_content=model, num_threads=threads)
            inputs, results = first.get_input_details(), first.get_output_details()
            first.allocate_tensors()
        except FAILURES as error:
            raise TFLiteModelError(f"the interpreter refuses it: {error}", where) from error
        if (len(inputs), len(results)) != (n_inputs, n_outputs):
            raise TFLiteModelError(
                f"its model has {len(inputs)} inputs and {len(results)} outputs, its node"
                f" {n_inputs} and {n_outputs}",
                where,
            )
        self.input_names = tuple(str(d["name"]) for d in inputs)
        self.output_names = tuple(str(d["name"]) for d in results)
        self._inputs = tuple(int(d["index"]) for d in inputs)
        self._outputs = tuple(int(d["index"]) for d in results)
        self.ports, self.results = _ports(inputs), _ports(results)
        self._signatures = tuple(shape for _, shape in self.ports)
        self._keep(tuple(tuple(int(n) for n in d["shape"]) for d in inputs), first)
        if n_outputs == 1:
            self.call = self._one if n_inputs == 1 else self._call

    def expect(self, inputs: Sequence[ValueType | None], outputs: Sequence[ValueType | None]) -> None:
        """Raises TFLiteModelError where a port is not of the type that the artifact declares for it."""
        from bb_edge.ir import types

        for kind, ports, declared in (("input", self.ports, inputs), ("output", self.results, outputs)):
            for number, ((dtype, shape), value) in enumerate(zip(ports, declared, strict=True)):
                if value is None or not types.is_subtype(value.node, types.TENSOR):
                    continue
                elem = value.node.elem_type
                wrong = elem and types.dtype_of_elem(elem) != dtype
                if value.shape is not None and not wrong:
                    wrong = len(value.shape) != len(shape) or any(
                        isinstance(wanted, int) and n not in (-1, wanted)
                        for n, wanted in zip(shape, value.shape, strict=True)
                    )
                if wrong:
                    raise TFLiteModelError(
                        f"{kind} {number} of its model is {dtype}{list(shape)}, but is declared as {value}",
                        self._where,
                        "compile the program again",
                    )

    def _keep(self, shapes: _Shapes, interpreter: Any, needed: int = 0) -> None:
        while len(self._kept) >= MAX_INTERPRETERS:
            self._kept.popitem(last=False)
        inputs: list[Place | None] = [None]
        results: tuple[Place | None, ...] = ()
        try:
            inputs = [*places_of(interpreter, self._inputs)]
            results = places_of(interpreter, self._outputs)
        except (*FAILURES, AttributeError):  # a tensor that nothing computes has no memory
            pass
        given = [place for place in inputs if place is not None]
        self._kept[shapes] = _Allocated(
            interpreter, needed, tuple(given if len(given) == len(inputs) else ()), results
        )
        self.made += 1
        self._use(shapes)

    def _use(self, shapes: _Shapes) -> None:
        self._shapes = shapes
        self._kept.move_to_end(shapes)
        used = self._used = self._kept[shapes]
        self._interpreter, self._invoke = used.interpreter, used.interpreter.invoke
        self._set, self._get = used.interpreter.set_tensor, used.interpreter.get_tensor
        self._in, self._out = used.inputs, used.results

    def _switch(self, shapes: _Shapes) -> None:
        if shapes in self._kept:
            self._use(shapes)
            return
        for shape, signature in zip(shapes, self._signatures, strict=True):
            if len(shape) != len(signature) or any(
                s not in (-1, n) for s, n in zip(signature, shape, strict=True)
            ):
                raise BackendRunError(f"expected shape {list(signature)}, got {list(shape)}", self._where)
        rows = [s[0] for s, known in zip(shapes, self._signatures, strict=True) if -1 in known]
        needed = max(rows, default=1) * self._row_bytes
        most = self._tensor_bytes
        if most and needed > most:
            raise TensorBytesError(needed, most, self._where)
        while most and self._kept and needed + sum(kept.needed for kept in self._kept.values()) > most:
            self._kept.popitem(last=False)  # one for other shapes
        try:
            interpreter = self._make(model_content=self._model, num_threads=self._threads)
            for index, shape in zip(self._inputs, shapes, strict=True):
                interpreter.resize_tensor_input(index, shape, strict=True)
            interpreter.allocate_tensors()
            if self._is_lost(interpreter, shapes):
                raise self._empty(shapes)
        except FAILURES as error:
            if any(0 in shape for shape in shapes):
                raise self._empty(shapes) from error
            raise BackendRunError(f"the interpreter refuses these shapes: {error}", self._where) from error
        self._keep(shapes, interpreter, needed)

    def _is_lost(self, interpreter: Any, shapes: _Shapes) -> bool:
        """Whether it made shapes up: XNNPACK leaves those of some layers unset for an input of no rows."""
        return any(0 in shape for shape in shapes) and any(
            size not in (-1, there)
            for (_, known), result in zip(self.results, interpreter.get_output_details(), strict=True)
            for size, there in zip(known, result["shape"], strict=True)
        )

    def _empty(self, shapes: _Shapes) -> BackendRunError:
        empty = next(shape for shape in shapes if 0 in shape)
        what = f"an input of shape {list(empty)} has no values, and a layer of the model runs on none"
        return BackendRunError(what, self._where, "run it where there are rows: g.when(g.onnx.size(x) > 0)")

    def _start(self, inputs: Sequence[Array]) -> None:
        if len(inputs) != len(self._inputs):
            raise BackendRunError(f"expected {len(self._inputs)} inputs, got {len(inputs)}", self._where)
        try:
            for (memory, shape, dtype), array in zip(self._in, inputs):  # noqa: B905 (there may be no places)
                if array is memory:
                    continue
                # The first comparison is quicker, and says it all but for dtypes that are not built-in ones.
                if array.shape != shape or (array.dtype is not dtype and array.dtype != dtype):
                    self._take(inputs)
                    break
                memory[...] = array  # a small array costs np.copyto half as much again
            else:
                if not self._in:
                    self._take(inputs)
            self._invoke()
            if self._used.watched < WATCHED_RUNS:
                self._watch()
        except FAILURES as error:
            raise BackendRunError(f"the interpreter fails: {error}", self._where) from error

    def _watch(self) -> None:
        """Has the interpreter copy from now on where it has moved its memory."""
        used = self._used
        used.watched += 1
        watched = ((self._inputs, used.inputs), (self._outputs, used.results))
        if not all(are_there(used.interpreter, indexes, places) for indexes, places in watched if places):
            self._in = self._out = used.inputs = used.results = ()

    def _take(self, inputs: Sequence[Array]) -> None:
        """Has the interpreter for their shapes copy the inputs. It refuses arrays of other shapes."""
        try:
            for index, array in zip(self._inputs, inputs):  # noqa: B905
                self._set(index, array)
        except FAILURES:
            shapes = tuple([array.shape for array in inputs])
            if shapes == self._shapes:
                raise
            self._switch(shapes)
            self._take(inputs)

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        self._start(inputs)
        if None not in (places := self._out) and places:
            return tuple([place.memory.copy() for place in places if place is not None])
        get = self._get
        try:
            return tuple([get(index) for index in self._outputs])
        except FAILURES as error:
            raise BackendRunError(f"the interpreter fails: {error}", self._where) from error

    def run_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Copies results once, out of the interpreter's memory: gradients are as large as the model."""
        self.run_lending(inputs, outputs, _NOTHING)

    def run_lending(
        self, inputs: Sequence[Array], outputs: Sequence[Array], lendable: Collection[int]
    ) -> Mapping[int, Array]:
        """Lends results as views of the interpreter's memory, where that is known."""
        return self.runner(outputs, lendable)(inputs)

    def runner(
        self, outputs: Sequence[Array], lendable: Collection[int], wiring: Wiring | None = None
    ) -> Runner:
        """Finds out once which results are copied from the interpreter's memory; it is asked for others.

        And which inputs are copied into it, once all that is behind them lies there.
        """
        start, (pick, behind, numbers) = self._start, wiring or _ALONE
        places: object = None  # those that the lists are made for
        copies: list[tuple[Array, Array]] = []  # array, memory
        few: list[tuple[int, Array]] = []  # tensor, array: results without a place, 0-D
        others: list[tuple[int, Array]] = []  # the same, of any shape
        lent: Mapping[int, Array] = _NONE_LENT
        into: object = None  # the memory that the inputs are in, and what is behind them,
        there: Sequence[Array] = ()
        feeds: Sequence[_Feed] | None = None  # for which these are made

        def run(inputs: Sequence[Array]) -> Mapping[int, Array]:
            nonlocal places, lent, into, there, feeds
            if self._in is not into or behind[0] is not there:
                into, there = self._in, behind[0]
                feeds = None if wiring is None else self._feeds(pick, len(inputs), there)
            if feeds is None:
                start(pick((*inputs, *there)))
            else:
                for number, memory, shape, dtype in feeds:
                    array = inputs[number]
                    if array.shape != shape or array.dtype is not dtype:
                        start(pick((*inputs, *there)))  # it says what is wrong, or takes other shapes
                        break
                    memory[...] = array
                else:
                    try:
                        self._invoke()
                    except FAILURES as error:
                        raise BackendRunError(f"the interpreter fails: {error}", self._where) from error
            if places is not self._out:
                places = self._out
                found = self._sort(outputs, lendable, copies, few, others)
                lent = {numbers[n] if numbers else n: view for n, view in found.items()}
            for target, memory in copies:
                target[...] = memory
            get = self._get
            try:
                for index, target in few:
                    target[...] = get(index)
            except FAILURES as error:
                raise BackendRunError(f"the interpreter fails: {error}", self._where) from error
            for index, target in others:
                target[...] = self._asked(index, target)
            return lent

        return run

    def _feeds(
        self, pick: Callable[[Sequence[Any]], Sequence[Any]], count: int, there: Sequence[Array]
    ) -> Sequence[_Feed] | None:
        """Says where each of `count` inputs goes, its number first, where all behind them is in place.

        None where it is not, or the interpreter is still watched.
        """
        if self._used.watched < WATCHED_RUNS:
            return None
        feeds = []
        sources = pick(range(count + len(there)))
        for source, place in zip(sources, self._in):  # noqa: B905 (there may be no places)
            if source < count:
                feeds.append((source, *place))
            elif there[source - count] is not place.memory:
                return None
        return feeds if len(sources) == len(self._in) else None

    def _sort(
        self,
        outputs: Sequence[Array],
        lendable: Collection[int],
        copies: list[tuple[Array, Array]],
        few: list[tuple[int, Array]],
        others: list[tuple[int, Array]],
    ) -> dict[int, Array]:
        """Says how each result comes into the array for it; returns views of those that are lent."""
        copies.clear()
        few.clear()
        others.clear()
        lent: dict[int, Array] = {}
        for number, (index, target) in enumerate(zip(self._outputs, outputs, strict=True)):
            place = self._out[number] if self._out else None
            if place is not None and target.shape == place.shape and target.dtype == place.dtype:
                if number in lendable:
                    lent[number] = place.memory.view()
                    lent[number].setflags(write=False)
                else:
                    copies.append((target, place.memory))
            elif self._out and not target.shape and self.results[number] == (target.dtype, ()):
                few.append((index, target))
            else:
                others.append((index, target))
        return lent

    def _asked(self, index: int, target: Array) -> Array:
        """A result; BackendRunError where the array for it is another one."""
        try:
            result: Array = self._get(index)
        except FAILURES as error:
            raise BackendRunError(f"the interpreter fails: {error}", self._where) from error
        if result.shape != target.shape or result.dtype != target.dtype:
            raise BackendRunError(
                f"result is {result.dtype}{list(result.shape)}, the array given for it is "
                f"{target.dtype}{list(target.shape)}",
                self._where,
            )
        return result

    def input_memory(self, numbers: Collection[int]) -> Mapping[int, Array]:
        """That of an interpreter which stays: of its only shapes, after the runs that it is watched."""
        if (
            any(-1 in shape for shape in self._signatures)
            or self._used.watched < WATCHED_RUNS
            or not self._in
        ):
            return {}
        return {number: self._in[number].memory for number in numbers}

    def _one(self, _ctx: object, array: Array) -> Array:
        """Does what `_call` does for one input, without its loops; most models have one input."""
        if array.shape != self._shapes[0]:
            self._switch((array.shape,))
        return self._call(None, array)

    def _call(self, _ctx: object, *arrays: Array) -> Array:
        self._start(arrays)
        if self._out and (place := self._out[0]) is not None:
            copied: Array = place.memory.copy()
            return copied
        try:
            result: Array = self._get(self._outputs[0])
        except FAILURES as error:
            raise BackendRunError(f"the interpreter fails: {error}", self._where) from error
        return result


_NOTHING: Collection[int] = ()
_ALONE = Wiring(tuple, ((),), ())
_NONE_LENT: Mapping[int, Array] = {}


def _ports(details: Sequence[Mapping[str, Any]]) -> tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]:
    """The dtype and shape of each port; an open dimension is -1."""
    return tuple((np.dtype(d["dtype"]), tuple(int(n) for n in d["shape_signature"])) for d in details)
