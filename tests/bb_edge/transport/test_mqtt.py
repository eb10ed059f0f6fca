"""The MQTT transport against real brokers: delivery, presence, wills, brokers that come late or go."""

from __future__ import annotations

import threading
import time

import pytest

from bb_edge.engine.steps import SendEnvelope
from bb_edge.ir.ids import PeerId
from bb_edge.transport.mqtt import Broker, BrokerUrlError
from bb_edge.transport.topics import Kind, Names, Place, TopicError, Topics, UnknownTopic
from tests.aids.peers import numbered


def test_an_envelope_arrives_with_its_sender(broker, loop, doors, url):
    a, b = doors("a"), doors("b")
    ta, tb = loop.join(a, url(broker)), loop.join(b, url(broker))
    loop.until(lambda: ta.connected and tb.connected and b.peer_id in a.presence)
    ta.send(SendEnvelope(b.peer_id, b"hello"))
    loop.until(lambda: bool(b.got))
    assert b.got == [(b"hello", a.peer_id)]
    assert ta.counters["sent"] == 1
    assert tb.counters["received"] == 1


def test_both_sides_hear_of_each_other_and_of_a_goodbye(broker, loop, doors, url):
    a, b = doors("a", epoch=5), doors("b", epoch=6)
    loop.join(a, url(broker))
    tb = loop.join(b, url(broker))
    loop.until(lambda: a.presence.get(b.peer_id) == (True, 6) and b.presence.get(a.peer_id) == (True, 5))
    loop.transports.remove(tb)
    tb.stop()
    loop.until(lambda: a.presence[b.peer_id] == (False, 6))


def test_a_dead_peer_is_announced_by_its_will(broker, loop, doors, url, dialed):
    a, b = doors("a"), doors("b", epoch=9)
    ta = loop.join(a, url(broker))
    loop.until(lambda: ta.connected)
    tb = loop.join(b, url(broker))
    loop.until(lambda: a.presence.get(b.peer_id) == (True, 9))
    loop.transports.remove(tb)
    dialed[-1].close()  # the process is gone: no DISCONNECT is sent
    loop.until(lambda: a.presence[b.peer_id] == (False, 9))


def test_a_broker_that_comes_late_is_found(start_broker, loop, doors, url):
    found = start_broker("mosquitto")
    found.kill()
    a = doors("a")
    ta = loop.join(a, url(found))
    loop.until(lambda: any("not reachable" in m for m in loop.logs))
    ta.send(SendEnvelope(a.peer_id, b"kept"))
    found.start()
    loop.until(lambda: a.got == [(b"kept", a.peer_id)])


def test_a_broker_that_restarts_is_rejoined(start_broker, loop, doors, url):
    found = start_broker("mosquitto")
    a, b = doors("a"), doors("b")
    ta, tb = loop.join(a, url(found)), loop.join(b, url(found))
    loop.until(lambda: ta.connected and tb.connected)
    found.kill()
    loop.until(lambda: not ta.connected and not tb.connected)
    a.presence.clear()
    found.start()
    loop.until(lambda: b.peer_id in a.presence)  # said after it has subscribed
    ta.send(SendEnvelope(b.peer_id, b"again"))
    loop.until(lambda: (b"again", a.peer_id) in b.got)
    assert ta.counters["disconnects"] == 1
    assert a.uplink == b.uplink == [False, True, False, True], "each knows when it has a connection"


def test_an_old_broker_is_spoken_to_in_311_and_the_log_says_what_is_lost(start_broker, loop, doors, url):
    found = start_broker("amqtt")
    a = doors("a")
    ta = loop.join(a, url(found))
    loop.until(lambda: ta.connected)
    assert ta.protocol == "3.1.1"
    assert any("3.1.1" in m and "message expiry" in m for m in loop.logs)


