"""Which of many peers run a program that does not go with those of the others, by what all say of theirs.

Nobody who looks from outside knows which program is the right one. So a peer is apart from the others where
it does not go with most of those that it would talk to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from bb_edge.wire.programs import ProgramClaim, pair

P = TypeVar("P", bound=Hashable)


class Claimed(NamedTuple):
    """What a peer says: its classes, and its program."""

    classes: tuple[str, ...]
    claim: ProgramClaim

    @property
    def key(self) -> Hashable:
        """Peers of one key go with the same others."""
        claim = self.claim
        return self.classes, claim.program, claim.accepts, tuple(sorted(claim.contracts.items()))


def apart(peers: Mapping[P, tuple[Sequence[str], Mapping[str, object]]]) -> dict[P, int]:
    """The peers that do not go with most of those that they would talk to, and with how many.

    `peers` are those that are up: their classes, and the metadata of their presences. Who says nothing of its
    program goes with everybody.
    """
    groups: dict[Hashable, tuple[Claimed, list[P]]] = {}
    for peer, (classes, meta) in peers.items():
        claim = ProgramClaim.from_meta(meta)
        if claim is not None and claim.program:
            claimed = Claimed(tuple(classes), claim)
            groups.setdefault(claimed.key, (claimed, []))[1].append(peer)
    found: dict[P, int] = {}
    for key, (one, members) in groups.items():
        counts = Counter[bool]()
        for other_key, (other, others) in groups.items():
            count = len(others) - (other_key == key)
            if count and _meet(one, other):
                counts[one.claim.kinship(one.classes, other.claim, other.classes).talks] += count
        if counts[False] > counts[True]:
            found.update(dict.fromkeys(members, counts[False]))
    return found


def _meet(one: Claimed, other: Claimed) -> bool:
    """Whether nodes of these classes send each other anything, by either program."""
    pairs = {pair(mine, theirs) for mine in one.classes for theirs in other.classes}
    return not pairs.isdisjoint(one.claim.contracts) or not pairs.isdisjoint(other.claim.contracts)
