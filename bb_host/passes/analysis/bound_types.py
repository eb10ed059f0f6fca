"""What bound components say of the types at their ops' ports: of what they take and of what they yield.

A promise names an op and one of its ports (`Forward.input`). Symbols in its shape are sizes that the ports of
one op share: a model of `F32[N,4]` → `F32[N,2]` yields as many rows as it takes.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cbor2
import numpy as np

from bb_edge.ir import keys, opsets, types
from bb_edge.ir.fault_lines import fault_line
from bb_edge.ir.suggestions import suggestion
from bb_edge.ir.types import TypeNode, ValueType
from bb_edge.roles.class_check import ports_of as ports_of_class
from bb_edge.roles.component import Component
from bb_host.errors import BindingError, ConstructionError, TypeConstraintFailed
from bb_host.ir.construction import class_of
from bb_host.ir.program import Array, AttrValue, Function, Op, Program, RawTensor, Subgraph
from bb_host.ir.text.printer import print_type
from bb_host.passes.analysis.type_terms import Dim, Terms
from bb_host.passes.options import Options, PortPromise

Promises = dict[str, PortPromise]
"""By `"<Op>.<port>"`, for one slot."""


class Bound(NamedTuple):
    """One of the components that serve a slot: on `target`, or on all classes without one of their own."""

    target: str | None
    where: str
    promises: Promises


def promises(program: Program, options: Options) -> dict[str, Promises]:
    """What is known of each slot's ports, by slot: of several components what all of them say."""
    found = {name: agreed([b.promises for b in serving]) for name, serving in bound(program, options).items()}
    return {name: own for name, own in found.items() if own}


def bound(program: Program, options: Options) -> dict[str, list[Bound]]:
    """By slot what serves it: its bindings, and what it was declared with where none is for all classes."""
    found: dict[str, list[Bound]] = {}
    general = {b.slot for b in options.bindings if b.target is None}
    brought = {f.name: f for f in program.functions if f.domain == keys.COMPONENT_DOMAIN}
    for function in program.functions:
        for name, slot in function.slots.items():
            if slot.state is not None and slot.role and name not in found and name not in general:
                own = _of_class(slot.concrete_type, slot.state, f"{slot.where}, slot {name!r}".lstrip(", "))
                if slot.role == keys.ROLE_MODEL:
                    graph, loss = brought.get(f"{name}.forward"), brought.get(f"{name}.loss")
                    own = {**_of_model(slot.state, graph, loss), **own}
                found[name] = [Bound(None, slot.where, own)]
    for binding in options.bindings:
        name = binding.slot
        own = dict(binding.port_types)
        own.update((port, PortPromise(ValueType(node))) for port, node in binding.storage_types.items())
        if binding.role == keys.ROLE_MODEL:
            graphs = {f.name: f for f in binding.functions}
            graph, loss = graphs.get(f"{name}.forward"), graphs.get(f"{name}.loss")
            own = {**_of_model(binding.state, graph, loss), **own}
        found.setdefault(name, []).append(Bound(binding.target, binding.where, own))
    return found


def agreed(several: Sequence[Promises]) -> Promises:
    """What holds of a port whichever of these promises is kept: sizes that differ are open."""
    first, *others = several
    for other in others:
        pairs = [(port, _either(one, other[port])) for port, one in first.items() if port in other]
        first = {port: promise for port, promise in pairs if promise.type.node is not types.ANY}
    return first


def _either(one: PortPromise, other: PortPromise) -> PortPromise:
    if one == other:
        return one
    (node, dims), (node_, dims_) = one.type, other.type
    floating = all(p.floating or p.type.node in _FLOATS for p in (one, other))
    node = types.join(node, node_)
    leading, shape = one.leading or other.leading, None
    if dims is not None and dims_ is not None:
        leading = leading or len(dims) != len(dims_)
        rank = min(len(dims), len(dims_))
        shape = tuple(map(_either_dim, dims[len(dims) - rank :], dims_[len(dims_) - rank :]))
    return PortPromise(
        ValueType(node, shape),
        leading and shape is not None,
        one.or_empty or other.or_empty,
        floating and node not in _FLOATS,
    )


