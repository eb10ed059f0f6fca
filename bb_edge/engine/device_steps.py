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
class DataNoted(EngineStep):
    """A data source says something of its samples that loses none: digits that float32 does not hold."""

    target: str
    slot: str
    note: str


@dataclass(frozen=True, slots=True)
class ModelNoted(EngineStep):
    """A model says something of its training: that its learning rate has fallen to 0."""

    target: str
    slot: str
    note: str


@dataclass(frozen=True, slots=True)
class ValueBeganAnew(EngineStep):
    """A slot has dropped the value that it adopted, `kept`: the program gives it another kind, `given`."""

    target: str
    slot: str
    kept: str
    given: str


@dataclass(frozen=True, slots=True)
class RequestDeclined(EngineStep):
    """This node has declined a peer's request, on purpose; `why` says.

    Because its conditions for training do not hold, or because `op` declined it. The peer is told at once, so
    that its round does not wait.
    """

    peer: PeerId
    target: str
    why: str
    op: str = ""
