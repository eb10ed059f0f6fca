"""Running graphs: plans, aliases, in-place reuse, dynamic shapes, control flow, and the typed primitives."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from bb_edge.backends import NumPyBackend
from bb_edge.backends.program import MAX_PLANS, NumPyProgram
from bb_edge.ir import onnx_pb2
from bb_edge.ir.tensors import encode_tensor
from bb_edge.ir.types import TENSOR_F32, TENSOR_I64
from bb_edge.roles.errors import (
    BackendMemoryError,
    BackendRunError,
    MaterializeError,
    UnsupportedOpsError,
)
from tests.aids.arrays import named_tensor

Make = Callable[..., onnx_pb2.FunctionProto]
F32 = Callable[..., np.ndarray]
MLP = [
    ("MatMul", "x w1", "h1"),
    ("Add", "h1 b1", "h2"),
    ("Relu", "h2", "h3"),
    ("MatMul", "h3 w2", "h4"),
    ("Add", "h4 b2", "y"),
]


def program(backend: NumPyBackend, function: onnx_pb2.FunctionProto, **kwargs: object) -> NumPyProgram:
    made = backend.prepare(function, **kwargs)  # type: ignore[arg-type]
    assert isinstance(made, NumPyProgram)
    return made


def test_a_small_network(backend: NumPyBackend, make: Make, f32: F32) -> None:
    x, w1, b1, w2, b2 = f32(5, 8), f32(8, 16), f32(16), f32(16, 3), f32(3)
    (y,) = program(backend, make("x w1 b1 w2 b2", "y", MLP)).run((x, w1, b1, w2, b2))
    np.testing.assert_allclose(y, np.maximum(x @ w1 + b1, 0) @ w2 + b2, rtol=1e-5)


def test_results_are_fresh_and_inputs_untouched(backend: NumPyBackend, make: Make, f32: F32) -> None:
    """Also where a result is an input, a constant, a view of one, or the same value twice."""
    constant = np.arange(4, dtype=np.float32)
    shape = np.array([4], np.int64)
    function = make(
        "x",
        "x c v t t2 r",
        [
            ("Constant", "", "c", {"value": constant}),
            ("Constant", "", "s", {"value": shape}),
            ("Reshape", "x s", "v"),
            ("Neg", "x", "t"),
            ("Identity", "t", "t2"),
            ("Reshape", "t s", "r"),
        ],
    )
    x = f32(2, 2)
    kept = x.copy()
    made = program(backend, function)
    first = made.run((x,))
    again = [array.copy() for array in first]
    second = made.run((x,))
    for one, two in zip(first, second, strict=True):
        assert not np.shares_memory(one, two)
        assert not np.shares_memory(one, x)
        two += 100
    for i, one in enumerate(first):
        for other in first[:i]:
            assert not np.shares_memory(one, other)
    for one, before in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, before)
    np.testing.assert_array_equal(x, kept)
    np.testing.assert_array_equal(made.run((x,))[1], constant)


def test_no_result_lies_in_the_arena(backend: NumPyBackend, make: Make, f32: F32) -> None:
    """A second run with other inputs must not change the results of the first."""
    function = make("a b", "y z", [("Add", "a b", "s"), ("Mul", "s b", "y"), ("Transpose", "s", "z")])
    made = program(backend, function)
    a, b = f32(3, 4), f32(3, 4)
    y, z = made.run((a, b))
    made.run((b, b))
    np.testing.assert_array_equal(y, (a + b) * b)
    np.testing.assert_array_equal(z, (a + b).T)


def test_a_chain_runs_in_place(backend: NumPyBackend, make: Make, f32: F32) -> None:
    """Ten results, memory for one: each overwrites its input; the last goes to the caller."""
    nodes = [("Add", f"t{i - 1} b" if i else "a b", f"t{i}") for i in range(10)]
    a, b = f32(1024), f32(1024)
    made = program(backend, make("a b", "t9", nodes))
    np.testing.assert_allclose(made.run((a, b))[0], a + 10 * b, rtol=1e-4)
    plan = made.plan_for((a, b))
    assert plan.arena_bytes == 2 * 4096  # the chain, and the copy of b that every step reads
    assert plan.arena_bytes == plan.live_bytes


def test_a_value_that_is_read_later_is_not_overwritten(backend: NumPyBackend, make: Make, f32: F32) -> None:
    function = make(
        "a b", "y", [("Add", "a b", "s"), ("Neg", "s", "n"), ("Exp", "n", "e"), ("Mul", "e s", "y")]
    )
    a, b = f32(64), f32(64)
    (y,) = program(backend, function).run((a, b))
    np.testing.assert_allclose(y, np.exp(-(a + b)) * (a + b), rtol=1e-5)


def test_one_operand_in_two_views_is_not_overwritten(backend: NumPyBackend, make: Make, f32: F32) -> None:
    function = make(
        "a", "y", [("Neg", "a", "n"), ("Transpose", "n", "t"), ("Sub", "n t", "d"), ("Neg", "d", "y")]
    )
    a = f32(6, 6)
    (y,) = program(backend, function).run((a,))
    np.testing.assert_array_equal(y, a - a.T)


def test_views_cost_no_step(backend: NumPyBackend, make: Make, f32: F32) -> None:
    function = make(
        "x w",
        "y",
        [
            ("Constant", "", "s", {"value": np.array([-1, 6], np.int64)}),
            ("Relu", "x", "r"),
            ("Reshape", "r s", "flat"),
            ("Transpose", "w", "wt"),
            ("MatMul", "flat wt", "y"),
        ],
    )
    x, w = f32(4, 2, 3), f32(5, 6)
    made = program(backend, function)
    np.testing.assert_allclose(made.run((x, w))[0], np.maximum(x, 0).reshape(4, 6) @ w.T, rtol=1e-5)
    assert made.plan_for((x, w)).n_steps == 2


def test_long_chains_of_views_are_cut(backend: NumPyBackend, make: Make, f32: F32) -> None:
    """And copied once in a while, so that a chain costs its length and not its square."""
    nodes = [("Transpose", f"t{i}", f"t{i + 1}") for i in range(101)]
    made = program(backend, make("t0", "t101", nodes))
    x = f32(3, 4)
    np.testing.assert_array_equal(made.run((x,))[0], x.T)
    assert made.plan_for((x,)).n_steps <= 1 + 101 // 16


def test_inputs_of_any_strides_are_taken(backend: NumPyBackend, make: Make, f32: F32) -> None:
    nodes = [
        ("Constant", "", "s", {"value": np.array([12], np.int64)}),
        ("Reshape", "x s", "v"),
        ("Neg", "v", "y"),
    ]
    made = program(backend, make("x", "y", nodes))
    plain, turned = f32(3, 4), f32(4, 3).T
    np.testing.assert_array_equal(made.run((plain,))[0], -plain.reshape(12))
    np.testing.assert_array_equal(made.run((turned,))[0], -turned.reshape(12))
    assert made.plans_made == 1


def test_shapes_of_shapes_are_known_when_planning(backend: NumPyBackend, make: Make, f32: F32) -> None:
    """The flatten of an exporter: Shape → Gather → Concat → Reshape; nothing of it is left at run time."""
    function = make(
        "x",
        "y",
        [
            ("Shape", "x", "shape"),
            ("Constant", "", "zero", {"value": np.array([0], np.int64)}),
            ("Constant", "", "rest", {"value": np.array([-1], np.int64)}),
            ("Gather", "shape zero", "n", {"axis": 0}),
            ("Concat", "n rest", "target", {"axis": 0}),
            ("Reshape", "x target", "flat"),
            ("Neg", "flat", "y"),
        ],
    )
    made = program(backend, function)
    for batch in (1, 5):
        x = f32(batch, 2, 3)
        np.testing.assert_array_equal(made.run((x,))[0], -x.reshape(batch, 6))
        assert made.plan_for((x,)).n_steps == 1


def test_constants_are_folded_once(backend: NumPyBackend, make: Make, f32: F32) -> None:
    w = f32(4, 4)
    function = make(
        "x",
        "y",
        [("Constant", "", "w", {"value": w}), ("Exp", "w", "e"), ("Neg", "e", "n"), ("Add", "x n", "y")],
    )
    made = program(backend, function)
    assert [node.op_type for node in made.graph.nodes] == ["Add"]
    x = f32(4, 4)
    np.testing.assert_allclose(made.run((x,))[0], x - np.exp(w), rtol=1e-6)


def test_plans_are_kept_per_shape_and_bounded(backend: NumPyBackend, make: Make, f32: F32) -> None:
    made = program(backend, make("x", "y", [("Neg", "x", "n"), ("Exp", "n", "y")]))
    for n in (1, 2, 1, 2, 1):
        made.run((f32(n),))
    assert made.plans_made == 2
    for n in range(1, MAX_PLANS + 2):
        made.run((f32(n),))
    before = made.plans_made
    made.run((f32(MAX_PLANS + 1),))
    assert made.plans_made == before  # the newest was kept
    made.run((f32(1),))
    assert made.plans_made == before + 1  # the oldest had to go
    made.run((f32(3),))
    assert made.plans_made == before + 1  # and no other


def test_a_dtype_change_makes_a_plan_of_its_own(backend: NumPyBackend, make: Make, f32: F32) -> None:
    made = program(backend, make("x", "y", [("Neg", "x", "y")]))
    assert made.run((f32(3),))[0].dtype == np.float32
    assert made.run((np.arange(3, dtype=np.int64),))[0].dtype == np.int64
    assert made.plans_made == 2


def test_nothing_of_the_caller_is_kept(backend: NumPyBackend, make: Make, f32: F32) -> None:
    made = program(backend, make("x w", "y", [("MatMul", "x w", "y")]))
    x, w = f32(64, 64), f32(64, 64)
    (y,) = made.run((x, w))
    gone = [weakref.ref(a) for a in (x, w, y)]
    del x, w, y
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


def test_run_into_writes_to_the_given_arrays(backend: NumPyBackend, make: Make, f32: F32) -> None:
    x, w1, b1, w2, b2 = f32(5, 8), f32(8, 16), f32(16), f32(16, 3), f32(3)
    made = program(backend, make("x w1 b1 w2 b2", "y h3 x", MLP))
    flat = np.zeros(15 + 80 + 40, np.float32)
    views = (flat[:15].reshape(5, 3), flat[15:95].reshape(5, 16), flat[95:].reshape(5, 8))
    made.run_into((x, w1, b1, w2, b2), views)
    expected = made.run((x, w1, b1, w2, b2))
    np.testing.assert_array_equal(flat, np.concatenate([a.ravel() for a in expected]))


@pytest.mark.parametrize("wrong", ["shape", "dtype", "strides", "count"])
def test_run_into_refuses_arrays_that_do_not_fit(
    backend: NumPyBackend, make: Make, f32: F32, wrong: str
) -> None:
    made = program(backend, make("x", "y", [("Neg", "x", "y")]))
    targets = {
        "shape": [np.empty((3, 2), np.float32)],
        "dtype": [np.empty((2, 3), np.float64)],
        "strides": [np.empty((3, 2), np.float32).T],
        "count": [],
    }
    with pytest.raises(BackendRunError):
        made.run_into((f32(2, 3),), targets[wrong])


def test_a_runner_writes_to_its_arrays_each_time_and_looks_at_them_for_each_plan(
    backend: NumPyBackend, make: Make, f32: F32
) -> None:
    prog = program(backend, make("x", "y", [("Neg", "x", "y")]))
    x, out = f32(2, 3), np.empty((2, 3), np.float32)
    run = prog.runner([out], ())
    for factor in (1, 2):
        assert not run([x * np.float32(factor)])
        np.testing.assert_array_equal(out, -x * factor)
    with pytest.raises(BackendRunError, match="expected a contiguous"):
        run((f32(4, 3),))
    run([x])
    np.testing.assert_array_equal(out, -x)
    with pytest.raises(BackendRunError, match="expected 1 arrays"):
        prog.runner([out, out], ())([x])


def test_resident_inputs_are_read_in_place(backend: NumPyBackend, make: Make, f32: F32) -> None:
    """Also through a view of one, and after its contents have changed."""
    w = f32(3, 4)
    function = make("x w", "y", [("Transpose", "w", "wt"), ("MatMul", "x wt", "y")])
    made = program(backend, function, resident={"w": w})
    assert made.input_names == ("x",)
    x = f32(2, 4)
    np.testing.assert_allclose(made.run((x,))[0], x @ w.T, rtol=1e-5)
    w += 1
    np.testing.assert_allclose(made.run((x,))[0], x @ w.T, rtol=1e-5)


def test_a_reshaped_result_is_written_without_a_copy(backend: NumPyBackend, make: Make, f32: F32) -> None:
    nodes = [
        ("Constant", "", "s", {"value": np.array([6], np.int64)}),
        ("Neg", "x", "n"),
        ("Reshape", "n s", "y"),
    ]
    made = program(backend, make("x", "y", nodes))
    x = f32(2, 3)
    np.testing.assert_array_equal(made.run((x,))[0], -x.reshape(6))
    assert made.plan_for((x,)).n_steps == 1


def test_omitted_outputs_and_several_outputs(backend: NumPyBackend, make: Make, f32: F32) -> None:
    x = f32(6)
    (b, y) = program(
        backend, make("x", "b y", [("Split", "x", "a b", {"axis": 0, "num_outputs": 2}), ("Neg", "a", "y")])
    ).run((x,))
    np.testing.assert_array_equal(b, x[3:])
    np.testing.assert_array_equal(y, -x[:3])


def test_empty_tensors_and_scalars(backend: NumPyBackend, make: Make) -> None:
    made = program(backend, make("a b", "y", [("Add", "a b", "s"), ("Neg", "s", "y")]))
    zero_d = np.array(2.0, np.float32)
    (y,) = made.run((zero_d, zero_d))
    assert y.shape == () and y == -4
    (y,) = made.run((np.empty((0, 3), np.float32), zero_d))
    assert y.shape == (0, 3)


# --- data-dependent shapes ------------------------------------------------------------------------


def test_a_shape_from_data_splits_the_plan(backend: NumPyBackend, make: Make, f32: F32) -> None:
    function = make(
        "x s", "y z", [("Neg", "x", "n"), ("Reshape", "n s", "r"), ("Exp", "r", "y"), ("Add", "n n", "z")]
    )
    made = program(backend, function)
    x = f32(2, 6)
    for shape in ((3, 4), (12,), (3, 4)):
        y, z = made.run((x, np.array(shape, np.int64)))
        np.testing.assert_allclose(y, np.exp(-x).reshape(shape), rtol=1e-6)
        np.testing.assert_array_equal(z, -2 * x)
    assert made.plans_made == 2  # the length of `s` differs; what follows is planned per shape it meets


def test_several_data_dependent_nodes(backend: NumPyBackend, make: Make, f32: F32) -> None:
    function = make(
        "x s t w",
        "y",
        [("Reshape", "x s", "r"), ("MatMul", "r w", "m"), ("Reshape", "m t", "q"), ("Neg", "q", "y")],
    )
    made = program(backend, function, resident={"w": (w := f32(4, 5))})
    x = f32(2, 6)
    (y,) = made.run((x, np.array([3, 4], np.int64), np.array([5, 3], np.int64)))
    np.testing.assert_allclose(y, -(x.reshape(3, 4) @ w).reshape(5, 3), rtol=1e-5)
    with pytest.raises(BackendRunError):
        made.run((x, np.array([5, 4], np.int64), np.array([5, 3], np.int64)))


def test_run_into_copies_where_shapes_depend_on_data(backend: NumPyBackend, make: Make, f32: F32) -> None:
    made = program(backend, make("x s", "y", [("Reshape", "x s", "y")]))
    x, out = f32(2, 6), np.empty((4, 3), np.float32)
    made.run_into((x, np.array([4, 3], np.int64)), [out])
    np.testing.assert_array_equal(out, x.reshape(4, 3))


def test_too_many_data_dependent_nodes_are_refused(backend: NumPyBackend, make: Make, f32: F32) -> None:
    """A typed error, not the end of Python's stack."""
    nodes = [("Reshape", f"t{i} s", f"t{i + 1}") for i in range(400)]
    made = program(backend, make("t0 s", "t400", nodes))
    with pytest.raises(BackendRunError, match="depend on data"):
        made.run((f32(4), np.array([2, 2], np.int64)))


