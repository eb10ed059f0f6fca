"""`Node.inspect()`: a node as plain data, and nothing about the node changes by looking."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from durable_program import program, records, write_down
from kinds_of_steps import of
from peers import HERE, SELF, A, B
from times import S
from wire_ops import ASK

from bb_edge import Address, NodeConfig, PeerId, install
from bb_edge.engine import steps
from bb_edge.inspection import Inspection
from bb_edge.ir.address import site_suffix
from bb_edge.node import Node
from bb_edge.wire import cbor, envelope
from bb_edge.wire.caps import PeerLimits
from bb_edge.wire.codecs import encode_value
from bb_edge.wire.envelope import REQUEST, Ack, Envelope, Fill

TEXT = f"""
program Demo {{module=Demo}}
function program.Main(x: F32[4]) -> () {{entry=1, partition=self}}
  a: F32[4] = Neg(x)
  c: F32[4] = Neg(a)
  t: Trigger = syscall.OnTrigger(c)
  slept: Trigger = syscall.Sleep<duration_ns=100>(t)
  late: Trigger = syscall.GateDispatch(slept, c)
  syscall.AppNotify<name="late">(late)
function program.Ask(y: F32[1], all: PeerIdVec) -> () {{entry=1, partition=self}}
  r: WireReqId = wire.SendReqBatched(y, all, all) {{{ASK}, wire.answer_mode=batch, deadline_ns=9000000}}
  closed: Trigger, out: PeerIdVec, s: F32[n,1] = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1, \
wire.site_ids=b2, wire.type_hashes=101}}
  syscall.AppEmit<name="s">(s)
