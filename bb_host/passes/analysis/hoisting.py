"""Names pure sub-modules by what their bodies hold, so that equal bodies become one function."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

from bb_edge.ir import keys
from bb_host.ir.program import AttrValue, Function, Op, Program, Slot, walk_ops
from bb_host.ir.proto import to_bytes
from bb_host.ir.rename import rename_op
from bb_host.passes.analysis import flow


def hoist(functions: Sequence[Function], heads: int) -> tuple[Function, ...]:
    """`functions` with all behind the first `heads` hoisted and calls of them renamed.

    Functions of component and backend domains keep their names, as do hoisted ones.
    """
    keyed = {f.key: f for f in functions}
    hoister = _Hoister(keyed)
    for function in functions[heads:]:
        hoister.name_of(function)
    if not hoister.named:
        return tuple(functions)
    renamed: dict[tuple[str, str], Function] = {}
    for function in functions[:heads]:
        renamed[function.key] = hoister.redirect(function)
    for function in functions[heads:]:
        done = hoister.done[function.key]
        renamed.setdefault(done.key, done)
    return tuple(renamed.values())


class _Hoister:
    def __init__(self, keyed: dict[tuple[str, str], Function]) -> None:
        self._keyed = keyed
        self.named: dict[tuple[str, str], tuple[str, str]] = {}
        self.done: dict[tuple[str, str], Function] = {}

    def name_of(self, function: Function) -> tuple[str, str]:
        """The key under which a function is called from now on; its callees are named first."""
        if function.key in self.done:
            return self.done[function.key].key
        if function.domain in (keys.MODULE_DOMAIN, keys.COMPONENT_DOMAIN, keys.BACKEND_DOMAIN):
            self.done[function.key] = function
            return function.key
        for _, callee in flow.calls(function, self._keyed):
            self.name_of(callee)
        canonical = _canonical(self.redirect(function))
        digest = hashlib.sha256(to_bytes(Program("", (_hashed(canonical),)))).hexdigest()[:16]
        hoisted = dataclasses.replace(
            canonical, name=f"{keys.HOIST_PREFIX}{function.name}_{digest}", domain=keys.MODULE_DOMAIN
        )
        self.done[function.key] = hoisted
        self.named[function.key] = hoisted.key
        return hoisted.key

    def redirect(self, function: Function) -> Function:
        """The function with its calls renamed."""
        if not any((op.domain, op.op_type) in self.named for op in walk_ops(function.ops)):
            return function
        opsets = {**function.opsets, keys.MODULE_DOMAIN: 1}
        return dataclasses.replace(function, ops=tuple(self._call(op) for op in function.ops), opsets=opsets)

    def _call(self, op: Op) -> Op:
        inner: dict[str, AttrValue] = {
            name: dataclasses.replace(graph, ops=tuple(map(self._call, graph.ops)))
            for name, graph in op.subgraphs()
        }
        domain, op_type = self.named.get((op.domain, op.op_type), (op.domain, op.op_type))
        if not inner and op_type is op.op_type and domain is op.domain:
            return op
        return dataclasses.replace(op, domain=domain, op_type=op_type, attrs={**op.attrs, **inner})


def _canonical(function: Function) -> Function:
    """Positional names: `__hoist_in_<i>`, `__hoist_out_<j>`, `__hoist_v_<n>`."""
    names = {name: f"__hoist_in_{i}" for i, name in enumerate(function.inputs)}
    for i, name in enumerate(function.outputs):
        names.setdefault(name, f"__hoist_out_{i}")
    count = 0
    for op in function.ops:
        for name in op.outputs:
            if name and name not in names:
                names[name] = f"__hoist_v_{count}"
                count += 1
    ops = tuple(rename_op(op, names) for op in function.ops)
    return dataclasses.replace(
        function,
        inputs=tuple(names[n] for n in function.inputs),
        outputs=tuple(names.get(n, n) for n in function.outputs),
        ops=ops,
        types={names[n]: t for n, t in function.types.items() if n in names},
        foreign_types={},
        facts=function.facts.without("home"),
        opsets=flow.used_opsets(ops, function.opsets),
    )


def _hashed(function: Function) -> Function:
    """What the hash is taken over: the body without lines and instances, which say nothing about it."""
    ops = tuple(dataclasses.replace(op, facts=op.facts.without(*flow.LABELS), name="") for op in function.ops)
    slots = {n: Slot(s.role, s.concrete_type, state=s.state) for n, s in function.slots.items()}
    return dataclasses.replace(function, name="", domain="", ops=ops, slots=slots)
