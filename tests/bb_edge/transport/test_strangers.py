"""Ten thousand presences of peers that do not exist, and one in the server's name: the federation goes on."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter

import numpy as np
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from bb_edge import install, load
from bb_edge.engine import steps
from bb_edge.ir.ids import PeerId
from bb_edge.transport.mqtt import Broker, MqttTransport
from bb_edge.transport.topics import Topics
from bb_edge.wire.presence import Presence, encode_presence
from bb_host import Compiler, Graph, Module, PeerSelectorSlot
from bb_host.ir.proto import to_proto
from tests.aids.peers import numbered

STRANGERS = 10_000
MS = 1_000_000


class Reports(Module):
    """Leaves report to a hub, ten times a second."""

    name, home = "Reports", "Leaf"
    hubs = PeerSelectorSlot("hubs", "bb.PresenceSelector", peer_class="Hub")

    def body(self, g: Graph) -> None:
        tick = g.interval(100 * MS)
        to = self.hubs.sample(g, n=1, after=tick)
        g.app_emit("report", g.net_out("report", to, g.constant(np.float32(1.0))).sender)


class Member:
    """One node on the broker, and what it reported."""

    def __init__(self, broker, name: str, target: str, program) -> None:
        self.node = install(PeerId.from_name(name), (), program, [target], seed=1)
        self.logs: list[str] = []
        self.seen: list[steps.EngineStep] = []
        self.transport = MqttTransport(
            self.node,
            Broker.from_url(broker.url),
            "test",
            on_log=lambda _level, message, **_: self.logs.append(message),
            meta={"name": name},
        )
        self.transport.start()

    def turn(self) -> None:
        self.transport.wait(0.002)
        for step in self.node.poll(time.monotonic_ns()):
            if isinstance(step, steps.SendEnvelope):
                self.transport.send(step)
            else:
                self.seen.append(step)

    def of(self, kind: type) -> list:
        return [step for step in self.seen if isinstance(step, kind)]


@pytest.fixture
def strangers(mosquitto_broker):
    """`strangers(forged)`: presences of peers that do not exist, and one in the name of `forged`."""

    def publish(forged: PeerId) -> None:
        client = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        done, left = threading.Event(), [STRANGERS + 1]

        def published(*_rest) -> None:
            left[0] -= 1
            if not left[0]:
                done.set()

        client.on_publish = published
        client.max_inflight_messages_set(500)
        client.connect(mosquitto_broker.host, mosquitto_broker.port)
        client.loop_start()
        up = encode_presence(Presence(True, 9, session=1))
        for number in range(STRANGERS):
            peer = numbered(number)
            client.publish(Topics("test", peer).presence("Leaf", peer), up, qos=1, retain=True)
        topic = Topics("test", forged).presence("Hub", forged)
        client.publish(topic, encode_presence(Presence(True, 2**64 - 1)), qos=1, retain=True)
        assert done.wait(120)
        client.disconnect()
        client.loop_stop()

    return publish


def test_the_federation_goes_on(mosquitto_broker, strangers, dialed, patience):
    program = load(Compiler().compile(to_proto(Reports().record())).SerializeToString())
    hub = Member(mosquitto_broker, "hub", "Hub", program)
    end = time.monotonic() + 20 * patience
    while not hub.transport.connected:
        assert time.monotonic() < end
        hub.turn()
    wire = dialed[-1]
    leaves = [Member(mosquitto_broker, f"leaf-{number}", "Leaf", program) for number in range(3)]
    members = [hub, *leaves]
    ids = {leaf.node.peer_id for leaf in leaves}

    def until(condition) -> None:
        end = time.monotonic() + 120 * patience
        while not condition():
            assert time.monotonic() < end, [member.logs[-5:] for member in members]
            for member in members:
                member.turn()

    def reports() -> Counter[PeerId]:
        return Counter(event.value[0] for event in hub.of(steps.AppEvent))

    def every_leaf_reports() -> None:
        before = reports()
        until(lambda: all(reports()[peer] >= before[peer] + 5 for peer in ids))

    every_leaf_reports()
    thread = threading.Thread(target=strangers, args=(hub.node.peer_id,))
    thread.start()
    until(lambda: not thread.is_alive())
    until(lambda: hub.node.counters["peers.refused"] > 1000)
    every_leaf_reports()
    assert len(hub.node.inspect().peers) == hub.node.config.max_peers
    assert ids <= set(hub.node.peers_up("Leaf"))
    until(lambda: all(leaf.node.peers_up("Hub") == (hub.node.peer_id,) for leaf in leaves))
    lines = len(hub.logs)
    told = len(hub.of(steps.PeerRefused))
    for count in (2, 3):  # a broker tells all that is retained at each connection
        wire.shutdown(socket.SHUT_RDWR)
        until(lambda count=count: hub.transport.counters["connects"] == count)
        before = hub.transport.counters["presences"]
        until(lambda before=before: hub.transport.counters["presences"] > before + 900)
        every_leaf_reports()
        wire = dialed[-1]
    assert len(hub.node.inspect().peers) == hub.node.config.max_peers
    assert 1 <= told <= len(hub.of(steps.PeerRefused)) <= told + 3
    assert not hub.of(steps.IngressDropped)
    assert len(hub.logs) <= lines + 6, hub.logs[lines:]
    for leaf in leaves:
        assert set(leaf.node.peers_up("Leaf")) == {leaf.node.peer_id}  # who is none of its business
    for member in members:
        member.transport.stop()