"""


def plain(node: Node) -> Inspection:
    """What a node holds; it is plain, and looking has changed nothing."""
    before = node.snapshot(node.inspect().node["now_ns"])
    found = node.inspect()
    json.dumps(asdict(found))
    assert node.snapshot(found.node["now_ns"]) == before
    return found


def test_a_node_at_rest_holds_nothing(bench):
    found = plain(bench(TEXT, ("Main", "Ask")).node)
    assert found.node["peer"] == str(PeerId.from_name("node")) and found.node["targets"] == ["Main", "Ask"]
    assert not (
        found.executions or found.parked or found.requests or found.timers or found.ingress["entries"]
    )
    assert found.targets == {"Main": "not started", "Ask": "not started"}


def test_an_execution_tells_what_it_waits_for_and_what_its_sites_hold(bench):
    b = bench(TEXT, ("Main", "Ask"))
    number = b.node.invoke("Main", {"x": np.ones(4, np.float32)})
    (entry,) = plain(b.node).ingress["entries"]
    assert entry["execution"] == number and entry["fills"] == "invoke"
    b.poll()
    found = plain(b.node)
    (execution,) = found.executions
    assert execution["id"] == number and execution["state"] == "waiting"
    assert execution["holds"] == {"parked": 1}
    assert execution["frames"][0]["values"]["c"] == "Tensor<F32>[4]"
    assert not {"x", "a"} & execution["frames"][0]["values"].keys(), "their only readers have run"
    (parked,) = found.parked
    assert parked["execution"] == number and found.timers[0]["with"] == [f"int {parked['token']}"]
    assert found.timers[0]["calls"] == "parked.fire" and found.timers[0]["when_ns"] == 100


def test_an_open_request_names_who_is_asked_and_who_has_settled(bench):
    b = bench(TEXT, ("Main", "Ask"))
    for peer in (A, B):
        b.node.peer_presence(peer, True, (HERE,), epoch=1)
    b.poll(1)
    b.node.invoke("Ask", {"y": np.ones(1, np.float32), "all": (A, B)})
    b.poll()
    found = plain(b.node)
    (request,) = found.requests
    assert request["state"] == "open" and request["gated"] == [str(A), str(B)]
    assert sorted(request["numbers"].values()) == sorted((str(A), str(B)))
    assert found.executions[0]["holds"]["request"] == 1
    assert {peer for peer, link in found.links.items() if link["pending"]} == {str(A), str(B)}
    b.node.peer_presence(A, False, (), epoch=1)
    b.poll(1)
    assert plain(b.node).requests[0]["settled"] == [str(A)]


def test_peers_tell_limits_addresses_and_patience(bench):
    b = bench(TEXT, ("Main", "Ask"))
    limits = PeerLimits(30, 16, 1 << 10, 1 << 20)
    b.node.peer_presence(A, True, (HERE,), epoch=5, classes=("Client",), meta={"limits": limits.meta()})
    suffix = Address.empty().with_component(0, "Backoff").to_bytes()
    notice = Fill(suffix, cbor.dumps({"min_backoff_ns": 5 * S}), False, 0x0B)
    b.node.deliver_inbound(envelope.encode(Envelope([notice])), B)
    b.poll(1)
    peers = plain(b.node).peers
    assert peers[str(A)]["limits"] == limits.meta() and peers[str(A)]["classes"] == ["Client"]
    assert peers[str(A)]["up"] and peers[str(A)]["present"] and peers[str(A)]["epoch"] == 5
    assert len(peers[str(A)]["addresses"]) == 1
    assert peers[str(B)]["asks_patience_until_ns"] == 1 + 5 * S and not peers[str(B)]["present"]


def test_what_waits_at_the_door_is_charged_to_its_peer(bench):
    b = bench(TEXT, ("Main", "Ask"))
    data = envelope.encode(Envelope([Fill(site_suffix(0xA1), b"1234", False, 0x101)]))
    b.node.deliver_inbound(data, A)
    ingress = plain(b.node).ingress
    assert ingress["envelopes"] == [{"peer": str(A), "bytes": len(data)}]
    assert ingress["bytes"] == len(data) and ingress["bytes_by_peer"] == {str(A): len(data)}
    b.poll()
    ingress = plain(b.node).ingress
    assert not ingress["envelopes"] and ingress["bytes"] == 0 and ingress["bytes_by_peer"] == {}


@pytest.fixture
def durable(compile_text) -> Node:
    node = install(
        SELF, (HERE,), compile_text(program(2 * S)), ["Main"], NodeConfig.edge(), seed=3, durable=True
    )
    for peer in (A, B):
        node.peer_presence(peer, True, (HERE,), epoch=1)
    node.poll(1)
    return node


def test_the_outbox_tells_what_is_written_and_what_is_settled(durable):
    durable.invoke("Main", {"x": np.ones(1, np.float32), "to": (A,)})
    found = durable.poll(2)
    (record,) = records(found)
    name = {"id": 1, "peer": str(A), "seq": 1}
    outbox = plain(durable).outbox
    assert outbox["writing"] == [step.token for step in of(steps.PersistOutbox, found)] == [1, 2]
    assert outbox["records"] == [{**name, "settled": False}] and outbox["bytes"] == len(record.encoded)
    assert outbox["flows"][str(A)]["epoch"] == record.key.epoch
    write_down(durable, found)
    ack = Envelope(acks=(Ack(record.key.epoch, record.key.seq),))
    durable.deliver_inbound(envelope.encode(ack), A)
    durable.poll(3)
    outbox = plain(durable).outbox
    assert not outbox["writing"] and outbox["records"] == [{**name, "settled": True}]


def test_the_journal_tells_what_is_held_and_what_is_accepted(durable):
    type_hash, payload = encode_value(np.full(1, 3, np.float32))
    fills = [Fill(site_suffix(0xA1), payload, False, type_hash)]
    data = envelope.encode(Envelope(fills, REQUEST, wire_req_id=7, epoch=9, seq=1, base=1))
    durable.deliver_inbound(data, A)
    (step,) = of(steps.Journal, durable.poll(2))
    row = {"peer": str(A), "bytes": len(data), "epoch": 9, "seq": 1, "deadline_ns": 0}
    found = plain(durable)
    assert found.journal == {"held": [{"token": step.token, **row}], "accepted": [], "replaying": []}
    assert found.sources[str(A)]["windows"] == [(9, 0, 1, [1], [])]
    durable.persisted(step.token)
    assert durable.inspect().journal == {"held": [], "accepted": [row], "replaying": []}


def test_targets_and_bootstraps_tell_what_has_begun(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=self}
  t: Trigger = syscall.Pulse()
  syscall.AppNotify<name="pulse">(t)
  n: I64[] = syscall.Repeat<times=3, pause_ns=5>()
  syscall.AppEmit<name="n">(n)
function program.Main__bootstrap() -> () {partition=self}
  one: F32[1] = Constant<value=F32[1]{1.0}>()
  syscall.AppEmit<name="boot">(one)
"""
    )
    found = plain(b.node)
    assert found.targets == {"Main": "not started"}
    (bootstrap,) = found.bootstraps
    assert (bootstrap["target"], bootstrap["slot"], bootstrap["status"]) == ("Main", "", "ready")
    b.node.keep_bootstrapping()
    b.poll()
    b.poll(1)
    found = plain(b.node)
    assert found.targets == {"Main": "started"} and found.bootstraps[0]["status"] == "done"
    (round_,) = found.rounds
    assert round_["target"] == "Main" and round_["round"] == 2 and not round_["finished"]
