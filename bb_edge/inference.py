"""Opens a compiled model as a function, without a network.

>>> import bb_edge                                             # doctest: +SKIP
>>> model = bb_edge.open_model("build/classify.edge.onnx")     # doctest: +SKIP
>>> y = model(x)                                               # doctest: +SKIP

Inputs are NumPy arrays of the shapes and dtypes in `model.inputs`; numbers and lists of them become arrays of
the declared dtype. What that dtype does not hold is refused; a float type rounds.

A target with tensor ops only is given to its backend directly, and no engine is imported. Any other target
runs on a node of its own without peers, so it behaves as in a federation.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.backends.tflite.tuning_files import tuning_of
from bb_edge.input_files import read_artifact
from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_edge.ir.host_arrays import ArrayMisfitError, host_array
from bb_edge.ir.onnx_reader import ModelReadError, read_model
from bb_edge.ir.seals import SealError, check_seal, is_sealed
from bb_edge.ir.type_protos import TypeProtoError, from_type_proto
from bb_edge.ir.types import ValueType, differing_dim, dtype_of_elem, shared_dims

if TYPE_CHECKING:
    from bb_edge.engine.program.program import Program
    from bb_edge.ir.onnx_pb2 import FunctionProto
    from bb_edge.node import Node
    from bb_edge.roles.programs import BackendProgram

__all__ = ["InferenceError", "Model", "open_model"]

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[Sequence[Array]], Mapping[str, Array]]

MAX_BYTES = 1 << 30
"""Bytes of the inputs of one call, of one output, and of what shapes may ask for that depend on data.

It is large, because nothing comes from a network.
"""

MAX_POLLS = 100_000
"""Polls of one call, of a thousand ops each, after which a target is taken for one that never ends."""


class InferenceError(BBError):
    """A model cannot be opened, or its inputs do not fit."""


class Model:
    """One target of an artifact, ready to be called. Not thread-safe: the calls share one memory plan.

    `inputs` maps names to declared types: `.node` has the element type, `.shape` is a tuple of ints and names
    of open dims, or None. `outputs` are names, in order. `program` is the backend program, None if the target
    runs on a node.
    """

    def __init__(
        self,
        target: str,
        inputs: Mapping[str, ValueType],
        outputs: Sequence[str],
        run: Run,
        program: BackendProgram | None = None,
    ) -> None:
        self.target = target
        self.inputs = dict(inputs)
        self.outputs = tuple(outputs)
        self.program = program
        self._run = run
        self._names = tuple(self.inputs)
        self._shared = shared_dims(self.inputs)
        self._declared = [
            (name, dtype_of_elem(value.node.elem_type or 0), value.shape)
            for name, value in self.inputs.items()
        ]

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name}: {declared}" for name, declared in self.inputs.items())
        return f"<Model {self.target}({inputs}) -> {', '.join(self.outputs) or 'nothing'}>"

    def __call__(self, /, *arrays: object, **named: object) -> Any:
        """Runs the model on inputs that are given in order or by name.

        Returns the output, or a dict of outputs by name if there is not exactly one. Raises InferenceError
        where the inputs do not fit, and what the backend or the ops raise.
        """
        if len(arrays) == 1 and not named and isinstance(arrays[0], Mapping):
            hint = "write model(**inputs), or model.run(inputs)"
            raise InferenceError(f"expected arrays, got a {type(arrays[0]).__name__}", self._where, hint)
        if len(arrays) > len(self._names):
            raise InferenceError(f"expected {len(self._names)} inputs, got {len(arrays)}", self._where)
        inputs = dict(zip(self._names, arrays, strict=False))
        for name, value in named.items():
            if name in inputs:
                raise InferenceError(f"input {name!r} is given twice", self._where)
            inputs[name] = value
        outputs = self.run(inputs)
        return outputs if len(self.outputs) != 1 else next(iter(outputs.values()))

    def run(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Runs the model on inputs by name, and returns all outputs by name, as fresh arrays.

        Raises what a call raises.
        """
        named: object = inputs
        if type(named) is not dict and not isinstance(named, Mapping):
            what = f"expected a dict of inputs by name, got {type(named).__name__}"
            raise InferenceError(
                what, self._where, "write run({name: array}), or call it with arrays: model(x)"
            )
        if len(inputs) != len(self._names) or any(name not in inputs for name in self._names):
            missing = [name for name in self._names if name not in inputs]
            unknown = [name for name in inputs if name not in self.inputs]
            faults = [f"input {name!r} is missing" for name in missing[:1]]
            faults += [f"it has no input {name!r}" for name in unknown[:1]]
            raise InferenceError(
                "; ".join(faults), self._where, f"its inputs: {', '.join(self._names) or 'none'}"
            )
        arrays = []
        for name, dtype, shape in self._declared:
            try:
                arrays.append(host_array(inputs[name], dtype, shape))
            except ArrayMisfitError as error:
                raise InferenceError(error.what, f"input {name!r}", error.hint) from error
        if self._shared:
            shapes = {name: array.shape for name, array in zip(self._names, arrays, strict=True)}
            if differing := differing_dim(self._shared, shapes):
                hint = "dimensions of one name must be equal"
                raise InferenceError(differing, self._where, hint)
        return dict(self._run(arrays))

    @property
    def _where(self) -> str:
        return f"{self.target} ({', '.join(self._names) or 'no inputs'})"