def _either_dim(one: Dim, other: Dim) -> Dim:
    """Symbols stand for one size under both promises where both pairs of them are the same."""
    if one == other:
        return one
    return f"{one}|{other}" if isinstance(one, str) and isinstance(other, str) else None


def _of_model(state: AttrValue, forward: Function | None, loss: Function | None) -> Promises:
    """What a model's graphs and parameters say, whatever its class."""
    found: Promises = {}
    if isinstance(state, Subgraph):
        shared, trained = _elements(state)
        for port in ("Step.grads", "Gradient.gradient"):
            found[port] = PortPromise(ValueType(types.TENSOR_F32, (trained,)))
        vector = ValueType(types.TENSOR_F32, (shared,))
        found["Params.params"] = PortPromise(vector)
        found["LoadParameters.params"] = found["ApplyDelta.delta"] = PortPromise(vector, or_empty=True)
    if forward is None or not forward.outputs:
        return found
    output = forward.types.get(forward.outputs[0])
    if forward.inputs and forward.inputs[0] in forward.types:
        taken = PortPromise(forward.types[forward.inputs[0]])
        for port in (
            "Forward.input",
            "ForwardKeyed.input",
            "Evaluate.input",
            "Train.input",
            "BackwardInput.input_grad",
        ):
            found[port] = taken
    if output is not None:
        for port in ("Forward.output", "ForwardKeyed.output"):
            found[port] = PortPromise(output)
        for op_type in ("Backward", "BackwardKeyed", "BackwardInput"):
            found[f"{op_type}.grad"] = PortPromise(output)
    if loss is not None and len(loss.inputs) == 2 and loss.inputs[1] in loss.types:
        found["Evaluate.target"] = found["Train.target"] = PortPromise(loss.types[loss.inputs[1]])
    return found


def _elements(state: Subgraph) -> tuple[int, int]:
    """How many numbers of a model are sent, and how many there are."""
    sizes = [
        math.prod(tensor.shape) if isinstance(tensor, RawTensor) else int(tensor.size)
        for tensor in state.initializers.values()
    ]
    first, last = (
        int(json.loads(state.config.get(key, "0"))) for key in ("personal_tensors", "personal_statistics")
    )
    return sum(sizes[first : len(sizes) - last]), sum(sizes)


# --- what a component class says --------------------------------------------------------------------------

_FLOAT = "Float"
_FLOATS = frozenset((types.TENSOR_F32, types.TENSOR_F64, types.TENSOR_F16))
_TYPE = re.compile(r"(?P<name>[\w<>]+)(?:\[(?P<dims>[^]]*)\])?")


def _of_class(type_name: str, state: AttrValue, where: str) -> Promises:
    """What the class of a concrete slot says; nothing where this host has no such class."""
    try:
        component = class_of(type_name)
    except ConstructionError as error:
        raise BindingError(error.what, where, error.hint) from error
    stored = storage_types(component, where)
    found = declared_types(component, state, where)
    return {**found, **{port: PortPromise(ValueType(node)) for port, node in stored.items()}}


def storage_types(component: type | None, where: str) -> dict[str, TypeNode]:
    """A component class may say what its outputs are: `STORAGE_TYPES = {"Compress.code": "Tensor<U8>"}`."""
    declared = getattr(component, "STORAGE_TYPES", None)
    if not isinstance(declared, Mapping):
        return {}
    found = {}
    for port, name in declared.items():
        node = types.by_id(str(name))
        if node is None:
            hint = suggestion(name, [known.id for known in types.REGISTRY], "register it, or take one of ")
            raise BindingError(f"STORAGE_TYPES: no type {name!r}", where, hint)
        found[str(port)] = node
    return found


def declared_types(component: type | None, state: AttrValue, where: str) -> Promises:
    """What the class says of a configuration by its class method `port_types(config, tensors)`.

    BindingError where that is not a mapping of ports to types, or raises.
    """
    ask = getattr(component, "port_types", None)
    if not callable(ask):
        return {}
    config, tensors = _construction(state)
    try:
        declared = {str(port): _parsed(str(text)) for port, text in dict(ask(config, tensors)).items()}
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        name = getattr(component, "TYPE_NAME", "") or component
        line = os.path.basename(fault_line(error))
        raise BindingError(
            f"{name}.port_types raises {type(error).__name__}: {error}{f' ({line})' if line else ''}",
            where,
            "return {'<Op>.<port>': 'F32[?,4]'}, and leave out what a configuration does not say",
        ) from error
    if isinstance(component, type) and issubclass(component, Component):
        there = ports_of_class(component)
        for port in declared:
            if port not in there:
                what = f"{component.TYPE_NAME}.port_types: no port {port!r}"
                raise BindingError(what, where, suggestion(port, there, "its ports: "))
    return declared


