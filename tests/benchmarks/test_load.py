"""A server of a thousand clients hears them all, within the bounds of a small board."""

from __future__ import annotations

import gc
import shutil
import tracemalloc
from collections import deque
from typing import NamedTuple

import numpy as np
import pytest
from program_text import parse

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine import steps
from bb_edge.engine.ledger import IngressFull
from bb_edge.ir import keys
from bb_edge.ir.address import site_suffix
from bb_edge.node import Node
from bb_edge.transport.incoming import READ_AT_ONCE
from bb_edge.wire import envelope
from bb_edge.wire.caps import HOST_CAPS
from bb_edge.wire.codecs import encode_value
from bb_edge.wire.envelope import RESPONSE, Ack, Envelope, Fill
from bb_host.ir.proto import to_proto
from benchmarks.load import Plan, measure

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
ASKED, MOST, AFTER = 1100, 1400, 600
"""Bytes that a round may hold per peer."""


class Result(NamedTuple):
    """What came of one round: answers that counted, what was dropped, and peaks in bytes."""

    counted: int
    dropped: int
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


def one_round(clients: int, size: int, ingress_bytes: int, at_once: int = READ_AT_ONCE) -> Result:
    """One round; `at_once` bytes of answers come between two polls. Whoever finds the server full offers the
    answer again after the next poll.
    """
    node, peers = server(clients, ingress_bytes)
    asked = np.ones(size // 4, np.float32)
    type_hash, payload = encode_value(asked + np.float32(1))
    body = envelope.encode(Envelope([Fill(site_suffix(ANSWER), payload, False, type_hash)], schema_version=0))
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
    return Result(counted, dropped, most_outbound, most_ingress)


KIB, MIB = 1024, 1 << 20


def test_a_thousand_answers_count_where_some_hundreds_fit_at_once() -> None:
    """Ten megabytes of answers and as many of requests, through two megabytes for each."""
    found = one_round(1000, 10 * KIB, 2 * MIB, at_once=100 * MIB)
    assert (found.counted, found.dropped) == (1000, 0)
    assert found.most_outbound < 10 * KIB + 1000 * 150, "the parameters once, and a tail for each client"
    assert 1 * MIB < found.most_ingress <= 2 * MIB


def test_one_answer_at_a_time_is_enough_room() -> None:
    found = one_round(50, 256 * KIB, 300 * KIB)
    assert (found.counted, found.dropped) == (50, 0)


class Held(NamedTuple):
    """Traced bytes above those before the first round, with all peers up."""

    asked: int
    most: int
    after: int


def held_in_rounds(clients: int, rounds: int = 3) -> Held:
    """What rounds of small answers hold: once all peers are asked, at most, and when the last one is over."""
    node, peers = server(clients, 8 * MIB)
    type_hash, payload = encode_value(np.full(8, 2, np.float32))
    body = envelope.encode(Envelope([Fill(site_suffix(ANSWER), payload, False, type_hash)], schema_version=0))
    inputs = {"x": np.ones(8, np.float32), "ask": peers}
    now_ns, asked = 1, 0
    gc.collect()  # what others left behind is not collected, nor replaced, in the middle
    tracemalloc.start()
    try:
        for number in range(1, rounds + 1):
            node.invoke("Main", inputs)
            now_ns += 30_000_000  # acknowledgements of the round before are due, and go with the questions
            questions = [(s.peer, s.rest) for s in node.poll(now_ns) if isinstance(s, steps.SendEnvelope)]
            assert len(questions) == clients
            asked = max(asked, tracemalloc.get_traced_memory()[0])
            closed = False
            while not closed:
                now_ns += 1_000_000
                for peer, rest in questions[-50:]:
                    asks = envelope.decode(rest, HOST_CAPS)
                    ack = Ack(asks.epoch, asks.seq)
                    reply = Envelope((), RESPONSE, asks.wire_req_id, epoch=5, seq=number, acks=(ack,))
                    node.deliver_inbound(body + envelope.encode(reply), peer)
                del questions[-50:]
                closed = any(isinstance(step, steps.RequestClosed) for step in node.poll(now_ns))
        _, most = tracemalloc.get_traced_memory()
        node.poll(now_ns + 30_000_000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return Held(asked, most, after)


def test_what_a_round_holds_for_each_peer() -> None:
    """The difference that more peers make, so that nothing else counts.

    While a peer is asked: its envelope until that is acknowledged, with key, tail, times and its place in the
    schedule; the window of its answers; and that it was asked. Links are there since it is up. Between
    rounds its window and its round trip stay. From 200 to 800, since a dict grows at once by half and more:
    between two numbers of peers that are near to each other, what is measured is where its steps lie.
    """
    held_in_rounds(20)  # what is made once by a process, whatever runs first in it, is not the peers'
    few, many = held_in_rounds(200), held_in_rounds(800)
    asked, most, after = ((high - low) / 600 for low, high in zip(few, many, strict=True))
    assert asked < ASKED, f"{asked:.0f} bytes per peer"
    assert most < MOST, f"{most:.0f} bytes per peer"
    assert after < AFTER, f"{after:.0f} bytes per peer"


@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="needs mosquitto")
@pytest.mark.parametrize("durable", [False, True])
def test_a_process_with_its_clients_at_a_broker(durable: bool) -> None:
    """A short form of what the benchmark measures."""
    found = measure(Plan(clients=60, size=40 * KIB, rounds=2, durable=durable))
    assert found.counted == [60, 60]
    assert found.base > 0 and found.above >= 0
    if durable:  # each answer once; the question once, whatever the number of clients
        assert found.counters["state.bytes_written"] < 2 * 60 * found.update * 1.3


@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="needs mosquitto")
def test_the_server_by_hand_hears_the_same_clients() -> None:
    found = measure(Plan(clients=20, size=40 * KIB, rounds=3, bare=True))
    assert found.counted == [20] * 3
    assert found.processor_us > 0
