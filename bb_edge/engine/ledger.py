"""Who holds what of the inbound bounds: places of waiting envelopes, places of waiting entries, bytes.

A fixed share per peer would waste most of a bound, none at all would leave it to whoever sends fastest. So a
peer's share follows what is free (the dynamic thresholds of shared-memory switches): the fuller the node, the
less a greedy peer may add, and one that holds little finds a place.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId

FAIR_SHARE = 7
"""A peer may hold this many times what is free: 7/8 of a bound alone, 7/15 each where there are two."""


class IngressFull(BBError):
    """The newcomer found no place, and nothing was kept of it.

    Names the limit, what is in use, and what was asked for.
    """


@dataclass(slots=True)
class Account:
    """What one peer holds."""

    envelopes: int = 0
    entries: int = 0
    bytes: int = 0


@dataclass(slots=True, eq=False)
class Ledger:
    """The inbound bounds of a node: what is taken of each, in all and by peer. For any thread.

    An envelope takes a place among the `envelopes` and its bytes when it arrives. A poll gives the place
    back; what starts an execution takes one among the `entries` until it is admitted. The bytes stay charged
    until whatever the envelope feeds has ended. What the host or the node itself starts is charged to nobody.
    `contributors` counts the peers that hold a place among the entries.
    """

    max_envelopes: int
    max_entries: int
    max_bytes: int
    envelopes: int = 0
    entries: int = 0
    bytes: int = 0
    contributors: int = 0
    _accounts: dict[PeerId, Account] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- envelopes ------------------------------------------------------------------------------------

    def take_envelope(self, peer: PeerId, size: int, fair: bool = True) -> None:
        """Takes a place and `size` bytes for an envelope. IngressFull, taking nothing, where one is missing.

        Unless `fair`, the peer may take all that is free.
        """
        with self._lock:
            account = self._accounts.get(peer)
            free_places, free_bytes = self.max_envelopes - self.envelopes, self.max_bytes - self.bytes
            held, held_bytes = (account.envelopes, account.bytes) if account is not None else (0, 0)
            greedy = fair and held >= FAIR_SHARE * free_places
            if free_places < 1 or greedy:
                raise IngressFull(
                    f"{self.envelopes} envelopes wait already"
                    + (f", {held} of them of this peer" if free_places >= 1 else ""),
                    where=f"ingress, from {peer}",
                    hint="poll more often, or raise limits.ingress_entries",
                )
            greedy = fair and held_bytes >= FAIR_SHARE * free_bytes
            if free_bytes < size or greedy:
                raise IngressFull(
                    f"{size} bytes requested, {free_bytes} available of {self.max_bytes}"
                    + (f", the peer holds {held_bytes}" if free_bytes >= size else ""),
                    where=f"ingress, from {peer}",
                    hint="raise limits.ingress_bytes (--config; in Python NodeConfig)",
                )
            if account is None:
                account = self._account(peer)
            account.envelopes += 1
            account.bytes += size
            self.envelopes += 1
            self.bytes += size

    def envelope_taken(self, peer: PeerId) -> None:
        """A poll has taken the envelope: its place is free, its bytes stay charged."""
        with self._lock:
            account = self._accounts[peer]
            account.envelopes -= 1
            self.envelopes -= 1
            self._forget_idle(peer, account)

    # --- entries --------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether no place is left for an entry."""
        return self.entries >= self.max_entries

    @property
    def pressure(self) -> float:
        """How full the entries are: 0 to 1, or above after a restart with a smaller bound."""
        return self.entries / self.max_entries

    def full_for(self, peer: PeerId) -> bool:
        """Whether no place is left for an entry of the peer."""
        free = self.max_entries - self.entries
        if free < 1:
            return True
        account = self._accounts.get(peer)
        return account is not None and account.entries >= FAIR_SHARE * free

    def contributes(self, peer: PeerId) -> bool:
        """Whether the peer holds at least an equal share of the entries: the others need not be told off."""
        account = self._accounts.get(peer)
        held = 0 if account is None else account.entries
        return held * self.contributors >= self.entries

    def take_entry(self, peer: PeerId | None) -> None:
        """Takes a place for an entry; the caller has asked whether there is one."""
        with self._lock:
            self.entries += 1
            if peer is not None:
                account = self._account(peer)
                account.entries += 1
                if account.entries == 1:
                    self.contributors += 1

    def take_invoke(self) -> None:
        """Takes a place for an entry of the host's. Raises IngressFull if all are taken."""
        with self._lock:
            if self.entries >= self.max_entries:
                raise IngressFull(
                    f"{self.entries} entries wait already",
                    where="ingress",
                    hint="poll more often, or raise limits.ingress_entries",
                )
            self.entries += 1

    def entry_admitted(self, peer: PeerId | None) -> None:
        """The entry has become an execution, or is dropped: its place is free."""
        with self._lock:
            self.entries -= 1
            if peer is not None:
                account = self._accounts[peer]
                account.entries -= 1
                if not account.entries:
                    self.contributors -= 1
                self._forget_idle(peer, account)

    # --- bytes ----------------------------------------------------------------------------------------

    def charge(self, peer: PeerId | None, size: int) -> bool:
        """Charges bytes to a peer, whatever its share, or to nobody; False where they are not free."""
        with self._lock:
            if size > self.max_bytes - self.bytes:
                return False
            self._add_bytes(peer, size)
            return True

    def recharge(self, peer: PeerId | None, size: int) -> None:
        """Charges bytes that were charged before a restart, whatever the bound is now."""
        with self._lock:
            self._add_bytes(peer, size)

    def disown(self, peer: PeerId, size: int) -> None:
        """Charges to nobody what was charged to the peer: others wait for what its bytes feed."""
        with self._lock:
            account = self._accounts[peer]
            account.bytes -= size
            self._forget_idle(peer, account)

    def release(self, peer: PeerId | None, size: int) -> None:
        """Gives bytes back: what the envelope fed has ended."""
        with self._lock:
            self.bytes -= size
            if peer is not None and size:
                account = self._accounts[peer]
                account.bytes -= size
                self._forget_idle(peer, account)

    def in_use(self) -> dict[str, object]:
        """What is charged, in all and by peer, as plain data."""
        with self._lock:
            held = [(str(peer), account.bytes, account.entries) for peer, account in self._accounts.items()]
            return {
                "bytes": self.bytes,
                "bytes_by_peer": {peer: count for peer, count, _ in held if count},
                "places": self.entries,
                "places_by_peer": {peer: count for peer, _, count in held if count},
            }

    def _account(self, peer: PeerId) -> Account:
        return self._accounts.setdefault(peer, Account())

    def _add_bytes(self, peer: PeerId | None, size: int) -> None:
        self.bytes += size
        if peer is not None and size:
            self._account(peer).bytes += size

    def _forget_idle(self, peer: PeerId, account: Account) -> None:
        """Drops the account of a peer that holds nothing: the ledger is as large as what is held."""
        if not (account.envelopes or account.entries or account.bytes):
            del self._accounts[peer]