def test_an_envelope_waits_for_a_node_that_is_behind(mosquitto_broker, loop, doors, url):
    a, b = doors("a"), doors("b", full=1)
    ta, tb = loop.join(a, url(mosquitto_broker)), loop.join(b, url(mosquitto_broker))
    loop.until(lambda: b.peer_id in a.presence)
    for payload in (b"first", b"second"):
        ta.send(SendEnvelope(b.peer_id, payload))
    loop.until(lambda: len(b.got) == 2)
    assert [data for data, _ in b.got] == [b"first", b"second"]
    assert (tb.counters["held"], tb.counters["dropped"]) == (1, 0)


def test_repetitions_of_one_poll_are_not_in_each_others_way(mosquitto_broker, loop, doors, url):
    server = doors("server")
    sender = loop.join(server, url(mosquitto_broker))
    clients = [doors(name) for name in ("a", "b", "c")]
    for client in clients:
        loop.join(client, url(mosquitto_broker))
    loop.until(lambda: len(server.presence) == 3)
    for client in clients:
        sender.send(SendEnvelope(client.peer_id, b"again", resent=True))
    loop.until(lambda: all(client.got for client in clients))
    assert sender.counters["dropped"] == sender.counters["repeats_left_out"] == 0


def test_without_a_broker_a_repetition_is_not_kept_beside_its_original(start_broker, loop, doors, url):
    # The broker keeps the client's subscription: whoever of the two is back first, the original finds it.
    broker = start_broker("mosquitto", config=["persistence true", "persistence_location {folder}/"])
    server, client = doors("server"), doors("client")
    sender = loop.join(server, url(broker))
    loop.join(client, url(broker))
    loop.until(lambda: client.peer_id in server.presence and server.peer_id in client.presence)
    broker.stop()
    loop.until(lambda: not sender.connected)
    sender.send(SendEnvelope(client.peer_id, b"original"))
    sender.send(SendEnvelope(client.peer_id, b"again", resent=True))
    assert (sender.counters["dropped"], sender.counters["repeats_left_out"]) == (0, 1)
    broker.start()
    loop.until(lambda: bool(client.got) and not sender.waiting)
    assert [data for data, _ in client.got] == [b"original"]


def test_what_a_broker_without_memory_gets_before_its_reader_is_back_is_unheard(
    start_broker, loop, doors, url
):
    """Best-effort envelopes are lost then, and counted; what is acknowledged by the peer is sent again."""
    broker = start_broker("mosquitto")
    server, client = doors("server"), doors("client")
    sender, reader = loop.join(server, url(broker)), loop.join(client, url(broker))
    loop.until(lambda: client.peer_id in server.presence and server.peer_id in client.presence)
    broker.kill()
    loop.until(lambda: not sender.connected and not reader.connected)
    sender.send(SendEnvelope(client.peer_id, b"original"))
    server.presence.clear()
    loop.transports.remove(reader)  # it comes back later than the sender
    broker.start()
    loop.until(lambda: sender.counters["unheard"] == 1)
    loop.transports.append(reader)
    loop.until(lambda: client.peer_id in server.presence)
    assert client.got == []
    sender.send(SendEnvelope(client.peer_id, b"again", resent=True))
    loop.until(lambda: bool(client.got))
    assert [data for data, _ in client.got] == [b"again"]


def test_an_envelope_that_finds_no_place_twice_is_turned_away_and_counted(mosquitto_broker, loop, doors, url):
    a, b = doors("a"), doors("b", full=2)
    ta, tb = loop.join(a, url(mosquitto_broker)), loop.join(b, url(mosquitto_broker))
    loop.until(lambda: b.peer_id in a.presence)
    for payload in (b"first", b"second"):
        ta.send(SendEnvelope(b.peer_id, payload))
    loop.until(lambda: len(b.got) == 1)
    assert b.got == [(b"second", a.peer_id)]
    assert (tb.counters["turned_away"], tb.counters["dropped"]) == (1, 0)
    assert any("no space for what comes" in line for line in loop.logs)


