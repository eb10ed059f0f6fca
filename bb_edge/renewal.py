"""Components constructed anew on a node that runs, after a bootstrap of theirs that failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bb_edge.engine.run.binding import BindEnv
from bb_edge.engine.run.bound import BoundGraph, BoundOp
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.roles import Component, ProtocolComponent
from bb_edge.syscalls.role_ops import bind, bound_bootstrap

__all__ = ["renewal"]


def renewal(
    engine: Scheduler,
    components: dict[str, Component],
    construct: Callable[[str], Component],
    bound: Sequence[tuple[BoundOp, BindEnv]],
    bootstraps: Mapping[str, BoundGraph],
) -> Callable[[Sequence[int]], None]:
    """Gives `renew(numbers)`, which replaces those components by what `construct(slot)` makes.

    All are constructed before the first one is replaced; what `construct` raises leaves the node as it was.
    `components` are the node's, by slot, in the order of their numbers; `bound` the ops of components, to be
    bound again, `bootstraps` the graphs of components' own bootstraps.
    """
    names = list(components)

    def renew(numbers: Sequence[int]) -> None:
        fresh = {number: construct(names[number]) for number in numbers}
        components.update((names[number], component) for number, component in fresh.items())
        engine.replace_components(fresh)
        for number, component in fresh.items():
            if isinstance(component, ProtocolComponent):
                engine.control.replace(number, component)
            if (graph := bootstraps.get(names[number])) is not None:
                graph.ops[0].run = bound_bootstrap(engine, component)
        for op, env in bound:
            if op.component in fresh:
                op.run = bind(op, env)
                if engine.observer is not None:
                    op.run = engine.observer(op)

    return renew
