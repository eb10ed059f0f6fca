"""The first half of planning: prepares every node for the shapes of its inputs.

Results that follow from constants and shapes are computed here. A result that can be a view of its input
becomes one, and costs nothing at run time. The fit ends at a node whose result's shape depends on data;
`program.py` goes on there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bb_edge.backends.flat_graph import OMITTED, FlatGraph, FlatNode
from bb_edge.ir.quiet import hush, unhush
from bb_edge.ir.tensors import Array
from bb_edge.roles.errors import BackendError, BackendRunError, TensorBytesError, UnsupportedOpsError
from bb_kernels import KernelError, KernelMemoryError, Prepared, TensorSpec, UnsupportedOpError, evaluate
from bb_kernels import prepare as prepare_kernel

__all__ = [
    "STAGE_BYTES",
    "Alias",
    "Buffer",
    "Fitted",
    "Step",
    "Value",
    "copy_of",
    "copy_run",
    "failed",
    "fit",
    "fold_constants",
    "unallocatable",
    "wants_binding",
]

STAGE_BYTES = 32 * 1024
"""Bytes up to which inputs and results are copied for a kernel that can be bound to fixed arrays.

The copy into and out of the arena then costs less than making the kernel's views at each run. The two were
measured to cost the same at about 64 KiB; this is half of it.
"""

_BYTES_PER_USE = 4096
"""Bytes that can be copied in the time that setting one argument takes at each run, about 0.2 µs."""

_MAX_VIEWS = 16
"""Views of views before one is copied; views of the caller's arrays are made again at each run."""

_FOLD_BYTES = 64 * 1024 * 1024
"""Bytes above which a constant is not computed ahead, because a small graph can ask for any size."""

Alias = Callable[[Array], Array]


# Plain classes and named tuples, because every cold start pays for their creation: a frozen dataclass with
# slots takes a hundred times as long as a class and ten times as long as a named tuple.


class Value:
    """What planning knows of a value; `array`, `buffer` or `source` says where it is stored."""

    __slots__ = ("array", "buffer", "constant", "probe", "source", "spec", "views")

    def __init__(
        self,
        spec: TensorSpec,
        array: Array | None = None,
        constant: bool = False,
        buffer: int = -1,
        source: int = -1,
        views: tuple[Alias, ...] = (),
        probe: Array | None = None,
    ) -> None:
        self.spec = spec
        self.array = array  # a constant or a resident input
        self.constant = constant  # whether the contents of `array` never change
        self.buffer = buffer  # the number of its own buffer, else -1
        self.source = source  # the position of the caller's input, else -1
        self.views = views  # from the buffer or source to this value
        self.probe = probe  # an array with the value's strides, to see which views are possible


class Step:
    """One kernel call: `inputs` are values, `outputs` and `scratch` buffers."""

    __slots__ = ("inputs", "node", "outputs", "prepared", "scratch")

    def __init__(
        self,
        prepared: Prepared,
        inputs: list[Value | None],
        outputs: list[int | None],
        node: FlatNode | None,
    ) -> None:
        self.prepared = prepared
        self.inputs = inputs
        self.outputs = outputs
        self.node = node
        self.scratch: list[int] = []


class Buffer:
    """Memory that is alive from step `first` to step `last`."""

    __slots__ = ("external", "first", "last", "root", "spec")

    def __init__(self, spec: TensorSpec, first: int, last: int) -> None:
        self.spec = spec
        self.first = first
        self.last = last
        self.external = -1  # the position of the caller's output that it is, else -1
        self.root = -1  # the buffer whose memory it reuses, else -1


class Fitted:
    """A graph fitted to shapes, up to `stop`: the index of the first dynamic node, or the number of nodes."""

    # A plain class, as others on the way to a first result: making a NamedTuple takes thirty times as long.
    __slots__ = ("buffers", "dynamic", "folded", "graph", "n_inputs", "steps", "stop", "values")

    def __init__(
        self,
        graph: FlatGraph,
        values: dict[int, Value],
        steps: list[Step],
        buffers: list[Buffer],
        n_inputs: int,
        stop: int,
        dynamic: Prepared | None = None,
        folded: int = 0,
    ) -> None:
        self.folded = folded  # bytes of constants that were computed for these shapes
        self.graph = graph
        self.values = values
        self.steps = steps
        self.buffers = buffers
        self.n_inputs = n_inputs
        self.stop = stop
        self.dynamic = dynamic


def unallocatable(nbytes: int, where: str, error: Exception) -> BackendRunError:
    """The error for an array that NumPy does not make: there is no such memory, or no such shape."""
    return BackendRunError(f"{nbytes} bytes cannot be allocated: {error}", where, "feed smaller inputs")