def open_model(
    artifact: str | os.PathLike[str] | bytes | Program,
    target: str | None = None,
    *,
    components: Mapping[str, Mapping[str, object]] | None = None,
) -> Model:
    """Opens a compiled artifact (a path, its bytes, or what `load` returned) and makes a target callable.

    `target` can be left out if the artifact has only one. `components` overrides the configuration of slots,
    for example `{"backend": {"arena_limit": 1 << 20}}`. Raises InferenceError, and what `load` and `install`
    raise.
    """
    # The objects made here live on, so runs of the garbage collector would only cost time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _open(artifact, target, components or {})
    finally:
        if collecting:
            gc.enable()


def _open(
    artifact: str | os.PathLike[str] | bytes | Program,
    target: str | None,
    components: Mapping[str, Mapping[str, object]],
) -> Model:
    if not isinstance(artifact, bytes | str | os.PathLike):
        from bb_edge.engine.program.program import Program

        other: object = artifact
        if not isinstance(other, Program):
            hint = "give a path, the bytes of an artifact, or what bb_edge.load returned"
            raise InferenceError(f"{type(other).__name__} is not an artifact", "open_model", hint)
        return _on_a_node(artifact, target, components)
    data = artifact
    tuning = None
    if not isinstance(data, bytes):
        tuning = tuning_of(data)
        data = read_artifact(data)
    model = None if components else _without_engine(data, target, tuning)
    if model is not None:
        return model
    from bb_edge.loading import load

    return _on_a_node(load(data), target, components)


# --- targets with tensor ops only -----------------------------------------------------------------


def _without_engine(data: bytes, target: str | None, tuning: str | None) -> Model | None:
    """The model on its backend alone; None if it needs an engine, or anything is unusual.

    `load` and `install` report what is wrong then.
    """
    sealed = is_sealed(data)
    try:
        if sealed:
            check_seal(data)
        proto: Any = read_model(data)
    except (ModelReadError, SealError):
        return None
    meta = {entry.key: entry.value for entry in proto.metadata_props}
    if meta.get(keys.COMPILED_KEY) != (keys.SEALED_VERSION if sealed else keys.COMPILED_VERSION):
        return None
    if not sealed and keys.DIGEST_KEY in meta:
        return None
    mains = [f for f in proto.functions if any(p.key == keys.ENTRY_KEY for p in f.metadata_props)]
    main = mains[0] if len(mains) == 1 and target in (None, mains[0].name) else None
    if main is None or not main.node or not main.input or not _has_tensor_ops_only(main):
        return None
    bindings = {key: value for key, value in meta.items() if key.startswith(keys.BINDING_PREFIX)}
    default = f"{keys.BINDING_PREFIX}{main.name}.{keys.ROLE_BACKEND}"
    if set(bindings) != {default} or any(
        f.name == main.name + keys.BOOTSTRAP_SUFFIX for f in proto.functions
    ):
        return None
    role, _, rest = bindings[default].partition("|")
    from bb_edge.backends import backend_class
    from bb_edge.roles.errors import RoleError

    kind = backend_class(rest.partition("|")[0])
    if role != keys.ROLE_BACKEND or kind is None or _configured(main):
        return None
    functions = {(f.domain, f.name): f for f in proto.functions}
    declared = {info.name: info.type for info in main.value_info}
    try:
        inputs = {name: from_type_proto(declared[name]) for name in main.input}
        backend = kind(tensor_bytes=MAX_BYTES)
        if tuning is not None:
            backend.take_tuning(tuning)
        program = backend.prepare(main, functions)
    except (KeyError, TypeProtoError, RoleError):
        return None
    outputs = tuple(main.output)
    run = program.run
    return Model(main.name, inputs, outputs, lambda arrays: dict(zip(outputs, run(arrays))), program)  # noqa: B905


def _has_tensor_ops_only(main: FunctionProto) -> bool:
    domains = (keys.ONNX_DOMAIN, keys.ONNX_DOMAIN_ALIAS, keys.BACKEND_DOMAIN)
    return all(node.domain in domains for node in main.node)


