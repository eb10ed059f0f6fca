"""The doors: bounds, shares, and other threads."""

from __future__ import annotations

import threading
from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bb_edge.engine.ledger import IngressFull, Ledger
from bb_edge.engine.net.arrivals import Raw
from bb_edge.engine.net.ingress import Entry, Ingress
from bb_edge.ir.ids import PeerId
from tests.aids.peers import numbered

A, B, C = (PeerId.from_name(n) for n in "abc")


def fill(ledger: Ledger, peer: PeerId) -> int:
    """Takes one entry's place after the other until it is refused; how many it got."""
    got = 0
    while not ledger.full_for(peer):
        ledger.take_entry(peer)
        got += 1
    return got


def test_the_greedy_leave_room():
    ledger = Ledger(1, 80, 1)
    assert fill(ledger, A) == 70
    assert ledger.full_for(A) and not ledger.full_for(B) and not ledger.full
    assert fill(ledger, B) > 0


def test_what_is_given_back_can_be_taken_again():
    ledger = Ledger(1, 80, 1)
    for _ in range(fill(ledger, A)):
        ledger.entry_admitted(A)
    assert ledger.in_use() == {"bytes": 0, "bytes_by_peer": {}, "places": 0, "places_by_peer": {}}
    assert fill(ledger, B) == 70


def test_somebody_who_holds_nothing_may_take_all_bytes_at_once():
    ledger = Ledger(4, 4, 100)
    ledger.take_envelope(A, 100)
    for fair in (True, False):
        with pytest.raises(IngressFull, match="1 bytes requested, 0 available of 100"):
            ledger.take_envelope(B, 1, fair)
    assert not ledger.charge(None, 1)


def test_a_greedy_peer_is_refused_bytes_by_name_of_its_share():
    ledger = Ledger(4, 4, 80)
    ledger.take_envelope(A, 70)
    with pytest.raises(IngressFull, match="1 bytes requested, 10 available of 80, the peer holds 70"):
        ledger.take_envelope(A, 1)
    ledger.take_envelope(A, 1, fair=False)
    ledger.take_envelope(B, 9)


def test_bytes_of_before_a_restart_are_charged_whatever_the_bound_is():
    ledger = Ledger(4, 4, 10)
    ledger.recharge(A, 25)
    ledger.recharge(None, 5)
    assert ledger.bytes == 30 and ledger.in_use()["bytes_by_peer"] == {str(A): 25}
    assert not ledger.charge(A, 1)
    ledger.release(A, 25)
    ledger.release(None, 5)
    assert ledger.charge(A, 10)


class Books(RuleBasedStateMachine):
    """The ledger beside one dictionary per bound that says what each peer holds."""

    peers = st.sampled_from([A, B, C])
    LIMITS: ClassVar = {"envelopes": 6, "entries": 8, "bytes": 64}

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(*self.LIMITS.values())
        self.held: dict[str, Counter[PeerId | None]] = {bound: Counter() for bound in self.LIMITS}

    def refuses(self, bound: str, peer: PeerId | None, amount: int) -> bool:
        free = self.LIMITS[bound] - self.held[bound].total()
        return amount > free or (peer is not None and self.held[bound][peer] >= 7 * free)

    @rule(peer=peers, size=st.integers(0, 30), fair=st.booleans())
    def arrive(self, peer: PeerId, size: int, fair: bool) -> None:
        asks = peer if fair else None
        refused = self.refuses("envelopes", asks, 1) or self.refuses("bytes", asks, size)
        try:
            self.ledger.take_envelope(peer, size, fair)
        except IngressFull:
            assert refused
        else:
            assert not refused
            self.held["envelopes"][peer] += 1
            self.held["bytes"][peer] += size

    @rule(peer=peers)
    def take(self, peer: PeerId) -> None:
        if self.held["envelopes"][peer]:
            self.ledger.envelope_taken(peer)
            self.held["envelopes"][peer] -= 1

    @rule(peer=peers)
    def enter(self, peer: PeerId) -> None:
        assert self.ledger.full_for(peer) == self.refuses("entries", peer, 1)
        if not self.ledger.full_for(peer):
            self.ledger.take_entry(peer)
            self.held["entries"][peer] += 1

    @rule()
    def invoke(self) -> None:
        refused = self.refuses("entries", None, 1)
        assert self.ledger.full == refused
        try:
            self.ledger.take_invoke()
        except IngressFull:
            assert refused
        else:
            assert not refused
            self.held["entries"][None] += 1

    @rule(peer=st.sampled_from([A, B, C, None]))
    def admit(self, peer: PeerId | None) -> None:
        if self.held["entries"][peer]:
            self.ledger.entry_admitted(peer)
            self.held["entries"][peer] -= 1

    @rule(peer=st.sampled_from([A, B, C, None]), size=st.integers(0, 30))
    def charge(self, peer: PeerId | None, size: int) -> None:
        if self.ledger.charge(peer, size):
            self.held["bytes"][peer] += size
        else:
            assert self.refuses("bytes", None, size)

    @rule(peer=st.sampled_from([A, B, C, None]), share=st.floats(0, 1))
    def release(self, peer: PeerId | None, share: float) -> None:
        size = int(self.held["bytes"][peer] * share)
        self.ledger.release(peer, size)
        self.held["bytes"][peer] -= size

    @invariant()
    def agrees(self) -> None:
        ledger, held = self.ledger, self.held
        assert (ledger.envelopes, ledger.entries, ledger.bytes) == tuple(h.total() for h in held.values())
        assert ledger.pressure == held["entries"].total() / 8
        by_peer = {b: {str(p): n for p, n in h.items() if p is not None and n} for b, h in held.items()}
        in_use = ledger.in_use()
        assert in_use["bytes_by_peer"] == by_peer["bytes"]
        assert in_use["places_by_peer"] == by_peer["entries"]
        for peer in (A, B, C):
            equal = held["entries"][peer] * len(by_peer["entries"]) >= held["entries"].total()
            assert ledger.contributes(peer) == equal