def _probe(spec: TensorSpec, where: str) -> Array:
    """An array of this shape and dtype whose contents nobody reads or writes, so that it takes no memory."""
    try:
        return np.empty(spec.shape, spec.dtype)
    except (MemoryError, ValueError, OverflowError) as error:
        raise unallocatable(spec.nbytes, where, error) from error


def failed(error: KernelError, where: str, taken: int = 0) -> BackendError:
    """Converts the error of a kernel to one of the backend; `taken` bytes were allocated before it."""
    if isinstance(error, KernelMemoryError):
        return TensorBytesError(error.requested + taken, error.available + taken, where)
    if isinstance(error, UnsupportedOpError):
        return UnsupportedOpsError((error.op_type,), where, str(error))
    return BackendRunError(str(error), where)


def _prepare(node: FlatNode, inputs: Sequence[Value | None], most: int = 0, taken: int = 0) -> Prepared:
    """The kernel of a node. Its tables may take `most` bytes, `taken` of which are gone; 0 does not bound."""
    if most and taken >= most:
        raise TensorBytesError(taken, most, node.where)
    try:
        return prepare_kernel(
            node.op_type,
            node.version,
            node.attrs,
            [None if v is None else v.spec for v in inputs],
            [v.array if v is not None and v.constant else None for v in inputs],
            max(1, len(node.outputs)),
            most=most - taken,
        )
    except KernelError as error:
        raise failed(error, node.where, taken) from error


def _known(array: Array, constant: bool = True) -> Value:
    return Value(TensorSpec(array.dtype, array.shape), array, constant)


