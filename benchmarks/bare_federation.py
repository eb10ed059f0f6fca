"""The federation of the example as one would write it by hand: paho and NumPy, nothing else.

    python bare_federation.py server|client NAME HOST PORT PREFIX DATA ROUNDS CLIENTS STEPS

The same job as examples/federated_digits: model, batches, loss, learning rate, weighted mean, scoring. Says
the same lines: an object per round, and a summary at the end. It checks nothing, resumes nothing and hangs on
a dead client.
"""

from __future__ import annotations

import itertools
import json
import signal
import socket
import struct
import sys
from pathlib import Path

import numpy as np
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

SIZES = (64, 32, 10)
BATCH, LEARNING_RATE = 32, np.float32(0.1)


class Net:
    """The MLP over one flat vector of parameters."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shapes = [(a, b) for a, b in itertools.pairwise(SIZES)]
        self.flat = np.empty(sum(a * b + b for a, b in shapes), np.float32)
        self.gradient = np.empty_like(self.flat)
        self.w1, self.b1, self.w2, self.b2 = self.views(self.flat)
        self.gw1, self.gb1, self.gw2, self.gb2 = self.views(self.gradient)
        self.flat[:] = 0
        for weights in (self.w1, self.w2):
            weights[:] = rng.standard_normal(weights.shape) * np.sqrt(2 / weights.shape[0])

    @staticmethod
    def views(flat: np.ndarray) -> list[np.ndarray]:
        found, at = [], 0
        for a, b in itertools.pairwise(SIZES):
            found += [flat[at : at + a * b].reshape(a, b), flat[at + a * b : at + a * b + b]]
            at += a * b + b
        return found

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hidden = np.maximum(x @ self.w1 + self.b1, 0)
        return hidden, hidden @ self.w2 + self.b2

    def step(self, x: np.ndarray, y: np.ndarray) -> None:
        hidden, logits = self.forward(x)
        e = np.exp(logits - logits.max(1, keepdims=True))
        dz = (e / e.sum(1, keepdims=True) - y) / np.float32(len(x))
        np.matmul(hidden.T, dz, out=self.gw2)
        dz.sum(0, out=self.gb2)
        dh = (dz @ self.w2.T) * (hidden > 0)
        np.matmul(x.T, dh, out=self.gw1)
        dh.sum(0, out=self.gb1)
        np.multiply(self.gradient, LEARNING_RATE, out=self.gradient)
        np.subtract(self.flat, self.gradient, out=self.flat)

    def score(self, x: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        logits = self.forward(x)[1]
        top = logits.max(1, keepdims=True)
        logs = logits - top - np.log(np.exp(logits - top).sum(1, keepdims=True))
        return float(-logs[np.arange(len(x)), labels].mean()), float((logits.argmax(1) == labels).mean())


class Peer:
    """One connection; counts what it moves as the other side does: topics and payloads."""

    def __init__(self, name: str, host: str, port: int, prefix: str) -> None:
        self.prefix = prefix
        self.name = name
        self.moved = [0, 0]
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=f"{prefix}-{name}", protocol=MQTTProtocolVersion.MQTTv5
        )
        self.client.on_socket_open = lambda *a: a[2].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client.on_message = lambda *a: self._take(a[2].topic, a[2].payload)
        self.client.on_connect = lambda *_: self.connected()
        self.address = (host, port)

    def connected(self) -> None:
        raise NotImplementedError

    def got(self, topic: str, payload: bytes) -> None:
        raise NotImplementedError

    def _take(self, topic: str, payload: bytes) -> None:
        self.moved[1] += len(topic) + len(payload)
        self.got(topic, payload)

    def send(self, to: str, payload: bytes) -> None:
        topic = f"{self.prefix}/{to}"
        self.moved[0] += len(topic) + len(payload)
        self.client.publish(topic, payload, qos=1)

    def run(self) -> None:
        self.client.connect(*self.address)
        self.client.loop_forever()
        say(
            {
                "summary": self.name,
                "peak_rss_bytes": peak_rss_bytes(),
                "protocol": "5",
                "transport": {"sent_bytes": self.moved[0], "received_bytes": self.moved[1]},
            }
        )


def peak_rss_bytes() -> int:
    """VmHWM; getrusage would count the memory of the process that spawned this one."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def say(record: dict[str, object]) -> None:
    print(json.dumps(record), flush=True)


