"""How an op implementation is tied to one node: `bind(op, env) -> run`, called once per op at install."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.requests import Requests
from bb_edge.engine.program.program import FunctionKey, Program
from bb_edge.engine.run.bound import BoundGraph, BoundOp
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.values import TRIGGER
from bb_edge.roles.backend import Backend

Run = Callable[..., Any]
Bind = Callable[[BoundOp, "BindEnv"], Run]


@dataclass(slots=True)
class BindEnv:
    """What op implementations may hold on to.

    `state` is shared by the ops of one target, keyed as they like; `rings` by all ops of the node.
    """

    runtime: Runtime
    scheduler: Scheduler
    peers: PeerStates
    requests: Requests
    outgoing: Outgoing
    graph: BoundGraph
    state: dict[object, Any]
    rings: dict[str, deque[object]]
    backends: Mapping[str, Backend]
    program: Program
    graphs: Mapping[FunctionKey, BoundGraph]


def make_gather(sites: Sequence[int], absent: int) -> Callable[[list[Any]], Sequence[Any]]:
    """A C-speed reader of a frame's values: one entry per input, None for an absent one."""
    indices = [s if s >= 0 else absent for s in sites]
    if not indices:
        return itemgetter(slice(0, 0))
    if len(indices) == 1:
        return itemgetter(slice(indices[0], indices[0] + 1))
    return itemgetter(*indices)


def done(op: BoundOp) -> object:
    """What an op gives back whose only output says that it has run: None where nobody reads that."""
    return TRIGGER if op.mode else None
