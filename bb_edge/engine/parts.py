"""The parts of one node by name, for those who look at all: the engine, snapshots, restarts, tools."""

from __future__ import annotations

from dataclasses import dataclass

from bb_edge.engine.binding import OpContext
from bb_edge.engine.entries.bootstraps import Bootstraps
from bb_edge.engine.entries.sources import Sources
from bb_edge.engine.net.admission import Admission
from bb_edge.engine.net.control_plane import ControlPlane
from bb_edge.engine.net.ingress import Ingress
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.requests import Requests
from bb_edge.engine.net.surroundings import Surroundings
from bb_edge.engine.net.until_snapshot import SnapshotWish
from bb_edge.engine.run.components import OpStates
from bb_edge.engine.run.naming import Naming
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.runtime import Runtime
from bb_edge.wire.delivery import Links


@dataclass(frozen=True)
class Core:
    """Those that ops may call, the lower floors first."""

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
class Parts(Core):
    """All of them."""

    admission: Admission
    sources: Sources
    bootstraps: Bootstraps
    naming: Naming

    @property
    def contexts(self) -> tuple[Surroundings, ...]:
        """What ops and components see, in install order, the ops' own first."""
        return self.ctx, *self.control.contexts