class Client(Peer):
    def __init__(self, name: str, host: str, port: int, prefix: str, data: str, steps: int) -> None:
        super().__init__(name, host, port, prefix)
        with np.load(data) as arrays:
            self.x, labels = arrays["x"], arrays["y"]
        self.y = np.eye(SIZES[-1], dtype=np.float32)[labels]
        self.steps, self.net, self.at = steps, Net(0), len(self.x)
        self.rng = np.random.default_rng(int(name.rpartition("-")[2]))

    def connected(self) -> None:
        self.client.subscribe(f"{self.prefix}/{self.name}", qos=1)
        self.client.publish(f"{self.prefix}/presence/{self.name}", b"up", qos=1, retain=True)

    def got(self, topic: str, payload: bytes) -> None:
        number = payload[:4]
        self.net.flat[:] = np.frombuffer(payload, np.float32, offset=4)
        for _ in range(self.steps):
            if self.at + BATCH > len(self.x):
                self.order, self.at = self.rng.permutation(len(self.x)), 0
            rows = self.order[self.at : self.at + BATCH]
            self.at += BATCH
            self.net.step(self.x[rows], self.y[rows])
        self.send(f"server/{self.name}", number + struct.pack("<I", len(self.x)) + self.net.flat.tobytes())


class Server(Peer):
    def __init__(
        self, name: str, host: str, port: int, prefix: str, data: str, rounds: int, clients: int
    ) -> None:
        super().__init__(name, host, port, prefix)
        with np.load(data) as arrays:
            self.x, self.y = arrays["x"], arrays["y"]
        self.rounds, self.expected = rounds, clients
        self.net, self.number, self.clients = Net(0), 0, set[str]()
        self.sum, self.total, self.answered = np.zeros(self.net.flat.size), 0, set[str]()

    def connected(self) -> None:
        self.client.subscribe([(f"{self.prefix}/presence/+", 1), (f"{self.prefix}/server/+", 1)])

    def got(self, topic: str, payload: bytes) -> None:
        _, kind, name = topic.rsplit("/", 2)
        if kind == "presence":
            self.clients.add(name)
            if len(self.clients) == self.expected and self.number == 0:
                self.ask()
            return
        number, samples = struct.unpack_from("<II", payload)
        if number != self.number or name in self.answered:
            return
        self.answered.add(name)
        self.sum += np.frombuffer(payload, np.float32, offset=8) * np.float64(samples)
        self.total += samples
        if len(self.answered) == self.expected:
            self.close()

    def ask(self) -> None:
        payload = struct.pack("<I", self.number) + self.net.flat.tobytes()
        for name in self.clients:
            self.send(name, payload)

    def close(self) -> None:
        self.net.flat[:] = self.sum / self.total
        loss, accuracy = self.net.score(self.x, self.y)
        sent, received = self.moved
        say(
            {
                "event": "round",
                "value": [self.number, loss, accuracy, self.total, []],
                "sent_bytes": sent,
                "received_bytes": received,
            }
        )
        self.sum[:], self.total = 0, 0
        self.answered.clear()
        self.number += 1
        if self.number == self.rounds:
            self.client.disconnect()
        else:
            self.ask()


def main() -> None:
    role, name, host, port, prefix, data, rounds, clients, steps = sys.argv[1:]
    peer: Peer
    if role == "server":
        peer = Server(name, host, int(port), prefix, data, int(rounds), int(clients))
    else:
        peer = Client(name, host, int(port), prefix, data, int(steps))
    signal.signal(signal.SIGTERM, lambda *_: peer.client.disconnect())
    peer.run()


if __name__ == "__main__":
    main()
