"""A broker that says anything at all: the node counts it, hangs up and comes back; it never falls over."""

from __future__ import annotations

import random
import socket
import threading

import pytest

from bb_edge.ir.ids import PeerId
from bb_edge.transport import connection, dialing
from bb_edge.transport.mqtt import MqttOptions
from bb_edge.transport.packets import publish_header, varint

CONNACK = {"5": b"\x20\x03\x00\x00\x00", "3.1.1": b"\x20\x02\x00\x00"}
STREAMS = 150


class HostileBroker:
    """Answers each connection with the next of its streams, then closes."""

    def __init__(self, streams: list[bytes]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._streams = streams
        self.served = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for stream in self._streams:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with sock:
                sock.settimeout(10)
                try:
                    sock.recv(4096)
                    sock.sendall(stream)
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(65536):
                        pass
                except OSError:
                    pass
            self.served += 1

    def close(self) -> None:
        self._listener.close()
        self._thread.join(10)


@pytest.fixture
def hostile():
    started = []

    def start(streams: list[bytes]) -> HostileBroker:
        started.append(HostileBroker(streams))
        return started[-1]

    yield start
    for broker in started:
        broker.close()


def streams_of(seed: int, own: PeerId, version: str) -> list[bytes]:
    """Random bytes; packets of every type with random bodies; good packets cut short or changed."""
    rng = random.Random(seed)
    topic = f"bb/test/{own}/from/{PeerId.from_name('x')}".encode()
    found = []
    for number in range(STREAMS):
        kind = number % 4
        if kind == 0:
            tail = rng.randbytes(rng.randrange(200))
        elif kind == 1:
            body = rng.randbytes(rng.randrange(40))
            tail = bytes([rng.randrange(256)]) + varint(len(body)) + body
        else:
            payload = rng.randbytes(rng.randrange(60))
            packet = bytearray(
                publish_header(topic, 7, len(payload), v5=version == "5", expiry_s=9) + payload
            )
            if kind == 2:
                packet[rng.randrange(len(packet))] ^= 1 << rng.randrange(8)
            else:
                del packet[rng.randrange(len(packet)) :]
            tail = bytes(packet)
        found.append((CONNACK[version] if number % 5 else b"") + tail)
    return found


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_broker_may_say_anything(hostile, loop, doors, monkeypatch, version):
    monkeypatch.setattr(dialing, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(dialing, "RETRY_MAX_S", 0.002)
    monkeypatch.setattr(connection, "CONNACK_S", 0.2)
    a = doors("a")
    broker = hostile(streams_of(11, a.peer_id, version))
    ta = loop.join(a, f"mqtt://127.0.0.1:{broker.port}", options=MqttOptions(), version=version)
    loop.until(lambda: broker.served >= STREAMS, 60)
    assert ta.counters["malformed"] > 5
    assert ta.counters["connects"] > STREAMS // 2


def test_a_broker_that_announces_more_than_it_may_sends_into_the_void(hostile, loop, doors, monkeypatch):
    monkeypatch.setattr(dialing, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(dialing, "RETRY_MAX_S", 0.002)
    large = CONNACK["5"] + b"\x32" + varint(200_000_000) + b"\x00\x05topic\x00\x09\x00" + bytes(300_000)
    broker = hostile([large] * 3)
    ta = loop.join(
        doors("a"),
        f"mqtt://127.0.0.1:{broker.port}",
        options=MqttOptions(max_envelope_bytes=50_000),
        version="5",
    )
    loop.until(lambda: broker.served == 3, 60)
    assert ta.counters["oversize"] == 3
