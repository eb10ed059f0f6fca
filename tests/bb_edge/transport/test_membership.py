"""Presence over a real broker: by class, by session, wills, and what others say in a node's name."""

from __future__ import annotations

import random
import socket
import time
from collections import Counter

import paho.mqtt.publish as publish
import paho.mqtt.subscribe as subscribe
import pytest

from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.transport.membership import Acts, Membership
from bb_edge.transport.topics import Topics
from bb_edge.wire.peers import PeerTable
from bb_edge.wire.presence import MAX_ADDRESSES, Presence, decode_presence, encode_presence
from tests.aids.peers import numbered


@pytest.fixture
def member(doors):
    """`member(name, classes, hears, epoch=1)`: a node that believes what it is told, in `.peers`."""

    class Member(doors):
        def __init__(self, name, classes, hears, epoch=1):
            super().__init__(name, epoch)
            self.classes, self.hears = classes, hears
            self.peers = PeerTable()

        def presences_come(self):
            pass

        def peer_presence(self, peer, up, addresses=(), meta=None, *, epoch=0, classes=(), session=0, seq=0):
            said = Presence(up, epoch or None, classes, addresses, meta or {}, session=session, seq=seq)
            self.peers.update(peer, said)

        def presence_cleared(self, peer, peer_class=None):
            self.peers.clear(peer, peer_class)

    return Member


@pytest.fixture
def say(mosquitto_broker):
    """`say(peer, presence, peer_class="Client", retain=True)`: somebody publishes it in the peer's name."""

    def say(peer, presence, peer_class="Client", retain=True):
        publish.single(
            Topics("test", peer).presence(peer_class, peer),
            b"" if presence is None else encode_presence(presence),
            qos=1,
            retain=retain,
            hostname=mosquitto_broker.host,
            port=mosquitto_broker.port,
        )

    return say


def test_a_node_hears_the_classes_that_it_deals_with(mosquitto_broker, loop, member, url):
    server = member("server", ("Server",), ("Client",))
    clients = [member(name, ("Client",), ("Server",)) for name in ("a", "b")]
    for node in (server, *clients):
        loop.join(node, url(mosquitto_broker))
    known = tuple(sorted(client.peer_id for client in clients))
    loop.until(
        lambda: (
            server.peers.up_peers("Client") == known
            and all(client.peers.up_peers("Server") == (server.peer_id,) for client in clients)
        )
    )
    assert [set(client.peers) for client in clients] == [{server.peer_id}] * 2
    assert all(transport.counters["foreign"] == 0 for transport in loop.transports)


def test_a_fact_that_changes_is_told_soon_and_then_seldom(mosquitto_broker, loop, member, url):
    server, client = member("server", ("Server",), ("Client",)), member("client", ("Client",), ("Server",))
    loop.join(server, url(mosquitto_broker))
    transport = loop.join(client, url(mosquitto_broker))
    peer = client.peer_id
    loop.until(lambda: server.peers.is_up(peer))
    loop.until(lambda: transport.counters["presences"] >= 2)  # the server's, and its own
    said = transport.counters["presences"]
    for number in range(100):
        transport.tell("failure", f"failure {number}")
    loop.until(lambda: server.peers.get(peer).meta.get("failure") == "failure 99")
    transport.tell("failure", "failure 99")
    assert server.peers.is_up(peer)
    assert server.peers.get(peer).seq == 2
    assert said <= transport.counters["presences"] <= said + 1


def test_a_presence_that_the_broker_does_not_tell_is_said_again(member):
    """A queue that overflows loses the node's own presence, and what was said in its name stays there."""
    node, said = member("server", ("Server",), ("Client",)), []
    acts = Acts(
        lambda topic, payload: said.append(payload), lambda *_call: None, lambda *_line, **_more: None
    )
    topics = Topics("test", node.peer_id)
    found = Membership(node, topics, {}, "here", Counter(), acts, random.Random(1))
    found.will()
    found.connected()
    now, counts = time.monotonic(), []
    for after_s in (9, 11, 30, 32, 70, 73):
        found.tick(now + after_s)
        counts.append(len(said))
    assert counts == [1, 2, 2, 3, 3, 4], "after 10 s, 20 s more, 40 s more"
    found.take(node.peer_id, "Server", said[2])
    found.tick(now + 3600)
    assert len(said) == 4, "it was told: nothing is lost"
    found.take(node.peer_id, "Server", encode_presence(Presence(True, 9, session=1)))
    assert len(said) == 5, "what somebody says in its name is answered at once"


