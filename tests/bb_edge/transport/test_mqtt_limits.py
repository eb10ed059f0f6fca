"""Against a real mosquitto: chunks, hostile messages, aliases, expiry, sessions, refusals, paho's seam."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
import tracemalloc

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from times import S

from bb_edge.engine.steps import SendEnvelope
from bb_edge.ir.ids import PeerId
from bb_edge.transport import incoming, packets
from bb_edge.transport.chunks import cut
from bb_edge.transport.mqtt import MqttOptionError, MqttOptions
from bb_edge.transport.shared_socket import EnvelopeClient, SharedSocket

pytestmark = pytest.mark.broker


def publish(broker, *messages: tuple[str, bytes]) -> None:
    """Publishes as a foreign client, and returns when the broker has acknowledged all."""
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.connect(broker.host, broker.port)
    client.loop_start()
    for topic, payload in messages:
        client.publish(topic, payload, qos=1).wait_for_publish(20)
    client.disconnect()
    client.loop_stop()


def pair(loop, doors, address, **options):
    a, b = doors("a"), doors("b")
    ta = loop.join(a, address, **options)
    loop.until(lambda: ta.connected)
    tb = loop.join(b, address, **options)
    loop.until(lambda: b.peer_id in a.presence and a.peer_id in b.presence)
    return a, b, ta, tb


@pytest.mark.parametrize("limit", ["the broker's", "an option"])
def test_a_value_above_the_packet_limit_arrives_whole(start_broker, loop, doors, url, limit):
    config, options = (["max_packet_size 20000"], MqttOptions())
    if limit == "an option":
        config, options = [], MqttOptions(max_packet_bytes=20_000)
    broker = start_broker("mosquitto", config=config)
    a, b, ta, tb = pair(loop, doors, url(broker), options=options)
    large, small = random.Random(1).randbytes(300_000), b"small"
    ta.send(SendEnvelope(b.peer_id, large))
    ta.send(SendEnvelope(b.peer_id, small))
    loop.until(lambda: len(b.got) == 2)
    assert b.got == [(large, a.peer_id), (small, a.peer_id)]
    assert ta.counters["cut"] == tb.counters["joined"] == 1
    assert ta.counters["chunks_sent"] == tb.counters["chunks_received"] > 15
    assert ta.counters["disconnects"] == 0


def test_large_envelopes_come_one_between_two_polls(mosquitto_broker, loop, doors, url, monkeypatch):
    """However many the broker and the kernel have ready: what is in memory is one and its result."""
    monkeypatch.setattr(incoming, "READ_AT_ONCE", 32 * 1024)  # so that the kernel's buffer holds several
    monkeypatch.setattr(packets, "CHUNK_OF_READING", 4096)
    a, b, *_ = pair(loop, doors, url(mosquitto_broker))
    inbox = f"bb/test/{b.peer_id}/from/{a.peer_id}"
    large = bytes(40 * 1024)
    publish(mosquitto_broker, *[(inbox, large)] * 40)
    most = before = 0

    def all_here() -> bool:
        nonlocal most, before
        most, before = max(most, len(b.got) - before), len(b.got)
        return before == 40

    loop.until(all_here)
    assert most == 1


@pytest.mark.parametrize("planned", [0, 1_000_000])
def test_memory_for_the_planned_envelope_is_taken_at_once_and_read_into(
    mosquitto_broker, loop, doors, url, planned
):
    b, size = doors("b"), 1_000_000
    inbox = f"bb/test/{b.peer_id}/from/{PeerId.from_name('a')}"
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        transport = loop.join(b, url(mosquitto_broker), planned=planned)
        taken = tracemalloc.get_traced_memory()[0] - before
        loop.until(lambda: transport.counters["presences"] > 0)  # its own: it hears
        publish(mosquitto_broker, (inbox, bytes(size)))  # the broker has it; it is not read yet
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        loop.until(lambda: b.got)
        most = tracemalloc.get_traced_memory()[1] - held
    finally:
        tracemalloc.stop()
    assert len(b.got[0][0]) == size
    assert (taken > size, most > size) == (planned > 0, planned == 0), (taken, most)


def test_chunks_travel_over_311_as_well(mosquitto_broker, loop, doors, url):
    options = MqttOptions(max_packet_bytes=20_000)
    a, b, ta, _ = pair(loop, doors, url(mosquitto_broker), options=options, version="3.1.1")
    large = random.Random(2).randbytes(100_000)
    ta.send(SendEnvelope(b.peer_id, large))
    loop.until(lambda: b.got == [(large, a.peer_id)])
    assert ta.protocol == "3.1.1"


def test_hostile_chunks_are_counted_and_the_node_goes_on(mosquitto_broker, loop, doors, url):
    options = MqttOptions(max_envelope_bytes=100_000, chunked_bytes=100_000)
    a, b, ta, tb = pair(loop, doors, url(mosquitto_broker), options=options)
    mallory = PeerId.from_name("mallory")
    topic = f"bb/test/{b.peer_id}/chunk/{mallory}"
    first = next(iter(cut(bytes(50_000), 30_000, 7)))
    too_large = next(iter(cut(bytes(200_000), 30_000, 8)))
    publish(
        mosquitto_broker,
        (topic, b""),
        (topic, b"\x01" * 40),
        (topic, bytes(first.head)),
        (topic, too_large.head + bytes(too_large.data)),
        (f"bb/test/{b.peer_id}/chunk/nobody", b"x"),
    )
    loop.until(lambda: tb.counters["chunks_refused"] == 4 and tb.counters["malformed"] == 1)
    ta.send(SendEnvelope(b.peer_id, b"hello"))
    loop.until(lambda: b.got == [(b"hello", a.peer_id)])


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_what_is_above_the_receiver_s_limit_costs_it_nothing(mosquitto_broker, loop, doors, url, version):
    options = MqttOptions(max_envelope_bytes=50_000)
    a, b, _, tb = pair(loop, doors, url(mosquitto_broker), options=options, version=version)
    topic = f"bb/test/{b.peer_id}/from/{a.peer_id}"
    publish(mosquitto_broker, (topic, bytes(3_000_000)), (topic, b"after"))
    loop.until(lambda: b.got == [(b"after", a.peer_id)])
    # It comes, and is thrown away as it does: mosquitto would count what it kept back against the node.
    assert tb.counters["oversize"] == 1
    assert tb.counters["disconnects"] == 0


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_any_number_of_packets_above_the_limit_does_not_make_a_node_deaf(
    mosquitto_broker, loop, doors, url, version
):
    """mosquitto gives no credit back for what it drops: after `receive_maximum` of them nothing came."""
    options = MqttOptions(max_envelope_bytes=50_000)
    a, b, _, tb = pair(loop, doors, url(mosquitto_broker), options=options, version=version)
    many = options.receive_maximum + 10
    inbox = f"bb/test/{b.peer_id}/from"
    long = f"{inbox}/{'x' * 60_000}"  # a topic of anybody's own making
    messages = [(f"{inbox}/{a.peer_id}", bytes(60_000)), (long, bytes(60_000))] * (many // 2)
    publish(mosquitto_broker, *messages, (f"{inbox}/{a.peer_id}", b"after"))
    loop.until(lambda: b.got == [(b"after", a.peer_id)])
    assert tb.counters["oversize"] == len(messages)
    assert tb.counters["disconnects"] == 0


def test_a_topic_costs_its_length_once(mosquitto_broker, loop, doors, url):
    a, b, ta, _ = pair(loop, doors, url(mosquitto_broker))
    before = ta.counters["sent_bytes"]
    for _ in range(10):
        ta.send(SendEnvelope(b.peer_id, b"x"))
    loop.until(lambda: len(b.got) == 10)
    topic = len(f"bb/test/{b.peer_id}/from/{a.peer_id}")
    assert ta.counters["sent_bytes"] - before < 10 * 16 + topic


def test_an_envelope_that_expires_at_the_broker_does_not_arrive(mosquitto_broker, loop, doors, url, dialed):
    a, b, ta, tb = pair(loop, doors, url(mosquitto_broker))
    tb.wait(0)
    loop.transports.remove(tb)
    dialed[-1].close()  # its session stays at the broker
    loop.until(lambda: a.presence[b.peer_id][0] is False)
    ta.send(SendEnvelope(b.peer_id, b"short", expires_in_ns=1))
    ta.send(SendEnvelope(b.peer_id, b"soon", expires_in_ns=1 * S))
    ta.send(SendEnvelope(b.peer_id, b"long", expires_in_ns=600 * S))
    loop.until(lambda: ta.waiting == 0)
    assert ta.counters["expired"] == 1  # the first one did not even leave
    b2 = doors("b", epoch=2)
    time.sleep(2.5)  # a broker's clock cannot be turned
    loop.join(b2, url(mosquitto_broker))
    loop.until(lambda: bool(b2.got))
    assert [data for data, _ in b2.got] == [b"long"]


def test_a_peer_that_nobody_listens_for_is_counted(mosquitto_broker, loop, doors, url):
    a = doors("a")
    ta = loop.join(a, url(mosquitto_broker))
    loop.until(lambda: ta.connected)
    ta.send(SendEnvelope(PeerId.from_name("nobody"), b"x"))
    loop.until(lambda: ta.counters["unheard"] == 1)


def test_a_broker_that_refuses_the_password_is_asked_again_and_says_so(
    start_broker, loop, doors, url, tmp_path
):
    if shutil.which("mosquitto_passwd") is None:
        pytest.skip("mosquitto_passwd is not installed here (Debian: apt install mosquitto)")
    users = tmp_path / "users"
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(users), "ann", "right"], check=True)
    users.chmod(0o644)
    broker = start_broker("mosquitto", config=["allow_anonymous false", f"password_file {users}"])
    address = f"{broker.host}:{broker.port}"
    wrong = loop.join(doors("a"), f"mqtt://ann:wrong@{address}")
    loop.until(lambda: wrong.counters["refused"] >= 3)
    assert wrong.protocol == "5"
    # One line for all tries, which says what to change, and not the password.
    assert len(loop.logs) == 1
    assert "refuses the connection: Not authorized" in loop.logs[0]
    assert "is it the password of user ann?" in loop.logs[0]
    assert "next try in" in loop.logs[0]
    assert not any("wrong" in line for line in loop.logs)
    right = loop.join(doors("b"), f"mqtt://ann:right@{address}")
    loop.until(lambda: right.connected)


def test_what_the_broker_never_acknowledged_is_sent_again(start_broker, loop, doors, url):
    broker = start_broker("mosquitto")
    a = doors("a")
    ta = loop.join(a, url(broker))
    loop.until(lambda: ta.connected and ta.waiting == 0)
    broker.kill()
    ta.send(SendEnvelope(a.peer_id, b"in between"))
    loop.until(lambda: not ta.connected)
    ta.send(SendEnvelope(a.peer_id, b"while away"))
    broker.start()
    loop.until(lambda: [data for data, _ in a.got] == [b"in between", b"while away"] and not ta.waiting)


@pytest.mark.parametrize(
    "changes", [{"receive_maximum": 0}, {"max_packet_bytes": 100}, {"keepalive_s": 70_000}]
)
def test_an_impossible_option_is_refused_by_name(changes):
    with pytest.raises(MqttOptionError, match=next(iter(changes))):
        MqttOptions(**changes)


def test_paho_still_makes_its_socket_where_we_replace_it():
    assert "_create_socket" in vars(paho.Client)
    assert {"recv", "send", "close", "fileno", "setblocking"} <= set(dir(SharedSocket))
    assert issubclass(EnvelopeClient, paho.Client)


@pytest.mark.parametrize("of", ["the broker", "the node"])
def test_what_no_packet_holds_is_told_once_per_connection(start_broker, loop, doors, url, of):
    """Nobody saw the node, nothing that it sent arrived, and its log said that it was connected."""
    options = MqttOptions(max_packet_bytes=1024)
    lines, meta = ["max_packet_size 330"], {"runtime": "r" * 200}
    said, remedy = " takes packets of 330 bytes at most, ", "raise its limit (mosquitto: max_packet_size)"
    if of == "the node":
        lines, meta, said = [], {"runtime": "r" * 1000}, "this node sends packets of 1024 bytes at most, "
        remedy = "raise broker.max_packet_bytes"
    broker = start_broker("mosquitto", config=lines)
    a, b = doors("a"), doors("b")
    a.presence_meta = meta
    loop.join(b, url(broker), options=options)
    mute = loop.join(a, url(broker), options=options)
    loop.until(lambda: mute.counters["too_large"] == 1)
    (told,) = [line for line in loop.logs if "its presence" in line]
    assert said in told and told.endswith(f": no peer sees this node; {remedy}")
    assert f"is one of {mute.presence_packet_bytes}" in told
    if of == "the broker":
        for _ in range(2):
            mute.send(SendEnvelope(b.peer_id, bytes(5000)))
        loop.until(lambda: mute.counters["too_large"] == 3)
        (told,) = [line for line in loop.logs if "an envelope to a peer" in line]
        assert said in told and told.endswith(f": such envelopes are dropped; {remedy}")
    assert a.peer_id not in b.presence and not b.got
