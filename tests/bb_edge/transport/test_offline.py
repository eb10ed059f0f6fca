"""A broker that is gone for longer than requests wait, between real nodes, drivers and mosquitto."""

from __future__ import annotations

import queue
import threading

import pytest
from arrays import f32
from asking import Moody, changed

from bb_edge.engine import steps
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.registry import Registry
from bb_edge.transport.driver import Driver
from bb_edge.transport.mqtt import Broker, MqttTransport
from bb_shims import LinuxClock

pytestmark = pytest.mark.broker

DEADLINE = ("deadline_ns=5000000000", "deadline_ns=400000000")


class Running:
    """A node of one target with its driver on a thread, and the steps that it reported."""

    def __init__(self, name, target, data, url):
        registry = Registry()
        registry.register(Moody)
        self.node = install(PeerId.from_name(name), (), data, [target], registry=registry)
        transport = MqttTransport(self.node, Broker.from_url(url), "test")
        self.steps: queue.Queue[steps.EngineStep] = queue.Queue()
        self.kept: list[steps.EngineStep] = []
        self.driver = Driver(self.node, transport, LinuxClock(), self.steps.put)
        self.thread = threading.Thread(target=self.driver.run, daemon=True)
        self.thread.start()

    def next(self, kind, patience):
        """The next step of that kind."""
        while True:
            self.kept.append(self.steps.get(timeout=30 * patience))
            if isinstance(self.kept[-1], kind):
                return self.kept[-1]

    def stop(self):
        self.driver.stop()
        self.thread.join()


def test_nobody_is_failing_after_the_broker_was_away(mosquitto_broker, compile_text, patience):
    data = compile_text(changed(changes=[DEADLINE]))
    server = Running("server", "Server", data, mosquitto_broker.url)
    client = Running("c0", "Client", data, mosquitto_broker.url)

    def ask():
        server.node.invoke("Server", {"x": f32(1, 2)})
        return [why for _, why in server.next(steps.RequestClosed, patience).missing]

    try:
        server.next(steps.PeerUp, patience)
        assert ask() == []
        mosquitto_broker.kill()  # in good order it would tell that everybody has gone
        found = [ask()[0]]
        while len(found) < 8 or found[-7:] != ["not sent"] * 7:
            found.append(ask()[0])
        assert set(found) <= {"offline", "not sent"}, found
        mosquitto_broker.start()
        while ask():
            pass
        assert not [s for s in server.kept if isinstance(s, steps.PeerFailing)]
    finally:
        client.stop()
        server.stop()
