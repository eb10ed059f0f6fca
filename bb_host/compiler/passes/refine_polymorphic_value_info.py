"""Pre-pass: the types of component outputs, narrowed from the placeholder to what the bound concrete yields.

1. `Params` of a bound model is F32 of as many elements as its construction state has parameters.
2. `Forward` of a bound model has the type of its graph's output (a symbolic size there is unknown here).
3. Outputs that the component class names in `STORAGE_TYPES` have the type that stands there, be the class
   bound or the slot's own.
4. A slot whose targets have different bindings is left alone, as is an output whose type is narrower already.
5. Needs the bindings; changes nothing but value types.
"""

from __future__ import annotations

import dataclasses

from bb_edge.ir import keys, opsets, types
from bb_edge.ir.types import TypeNode, ValueType
from bb_host.compiler.bindings import storage_types_of
from bb_host.compiler.options import Options, Stats
from bb_host.program import AttrValue, Function, Op, Program, RawTensor, Subgraph

NAME = "refine_polymorphic_value_info"

Promises = dict[str, ValueType]
"""`"<Op>.<output port>"` → type, for one slot."""


def run(program: Program, options: Options, stats: Stats) -> Program:
    promised = _promises(program, options)
    stats.count("types_narrowed", 0)
    if not promised:
        return program
    functions = tuple(_narrow(f, promised, stats) for f in program.functions)
    if all(a is b for a, b in zip(functions, program.functions, strict=True)):
        return program
    return dataclasses.replace(program, functions=functions)


def _promises(program: Program, options: Options) -> dict[str, Promises]:
    found: dict[str, Promises] = {}
    brought = {f.name: f for f in program.functions if f.domain == keys.COMPONENT_DOMAIN}
    for function in program.functions:
        for name, slot in function.slots.items():
            if slot.state is not None and slot.role and name not in found:
                stored = storage_types_of(slot.concrete_type, name)
                found[name] = {port: ValueType(node) for port, node in stored.items()}
                if slot.role == keys.ROLE_MODEL:
                    found[name] |= _of_model(slot.state, brought.get(f"{name}.forward"))
    for name in {b.slot for b in options.bindings}:
        binding = options.sole_binding(name)
        found.pop(name, None)
        if binding is None:
            continue
        promises = {port: ValueType(node) for port, node in binding.storage_types.items()}
        if binding.role == keys.ROLE_MODEL:
            forward = next((f for f in binding.functions if f.name == f"{name}.forward"), None)
            promises = {**_of_model(binding.state, forward), **promises}
        if promises:
            found[name] = promises
    return {name: promises for name, promises in found.items() if promises}


def _of_model(state: AttrValue, forward: Function | None) -> Promises:
    promises: Promises = {}
    if isinstance(state, Subgraph):
        promises["Params.params"] = ValueType(types.TENSOR_F32, (_elements(state),))
    if forward is not None and forward.outputs and forward.outputs[0] in forward.types:
        output = forward.types[forward.outputs[0]]
        shape = (
            None if output.shape is None else tuple(d if isinstance(d, int) else None for d in output.shape)
        )
        promises["Forward.output"] = ValueType(output.node, shape)
    return promises


def _elements(state: Subgraph) -> int:
    total = 0
    for tensor in state.initializers.values():
        shape = tensor.shape
        count = 1
        for size in shape:
            count *= size
        total += count if isinstance(tensor, RawTensor) else int(tensor.size)
    return total


def _narrow(function: Function, promised: dict[str, Promises], stats: Stats) -> Function:
    changed: dict[str, ValueType] = {}
    by_kind: dict[tuple[str, str, str], list[tuple[int, ValueType]]] = {}
    for op in function.ops:
        slot = op.meta.get(keys.SLOT_KEY)
        if slot is None or slot not in promised:
            continue
        kind = (slot, op.domain, op.op_type)
        outputs = by_kind.get(kind)
        if outputs is None:
            outputs = by_kind[kind] = _promised_outputs(op, promised[slot])
        for index, type_ in outputs:
            name = op.outputs[index] if index < len(op.outputs) else ""
            known = function.types.get(name)
            if name and (known is None or (known != type_ and _is_wider(known, type_.node))):
                changed[name] = type_
    if not changed:
        return function
    stats.count("types_narrowed", len(changed))
    return dataclasses.replace(function, types={**function.types, **changed})


def _promised_outputs(op: Op, promises: Promises) -> list[tuple[int, ValueType]]:
    """Which outputs of an op of this kind are promised, and as what."""
    row = opsets.lookup(op.domain, op.op_type)
    if row is None:
        return []
    ports = enumerate(f"{op.op_type}.{port.name}" for port in row.outputs)
    return [(index, promises[port]) for index, port in ports if port in promises]


def _is_wider(known: ValueType, node: TypeNode) -> bool:
    """Whether the known type leaves open what the promised one says."""
    if not types.is_subtype(node, known.node):
        return False
    return known.node is not node or known.shape is None or any(not isinstance(d, int) for d in known.shape)
