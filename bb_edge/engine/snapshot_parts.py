"""What the parts of a snapshot share: the node's tables."""

from __future__ import annotations

from dataclasses import dataclass

from bb_edge.engine.engine import Engine
from bb_edge.engine.entries.bootstraps import Bootstraps
from bb_edge.engine.net.surroundings import Surroundings
from bb_edge.engine.run.naming import Naming
from bb_edge.engine.run.op_states import OpStates
from bb_edge.engine.run.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Parts:
    """A node, as whoever writes it down sees it."""

    engine: Scheduler
    cycle: Engine
    bootstraps: Bootstraps
    naming: Naming
    states: OpStates
    contexts: tuple[Surroundings, ...]  # in install order, the ops' own first
