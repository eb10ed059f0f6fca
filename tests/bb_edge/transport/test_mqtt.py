"""The MQTT transport against real brokers: delivery, presence, wills, brokers that come late or go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from bb_edge.engine.ingress import IngressFull
from bb_edge.engine.steps import SendEnvelope
from bb_edge.ir.ids import PeerId
from bb_edge.transport.mqtt import Broker, BrokerUrlError, MqttTransport
from bb_edge.transport.topics import TopicError, Topics


class Doors:
    """A node's doors that keep what comes; the transport under test is the real one."""

    def __init__(self, name: str, epoch: int = 1, full: bool = False) -> None:
        self.peer_id = PeerId.from_name(name)
        self.epoch = epoch
        self.classes = ("Client",)
        self.got: list[tuple[bytes, PeerId]] = []
        self.presence: dict[PeerId, tuple[bool, int]] = {}
        self.full = full

    def deliver_inbound(self, data, src_peer, observed_address=None):
        if self.full:
            raise IngressFull("full", "ingress")
        self.got.append((data, src_peer))

    def peer_presence(self, peer, up, addresses=(), meta=None, *, epoch=0, classes=()):
        self.presence[peer] = (up, epoch)


class Loop:
    """Several transports, waited for in turn until a condition holds."""

    def __init__(self) -> None:
        self.transports: list[MqttTransport] = []
        self.logs: list[str] = []

    def join(self, doors: Doors, url: str, federation: str = "test") -> MqttTransport:
        transport = MqttTransport(
            doors, Broker.from_url(url), federation, on_log=lambda _, m: self.logs.append(m)
        )
        transport.start()
        self.transports.append(transport)
        return transport

    def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"did not come about; logs: {self.logs}"
            for transport in self.transports:
                transport.wait(0.01)

    def close(self) -> None:
        for transport in self.transports:
            transport.stop()


@pytest.fixture
def loop():
    found = Loop()
    yield found
    found.close()


def url(broker) -> str:
    return f"mqtt://{broker.host}:{broker.port}"


def test_an_envelope_arrives_with_its_sender(broker, loop):
    a, b = Doors("a"), Doors("b")
    ta, tb = loop.join(a, url(broker)), loop.join(b, url(broker))
    loop.until(lambda: ta.connected and tb.connected and b.peer_id in a.presence)
    ta.send(SendEnvelope(b.peer_id, b"hello"))
    loop.until(lambda: bool(b.got))
    assert b.got == [(b"hello", a.peer_id)]
    assert ta.counters["sent"] == 1
    assert tb.counters["received"] == 1


def test_both_sides_hear_of_each_other_and_of_a_goodbye(broker, loop):
    a, b = Doors("a", epoch=5), Doors("b", epoch=6)
    loop.join(a, url(broker))
    tb = loop.join(b, url(broker))
    loop.until(lambda: a.presence.get(b.peer_id) == (True, 6) and b.presence.get(a.peer_id) == (True, 5))
    loop.transports.remove(tb)
    tb.stop()
    loop.until(lambda: a.presence[b.peer_id] == (False, 6))


def test_a_dead_peer_is_announced_by_its_will(broker, loop):
    a, b = Doors("a"), Doors("b", epoch=9)
    loop.join(a, url(broker))
    tb = loop.join(b, url(broker))
    loop.until(lambda: a.presence.get(b.peer_id) == (True, 9))
    loop.transports.remove(tb)
    tb._client.socket().close()  # the process is gone: no DISCONNECT is sent
    loop.until(lambda: a.presence[b.peer_id] == (False, 9))


def test_a_broker_that_comes_late_is_found(start_broker, loop):
    found = start_broker("mosquitto")
    found.kill()
    a = Doors("a")
    ta = loop.join(a, url(found))
    loop.until(lambda: any("not reachable" in m for m in loop.logs))
    ta.send(SendEnvelope(a.peer_id, b"kept"))
    found.start()
    loop.until(lambda: a.got == [(b"kept", a.peer_id)])


