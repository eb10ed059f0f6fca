"""The first program of the specification, from recording to artifact."""

from __future__ import annotations

import onnx
import pytest

from bb_edge.ir import keys
from bb_edge.ir.ids import site_id
from bb_edge.ir.onnx_pb2 import ModelProto
from bb_edge.loading import load
from bb_host import AggregatorSlot, Compiler, DataSourceSlot, ModelSlot, Module, PeerSelectorSlot, S, errors
from bb_host.dsl import Graph, Output
from bb_host.ir.program import Function, Program
from bb_host.ir.proto import from_proto, to_proto
from bb_host.ir.spelling import written
from tests.aids.wire_shape import verify_wire_shape

BATCH = 32


def accuracy(g: Graph, logits: Output, one_hot: Output) -> Output:
    hit = g.onnx.equal(
        g.onnx.arg_max(logits, axis=1, keepdims=0), g.onnx.arg_max(one_hot, axis=1, keepdims=0)
    )
    return g.onnx.reduce_mean(g.onnx.cast(hit, to=1), keepdims=0)


class FederatedDigits(Module):
    name, home = "FederatedDigits", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    model, agg = ModelSlot("model"), AggregatorSlot("agg", at="Server")
    shard, test = DataSourceSlot("shard", at="Client"), DataSourceSlot("test", at="Server")

    def body(self, g: Graph) -> None:
        with g.rounds(times=20) as start:
            peers = self.clients.sample(g, n=4, after=start)
            params = self.model.params(g, after=start)
            r = g.request("global", peers, params, deadline_ns=30 * S)

            done = self.model.load_parameters(g, r.value)
            for _ in range(2):
                x, y = self.shard.next_batch(g, after=done)
                p = g.onnx.softmax(self.model.forward(g, x), axis=1)
                dz = (p - y) / BATCH
                done = self.model.step(g, after=self.model.backward(g, dz))
            r.reply([self.model.params(g, after=done), self.shard.num_samples(g)])

            weights, n = r.answer
            self.agg.contribute(g, weights, n, r.answer.sender, round=start.round, sent=params)
            new, total = self.agg.aggregate(g, after=r.closed)
            ok = self.model.load_parameters(g, new)
            x, y = self.test.next_batch(g, after=ok)
            loss = self.model.evaluate(g, x, y)
            score = accuracy(g, self.model.forward(g, x), y)
            g.app_emit("round", g.bundle([start.round, loss, score, total, r.missing]))


BOUND = (
    Compiler()
    .bind_model("model", "acme.Net")
    .bind_aggregator("agg", "bb.FedAvg")
    .bind_peer_selector("clients", "bb.PresenceSelector")
    .bind_data_source("shard", "bb.ArrayDataSource", {"batch_size": BATCH})
    .bind_data_source("test", "bb.ArrayDataSource")
)


@pytest.fixture(scope="module")
def done() -> Program:
    return BOUND.compile_program(FederatedDigits())


def kinds(function: Function) -> list[str]:
    return [op.op_type for op in function.ops if op.domain != keys.ONNX_DOMAIN]


def test_two_partitions_with_their_ops(done: Program) -> None:
    server, client = done.functions
    assert (server.name, client.name) == ("Server", "Client")
    assert kinds(server) == [
        *(
            "Repeat",
            "Sample",
            "Params",
            "PeerHealthGateTx",
            "BackoffGateTx",
            "DeadlineCheck",
            "SendReqBatched",
        ),
        *("RecvResp", "DedupGateRx", "PeerHealthGateRx", "BackoffGateRx", "RecvRespBatched"),
        *(
            "Contribute",
            "Aggregate",
            "LoadParameters",
            "NextBatch",
            "Evaluate",
            "Forward",
            "Bundle",
            "AppEmit",
        ),
    ]
    assert kinds(client) == [
        *("RecvReq", "DedupGateRx", "PeerHealthGateRx", "BackoffGateRx", "LoadParameters"),
        *(("NextBatch", "Forward", "Backward", "Step") * 2),
        *("Params", "NumSamples", "SendResp"),
    ]


def test_bindings_and_passport(done: Program) -> None:
    bindings = {
        k.removeprefix(keys.BINDING_PREFIX): v
        for k, v in written(done.facts).items()
        if k.startswith(keys.BINDING_PREFIX)
    }
    assert bindings == {
        "Server.clients": "peer_selector|bb.PresenceSelector|1",
        "Server.model": "model|acme.Net|2",
        "Server.agg": "aggregator|bb.FedAvg|4",
        "Server.test": "data_source|bb.ArrayDataSource|5",
        "Server.backend": "backend|bb.NumPyBackend|6",
        "Client.model": "model|acme.Net|2",
        "Client.shard": "data_source|bb.ArrayDataSource|3",
        "Client.backend": "backend|bb.NumPyBackend|6",
    }
    assert written(done.facts)[keys.COMPILED_KEY] == "v1"
    assert written(done.facts)[keys.MODULE_KEY] == "FederatedDigits"


