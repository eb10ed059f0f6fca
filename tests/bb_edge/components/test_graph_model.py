"""`bb.GraphModel` with a two-layer network whose gradient is written out by hand."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from bb_edge.backends import NumPyBackend
from bb_edge.components import GraphModel
from bb_edge.ir import keys, onnx_pb2
from bb_edge.ir.annotated import annotate, metadata_of
from bb_edge.roles import ComponentEnv, ComponentError, ComponentStateError, Setting

Ctx = Any
N, D, H, C = 6, 5, 4, 3
NAMES = ("w1", "b1", "w2", "b2")


def function(name: str, inputs: str, outputs: str, text: str) -> onnx_pb2.FunctionProto:
    """One node per line: ``Op in in -> out``; ``axis0`` and ``axis1`` are constants; keepdims is 0."""
    made = onnx_pb2.FunctionProto(name=name, input=inputs.split(), output=outputs.split())
    made.domain = keys.COMPONENT_DOMAIN
    made.opset_import.add(domain="", version=21)
    for axis in (0, 1):
        if f"axis{axis}" in text:
            node = made.node.add(op_type="Constant", output=[f"axis{axis}"])
            node.attribute.add(name="value_ints", type=onnx_pb2.AttributeProto.INTS, ints=[axis])
    for line in filter(None, (line.strip() for line in text.splitlines())):
        left, _, right = line.partition(" -> ")
        op_type, *given = left.split()
        node = made.node.add(op_type=op_type, input=given, output=right.split())
        if op_type.startswith("Reduce"):
            node.attribute.add(name="keepdims", type=onnx_pb2.AttributeProto.INT, i=0)
    return made


FORWARD = function(
    "model.forward",
    "x w1 b1 w2 b2",
    "z h",
    """
    MatMul x w1 -> m1
    Add m1 b1 -> a1
    Relu a1 -> h
    MatMul h w2 -> m2
    Add m2 b2 -> z
    """,
)
FORWARD.metadata_props.add(key=keys.COMPONENT_ARITY_KEY, value="1,4,1")
TRAIN = function(
    "model.train",
    "x w1 b1 w2 b2 h dz",
    "dw1 db1 dw2 db2",
    """
    Transpose h -> ht
    MatMul ht dz -> dw2
    ReduceSum dz axis0 -> db2
    Transpose w2 -> w2t
    MatMul dz w2t -> dh
    Sign h -> mask
    Mul dh mask -> da
    Transpose x -> xt
    MatMul xt da -> dw1
    ReduceSum da axis0 -> db1
    """,
)
LOSS = function(
    "model.loss",
    "z t",
    "loss",
    """
    Sub z t -> d
    Mul d d -> s
    ReduceMean s -> loss
    """,
)
GRAPHS = {"forward": FORWARD, "train": TRAIN, "loss": LOSS}


def parameters() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {"w1": (D, H), "b1": (H,), "w2": (H, C), "b2": (C,)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def build(
    graphs: dict[str, onnx_pb2.FunctionProto] | None = None,
    kind: type[GraphModel] = GraphModel,
    **config: object,
) -> GraphModel:
    found = GRAPHS if graphs is None else graphs
    env = ComponentEnv("model", "Client", config, parameters(), found.get, NumPyBackend())
    return kind.construct(env)


def forward_of(p: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ p["w1"] + p["b1"], 0) @ p["w2"] + p["b2"]


def flat(p: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([array.ravel() for array in p.values()])


def numerical(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """d sum(weights * z) / d parameters by central differences, in f64."""
    p64 = {name: array.astype(np.float64) for name, array in parameters().items()}
    found = []
    for name in NAMES:
        for index in np.ndindex(p64[name].shape):
            values = []
            for sign in (1, -1):
                p = {k: v.copy() for k, v in p64.items()}
                p[name][index] += sign * 1e-5
                values.append(float((weights * forward_of(p, x)).sum()))
            found.append((values[0] - values[1]) / 2e-5)
    return np.array(found)


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(2).standard_normal((N, D)).astype(np.float32)


@pytest.fixture
def dz() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((N, C)).astype(np.float32)


def test_parameters_are_one_vector_in_initializer_order(ctx: Ctx) -> None:
    model = build()
    found = model.params(ctx)
    np.testing.assert_array_equal(found, flat(parameters()))
    assert metadata_of(found) == {"layout": f"w1:{D}x{H};b1:{H};w2:{H}x{C};b2:{C}", "hash": model.layout_hash}


def test_forward(ctx: Ctx, x: np.ndarray) -> None:
    np.testing.assert_allclose(build().forward(ctx, x), forward_of(parameters(), x), rtol=1e-5)


def test_a_step_goes_down_the_true_gradient(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model = build(learning_rate=0.5)
    model.forward(ctx, x)
    model.backward(ctx, dz)
    model.step(ctx)
    expected = flat(parameters()) - 0.5 * numerical(x.astype(np.float64), dz.astype(np.float64))
    np.testing.assert_allclose(model.params(ctx), expected, rtol=1e-3, atol=1e-4)


class Pulled(GraphModel):
    """A subclass with a term of its own: every parameter is pulled towards zero."""

    TYPE_NAME = "acme.Pulled"
    CONFIG = {"pull": Setting.number(0.5)}  # noqa: RUF012

    def adjust_gradient(self, gradient: np.ndarray) -> None:
        assert not self.parameters.flags.writeable
        gradient += 0.5 * self.parameters


def test_a_subclass_adds_a_term_to_the_gradient(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    plain, pulled = build(learning_rate=0.5), build(kind=Pulled, learning_rate=0.5, pull=0.5)
    before = plain.params(ctx)
    for model in (plain, pulled):
        model.forward(ctx, x)
        model.backward(ctx, dz)
        model.step(ctx)
    np.testing.assert_allclose(pulled.params(ctx), plain.params(ctx) - 0.25 * before, rtol=1e-5)


def test_gradients_add_up_until_a_step(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    once, twice = build(), build()
    once.forward(ctx, x)
    once.backward(ctx, 3 * dz)
    twice.forward(ctx, x)
    twice.backward(ctx, dz)
    twice.backward(ctx, 2 * dz)
    for model in (once, twice):
        model.step(ctx)
    np.testing.assert_allclose(once.params(ctx), twice.params(ctx), rtol=1e-4, atol=1e-5)


def test_a_step_clears_the_gradient(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model = build()
    model.forward(ctx, x)
    model.backward(ctx, dz)
    model.step(ctx)
    after = model.params(ctx)
    model.step(ctx)
    np.testing.assert_array_equal(model.params(ctx), after)


def test_adopted_by_restore_it_leaves_what_has_no_step(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    """As in a class that extends it by a `restore` of its own."""
    old, new = build(), build()
    old.forward(ctx, x)
    old.backward(ctx, dz)
    new.restore(old.serialize())
    why = "of executions of the old program"
    assert new.drop_executions() == (
        f"activations of 1 forward passes: {why}",
        f"a gradient without its step: {why}",
    )
    assert new.drop_executions() == ()
    before = new.params(ctx)
    new.step(ctx)
    np.testing.assert_array_equal(new.params(ctx), before)


def test_momentum(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    plain, heavy = build(learning_rate=0.1), build(learning_rate=0.1, momentum=0.5)
    start = plain.params(ctx).copy()
    for model in (plain, heavy):
        model.forward(ctx, x)
        model.backward(ctx, dz)
        model.step(ctx)
    moved = plain.params(ctx) - start
    np.testing.assert_allclose(heavy.params(ctx), start + moved, atol=1e-6)
    heavy.step(ctx)  # no gradient: the velocity alone
    np.testing.assert_allclose(heavy.params(ctx), start + 1.5 * moved, rtol=1e-4, atol=1e-5)


def test_a_given_gradient_is_applied_and_the_own_one_stays(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model, other = build(learning_rate=0.1), build(learning_rate=0.1)
    given = np.ones(model.params(ctx).size, np.float32)
    given.setflags(write=False)
    for m in (model, other):
        m.forward(ctx, x)
        m.backward(ctx, dz)
    model.step(ctx, given)
    model.step(ctx)
    other.step(ctx)
    np.testing.assert_allclose(model.params(ctx), other.params(ctx) - 0.1, atol=1e-6)


def test_activations_belong_to_the_execution(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    """Two executions forward in turn; each backward reads its own."""
    interleaved, alone = build(), build()
    first, second = x, x[::-1].copy() * 2
    ctx.exec_id = 1
    interleaved.forward(ctx, first)
    ctx.exec_id = 2
    interleaved.forward(ctx, second)
    ctx.exec_id = 1
    interleaved.backward(ctx, dz)
    alone.forward(ctx, first)
    alone.backward(ctx, dz)
    for model in (interleaved, alone):
        model.step(ctx)
    np.testing.assert_array_equal(interleaved.params(ctx), alone.params(ctx))


def test_an_execution_that_ended_leaves_nothing(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model = build()
    model.forward(ctx, x)
    model.execution_ended(ctx.exec_id)
    model.execution_ended(99)
    with pytest.raises(ComponentError, match="without a Forward"):
        model.backward(ctx, dz)


def test_kept_activations_are_bounded_and_the_loss_is_counted(
    ctx: Ctx, x: np.ndarray, dz: np.ndarray
) -> None:
    model = build(kept_activations=2)
    for ctx.exec_id in (1, 2, 3):
        model.forward(ctx, x)
    assert model.activations_dropped == 1
    ctx.exec_id = 2
    model.backward(ctx, dz)
    ctx.exec_id = 1
    with pytest.raises(ComponentError, match="kept_activations"):
        model.backward(ctx, dz)


def test_loading_adding_and_empty_vectors(ctx: Ctx) -> None:
    model = build()
    new = np.arange(model.params(ctx).size, dtype=np.float32)
    model.load_parameters(ctx, new)
    np.testing.assert_array_equal(model.params(ctx), new)
    model.apply_delta(ctx, new)
    np.testing.assert_array_equal(model.params(ctx), 2 * new)
    model.load_parameters(ctx, np.empty(0, np.float32))
    model.apply_delta(ctx, np.empty(0, np.float32))
    np.testing.assert_array_equal(model.params(ctx), 2 * new)


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_a_state_that_one_bad_batch_has_broken_is_told_and_begins_at_zero(
    ctx: Ctx, x: np.ndarray, dz: np.ndarray, optimizer: dict[str, object]
) -> None:
    model, fresh = build(**optimizer), build(**optimizer)
    good = model.params(ctx)
    model.forward(ctx, x)
    model.backward(ctx, dz * np.float32("nan"))
    model.step(ctx)
    with pytest.raises(ComponentError, match=r"the optimizer's state \(.*\) holds inf or nan") as caught:
        model.load_parameters(ctx, good)
    assert "the next round trains again" in caught.value.hint
    np.testing.assert_array_equal(model.params(ctx), good)
    model.load_parameters(ctx, good)
    for one in (model, fresh):
        one.forward(ctx, x)
        one.backward(ctx, dz)
        one.step(ctx)
    np.testing.assert_array_equal(model.params(ctx), fresh.params(ctx))


def test_params_is_a_copy(ctx: Ctx, x: np.ndarray) -> None:
    model = build()
    before = model.forward(ctx, x)
    model.params(ctx)[...] = 0
    np.testing.assert_array_equal(model.forward(ctx, x), before)


@pytest.mark.parametrize("method", ["load_parameters", "apply_delta"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_parameters_that_are_not_finite_are_not_taken(ctx: Ctx, method: str, bad: float) -> None:
    model = build()
    before = model.params(ctx)
    poisoned = before.copy()
    poisoned[-1] = bad
    with pytest.raises(ComponentError, match="inf or nan; the old parameters stay"):
        getattr(model, method)(ctx, poisoned)
    np.testing.assert_array_equal(model.params(ctx), before)


@pytest.mark.parametrize("method", ["load_parameters", "apply_delta", "step"])
@pytest.mark.parametrize("wrong", ["length", "rank", "dtype", "hash"])
def test_vectors_that_do_not_fit_are_refused_and_change_nothing(ctx: Ctx, method: str, wrong: str) -> None:
    model = build()
    before = model.params(ctx)
    size = before.size
    vector = {
        "length": np.zeros(size - 1, np.float32),
        "rank": np.zeros((1, size), np.float32),
        "dtype": np.zeros(size, np.float64),
        "hash": annotate(np.zeros(size, np.float32), {"hash": "0" * 16}),
    }[wrong]
    with pytest.raises(ComponentError, match="slot 'model'"):
        getattr(model, method)(ctx, vector)
    np.testing.assert_array_equal(model.params(ctx), before)


def test_the_hash_of_the_same_layout_is_taken(ctx: Ctx) -> None:
    model, other = build(), build()
    other.apply_delta(ctx, np.ones(other.params(ctx).size, np.float32))
    model.load_parameters(ctx, other.params(ctx))
    np.testing.assert_array_equal(model.params(ctx), other.params(ctx))


def test_evaluate_is_the_mean_loss_and_changes_nothing(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model = build()
    loss = model.evaluate(ctx, x, dz)
    assert loss.shape == () and loss.dtype == np.float32
    np.testing.assert_allclose(loss, np.mean((forward_of(parameters(), x) - dz) ** 2), rtol=1e-5)
    with pytest.raises(ComponentError, match="without a Forward"):
        model.backward(ctx, dz)


def test_training_learns(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model = build(learning_rate=0.05)
    first = float(model.evaluate(ctx, x, dz))
    for _ in range(200):
        z = model.forward(ctx, x)
        model.backward(ctx, 2 * (z - dz) / dz.size)
        model.step(ctx)
    assert float(model.evaluate(ctx, x, dz)) < 0.5 * first


def test_a_model_without_training_graph_keeps_no_activations(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model = build({"forward": FORWARD})
    np.testing.assert_allclose(model.forward(ctx, x), forward_of(parameters(), x), rtol=1e-5)
    for call in (
        lambda: model.backward(ctx, dz),
        lambda: model.step(ctx),
        lambda: model.evaluate(ctx, x, dz),
    ):
        with pytest.raises(ComponentError, match="the artifact has no graph"):
            call()


def test_a_gradient_of_another_shape_is_refused(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    model = build()
    model.forward(ctx, x)
    with pytest.raises(ComponentError, match="the output float32"):
        model.backward(ctx, dz[:-1])


def test_a_snapshot_goes_on_where_it_stopped(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    """Between Backward and Step, with momentum, and with the activations of a running execution."""
    model, restored = build(momentum=0.9), build(momentum=0.9)
    model.forward(ctx, x)
    model.backward(ctx, dz)
    model.step(ctx)
    model.forward(ctx, x)
    model.backward(ctx, dz)
    restored.restore(model.serialize())
    for m in (model, restored):
        m.backward(ctx, dz)
        m.step(ctx)
    np.testing.assert_array_equal(model.params(ctx), restored.params(ctx))


def test_a_damaged_or_foreign_state_is_refused_and_changes_nothing(
    ctx: Ctx, x: np.ndarray, dz: np.ndarray
) -> None:
    model = build()
    model.forward(ctx, x)
    model.backward(ctx, dz)
    state = model.serialize()
    model.step(ctx)
    before = model.params(ctx)
    for cut in range(0, len(state), 7):
        with pytest.raises(ComponentStateError):
            model.restore(state[:cut])
    other = GraphModel({"w": np.zeros(3, np.float32)})
    with pytest.raises(ComponentStateError, match="this model has"):
        model.restore(other.serialize())
    np.testing.assert_array_equal(model.params(ctx), before)


@pytest.mark.parametrize(
    ("graphs", "config", "message"),
    [
        ({}, {}, "no graph 'forward'"),
        ({"forward": LOSS}, {}, "needs the model's input and 4 parameters"),
        ({"forward": FORWARD, "train": LOSS}, {}, "it needs 7 and 4"),
        ({"forward": FORWARD, "loss": FORWARD}, {}, "must map"),
        (GRAPHS, {"learning_rte": 1.0}, "unknown configuration key"),
        (GRAPHS, {"momentum": -1.0}, "must lie in \\[0.0, 1.0\\]"),
    ],
)
def test_what_cannot_be_built_says_why(
    graphs: dict[str, onnx_pb2.FunctionProto], config: dict[str, object], message: str
) -> None:
    with pytest.raises(ComponentError, match=message):
        build(graphs, **config)


def test_a_declared_arity_must_agree() -> None:
    wrong = onnx_pb2.FunctionProto()
    wrong.CopyFrom(FORWARD)
    wrong.metadata_props[0].value = "1,4,2"
    with pytest.raises(ComponentError, match="arity"):
        build({"forward": wrong})


def test_parameters_must_be_f32() -> None:
    tensors = {"w": np.zeros(3, np.float64)}
    env = ComponentEnv("model", "Client", {}, tensors, GRAPHS.get, NumPyBackend())
    with pytest.raises(ComponentError, match="'w' is float64"):
        GraphModel.construct(env)


def test_steady_training_allocates_only_its_results(ctx: Ctx, x: np.ndarray, dz: np.ndarray) -> None:
    import tracemalloc

    model = build()

    def step() -> None:
        model.forward(ctx, x)
        model.backward(ctx, dz)
        model.step(ctx)

    for _ in range(20):
        step()
    tracemalloc.start()
    step()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(200):
        step()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 2048


def test_parameters_that_somebody_keeps_do_not_change(ctx: Ctx) -> None:
    size = 50_000  # large enough for memory that is used again
    model = GraphModel({"w": np.zeros(size, np.float32)})
    model.reserve()
    kept = []
    for number in range(4):
        model.load_parameters(ctx, np.full(size, number, np.float32))
        kept.append(model.params(ctx)[3:])
        model.params(ctx)
    assert [set(each.tolist()) for each in kept] == [{0.0}, {1.0}, {2.0}, {3.0}]


def test_parameters_are_given_in_the_memory_that_was_reserved(ctx: Ctx) -> None:
    size = 100_000
    model = GraphModel({"w": np.ones(size, np.float32)})
    model.reserve()
    tracemalloc.start()
    try:
        for _ in range(3):
            assert model.params(ctx)[size - 1] == 1.0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50_000


@pytest.mark.parametrize(
    "config",
    [{}, {"momentum": 0.9, "nesterov": True}, {"optimizer": "adam"}],
    ids=["sgd", "nesterov", "adam"],
)
def test_memory_that_is_given_back_between_steps_changes_no_bit(
    ctx: Ctx, x: np.ndarray, dz: np.ndarray, config: dict[str, object]
) -> None:
    kept, released = build(**config), build(**config)
    for number in range(4):
        for model in (kept, released):
            for _ in range(1 + number % 2):  # a second pass before the step needs memory of its own
                model.forward(ctx, x)
                model.backward(ctx, dz)
                if model is released:
                    model.release()  # what was added to stays
        assert released.gradient(ctx).tobytes() == kept.gradient(ctx).tobytes()
        for model in (kept, released):
            model.forward(ctx, x)
            model.backward(ctx, dz)
            model.step(ctx)
        released.release()
        assert released.params(ctx).tobytes() == kept.params(ctx).tobytes()
    released.release()
    assert not released.gradient(ctx).any()
    state = kept.serialize()
    released.release()
    released.restore(state)
    assert released.serialize() == state


def test_memory_of_gradient_and_copies_is_given_back(ctx: Ctx) -> None:
    size = 200_000
    model = GraphModel({"w": np.ones(size, np.float32)})
    model.reserve()
    given = model.params(ctx)
    tracemalloc.start()
    try:
        model.release()
        for _ in range(2):
            model.params(ctx)
        held, _ = tracemalloc.get_traced_memory()
        model.release()
        assert tracemalloc.get_traced_memory()[0] < held - 4 * size * 0.9
    finally:
        tracemalloc.stop()
    assert given.min() == 1.0