def test_foreign_presence_is_counted_and_ignored(mosquitto_broker, loop, doors, url):
    import paho.mqtt.publish as publish

    a = doors("a")
    ta = loop.join(a, url(mosquitto_broker))
    loop.until(lambda: ta.connected)
    host = {"hostname": mosquitto_broker.host, "port": mosquitto_broker.port}
    publish.single(f"bb/test/presence/Client/{PeerId.from_name('x')}", b"\xff\xff", qos=1, **host)
    publish.single("bb/test/presence/Client/not-a-peer", b"\xa0", qos=1, **host)
    loop.until(lambda: ta.counters["malformed"] == 2)
    assert sum("is refused" in line for line in loop.logs) == 2
    assert set(a.presence) <= {a.peer_id}


def test_a_wake_from_another_thread_ends_a_wait(mosquitto_broker, loop, doors, url):
    a = doors("a")
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("localhost:21883", "'localhost:21883' is not a broker URL (write mqtt://localhost:21883)"),
        ("localhost", "'localhost' is not a broker URL (write mqtt://localhost)"),
        ("192.168.1.5:1883", "'192.168.1.5:1883' is not a broker URL (write mqtt://192.168.1.5:1883)"),
        ("ann:secret@host:1883", "'host:1883' is not a broker URL (write mqtt://host:1883)"),
        ("mqtt:localhost", "'mqtt:localhost' is not a broker URL (for example mqtt://192.168.1.10:1883)"),
        ("http://host", "'http://host' is not a broker URL (for example mqtt://192.168.1.10:1883)"),
    ],
)
def test_a_broker_without_a_scheme_is_quoted_as_it_was_written(text, said):
    with pytest.raises(BrokerUrlError) as error:
        Broker.from_url(text)
    assert str(error.value) == f"broker: {said}"


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
    names, there = Topics("f", a).names(b), Topics("f", b)
    assert names.envelope == f"bb/f/{b}/from/{a}".encode()
    assert there.read(names.envelope) == (Kind.ENVELOPE, a, "")
    assert there.read(names.chunk) == (Kind.CHUNK, a, "")
    assert there.read(there.presence("Client", a).encode()) == (Kind.PRESENCE, a, "Client")


NO_PEERS = ("{b}/from/nobody", "{b}/chunk/nobody", "{b}/from/", "presence/C/nobody")
NO_CLASSES = ("presence/from/{b}", "presence/chunk/{b}")  # the rules for envelopes let everybody write there


@pytest.mark.parametrize("end", [*NO_PEERS, *NO_CLASSES])
def test_a_topic_that_names_no_peer_and_no_class_is_refused(end):
    b = PeerId.from_name("b")
    with pytest.raises(TopicError) as refused:
        Topics("f", b).read(f"bb/f/{end.format(b=b)}".encode())
    assert not isinstance(refused.value, UnknownTopic)


@pytest.mark.parametrize("topic", ["bb/f/{b}/elsewhere/x", "bb/f/presence/{b}", "bb/g/presence/C/{b}", "x"])
def test_a_topic_of_no_kind_is_told_apart(topic):
    b = PeerId.from_name("b")
    with pytest.raises(UnknownTopic):
        Topics("f", b).read(topic.format(b=b).encode())


def test_the_caches_of_topics_are_bounded():
    topics = Topics("f", PeerId.from_name("a"), max_peers=3)

    def look(number: int) -> tuple[Names, Place]:
        peer = numbered(number)
        return topics.names(peer), topics.read(f"bb/f/presence/C/{peer}".encode())

    first, place = look(0)
    again = look(0)
    assert again[0] is first
    assert again[1] is place
    for number in range(1, 4):
        look(number)
    again = look(0)
    assert again[0] is not first  # forgotten, and made again
    assert again[1] is not place
    assert again == (first, place)
