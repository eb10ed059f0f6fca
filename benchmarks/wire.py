"""Envelopes over mosquitto, QoS 1, against raw paho with equal payloads: round trip, throughput, overhead.

The sender of both sides lives in this process, the receivers are processes of their own. Ours is whole: a
compiled program on a node, invoke, poll, envelope, MQTT transport; the receiver decodes the tensor and counts
it. Raw paho sends the bytes. A burst ends with a round trip on the same topic: by then all was taken in.
"""

from __future__ import annotations

import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from bb_edge import NodeConfig, PeerId, install
from bb_edge.components import PresenceSelector
from bb_edge.engine.steps import AppEvent, SendEnvelope
from bb_edge.transport.mqtt import Broker, MqttTransport
from bb_host import Compiler, Module, PeerSelectorSlot
from bb_host.dsl import Graph
from benchmarks.measuring import Row, in_turns
from federated_digits.brokers import start_broker
from federated_digits.processes import Child, Events

SIZES = {"100 B": 100, "10 KB": 10_000, "1 MB": 1_000_000}
BURST = {"100 B": 3000, "10 KB": 1500, "1 MB": 60}
TRIPS = {"100 B": 200, "10 KB": 200, "1 MB": 20}
PING, DATA = b"\x01", b"\x00"
READY_S, ANSWER_S = 30.0, 20.0
MOST_BYTES_ON_TOP = 64
HERE = Path(__file__).resolve().parent


class Echo(Module):
    """What comes by `ping` goes back; what comes by `data` is counted."""

    name, home = "Echo", "Asker"
    listeners = PeerSelectorSlot("listeners", peer_class="Listener", at="Asker")

    def body(self, g: Graph) -> None:
        ping = g.net_out("ping", self.listeners.current_view(g), g.input("x", "U8", (None,)))
        g.app_emit("back", g.net_out("pong", ping.sender, ping))
        data = g.net_out("data", self.listeners.current_view(g), g.input("y", "U8", (None,)))
        g.syscall.incr_metric(data, name="taken")


class Ours:
    """The asking node, driven from here."""

    def __init__(self, artifact: Path, url: str, federation: str) -> None:
        self.peer = PeerId.from_name("asker")
        self.node = install(self.peer, (), artifact.read_bytes(), ["Asker"], NodeConfig.host(), seed=1)
        self.transport = MqttTransport(self.node, Broker.from_url(url), federation)
        self.node.set_waker(lambda: None)
        self.transport.start()
        self.on_top = 0
        self.wait_for(lambda: bool(self.node.peers_up("Listener")), READY_S)

    def turn(self, wait_s: float, payload: int = 0) -> np.ndarray | None:
        """One poll and one look at the socket; what came back, if anything did."""
        back = None
        for step in self.node.poll(time.monotonic_ns()):
            if isinstance(step, SendEnvelope):
                if payload and step.size > payload:
                    self.on_top = max(self.on_top, step.size - payload)
                self.transport.send(step)
            elif isinstance(step, AppEvent):
                assert isinstance(step.value, np.ndarray)
                back = step.value
        if back is None:
            due = self.node.next_deadline_ns()
            if due is not None:
                wait_s = min(wait_s, max(0, due - time.monotonic_ns()) / 1e9)
            self.transport.wait(wait_s)
        return back

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "the listening node did not come up"
            self.turn(0.1)

    def trip(self, x: np.ndarray) -> None:
        self.node.invoke("Asker", {"x": x})
        end = time.monotonic() + ANSWER_S
        while (back := self.turn(1.0, x.nbytes)) is None:
            assert time.monotonic() < end, f"no answer within {ANSWER_S:.0f} s; {self.node.counters}"
        assert back.nbytes == x.nbytes and back[-1] == x[-1]

    def burst(self, x: np.ndarray, count: int) -> None:
        for number in range(count):
            self.node.invoke("Asker", {"y": x})
            if number % 16 == 15:
                self.turn(0.0, x.nbytes)
        self.trip(x)

    def stop(self) -> None:
        self.transport.stop()


