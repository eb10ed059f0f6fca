"""Whether a peer runs the same program, or one whose nodes this one takes.

Nodes say in their presence which program they run and, per pair of classes, a digest of what travels between
the two. Where that differs, the two cannot talk. Where only the program does, one of both must list the
other: the compiler writes the list into the artifact (`bb-host compile --accepts OLD.onnx`).

Rule W19 of the specification.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

CLAIM = PROGRAM_META, ACCEPTS_META, CONTRACTS_META = "program", "accepts", "contracts"
"""Where a presence says these."""
MAX_ACCEPTED = 16
"""Programs that one artifact takes beside its own: as many versions as a fleet has at once, and more."""
MAX_CONTRACTS = 64
"""Pairs of classes of one node."""


class Kinship(enum.Enum):
    """How a peer's program goes with this node's."""

    SAME = "the same program"
    UNTOLD = "one of both does not say which program it runs"
    ACCEPTED = "another program, which one of both lists"
    OTHER_PROGRAM = "another program, which neither lists"
    OTHER_CONTRACT = "other things travel between the two"

    @property
    def remedy(self) -> str:
        """What to do where they do not go together; empty where they do."""
        if self is Kinship.OTHER_PROGRAM:
            return "update the device that is behind, or compile the new program with --accepts OLD.onnx"
        if self is Kinship.OTHER_CONTRACT:
            return "run the same program on both: what they would send each other differs"
        return ""

    @property
    def talks(self) -> bool:
        """Whether such a peer is asked and heard."""
        return self not in (Kinship.OTHER_PROGRAM, Kinship.OTHER_CONTRACT)


@dataclass(frozen=True, slots=True)
class ProgramClaim:
    """What a node says of its program. Digests are bytes; `contracts` are by pair, see `pair`."""

    program: bytes = b""
    accepts: frozenset[bytes] = frozenset()
    contracts: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def from_meta(cls, meta: Mapping[str, object]) -> ProgramClaim | None:
        """Reads what `meta` wrote; None where a presence does not say it, or says nothing sensible."""
        program, accepts = meta.get(PROGRAM_META), meta.get(ACCEPTS_META, [])
        contracts = meta.get(CONTRACTS_META, {})
        if not isinstance(program, bytes) or not isinstance(accepts, list) or not isinstance(contracts, dict):
            return None
        if len(accepts) > MAX_ACCEPTED or len(contracts) > MAX_CONTRACTS:
            return None
        if not all(isinstance(one, bytes) for one in (*accepts, *contracts.values())):
            return None
        return cls(program, frozenset(accepts), contracts)

    def meta(self) -> dict[str, Any]:
        """The claim as entries of a presence's metadata; none where the artifact names no program."""
        if not self.program:
            return {}
        found: dict[str, Any] = {PROGRAM_META: self.program, CONTRACTS_META: dict(self.contracts)}
        if self.accepts:
            found[ACCEPTS_META] = sorted(self.accepts)
        return found

    def kinship(
        self, own_classes: Iterable[str], other: ProgramClaim | None, classes: Iterable[str]
    ) -> Kinship:
        """How a peer goes with this node that is of `classes` and claims `other`."""
        if other is None or not (self.program and other.program):
            return Kinship.UNTOLD
        if self.program == other.program:
            return Kinship.SAME
        mine = tuple(own_classes)
        for theirs in classes:
            for own in mine:
                key = pair(own, theirs)
                if self.contracts.get(key) != other.contracts.get(key):
                    return Kinship.OTHER_CONTRACT
        listed = other.program in self.accepts or self.program in other.accepts
        return Kinship.ACCEPTED if listed else Kinship.OTHER_PROGRAM


def pair(one: str, other: str) -> str:
    """Names two classes, in either order."""
    return f"{one}.{other}" if one <= other else f"{other}.{one}"
