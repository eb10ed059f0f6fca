"""Ops of the catalog by their own names: `g.syscall.after(trigger, delay_ns=10 * MS)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bb_edge.ir import keys, opsets
from bb_edge.ir.opsets import OpDef
from bb_edge.ir.suggestions import suggestion
from bb_host.dsl.calls import CatalogRow, record_call, returned, row_of
from bb_host.dsl.names import snake
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.tape import UNORDERED, After
from bb_host.errors import UnknownOp


def find_op(graph: Recorder, domain: str, name: str) -> CatalogRow:
    """The row of an op, by its name or its spelling as a call. UnknownOp where there is none."""
    table = opsets.opset(domain)
    short = domain[len(keys.PREFIX) + 1 :] if domain.startswith(keys.PREFIX) else domain
    return find_in(graph, {} if table is None else table.ops, name, short)


def find_in(graph: Recorder, ops: Mapping[str, OpDef], name: str, whose: str) -> CatalogRow:
    """The same in a table of its own. `whose` is what messages call it."""
    if name in ops:
        return row_of(ops[name])
    wanted = name.replace("_", "").replace(".", "").lower()
    for op_name, op in ops.items():
        if op_name.replace(".", "").lower() == wanted:
            return row_of(op)
    hint = suggestion(name, map(snake, ops), "it has ") or "it has none"
    raise graph.error(UnknownOp, f"{whose} has no op {name!r}", hint)


class Namespace:
    """The ops of one domain as methods: `g.syscall.after(trigger, delay_ns=10 * MS)`.

    Inputs come first, in order, attributes by name; `after=` orders. An op with one output returns it, one
    with several a tuple, one with none what `after=` takes.
    """

    def __init__(self, graph: Recorder, domain: str) -> None:
        self._graph = graph
        self._domain = domain

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        graph, row = self._graph, find_op(self._graph, self._domain, name)

        def call(*args: object, after: After = UNORDERED, **kwargs: object) -> Any:
            return returned(graph, row, record_call(graph, row, args, kwargs, after=after))

        call.__doc__ = row.op.doc
        return call

    def __dir__(self) -> list[str]:
        table = opsets.opset(self._domain)
        return [] if table is None else sorted(map(snake, table.ops))