def test_both_halves_of_both_wires(done: Program) -> None:
    found = {op.op_type: op for f in done.functions for op in f.ops if op.domain == keys.WIRE_DOMAIN}
    ask = f"{site_id('FederatedDigits', 'global', 'ask', 0):016x}"
    reply = ",".join(f"{site_id('FederatedDigits', 'global', 'reply', i):016x}" for i in range(2))
    for half in ("SendReqBatched", "RecvReq"):
        assert written(found[half].facts)[keys.SITE_IDS_KEY] == ask
        assert written(found[half].facts)[keys.WIRE_TYPES_KEY] == "101"
    for half in ("SendResp", "RecvResp"):
        assert written(found[half].facts)[keys.SITE_IDS_KEY] == reply
        assert written(found[half].facts)[keys.WIRE_TYPES_KEY] == "101,10a"
        assert found[half].facts.request == found["SendReqBatched"].facts.wire_id
    assert written(found["SendReqBatched"].facts)[keys.DEADLINE_NS_KEY] == str(30 * S)
    assert written(found["RecvReq"].facts)[keys.RECV_SLOT_ID_KEY] == "2"
    assert written(found["RecvResp"].facts)[keys.RECV_SLOT_ID_KEY] == "4"


def test_the_artifact_is_onnx_comes_back_whole_and_loads(done: Program) -> None:
    model = to_proto(done)
    onnx.checker.check_model(model)
    assert to_proto(from_proto(model)) == model
    data = model.SerializeToString()
    assert verify_wire_shape(ModelProto.FromString(data)) == []
    assert list(load(data).targets) == ["Server", "Client"]
    assert BOUND.compile(FederatedDigits()).SerializeToString() == data


class Child(Module):
    """Sends from inside a sub-module, and has a bootstrap."""

    name = "Child"
    index = ModelSlot("aux")

    def bootstrap(self, g: Graph) -> None:
        with g.at("self"):
            g.app_notify("starts", self.index.params(g))

    def body(self, g: Graph) -> None:
        x = g.input("x", "F32", [3])
        peers = g.input("peers", "PeerIdVec")
        g.output("y", g.net_out("hop", peers, x))


class Pure(Module):
    name = "Pure"

    def body(self, g: Graph) -> None:
        g.output("y", g.onnx.relu(g.input("x", "F32", [3])))


class Parent(Module):
    name = "Parent"
    far = PeerSelectorSlot("far", peer_class="Far")

    def __init__(self) -> None:
        super().__init__()
        self.child, self.again, self.pure = Child(), Child(), Pure()

    def body(self, g: Graph) -> None:
        x = g.input("x", "F32", [3])
        peers = self.far.sample(g, n=1, after=x)
        first = self.child.call().input("x", x).input("peers", peers).build(g).output("y")
        second = self.again.call().input("x", x).input("peers", peers).build(g).output("y")
        g.app_emit("first", self.pure.call().input("x", first).build(g).output("y"))
        g.app_emit("second", self.pure.call().input("x", second).build(g).output("y"))


def test_modules_within_modules() -> None:
    compiler = Compiler().bind_model("aux", "acme.Net").bind_peer_selector("far", "bb.PresenceSelector")
    done = compiler.compile_program(Parent())
    names = [f.name for f in done.functions]
    assert names[:2] == ["self", "self__bootstrap"]
    assert names[2] == "Far"
    assert len(names) == 4
    assert names[3].startswith("Hoist_Pure_")
    sends = [op for op in done.functions[0].ops if op.op_type == "Send"]
    assert len({written(op.facts)[keys.SITE_IDS_KEY] for op in sends}) == 2
    assert len({written(op.facts)[keys.BATCH_GROUP_ID_KEY] for op in sends}) == 1
    onnx.checker.check_model(to_proto(done))
    assert set(load(to_proto(done).SerializeToString()).targets) == {"self", "Far"}


class Crossing(Module):
    name = "Crossing"
    far = PeerSelectorSlot("far", peer_class="Far")

    def body(self, g: Graph) -> None:
        x = g.input("x", "F32", [3])
        there = g.net_out("hop", self.far.sample(g, n=1, after=x), x)
        g.app_emit("sum", there + x)


def test_a_refusal_names_the_authors_own_line() -> None:
    with pytest.raises(errors.CrossClassDataflow) as caught:
        Compiler().bind_peer_selector("far", "bb.PresenceSelector").compile(Crossing())
    assert caught.value.file.endswith("test_federated_digits.py")
    with open(__file__, encoding="utf-8") as source:
        lines = source.read().splitlines()
    assert lines[caught.value.line - 1].strip() == 'g.app_emit("sum", there + x)'
