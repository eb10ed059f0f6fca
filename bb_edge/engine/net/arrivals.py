"""What has arrived: the bytes of an envelope, and what reading them has shown."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bb_edge.ir.ids import PeerId
from bb_edge.wire.envelope import Envelope


@dataclass(frozen=True, slots=True)
class Raw:
    """An inbound envelope as it came; `observed` is the address that its sender was seen at."""

    data: bytes
    peer: PeerId
    observed: bytes | None

    def save(self) -> list[Any]:
        """Plain values for a snapshot."""
        return [bytes(self.data), self.peer.to_bytes(), self.observed]

    @classmethod
    def restored(cls, row: Sequence[Any]) -> Raw:
        """The envelope of what `save` gave."""
        data, peer, observed = row
        return cls(data, PeerId.from_bytes(peer), observed)


class Kind(enum.Enum):
    """What an envelope brings, which decides what is asked before it is taken."""

    ENTRY = "starts an execution"
    CONTROL = "calls remote ops of components alone"
    ANSWER = "answers a request"


@dataclass(frozen=True, slots=True)
class Arrival:
    """An envelope that has been read; `deadline_ns` is absolute, 0: none."""

    raw: Raw
    message: Envelope
    kind: Kind
    deadline_ns: int