def _configured(main: FunctionProto) -> bool:
    """Whether the backend is configured, by anything but an empty CBOR map."""
    return any(a.name == keys.ROLE_BACKEND and a.s not in (b"", b"\xa0") for a in main.attribute_proto)


# --- all other targets ----------------------------------------------------------------------------


def _bootstrapped(node: Node, target: str) -> int:
    """Runs the bootstraps of a node before its first call; returns the node's time after them.

    Raises InferenceError where one fails, needs an input, or waits for something that never comes.
    """
    from bb_edge.engine.entries.bootstrap import BootstrapAll, MissingInput
    from bb_edge.engine.steps import BootstrapComplete

    try:
        node.run_bootstrap(BootstrapAll())
    except MissingInput as error:
        raise InferenceError(
            error.what, f"{target}, bootstrap", "install it as a node: bb_edge.install, Node.run_bootstrap"
        ) from error
    clock = 0
    while any(not state.status.over for state in node.bootstraps):
        clock += 1
        for step in node.poll(clock):
            if isinstance(step, BootstrapComplete) and step.failed:
                raise InferenceError(f"its bootstrap failed: {step.reason}", target, "give it what it needs")
        due = node.next_deadline_ns()
        if due is not None and clock < MAX_POLLS:
            clock = max(clock, due)
        elif any(not state.status.over for state in node.bootstraps):
            raise InferenceError("its bootstrap waits for something that never comes", target)
    return clock


def _on_a_node(program: Program, target: str | None, components: Mapping[str, Mapping[str, object]]) -> Model:
    from dataclasses import replace

    from bb_edge.engine.config import NodeConfig
    from bb_edge.engine.steps import AppEvent, ExecutionEnded, ExecutionStarved, OpFailed
    from bb_edge.installer import install
    from bb_edge.ir.ids import PeerId

    names = list(program.targets)
    if target is None and len(names) != 1:
        raise InferenceError(
            "the artifact has several targets", "open_model", f"name one: {', '.join(names)}"
        )
    chosen = target or names[0]
    # One caller, one call at a time, values of any size.
    config = replace(
        NodeConfig.edge(),
        max_executions=1,
        max_children=1,
        invoke_inputs=1024,
        invoke_bytes=MAX_BYTES,
        app_event_bytes=MAX_BYTES,
        tensor_bytes=MAX_BYTES,
    )
    node = install(PeerId.from_name("local"), (), program, [chosen], config, components=components, seed=0)
    graph = program.graphs[program.targets[node.targets[0]].main]
    inputs, outputs = tuple(graph.inputs), tuple(graph.outputs)
    clock = _bootstrapped(node, chosen)

    def run(arrays: Sequence[Array]) -> Mapping[str, Array]:
        nonlocal clock
        number = node.invoke(node.targets[0], dict(zip(inputs, arrays, strict=True)))
        results: dict[str, Array] = {}
        for _ in range(MAX_POLLS):
            clock += 1
            for step in node.poll(clock):
                if isinstance(step, AppEvent):
                    if step.omitted_bytes:
                        raise InferenceError(
                            f"output {step.topic!r} has {step.omitted_bytes} bytes, {MAX_BYTES} at most",
                            chosen,
                            "let the program return a smaller value",
                        )
                    results[step.topic] = step.value  # type: ignore[assignment]
                elif isinstance(step, OpFailed):
                    raise InferenceError(step.text, f"{chosen}, {step.op}") from step.error
                elif isinstance(step, ExecutionStarved):
                    ops = ", ".join(step.ops[:3])
                    raise InferenceError(
                        f"{ops} never got all inputs",
                        chosen,
                        "it waits for peers, which a call does not have",
                    )
                elif isinstance(step, ExecutionEnded) and step.execution == number:
                    lacking = [name for name in outputs if name not in results]
                    if lacking:
                        raise InferenceError(
                            f"it ended without its output {', '.join(map(repr, lacking))}",
                            chosen,
                            "a call needs all outputs; `Node.invoke` gives those that come",
                        )
                    return {name: _owned(results[name], arrays) for name in outputs}
            due = node.next_deadline_ns()
            if due is None:
                raise InferenceError("it waits for something that a call does not bring", chosen)
            clock = max(clock, due)
        raise InferenceError(f"it has not ended after {MAX_POLLS} polls", chosen)

    return Model(node.targets[0], graph.input_types, outputs, run)


def _owned(value: Any, inputs: Sequence[Array]) -> Any:
    """An array of the caller's own; constants of the program and inputs are copied."""
    if not isinstance(value, np.ndarray):
        return value
    return value if value.flags.writeable and all(value is not a for a in inputs) else value.copy()
