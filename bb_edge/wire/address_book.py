"""Where peers are reached: their addresses in order, with counts of references, bounded.

Entries come in two ways. `add_peer` holds a reference and stays until as many `drop_peer` have given it back.
`learn` takes what a presence or an envelope says about its sender, so that the node can answer; such an entry
has no reference. The address of a peer that has a place in the node's table of peers stays as long as the
place: the table's bound bounds those, the book's own bound the others. Where the others are too many, the one
without reference that was learned first makes room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bb_edge.ir.address import Address
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId


class AddressBookError(BBError):
    """Base of the book's refusals; each leaves the book as it was."""


class EmptyAddressListError(AddressBookError):
    """A peer is added without an address."""


class UnknownPeerError(AddressBookError):
    """The book has no such peer."""


class AddressBookFullError(AddressBookError):
    """All rows for peers without a place, or all those for one peer's addresses, are taken."""


class _Entry:
    """What the book notes of a peer beside its addresses."""

    __slots__ = ("learned_from", "references")

    def __init__(self, references: int) -> None:
        self.references = references
        # What was learned last, as bytes: the same list comes again and again, and is parsed once.
        self.learned_from: tuple[bytes, ...] = ()


class AddressBook:
    """The addresses of the peers that one node knows."""

    __slots__ = (
        "_capacity",
        "_entries",
        "_has_place",
        "_others",
        "_per_peer",
        "addresses",
        "forgotten",
        "truncated",
    )

    def __init__(
        self,
        capacity: int = 1024,
        addresses_per_peer: int = 8,
        has_place: Callable[[PeerId], bool] = lambda _peer: False,
    ) -> None:
        """Holds `capacity` peers with `addresses_per_peer` addresses each, and all that `has_place`.

        1024 peers is what the other tables about peers hold by default; 8 addresses are an IPv4, an IPv6 and
        a name on a few networks.
        """
        self._capacity = capacity
        self._per_peer = addresses_per_peer
        self._has_place = has_place
        self.addresses: dict[PeerId, tuple[Address, ...]] = {}
        """The addresses of each peer in order. To be read only."""
        self._entries: dict[PeerId, _Entry] = {}
        # Rows that are counted against `capacity`, oldest first: each had no place when it was made. Those
        # that have got one since are taken out when the count matters.
        self._others: dict[PeerId, None] = {}
        self.forgotten = 0  # learned peers that made room for others
        self.truncated = 0  # learned addresses beyond what one peer may have

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._entries

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._entries)

    def lookup(self, peer: PeerId) -> tuple[Address, ...] | None:
        """Returns the peer's addresses in order; None for an unknown peer and for one without an address."""
        return self.addresses.get(peer) or None

    def references(self, peer: PeerId) -> int:
        """Returns how often the peer was added and not yet dropped; 0 where it was learned, or is unknown."""
        entry = self._entries.get(peer)
        return 0 if entry is None else entry.references

    # --- referenced peers --------------------------------------------------------------------------------

    def add_peer(self, peer: PeerId, addresses: Iterable[Address]) -> None:
        """Adds a reference to a peer, and its new addresses after those that are known.

        Raises EmptyAddressListError, or AddressBookFullError for a peer or an address too many.
        """
        new = tuple(dict.fromkeys(addresses))
        if not new:
            raise EmptyAddressListError("no address", f"peer {peer}", "give at least one address")
        entry = self._entries.get(peer)
        merged = tuple(dict.fromkeys(self.addresses.get(peer, ()) + new))
        self._check_length(peer, merged)
        if entry is None:
            self._make_room(peer)
            entry = self._entries[peer] = _Entry(0)
        self.addresses[peer] = merged
        entry.references += 1

    def drop_peer(self, peer: PeerId) -> None:
        """Takes a reference back; at 0 the peer is gone, unless it has a place. Raises UnknownPeerError."""
        entry = self._entry(peer)
        entry.references = max(entry.references - 1, 0)
        if entry.references == 0 and not self._has_place(peer):
            self._remove(peer)

    def lost_place(self, peer: PeerId) -> None:
        """Another peer has got the peer's place: what was learned of it goes too; references stay."""
        entry = self._entries.get(peer)
        if entry is not None and entry.references == 0:
            self._remove(peer)

    def left_place(self, peer: PeerId) -> None:
        """The peer has left its place: it stands among the others, and what it asked before is answered."""
        if peer in self._entries:
            self._others[peer] = None

    def register_address(self, peer: PeerId, address: Address) -> None:
        """Adds an address to a known peer. Raises UnknownPeerError or AddressBookFullError."""
        self._entry(peer)
        if address not in self.addresses[peer]:
            self._check_length(peer, (*self.addresses[peer], address))
            self.addresses[peer] += (address,)

    def _entry(self, peer: PeerId) -> _Entry:
        entry = self._entries.get(peer)
        if entry is None:
            raise UnknownPeerError(
                "not in the address book", f"peer {peer}", "insert it first: g.address_book_insert"
            )
        return entry

    def _check_length(self, peer: PeerId, addresses: tuple[Address, ...]) -> None:
        if len(addresses) > self._per_peer:
            raise AddressBookFullError(
                f"{len(addresses)} addresses, {self._per_peer} at most",
                f"peer {peer}",
                "name fewer addresses, or raise limits.peer_addresses (--config; in Python NodeConfig)",
            )

    def _make_room(self, peer: PeerId) -> None:
        if self._has_place(peer):
            return
        others = self._others
        if len(others) >= self._capacity:
            for other in [p for p in others if self._has_place(p)]:
                del others[other]  # it has got a place since
        if len(others) >= self._capacity:
            victim = next((p for p in others if self._entries[p].references == 0), None)
            if victim is None:
                raise AddressBookFullError(
                    f"{self._capacity} peers already",
                    f"peer {peer}",
                    "drop a peer first, or raise limits.max_peers (--config; in Python NodeConfig)",
                )
            self._remove(victim)
            self.forgotten += 1
        others[peer] = None

    def _remove(self, peer: PeerId) -> None:
        del self._entries[peer], self.addresses[peer]
        self._others.pop(peer, None)

    # --- learned peers -----------------------------------------------------------------------------------

    def learn(self, peer: PeerId, claimed: Sequence[bytes], observed: bytes | None = None) -> bool:
        """Merges the addresses that an envelope claims for its sender, then the one where it was seen.

        Returns whether any is new. A list without new ones changes nothing; otherwise the list goes before
        what was known, and the end beyond `addresses_per_peer` is cut. Raises AddressError for bytes that are
        not an address, AddressBookFullError for a peer too many; the book is then as it was.
        """
        raw = (*claimed, observed) if observed is not None else tuple(claimed)
        entry = self._entries.get(peer)
        if not raw or (entry is not None and entry.learned_from == raw):
            return False
        new = tuple(dict.fromkeys([Address.from_bytes(data) for data in raw]))
        if entry is None:
            self._make_room(peer)
            entry = self._entries[peer] = _Entry(0)
        known = self.addresses.get(peer, ())
        entry.learned_from = raw
        if known and all(address in known for address in new):
            return False
        merged = tuple(dict.fromkeys(new + known)) if known else new
        self.truncated += max(len(merged) - self._per_peer, 0)
        self.addresses[peer] = merged[: self._per_peer]
        return True

    def learn_ids(self, at: Mapping[PeerId, tuple[bytes]]) -> None:
        """`learn` of many who have a place, each at the address of its id alone."""
        for peer, claimed in at.items():
            if peer in self._entries:
                self.learn(peer, claimed)
                continue
            entry = self._entries[peer] = _Entry(0)
            entry.learned_from = claimed
            self.addresses[peer] = (Address(peer),)

    # --- snapshot ----------------------------------------------------------------------------------------

    def snapshot(self) -> list[list[Any]]:
        """Returns [peer, references, addresses] rows for CBOR."""
        return [
            [peer.to_bytes(), entry.references, [address.to_bytes() for address in self.addresses[peer]]]
            for peer, entry in self._entries.items()
        ]

    def restore(self, data: Sequence[Sequence[Any]]) -> None:
        """Replaces the book's contents. AddressBookFullError where the snapshot holds more than fits."""
        entries = {PeerId.from_bytes(peer): _Entry(references) for peer, references, _ in data}
        others = {peer: None for peer in entries if not self._has_place(peer)}
        if len(others) > self._capacity:
            raise AddressBookFullError(
                f"{len(others)} peers in the snapshot, {self._capacity} fit", "restore"
            )
        self._entries, self._others = entries, others
        self.addresses = {
            PeerId.from_bytes(peer): tuple(Address.from_bytes(a) for a in addresses)
            for peer, _, addresses in data
        }
