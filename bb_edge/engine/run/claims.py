"""Which components a flow touches, and who holds which stateful component.

An execution claims every unshared component that its flow writes in one step, so that claims cannot deadlock.
Waiters are served in order of arrival. One that cannot be served lets others pass only where they want
nothing that it wants.

Rules E6 and E7 of the specification.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bb_edge.engine.program.program import INVOKE, FunctionKey
from bb_edge.engine.run.bound import BoundGraph, BoundOp
from bb_edge.engine.run.components import Components
from bb_edge.engine.run.frames import Execution
from bb_edge.engine.run.naming import Naming
from bb_edge.ir import keys
from bb_edge.ir.once import Once, each_time
from bb_edge.ir.opsets import OpKind


class Claims:
    """`owners[component]` is the execution that holds it, or None."""

    def __init__(self, components: int) -> None:
        self.owners: list[Execution | None] = [None] * components
        self.waiters: list[Execution] = []

    def acquire(self, execution: Execution) -> bool:
        """True: all of its claim set is its own now. False: it stands in the queue."""
        wanted = execution.claim_set
        if execution in self.waiters:
            return False
        if self._free(wanted) and not any(set(wanted) & set(w.claim_set) for w in self.waiters):
            self._take(execution)
            return True
        self.waiters.append(execution)
        return False

    def release(self, execution: Execution) -> list[Execution]:
        """Gives everything up (also a place in the queue); returns who holds their claims now, in order."""
        if execution in self.waiters:
            self.waiters.remove(execution)
        if execution.claimed:
            for component in execution.claim_set:
                if self.owners[component] is execution:
                    self.owners[component] = None
            execution.claimed = False
        if not self.waiters:
            return []
        granted: list[Execution] = []
        still: list[Execution] = []
        wanted_before: set[int] = set()
        for waiter in self.waiters:
            if self._free(waiter.claim_set) and not wanted_before & set(waiter.claim_set):
                self._take(waiter)
                granted.append(waiter)
            else:
                wanted_before |= set(waiter.claim_set)
                still.append(waiter)
        self.waiters = still
        return granted

    def _free(self, components: tuple[int, ...]) -> bool:
        owners = self.owners
        for component in components:  # noqa: SIM110 (a generator costs as much as all of them)
            if owners[component] is not None:
                return False
        return True

    def _take(self, execution: Execution) -> None:
        for component in execution.claim_set:
            self.owners[component] = execution
        execution.claimed = True

    def save(self) -> list[Any]:
        """[number of the owner of each component, numbers of the waiters]; 0 for no owner."""
        owners = [0 if owner is None else owner.id for owner in self.owners]
        return [owners, [execution.id for execution in self.waiters]]

    def restore(self, plain: Any, naming: Naming) -> None:
        """Takes what `save` gave. ValueError where the node has another number of components."""
        owners, waiters = plain
        if len(owners) != len(self.owners):
            raise ValueError("claims of another number of components")
        self.owners[:] = [naming.execution(number) if number else None for number in owners]
        self.waiters.extend(naming.execution(number) for number in waiters)


Graphs = Mapping[FunctionKey, BoundGraph]


def touch_set(graph: BoundGraph, graphs: Graphs) -> tuple[int, ...]:
    """All components that a graph's ops touch, those of functions that it calls or runs as bodies too."""
    found: set[int] = set()
    todo, seen = [graph], {id(graph)}
    while todo:
        for op in todo.pop().ops:
            if op.touches >= 0:
                found.add(op.touches)
            for callee in (graphs[key] for key in op.spec.callees if key in graphs):
                if id(callee) not in seen:
                    seen.add(id(callee))
                    todo.append(callee)
    return tuple(sorted(found))


TRAINING = frozenset({"Backward", "Step", "Train"})
"""The ops of models that are training: they need gradients, which a model that only answers does not."""


def find_claims(graphs: Graphs, components: Components, once: Once = each_time) -> None:
    """Fills `claims` and `trains` of every graph: what an entry's flow writes, and whether it trains."""
    ops = [op for graph in graphs.values() for op in graph.ops]
    owned = [op.component if op.writes and not components[op.component].shared else -1 for op in ops]
    slots = [id(graph.slot) for graph in graphs.values()]
    key = "claims", tuple(slots), tuple(owned)  # all that they depend on
    found = once(key, lambda: [*_claims_of_all(graphs, components)])
    for graph, (claims, input_claims, trains) in zip(graphs.values(), found, strict=True):
        graph.claims, graph.input_claims, graph.trains = claims, input_claims, trains


_Found = tuple[dict[int, tuple[int, ...]], dict[int, tuple[int, ...]], frozenset[int]]
"""Of one graph: `claims`, `input_claims` and `trains`."""


def _claims_of_all(graphs: Graphs, components: Components) -> Iterator[_Found]:
    written: dict[FunctionKey, frozenset[int]] = {}
    training: dict[FunctionKey, bool] = {}

    def writes(op: BoundOp) -> frozenset[int]:
        found: frozenset[int] = frozenset()
        for key in op.spec.callees:
            if key in graphs and key not in written:
                written[key] = frozenset()  # a function in its own call chain adds nothing
                written[key] = frozenset(c for inner in graphs[key].ops for c in writes(inner))
            found |= written.get(key, frozenset())
        if found:
            return found
        owned = op.writes and not components[op.component].shared
        return frozenset((op.component,)) if owned else frozenset()

    def trains(op: BoundOp) -> bool:
        for key in op.spec.callees:
            if key in graphs and key not in training:
                training[key] = False
                training[key] = any(trains(inner) for inner in graphs[key].ops)
        own = op.spec.domain == keys.ROLE_MODEL_DOMAIN and op.spec.op_type in TRAINING
        return own or any(training.get(key, False) for key in op.spec.callees)

    for graph in graphs.values():
        yield _claims_of(graph, [writes(op) for op in graph.ops], [trains(op) for op in graph.ops])


def _claims_of(graph: BoundGraph, writes: Sequence[frozenset[int]], trains: Sequence[bool]) -> _Found:
    """The claims of a graph; the sequences have for each op what it writes, and whether it trains."""
    starts = {entry: [op.index for op in ops] for entry, ops in graph.starts.items()}
    readers: dict[int, list[int]] = {}
    for op in graph.ops:
        for site in (*op.spec.inputs, *op.spec.controls):
            readers.setdefault(site, []).append(op.index)

    def flow(first: Sequence[int], region: int = 0) -> set[int]:
        """The ops that are reached from these, within one region."""
        todo, seen = list(first), set(first)
        while todo:
            op = graph.ops[todo.pop()]
            reached = [r for s in op.outs if s >= 0 for r in readers.get(s, ())]
            for number in (*reached, *op.spec.pulls):
                if number not in seen and graph.ops[number].spec.region == region:
                    seen.add(number)
                    todo.append(number)
        return seen

    def claimed(ops: set[int]) -> tuple[int, ...]:
        return tuple(sorted({component for number in ops for component in writes[number]}))

    training, claims, input_claims = set(), {}, {}
    for op in graph.ops:
        if op.spec.kind is OpKind.ENTRY:
            reached = flow([op.index, *starts.get(op.index, ())], op.spec.region)
            claims[op.index] = claimed(reached)
            if any(trains[number] for number in reached):
                training.add(op.index)
    for site in graph.slot.inputs.values():
        if wanted := claimed(flow([*readers.get(site, ()), *starts.get(INVOKE, ())])):
            input_claims[site] = wanted
    claims[INVOKE] = claimed(flow([op.index for op in graph.ops if op.spec.pulls]))
    return claims, input_claims, frozenset(training)
