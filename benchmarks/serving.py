"""A node that answers requests with a model, against paho and LiteRT by hand: requests per second.

    python -m benchmarks.serving [--model ds_cnn] [--requests N] [--pairs N]

The program is an ordinary ONNX model in a ModelSlot, lowered for TFLite, on a `bb-edge run` process; the
other side is a process that has paho, and an interpreter with one thread on the same model as a flatbuffer
with its weights in it. A client with one request under way at a time asks both in turns, over the same
mosquitto, and with the same bytes: those that a real node asks with.
"""

from __future__ import annotations

import argparse
import re
import signal
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx

from bb_edge import NodeConfig, PeerId, install
from bb_edge.components import GraphModel, PresenceSelector
from bb_edge.ir.address import Address
from bb_edge.transport.packets import (
    PUBACK,
    PUBLISH,
    Splitter,
    parse_publish,
    puback,
    publish_header,
)
from bb_edge.transport.topics import Topics
from bb_edge.wire import envelope
from bb_edge.wire.codecs import decode_value
from bb_edge.wire.envelope import REQUEST, RESPONSE, Ack, Envelope
from bb_edge.wire.presence import Presence, encode_presence
from bb_host import Compiler, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.build import Build, build_edge
from bb_host.dsl import Graph
from bb_host.learn import trainable
from benchmarks.load_clients import CAPS, CONNACK, EPOCH, LARGEST, LIMITS, SUBACK, fills_asked, packet, text
from benchmarks.models import ALL, example
from benchmarks.tflite import flatbuffer_of
from federated_digits.brokers import start_broker
from federated_digits.processes import Child, ChildError, Events, Line

FEDERATION, SERVER, ASKER = "serving", "server", "asker"
WARM_UP, MOST_TIMES = 50, 10


class Serve(Module):
    """An asker asks one server, which answers with what the model says."""

    name, home = "Serve", "Asker"
    servers = PeerSelectorSlot("servers", peer_class="Server")
    model = ModelSlot("model", at="Server")

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def body(self, g: Graph) -> None:
        x = g.input("x", "F32", self.shape)
        r = g.request("ask", self.servers.sample(g, n=1, min=1, after=x), x, deadline_ns=10 * S)
        r.reply(self.model.forward(g, r.value))
        g.app_emit("answer", r.answer)


def build(model: onnx.ModelProto) -> Build:
    """The two artifacts, with the server's model as a flatbuffer."""
    shape = next(iter(example(model).values())).shape
    compiler = Compiler().bind_model("model", GraphModel, trainable(model, learning=False, frozen=["*"]))
    compiler = compiler.bind_peer_selector("servers", PresenceSelector)
    return build_edge(Serve(shape), compiler, backend="tflite")


def question(artifact: bytes, x: np.ndarray) -> bytes:
    """A request's fills as the asker's node writes them."""
    config = NodeConfig.edge().with_(caps=CAPS, ingress_bytes=LARGEST, invoke_bytes=LARGEST)
    node = install(PeerId.from_name(ASKER), (), artifact, ["Asker"], config, seed=1)
    server = PeerId.from_name(SERVER)
    way = Address.empty().with_peer(server).to_bytes()
    node.peer_presence(server, True, (way,), epoch=EPOCH, classes=("Server",))
    node.poll(1)
    node.invoke("Asker", {"x": x})
    for now_ns in range(2, 20):
        if (fills := fills_asked(node.poll(now_ns))) is not None:
            return fills
    raise AssertionError("the asker's node asks nobody")


class Client:
    """A connection that asks and waits, one request after another."""

    def __init__(self, port: int, epoch: int) -> None:
        self._epoch = epoch
        peer = PeerId.from_name(ASKER)
        topics = Topics(FEDERATION, peer)
        self._to = topics.names(PeerId.from_name(SERVER)).envelope
        self._splitter = Splitter(LARGEST)
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(1)  # then it asks again, as a node does
        self._mid = self._seq = 0
        goodbye = encode_presence(Presence(False, epoch, session=epoch))
        will = b"\0" + text(topics.presence("Asker", peer)) + len(goodbye).to_bytes(2, "big") + goodbye
        head = text("MQTT") + bytes((5, 0x02 | 0x04 | 0x08 | 0x20, 0, 0, 0))
        self._socket.sendall(packet(0x10, head + text(f"asker-{epoch}") + will))
        self._until(CONNACK)
        self._socket.sendall(packet(0x82, b"\0\1\0" + text(topics.inbox) + b"\1"))
        self._until(SUBACK)
        address = Address.empty().with_peer(peer).to_bytes()
        presence = Presence(True, epoch, addresses=(address,), session=epoch, seq=1, meta=LIMITS)
        self._publish(topics.presence("Asker", peer).encode(), b"", encode_presence(presence), retain=True)

    def close(self) -> None:
        self._socket.close()

    def _publish(self, topic: bytes, body: bytes, rest: bytes, retain: bool = False) -> None:
        self._mid = self._mid % 65535 + 1
        header = publish_header(topic, self._mid, len(body) + len(rest), v5=True, retain=retain)
        self._socket.sendmsg([header, body, rest])

    def _until(self, wanted: int) -> bytes:
        """Reads until a packet of a kind, and gives the payload of a publication, which is acknowledged."""
        while True:
            while (found := self._splitter.take()) is not None:
                first, data, _, body, end = found
                kind = first & 0xF0
                if kind == PUBLISH:
                    message = parse_publish(first, data, body, end, True)
                    if message.mid:
                        self._socket.sendall(puback(message.mid))
                    if wanted == PUBLISH:
                        return bytes(message.payload)
                elif kind == wanted and kind != PUBACK:
                    return b""
            count = self._socket.recv_into(self._splitter.room())
            if not count:
                raise SystemExit("the broker closed the connection")
            self._splitter.filled(count)

    def ask(self, fills: bytes) -> envelope.Envelope:
        """The answer to one request. SystemExit where none comes."""
        self._seq += 1
        # Acknowledges the answer before: numbers of the answers are those of the requests.
        asks = Envelope(
            (),
            REQUEST,
            self._seq,
            epoch=self._epoch,
            seq=self._seq,
            acks=self._owed,
            remaining_deadline_ns=10**10,
        )
        tail = envelope.encode(asks)
        for _ in range(MOST_TIMES):
            self._publish(self._to, fills, tail)
            try:
                while True:
                    read = envelope.decode(self._until(PUBLISH), CAPS)
                    if read.kind == RESPONSE and read.wire_req_id == self._seq:
                        self._owed = (Ack(read.epoch, read.seq),)
                        return read
            except TimeoutError:
                continue
        raise SystemExit(f"no answer to request {self._seq}")

    _owed: tuple[Ack, ...] = ()