@pytest.mark.parametrize("count", [10, 20, 40])
def test_a_start_of_n_clients_costs_messages_in_proportion(mosquitto_broker, loop, member, url, count):
    server = member("server", ("Server",), ("Client",))
    clients = [member(f"client-{number}", ("Client",), ("Server",)) for number in range(count)]
    transports = [loop.join(node, url(mosquitto_broker)) for node in (server, *clients)]
    loop.until(
        lambda: (
            len(server.peers) == count
            and all(client.peers.up_peers("Server") for client in clients)
            and all(transport.counters["presences"] >= 2 for transport in transports)
        )
    )
    # The server hears of each client and of itself, each client of the server and of itself.
    assert sum(transport.counters["presences"] for transport in transports) == 3 * count + 1


def test_an_artifact_without_the_field_hears_every_class(mosquitto_broker, loop, member, url):
    old = member("old", ("Client",), None)
    others = [member("a", ("Client",), ()), member("b", ("Server",), ())]
    for node in (old, *others):
        loop.join(node, url(mosquitto_broker))
    loop.until(lambda: set(old.peers) == {node.peer_id for node in others})
    assert not others[0].peers


def test_the_will_of_one_class_ends_the_others(mosquitto_broker, loop, member, url, dialed):
    both, hub = member("both", ("B", "A"), ()), member("hub", ("Hub",), ("B",))
    loop.join(hub, url(mosquitto_broker))
    loop.until(lambda: bool(dialed) and loop.transports[0].connected)
    there = loop.join(both, url(mosquitto_broker))
    loop.until(lambda: hub.peers.up_peers("B") == (both.peer_id,))
    loop.transports.remove(there)
    dialed[-1].close()  # no goodbye: the broker publishes the will, under class A
    loop.until(lambda: hub.peers.is_down(both.peer_id))
    assert not hub.peers.up_peers("A")  # hub did not ask who is of A


def test_who_comes_later_learns_of_the_will_too(mosquitto_broker, loop, member, url, dialed):
    both = member("both", ("A", "B"), ())
    there = loop.join(both, url(mosquitto_broker))
    loop.until(lambda: there.counters["presences"] == 2)
    loop.transports.remove(there)
    dialed[-1].close()
    hub = member("hub", ("Hub",), ("B",))
    late = loop.join(hub, url(mosquitto_broker))
    # What lies under B still says up; what lies under A says that this session is over.
    loop.until(lambda: late.counters["presences"] >= 2 and hub.peers.is_down(both.peer_id))


def test_a_will_is_heard_behind_a_broker_s_restart(start_broker, loop, member, url, dialed):
    """The broker forgets its sessions: what is listened to beside the filters is subscribed to again."""
    broker = start_broker("mosquitto")
    both, hub = member("both", ("A", "B"), ()), member("hub", ("Hub",), ("B",))
    here, there = loop.join(hub, url(broker)), loop.join(both, url(broker))
    loop.until(lambda: hub.peers.up_peers("B") == (both.peer_id,))
    broker.kill()
    loop.until(lambda: not here.connected and not there.connected)
    loop.transports.remove(there)
    broker.start()
    loop.until(lambda: here.connected and not here.waiting)
    loop.transports.append(there)
    loop.until(lambda: there.connected and hub.peers.get(both.peer_id).session >= 2)
    loop.transports.remove(there)
    dialed[-1].close()
    loop.until(lambda: hub.peers.is_down(both.peer_id))


def test_a_class_that_a_node_no_longer_has_is_cleared(mosquitto_broker, loop, member, url):
    hub = member("hub", ("Hub",), ("A", "B"))
    loop.join(hub, url(mosquitto_broker))
    node = member("node", ("A", "B"), ())
    first = loop.join(node, url(mosquitto_broker))
    loop.until(lambda: hub.peers.up_peers("A") == hub.peers.up_peers("B") == (node.peer_id,))
    loop.transports.remove(first)
    first.stop()
    loop.until(lambda: hub.peers.is_down(node.peer_id))
    again = loop.join(member("node", ("B",), (), epoch=2), url(mosquitto_broker))
    loop.until(lambda: hub.peers.up_peers("B") == (node.peer_id,))
    loop.until(lambda: hub.peers.get(node.peer_id).classes == ("B",) and not again.waiting)
    host = {"hostname": mosquitto_broker.host, "port": mosquitto_broker.port}
    seen = subscribe.simple("bb/test/presence/+/+", msg_count=2, **host)
    assert {m.topic.split("/")[3] for m in seen} == {"B", "Hub"}


