"""An envelope that waits for its acknowledgement moves by its transition table."""

from __future__ import annotations

from link_ends import B, fills, links
from times import S

from bb_edge.wire.delivery import EnvelopeKey
from bb_edge.wire.envelope import Envelope, encode
from bb_edge.wire.resend import PENDING
from tests.aids.transitions import assert_decides_by


def test_a_pending_envelope_is_decided_by_its_table() -> None:
    def walk() -> None:
        node = links()

        def stamped(deadline: int = 0) -> EnvelopeKey:
            envelope = Envelope(fills=fills())
            key = node.stamp(B, envelope, 0, durable=True, deadline_ns=deadline)
            node.sent(B, key, encode(envelope), armed=False)
            return key

        assert node.cancel(stamped())  # numbered: settle
        stamped(deadline=1)
        assert node.due(1) == [] and node.pending == 0  # numbered: expire
        settled, expired = stamped(), stamped(deadline=3 * S)
        assert node.peer_up(B, 7, 0) == 0  # what is not published is not repeated
        node.arm(settled, 0)  # numbered: publish
        node.arm(expired, 0)
        assert node.peer_up(B, 8, 0) == 2
        assert [out.key for out in node.due(1 * S)] == [settled, expired]  # published: publish
        assert node.cancel(settled)  # published: settle
        node.due(3 * S)
        assert expired in node.take_expired() and node.pending == 0  # published: expire

    assert_decides_by(PENDING, walk)