def test_if(
    backend: NumPyBackend, make: Make, make_graph: Callable[..., onnx_pb2.GraphProto], f32: F32
) -> None:
    then = make_graph("", "r", [("Add", "n x", "r")])
    other = make_graph("", "s", [("Mul", "n n", "s")])
    function = make(
        "c x",
        "y",
        [("Neg", "x", "n"), ("If", "c", "b", {"then_branch": then, "else_branch": other}), ("Exp", "b", "y")],
    )
    made = program(backend, function)
    x = f32(3)
    np.testing.assert_allclose(made.run((np.array(True), x))[0], np.ones(3), rtol=1e-6)
    np.testing.assert_allclose(made.run((np.array(False), x))[0], np.exp(x * x), rtol=1e-6)


def test_loop(backend: NumPyBackend, make: Make, make_graph: Callable[..., onnx_pb2.GraphProto]) -> None:
    """Sums up to a bound, with the running sums as scan output; `step` comes from outside."""
    body = make_graph(
        "i c total",
        "go next seen",
        [("Add", "total step", "next"), ("Less", "next limit", "go"), ("Identity", "next", "seen")],
    )
    function = make("m step limit start", "sum trace", [("Loop", "m _ start", "sum trace", {"body": body})])
    made = program(backend, function)
    step, limit, start = (np.array(v, np.float32) for v in (2, 7, 0))
    total, trace = made.run((np.array(100), step, limit, start))
    assert total == 8
    np.testing.assert_array_equal(trace, [2, 4, 6, 8])
    total, trace = made.run((np.array(2), step, limit, start))
    assert total == 4
    total, trace = made.run((np.array(0), step, limit, start))
    assert total == 0 and trace.shape == (0,)
    assert not np.shares_memory(total, start)


