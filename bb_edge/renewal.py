"""Replaces components of a running node after their bootstrap has failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bb_edge.engine.binding import BindEnv, Core
from bb_edge.engine.run.bound import BoundGraph, BoundOp, OpObserver
from bb_edge.roles import Component, ProtocolComponent
from bb_edge.syscalls.role_ops import bind, bound_bootstrap

__all__ = ["renewal"]


def renewal(
    core: Core,
    observer: OpObserver,
    components: dict[str, Component],
    construct: Callable[[str], Component],
    bound: Sequence[tuple[BoundOp, BindEnv]],
    bootstraps: Mapping[str, BoundGraph],
) -> Callable[[Sequence[int]], None]:
    """Returns `renew(numbers)`, which replaces the components with these numbers by new ones.

    `construct(slot)` makes a component. All are made before the first one is replaced, so if `construct`
    raises, the node stays as it was. `components` are those of the node by slot, in the order of their
    numbers; `bound` are the ops that use components and must be bound again; `bootstraps` are the graphs of
    the components' own bootstraps.
    """
    names = list(components)

    def renew(numbers: Sequence[int]) -> None:
        fresh = {number: construct(names[number]) for number in numbers}
        components.update((names[number], component) for number, component in fresh.items())
        core.scheduler.components.replace(fresh)
        for number, component in fresh.items():
            if isinstance(component, ProtocolComponent):
                core.control.replace(number, component)
            if (graph := bootstraps.get(names[number])) is not None:
                graph.ops[0].run = bound_bootstrap(core.scheduler.waiting, component)
        for op, env in bound:
            if op.component in fresh:
                observer.rebind(op, bind(op, env))

    return renew
