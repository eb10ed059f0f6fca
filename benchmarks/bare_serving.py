"""The server of `serving.py` as one would write it by hand: paho, and LiteRT with one thread.

    python -m benchmarks.bare_serving PORT FEDERATION SERVER ASKER FLATBUFFER QUESTION COUNT

Takes the input out of each request where QUESTION, the fills of one, has it, and puts the output into an
answer whose other bytes were made beforehand. It checks nothing, and answers requests 1 to COUNT of one
client.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import numpy as np
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from bb_edge.backends.tflite.probe import interpreter
from bb_edge.ir.address import site_suffix
from bb_edge.ir.ids import PeerId
from bb_edge.transport.topics import Topics
from bb_edge.wire import envelope
from bb_edge.wire.codecs import decode_value, encode_value
from bb_edge.wire.envelope import RESPONSE, Ack, Envelope, Fill
from benchmarks.load_clients import CAPS, EPOCH


class Server:
    """Answers with what the interpreter says."""

    def __init__(
        self, port: int, federation: str, server: str, asker: str, model: bytes, asked: bytes, count: int
    ) -> None:
        make = interpreter().make
        assert make is not None
        self.tflite = make(model_content=model, num_threads=1)
        self.tflite.allocate_tensors()
        (given,), (result,) = self.tflite.get_input_details(), self.tflite.get_output_details()
        self.input, self.output, self.shape = given["index"], result["index"], given["shape"]
        (fill,) = envelope.decode(asked, CAPS).fills
        x = np.asarray(decode_value(fill.type_hash, fill.payload))
        self.at, self.size = asked.index(x.tobytes()), x.size
        self.tflite.set_tensor(self.input, x)
        self.tflite.invoke()
        out = self.tflite.get_tensor(self.output)
        type_hash, payload = encode_value(out)
        fills = Envelope([Fill(site_suffix(1), payload, False, type_hash)], schema_version=0)
        before, _, after = envelope.encode(fills).partition(out.tobytes())
        self.before = before
        self.after = [after + self._tail(number) for number in range(1, count + 1)]
        self.answered = 0
        topics = Topics(federation, PeerId.from_name(server))
        self.to, self.inbox = topics.names(PeerId.from_name(asker)).envelope.decode(), topics.inbox
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=server, protocol=MQTTProtocolVersion.MQTTv5
        )
        self.client.on_socket_open = lambda *a: a[2].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client.on_message = lambda *a: self.got(a[2].payload)
        self.client.on_connect = lambda *_: self.connected()
        self.client.on_subscribe = lambda *_: print("serves", flush=True)
        self.client.connect("127.0.0.1", port)

    def connected(self) -> None:
        self.client.subscribe(self.inbox, qos=1)

    @staticmethod
    def _tail(number: int) -> bytes:
        acks = (Ack(EPOCH, number),)
        return envelope.encode(Envelope((), RESPONSE, number, epoch=7, seq=number, acks=acks))

    def got(self, payload: bytes) -> None:
        x = np.frombuffer(payload, np.float32, self.size, self.at).reshape(self.shape)
        self.tflite.set_tensor(self.input, x)
        self.tflite.invoke()
        out = self.tflite.get_tensor(self.output)
        self.client.publish(self.to, self.before + out.tobytes() + self.after[self.answered], qos=1)
        self.answered += 1


if __name__ == "__main__":
    port, federation, server, asker, model, asked, count = sys.argv[1:]
    files = Path(model).read_bytes(), Path(asked).read_bytes()
    Server(int(port), federation, server, asker, *files, int(count)).client.loop_forever()
