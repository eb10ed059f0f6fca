"""How many peers a round needs before it runs: the `min` of the samples that it begins with.

A sample below its `min` takes nobody, so that the round would run for nothing. Only samples that wait for
nothing but the round's start are looked at: of a later one nobody knows whether it will come to be.

Rule E13 of the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bb_edge.engine.errors import OpError
from bb_edge.engine.net.control_plane import ControlPlane, OpSurroundings
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.surroundings import Surroundings
from bb_edge.engine.run.bound import BoundGraph, BoundOp
from bb_edge.engine.run.components import Components
from bb_edge.engine.runtime import Runtime
from bb_edge.ir import keys
from bb_edge.ir.ids import PeerId
from bb_edge.ir.opsets import OpKind
from bb_edge.roles import PeerSelector
from bb_edge.roles.completion import Later
from bb_edge.roles.containment import contained

if TYPE_CHECKING:
    import numpy as np


class Lack(NamedTuple):
    """The peers that a round waits for: of which class, how many there are, how many there must be.

    `failing` are those of the class that are up, and left requests unanswered. `offline` says that there
    would be enough, had this node not lost its connection: of those that are left it has heard since. `op` is
    the sample that asks for them.
    """

    peer_class: str
    there: int
    wanted: int
    failing: tuple[PeerId, ...] = ()
    offline: bool = False
    op: str = ""


class RoundContext(OpSurroundings):
    """What a selector sees that is asked how many peers there are: no op stands behind it.

    It draws from the generator of ops, which snapshots hold.
    """

    __slots__ = ("_ops",)

    exec_id = 0

    def __init__(
        self, components: Components, peers: PeerStates, control: ControlPlane, ops: Surroundings
    ) -> None:
        super().__init__(ops.runtime, components, peers, control)
        self._ops = ops

    @property
    def rng(self) -> np.random.Generator:
        """The generator of ops."""
        return self._ops.rng

    def later(self, deadline_ns: int | None = None) -> Later:
        """Raises OpError: a round is about to begin, and waits for nobody."""
        raise OpError(
            "no op to answer later for: a round asks how many peers there are",
            hint="give the view at once; Sample may answer later",
        )


class Quorum:
    """The samples of one `Repeat` that have a `min`."""

    def __init__(
        self,
        runtime: Runtime,
        components: Components,
        ctx: RoundContext,
        graph: BoundGraph,
        start: BoundOp,
        class_of: Callable[[str, str], str],
        peers: PeerStates,
    ) -> None:
        """`class_of(target, slot)` is the class of the peers that a selector chooses among."""
        self._runtime = runtime
        self._components = components
        self._ctx = ctx
        self._class_of = class_of
        self._peers = peers
        # What is durable waits for a connection by itself, and such a round is to be told without one.
        self._needs_connection = all(op.spec.meta.get(keys.DURABLE_KEY) != "1" for op in graph.ops)
        self._samples = [
            (op, least)
            for op in graph.ops
            if isinstance(least := op.spec.attrs.get("min"), int) and least > 0 and _begins(graph, op, start)
        ]

    def lack(self) -> Lack | None:
        """What the first sample lacks that would take nobody now; None where none lacks anybody."""
        for op, least in self._samples:
            selector = self._components[op.component]
            if not isinstance(selector, PeerSelector):
                continue
            slot = str(op.spec.attrs.get("slot", "")) or self._components.slot_of(op.component)
            try:
                self._ctx.op = op
                view = selector.current_view(self._ctx)
                if isinstance(view, Later):
                    continue
                there = len(view) + selector.resting(self._ctx) if view else 0
                offline = there >= least and self._needs_connection and self._peers.uplink.returning
                if offline:
                    there = self._reached(view, selector)
            # The border to users' components: how many there are is not known, so that the round runs.
            except BaseException as error:  # noqa: BLE001
                origin = f"slot {slot!r} ({selector.TYPE_NAME}.current_view)"
                self._runtime.component_failed(op.target, f"{slot}.current_view", origin, contained(error))
                continue
            if there < least:
                peer_class = self._class_of(op.target, slot)
                failing = () if offline else self._peers.failing_of(peer_class)
                return Lack(peer_class, there, least, failing, offline, op.spec.name)
        return None

    def next_try_ns(self, failing: Iterable[PeerId]) -> int:
        """How long it is until the first of them is tried again, and counts; 0 where none has to wait."""
        trials, probes = self._peers.failing.answers, self._peers.backoff
        due = [max(trials.next_trial(peer), probes.next(peer)) for peer in failing]
        return max(0, min(due) - self._runtime.now_ns) if due else 0

    def _reached(self, view: Sequence[PeerId], selector: PeerSelector) -> int:
        """How many of them the node reaches that has no connection, or got it back just now: itself, those
        that it has heard since, and, where it has heard somebody, those that it would not wait for.
        """
        uplink, own = self._peers.uplink, self._runtime.own_peer
        there = sum(peer == own or uplink.reaches(peer) for peer in view)
        return there + selector.resting(self._ctx) if uplink.connected and there else there


def _begins(graph: BoundGraph, op: BoundOp, start: BoundOp) -> bool:
    """Whether the op is a sample that waits for the start of the round, and for nothing that may not come."""
    if op.spec.domain != keys.ROLE_PEER_SELECTOR_DOMAIN or op.spec.region != start.spec.region:
        return False
    makers = {site: other for other in graph.ops for site in other.outs if site >= 0}
    starts, after, seen = False, [op], {op.index}
    while after:
        spec = after.pop().spec
        for site in (*spec.inputs, *spec.controls):
            maker = makers.get(site)
            if maker is start:
                starts = True
            elif maker is not None and maker.index not in seen:
                if maker.spec.kind is OpKind.ENTRY or maker.spec.domain in _MAY_NOT_COME:
                    return False
                seen.add(maker.index)
                after.append(maker)
    return starts


_MAY_NOT_COME = frozenset({keys.WIRE_DOMAIN, keys.GATE_DOMAIN, keys.SYSCALL_DOMAIN, *keys.ROLE_DOMAINS})
"""Domains with ops that may give nothing, or only later."""