def test_a_loop_without_end_is_stopped(
    backend: NumPyBackend,
    make: Make,
    make_graph: Callable[..., onnx_pb2.GraphProto],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bb_edge.backends.control.MAX_ITERATIONS", 10)
    body = make_graph("i c v", "c2 w", [("Identity", "c", "c2"), ("Neg", "v", "w")])
    made = program(backend, make("v", "w", [("Loop", "_ _ v", "w", {"body": body})]))
    with pytest.raises(BackendRunError, match="has not ended"):
        made.run((np.zeros(1, np.float32),))


# --- refusals -------------------------------------------------------------------------------------


def test_unsupported_ops_are_all_named(
    backend: NumPyBackend, make: Make, make_graph: Callable[..., onnx_pb2.GraphProto]
) -> None:
    body = make_graph("", "r", [("Frobnicate", "x", "r")])
    function = make(
        "c x",
        "y",
        [
            ("Quux", "x", "q"),
            ("If", "c", "b", {"then_branch": body, "else_branch": body}),
            ("Add", "q b", "y"),
        ],
    )
    with pytest.raises(UnsupportedOpsError) as caught:
        backend.prepare(function)
    assert caught.value.ops == ("Frobnicate", "Quux")


def test_a_misfit_names_the_node(backend: NumPyBackend, make: Make, f32: F32) -> None:
    function = make("a b", "y", [("MatMul", "a b", "y")])
    function.node[0].name = "scores"
    with pytest.raises(BackendRunError, match="scores"):
        backend.prepare(function).run((f32(2, 3), f32(4, 5)))


def test_a_wrong_number_of_inputs_is_refused(backend: NumPyBackend, make: Make, f32: F32) -> None:
    with pytest.raises(BackendRunError, match=r"expected 2 inputs \(a, b\), got 1"):
        backend.prepare(make("a b", "y", [("Add", "a b", "y")])).run((f32(2),))


def test_a_plan_above_the_limit_says_what_is_missing(make: Make, f32: F32) -> None:
    made = NumPyBackend(arena_limit=4096).prepare(
        make("x", "y", [("MatMul", "x x", "t"), ("MatMul", "t t", "y")])
    )
    made.run((f32(32, 32),))
    with pytest.raises(BackendMemoryError) as caught:
        made.run((f32(33, 33),))
    assert caught.value.available == 4096
    assert caught.value.requested > 4096


def test_a_run_that_fails_leaves_the_program_usable(backend: NumPyBackend, make: Make, f32: F32) -> None:
    made = program(backend, make("x i", "y", [("Gather", "x i", "y", {"axis": 0})]))
    x = f32(3, 2)
    with pytest.raises(BackendRunError):
        made.run((x, np.array([7], np.int64)))
    np.testing.assert_array_equal(made.run((x, np.array([2], np.int64)))[0], x[2:])


def test_infinities_are_silent_and_the_callers_settings_stay(backend: NumPyBackend, make: Make) -> None:
    with np.errstate(all="raise"):
        before = np.geterr()
        (y,) = backend.prepare(make("a b", "y", [("Div", "a b", "y")])).run(
            (np.ones(2, np.float32), np.zeros(2, np.float32))
        )
        assert np.isinf(y).all()
        assert np.geterr() == before


# --- the Contract's other surfaces ----------------------------------------------------------------


def test_execute_takes_functions_and_graphs(
    backend: NumPyBackend, make: Make, make_graph: Callable[..., onnx_pb2.GraphProto], f32: F32
) -> None:
    a, b = f32(3), f32(3)
    nodes = [("Add", "a b", "y")]
    graph = make_graph("a b", "y", nodes)
    graph.initializer.append(named_tensor("b", b))
    np.testing.assert_array_equal(backend.execute(make("a b", "y", nodes), {"a": a, "b": b})["y"], a + b)
    np.testing.assert_array_equal(backend.execute(graph, {"a": a})["y"], a + b)
    np.testing.assert_array_equal(backend.dispatch(graph, {"a": b})["y"], b + b)  # type: ignore[index]
    with pytest.raises(BackendRunError, match="'a' is missing"):
        backend.execute(graph, {})


def test_wire_bytes_become_an_array_without_a_copy(backend: NumPyBackend) -> None:
    sent = np.arange(6, dtype=np.float32).reshape(2, 3)
    payload = encode_tensor(sent)
    assert TENSOR_F32.wire_hash is not None and TENSOR_I64.wire_hash is not None
    np.testing.assert_array_equal(backend.materialize_from_wire(TENSOR_F32.wire_hash, payload), sent)
    np.testing.assert_array_equal(backend.materialize_from_wire(0, payload), sent)
    with pytest.raises(MaterializeError, match="float32"):
        backend.materialize_from_wire(TENSOR_I64.wire_hash, payload)
    with pytest.raises(MaterializeError):
        backend.materialize_from_wire(0, payload[:-1])
    with pytest.raises(MaterializeError, match="0xdead"):
        backend.materialize_from_wire(0xDEAD, payload)


def test_supported_ops_are_those_of_the_kernels(backend: NumPyBackend) -> None:
    assert {"Add", "If", "Loop", "MatMul"} <= backend.supported_ops()
    assert backend.supports("Squeeze", 11) and backend.supports("Squeeze", 13)
    assert not backend.supports("Frobnicate", 21)
    assert not backend.supports("Add", 21, "other.domain")