def test_a_goodbye_is_behind_what_was_sent_and_keeps_the_name(mosquitto_broker, loop, member, url, say):
    from bb_edge.engine.steps import SendEnvelope
    from bb_edge.transport.mqtt import Broker, MqttTransport

    order = []
    hub = member("hub", ("Hub",), ("Client",))
    hub.deliver_inbound = lambda *_: order.append("envelope")
    believe = hub.peer_presence

    def told(peer, up, *rest, **named):
        order.append("up" if up else "down")
        believe(peer, up, *rest, **named)

    hub.peer_presence = told
    loop.join(hub, url(mosquitto_broker))
    node = member("node", ("Client",), ())
    leaver = MqttTransport(
        node, Broker.from_url(url(mosquitto_broker)), "test", meta={"name": "kitchen", "more": 1}
    )
    leaver.start()
    loop.transports.append(leaver)
    loop.until(lambda: hub.peers.is_up(node.peer_id))
    for _ in range(200):
        leaver.send(SendEnvelope(hub.peer_id, b"x"))
    loop.transports.remove(leaver)
    leaver.stop()
    loop.until(lambda: "down" in order)
    assert order == ["up", *["envelope"] * 200, "down"]
    kept = subscribe.simple(
        Topics("test", node.peer_id).presence("Client", node.peer_id),
        hostname=mosquitto_broker.host,
        port=mosquitto_broker.port,
    )
    assert decode_presence(kept.payload).meta == {"name": "kitchen"}


def test_a_node_that_connects_again_is_up_again(mosquitto_broker, loop, member, url, dialed):
    hub, node = member("hub", ("Hub",), ("Client",)), member("node", ("Client",), ())
    loop.join(hub, url(mosquitto_broker))
    loop.until(lambda: loop.transports[0].connected)
    there = loop.join(node, url(mosquitto_broker))
    loop.until(lambda: hub.peers.is_up(node.peer_id))
    for session in (2, 3):
        loop.transports.remove(there)
        dialed[-1].shutdown(socket.SHUT_RDWR)
        loop.until(lambda: hub.peers.is_down(node.peer_id))
        loop.transports.append(there)
        loop.until(lambda: hub.peers.is_up(node.peer_id))
        known = hub.peers.get(node.peer_id)
        assert known.epoch == node.epoch and known.session >= session


def test_two_machines_of_one_name_are_named(mosquitto_broker, loop, member, url):
    """Debian's mosquitto does not say that a session was taken over: the retained presence tells it."""
    one, two = (member("twin", ("Client",), (), epoch=epoch) for epoch in (11, 22))
    for node in (one, two):
        loop.join(node, url(mosquitto_broker))
    loop.until(lambda: sum("another machine runs as" in line for line in loop.logs) >= 1)
    line = next(line for line in loop.logs if "another machine runs as" in line)
    assert str(one.peer_id) in line and "'test'" in line and "a name of its own" in line
    # Who was put out waits long before it takes the place back: no line per second.
    loop.until(lambda: any("lost" in line and float(line.split()[-2]) >= 15 for line in loop.logs))


def test_a_restart_is_no_second_machine(mosquitto_broker, loop, member, url, dialed):
    for epoch in (1, 2, 3):
        node = member("node", ("Client",), (), epoch=epoch)
        transport = loop.join(node, url(mosquitto_broker))
        loop.until(lambda t=transport: t.counters["presences"] >= 1 and t.connected and not t.waiting)
        if epoch == 3:  # and neither is a connection that breaks
            dialed[-1].shutdown(socket.SHUT_RDWR)
            loop.until(lambda t=transport: t.counters["connects"] == 2 and not t.waiting)
        assert transport.counters["twins"] == 0
        loop.transports.remove(transport)
        if epoch == 1:
            transport.stop()
        else:
            dialed[-1].close()
    assert not any("another machine" in line for line in loop.logs)