def _construction(state: AttrValue) -> tuple[Mapping[str, object], Mapping[str, Array]]:
    """Configuration and tensors as the component's `construct` sees them, before the device has a say."""
    if isinstance(state, bytes):
        config = cbor2.loads(state)
        return (config if isinstance(config, dict) else {}), {}
    if isinstance(state, Subgraph):
        tensors = {k: v for k, v in state.initializers.items() if not isinstance(v, RawTensor)}
        return {key: json.loads(value) for key, value in state.config.items()}, tensors
    return {}, ({"value": state} if isinstance(state, np.ndarray) else {})


def _parsed(text: str) -> PortPromise:
    """`F32[?,4]`, `F32[…,4]` (any dimensions before, or `...`), `I64`, `Tensor[n]`, `Float`, `PeerIdVec`."""
    if text == _FLOAT:
        return PortPromise(ValueType(types.TENSOR), floating=True)
    match = _TYPE.fullmatch(text.replace(" ", ""))
    node: TypeNode | None = None
    if match is not None:
        node = types.by_id(f"Tensor<{match['name']}>") or types.by_id(match["name"])
    if match is None or node is None:
        raise ValueError(f"{text!r} is not a type")
    if match["dims"] is None:
        return PortPromise(ValueType(node))
    dims = [d for d in match["dims"].split(",") if d]
    if len(dims) == 1 and "." in dims[0].lstrip("."):
        return PortPromise(ValueType(node), like=_port(dims[0]))
    leading = dims[:1] in (["..."], ["…"])
    return PortPromise(ValueType(node, tuple(_dim(d) for d in dims[leading:])), leading)


def _port(text: str) -> str:
    """`Contribute.contribution`, an input of a role's op. ValueError for any other text."""
    op_type, _, port = text.partition(".")
    for domain in keys.ROLE_DOMAINS:
        row = opsets.lookup(domain, op_type)
        if row is not None and any(one.name == port for one in row.inputs):
            return text
    raise ValueError(f"{text!r} is not an input of an op: write <Op>.<port>")


def _dim(text: str) -> Dim:
    return None if text == "?" else int(text) if text.isdigit() else text


# --- at an op ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Port:
    """A promise at its place among an op's inputs or outputs."""

    name: str
    is_input: bool
    index: int
    promise: PortPromise


def ports_of(op: Op, of: Promises) -> tuple[Port, ...]:
    """Which inputs and outputs of an op of this kind are promised."""
    row = opsets.lookup(op.domain, op.op_type)
    if row is None:
        return ()
    found = []
    for is_input, ports in ((True, row.inputs), (False, row.outputs)):
        for index, port in enumerate(ports):
            promise = of.get(f"{op.op_type}.{port.name}")
            if promise is not None:
                found.append(Port(port.name, is_input, index, promise))
    return tuple(found)


def unify(op: Op, ports: tuple[Port, ...], terms: Terms) -> None:
    """Holds an op's values against what its slot's component promises, and narrows them to it.

    TypeConstraintFailed where a value cannot be what the component takes.
    """
    sizes: dict[str, int] = {}
    there: list[tuple[str, ValueType | None, PortPromise]] = []
    for port in ports:
        names = op.inputs if port.is_input else op.outputs
        name = names[port.index] if port.index < len(names) else ""
        if name:
            known = terms.types.get(name)
            if known is not None and not agrees(known, port.promise, sizes):
                before: dict[str, int] = {}  # without what this very value says
                for _, earlier, promise in there:
                    if earlier is not None:
                        agrees(earlier, promise, before)
                raise _refused(op, port, known, before)
            there.append((name, known, port.promise))
    for name, known, promise in there:
        node, shape = promise.type
        if shape is None or promise.leading:
            terms.element(name, node, op)
        elif promise.or_empty:
            if known is None or known.shape is None:
                terms.put(name, ValueType(node, (None,) * len(shape)), op)
            else:
                terms.element(name, node, op)
        else:
            dims = tuple(sizes.get(d) if isinstance(d, str) else d for d in shape)
            terms.put(name, ValueType(node, dims), op)