def test_a_broker_that_restarts_is_rejoined(start_broker, loop):
    found = start_broker("mosquitto")
    a, b = Doors("a"), Doors("b")
    ta, tb = loop.join(a, url(found)), loop.join(b, url(found))
    loop.until(lambda: ta.connected and tb.connected)
    found.kill()
    loop.until(lambda: not ta.connected and not tb.connected)
    found.start()
    loop.until(lambda: ta.connected and tb.connected)
    ta.send(SendEnvelope(b.peer_id, b"again"))
    loop.until(lambda: (b"again", a.peer_id) in b.got)
    assert ta.counters["disconnects"] == 1


def test_an_old_broker_is_spoken_to_in_311_and_the_log_says_what_is_lost(start_broker, loop):
    found = start_broker("amqtt")
    a = Doors("a")
    ta = loop.join(a, url(found))
    loop.until(lambda: ta.connected)
    assert ta.protocol == "3.1.1"
    assert any("3.1.1" in m and "message expiry" in m for m in loop.logs)


def test_a_full_node_drops_and_counts(mosquitto_broker, loop):
    a, b = Doors("a"), Doors("b", full=True)
    ta, tb = loop.join(a, url(mosquitto_broker)), loop.join(b, url(mosquitto_broker))
    loop.until(lambda: ta.connected and tb.connected)
    ta.send(SendEnvelope(b.peer_id, b"x"))
    loop.until(lambda: tb.counters["dropped"] == 1)


def test_foreign_presence_is_counted_and_ignored(mosquitto_broker, loop):
    import paho.mqtt.publish as publish

    a = Doors("a")
    ta = loop.join(a, url(mosquitto_broker))
    loop.until(lambda: ta.connected)
    host = {"hostname": mosquitto_broker.host, "port": mosquitto_broker.port}
    publish.single(f"bb/test/presence/{PeerId.from_name('x')}", b"\xff\xff", qos=1, **host)
    publish.single("bb/test/presence/not-a-peer", b"\xa0", qos=1, **host)
    loop.until(lambda: ta.counters["malformed"] == 2)
    assert set(a.presence) <= {a.peer_id}


def test_a_wake_from_another_thread_ends_a_wait(mosquitto_broker, loop):
    a = Doors("a")
    ta = loop.join(a, url(mosquitto_broker))
    loop.until(lambda: ta.connected)
    threading.Timer(0.05, ta.wake).start()
    start = time.monotonic()
    while time.monotonic() - start < 0.04:
        ta.wait(30.0)
    assert time.monotonic() - start < 25.0


@pytest.mark.parametrize("text", ["localhost:1883", "http://x", "mqtt://", "mqtt://h:port", "mqtt://h/path"])
def test_a_bad_url_is_refused(text):
    with pytest.raises(BrokerUrlError):
        Broker.from_url(text)


def test_urls_carry_credentials_and_tls():
    broker = Broker.from_url("mqtts://u%40x:p%3Aw@host")
    assert (broker.host, broker.port, broker.tls, broker.username, broker.password) == (
        "host",
        8883,
        True,
        "u@x",
        "p:w",
    )
    assert "p:w" not in str(broker)


@pytest.mark.parametrize("name", ["", "a/b", "a+", "#", "x" * 65, "a\n"])
def test_a_federation_name_fits_a_topic(name):
    with pytest.raises(TopicError):
        Topics(name, PeerId.from_name("a"))


def test_topics_name_both_ends():
    a, b = PeerId.from_name("a"), PeerId.from_name("b")
    topics = Topics("f", a)
    assert topics.to(b) == f"bb/f/{b}/from/{a}"
    assert Topics("f", b).sender(topics.to(b)) == a
    assert topics.presence(f"bb/f/presence/{b}") == b
    assert topics.sender("bb/f/presence/x") is None
    with pytest.raises(TopicError):
        Topics("f", b).sender(f"bb/f/{b}/from/nobody")