def test_what_others_said_before_it_connected_is_put_right(mosquitto_broker, loop, member, url, say):
    hub, node = member("hub", ("Hub",), ("Client",)), member("node", ("Client",), (), epoch=5)
    say(node.peer_id, Presence(True, 2**64 - 1, session=9))
    say(node.peer_id, Presence(True, 2**64 - 1, session=9), "Server")
    loop.join(hub, url(mosquitto_broker))
    loop.until(lambda: hub.peers.epoch(node.peer_id) == 2**64 - 1)
    there = loop.join(node, url(mosquitto_broker))
    loop.until(lambda: hub.peers.epoch(node.peer_id) == 5)
    loop.until(lambda: there.counters["presences"] == 4 and not there.waiting)  # two old, one new, one gone
    host = {"hostname": mosquitto_broker.host, "port": mosquitto_broker.port}
    seen = subscribe.simple("bb/test/presence/+/+", msg_count=2, **host)
    assert {m.topic.split("/")[3] for m in seen} == {"Client", "Hub"}


def test_what_somebody_says_in_a_node_s_name_is_answered(mosquitto_broker, loop, member, url, say):
    hub, node = member("hub", ("Hub",), ("Client",)), member("node", ("Client",), (), epoch=5)
    there, here = loop.join(node, url(mosquitto_broker)), loop.join(hub, url(mosquitto_broker))
    loop.until(lambda: hub.peers.is_up(node.peer_id))
    before = here.counters["presences"]
    say(node.peer_id, Presence(True, 77, session=1))
    loop.until(lambda: here.counters["presences"] >= before + 2 and hub.peers.epoch(node.peer_id) == 5)
    for epoch in range(80, 100):  # the answers are rare: whoever forges one presence can forge many
        say(node.peer_id, Presence(True, epoch, session=1))
    loop.until(lambda: there.counters["twins"] == 21)
    assert sum("another machine" in line for line in loop.logs) == 1
    assert there.counters["connects"] == 1


def test_a_goodbye_that_it_did_not_say_has_a_node_connect_anew(mosquitto_broker, loop, member, url, say):
    hub, node = member("hub", ("Hub",), ("Client",)), member("node", ("Client",), (), epoch=5)
    loop.join(hub, url(mosquitto_broker))
    there = loop.join(node, url(mosquitto_broker))
    loop.until(lambda: hub.peers.is_up(node.peer_id))
    say(node.peer_id, Presence(False, 5, session=40))
    loop.until(lambda: hub.peers.is_down(node.peer_id))
    loop.until(lambda: hub.peers.is_up(node.peer_id))
    assert hub.peers.get(node.peer_id).session == 41
    assert there.counters["connects"] == 2
    assert any("speaks in the name of" in line for line in loop.logs)


def test_a_goodbye_of_the_connection_that_it_did_not_say_has_a_node_connect_anew(
    mosquitto_broker, loop, member, url, say
):
    hub, node = member("hub", ("Hub",), ("Client",)), member("node", ("Client",), (), epoch=5)
    loop.join(hub, url(mosquitto_broker))
    there = loop.join(node, url(mosquitto_broker))
    loop.until(lambda: hub.peers.is_up(node.peer_id))
    say(node.peer_id, Presence(False, 5, session=1))
    loop.until(lambda: hub.peers.is_down(node.peer_id))
    loop.until(lambda: hub.peers.is_up(node.peer_id))
    assert hub.peers.get(node.peer_id).session == 2 and there.counters["twins"] == 1
    assert any("speaks in the name of" in line for line in loop.logs)


def test_the_wills_of_a_broker_that_ends_are_no_forgeries(mosquitto_broker, loop, member, url):
    """It says them as it goes down, to those that it still has."""
    hub, node = member("hub", ("Hub",), ("Client",)), member("node", ("Client",), (), epoch=5)
    here, there = (loop.join(each, url(mosquitto_broker)) for each in (hub, node))
    loop.until(lambda: hub.peers.is_up(node.peer_id) and there.counters["presences"] >= 1)
    before = there.counters["presences"]
    mosquitto_broker.stop()
    loop.until(lambda: there.counters["disconnects"] == here.counters["disconnects"] == 1)
    assert there.counters["presences"] > before, "its will has come"
    mosquitto_broker.start()
    loop.until(lambda: there.counters["connects"] == 2 and hub.peers.get(node.peer_id).session == 2)
    loop.until(lambda: hub.peers.is_up(node.peer_id))
    assert not there.counters["twins"] and not here.counters["twins"]
    assert not any("speaks in the name of" in line for line in loop.logs)


