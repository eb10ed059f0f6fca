"""What waits and what is under way: the window, the bounds, expiry, aliases, a second connection."""

from __future__ import annotations

import pytest
from times import S

from bb_edge.ir.ids import PeerId
from bb_edge.transport import outgoing
from bb_edge.transport.chunks import Reassembly
from bb_edge.transport.mqtt import COUNTERS
from bb_edge.transport.outgoing import FIRST_MID, LAST_MID, MAX_WINDOW, Aliases, Item, Outgoing
from bb_edge.transport.packets import Splitter, parse_publish


class Wire:
    """An Outgoing, and what it has put on the wire, parsed."""

    def __init__(self, max_waiting: int = 100, max_bytes: int = 10_000) -> None:
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.out = Outgoing(max_waiting, max_bytes, self.counters)

    def connect(self, **changes) -> None:
        granted = {"v5": True, "same_session": False, "window": 1000, "aliases": 0, "packet_bytes": 1 << 20}
        self.out.connected(**{**granted, "transfer": 1, **changes})

    def sent(self, now_ns: int = 0, v5: bool = True) -> list:
        data = b"".join(bytes(piece) for piece in self.out.pieces(0, now_ns))
        splitter = Splitter(1 << 22)
        found = []
        for start in range(0, len(data), 60_000):
            part = data[start : start + 60_000]
            while part:
                room = splitter.room()
                count = min(len(room), len(part))
                room[:count] = part[:count]
                splitter.filled(count)
                part = part[count:]
                while (packet := splitter.take()) is not None:
                    first, buffer, _, body, end = packet
                    found.append((first, parse_publish(first, buffer, body, end, v5), end - body))
        return found

    def payloads(self, now_ns: int = 0) -> list[bytes]:
        return [packet.payload for _, packet, _ in self.sent(now_ns)]


@pytest.fixture
def wire() -> Wire:
    return Wire()


def item(payload: bytes, topic: bytes = b"t", **more) -> Item:
    return Item(topic, payload, **{"peer": PeerId.from_name("b"), **more})


def test_nothing_goes_without_a_connection_and_all_with_one_in_order(wire):
    for payload in (b"1", b"2", b"3"):
        wire.out.put(item(payload))
    assert wire.payloads() == []
    wire.connect()
    assert wire.payloads() == [b"1", b"2", b"3"]
    assert wire.payloads() == []


def test_no_more_is_under_way_than_the_broker_takes(wire):
    wire.connect(window=2)
    for payload in (b"1", b"2", b"3"):
        wire.out.put(item(payload))
    sent = wire.sent()
    assert [packet.payload for _, packet, _ in sent] == [b"1", b"2"]
    assert wire.out.acknowledged(sent[0][1].mid, 0).payload == b"1"
    assert wire.payloads() == [b"3"]
    assert len(wire.out) == 2


def test_the_window_has_a_bound_of_its_own():
    wire = Wire(max_waiting=1000)
    wire.connect(window=65_535)
    for _ in range(MAX_WINDOW + 10):
        wire.out.put(item(b"x"))
    assert len(wire.sent()) == MAX_WINDOW


def test_a_foreign_or_second_acknowledgement_is_nothing(wire):
    wire.connect()
    wire.out.put(item(b"x"))
    [(_, packet, _)] = wire.sent()
    assert wire.out.acknowledged(packet.mid, 0) is not None
    assert wire.out.acknowledged(packet.mid, 0) is None
    assert wire.out.acknowledged(3, 0) is None
    assert wire.out.bytes_held == 0


def test_reason_codes_are_counted(wire):
    wire.connect()
    for _ in range(3):
        wire.out.put(item(b"x"))
    for (_, packet, _), reason in zip(wire.sent(), (0x87, 0x10, 0x00), strict=True):
        wire.out.acknowledged(packet.mid, reason)
    assert (wire.counters["refused"], wire.counters["unheard"]) == (1, 1)


def test_at_the_count_the_oldest_goes_that_nobody_keeps():
    wire = Wire(max_waiting=3)
    wire.out.put(item(b"kept", kept=True))
    for payload in (b"1", b"2", b"3"):
        wire.out.put(item(payload))
    wire.connect()
    assert wire.payloads() == [b"kept", b"2", b"3"]
    assert wire.counters["dropped"] == 1


