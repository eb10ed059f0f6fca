"""A slot that is served by other components on other classes: what all say, and what one of them does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bb_edge.components import ArrayDataSource, FedAvg, GraphModel, PresenceSelector
from bb_edge.ir import types
from bb_edge.ir.types import ValueType
from bb_host import (
    AggregatorSlot,
    Compiler,
    DataSourceSlot,
    Graph,
    ModelSlot,
    Module,
    PeerSelectorSlot,
    errors,
)
from bb_host.ir.program import Program
from bb_host.learn import mlp, trainable
from bb_host.passes.analysis.bound_types import agreed
from bb_host.passes.options import PortPromise

SPARSE = "sparse_softmax_cross_entropy"
NET, SMALLER = mlp([8, 16, 4]), mlp([8, 12, 4])
ADAM = {"optimizer": "adam", "learning_rate": 0.03}


class FedAdam(Module):
    """A round of federated learning whose server makes a step of its own."""

    home = "Server"
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client")
    model = ModelSlot("model")
    avg = AggregatorSlot("avg", FedAvg, at="Server")
    data = DataSourceSlot("data")

    def body(self, g: Graph) -> None:
        with g.rounds(2) as start:
            params = self.model.params(g, after=start)
            r = g.request("train", self.clients.sample(g, n=5, min=2, after=start), params, deadline_ns=9**9)
            loaded = self.model.load_parameters(g, r.value)
            with g.loop(10, after=loaded) as steps:
                x, y = self.data.next_batch(g)
                self.model.step(g, after=self.model.train(g, x, y))
            r.reply([self.model.params(g, after=steps), self.data.num_samples(g, after=steps)])
            w, n = r.answer
            self.avg.contribute(g, w, weight=n, peer=r.answer.sender, sent=params)
            mean, _ = self.avg.aggregate(g, after=r.closed)
            stepped = self.model.step(g, params - mean)
            x, y = self.data.next_batch(g, after=stepped)
            g.app_emit("round", g.bundle([start.round, self.model.evaluate(g, x, y)]))


class Apart(Module):
    """Each class asks its model for itself: no value of one comes to the other."""

    home = "Server"
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client")
    model = ModelSlot("model", GraphModel, trainable(NET, SPARSE))

    def body(self, g: Graph) -> None:
        with g.rounds(2) as start:
            g.app_emit("own", self.model.params(g, after=start))
            r = g.request(
                "ask", self.clients.sample(g, n=5, min=1, after=start), start.round, deadline_ns=9**9
            )
            g.app_emit("theirs", self.model.params(g, after=r.value))
            r.reply(r.value)


def models(
    server: Any, client: Any, sources: Mapping[str | None, Mapping[str, object]] | None = None
) -> Compiler:
    compiler = (
        Compiler()
        .bind_model("model", GraphModel, trainable(server, SPARSE, **ADAM), target="Server")
        .bind_model("model", GraphModel, trainable(client, SPARSE), target="Client")
    )
    for target, config in (sources or {None: {"batch_size": 16}}).items():
        compiler = compiler.bind_data_source("data", ArrayDataSource, dict(config), target=target)
    return compiler


def params_of(program: Program, target: str) -> list[ValueType]:
    """The types of the vectors that a partition asks its models for."""
    main = next(f for f in program.functions if f.name == target)
    ops = [op for op in main.ops if op.op_type == "Params"]
    return [main.types[op.outputs[0]] for op in ops]


def vector(count: int | None) -> ValueType:
    return ValueType(types.TENSOR_F32, (count,))


def test_what_all_bindings_promise_is_known_on_both_sides() -> None:
    done = models(NET, NET).run(FedAdam()).program
    asked = next(f for f in done.functions if f.name == "Client")
    arrived = [asked.types[op.inputs[0]] for op in asked.ops if op.op_type == "LoadParameters"]
    assert arrived == [vector(212)]


def test_a_default_and_one_for_a_class_agree_as_two_of_classes_do() -> None:
    compiler = (
        Compiler()
        .bind_model("model", GraphModel, trainable(NET, SPARSE, **ADAM), target="Server")
        .bind_model("model", GraphModel, trainable(NET, SPARSE))
        .bind_data_source("data", ArrayDataSource, {"batch_size": 16})
    )
    assert params_of(compiler.run(FedAdam()).program, "Client") == [vector(212)]


def test_what_no_binding_takes_is_refused() -> None:
    rows = {"batch_size": 16, "one_hot": 4}
    with pytest.raises(errors.TypeConstraintFailed, match=r"takes I64\[\?\] as target, got F32\[\?,4\]") as e:
        models(NET, NET, {None: rows}).run(FedAdam())
    assert e.value.file.endswith("test_bound_per_class.py")


def test_a_vector_of_one_class_that_the_other_does_not_take_is_refused() -> None:
    wrong = r"model 'model' on Client takes F32\[212\] or an empty vector as params, got F32\[160\]"
    with pytest.raises(errors.TypeConstraintFailed, match=wrong) as e:
        models(SMALLER, NET).run(FedAdam())
    assert e.value.op == "LoadParameters → load_parameters_1" and e.value.file.endswith(
        "test_bound_per_class.py"
    )
    line = r"test_bound_per_class.py:\d+"
    assert e.match(rf"slot 'model' is bound for Server by {line}, for Client by {line}\)")


def test_a_body_is_judged_by_the_class_whose_loop_it_is() -> None:
    sources = {None: {"batch_size": 16}, "Client": {"batch_size": 16, "one_hot": 4}}
    wrong = r"Train → .*: model 'model' on Client takes I64\[\?\] as target, got F32\[\?,4\].* want loss="
    with pytest.raises(errors.TypeConstraintFailed, match=wrong) as e:
        models(NET, NET, sources).run(FedAdam())
    assert e.match(r"slot 'data' is bound for other classes by .*, for Client by ")


def test_models_that_never_meet_may_differ_and_each_is_known() -> None:
    compiler = Compiler().bind_model("model", GraphModel, trainable(SMALLER, SPARSE), target="Client")
    done = compiler.run(Apart()).program
    assert params_of(done, "Server") == [vector(212)]
    assert params_of(done, "Client") == [vector(160)]


@pytest.mark.parametrize("both", [False, True], ids=["of one", "of both"])
def test_a_program_of_one_class_is_judged_by_its_binding(both: bool) -> None:
    class Alone(Module):
        model = ModelSlot("model")

        def body(self, g: Graph) -> None:
            with g.rounds(2) as start:
                g.app_emit("own", self.model.params(g, after=start))

    compiler = Compiler().bind_model("model", GraphModel, trainable(SMALLER, SPARSE), target="Alone")
    if both:
        compiler = compiler.bind_model("model", GraphModel, trainable(NET, SPARSE))
    assert params_of(compiler.run(Alone()).program, "Alone") == [vector(160)]


def test_programs_whose_bindings_are_for_all_classes_are_not_solved_again() -> None:
    compiler = Compiler().bind_model("model", GraphModel, trainable(NET, SPARSE))
    compiler = compiler.bind_data_source("data", ArrayDataSource, {"batch_size": 16})
    seen = {}
    compiler.run(FedAdam(), observe=lambda name, before, after: seen.update({name: (before, after)}))
    before, after = seen["infer_peer_classes"]
    assert [f.types is g.types for f, g in zip(before.functions, after.functions, strict=True)]


F32, I64 = types.TENSOR_F32, types.TENSOR_I64


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (PortPromise(ValueType(F32, (4,))), PortPromise(ValueType(F32, (5,))), "F32[?]"),
        (PortPromise(ValueType(F32, (4,))), PortPromise(ValueType(I64, (4,))), "Tensor[4]"),
        (PortPromise(ValueType(F32, (2, 4))), PortPromise(ValueType(F32, (4,))), "F32[…,4]"),
        (PortPromise(ValueType(F32, (2, 4)), leading=True), PortPromise(ValueType(F32, (4,))), "F32[…,4]"),
        (PortPromise(ValueType(F32)), PortPromise(ValueType(F32, (4,))), "F32"),
        (PortPromise(ValueType(types.TENSOR), floating=True), PortPromise(ValueType(F32)), "F32, F64 or F16"),
        (PortPromise(ValueType(types.TENSOR), floating=True), PortPromise(ValueType(I64)), "Tensor"),
        (PortPromise(ValueType(F32, (4,)), or_empty=True), PortPromise(ValueType(F32, (4,))), "F32[4]"),
    ],
)
def test_what_two_promises_have_in_common(one: PortPromise, other: PortPromise, both: str) -> None:
    for first, second in ((one, other), (other, one)):
        found = agreed([{"A.x": first}, {"A.x": second}])["A.x"]
        assert str(found) == both
        assert found.or_empty is one.or_empty


def test_a_port_that_one_does_not_promise_is_not_promised() -> None:
    promise = PortPromise(ValueType(F32, (4,)))
    assert agreed([{"A.x": promise, "A.y": promise}, {"A.y": promise}]) == {"A.y": promise}
    other = PortPromise(ValueType(types.TRIGGER))
    assert agreed([{"A.x": promise}, {"A.x": other}]) == {}


def test_symbols_are_one_size_where_both_promises_say_so() -> None:
    def ports(*dims: str) -> dict[str, PortPromise]:
        return {f"A.{i}": PortPromise(ValueType(F32, (d,))) for i, d in enumerate(dims)}

    a, b, c = (agreed([ports("n", "n", "n"), ports("m", "m", "k")])[f"A.{i}"].type.shape for i in range(3))
    assert a == b != c