def note_forward(op: Op, terms: Terms) -> None:
    """Keeps what the model's `Forward` yields, while all of a function yield one type."""
    slot = op.slot, op.facts.classes
    found = terms.types.get(op.outputs[0]) if op.outputs else None
    if terms.forwards.setdefault(slot, found) is not found and terms.forwards[slot] != found:
        terms.forwards[slot] = None


def like_output(op: Op, terms: Terms) -> None:
    """The gradient that `Backward` takes has the shape of the output that it belongs to."""
    output = terms.forwards.get((op.slot, op.facts.classes))
    known = terms.types.get(op.inputs[0]) if op.inputs else None
    if known is None or output is None or output.shape is None or known == output:
        return
    dims = tuple(d if isinstance(d, int) else None for d in output.shape)
    port = Port("grad", True, 0, PortPromise(ValueType(output.node, dims)))
    if not agrees(known, port.promise, {}):
        raise _refused(op, port, known, {})
    terms.put(op.inputs[0], port.promise.type, op)


def agrees(known: ValueType, promise: PortPromise, sizes: dict[str, int]) -> bool:
    """Whether a value can be what is promised; sizes of symbols are noted."""
    node, shape = promise.type
    if not types.compatible(known.node, node):
        return False
    if promise.floating and known.node is not types.TENSOR and known.node not in _FLOATS:
        return False
    if known.shape is None or shape is None:
        return True
    if promise.or_empty and known.shape == (0,):
        return True
    dims = known.shape
    if promise.leading:
        if len(dims) < len(shape):
            return False
        dims = dims[len(dims) - len(shape) :]
    if len(dims) != len(shape):
        return False
    for have, want in zip(dims, shape, strict=True):
        if isinstance(have, int):
            size = sizes.setdefault(want, have) if isinstance(want, str) else want
            if size is not None and have != size:
                return False
    return True


def _refused(op: Op, port: Port, known: ValueType, sizes: Mapping[str, int]) -> TypeConstraintFailed:
    role = keys.ROLE_OF_DOMAIN.get(op.domain, "slot").replace("_", " ")
    promise = port.promise
    if promise.type.shape is not None:
        dims = tuple(sizes.get(d, d) if isinstance(d, str) else d for d in promise.type.shape)
        promise = PortPromise(ValueType(promise.type.node, dims), promise.leading)
    verb = "takes" if port.is_input else "yields"
    at = f" on {', '.join(op.facts.classes)}" if op.facts.classes else ""
    empty = " or an empty vector" if port.promise.or_empty else ""
    wanted = types.compatible(known.node, promise.type.node) and not promise.floating
    remedy = "give it that shape" if wanted else f"cast it with g.onnx.cast(x, to={_element(promise)!r})"
    if port.name == "target" and (labels := _other_labels(promise.type, known)):
        remedy = labels
    return TypeConstraintFailed(
        f"{role} {op.slot!r}{at} {verb} {promise}{empty} as {port.name}, got {print_type(known)}",
        hint=f"{remedy}, or bind another {role}",
        op=op,
    )


def _other_labels(wanted: ValueType, known: ValueType) -> str:
    """The remedy where a loss gets labels of its other form: numbers of classes, or a row for each."""
    if wanted.shape is None or known.shape is None:
        return ""
    if known.node is not types.TENSOR_F32 and len(known.shape) == len(wanted.shape) - 1:
        return "numbers of classes want loss='sparse_softmax_cross_entropy', or one_hot rows from the source"
    if wanted.node is types.TENSOR_I64 and len(known.shape) == len(wanted.shape) + 1:
        return "rows with a number for each class want loss='softmax_cross_entropy'"
    return ""


def _element(promise: PortPromise) -> str:
    return "F32" if promise.floating else print_type(ValueType(promise.type.node))