@pytest.mark.parametrize("said", [b"no presence", encode_presence(Presence(True, 5, session=1 << 60))])
def test_what_nobody_believes_in_a_node_s_name_is_put_right_and_logged(
    mosquitto_broker, loop, member, url, said
):
    node = member("node", ("Client",), (), epoch=5)
    there = loop.join(node, url(mosquitto_broker))
    loop.until(lambda: there.counters["presences"] == 1)
    topic = Topics("test", node.peer_id).presence("Client", node.peer_id)
    host = {"hostname": mosquitto_broker.host, "port": mosquitto_broker.port}
    publish.single(topic, said, qos=1, retain=True, **host)
    loop.until(lambda: there.counters["presences"] == 3)  # that, and what the node says again
    assert decode_presence(subscribe.simple(topic, **host).payload).session == 1
    (line,) = [line for line in loop.logs if "speaks in the name of" in line]
    assert "put right" in line and there.counters["connects"] == 1


def test_an_old_will_that_comes_late_is_put_right(mosquitto_broker, loop, member, url, say):
    node = member("node", ("Client",), (), epoch=5)
    there = loop.join(node, url(mosquitto_broker))
    loop.until(lambda: there.counters["presences"] == 1)
    say(node.peer_id, Presence(False, 4, session=3))
    loop.until(lambda: there.counters["presences"] == 3)  # the will, and what it says again
    kept = subscribe.simple(
        Topics("test", node.peer_id).presence("Client", node.peer_id),
        hostname=mosquitto_broker.host,
        port=mosquitto_broker.port,
    )
    assert decode_presence(kept.payload).epoch == 5
    assert there.counters["twins"] == 0


def test_one_name_may_be_in_two_federations(mosquitto_broker, loop, member, url):
    for federation in ("north", "south"):
        loop.join(member("node", ("Client",), ()), url(mosquitto_broker), federation)
    loop.until(lambda: all(transport.counters["presences"] for transport in loop.transports))
    assert [transport.counters["connects"] for transport in loop.transports] == [1, 1]
    assert all(transport.connected for transport in loop.transports)


@pytest.fixture
def session_of_another_life(mosquitto_broker):
    """`session_of_another_life(peer, filters)`: leaves a session of a node's client with subscriptions."""
    import threading

    import paho.mqtt.client as paho
    from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    def leave(peer, filters):
        client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=f"bb-test-{peer}", protocol=MQTTProtocolVersion.MQTTv5
        )
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 600
        subscribed = threading.Event()
        client.on_connect = lambda c, *_: c.subscribe([(name, 1) for name in filters])
        client.on_subscribe = lambda *_: subscribed.set()
        client.connect(mosquitto_broker.host, mosquitto_broker.port, properties=properties)
        client.loop_start()
        assert subscribed.wait(20)
        client.disconnect()
        client.loop_stop()

    return leave


def test_subscriptions_of_another_life_are_dropped(
    mosquitto_broker, loop, member, url, say, session_of_another_life
):
    node, other = member("node", ("Client",), ("Server",)), PeerId.from_name("other")
    session_of_another_life(node.peer_id, ["bb/test/presence/Client/+", "bb/gone/presence/+"])
    for number in range(5):
        say(numbered(number), Presence(True, 1))
    there = loop.join(node, url(mosquitto_broker))
    host = {"hostname": mosquitto_broker.host, "port": mosquitto_broker.port}
    loop.until(lambda: there.connected and not there.waiting)
    say(other, Presence(True, 1))
    publish.single(f"bb/gone/presence/{other}", b"x", qos=1, **host)
    loop.until(lambda: sum("another life" in line for line in loop.logs) == 2)
    said = [line for line in loop.logs if "another life" in line]
    assert len(said) == 2 and "bb/test/presence/Client/+" in said[0] and "bb/gone/presence/+" in said[1]
    before = there.counters["foreign"]
    for number in range(5):
        say(numbered(number), Presence(True, 2))
    say(other, Presence(True, 1), "Server")
    loop.until(lambda: node.peers.is_up(other))
    assert there.counters["foreign"] == before
    assert [line for line in loop.logs if "another life" in line] == said