def asked(port: int, epoch: int, fills: bytes, requests: int) -> tuple[list[float], np.ndarray]:
    """Seconds of each request behind the warm-up, and the last answer."""
    client = Client(port, epoch)
    try:
        times = []
        for _ in range(WARM_UP + requests):
            began = time.perf_counter()
            answer = client.ask(fills)
            times.append(time.perf_counter() - began)
        (fill,) = answer.fills
        return times[WARM_UP:], np.asarray(decode_value(fill.type_hash, fill.payload))
    finally:
        client.close()


def _started(words: list[object], folder: Path, events: Events, said: str) -> Child:
    child = Child("server", [str(word) for word in words], folder / "server.log", events)
    deadline = time.monotonic() + 60
    while (event := events.next(deadline)) is not None and (
        isinstance(event, Line) or event.child is not child
    ):
        if isinstance(event, Line) and event.child is child and re.search(said, event.text):
            return child
    child.end()
    raise ChildError(f"the server does not start:\n{child.tail}")


def compare(name: str, requests: int, pairs: int) -> tuple[list[list[float]], list[list[float]]]:
    """Seconds per request of both sides, in turns. ChildError, BrokerError where something does not start."""
    model = ALL[name]()
    built = build(model)
    x = next(iter(example(model).values()))
    by_target = {artifact.target: artifact for artifact in built.artifacts}
    fills = question(by_target["Asker"].data, x)
    events = Events()
    ours: list[list[float]] = []
    bare: list[list[float]] = []
    answers: list[np.ndarray] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "server.onnx").write_bytes(by_target["Server"].data)
        (folder / "question").write_bytes(fills)
        (alone,) = build_edge(model, backend="tflite").artifacts
        flatbuffer = flatbuffer_of(alone.data)
        assert flatbuffer is not None, "one flatbuffer is what the interpreter by itself runs"
        (folder / "model.tflite").write_bytes(flatbuffer)
        broker = start_broker(folder / "broker", events, "mosquitto", [])
        port = int(broker.url.rpartition(":")[2])
        run: list[object] = [sys.executable, "-m", "bb_edge.cli", "run", folder / "server.onnx"]
        run += ["--target", "Server", "--peer", SERVER, "--broker", broker.url, "--federation", FEDERATION]
        by_hand: list[object] = [sys.executable, "-m", "benchmarks.bare_serving", port, FEDERATION, SERVER]
        by_hand += [ASKER, folder / "model.tflite", folder / "question", WARM_UP + requests]
        try:
            sides: list[tuple[list[list[float]], list[object], str]] = [
                (ours, run, "is up|connected"),
                (bare, by_hand, "serves"),
            ]
            for _ in range(pairs):
                for times, words, said in sides:
                    child = _started(words, folder, events, said)
                    try:
                        seconds, answer = asked(port, len(answers) + 1, fills, requests)
                    finally:
                        child.signal(signal.SIGTERM)
                        child.end()
                    times.append(seconds)
                    answers.append(answer)
        finally:
            broker.stop()
    for answer in answers:
        np.testing.assert_allclose(answer, answers[0], rtol=1e-4, atol=1e-4)
    return ours, bare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=sorted(ALL), default="ds_cnn")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=3)
    words = parser.parse_args()
    sides = compare(words.model, words.requests, words.pairs)
    rates = [[len(run) / sum(run) for run in side] for side in sides]
    middle = [statistics.median(side) for side in rates]
    print(f"{words.model}: {middle[0]:.0f} requests/s, by hand {middle[1]:.0f}, {middle[0] / middle[1]:.2f}")
    for what, at in (("p50", 50), ("p99", 99)):
        ms = [1e3 * float(np.percentile(np.concatenate(side), at)) for side in sides]
        print(f"  {what} {ms[0]:.2f} ms, by hand {ms[1]:.2f} ms")


if __name__ == "__main__":
    main()
