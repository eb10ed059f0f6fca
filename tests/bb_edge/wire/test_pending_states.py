"""An envelope that waits for its acknowledgement moves by its transition table."""

from __future__ import annotations

from link_ends import B
from times import S

from bb_edge.wire.envelope import REQUEST
from bb_edge.wire.resend import PENDING, EnvelopeKey, Pending, PendingEvent, PendingState, ResendQueue
from tests.aids.transitions import assert_decides_by


def test_a_pending_envelope_is_decided_by_its_table() -> None:
    def walk() -> None:
        queue = ResendQueue(9, 1 << 20, 64 * S)

        def numbered(expires_ns: int = 0) -> Pending:
            pending = Pending(EnvelopeKey(B, 1, 1), REQUEST, expires_ns, S)
            queue.reserve()
            queue.watch(pending)
            return pending

        queue.release(numbered(), PendingEvent.SETTLE)  # numbered: settle
        early = numbered(1)
        assert queue.pop(1) is early
        queue.release(early, PendingEvent.EXPIRE)  # numbered: expire
        settled, expired = numbered(), numbered(3 * S)
        for pending in (settled, expired):
            queue.arm(pending, S)  # numbered: publish
        for pending in (settled, expired):
            assert queue.pop(S) is pending
            queue.arm(pending, S + pending.repeat(64 * S))  # published: publish
        queue.release(settled, PendingEvent.SETTLE)  # published: settle
        assert queue.pop(3 * S) is expired
        queue.release(expired, PendingEvent.EXPIRE)  # published: expire
        assert queue.count == 0 and {settled.state, expired.state, early.state} == {PendingState.OVER}

    assert_decides_by(PENDING, walk)
