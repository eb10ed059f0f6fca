"""Infers a type for every value.

1. Each op relates the types of its inputs and outputs (`bb_host.passes.analysis.type_relations`); ONNX
   operators beyond the catalog are asked of ONNX's own inference. What an author declared is narrowed,
   never widened.
2. Ops are walked in order; what comes from further down (a reply, a queue, an operand of known element type)
   is followed from op to op until nothing changes.
3. A function that is called is solved before its callers; its untyped inputs take the types of the calls.
4. Types that cannot be those of one op are refused: `TypeConstraintFailed`.
5. A value without a type, or of type `Any`, is refused: `UnresolvedType`, unless strict types are off. The
   abstract `Tensor` is a type: its element type is the device's to know.
6. What a bound component takes and yields holds from both sides: a value that it cannot take is refused.
7. No ONNX operator reads or yields BF16, and no input of the host is one: `UnsupportedType`.
8. Needs topological order. Changes nothing but value types.

Rules P28 and P29 of the specification.
"""

from __future__ import annotations

from bb_edge.ir import keys, types
from bb_host.errors import UnresolvedType, UnsupportedType
from bb_host.ir.program import Function, Op, Program
from bb_host.ir.queries import ONNX_DOMAINS
from bb_host.passes.analysis.bundles import PUTS
from bb_host.passes.analysis.op_types import OpRules
from bb_host.passes.analysis.solver import Solver
from bb_host.passes.analysis.sound_names import all_names
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options


def run(program: Program, options: Options, stats: Stats) -> Program:
    stats.count("types_resolved", 0)
    stats.count("types_unresolved", 0)
    functions = Solver(program, options, OpRules(program, options)).all_solved()
    for function in functions:
        if function.domain != keys.COMPONENT_DOMAIN:
            nodes = {id(kind.node) for kind in function.types.values()}
            _resolved(function, options.strict_types, stats, all_known=id(types.ANY) not in nodes)
            if id(types.TENSOR_BF16) in nodes:
                _computed(function, function is functions[0])
    return program.with_functions(functions)


def _resolved(function: Function, strict: bool, stats: Stats, all_known: bool) -> None:
    """Rule 5. `all_known`: no type that is there is `Any`."""
    seen = function.types
    anything = types.ANY
    names = all_names(function).difference(function.inputs, ("",))
    missing = names.difference(seen)
    if not all_known:
        missing |= {name for name in names - missing if seen[name].node is anything}
    unresolved, resolved = len(missing), len(names) - len(missing)
    if unresolved and strict:
        for op in function.ops:
            for name in op.outputs:
                known = seen.get(name)
                if name and (known is None or known.node is anything):
                    raise _unresolved(name, op)
    for name in function.inputs:
        known = seen.get(name)
        if known is None or known.node is anything:
            unresolved += 1
            if strict:
                raise UnresolvedType(
                    f"nothing says the type of input {name!r}", f"function {function.name}", "declare it"
                )
        else:
            resolved += 1
    stats.count("types_resolved", resolved)
    stats.count("types_unresolved", unresolved)


def _unresolved(name: str, op: Op) -> UnresolvedType:
    put = PUTS.get(op.op_type) if op.domain == keys.SYSCALL_DOMAIN else None
    if put is None:
        return UnresolvedType(f"nothing says the type of {name!r}", hint="declare it", op=op)
    attribute = put[1]
    place = op.attrs.get(attribute)
    text = place.decode() if isinstance(place, bytes) else ""
    call = "g.hold_stash" if attribute == "slot" else "g.serialize_enqueue"
    return UnresolvedType(
        f"nothing puts a value of one type into {attribute} {text!r}, so that of {name!r} is unknown",
        hint=f"record {call}({text!r}, …) in the same module; values of one type, under the same name",
        op=op,
    )


def _computed(function: Function, is_root: bool) -> None:
    """Rule 7. Bytes of BF16 may pass through, between components and over the wire."""
    bfloat = types.TENSOR_BF16
    names = {name for name, kind in function.types.items() if kind.node is bfloat}
    hint = "use F16 or F32; cast weights before they come here"
    if is_root and not names.isdisjoint(function.inputs):
        name = next(n for n in function.inputs if n in names)
        raise UnsupportedType(f"input {name!r} is BF16, which a host cannot give", function.name, hint)
    for op in function.ops:
        if op.domain in ONNX_DOMAINS and not (names.isdisjoint(op.inputs) and names.isdisjoint(op.outputs)):
            raise UnsupportedType("no device computes with BF16", hint=hint, op=op)