class Raw:
    """paho alone, with its own thread: the faster of its two ways of use here."""

    def __init__(self, port: int, prefix: str) -> None:
        self.prefix = prefix
        self._expected = -1
        self._back = threading.Event()
        self.client = raw_client(f"{prefix}-asker")
        subscribe_on_connect(self.client, f"{prefix}/asker")
        self.client.on_message = self._message
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        self._expected = len(PING)
        for _ in range(int(READY_S / 0.1)):
            self.client.publish(f"{prefix}/listener", PING, qos=0)
            if self._back.wait(0.1):
                return
        raise AssertionError("the listening process did not come up")

    def _message(self, _client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        if len(message.payload) == self._expected:
            self._back.set()

    def trip(self, payload: bytes) -> None:
        self._expected = len(PING) + len(payload)
        self._back.clear()
        self.client.publish(f"{self.prefix}/listener", PING + payload, qos=1)
        assert self._back.wait(ANSWER_S), f"paho: no answer within {ANSWER_S:.0f} s"

    def burst(self, payload: bytes, count: int) -> None:
        for _ in range(count):
            self.client.publish(f"{self.prefix}/listener", DATA + payload, qos=1)
        self.trip(payload)

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def raw_client(name: str) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTProtocolVersion.MQTTv5)
    client.on_socket_open = lambda *a: a[2].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def subscribe_on_connect(client: paho.Client, topic: str) -> None:
    def connected(client: paho.Client, *_: object) -> None:
        client.subscribe(topic, qos=1)

    client.on_connect = connected


def listen_raw(port: int, prefix: str) -> None:
    """The raw receiver's process: counts data, sends pings back."""
    taken = 0

    def message(client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        nonlocal taken
        if message.payload[:1] == PING:
            client.publish(f"{prefix}/asker", message.payload, qos=1)
        else:
            taken += 1

    client = raw_client(f"{prefix}-listener")
    subscribe_on_connect(client, f"{prefix}/listener")
    client.on_message = message
    client.connect("127.0.0.1", port)
    client.loop_forever()


def seconds_of(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def run(rounds: int = 9, seconds: float = 60.0) -> list[Row]:
    """Raises BrokerError without mosquitto, AssertionError where something does not arrive."""
    from bb_host.build import compile_edge

    found: list[Row] = []
    with tempfile.TemporaryDirectory() as text:
        folder, events = Path(text), Events()
        compile_edge(Echo(), Compiler().bind_peer_selector("listeners", PresenceSelector), folder)
        # By default mosquitto drops what waits beyond 1,000 messages: a burst would measure its memory.
        broker = start_broker(folder / "broker", events, "mosquitto", ["max_queued_messages 0"])
        port = int(broker.url.rpartition(":")[2])
        bb_edge_run: list[str | Path] = [
            sys.executable,
            "-m",
            "bb_edge.cli",
            "run",
            folder / "Echo.Listener.edge.onnx",
        ]
        listener = ("--target", "Listener", "--peer", "listener", "--budget", "host", "--federation", "wire")
        children = [
            Child("listener", [*bb_edge_run, *listener, "--broker", broker.url], folder / "ours.log", events),
            Child("raw", [sys.executable, HERE / "wire.py", str(port), "raw"], folder / "raw.log", events),
        ]
        ours = raw = None
        try:
            ours = Ours(folder / "Echo.Asker.edge.onnx", broker.url, "wire")
            raw = Raw(port, "raw")
            for size, count in SIZES.items():
                found += rows_of(ours, raw, size, count, rounds, seconds / len(SIZES))
        finally:
            for side in (ours, raw):
                if side is not None:
                    side.stop()
            for child in children:
                child.end(within_s=0)
            broker.stop()
    return found


def rows_of(ours: Ours, raw: Raw, size: str, count: int, rounds: int, seconds: float) -> list[Row]:
    x = np.arange(count, dtype=np.uint64).astype(np.uint8)
    payload, trips, burst = x.tobytes(), TRIPS[size], BURST[size]

    def milliseconds(trip: Callable[[], None]) -> float:
        began = time.perf_counter()
        for _ in range(trips):
            trip()
        return (time.perf_counter() - began) / trips * 1e3

    ours.trip(x)
    raw.trip(payload)
    ours.on_top = 0
    ms = in_turns(
        {
            "bb_edge": lambda: milliseconds(lambda: ours.trip(x)),
            "paho": lambda: milliseconds(lambda: raw.trip(payload)),
        },
        rounds,
        seconds / 2,
    )
    rate = in_turns(
        {
            "bb_edge": lambda: burst / seconds_of(lambda: ours.burst(x, burst)),
            "paho": lambda: burst / seconds_of(lambda: raw.burst(payload, burst)),
        },
        rounds,
        seconds / 2,
    )
    ceiling = 0.5 if count >= 1_000_000 else 1.2
    return [
        Row(f"round trip, {size}", ms, "ms", ms["bb_edge"] / ms["paho"], ceiling),
        Row(f"throughput, {size}", rate, "/s", rate["bb_edge"] / rate["paho"], 1.0, at_least=True),
        Row(f"bytes on top, {size}", {"bb_edge": float(ours.on_top)}, "B", None, MOST_BYTES_ON_TOP),
    ]


if __name__ == "__main__":
    listen_raw(int(sys.argv[1]), sys.argv[2])
