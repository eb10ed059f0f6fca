"""The clean-up of a program's own tensor work: what backends run of it, and the graphs of its models.

1. Every backend function and every graph of a component is cleaned as an ordinary model is
   (`bb_host.passes.tensor`).
2. Inputs and outputs stay, in their order, also inputs that nothing reads any more: a call waits for what it
   waited for before.
3. A backend function is named by its content: one that changed has another name, and its calls follow; equal
   ones are one. A component finds its graphs by name: theirs stay.
4. What calls stand for follows (`Origins`): an op that is gone is still one of a call's, without a value.
5. Shapes of inputs are not relied on, their element types are: a peer may send an empty vector for any array.
6. A program that is an artifact already was an ordinary model, and was cleaned where it came in, with the
   types that it brought.

Running it again changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from bb_edge.ir import keys
from bb_host.ir.hashing import content_digest
from bb_host.ir.program import Function
from bb_host.ir.queries import is_constant
from bb_host.ir.rename import short_names, shortened_op
from bb_host.onnx_io.model import infer_types
from bb_host.passes.one_pass import Observer, PassReport
from bb_host.passes.tensor.cleaning import clean_up
from bb_host.passes.tensor.collapse import Collapsed, Origin

_Key = tuple[str, str]
_Kept = Mapping[str, str]
"""By the name of a value in the body as it was: what its op's first result is called now."""


def clean_work(
    collapsed: Collapsed, observe: Observer | None = None, reports: list[PassReport] | None = None
) -> Collapsed:
    """The program with clean tensor work; what was given where there is nothing to clean.

    `observe` sees what each pass over a function gets and gives, `reports` gets what it did.
    """
    program = collapsed.program
    if program.facts.stripped:
        return collapsed
    renamed: dict[_Key, _Key] = {}
    kept: dict[_Key, _Kept] = {}
    functions: dict[_Key, Function] = {}
    for function in program.functions:
        if function.is_tensor_work:
            new, names = _cleaned(function, observe, reports)
            if new is not function:
                kept[function.key] = names
                if new.key != function.key:
                    renamed[function.key] = new.key
                function = new
        functions.setdefault(function.key, function)
    if not kept:
        return collapsed
    calls = {key: _renamed_calls(function, renamed) for key, function in functions.items()}
    program = program.with_functions(calls.values())
    return Collapsed(program, _origins(collapsed, kept))


def _cleaned(
    function: Function, observe: Observer | None, reports: list[PassReport] | None
) -> tuple[Function, _Kept]:
    # What an op is called tells where it went: passes that rewrite an op leave its name alone.
    ops = tuple(dataclasses.replace(op, name=str(i)) for i, op in enumerate(function.ops))
    types = {name: known._replace(shape=None) for name, known in function.types.items()}
    typed = infer_types(dataclasses.replace(function, ops=ops, types=types))
    clean = clean_up(typed, observe, reports)
    if clean is typed or _only_spelt_anew(typed, clean):
        return function, {}
    values = dict.fromkeys((*clean.inputs, *clean.outputs, *(v for op in clean.ops for v in op.outputs if v)))
    short = (
        dict(zip(values, short_names(), strict=False))
        if function.domain == keys.BACKEND_DOMAIN
        else dict(zip(values, values, strict=True))
    )
    now = {op.name: next((short[v] for v in op.outputs if v), "") for op in clean.ops if op.name}
    first = {next((v for v in op.outputs if v), ""): now.get(str(i), "") for i, op in enumerate(function.ops)}
    names = {op.name: old.name for op, old in zip(ops, function.ops, strict=True)}
    bare = dataclasses.replace(
        function,
        inputs=tuple(short[v] for v in clean.inputs),
        outputs=tuple(short[v] for v in clean.outputs),
        ops=tuple(
            dataclasses.replace(shortened_op(op, short), name=names.get(op.name, "")) for op in clean.ops
        ),
        types={short[v]: known for v, known in function.types.items() if v in short},
    )
    if function.domain == keys.BACKEND_DOMAIN:
        bare = dataclasses.replace(bare, name="")
        bare = dataclasses.replace(bare, name=f"subgraph_{content_digest(bare)}")
    return bare, first


def _only_spelt_anew(before: Function, after: Function) -> bool:
    """Whether nothing but the form of constants is another one: artifacts need not change for that."""
    return len(before.ops) == len(after.ops) and all(
        new is old or (is_constant(old) and is_constant(new) and new.outputs == old.outputs)
        for old, new in zip(before.ops, after.ops, strict=True)
    )


def _renamed_calls(function: Function, renamed: Mapping[_Key, _Key]) -> Function:
    return function.with_ops(
        dataclasses.replace(op, op_type=renamed[op.domain, op.op_type][1])
        if (op.domain, op.op_type) in renamed
        else op
        for op in function.ops
    )


def _origins(collapsed: Collapsed, kept: Mapping[_Key, _Kept]) -> dict[tuple[_Key, str], tuple[Origin, ...]]:
    called = {
        (function.key, op.outputs[0]): (op.domain, op.op_type)
        for function in collapsed.program.functions
        for op in function.ops
        if op.domain == keys.BACKEND_DOMAIN and op.outputs
    }
    found = {}
    for place, entries in collapsed.origins.items():
        names = kept.get(called[place])
        found[place] = entries
        if names is not None:
            found[place] = tuple(Origin(entry.op, names.get(entry.value, "")) for entry in entries)
    return found