def _evaluate(node: FlatNode, prepared: Prepared, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
    token = hush()
    try:
        return evaluate(prepared, inputs)
    except KernelError as error:
        raise failed(error, node.where) from error
    except (MemoryError, ValueError) as error:
        raise unallocatable(prepared.nbytes, node.where, error) from error
    finally:
        unhush(token)


def _fold(node: FlatNode, prepared: Prepared, inputs: Sequence[Value | None]) -> tuple[Array, ...] | None:
    """The node's results if they follow from constants and shapes, else None."""
    if prepared.values:
        return prepared.values
    if prepared.dynamic or not all(v is None or v.constant for v in inputs):
        return None
    if prepared.nbytes > _FOLD_BYTES:
        return None
    results = _evaluate(node, prepared, [None if v is None else v.array for v in inputs])
    for result in results:
        result.setflags(write=False)
    return results


def _view(value: Value, alias: Alias) -> Value | None:
    """A view of the value; None if its strides do not allow it."""
    if len(value.views) >= _MAX_VIEWS:
        return None
    base = value.array if value.array is not None else value.probe
    assert base is not None
    try:
        probe = alias(base)
    except (KernelError, ValueError):  # NumPy has no array of that rank
        return None
    spec = TensorSpec(probe.dtype, probe.shape)
    if value.array is not None:
        return Value(spec, probe, value.constant)
    return Value(spec, None, False, value.buffer, value.source, (*value.views, alias), probe)


def fold_constants(graph: FlatGraph) -> FlatGraph:
    """Computes the nodes that depend on constants only, for any shapes of the inputs."""
    constants = dict(graph.constants)
    kept = []
    for node in graph.nodes:
        if node.bodies or not all(value == OMITTED or value in constants for value in node.inputs):
            kept.append(node)
            continue
        inputs = [None if value == OMITTED else _known(constants[value]) for value in node.inputs]
        prepared = _prepare(node, inputs)
        view = (
            _view(inputs[0], prepared.alias) if prepared.alias is not None and inputs[0] is not None else None
        )
        results = _fold(node, prepared, inputs) if view is None or view.array is None else (view.array,)
        if results is None:
            kept.append(node)
            continue
        constants.update((v, a) for v, a in zip(node.outputs, results, strict=False) if v != OMITTED)
    needed = {value for node in kept for value in node.inputs} | set(graph.outputs)
    return FlatGraph(
        graph.name,
        graph.inputs,
        graph.outputs,
        tuple(kept),
        {value: array for value, array in constants.items() if value in needed},
        graph.input_names,
        graph.output_names,
        graph.n_values,
    )


def fit(
    graph: FlatGraph, specs: Sequence[TensorSpec], resident: Mapping[int, Array], most: int = 0
) -> Fitted:
    """Prepares every node for inputs of these shapes and dtypes.

    `resident` maps inputs to arrays whose contents may change; `specs` are those of the other inputs, in
    order. `most` bounds the bytes of every node's results, 0 does not. Raises BackendRunError where the
    inputs do not fit the graph, and TensorBytesError beyond `most`.
    """
    return _Fitting(graph, specs, resident, most).run()


class _Fitting:
    def __init__(
        self, graph: FlatGraph, specs: Sequence[TensorSpec], resident: Mapping[int, Array], most: int
    ) -> None:
        self.graph = graph
        self.most = most
        self.folded = 0
        self.values: dict[int, Value] = {v: _known(a) for v, a in graph.constants.items()}
        self.values.update((v, _known(a, constant=False)) for v, a in resident.items())
        self.steps: list[Step] = []
        self.buffers: list[Buffer] = []
        self.inputs: list[Value] = []  # in the caller's order
        self.n_inputs = len(specs)
        self.staged: dict[int, int] = {}  # caller's input → the buffer of its copy
        self.uses: list[int] = []  # how many arguments each input is
        counts = Counter(value for node in graph.nodes for value in node.inputs)
        passed = (v for v in graph.inputs if v not in resident)
        for position, (value, spec) in enumerate(zip(passed, specs, strict=True)):
            self.values[value] = Value(spec, source=position, probe=_probe(spec, f"graph {graph.name!r}"))
            self.inputs.append(self.values[value])
            self.uses.append(counts[value])

    def run(self) -> Fitted:
        for index, node in enumerate(self.graph.nodes):
            if node.bodies:
                return self._fitted(index, None)
            inputs = [None if v == OMITTED else self.values[v] for v in node.inputs]
            prepared = _prepare(node, inputs, self.most, self.folded if self.most else 0)
            if prepared.dynamic:
                return self._fitted(index, prepared)
            self._take(node, prepared, inputs)
        return self._fitted(len(self.graph.nodes), None)

    def _fitted(self, stop: int, dynamic: Prepared | None) -> Fitted:
        steps, buffers = self.steps, self.buffers
        return Fitted(self.graph, self.values, steps, buffers, self.n_inputs, stop, dynamic, self.folded)

    def _take(self, node: FlatNode, prepared: Prepared, inputs: list[Value | None]) -> None:
        if prepared.alias is not None and inputs[0] is not None:
            view = _view(inputs[0], prepared.alias)
            if view is not None:
                self.values[node.outputs[0]] = view
                return
        if self.most and prepared.nbytes + self.folded > self.most:
            raise TensorBytesError(prepared.nbytes + self.folded, self.most, node.where)
        folded = _fold(node, prepared, inputs)
        if folded is not None:
            self.folded += sum(array.nbytes for array in folded)
            for value, array in zip(node.outputs, folded, strict=False):
                if value != OMITTED:
                    self.values[value] = _known(array)
            return
        inputs = [self._stage(v, wants_binding(prepared)) for v in inputs]
        step = Step(prepared, inputs, [], node)
        for position, spec in enumerate(prepared.outputs):
            value = node.outputs[position] if position < len(node.outputs) else OMITTED
            if value == OMITTED:
                step.outputs.append(None)
                continue
            buffer = self._buffer(spec)
            step.outputs.append(buffer)
            self.values[value] = Value(spec, buffer=buffer, probe=_probe(spec, node.where))
        step.scratch = [self._buffer(spec) for spec in prepared.scratch]
        self._append(step)

    def _append(self, step: Step) -> None:
        now = len(self.steps)
        self.steps.append(step)
        for value in step.inputs:
            if value is not None and value.buffer >= 0:
                self.buffers[value.buffer].last = now

    def _buffer(self, spec: TensorSpec) -> int:
        now = len(self.steps)
        self.buffers.append(Buffer(spec, now, now))
        return len(self.buffers) - 1

    def _stage(self, value: Value | None, bound: bool) -> Value | None:
        """Replaces a small input of the caller by a copy in the arena, if that is faster."""
        if value is None or value.source < 0:
            return value
        base = self.inputs[value.source]
        if value.source not in self.staged:
            nbytes = base.spec.nbytes
            often = self.uses[value.source] >= 3 + nbytes // _BYTES_PER_USE
            if nbytes > STAGE_BYTES or not (bound or often):
                return value
            self.staged[value.source] = self._buffer(base.spec)
            self._append(Step(copy_of(base.spec), [base], [self.staged[value.source]], None))
        return Value(value.spec, buffer=self.staged[value.source], views=value.views, probe=value.probe)


def wants_binding(prepared: Prepared) -> bool:
    """Whether binding the kernel to fixed arrays saves more than a copy costs.

    It does if the kernel makes views or sets up products; elementwise kernels, which may run in place, have
    little to set up.
    """
    return prepared.binder is not None and not prepared.inplace


def copy_of(spec: TensorSpec) -> Prepared:
    """A kernel that copies an array of this shape and dtype."""
    return Prepared((spec,), copy_run)


def copy_run(source: Array, target: Array) -> None:
    """Copies an array; `np.copyto` with its arguments in the order of kernels."""
    np.copyto(target, source)
