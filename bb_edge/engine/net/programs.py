"""Which peers run a program that does not go with this node's.

They are not selected and what they send starts nothing, until they say otherwise. Each is told of once per
program, and so is each peer of another program that is taken because one of both lists the other.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from bb_edge.engine import steps
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire.peers import PeerTable
from bb_edge.wire.programs import Kinship, ProgramClaim

_Read = tuple[Mapping[str, object], tuple[str, ...], ProgramClaim | None, Kinship]


class PeerPrograms:
    """The node's own claim, and the peers whose claims do not go with it; as many as have a presence."""

    def __init__(self, runtime: Runtime, claim: ProgramClaim, own_classes: tuple[str, ...]) -> None:
        self._runtime = runtime
        self.claim = claim
        self._own_classes = own_classes
        self.strangers: dict[PeerId, tuple[Kinship, bytes]] = {}
        # The last metadata and classes, and what they come to: a simulation tells the same of many peers.
        self._read: _Read = {}, (), None, Kinship.UNTOLD
        self._accepted: dict[PeerId, bytes] = {}  # the peers of other programs that are taken

    def judge(
        self, peer: PeerId, classes: tuple[str, ...], meta: Mapping[str, object], tell: bool = True
    ) -> None:
        """Takes what a peer's presence says of its program; with `tell`, another program is a step."""
        if self.are_own(classes, meta):  # as nearly all peers
            return
        _, _, theirs, kinship = self._read
        if theirs is None or kinship.talks:
            self.strangers.pop(peer, None)
            self._accept(peer, kinship, theirs, tell)
            return
        self._accepted.pop(peer, None)
        found = kinship, theirs.program
        if self.strangers.get(peer) != found:
            self.strangers[peer] = found
            if tell:
                self._runtime.count("peers.other_program")
                their = theirs.program.hex()[:16]
                self._runtime.emit(steps.ProgramMismatch(peer, kinship.value, their, kinship.remedy))

    def are_own(self, classes: tuple[str, ...], meta: Mapping[str, object]) -> bool:
        """Whether who says so runs the node's own program, and no peer is known that runs another."""
        last, last_classes, _, kinship = self._read
        if meta is not last or classes != last_classes:
            theirs = ProgramClaim.from_meta(meta)
            kinship = self.claim.kinship(self._own_classes, theirs, classes)
            self._read = meta, classes, theirs, kinship
        return kinship is Kinship.SAME and not self.known

    def _accept(self, peer: PeerId, kinship: Kinship, theirs: ProgramClaim | None, tell: bool) -> None:
        if theirs is None or kinship is not Kinship.ACCEPTED:
            self._accepted.pop(peer, None)
        elif self._accepted.get(peer) != theirs.program:
            self._accepted[peer] = theirs.program
            if tell:
                listed = theirs.program in self.claim.accepts
                self._runtime.emit(steps.ProgramAccepted(peer, theirs.program.hex()[:16], listed))

    def keep(self, present: Container[PeerId]) -> None:
        """Forgets whose presence is forgotten."""
        for table in (self.strangers, self._accepted):
            for peer in [peer for peer in table if peer not in present]:
                del table[peer]

    @property
    def known(self) -> int:
        """How many peers of other programs are known, taken or not."""
        return len(self.strangers) + len(self._accepted)

    def up_counts(self, presences: PeerTable) -> tuple[dict[str, int], int, int]:
        """Returns how many peers are up whose program goes with this one, by class, in all, and others."""
        by_class, count = presences.up_counts()
        others = [peer for peer in self.strangers if presences.is_up(peer)]
        for name in by_class if others else ():
            up = {*presences.up_peers(name)}
            by_class[name] -= sum(peer in up for peer in others)
        return by_class, count - len(others), len(others)

    def why(self, peer: PeerId) -> str:
        """Why nothing is taken from the peer; "" where its program goes with this node's."""
        found = self.strangers.get(peer) if self.strangers else None
        return "" if found is None else f"{found[0].value}: its program is {found[1].hex()[:16]}…"
