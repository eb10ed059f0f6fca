"""What ops are given: at install what they are bound to, and the `ctx` of each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from bb_edge.engine.net.control_plane import ControlPlane, OpSurroundings
from bb_edge.engine.net.ingress import Ingress
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.requests import Requests
from bb_edge.engine.net.surroundings import ControlContext
from bb_edge.engine.net.until_snapshot import SnapshotWish
from bb_edge.engine.program.program import FunctionKey, Program
from bb_edge.engine.run.bound import BoundGraph, BoundOp
from bb_edge.engine.run.components import Components, OpStates
from bb_edge.engine.run.frames import Execution, Frame
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.run.waiting import WaitingRoom
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.once import Once
from bb_edge.ir.values import TRIGGER
from bb_edge.roles.backend import Backend
from bb_edge.roles.completion import Later
from bb_edge.wire.delivery import Links

Run = Callable[..., Any]
Bind = Callable[[BoundOp, "BindEnv"], Run]


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


if TYPE_CHECKING:
    from bb_edge.roles.context import ProtocolCtx


class OpContext(OpSurroundings):
    """`execution`, `frame` and `op` are those of the op that runs."""

    __slots__ = ("execution", "frame", "later_token", "waiting")

    def __init__(
        self,
        runtime: Runtime,
        components: Components,
        peers: PeerStates,
        control: ControlPlane,
        waiting: WaitingRoom,
    ) -> None:
        super().__init__(runtime, components, peers, control)
        self.waiting = waiting
        self.later_token = 0
        self.execution: Execution
        self.frame: Frame

    @property
    def exec_id(self) -> int:
        """The execution that the op runs in; numbers are never given twice."""
        return self.execution.id

    @property
    def cohort(self) -> int:
        """See `Ctx.cohort`."""
        up = self.op.cohort
        if up is None or up < 0:
            return up or 0
        execution = self.execution
        for _ in range(up):
            if execution.parent is not None:
                execution = execution.parent
        return execution.id

    @property
    def crowded(self) -> bool:
        """Whether others wait for executions of this node, too."""
        return self.waiting.crowded

    def later(self, deadline_ns: int | None = None) -> Later:
        """Parks the op; the handle is fulfilled from any thread.

        `deadline_ns` is relative, None: the op's or the node's own.
        """
        return self.waiting.later(self, deadline_ns)


@dataclass(frozen=True)
class Core:
    """The parts of a node that ops may call, the lower floors first."""

    runtime: Runtime
    scheduler: Scheduler
    ctx: OpContext
    states: OpStates
    ingress: Ingress
    links: Links
    peers: PeerStates
    wish: SnapshotWish
    outgoing: Outgoing
    control: ControlPlane
    requests: Requests


@dataclass(frozen=True)
class BindEnv(Core):
    """What ops may hold on to; `state` is shared by the ops of one target, keyed as they like.

    `once` makes what follows from the program alone once for all nodes that are installed alike.
    """

    graph: BoundGraph
    state: dict[object, Any]
    backends: Mapping[str, Backend]
    program: Program
    graphs: Mapping[FunctionKey, BoundGraph]
    once: Once


if TYPE_CHECKING:
    # Holds the type checker to what components are promised.
    _PROMISED: tuple[type[ProtocolCtx], ...] = (OpContext, ControlContext)