TestBooks = Books.TestCase


def ingress_of(max_entries: int, max_bytes: int, max_answers: int) -> Ingress:
    return Ingress(Ledger(max_entries + max_answers, max_entries, max_bytes), max_answers)


def raw(peer: PeerId, size: int = 1) -> Raw:
    return Raw(bytes(size), peer, None)


def test_a_refused_envelope_leaves_nothing():
    ingress = ingress_of(4, 10, 4)
    ingress.offer_raw(raw(A, 8))
    with pytest.raises(IngressFull, match="3 bytes requested, 2 available of 10"):
        ingress.offer_raw(raw(B, 3))
    assert ingress.ledger.bytes == 8
    ingress.envelopes.popleft()
    assert not ingress.envelopes
    ingress.ledger.envelope_taken(A)
    ingress.ledger.release(A, 8)
    assert ingress.ledger.bytes == 0


def test_one_peers_envelopes_are_refused_by_name_of_its_share():
    ingress = ingress_of(40, 10_000, 40)
    with pytest.raises(IngressFull, match=r"wait already, \d+ of them of this peer"):
        for _ in range(80):
            ingress.offer_raw(raw(A))
    ingress.offer_raw(raw(B))


def test_entries_count_by_peer_and_internal_ones_do_not():
    ingress = ingress_of(16, 100, 4)

    def entry(peer: PeerId | None = None, internal: bool = False) -> Entry:
        return Entry("t", lambda execution: None, peer=peer, internal=internal)

    for _ in range(14):
        assert not ingress.ledger.full_for(A)
        ingress.offer(entry(A))
    assert ingress.ledger.full_for(A) and not ingress.ledger.full_for(B) and not ingress.ledger.full
    assert ingress.ledger.contributes(A) and not ingress.ledger.contributes(B)
    for _ in range(50):
        ingress.offer(entry(internal=True))
    ingress.offer_invoke(entry())
    ingress.offer_invoke(entry())
    with pytest.raises(IngressFull):
        ingress.offer_invoke(entry())
    while ingress.entries:
        waiting = ingress.entries.popleft()
        if not waiting.internal:
            ingress.ledger.entry_admitted(waiting.peer)
    assert ingress.ledger.pressure == 0 and not ingress.ledger.full_for(A)


def test_many_threads_at_the_doors_lose_and_leak_nothing():
    ingress = ingress_of(10_000, 1 << 30, 10_000)
    woken = threading.Semaphore(0)
    ingress.set_waker(woken.release)
    start = threading.Barrier(4)
    refused = [0] * 4

    def push(number: int) -> None:
        peer = numbered(number)
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
    while any(thread.is_alive() for thread in threads) or ingress.envelopes or ingress.entries:
        if ingress.envelopes:
            found = ingress.envelopes.popleft()
            ingress.ledger.envelope_taken(found.peer)
            ingress.ledger.release(found.peer, len(found.data))
            taken += 1
        if ingress.entries:
            ingress.ledger.entry_admitted(ingress.entries.popleft().peer)
    for thread in threads:
        thread.join()
    assert taken == 8_000 and refused == [0] * 4
    assert ingress.ledger.bytes == 0 and ingress.ledger.pressure == 0
    assert woken.acquire(blocking=False)
