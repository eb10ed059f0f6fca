"""Reference counts, order, bounds, and what is learned from envelopes."""

from __future__ import annotations

import pytest

from bb_edge.ir.address import Address, AddressError
from bb_edge.wire import cbor
from bb_edge.wire.address_book import (
    AddressBook,
    AddressBookFullError,
    EmptyAddressListError,
    UnknownPeerError,
)
from tests.aids.peers import numbered

A, B, C = (numbered(n) for n in range(3))


def at(number: int) -> Address:
    return Address(site=number)


def raw(*numbers: int) -> tuple[bytes, ...]:
    return tuple(at(n).to_bytes() for n in numbers)


def test_references_are_counted() -> None:
    book = AddressBook()
    book.add_peer(A, [at(1), at(2), at(1)])
    book.add_peer(A, [at(2), at(3)])
    assert book.lookup(A) == (at(1), at(2), at(3))
    assert book.references(A) == 2
    book.drop_peer(A)
    assert book.lookup(A) == (at(1), at(2), at(3))
    book.drop_peer(A)
    assert book.lookup(A) is None and A not in book and len(book) == 0
    with pytest.raises(UnknownPeerError):
        book.drop_peer(A)


def test_an_empty_list_is_refused() -> None:
    book = AddressBook()
    with pytest.raises(EmptyAddressListError):
        book.add_peer(A, [])
    assert A not in book


def test_an_address_is_added_once_to_a_known_peer() -> None:
    book = AddressBook()
    with pytest.raises(UnknownPeerError):
        book.register_address(A, at(1))
    book.add_peer(A, [at(1)])
    book.register_address(A, at(2))
    book.register_address(A, at(2))
    assert book.lookup(A) == (at(1), at(2))


def test_peers_below_at_and_above_the_capacity() -> None:
    book = AddressBook(capacity=2)
    book.add_peer(A, [at(1)])
    book.add_peer(B, [at(1)])
    with pytest.raises(AddressBookFullError):
        book.add_peer(C, [at(1)])
    book.add_peer(A, [at(2)])  # a known peer needs no room
    assert len(book) == 2
    book.drop_peer(B)
    book.add_peer(C, [at(1)])


def test_addresses_below_at_and_above_the_limit() -> None:
    book = AddressBook(addresses_per_peer=3)
    book.add_peer(A, [at(1), at(2)])
    book.register_address(A, at(3))
    with pytest.raises(AddressBookFullError):
        book.register_address(A, at(4))
    with pytest.raises(AddressBookFullError):
        book.add_peer(A, [at(4)])
    with pytest.raises(AddressBookFullError):
        book.add_peer(B, [at(n) for n in range(4)])
    assert book.lookup(A) == (at(1), at(2), at(3)) and book.references(A) == 1 and B not in book


def test_claimed_addresses_come_before_the_observed_one_and_both_before_old_ones() -> None:
    book = AddressBook()
    book.add_peer(A, [at(9)])
    assert book.learn(A, raw(1, 2), at(3).to_bytes())
    assert book.lookup(A) == (at(1), at(2), at(3), at(9))
    assert book.references(A) == 1


def test_a_list_without_news_is_not_rewritten() -> None:
    book = AddressBook()
    assert book.learn(A, raw(1, 2))
    before = book.lookup(A)
    assert not book.learn(A, raw(1, 2))
    assert not book.learn(A, raw(2, 1))
    assert not book.learn(A, ())
    assert book.lookup(A) is before


def test_learned_addresses_are_cut_at_the_limit_and_counted() -> None:
    book = AddressBook(addresses_per_peer=3)
    book.learn(A, raw(1, 2))
    book.learn(A, raw(3, 4))
    assert book.lookup(A) == (at(3), at(4), at(1))
    assert book.truncated == 1


def test_learned_peers_make_room_referenced_ones_do_not() -> None:
    book = AddressBook(capacity=2)
    book.learn(A, raw(1))
    book.learn(B, raw(1))
    book.add_peer(C, [at(1)])
    assert A not in book and B in book and book.forgotten == 1
    book.add_peer(B, [at(1)])
    with pytest.raises(AddressBookFullError):
        book.learn(A, raw(1))


def test_the_address_of_a_peer_with_a_place_stays_as_long_as_the_place() -> None:
    places = {A}
    book = AddressBook(capacity=1, has_place=places.__contains__)
    book.learn(A, raw(1))
    book.learn(B, raw(2))
    book.learn(C, raw(3))
    assert A in book and C in book and B not in book and book.forgotten == 1
    places.add(C)  # behind its first envelope its presence came
    book.learn(B, raw(2))
    assert [*book] == [A, C, B]
    places.remove(A)
    book.lost_place(A)
    assert [*book] == [C, B]
    places.remove(C)
    book.left_place(C)  # its presence was removed: it counts among the others again
    book.learn(A, raw(1))
    assert [*book] == [C, A]


def test_a_dropped_peer_with_a_place_is_still_reached() -> None:
    book = AddressBook(has_place={A}.__contains__)
    book.learn(A, raw(1))
    book.add_peer(A, [at(2)])
    for _ in range(2):  # once more than it was added
        book.drop_peer(A)
        assert book.lookup(A) == (at(1), at(2)) and book.references(A) == 0
    book.add_peer(A, [at(2)])
    book.lost_place(A)
    assert book.references(A) == 1, "what the program entered stays"


def test_bytes_that_are_no_address_change_nothing() -> None:
    book = AddressBook()
    with pytest.raises(AddressError):
        book.learn(A, (b"\x01nonsense",))
    assert A not in book


def test_snapshot() -> None:
    book = AddressBook()
    book.add_peer(A, [at(1), at(2)])
    book.learn(B, raw(3))
    data = cbor.loads(cbor.dumps(book.snapshot()))
    restored = AddressBook()
    restored.restore(data)  # type: ignore[arg-type]
    assert restored.lookup(A) == (at(1), at(2)) and restored.references(A) == 1
    assert restored.lookup(B) == (at(3),) and restored.references(B) == 0
    assert restored.snapshot() == book.snapshot()
    with pytest.raises(AddressBookFullError):
        AddressBook(capacity=1).restore(data)  # type: ignore[arg-type]
    AddressBook(capacity=1, has_place={B}.__contains__).restore(data)  # type: ignore[arg-type]
