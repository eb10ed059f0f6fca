"""Steps that tell of the device: the data that it reads, and the times when it works."""

from __future__ import annotations

from dataclasses import dataclass

from bb_edge.engine.step import EngineStep
from bb_edge.ir.ids import PeerId


@dataclass(frozen=True, slots=True)
class DataLeftOut(EngineStep):
    """A data source has left out samples, or may have missed some; `samples` is 0 where nobody knows them."""

    target: str
    slot: str
    why: str
    samples: int = 0


@dataclass(frozen=True, slots=True)
class TrainingDeclined(EngineStep):
    """This node has declined a request that trains, because its conditions for that do not hold; `why` says.

    The peer is told at once, so that its round does not wait.
    """

    peer: PeerId
    target: str
    why: str
