"""Federations of processes over real brokers: they train, lose members, lose the broker, and go on."""

from __future__ import annotations

import json
import signal

import paho.mqtt.publish as publish
import paho.mqtt.subscribe as subscribe
import pytest

from bb_edge.ir.ids import PeerId
from bb_edge.ir.onnx_pb2 import ModelProto
from bb_edge.wire.presence import decode_presence
from federated_digits.processes import Line

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_a_federation_trains(broker, federation):
    f = federation(broker, rounds=6, local_steps=11, at_least=3)
    clients = [f.client(number) for number in range(3)]
    server = f.server("--until-done")
    rounds = [f.full_round() for _ in range(6)]
    assert [r[0] for r in rounds] == list(range(rounds[0][0], rounds[0][0] + 6))
    assert rounds[-1][1] < rounds[0][1]  # the loss
    assert rounds[-1][2] > max(0.5, rounds[0][2])  # the accuracy
    assert all(r[4] == [] for r in rounds)
    assert f.ended(server) == 0
    protocol = "5" if broker.mqtt5 else "3.1.1"
    for client in clients:
        code, summary = f.end(client)
        assert (code, summary["protocol"]) == (0, protocol)
        assert summary["transport"]["malformed"] == summary["transport"]["dropped"] == 0


def test_a_client_is_killed_in_a_round_and_comes_back(mosquitto_broker, federation):
    f = federation(mosquitto_broker, rounds=0, local_steps=44)
    clients = [f.client(number) for number in range(3)]
    server = f.server()
    last = f.full_round()
    clients[1].signal(signal.SIGKILL)  # the next round has begun
    assert f.ended(clients[1]) == -signal.SIGKILL
    without = f.round(lambda v: v[0] > last[0] and 0 < v[3] < f.artifacts.samples, "a round without it")
    for _ in range(3):
        f.round(lambda v: 0 < v[3] < f.artifacts.samples, "rounds go on without it")
    f.client(1)
    again = f.full_round()
    assert again[0] > without[0]
    assert f.end(server)[0] == 0


def test_the_broker_is_killed_and_comes_back(broker, federation):
    f = federation(broker, rounds=0, pause_ms=20)
    for number in range(3):
        f.client(number)
    server = f.server()
    last = f.full_round()
    broker.kill()
    f.says(server, " lost: the broker")  # in words, whichever way the socket ended
    broker.start()
    f.round(lambda v: v[0] > last[0] and v[3] == f.artifacts.samples, "the federation resumes")
    code, summary = f.end(server)
    assert code == 0
    assert summary["transport"]["connects"] >= 2


def test_rounds_wait_for_a_broker_that_was_killed(broker, federation):
    """The round that it interrupts may be short of peers, and wait for its deadline; no other one does."""
    f = federation(broker, rounds=0, at_least=3, pause_ms=20)
    for number in range(3):
        f.client(number)
    server = f.server()
    last = f.full_round()
    since = len(f.heard)
    broker.kill()
    assert "there=0 wanted=3" in f.says(server, "offline=True", since)
    broker.start()
    first = f.round(lambda v: v[0] > last[0], "the next round")
    again = f.full_round() if first[3] < f.artifacts.samples else first
    assert again[0] <= first[0] + 1
    said = [line.text for line in f.heard[since:] if isinstance(line, Line) and line.error]
    assert len([text for text in said if "reason=deadline" in text]) <= 1
    assert f.end(server)[0] == 0


def test_the_server_may_come_last(mosquitto_broker, federation):
    f = federation(mosquitto_broker, rounds=2, at_least=3)
    for number in range(3):
        f.says(f.client(number), "connected")
    f.server()
    f.full_round()


def test_the_server_may_come_first(mosquitto_broker, federation):
    f = federation(mosquitto_broker, rounds=2, at_least=3)
    f.says(f.server(), "connected")
    for number in range(3):
        f.client(number)
    f.full_round()


def test_nodes_may_come_before_the_broker(broker, federation):
    f = federation(broker, rounds=2, at_least=3)
    broker.kill()
    clients = [f.client(number) for number in range(3)]
    server = f.server()
    for node in (*clients, server):
        f.says(node, "not reachable")
    broker.start()
    f.full_round()


