"""Rows of a snapshot that several parts share: what goes out, and times."""

from __future__ import annotations

from bb_edge import PeerId
from bb_edge.engine.net.units import Unit
from bb_edge.engine.plain import Shift
from bb_edge.wire import cbor
from bb_edge.wire.envelope import REQUEST, Fill
from bb_edge.wire.outbox import Cause

S = 1_000_000_000
OTHER = PeerId.from_name("other")


def unit(**changes: object) -> Unit:
    fields = {
        "peer": OTHER,
        "fills": [Fill(b"site", memoryview(b"payload"), False, 0x101), Fill(b"next", b"", True, 0)],
        "kind": REQUEST,
        "wire_req_id": 77,
        "deadline_ns": 5 * S,
        "durable": True,
        "group": (3, "Main", 9),
        "wire_id": 4,
        "cause": Cause(OTHER, 6, 8),
        **changes,
    }
    return Unit(**fields)  # type: ignore[arg-type]


def written(one: Unit, shift: Shift) -> Unit:
    """As a snapshot keeps it."""
    return Unit.restored(cbor.loads(cbor.dumps(one.save())), shift)


def test_what_goes_out_comes_back_as_it_was_and_its_deadline_moves():
    one = unit()
    assert written(one, Shift(0)) == one
    assert written(one, Shift(3 * S)) == unit(deadline_ns=8 * S)


def test_what_goes_out_and_hangs_on_nothing_comes_back_so():
    one = unit(group=None, cause=None, durable=False, deadline_ns=0, wire_id=0)
    assert written(one, Shift(3 * S)) == one, "a deadline that is none stays none"


def test_a_time_that_is_none_does_not_move():
    assert [Shift(7).time(when) for when in (0, 1, 5 * S)] == [0, 8, 5 * S + 7]
    assert Shift(-7).time(10) == 3
