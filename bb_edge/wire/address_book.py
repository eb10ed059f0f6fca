"""Where peers are reached (semantics §7): peer → (ordered addresses, reference count), bounded.

Entries come in two ways. `add_peer` holds a reference and stays until as many `drop_peer` have given it back.
`learn` takes what an envelope says about its sender, so that it can be answered; such an entry has no
reference, and makes room for others, the one learned first, when the book is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bb_edge.ir.address import Address
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId


class AddressBookError(BBError):
    """Base of the book's refusals; each leaves the book as it was."""


class EmptyAddressListError(AddressBookError):
    """A peer was to be added without an address."""


class UnknownPeerError(AddressBookError):
    """The book has no such peer."""


class AddressBookFullError(AddressBookError):
    """As many referenced peers as the book holds, or as many addresses as one peer may have."""


class _Entry:
    __slots__ = ("addresses", "learned_from", "references")

    def __init__(self, addresses: tuple[Address, ...], references: int) -> None:
        self.addresses = addresses
        self.references = references
        # What was learned last, as bytes: mostly the same comes again, and need not be parsed.
        self.learned_from: tuple[bytes, ...] = ()


class AddressBook:
    """The book of one node."""

    __slots__ = ("_capacity", "_entries", "_per_peer", "forgotten", "truncated")

    def __init__(self, capacity: int = 1024, addresses_per_peer: int = 8) -> None:
        """`capacity` peers, and that many addresses of each."""
        self._capacity = capacity
        self._per_peer = addresses_per_peer
        self._entries: dict[PeerId, _Entry] = {}
        self.forgotten = 0  # learned peers that made room for others
        self.truncated = 0  # learned addresses beyond what one peer may have

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._entries

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._entries)

    def lookup(self, peer: PeerId) -> tuple[Address, ...] | None:
        """The peer's addresses in order; None for an unknown peer and for one with no address."""
        entry = self._entries.get(peer)
        return entry.addresses or None if entry is not None else None

    def references(self, peer: PeerId) -> int:
        """How often the peer was added and not yet dropped; 0 where it was learned, or is unknown."""
        entry = self._entries.get(peer)
        return 0 if entry is None else entry.references

    # --- referenced peers --------------------------------------------------------------------------------

    def add_peer(self, peer: PeerId, addresses: Iterable[Address]) -> None:
        """One reference more; new addresses go behind those that are known.

        Raises EmptyAddressListError, or AddressBookFullError for a peer or an address too many.
        """
        given = tuple(dict.fromkeys(addresses))
        if not given:
            raise EmptyAddressListError("no address", f"peer {peer}", "a peer needs at least one")
        entry = self._entries.get(peer)
        merged = given if entry is None else tuple(dict.fromkeys(entry.addresses + given))
        self._check_length(peer, merged)
        if entry is None:
            self._make_room(peer)
            self._entries[peer] = _Entry(merged, 1)
        else:
            entry.addresses = merged
            entry.references += 1

    def drop_peer(self, peer: PeerId) -> None:
        """One reference less; at 0 the peer is gone. UnknownPeerError where there is none to drop."""
        entry = self._entry(peer)
        entry.references -= 1
        if entry.references <= 0:
            del self._entries[peer]

    def register_address(self, peer: PeerId, address: Address) -> None:
        """One address more of a known peer. Raises UnknownPeerError or AddressBookFullError."""
        entry = self._entry(peer)
        if address not in entry.addresses:
            self._check_length(peer, (*entry.addresses, address))
            entry.addresses += (address,)

    def forget_address(self, peer: PeerId, address: Address) -> None:
        """One address less; the peer stays, even without any. Raises UnknownPeerError."""
        entry = self._entry(peer)
        entry.addresses = tuple(a for a in entry.addresses if a != address)
        entry.learned_from = ()

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
                "forget one first, or raise NodeConfig.peer_addresses",
            )

    def _make_room(self, peer: PeerId) -> None:
        if len(self._entries) < self._capacity:
            return
        victim = next((p for p, entry in self._entries.items() if entry.references == 0), None)
        if victim is None:
            raise AddressBookFullError(
                f"{self._capacity} peers already",
                f"peer {peer}",
                "drop one first, or raise NodeConfig.max_peers",
            )
        del self._entries[victim]
        self.forgotten += 1

    # --- learned peers -----------------------------------------------------------------------------------

    def learn(self, peer: PeerId, claimed: Sequence[bytes], observed: bytes | None = None) -> bool:
        """Merges what an envelope claims about its sender, then where it was seen; True where that is news.

        A list without news is not rewritten; else the new list stands before what was known, cut at what a
        peer may have. Raises AddressError for bytes that are no address, AddressBookFullError for a peer too
        many; the book is then as it was.
        """
        raw = (*claimed, observed) if observed is not None else tuple(claimed)
        entry = self._entries.get(peer)
        if not raw or (entry is not None and entry.learned_from == raw):
            return False
        given = tuple(dict.fromkeys(Address.from_bytes(data) for data in raw))
        if entry is None:
            self._make_room(peer)
            entry = self._entries[peer] = _Entry((), 0)
        entry.learned_from = raw
        if all(address in entry.addresses for address in given):
            return False
        merged = tuple(dict.fromkeys(given + entry.addresses))
        self.truncated += max(len(merged) - self._per_peer, 0)
        entry.addresses = merged[: self._per_peer]
        return True

    # --- snapshot ----------------------------------------------------------------------------------------

    def snapshot(self) -> list[list[Any]]:
        """[peer, references, addresses] rows for CBOR."""
        return [
            [peer.to_bytes(), entry.references, [address.to_bytes() for address in entry.addresses]]
            for peer, entry in self._entries.items()
        ]

    def restore(self, data: Sequence[Sequence[Any]]) -> None:
        """Replaces the book's contents. AddressBookFullError where the snapshot has more than fits."""
        if len(data) > self._capacity:
            raise AddressBookFullError(f"{len(data)} peers in the snapshot, {self._capacity} fit", "restore")
        self._entries = {
            PeerId.from_bytes(peer): _Entry(tuple(Address.from_bytes(a) for a in addresses), references)
            for peer, references, addresses in data
        }
