"""Names of values: new ones, short ones, and renaming through ops and their subgraphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Mapping

from bb_edge.ir import keys
from bb_host.ir.facts import OpFacts
from bb_host.ir.program import AttrValue, Op, Subgraph
from bb_host.ir.queries import has_subgraph, uses

_DIGITS = "abcdefghijklmnopqrstuvwxyz"
_PREFIX = keys.DEST_SUFFIX_ATTR_PREFIX  # of attributes whose name ends in a value's name


def fresh_name(wish: str, taken: set[str], second: int = 1) -> str:
    """A name that is not taken, and is from now on: as wished, else with a number behind it."""
    name, number = wish, second
    while name in taken:
        name = f"{wish}_{number}"
        number += 1
    taken.add(name)
    return name


def rename_op(op: Op, names: Mapping[str, str], facts: OpFacts | None = None) -> Op:
    """The op over other value names, also where its subgraphs read from outside."""
    return dataclasses.replace(
        op,
        inputs=tuple(names.get(n, n) for n in op.inputs),
        outputs=tuple(names.get(n, n) for n in op.outputs),
        attrs=_renamed_attrs(op, names),
        facts=op.facts if facts is None else facts,
    )


def rename_reads(op: Op, names: Mapping[str, str]) -> Op:
    """The op reading other values; itself where it reads none of them."""
    if not any(name in names for name in uses(op)):
        return op
    inputs = tuple(names.get(name, name) for name in op.inputs)
    return dataclasses.replace(op, inputs=inputs, attrs=_renamed_attrs(op, names))


def _renamed_attrs(op: Op, names: Mapping[str, str]) -> dict[str, AttrValue]:
    if not op.attrs or not has_subgraph(op):
        return op.attrs
    return {k: _renamed_graph(v, names) if isinstance(v, Subgraph) else v for k, v in op.attrs.items()}


def _renamed_graph(graph: Subgraph, names: Mapping[str, str]) -> Subgraph:
    own = {*graph.inputs, *graph.initializers, *(n for op in graph.ops for n in op.outputs)}
    outer = {old: new for old, new in names.items() if old not in own}
    ops = tuple(rename_op(op, outer) for op in graph.ops)
    return dataclasses.replace(graph, ops=ops, outputs=tuple(outer.get(n, n) for n in graph.outputs))


def short_names(taken: Container[str] = ()) -> Iterator[str]:
    """a, b, …, z, ba, bb, …, leaving out what is taken."""
    n = 0
    while True:
        name, rest = _DIGITS[n % 26], n // 26
        while rest:
            name, rest = _DIGITS[rest % 26] + name, rest // 26
        if name not in taken:
            yield name
        n += 1


def shortened_op(op: Op, rename: Mapping[str, str]) -> Op:
    """The op with other value names, in attributes and facts that name an input too; what its subgraphs hold
    gets short names of its own.
    """
    attrs: dict[str, AttrValue] = {
        _suffixed(key, rename): _shortened_graph(value, rename) if isinstance(value, Subgraph) else value
        for key, value in op.attrs.items()
    }
    facts = op.facts
    if facts.arrives_as:
        facts |= OpFacts(arrives_as={rename.get(v, v): name for v, name in facts.arrives_as.items()})
    return dataclasses.replace(
        op,
        inputs=tuple(rename.get(v, v) for v in op.inputs),
        outputs=tuple(rename.get(v, v) for v in op.outputs),
        attrs=attrs,
        facts=facts,
    )


def _suffixed(key: str, rename: Mapping[str, str]) -> str:
    if not key.startswith(_PREFIX):
        return key
    rest = key.removeprefix(_PREFIX)
    return _PREFIX + rename.get(rest, rest)


def _shortened_graph(graph: Subgraph, outer: Mapping[str, str]) -> Subgraph:
    """A subgraph of an op: the names around it as given, its own made short and different from those."""
    own = dict.fromkeys(
        v for v in (*graph.inputs, *graph.initializers, *(v for op in graph.ops for v in op.outputs)) if v
    )
    names = short_names({*outer.values(), *outer})
    inner = {**outer, **{v: next(names) for v in own}}
    return dataclasses.replace(
        graph,
        inputs=tuple(inner.get(v, v) for v in graph.inputs),
        outputs=tuple(inner.get(v, v) for v in graph.outputs),
        ops=tuple(shortened_op(op, inner) for op in graph.ops),
        types={inner.get(v, v): known for v, known in graph.types.items() if v in inner},
        initializers={inner.get(v, v): tensor for v, tensor in graph.initializers.items()},
        foreign_types={},
    )