def test_at_the_bytes_the_oldest_goes_and_one_may_be_larger_than_the_bound():
    wire = Wire(max_bytes=100)
    wire.out.put(item(bytes(60)))
    wire.out.put(item(bytes(40)))
    wire.out.put(item(bytes(1)))
    assert (len(wire.out), wire.out.bytes_held, wire.counters["dropped"]) == (2, 41, 1)
    wire.out.put(item(bytes(500)))
    assert (len(wire.out), wire.out.bytes_held) == (1, 500)


def test_only_kept_ones_wait_so_the_newcomer_goes():
    wire = Wire(max_waiting=1)
    wire.out.put(item(b"a", kept=True))
    wire.out.put(item(b"b"))
    wire.connect()
    assert wire.payloads() == [b"a"]
    assert wire.counters["dropped"] == 1


def test_what_the_sender_keeps_is_taken_beyond_the_bounds_too():
    wire = Wire(max_waiting=2, max_bytes=10)
    first, late = item(b"nobody repeats it"), item(b"no place for it")
    assert wire.out.put(first) is None
    gone = [wire.out.put(item(b"%d" % number, kept=True)) for number in range(20)]
    assert gone == [first, *[None] * 19]
    assert wire.out.put(late) is late
    wire.connect()
    assert wire.payloads() == [b"%d" % number for number in range(20)]
    assert wire.counters["dropped"] == 2


def test_what_waits_too_long_is_not_sent_and_the_rest_says_how_long_it_is_good(wire):
    wire.out.put(item(b"late", expires_ns=1 * S))
    wire.out.put(item(b"good", expires_ns=10 * S))
    wire.connect()
    data = b"".join(wire.out.pieces(0, 1 * S))
    assert data.endswith(b"good")
    assert b"late" not in data
    assert b"\x02\x00\x00\x00\x09" in data  # 9 seconds, rounded up
    assert wire.counters["expired"] == 1


def test_a_topic_is_paid_for_once(wire):
    wire.connect(aliases=10)
    for _ in range(3):
        wire.out.put(item(b"x", b"long/topic/name"))
    sent = wire.sent()
    assert [(p.topic, p.alias) for _, p, _ in sent] == [(b"long/topic/name", 1), (b"", 1), (b"", 1)]
    assert sent[1][2] == sent[0][2] - len(b"long/topic/name")
    wire.out.disconnected()
    wire.connect(aliases=10)
    assert next((p.topic, p.alias) for _, p, _ in wire.sent()) == (b"long/topic/name", 1)


def test_aliases_are_not_handed_around_in_turns():
    aliases = Aliases(2)
    assert aliases.of(b"a") == (1, True)
    assert aliases.of(b"b") == (2, True)
    assert aliases.of(b"c") == (0, False)
    assert aliases.of(b"a") == (1, False)
    for _ in range(40):
        aliases.of(b"a")
    assert aliases.of(b"c") == (2, True)  # b was not used for long
    assert aliases.of(b"b") == (0, False)
    assert Aliases(0).of(b"a") == (0, False)


@pytest.mark.parametrize("same_session", [True, False])
def test_what_was_under_way_goes_again_first(wire, same_session):
    wire.connect(window=2)
    for payload in (b"1", b"2", b"3"):
        wire.out.put(item(payload))
    before = wire.sent()
    wire.out.disconnected()
    wire.connect(same_session=same_session)
    again = wire.sent()
    assert [p.payload for _, p, _ in again] == [b"1", b"2", b"3"]
    assert [bool(first & 8) for first, _, _ in again] == [same_session, same_session, False]
    if same_session:
        assert [p.mid for _, p, _ in again][:2] == [p.mid for _, p, _ in before]
    assert len({p.mid for _, p, _ in again}) == 3


def test_presence_is_said_first_and_not_again_at_the_next_connection(wire):
    wire.out.put(item(b"envelope"))
    wire.connect()
    wire.out.put_first(item(b"here", retain=True))
    assert wire.payloads() == [b"here", b"envelope"]
    wire.out.disconnected()
    wire.connect()
    assert wire.payloads() == [b"envelope"]
    assert wire.out.bytes_held == len(b"envelope")


