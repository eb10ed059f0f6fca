"""What a backend makes of a graph: the program that runs it, and the types that both sides name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from bb_edge.roles.errors import BackendError

if TYPE_CHECKING:
    from bb_edge.ir.onnx_pb2 import AttributeProto, FunctionProto, StringStringEntryProto
    from bb_edge.ir.tensors import Array

__all__ = ["BackendAttrs", "BackendProgram", "Functions", "Preparer", "Runner", "Spec", "Tensor", "Wiring"]

Tensor = Any
"""A backend's own handle of a tensor; `np.ndarray` for the NumPy backend."""

Functions = Mapping[tuple[str, str], "FunctionProto"]
"""The functions that a graph may call, by (domain, name)."""


class BackendAttrs(NamedTuple):
    """The attributes and metadata of the node that calls a graph."""

    attributes: Sequence[AttributeProto] = ()
    metadata: Sequence[StringStringEntryProto] = ()


Spec = tuple[tuple[int, ...], "np.dtype[Any]"]
"""The shape and the dtype of an array."""

Runner = Callable[[Sequence["Array"]], Mapping[int, "Array"]]
"""Runs a program on inputs, with outputs that are known; returns the results that it lends, by number."""


class Wiring(NamedTuple):
    """How a program stands in another one.

    Its inputs are what `pick` takes of the other's inputs and the arrays `behind` them: the only item of that
    list, in whose place another one is put where one of them is exchanged. `numbers` are those of its results
    in the other one.
    """

    pick: Callable[[Sequence[Any]], Sequence[Any]]
    behind: Sequence[Sequence[Array]]
    numbers: Sequence[int]


class BackendProgram:
    """A graph that a backend has made ready to run.

    Not thread-safe: a program's memory serves one run at a time. The inputs that `prepare` was given as
    `resident` are read in place at each run and not passed to it. `call(ctx, *arrays) -> array`, where a
    program has it, is `run` for one result without tuples; it is called between the backend's `enter` and
    `leave` only.
    """

    call: Callable[..., Array] | None = None
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Runs the graph on `inputs` in the order of `input_names`; the caller owns the fresh results.

        Raises BackendRunError where shapes or dtypes of the inputs do not fit the graph.
        """
        raise NotImplementedError

    def result_specs(self, inputs: Sequence[Spec]) -> tuple[Spec, ...] | None:
        """Returns shapes and dtypes of the results for inputs of these, without a run; None if not known.

        By default they are not known. Raises BackendRunError where such inputs do not fit the graph.
        """
        return None

    def run_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Runs the graph into C-contiguous arrays that have the results' shapes and dtypes.

        No output may share memory with an input. Raises BackendError where an array does not fit its result.
        """
        for target, value in zip(outputs, self.run(inputs), strict=True):
            if target.shape != value.shape or target.dtype != value.dtype:
                raise BackendError(
                    f"result is {value.dtype}{list(value.shape)}, the array given for it is "
                    f"{target.dtype}{list(target.shape)}"
                )
            np.copyto(target, value)

    def run_lending(
        self, inputs: Sequence[Array], outputs: Sequence[Array], lendable: Collection[int]
    ) -> Mapping[int, Array]:
        """Runs as `run_into` does, and may leave results whose number is in `lendable` where it made them.

        Those results are returned by number, and their outputs are as they were. They lie in the program's
        own memory: the caller changes nothing in them, and reads them until the next run begins. A program
        that lends nothing, as by default, returns an empty mapping. `lendable` can be hashed: it is a range
        or a frozenset.
        """
        self.run_into(inputs, outputs)
        return {}

    def runner(
        self, outputs: Sequence[Array], lendable: Collection[int], wiring: Wiring | None = None
    ) -> Runner:
        """Returns a function of the inputs that does what `run_lending` does with these outputs, each time.

        For who has one place for the results of many runs: a program finds out once how they come there. The
        mapping is the same object as long as what it lends lies where it did. With a `wiring`, the function
        takes the inputs of the program around it, and gives its numbers.
        """
        if wiring is None:
            return partial(self.run_lending, outputs=outputs, lendable=lendable)
        pick, behind, numbers = wiring

        def run(inputs: Sequence[Array]) -> Mapping[int, Array]:
            lent = self.run_lending(pick((*inputs, *behind[0])), outputs, lendable)
            return {numbers[number]: result for number, result in lent.items()}

        return run

    def move_residents(self, numbers: Collection[int]) -> Mapping[int, Array]:
        """Moves residents into memory of the program's own, where it has read them; returns it by number.

        `numbers` count them in the order that `prepare` was given them in; not all of them have to be moved.
        They must be what they were at the last run. Until `return_residents` the program reads those that it
        returns there and not where it was given them, and the caller changes them there. A program that reads
        residents where they are, as by default, returns an empty mapping.
        """
        return {}

    def return_residents(self) -> None:
        """Reads all residents where `prepare` was given them, from the next run on."""

    def input_memory(self, numbers: Collection[int]) -> Mapping[int, Array]:
        """Returns memory in which the program keeps some inputs from run to run, by number; {} by default.

        Given the same array as that input, a run copies nothing.
        """
        return {}


class Preparer(Protocol):
    """What a component may ask of its target's backend: to make a graph ready to run.

    `bb_edge.roles.Backend` is one. Components that need no more than this can be built with any other.
    """

    def prepare(
        self,
        function: FunctionProto,
        functions: Functions | None = None,
        resident: Mapping[str, Array] | None = None,
    ) -> BackendProgram:
        """Makes a function ready to run; see `Backend.prepare`."""
