"""PUBLISH and PUBACK against paho's own code; a stream cut whole, byte by byte, with a tail, too large."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from bb_edge.transport.packets import (
    PacketError,
    Splitter,
    parse_puback,
    parse_publish,
    puback,
    publish_header,
    varint,
)

TOPIC = b"bb/f/to/from/me"


def split(splitter: Splitter, data: bytes, at_once: int = 1 << 20) -> list[tuple[int, bytes, int]]:
    """(first byte, body, oversize) of each packet, fed `at_once` bytes at a time."""
    found, pos = [], 0
    while pos < len(data):
        room = splitter.room()
        assert len(room) > 0
        count = min(at_once, len(room), len(data) - pos)
        room[:count] = data[pos : pos + count]
        splitter.filled(count)
        pos += count
        while (packet := splitter.take()) is not None:
            first, buffer, _, body, end = packet
            found.append((first, bytes(buffer[body:end]), splitter.oversize))
    return found


@pytest.mark.parametrize(
    "alias, expiry_s, topic", [(0, 0, TOPIC), (7, 0, b""), (7, 90, TOPIC), (0, 90, TOPIC)]
)
@pytest.mark.parametrize("size", [0, 1, 100, 200, 20_000, 3_000_000])
def test_a_publish_reads_back_and_its_properties_are_paho_s(alias, expiry_s, topic, size):
    payload = bytes(size)
    data = publish_header(topic, 513, size, v5=True, alias=alias, expiry_s=expiry_s) + payload
    [(first, body, _)] = split(Splitter(1 << 22), data)
    read = parse_publish(first, bytearray(body), 0, len(body), True)
    assert (read.topic, read.payload, read.mid, read.qos, read.alias) == (topic, payload, 513, 1, alias)
    properties = Properties(PacketTypes.PUBLISH)
    if alias or expiry_s:
        properties.unpack(body[2 + len(topic) + 2 :])
    assert getattr(properties, "MessageExpiryInterval", 0) == expiry_s
    assert getattr(properties, "TopicAlias", 0) == alias


def test_a_publish_in_311_has_no_properties():
    data = publish_header(TOPIC, 9, 1, v5=False, retain=True, dup=True) + b"x"
    [(first, body, _)] = split(Splitter(100), data)
    assert first == 0x3B
    assert parse_publish(first, bytearray(body), 0, len(body), False).payload == b"x"


def test_foreign_properties_are_passed_over():
    properties = Properties(PacketTypes.PUBLISH)
    properties.PayloadFormatIndicator = 1
    properties.ResponseTopic = "a/b"
    properties.CorrelationData = b"123"
    properties.UserProperty = ("key", "value")
    properties.SubscriptionIdentifier = 70_000
    properties.ContentType = "x" * 200
    properties.TopicAlias = 3
    body = len(TOPIC).to_bytes(2, "big") + TOPIC + b"\x00\x05" + properties.pack() + b"payload"
    read = parse_publish(0x32, bytearray(body), 0, len(body), True)
    assert (read.topic, read.payload, read.alias, read.mid) == (TOPIC, b"payload", 3, 5)


@given(st.binary(max_size=60), st.sampled_from([0x30, 0x32, 0x34, 0x36]), st.booleans())
def test_any_bytes_are_a_publish_or_a_packet_error(body, first, v5):
    try:
        read = parse_publish(first, bytearray(body), 0, len(body), v5)
    except PacketError:
        return
    assert len(read.topic) + len(read.payload) <= len(body)


def test_pubacks():
    assert puback(0x0102) == b"\x40\x02\x01\x02"
    assert puback(0x0102, 0x97) == b"\x40\x03\x01\x02\x97"
    assert parse_puback(bytearray(b"\x01\x02"), 0, 2) == (0x0102, 0)
    assert parse_puback(bytearray(b"\x01\x02\x87\x00"), 0, 4) == (0x0102, 0x87)
    with pytest.raises(PacketError):
        parse_puback(bytearray(b"\x01"), 0, 1)


@pytest.mark.parametrize("at_once", [1, 2, 3, 7, 4096, 65_536, 1 << 20])
def test_a_stream_is_cut_the_same_however_it_comes(at_once):
    sizes = [0, 1, 127, 128, 5, 16_383, 16_384, 70_000, 2, 65_530, 65_536, 0, 200_000 if at_once > 7 else 300]
    packets = [(0x30 | i % 16, bytes([i]) * size) for i, size in enumerate(sizes)]
    stream = b"".join(bytes([first]) + varint(len(body)) + body for first, body in packets)
    found = split(Splitter(1 << 20), stream, at_once)
    assert [(first, body) for first, body, _ in found] == packets
    assert not any(oversize for _, _, oversize in found)


@pytest.mark.parametrize("at_once", [1, 1000, 1 << 20])
@pytest.mark.parametrize("size", [2001, 5000, 300_000])
def test_what_is_too_large_is_not_kept_and_the_next_packet_is_read(at_once, size):
    if at_once == 1 and size > 10_000:
        pytest.skip("slow, and the same as with 5000")
    body = TOPIC + bytes(size - len(TOPIC))
    after = b"\x40\x02\x01\x02"
    splitter = Splitter(2000)
    found = split(splitter, b"\x32" + varint(size) + body + after + after, at_once)
    assert found[0][0] == 0x32
    assert found[0][2] == 1 + len(varint(size)) + size
    assert found[0][1].startswith(TOPIC)
    assert len(found[0][1]) <= 65_536
    assert [packet[:2] for packet in found[1:]] == [(0x40, b"\x01\x02")] * 2
    assert len(splitter.room()) == 65_536


def test_the_limit_itself_is_taken():
    for size, oversize in ((1999, False), (2000, False), (2001, True)):
        [(_, _, found)] = split(Splitter(2000), b"\x32" + varint(size) + bytes(size))
        assert bool(found) == oversize


def test_a_length_that_does_not_end_is_no_packet():
    splitter = Splitter(100)
    with pytest.raises(PacketError):
        split(splitter, b"\x30\xff\xff\xff\xff\x01")


@pytest.mark.parametrize("v5, alias", [(True, 0), (True, 7), (False, 0)])
@pytest.mark.parametrize("at_once", [3, 1000, 1 << 20])
@pytest.mark.parametrize("beside", [b"", b"\x40\x02\x01\x02"])
def test_the_payload_of_a_large_publish_is_read_into_a_buffer_of_its_own_at_a_multiple_of_8(
    v5, alias, at_once, beside
):
    payload = bytes(range(250)) * 280
    data = publish_header(TOPIC, 5, len(payload), v5=v5, alias=alias) + payload
    splitter, found = Splitter(1 << 20, v5), []
    stream = memoryview(beside + data + data + beside)
    while stream:
        room = splitter.room()
        count = min(at_once, len(room), len(stream))
        room[:count] = stream[:count]
        splitter.filled(count)
        stream = stream[count:]
        while (packet := splitter.take()) is not None:
            first, buffer, _, body, end = packet
            if first == 0x32:
                found.append(parse_publish(first, buffer, body, end, v5, splitter.own))
    for read in found:
        assert read.payload == payload and read.payload.readonly and read.mid == 5
        assert np.frombuffer(read.payload, np.uint8).ctypes.data % 8 == 0
    assert len(found) == 2 and found[0].payload.obj is not found[1].payload.obj
    assert len(splitter.room()) == 65_536, "the small buffer is the reader's again"


@given(st.binary(max_size=300), st.integers(1, 50))
def test_any_stream_ends_in_packets_or_a_packet_error(data, at_once):
    splitter = Splitter(64)
    try:
        found = split(splitter, data, at_once)
    except PacketError:
        return
    assert all(len(body) <= 64 or oversize for _, body, oversize in found)


def large(number: int, size: int) -> bytes:
    payload = bytes((number,)) * size
    return publish_header(TOPIC, number, size, v5=True) + payload


def payload_of(splitter: Splitter, data: bytes) -> memoryview:
    """The payload of the one packet that is fed, as a view of its own buffer."""
    packet, pos = None, 0
    while packet is None:
        room = splitter.room()
        count = min(len(room), len(data) - pos)
        room[:count] = data[pos : pos + count]
        room.release()
        splitter.filled(count)
        pos += count
        packet = splitter.take()
    first, buffer, _, body, end = packet
    payload = parse_publish(first, buffer, body, end, True, splitter.own).payload
    assert isinstance(payload, memoryview)
    return payload


def test_a_large_packet_is_read_into_the_memory_of_the_last_one_if_nobody_looks_at_it():
    splitter = Splitter(1 << 24)
    kept = payload_of(splitter, large(1, 200_000))
    second = payload_of(splitter, large(2, 200_004))
    at = np.frombuffer(second, np.uint8).ctypes.data
    assert bytes(kept) == b"\1" * 200_000 and bytes(second) == b"\2" * 200_004
    del second
    for number, size in ((3, 200_001), (4, 200_003), (5, 200_002)):
        read = payload_of(splitter, large(number, size))
        assert bytes(read) == bytes((number,)) * size
        assert np.frombuffer(read, np.uint8).ctypes.data == at
        del read
    assert bytes(payload_of(splitter, large(6, 900_000))) == b"\6" * 900_000
    assert bytes(payload_of(splitter, large(7, 100_000))) == b"\7" * 100_000
    assert bytes(kept) == b"\1" * 200_000


def test_memory_for_large_packets_is_freed_where_none_come():
    tracemalloc.start()
    try:
        splitter = Splitter(1 << 24)
        payload_of(splitter, large(1, 2_000_000))
        splitter.tidy()
        before, _ = tracemalloc.get_traced_memory()
        splitter.tidy()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert before - after > 1_990_000


def test_memory_for_a_planned_envelope_is_there_from_the_start_and_stays():
    packets = [large(number, 1_000_000) for number in range(4)]
    tracemalloc.start()
    try:
        splitter = Splitter(1 << 24, kept=1_000_000)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for number, packet in enumerate(packets):
            assert bytes(payload_of(splitter, packet)[:2]) == bytes((number,)) * 2
            splitter.tidy()
            splitter.begin(v5=True)  # another connection
        after, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert before > 1_000_000 and after - before < 10_000
    assert most - before < 1_100_000, "a copy of what is fed, and no second buffer"


def test_the_memory_that_is_kept_is_not_written_to_while_somebody_looks_at_it():
    splitter = Splitter(1 << 24, kept=300_000)
    kept = payload_of(splitter, large(1, 300_000))
    other = payload_of(splitter, large(2, 300_000))
    third = payload_of(splitter, large(3, 100_000))
    assert [bytes(each) for each in (kept, other, third)] == [
        b"\1" * 300_000,
        b"\2" * 300_000,
        b"\3" * 100_000,
    ]


@pytest.mark.parametrize("at_once", [1000, 65_536, 1 << 20])
def test_what_follows_a_packet_does_not_get_into_the_memory_that_is_kept(at_once):
    splitter, found = Splitter(1 << 24, kept=300_000), []
    stream = b"".join((large(1, 70_000), large(2, 10), large(3, 299_000), large(4, 10)))
    while stream:
        room = splitter.room()
        count = min(at_once, len(room), len(stream))
        room[:count] = stream[:count]
        splitter.filled(count)
        stream = stream[count:]
        while (packet := splitter.take()) is not None:
            first, buffer, _, body, end = packet
            found.append(bytes(parse_publish(first, buffer, body, end, True, splitter.own).payload))
    assert found == [b"\1" * 70_000, b"\2" * 10, b"\3" * 299_000, b"\4" * 10]