def test_a_session_that_keeps_what_is_unsubscribed_begins_anew(
    mosquitto_broker, loop, member, url, session_of_another_life, monkeypatch
):
    """A filter that nobody can guess from its topics."""
    monkeypatch.setattr("bb_edge.transport.strays.PATIENCE_S", 0.0)
    node = member("node", ("Client",), ("Server",))
    session_of_another_life(node.peer_id, ["elsewhere/#"])
    there = loop.join(node, url(mosquitto_broker))
    loop.until(lambda: there.connected)
    host = {"hostname": mosquitto_broker.host, "port": mosquitto_broker.port}
    for count in (1, 2):
        publish.single("elsewhere/x", b"x", qos=1, **host)
        loop.until(lambda count=count: there.counters["foreign"] == count)
    loop.until(lambda: there.counters["connects"] == 2)
    assert any("keep coming" in line for line in loop.logs)
    publish.single("elsewhere/x", b"x", qos=1, **host)
    other = PeerId.from_name("other")
    publish.single(
        Topics("test", other).presence("Server", other), encode_presence(Presence(True, 1)), qos=1, **host
    )
    loop.until(lambda: node.peers.is_up(other))
    assert there.counters["foreign"] == 2


def test_a_peer_is_reached_by_its_id_whatever_addresses_its_presence_names(
    mosquitto_broker, loop, member, url, say
):
    hub = member("hub", ("Hub",), ("Client",))
    here = loop.join(hub, url(mosquitto_broker))
    bare, elsewhere, ill, many = peers = [PeerId.from_name(name) for name in ("a", "b", "c", "d")]
    other = Address.empty().with_peer(bare).to_bytes()
    say(bare, Presence(True, 1, session=1))
    say(elsewhere, Presence(True, 1, addresses=(other,), session=1))
    say(ill, Presence(True, 1, addresses=(b"\xff" * 9,), session=1))
    say(many, Presence(True, 1, addresses=(other,) * MAX_ADDRESSES, session=1))
    loop.until(lambda: hub.peers.is_up(many) and here.counters["malformed"] == 1)
    own = [Topics("test", hub.peer_id).names(peer).address for peer in peers]
    assert [peer in hub.peers for peer in peers] == [True, True, False, True]
    assert hub.peers.get(bare).addresses == (own[0],)
    assert hub.peers.get(elsewhere).addresses == (other, own[1])
    assert hub.peers.get(many).addresses == (*(other,) * (MAX_ADDRESSES - 1), own[3])
    assert any(
        f"a presence of {ill}" in line or "one of its addresses is malformed" in line for line in loop.logs
    )


def test_a_presence_without_an_epoch_is_refused_and_changes_nothing(mosquitto_broker, loop, member, url, say):
    """A down of no run would be one of any: it took honest peers out."""
    hub, node = member("hub", ("Hub",), ("Client",)), member("node", ("Client",), (), epoch=5)
    here = loop.join(hub, url(mosquitto_broker))
    loop.join(node, url(mosquitto_broker))
    loop.until(lambda: hub.peers.is_up(node.peer_id))
    for up in (False, True):
        say(node.peer_id, Presence(up, None, session=9), retain=False)
    loop.until(lambda: here.counters["malformed"] == 2)
    assert hub.peers.is_up(node.peer_id) and hub.peers.epoch(node.peer_id) == 5
    assert any("it names no epoch" in line for line in loop.logs)


def test_a_roll_call_that_is_none_is_refused_in_nobody_s_name(mosquitto_broker, loop, member, url):
    node = member("node", ("Client",), ())
    here = loop.join(node, url(mosquitto_broker))
    loop.until(lambda: here.counters["presences"] == 1)
    call = Topics("test", node.peer_id).roll_call("Client")
    publish.single(call, b"\xff", qos=1, hostname=mosquitto_broker.host, port=mosquitto_broker.port)
    loop.until(lambda: here.counters["malformed"] == 1)
    (line,) = [line for line in loop.logs if "roll call of Client" in line]
    assert str(node.peer_id) not in line