def test_packet_identifiers_turn_over_and_stay_out_of_paho_s(wire, monkeypatch):
    assert (FIRST_MID, LAST_MID) == (1024, 65_535)
    monkeypatch.setattr(outgoing, "LAST_MID", FIRST_MID + 1)
    wire.connect(window=1)
    mids = []
    for _ in range(3):
        wire.out.put(item(b"x"))
        [(_, packet, _)] = wire.sent()
        mids.append(packet.mid)
        wire.out.acknowledged(packet.mid, 0)
    assert mids == [FIRST_MID, FIRST_MID + 1, FIRST_MID]


def test_an_envelope_above_the_broker_s_limit_goes_in_chunks_that_fit():
    wire = Wire(max_bytes=1 << 20)
    wire.connect(packet_bytes=1024, window=3)
    data = bytes(range(256)) * 20
    wire.out.put(item(data, chunk_topic=b"chunks"))
    wire.out.put(item(b"small"))
    into, whole, after = Reassembly(1, 1 << 20, 1 << 20, S), None, []
    peer = PeerId.from_name("a")
    while sent := wire.sent():
        for _, packet, size in sent:
            assert size <= 1024
            if packet.topic == b"chunks":
                whole = into.add(peer, packet.payload, 0) or whole
            else:
                after.append(packet.payload)
            wire.out.acknowledged(packet.mid, 0)
    assert whole == data
    assert after == [b"small"]
    assert (wire.counters["cut"], wire.counters["chunks_sent"], wire.counters["sent"]) == (1, 6, 1)
    assert (wire.out.bytes_held, len(wire.out)) == (0, 0)


def test_a_transfer_that_expires_stops():
    wire = Wire(max_bytes=1 << 20)
    wire.connect(packet_bytes=1024, window=1)
    wire.out.put(item(bytes(9000), chunk_topic=b"chunks", expires_ns=5 * S))
    [(_, first, _)] = wire.sent(1 * S)
    wire.out.acknowledged(first.mid, 0)
    assert wire.sent(6 * S) == []
    assert (wire.out.bytes_held, len(wire.out), wire.counters["cut"]) == (0, 0, 0)
    assert wire.counters["expired"] > 0


def test_what_fits_no_packet_at_all_is_dropped_by_name(wire):
    wire.connect(packet_bytes=200)
    wire.out.put(item(bytes(5000), chunk_topic=b"chunks"))
    wire.out.put(item(b"next"))
    assert wire.payloads() == [b"next"]
    assert wire.counters["too_large"] == 1


def test_a_body_that_items_share_counts_once_and_travels_with_each():
    wire = Wire(max_bytes=6_000)
    body = bytes(5_000)
    for number in range(100):
        wire.out.put(item(b"%d" % number, body=body))
    assert len(wire.out) == 100 and wire.out.bytes_held == 5_000 + 190
    wire.connect(window=10)
    for number in range(100):
        if number % 10 == 0:
            sent = wire.sent()
        _, packet, _ = sent[number % 10]
        assert packet.payload == body + b"%d" % number
        wire.out.acknowledged(packet.mid, 0)
    assert (wire.out.bytes_held, wire.counters["dropped"], wire.counters["sent"]) == (0, 0, 100)


def test_an_envelope_with_a_body_is_cut_into_chunks_like_any_other():
    wire = Wire(max_bytes=1 << 20)
    wire.connect(packet_bytes=1024, window=1)
    body = bytes(range(256)) * 20
    wire.out.put(item(b"rest", body=body, chunk_topic=b"chunks"))
    into, whole = Reassembly(1, 1 << 20, 1 << 20, S), None
    while sent := wire.sent():
        for _, packet, _ in sent:
            whole = into.add(PeerId.from_name("a"), packet.payload, 0) or whole
            wire.out.acknowledged(packet.mid, 0)
    assert whole == body + b"rest"
    assert (wire.out.bytes_held, len(wire.out)) == (0, 0)
