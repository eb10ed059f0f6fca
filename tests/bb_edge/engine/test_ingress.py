"""The doors: bounds, shares, and other threads (semantics §3, §6 "Budgets")."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.engine.net.ingress import Entry, Ingress, IngressFull, Raw, Shares
from bb_edge.ir.ids import PeerId

A, B, C = (PeerId.from_name(n) for n in "abc")


def fill(shares: Shares, peer: PeerId) -> int:
    """Takes one place after the other until it is refused; how many it got."""
    got = 0
    while not shares.refuses(peer, 1):
        shares.take(peer, 1)
        got += 1
    return got


def test_the_greedy_leave_room():
    shares = Shares(80)
    assert fill(shares, A) == 70
    assert shares.refuses(A, 1) == "share" and not shares.refuses(B, 1)
    assert fill(shares, B) > 0


def test_what_is_given_back_can_be_taken_again():
    shares = Shares(80)
    fill(shares, A)
    shares.give_back(A, 70)
    assert shares.used == 0 and shares.held == {}
    assert fill(shares, B) == 70


def test_somebody_who_holds_nothing_may_take_all_at_once():
    shares = Shares(100)
    assert not shares.refuses(A, 100)
    shares.take(A, 100)
    assert shares.refuses(B, 1) == shares.refuses(None, 1) == "full"


@given(st.lists(st.tuples(st.sampled_from([A, B, C, None]), st.integers(-5, 20)), max_size=80))
def test_never_more_than_the_limit_and_nothing_is_forgotten(moves):
    shares = Shares(64)
    held: dict[PeerId | None, int] = {}
    for peer, amount in moves:
        if amount >= 0:
            if not shares.refuses(peer, amount):
                shares.take(peer, amount)
                held[peer] = held.get(peer, 0) + amount
        else:
            back = min(-amount, held.get(peer, 0))
            shares.give_back(peer, back)
            held[peer] = held.get(peer, 0) - back
        assert 0 <= shares.used <= shares.limit
        assert shares.used == sum(held.values())
        assert shares.held == {p: n for p, n in held.items() if p is not None and n}


def raw(peer: PeerId, size: int = 1) -> Raw:
    return Raw(bytes(size), peer, None)


def test_a_refused_envelope_leaves_nothing():
    ingress = Ingress(4, 10, 4)
    ingress.offer_raw(raw(A, 8))
    with pytest.raises(IngressFull, match="3 bytes requested, 2 available of 10"):
        ingress.offer_raw(raw(B, 3))
    assert ingress.bytes_in_use == 8
    found = ingress.take_raw()
    assert found is not None and ingress.take_raw() is None
    ingress.release(A, 8)
    assert ingress.bytes_in_use == 0


def test_one_peers_envelopes_are_refused_by_name_of_its_share():
    ingress = Ingress(40, 10_000, 40)
    with pytest.raises(IngressFull, match=r"wait already, \d+ of them of this peer"):
        for _ in range(80):
            ingress.offer_raw(raw(A))
    ingress.offer_raw(raw(B))


def test_entries_count_by_peer_and_internal_ones_do_not():
    ingress = Ingress(16, 100, 4)

    def entry(peer: PeerId | None = None, internal: bool = False) -> Entry:
        return Entry("t", lambda execution: None, peer=peer, internal=internal)

    for _ in range(14):
        assert not ingress.full_for(A)
        ingress.offer(entry(A))
    assert ingress.full_for(A) and not ingress.full_for(B) and not ingress.full
    assert ingress.contributes(A) and not ingress.contributes(B)
    for _ in range(50):
        ingress.offer(entry(internal=True))
    ingress.offer_invoke(entry())
    ingress.offer_invoke(entry())
    with pytest.raises(IngressFull):
        ingress.offer_invoke(entry())
    while ingress.next_entry() is not None:
        pass
    assert ingress.fill_ratio == 0 and not ingress.full_for(A)


def test_many_threads_at_the_doors_lose_and_leak_nothing():
    ingress = Ingress(10_000, 1 << 30, 10_000)
    woken = threading.Semaphore(0)
    ingress.set_waker(woken.release)
    start = threading.Barrier(4)
    refused = [0] * 4

    def push(number: int) -> None:
        peer = PeerId.from_int(number)
        start.wait()
        for _ in range(2_000):
            try:
                ingress.offer_raw(raw(peer, 3))
                ingress.offer_invoke(Entry("t", lambda execution: None))
            except IngressFull:
                refused[number] += 1

    threads = [threading.Thread(target=push, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    taken = 0
    while any(thread.is_alive() for thread in threads) or ingress.waiting or ingress.entries:
        if (found := ingress.take_raw()) is not None:
            ingress.release(found.peer, len(found.data))
            taken += 1
        ingress.next_entry()
    for thread in threads:
        thread.join()
    assert taken == 8_000 and refused == [0] * 4
    assert ingress.bytes_in_use == 0 and ingress.fill_ratio == 0
    assert woken.acquire(blocking=False)
