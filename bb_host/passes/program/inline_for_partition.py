"""Inlines sub-modules that the partitioning must see into, and hoists pure ones.

1. A call of a function that holds, at any depth, a wire op, an entry, a class scope, a slot that lives on a
   class, or a selector of peers is replaced by the function's body: placement must see what is in it. So is
   one that holds a gate: a call waits for all of its inputs, a gate may be opened in another execution; and
   one that holds a threshold, which counts for itself: each call has a count of its own. In the root's
   bootstrap the bootstraps that it calls are replaced too.
2. Values of an inlined body get names of their own; its wire ids and ports are minted anew where they are
   taken; its ops keep their lines, and their module instance is prefixed by the call's.
3. Other functions that are called stay functions. They move to the module domain under the name
   `Hoist_<name>_<hash of the body>`, with positional value names, so that equal bodies are one function.
4. Bodies of `If` and `Loop` that hold more than tensor work become functions
   (`bb_host.passes.analysis.bodies`).
5. Functions that nothing calls any more are dropped; bootstraps of sub-modules with them, since the root's
   holds them now. Component graphs stay.
6. A circle of calls is refused: `CyclicGraph`. A program that is partitioned already is left alone.
"""

from __future__ import annotations

from bb_edge.ir import keys, opsets
from bb_edge.ir.opsets import OpKind
from bb_host.errors import CyclicGraph
from bb_host.ir.program import Function, FunctionKey, Program, walk_ops
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.bodies import outline
from bb_host.passes.analysis.hoisting import hoist
from bb_host.passes.analysis.inlining import Inliner
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options


def run(program: Program, options: Options, stats: Stats) -> Program:
    stats.count("surfaced_wire_ops", 0)
    if flow.is_partitioned(program):
        return program
    if len(program.functions) == 1:
        return program.with_functions(_reached(outline(program.functions), 1))
    root = program.functions[0]
    keyed = {f.key: f for f in program.functions}
    bootstrap = keyed.get((root.domain, root.name + keys.BOOTSTRAP_SUFFIX))
    heads = [root] if bootstrap is None else [root, bootstrap]
    found = _Composition(keyed)
    inlined = [_inline(head, found, stats) for head in heads]
    library = found.reachable(inlined)
    components = [f for f in program.functions if f.domain == keys.COMPONENT_DOMAIN]
    hoisted = hoist([*inlined, *library], len(heads))
    return program.with_functions(_reached(outline((*hoisted, *components)), len(heads)))


def _reached(functions: tuple[Function, ...], heads: int) -> tuple[Function, ...]:
    """Rule 5, behind rule 4: what only a body called stands in the body now. Callees come after callers."""
    found = flow.reached(functions[:heads], {f.key: f for f in functions})
    return (*found.values(), *(f for f in functions if f.domain == keys.COMPONENT_DOMAIN))


class _Composition:
    """Which functions call which, and which of them placement must see through."""

    def __init__(self, keyed: dict[FunctionKey, Function]) -> None:
        self.keyed = keyed
        self._open: dict[FunctionKey, bool] = {}

    def is_open(self, function: Function, path: tuple[FunctionKey, ...] = ()) -> bool:
        """Whether calls of the function are inlined (rule 1). CyclicGraph where it calls itself."""
        known = self._open.get(function.key)
        if known is not None:
            return known
        if function.key in path:
            circle = [name for _, name in path[path.index(function.key) :]]
            raise CyclicGraph(
                f"modules call each other in a circle: {' → '.join([*circle, function.name])}", circle[0]
            )
        found = flow.is_bootstrap(function) or any(
            s.at or s.role == keys.ROLE_PEER_SELECTOR for s in function.slots.values()
        )
        found = found or bool(function.facts.input_classes)
        for op in walk_ops(function.ops):
            if op.domain == keys.WIRE_DOMAIN or op.facts.at:
                found = True
            elif op.domain == keys.SYSCALL_DOMAIN:
                row = opsets.lookup(op.domain, op.op_type)
                found = found or (row is not None and (row.own_state or row.kind is OpKind.ENTRY))
            elif op.domain not in flow.LEAF_DOMAINS:
                callee = self.keyed.get((op.domain, op.op_type))
                if callee is not None and self.is_open(callee, (*path, function.key)):
                    found = True
        self._open[function.key] = found
        return found

    def reachable(self, heads: list[Function]) -> list[Function]:
        """The functions that are still called, callees after callers."""
        found: dict[FunctionKey, Function] = {}
        todo = list(heads)
        while todo:
            for _, callee in flow.calls(todo.pop(0), self.keyed):
                if callee.key not in found:
                    found[callee.key] = callee
                    todo.append(callee)
        return list(found.values())


def _inline(head: Function, composition: _Composition, stats: Stats) -> Function:
    """The function with all calls of open functions replaced, to any depth."""
    composition.is_open(head)
    calls = [
        callee for op, callee in flow.calls(head, composition.keyed) if op.domain not in flow.LEAF_DOMAINS
    ]
    if not any(map(composition.is_open, calls)):
        return head
    inliner = Inliner(head)
    surfaced = inliner.run(lambda op: _open_callee(op.domain, op.op_type, composition))
    stats.count("surfaced_wire_ops", surfaced)
    return inliner.result()


def _open_callee(domain: str, name: str, composition: _Composition) -> Function | None:
    if domain in flow.LEAF_DOMAINS:
        return None
    callee = composition.keyed.get((domain, name))
    return callee if callee is not None and composition.is_open(callee) else None
