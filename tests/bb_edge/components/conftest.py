"""What components get from an engine, as a plain object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from bb_edge.ir.ids import PeerId
from tests.aids.peers import numbered


@dataclass
class Presence:
    """Peers that are up, by class, and those that are away."""

    classes: dict[str, tuple[PeerId, ...]] = field(default_factory=dict)
    away: dict[str, tuple[PeerId, ...]] = field(default_factory=dict)

    def up_peers(self, peer_class: str) -> tuple[PeerId, ...]:
        return self.classes.get(peer_class, ())

    def known_peers(self, peer_class: str) -> tuple[PeerId, ...]:
        return tuple(sorted((*self.up_peers(peer_class), *self.away.get(peer_class, ()))))

    def resting(self, peer_class: str) -> int:
        return 0


@dataclass
class Surroundings:
    """A `Ctx` whose parts a test sets."""

    exec_id: int = 1
    cohort: int = 0
    now_ns: int = 0
    own_class: str = "Server"
    local_addresses: tuple[bytes, ...] = ()
    own_peer: PeerId = field(default_factory=lambda: numbered(0))
    peers: Presence = field(default_factory=Presence)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))


@pytest.fixture
def ctx() -> Surroundings:
    return Surroundings()


@pytest.fixture
def peer() -> Callable[[int], tuple[PeerId, ...]]:
    """peer(3): that peer as an op sees a sender."""
    return lambda number: (numbered(number),)
