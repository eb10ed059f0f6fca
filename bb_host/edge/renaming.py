"""Value names: short ones, and renaming through ops and their subgraphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Mapping

from bb_edge.ir import keys
from bb_host.program import AttrValue, Op, Subgraph

_DIGITS = "abcdefghijklmnopqrstuvwxyz"
_PREFIXES = (keys.DEST_SUFFIX_ATTR_PREFIX,)  # attributes whose name ends in a value's name
_META_PREFIXES = (keys.DEST_SITE_NAME_PREFIX,)


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


def renamed_op(op: Op, rename: Mapping[str, str]) -> Op:
    """The op with other value names, in its subgraphs and in keys that end in the name of an input too."""
    attrs: dict[str, AttrValue] = {
        _suffixed(key, _PREFIXES, rename): renamed_graph(value, rename)
        if isinstance(value, Subgraph)
        else value
        for key, value in op.attrs.items()
    }
    return dataclasses.replace(
        op,
        inputs=tuple(rename.get(v, v) for v in op.inputs),
        outputs=tuple(rename.get(v, v) for v in op.outputs),
        attrs=attrs,
        meta={_suffixed(key, _META_PREFIXES, rename): text for key, text in op.meta.items()},
    )


def _suffixed(key: str, prefixes: tuple[str, ...], rename: Mapping[str, str]) -> str:
    for prefix in prefixes:
        if key.startswith(prefix):
            rest = key[len(prefix) :]
            return prefix + rename.get(rest, rest)
    return key


def renamed_graph(graph: Subgraph, outer: Mapping[str, str]) -> Subgraph:
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
        ops=tuple(renamed_op(op, inner) for op in graph.ops),
        types={inner.get(v, v): known for v, known in graph.types.items() if v in inner},
        initializers={inner.get(v, v): tensor for v, tensor in graph.initializers.items()},
        foreign_types={},
    )