def test_a_node_told_to_end_says_goodbye(mosquitto_broker, federation):
    f = federation(mosquitto_broker, rounds=0, pause_ms=20)
    clients = [f.client(number) for number in range(3)]
    server = f.server("--log-level", "debug")
    f.full_round()
    before = len(f.heard)
    code, summary = f.end(clients[0])
    assert (code, summary["summary"]) == (0, "client-0")
    f.says(server, "PeerDown", since=before)
    f.round(lambda v: 0 < v[3] < f.artifacts.samples, "the others go on")
    host, peer = mosquitto_broker.host, PeerId.from_name("client-0")
    kept = subscribe.simple(f"bb/test/presence/Client/{peer}", hostname=host, port=mosquitto_broker.port)
    assert not decode_presence(kept.payload).up
    code, summary = f.end(server)
    assert code == 0
    assert summary["peak_rss_bytes"] > 0
    assert summary["transport"]["sent_bytes"] > 0


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP])
def test_whoever_goes_goes_once(mosquitto_broker, federation, tmp_path, how):
    """By its own word, by its will at once, and by its will once its keep-alive is over."""
    f = federation(mosquitto_broker, rounds=0, pause_ms=20)
    config = tmp_path / "short.json"
    config.write_text(json.dumps({"broker": {"keepalive_s": 5}}))
    clients = [f.client(number, "--config", str(config)) for number in range(3)]
    server = f.server()
    f.full_round()
    before = len(f.heard)
    clients[0].signal(how)
    f.says(server, "PeerDown", since=before)
    last = f.round(lambda v: 0 < v[3] < f.artifacts.samples, "the others go on")
    f.round(lambda v: v[0] > last[0] + 20, "and go on")
    lines = [e.text for e in f.heard[before:] if isinstance(e, Line) and e.child is server]
    assert [line.count("client-0") for line in lines if "PeerDown" in line] == [1], lines
    assert not [line for line in lines if "PeerUp" in line]
    if how is signal.SIGSTOP:
        clients[0].signal(signal.SIGCONT)
        f.says(server, "PeerUp", since=before)


def test_an_unreachable_broker_does_not_end_a_node(federation):
    f = federation("mqtt://127.0.0.1:1")
    client = f.client(0)
    for _ in range(2):
        f.says(client, "not reachable")
    assert f.end(client)[0] == 0


def test_malformed_envelopes_of_a_stranger_are_counted(mosquitto_broker, federation):
    f = federation(mosquitto_broker, rounds=0, pause_ms=20)
    for number in range(3):
        f.client(number)
    server = f.server()
    f.full_round()
    stranger = PeerId.from_name("stranger")
    topic = f"bb/test/{PeerId.from_name('server')}/from/{stranger}"
    host = {"hostname": mosquitto_broker.host, "port": mosquitto_broker.port}
    hostile = (b"\xff" * 40, b"\x12\xff\xff\xff\xff\x0f", b"not an envelope")
    publish.multiple([{"topic": topic, "payload": p, "qos": 1} for p in hostile], **host)
    for _ in hostile:
        f.says(server, "WireReceiveFailed")
    f.full_round()
    code, summary = f.end(server)
    assert code == 0
    assert summary["counters"]["wire.malformed"] == len(hostile)


@pytest.mark.parametrize("kind", ["truncated", "no passport", "empty", "wrong target", "no shard", "bad url"])
def test_what_cannot_run_says_so_and_ends(kind, federation, tmp_path):
    f = federation("http://x" if kind == "bad url" else "mqtt://127.0.0.1:1")
    path, target, more = f.client_artifact, "Client", ("--set", f"shard.path={f.artifacts.shards[0]}")
    if kind in ("truncated", "empty"):
        data = path.read_bytes()
        path = tmp_path / "damaged.onnx"
        path.write_bytes(data[: len(data) // 2] if kind == "truncated" else b"")
    elif kind == "no passport":
        model = ModelProto.FromString(path.read_bytes())
        del model.metadata_props[:]
        path = tmp_path / "plain.onnx"
        path.write_bytes(model.SerializeToString())
    elif kind == "wrong target":
        target = "Clinet"
    elif kind == "no shard":
        more = ("--set", f"shard.path={tmp_path / 'nowhere.npz'}")
    child = f.run("client-0", path, target, *more)
    assert f.ended(child) == (2 if kind == "bad url" else 3), "a flag that cannot be is wrong usage"
    last = child.tail.splitlines()[-1]
    assert last.startswith("bb-edge: error: ")
    expected = {
        "truncated": "",
        "no passport": "passport",
        "empty": "empty",
        "wrong target": "Clinet",
        "no shard": "nowhere.npz",
        "bad url": "http://x",
    }
    assert expected[kind] in last
    assert "Traceback" not in child.tail
