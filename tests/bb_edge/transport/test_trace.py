"""What a simulation's trace is made of."""

from __future__ import annotations

import hashlib

from bb_edge.transport.trace import BodyDigests, combined_trace


def test_a_body_stands_in_the_trace_by_its_own_digest():
    digests = BodyDigests()
    one, other = b"one" * 1000, b"other" * 1000
    for body in (one, one, other, b"", one, bytes(bytearray(one)), memoryview(other)):
        assert digests.of(body) == hashlib.sha256(body).digest()


def test_what_may_be_written_to_is_looked_at_each_time():
    digests = BodyDigests()
    memory = bytearray(b"before")
    view = memoryview(memory)
    before = digests.of(view)
    memory[:] = b"behind"
    assert digests.of(view) == hashlib.sha256(b"behind").digest() != before


def test_a_trace_is_one_of_all_pairs_in_the_order_of_their_ids():
    pairs = {(b"a", b"b"): b"1", (b"b", b"a"): b"2"}
    assert combined_trace(pairs) == combined_trace(dict(reversed(pairs.items())))
    assert combined_trace(pairs) != combined_trace({(b"a", b"b"): b"2", (b"b", b"a"): b"1"})
    assert combined_trace(pairs) == hashlib.sha256(b"ab1ba2").hexdigest()
