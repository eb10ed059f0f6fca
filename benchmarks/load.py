"""One server and many clients: a round of answers that together are far larger than the room for them.

    python benchmarks/load.py [CLIENTS [BYTES [INGRESS_BYTES]]]

The server asks all clients with BYTES of parameters, and each answers with as many, read as over MQTT.
The clients are a loop in this process that reads the server's envelopes and writes theirs, so that what is
measured is the server's. Says how many answers counted, the peak of memory above that of a round with three
clients, and how long the round took. 1 000 clients, 1 MB and 8 MiB are what it takes without arguments.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), *(str(ROOT / folder) for folder in ("kernels", "firmware_shims"))]

import numpy as np  # noqa: E402

from bb_edge import NodeConfig, PeerId, install  # noqa: E402
from bb_edge.engine import steps  # noqa: E402
from bb_edge.engine.ledger import IngressFull  # noqa: E402
from bb_edge.ir import keys  # noqa: E402
from bb_edge.ir.address import site_suffix  # noqa: E402
from bb_edge.node import Node  # noqa: E402
from bb_edge.transport.mqtt import READ_AT_ONCE  # noqa: E402
from bb_edge.wire import envelope  # noqa: E402
from bb_edge.wire.caps import HOST_CAPS  # noqa: E402
from bb_edge.wire.codecs import encode_value  # noqa: E402
from bb_edge.wire.envelope import RESPONSE, Ack, Envelope, Fill  # noqa: E402
from bb_host.program_proto import to_proto  # noqa: E402
from bb_host.text import parse  # noqa: E402

ANSWER = 0xB1
PROGRAM = """program Load {module=Load}
function program.Main(x: F32, ask: PeerIdVec) -> () {entry=1, partition=Main}
  r: WireReqId = wire.SendReqBatched(x, ask, ask) {wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101, wire.answer_mode=each, deadline_ns=600000000000}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {wire.wire_id=2, wire.request=1}
  y: F32, who: PeerIdVec = wire.RecvResp() {wire.wire_id=2, wire.request=1, wire.site_ids=b1, wire.type_hashes=101}
  z: F32 = Sub(y, x)
  n: F32 = ReduceMax<keepdims=0>(z)
  syscall.AppEmit<name="n">(n)
  syscall.AppEmit<name="missing">(missing)
"""  # noqa: E501
HERE = b"\xe2\x01" + bytes(8)


class Result(NamedTuple):
    """What came of one round: answers that counted, what was dropped, seconds, and peaks in bytes."""

    counted: int
    dropped: int
    seconds: float
    most_outbound: int
    most_ingress: int


def server(clients: int, ingress_bytes: int) -> tuple[Node, tuple[PeerId, ...]]:
    """The server, to which all clients are up."""
    model = to_proto(parse(PROGRAM))
    model.metadata_props.add(key=keys.COMPILED_KEY, value=keys.COMPILED_VERSION)
    model.metadata_props.add(key=f"{keys.BINDING_PREFIX}Main.backend", value="backend|bb.NumPyBackend|1")
    limits = {"ingress_bytes": ingress_bytes, "max_peers": max(1024, clients)}
    config = NodeConfig.edge().with_(**limits, invoke_bytes=64 << 20, caps=HOST_CAPS)
    node = install(PeerId.from_name("server"), (), model.SerializeToString(), ["Main"], config, seed=1)
    peers = tuple(PeerId.from_name(f"c{number}") for number in range(clients))
    for start in range(0, clients, 256):
        for peer in peers[start : start + 256]:
            node.peer_presence(peer, True, (HERE,), epoch=1)
        node.poll(1)
    return node, peers


def run(clients: int, size: int, ingress_bytes: int, at_once: int = READ_AT_ONCE) -> Result:
    """One round; `at_once` bytes of answers come between two polls. Whoever finds the server full offers the
    answer again after the next poll.
    """
    node, peers = server(clients, ingress_bytes)
    asked = np.ones(size // 4, np.float32)
    type_hash, payload = encode_value(asked + np.float32(1))
    body = envelope.encode(Envelope([Fill(site_suffix(ANSWER), payload, False, type_hash)], schema_version=0))
    began = time.perf_counter()
    node.invoke("Main", {"x": asked, "ask": peers})
    answers: deque[tuple[PeerId, bytes]] = deque()
    counted = dropped = most_outbound = most_ingress = 0
    now_ns = 1
    over = False
    while not over:
        now_ns += 1_000_000
        for step in node.poll(now_ns):
            if isinstance(step, steps.SendEnvelope):
                asks = envelope.decode(step.rest, HOST_CAPS)
                if asks.wire_req_id:
                    ack = Ack(asks.epoch, asks.seq)
                    reply = Envelope((), RESPONSE, asks.wire_req_id, epoch=5, seq=1, acks=(ack,))
                    answers.append((step.peer, envelope.encode(reply)))
            elif isinstance(step, steps.AppEvent):
                counted += step.topic == "n" and float(np.asarray(step.value)) == 1.0
                over = over or step.topic == "missing"
            elif isinstance(step, steps.OutboundDropped):
                dropped += 1
        counters = node.counters
        most_outbound = max(most_outbound, counters["outbound.bytes"])
        left = at_once
        while answers and left > 0:
            peer, rest = answers[0]
            left -= len(body) + len(rest)
            try:
                node.deliver_inbound(body + rest, peer)
            except IngressFull:
                break
            answers.popleft()
        most_ingress = max(most_ingress, node.counters["ingress.bytes"])
    return Result(counted, dropped, time.perf_counter() - began, most_outbound, most_ingress)


def peak_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(clients: int = 1000, size: int = 1 << 20, ingress_bytes: int = 8 << 20) -> None:
    run(3, size, ingress_bytes)
    base = peak_bytes()
    found = run(clients, size, ingress_bytes)
    above = (peak_bytes() - base) / size
    print(f"{found.counted} of {clients} answers of {size} bytes counted, {found.dropped} requests dropped")
    print(f"peak {above:.1f} updates above three clients' ({base >> 20} MiB); {found.seconds:.2f} s")
    print(f"at most {found.most_outbound} bytes to repeat, {found.most_ingress} bytes of answers in hand")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
