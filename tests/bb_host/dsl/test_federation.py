"""The first program of the design, exactly as an author writes it."""

from __future__ import annotations

from collections.abc import Callable

from bb_edge.ir import keys, types
from bb_edge.ir.types import ValueType
from bb_host import AggregatorSlot, DataSourceSlot, Graph, ModelSlot, Module, Output, PeerSelectorSlot, S
from bb_host.ir.program import Op, Program
from bb_host.ir.spelling import written

LOCAL_STEPS = 2
BATCH = 32


def accuracy(g: Graph, logits: Output, y: Output) -> Output:
    hit = g.onnx.arg_max(logits, axis=1).equal(g.onnx.arg_max(y, axis=1))
    return g.onnx.reduce_mean(g.onnx.cast(hit, "F32"), keepdims=False)


# fmt: off
class FederatedDigits(Module):
    name, home = "FederatedDigits", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    model, agg = ModelSlot("model"), AggregatorSlot("agg", at="Server")
    shard, test = DataSourceSlot("shard", at="Client"), DataSourceSlot("test", at="Server")

    def body(self, g):
        with g.rounds(times=20) as start:
            peers = self.clients.sample(g, n=4, after=start)
            params = self.model.params(g, after=start)
            r = g.request("global", peers, params, deadline_ns=30 * S)

            done = self.model.load_parameters(g, r.value)            # from here on: the client
            for _ in range(LOCAL_STEPS):
                x, y = self.shard.next_batch(g, after=done)
                p = g.onnx.softmax(self.model.forward(g, x), axis=1)
                dz = (p - y) / BATCH
                done = self.model.step(g, after=self.model.backward(g, dz))
            r.reply([self.model.params(g, after=done), self.shard.num_samples(g)])

            weights, n = r.answer                                    # back on the server, once per answer
            self.agg.contribute(g, weights, weight=n, peer=r.answer.sender, round=start.round)
            new, total = self.agg.aggregate(g, after=r.closed)       # once, when the round is closed
            ok = self.model.load_parameters(g, new)
            x, y = self.test.next_batch(g, after=ok)
            loss = self.model.evaluate(g, x, y)
            g.app_emit("round", g.bundle([start.round, loss, accuracy(g, self.model.forward(g, x), y), total, r.missing]))  # noqa: E501
# fmt: on


def _op(program: Program, output: str) -> Op:
    return next(op for op in program.functions[0].ops if output in op.outputs)


def test_it_records_as_written(record: Callable[..., Program], notation: Callable[..., str]) -> None:
    program = record(FederatedDigits())
    assert program.name == "FederatedDigits"
    assert written(program.facts) == {keys.MODULE_KEY: "FederatedDigits"}
    assert notation(program).splitlines()[:12] == [
        "function program.FederatedDigits() -> () {home=Server}",
        "  slot clients: peer_selector peer_class=Client",
        "  slot model: model",
        "  slot agg: aggregator at=Server",
        "  slot shard: data_source at=Client",
        "  slot test: data_source at=Server",
        "  round_1: I64[] = syscall.Repeat<times=20, pause_ns=0>()",
        (
            "  sample_1: PeerIdVec = role.peer_selector.Sample<n=4>(round_1) "
            "{slot=clients, required_trait=peer_selector, slot_id=1, control_inputs=1}"
        ),
        (
            "  params_1: F32[?] = role.model.Params(round_1) "
            "{slot=model, required_trait=model, slot_id=2, control_inputs=1}"
        ),
        (
            "  global_req_1: WireReqId, global_1: F32[?], global_sender_1: PeerIdVec = "
            "wire.SendReqBatched<deadline_ns=30000000000>(params_1, sample_1, sample_1) "
            "{wire.wire_id=1, wire_correlation=request, port=global, wire.answer_mode=each}"
        ),
        (
            "  load_parameters_1: CommandId = role.model.LoadParameters(global_1) "
            "{slot=model, required_trait=model, slot_id=2}"
        ),
        (
            "  next_batch_1: Tensor, next_batch_labels_1: Tensor = "
            "role.data_loader.NextBatch(load_parameters_1) "
            "{slot=shard, required_trait=data_source, slot_id=3, control_inputs=1}"
        ),
    ]


def test_reply_and_close_are_paired_with_the_ask(record: Callable[..., Program]) -> None:
    program = record(FederatedDigits())
    reply, tail = _op(program, "global_answer_1"), _op(program, "global_closed_1")
    assert reply.inputs == ("params_2", "num_samples_1", "global_sender_1", "global_req_1")
    assert reply.outputs == ("global_answer_1", "global_answer_2", "global_answer_sender_1")
    assert tail.inputs == ("global_req_1",)
    assert tail.outputs == ("global_closed_1", "global_missing_1")
    for op in (reply, tail):
        assert op.facts.wire_id == "2"
        assert op.facts.request == "1"
        assert op.facts.port == "global"
        assert op.facts.correlation == keys.CORRELATION_RESPONSE


def test_answers_feed_the_aggregator_with_weight_peer_and_round(record: Callable[..., Program]) -> None:
    program = record(FederatedDigits())
    assert _op(program, "contribute_1").inputs == (
        "global_answer_1",
        "global_answer_2",
        "global_answer_sender_1",
        "round_1",
    )
    aggregate = _op(program, "aggregate_result_1")
    assert aggregate.inputs == ("", "", "global_closed_1")
    assert written(aggregate.facts)[keys.CONTROL_INPUTS_KEY] == "1"
    assert program.functions[0].types["aggregate_total_1"] == ValueType(types.TENSOR_F32, ())


def test_source_lines_are_the_authors(record: Callable[..., Program]) -> None:
    program = record(FederatedDigits())
    lines = {op.facts.source.split(":")[0] for op in program.functions[0].ops}
    assert lines == {"test_federation.py"}


def test_recording_twice_gives_the_same_bytes() -> None:
    first = FederatedDigits().build().SerializeToString(deterministic=True)
    assert FederatedDigits().build().SerializeToString(deterministic=True) == first


def test_slot_ids_follow_the_order_of_first_use(record: Callable[..., Program]) -> None:
    ids: dict[str, str] = {}
    for op in record(FederatedDigits()).functions[0].ops:
        if keys.SLOT_KEY in written(op.facts):
            ids.setdefault(op.facts.slot, written(op.facts)[keys.SLOT_ID_KEY])
    assert ids == {"clients": "1", "model": "2", "shard": "3", "agg": "4", "test": "5"}
