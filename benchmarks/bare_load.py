"""The server of `load.py` as one would write it by hand for the same packets: paho, and NumPy's weighted sum.

    python benchmarks/bare_load.py PORT FEDERATION COUNT SERVER ROUNDS ARTIFACT

It asks the clients of `load_clients.py` with the bytes that a real server node of ARTIFACT sends, made
beforehand, and takes the parameters out of the answers where the first answer has them. It looks for nothing
else: no check of what came, no window, no deadline. Says `{"url": …}` once it waits, and an object per round
as that server does.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import numpy as np
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), *(str(ROOT / folder) for folder in ("kernels", "firmware_shims"))]

from bb_edge import NodeConfig, PeerId, install  # noqa: E402
from bb_edge.ir.address import Address  # noqa: E402
from bb_edge.transport.topics import Topics  # noqa: E402
from bb_edge.wire import envelope  # noqa: E402
from bb_edge.wire.codecs import decode_value  # noqa: E402
from bb_edge.wire.envelope import REQUEST, Ack, Envelope  # noqa: E402
from benchmarks.load_clients import CAPS, LARGEST, fills_asked  # noqa: E402
from benchmarks.load_clients import EPOCH as CLIENT_EPOCH  # noqa: E402

EPOCH = 7


def question(artifact: Path, server: PeerId, clients: list[PeerId]) -> bytes:
    """The fills of the first round's request, as the real server writes them."""
    config = NodeConfig.edge().with_(caps=CAPS, ingress_bytes=LARGEST, invoke_bytes=LARGEST, max_peers=4096)
    node = install(server, (), artifact.read_bytes(), ["Server"], config, seed=1)
    for now_ns, number in enumerate(range(0, len(clients) + 1_000, 256), 1):
        for peer in clients[number : number + 256]:
            way = Address.empty().with_peer(peer).to_bytes()
            node.peer_presence(peer, True, (way,), epoch=CLIENT_EPOCH, classes=("Client",))
        if (fills := fills_asked(node.poll(now_ns))) is not None:
            return fills
    raise AssertionError("the server's node asks nobody")


class Server:
    """Rounds: each client is asked, and the mean of what they answer is the next question."""

    def __init__(
        self, port: int, federation: str, count: int, name: str, rounds: int, artifact: Path
    ) -> None:
        self.rounds, self.count = rounds, count
        server = PeerId.from_name(name)
        self.topics = Topics(federation, server)
        clients = [PeerId.from_name(f"client-{number}") for number in range(count)]
        self.to = [self.topics.names(peer).envelope.decode() for peer in clients]
        self.body = bytearray(question(artifact, server, clients))
        (fill,) = envelope.decode(bytes(self.body), CAPS).fills
        tensor = np.asarray(decode_value(fill.type_hash, fill.payload))
        self.size = tensor.size
        self.at = self.body.index(tensor.tobytes()[:64])  # random weights: found once
        self.tails = [
            [self._tail(number * count + client + 1, number) for client in range(count)]
            for number in range(rounds)
        ]
        self.number = 0
        self.answered: set[str] = set()
        self.up: set[str] = set()
        self.sum, self.total = np.zeros(self.size), 0.0
        self.answer_at = 0
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTProtocolVersion.MQTTv5
        )
        self.client.on_socket_open = lambda *a: a[2].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client.on_message = lambda *a: self.got(a[2].topic, a[2].payload)
        self.client.on_connect = lambda *_: self.connected(federation)
        self.client.connect("127.0.0.1", port)

    @staticmethod
    def _tail(request: int, number: int) -> bytes:
        """What follows the fills; it acknowledges the answers of all rounds before."""
        acks = (Ack(CLIENT_EPOCH, number),) if number else ()
        return envelope.encode(
            Envelope(
                (), REQUEST, request, epoch=EPOCH, seq=number + 1, acks=acks, remaining_deadline_ns=10**11
            )
        )

    def connected(self, federation: str) -> None:
        presence = f"bb/{federation}/presence/Client/+"
        self.client.subscribe([(presence, 1), (self.topics.inbox, 1)])
        print(json.dumps({"url": "http://bare"}), flush=True)

    def got(self, topic: str, payload: bytes) -> None:
        if "/presence/" in topic:
            self.up.add(topic)
            if len(self.up) == self.count and not self.number:
                self.ask()
            return
        if topic in self.answered:
            return
        self.answered.add(topic)
        if not self.answer_at:
            self.answer_at = payload.index(bytes(self.body[self.at : self.at + 64]))
        weight = 1.0
        self.sum += np.frombuffer(payload, np.float32, self.size, self.answer_at) * np.float64(weight)
        self.total += weight
        if len(self.answered) == self.count:
            self.close()

    def ask(self) -> None:
        body = bytes(self.body)
        for to, tail in zip(self.to, self.tails[self.number], strict=True):
            self.client.publish(to, body + tail, qos=1)
        self.number += 1

    def close(self) -> None:
        mean = (self.sum / self.total).astype(np.float32)
        self.body[self.at : self.at + mean.nbytes] = mean.tobytes()
        print(json.dumps({"event": "round", "value": [self.number, self.total, []]}), flush=True)
        self.answered.clear()
        self.sum[:], self.total = 0, 0.0
        if self.number < self.rounds:
            self.ask()
        else:
            print(json.dumps({"summary": "server", "counters": {"rounds": self.number}}), flush=True)


if __name__ == "__main__":
    port, federation, count, name, rounds, artifact = sys.argv[1:]
    Server(int(port), federation, int(count), name, int(rounds), Path(artifact)).client.loop_forever()
