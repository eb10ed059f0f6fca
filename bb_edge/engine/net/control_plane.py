"""The control plane: components that speak to their counterparts on other nodes.

A component with `remote` ops is reached at `/component/<ref>/op/<name>`; `ref` is its slot's number in the
artifact, so a slot speaks to the slot of the same name at the peer, whatever component is bound there. One
fill carries one op; its payload is the component's own affair. What comes in is handled at once, in the
ingress phase, outside of any execution.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any

from bb_edge.engine.errors import OpError
from bb_edge.engine.net.calls import Calls, Replies
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.outlets import Outlet, Remote, remote_methods
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.surroundings import ControlContext, Surroundings
from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.components import Components
from bb_edge.engine.runtime import Runtime
from bb_edge.roles import ProtocolComponent
from bb_edge.roles.completion import CompletionSink


@dataclass(slots=True, eq=False)
class ControlPlane:
    """All outlets of a node, by the numbers of their components; their calls and their late replies.

    `sink` takes the answers that components give later, from any thread.
    """

    _runtime: Runtime
    _components: Components
    _peers: PeerStates
    _outgoing: Outgoing
    sink: InitVar[CompletionSink]
    _outlets: dict[int, Outlet] = field(default_factory=dict)
    calls: Calls = field(init=False)
    replies: Replies = field(init=False)

    def __post_init__(self, sink: CompletionSink) -> None:
        self.calls = Calls(self._runtime, self._outgoing, self._peers)
        self.replies = Replies(self._runtime, self._peers, sink)

    def add(
        self, ref: int, index: int, component: ProtocolComponent, target: str, slot: str
    ) -> dict[str, Remote]:
        """Ties in a component; gives what serves its remote ops, by name. OpError where one cannot be."""
        make = partial(ControlContext, self._runtime, self._components, self._peers, self.calls, self.replies)
        outlet = self._outlets[index] = Outlet(
            self._runtime, self._outgoing, ref, component, target, slot, make
        )
        methods = remote_methods(component)
        return {op: partial(self.replies.serve, outlet, op, method) for op, method in methods.items()}

    def replace(self, index: int, component: ProtocolComponent) -> None:
        """Puts a component that was constructed anew behind its outlet."""
        self._outlets[index].component = component

    @property
    def contexts(self) -> list[ControlContext]:
        """What the components' callbacks see, in the order of install."""
        return [outlet.ctx for outlet in self._outlets.values()]

    def outlet_of(self, component: int) -> Outlet:
        """The outlet of a component, by number. OpError where it is not a protocol."""
        outlet = self._outlets.get(component)
        if outlet is None:
            raise OpError("the component has no ops of its own", "control plane", "derive ProtocolComponent")
        return outlet

    @property
    def targets(self) -> frozenset[str]:
        """Targets with components that want to be started."""
        return frozenset(outlet.target for outlet in self._outlets.values())

    def start(self, target: str) -> None:
        """A target runs: its components begin."""
        for outlet in self._outlets.values():
            if outlet.target == target:
                outlet.call("started", outlet.component.started)

    def stop(self) -> None:
        """The node shuts down: components say goodbye."""
        for outlet in self._outlets.values():
            outlet.call("stopping", outlet.component.stopping)

    def save(self) -> list[Any]:
        """The calls that wait, as plain values. Late replies end with the process: nobody could give them."""
        return self.calls.save()

    def restore(self, rows: Any) -> None:
        """Takes what `save` gave. KeyError or AttributeError where a slot or method is not there."""
        self.calls.restore(rows, {outlet.name: outlet for outlet in self._outlets.values()})


class OpSurroundings(Surroundings):
    """What is shown in the name of `op`: of the one that runs, or of one that a round looks at before."""

    __slots__ = ("_control", "op")

    def __init__(
        self, runtime: Runtime, components: Components, peers: PeerStates, control: ControlPlane
    ) -> None:
        super().__init__(runtime, components, peers, control.calls)
        self._control = control
        self.op: BoundOp

    @property
    def outlet(self) -> Outlet:
        """The outlet of the op's component. OpError where it is not a protocol."""
        return self._control.outlet_of(self.op.component)

    @property
    def offloads(self) -> str:
        """The op's name."""
        return self.op.spec.name

    @property
    def target(self) -> str:
        """The target that the op belongs to."""
        return self.op.target
