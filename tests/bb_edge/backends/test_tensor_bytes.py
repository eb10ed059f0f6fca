"""`tensor_bytes`: memory for shapes that depend on data is counted before it is allocated."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from bb_edge.backends import NumPyBackend
from bb_edge.backends.tensor_budget import LEAST, tensor_budget
from bb_edge.ir import keys, onnx_pb2
from bb_edge.roles.errors import BackendError, BackendRunError, TensorBytesError
from bb_kernels import supported_ops
from bb_kernels.generate import MAX_WINDOW
from bb_kernels.registry import NEWEST_OPSET, find
from bb_kernels.shapes import MAX_TABLE

Make = Callable[..., onnx_pb2.FunctionProto]
FEW = 1000
"""Bytes that none of the results below fits into, and every single number does."""


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


SQUARE = floats(32, 32)
IMAGE = floats(1, 1, 16, 16)
BOXES = floats(1, 50, 4)
REDUCED = floats(1, 40, 40)
NONE = None

# Operator → inputs (None: omitted), attributes, outputs.
CASES: dict[str, tuple[list[Any], dict[str, object], int]] = {
    "AffineGrid": ([floats(1, 2, 3), ints(1, 1, 16, 16)], {}, 1),
    "BlackmanWindow": ([np.array(400)], {}, 1),
    "CenterCropPad": ([SQUARE, ints(40, 40)], {}, 1),
    "Col2Im": ([floats(1, 4, 225), ints(16, 16), ints(2, 2)], {}, 1),
    "Compress": ([SQUARE, np.ones(32, np.bool_)], {"axis": 0}, 1),
    "ConstantOfShape": ([ints(32, 32)], {}, 1),
    "CumProd": ([SQUARE, np.array(0)], {}, 1),
    "CumSum": ([SQUARE, np.array(0)], {}, 1),
    "Dropout": ([SQUARE, np.array(0.5, np.float32), np.array(False)], {}, 1),
    "Expand": ([floats(1, 32), ints(32, 32)], {}, 1),
    "HammingWindow": ([np.array(400)], {}, 1),
    "HannWindow": ([np.array(400)], {}, 1),
    "MaxUnpool": (
        [floats(1, 1, 8, 8), np.arange(0, 256, 4).reshape(1, 1, 8, 8), ints(1, 1, 16, 20)],
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        1,
    ),
    "NonMaxSuppression": (
        [BOXES, floats(1, 4, 50), np.array(50), np.array(1.0, np.float32), np.array(-9.0, np.float32)],
        {},
        1,
    ),
    "NonZero": ([np.ones((16, 16), np.float32)], {}, 1),
    "OneHot": ([np.arange(32), np.array(32), np.array([0, 1], np.float32)], {}, 1),
    "Pad": ([SQUARE, ints(1, 1, 1, 1), np.array(0, np.float32)], {}, 1),
    "Range": ([np.array(0), np.array(400), np.array(1)], {}, 1),
    "Reshape": ([SQUARE, ints(16, 64)], {}, 1),
    "Resize": ([IMAGE, NONE, NONE, ints(1, 1, 20, 20)], {"mode": b"nearest"}, 1),
    "Slice": ([SQUARE, ints(0), ints(30), ints(0)], {}, 1),
    "Split": ([SQUARE, ints(16, 16)], {}, 2),
    "Squeeze": ([floats(1, 32, 32), ints(0)], {}, 1),
    "Tile": ([SQUARE, ints(2, 1)], {}, 1),
    "TopK": ([SQUARE, ints(20)], {}, 2),
    "Trilu": ([SQUARE, np.array(0)], {}, 1),
    "Unique": ([SQUARE], {}, 4),
    "Unsqueeze": ([SQUARE, ints(0)], {}, 1),
    "Upsample": ([IMAGE, np.array([1, 1, 2, 2], np.float32)], {}, 1),
    **{
        f"Reduce{kind}": ([REDUCED, ints(0)], {}, 1)
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
}
BY_DATA_ALONE = {"Compress", "NonMaxSuppression", "NonZero", "Unique"}
"""Their shape follows from no input that is a shape, but from all values."""
CONTROL = {"If", "Loop"}


def newest(op: str) -> int:
    return max(until for _, until in supported_ops()[op])


def test_the_table_has_every_operator_whose_shape_depends_on_data() -> None:
    by_number = {op for op in supported_ops() if (k := find(op, min(newest(op), NEWEST_OPSET))) and k.needs}
    assert set(CASES) == by_number | BY_DATA_ALONE


def function_of(op: str, make: Make) -> tuple[onnx_pb2.FunctionProto, list[np.ndarray]]:
    inputs, attributes, n_outputs = CASES[op]
    names = [f"x{i}" if array is not None else "_" for i, array in enumerate(inputs)]
    outputs = " ".join(f"y{i}" for i in range(n_outputs))
    passed = [array for array in inputs if array is not None]
    declared = " ".join(name for name in names if name != "_")
    return make(declared, outputs, [(op, " ".join(names), outputs, attributes)], newest(op)), passed


@pytest.mark.parametrize("op", CASES)
def test_an_operator_is_counted(op: str, make: Make) -> None:
    function, inputs = function_of(op, make)
    expected = NumPyBackend().prepare(function).run(inputs)
    allowed = NumPyBackend(tensor_bytes=LEAST).prepare(function).run(inputs)
    for left, right in zip(expected, allowed, strict=True):
        np.testing.assert_array_equal(left, right)
    for _ in range(2):  # the second run finds its plan
        with pytest.raises(TensorBytesError, match=r"tensor_bytes allows 1000.*raise tensor_bytes") as caught:
            NumPyBackend(tensor_bytes=FEW).prepare(function).run(inputs)
        assert op in str(caught.value)
        assert caught.value.requested > caught.value.available == FEW


HUGE = 500_000_000
EXPLOSIONS: dict[str, list[Any]] = {
    "AffineGrid": [floats(1, 2, 3), ints(1, 1, HUGE, 16)],
    "BlackmanWindow": [np.array(HUGE)],
    "CenterCropPad": [SQUARE, ints(HUGE, 40)],
    "ConstantOfShape": [ints(HUGE)],
    "Expand": [floats(1, 32), ints(HUGE, 32)],
    "HammingWindow": [np.array(HUGE)],
    "HannWindow": [np.array(HUGE)],
    "MaxUnpool": [*CASES["MaxUnpool"][0][:2], ints(1, 1, 16, HUGE)],
    "OneHot": [np.arange(32), np.array(HUGE), np.array([0, 1], np.float32)],
    "Pad": [SQUARE, ints(0, 0, HUGE, 0), np.array(0, np.float32)],
    "Range": [np.array(0), np.array(HUGE), np.array(1)],
    "Resize": [IMAGE, NONE, NONE, ints(1, 1, HUGE, 20)],
    "Tile": [SQUARE, ints(HUGE, 1)],
    "Upsample": [IMAGE, np.array([1, 1, 5e7, 2], np.float32)],
}


@pytest.mark.parametrize("op", EXPLOSIONS)
@pytest.mark.parametrize("number", [HUGE, 2**40, 2**62])
def test_a_number_that_becomes_a_shape_takes_no_memory(op: str, number: int, make: Make) -> None:
    function, _ = function_of(op, make)
    inputs = [
        np.where(a == HUGE, number, a) if a.dtype == np.int64 else a for a in EXPLOSIONS[op] if a is not None
    ]
    program = NumPyBackend(tensor_bytes=LEAST).prepare(function)
    tracemalloc.start()
    try:
        with pytest.raises(BackendError) as caught:
            program.run(inputs)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert op in str(caught.value)
    assert peak < 4 << 20


@pytest.mark.parametrize("op", ["Expand", "ConstantOfShape", "Tile"])
def test_without_a_limit_it_is_a_typed_error_too(op: str, make: Make) -> None:
    function, _ = function_of(op, make)
    inputs = [np.where(a == HUGE, 2**60, a) if a.dtype == np.int64 else a for a in EXPLOSIONS[op]]
    with pytest.raises(BackendRunError, match=r"cannot be (allocated|prepared)"):
        NumPyBackend().prepare(function).run(inputs)


# Operator → inputs that ask for a table just below the fixed limit of tables, attributes.
TABLES: dict[str, tuple[list[Any], dict[str, object]]] = {
    "AffineGrid": ([floats(1, 2, 3), ints(1, 1, 1000, 1300)], {}),
    "HannWindow": ([np.array(MAX_WINDOW)], {}),
    "OneHot": ([np.arange(1), np.array(MAX_TABLE - 1), np.array([0, 1], np.float32)], {}),
    "Pad": ([SQUARE, ints(0, 0, MAX_TABLE - 100, 0)], {"mode": b"reflect"}),
    "Resize": ([IMAGE, NONE, NONE, ints(1, 1, MAX_TABLE - 1, 16)], {"mode": b"nearest"}),
    "Resize by weights": ([IMAGE, NONE, NONE, ints(1, 1, MAX_TABLE // 16, 16)], {"mode": b"linear"}),
    "Trilu": ([np.broadcast_to(np.float32(1), (2000, 2000)), np.array(0)], {}),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_table_is_counted_before_it_is_made(case: str, make: Make) -> None:
    """It was made first, of up to 200 MB, and then its op was refused for its result."""
    op, (inputs, attributes) = case.partition(" ")[0], TABLES[case]
    names = [f"x{i}" if array is not None else "_" for i, array in enumerate(inputs)]
    passed = [array for array in inputs if array is not None]
    declared = " ".join(name for name in names if name != "_")
    function = make(declared, "y", [(op, " ".join(names), "y", attributes)], newest(op))
    own = max(array.nbytes for array in passed) if op == "Trilu" else 0  # planning looks at its strides
    program = NumPyBackend(tensor_bytes=1 << 20).prepare(function)
    tracemalloc.start()
    try:
        with pytest.raises(
            TensorBytesError, match=r"tensor_bytes allows 1048576.*raise tensor_bytes"
        ) as caught:
            program.run(passed)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert op in caught.value.where
    assert caught.value.requested > caught.value.available == 1 << 20
    assert peak < (1 << 20) + own


# Operator → inputs, attributes: a result of 8 MiB or less, for which a run takes several times as much.
WORKING: dict[str, tuple[list[Any], dict[str, object]]] = {
    "DeformConv": (
        [np.zeros(shape, np.float32) for shape in ((2, 16, 64, 64), (4, 16, 3, 3), (2, 18, 62, 62))],
        {},
    ),
    "GatherElements": ([np.zeros((1024, 1024), np.float32), np.zeros((1024, 1024), np.int64)], {"axis": 0}),
    "GatherND": ([np.zeros((4, 1024), np.float32), np.zeros((1024, 1), np.int64)], {}),
    "GridSample": ([np.zeros((1, 32, 8, 8), np.float32), np.zeros((1, 256, 256, 2), np.float32)], {}),
    "GridSample cubic": (
        [np.zeros((1, 1, 8, 8), np.float32), np.zeros((1, 512, 512, 2), np.float32)],
        {"mode": b"cubic"},
    ),
}


@pytest.mark.parametrize("case", WORKING)
def test_what_a_kernel_takes_while_it_runs_is_counted(case: str, make: Make) -> None:
    """GridSample took seven times its result, of which alone a peer's positions were counted."""
    op, (inputs, attributes) = case.partition(" ")[0], WORKING[case]
    names = " ".join(f"x{i}" for i in range(len(inputs)))
    function = make(names, "y", [(op, names, "y", attributes)], newest(op))
    tracemalloc.start()
    try:
        (result,) = NumPyBackend().prepare(function).run(inputs)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    with pytest.raises(TensorBytesError) as caught:
        NumPyBackend(tensor_bytes=result.nbytes + 1).prepare(function).run(inputs)
    probes = sum(array.nbytes for array in inputs)  # planning looks at their strides
    assert caught.value.requested >= 0.9 * (peak - probes)
    NumPyBackend(tensor_bytes=2 * peak).prepare(function).run(inputs)


BEYOND: dict[str, list[Any]] = {
    "AffineGrid": [floats(1, 2, 3), ints(1, 1, MAX_TABLE, 1)],
    "OneHot": [np.arange(1), np.array(MAX_TABLE + 1), np.array([0, 1], np.float32)],
    "Resize": [IMAGE, NONE, NONE, ints(1, 1, MAX_TABLE + 1, 16)],
    "Trilu": [np.broadcast_to(np.float32(1), (2049, 2048)), np.array(0)],
}


@pytest.mark.parametrize("op", BEYOND)
def test_a_table_beyond_what_any_kernel_makes_says_what_to_do(op: str, make: Make) -> None:
    inputs = BEYOND[op]
    names = [f"x{i}" if array is not None else "_" for i, array in enumerate(inputs)]
    declared = " ".join(name for name in names if name != "_")
    attributes = {"mode": b"nearest"} if op == "Resize" else {}
    function = make(declared, "y", [(op, " ".join(names), "y", attributes)], newest(op))
    with pytest.raises(BackendRunError) as caught:
        NumPyBackend().prepare(function).run([array for array in inputs if array is not None])
    assert f"{op}: " in caught.value.what and op in caught.value.where
    assert "are more than the limit of 4194304, which is fixed: ask for fewer" in caught.value.what


# --- whole graphs -------------------------------------------------------------------------------------

OUTER = [("Mul", "x y", "z")]


def test_what_open_shapes_broadcast_to_is_counted(make: Make) -> None:
    """Also by the kernel that is called without looking a plan up."""
    program = NumPyBackend(tensor_bytes=1 << 20).prepare(make("x y", "z", OUTER))
    call = program.call
    assert call is not None
    small = floats(8)
    np.testing.assert_array_equal(call(None, small, small), small * small)
    np.testing.assert_array_equal(call(None, small, small), small * small)
    column, row = floats(4096, 1), floats(1, 4096)
    for run in (lambda: call(None, column, row), lambda: program.run((column, row))):
        with pytest.raises(TensorBytesError, match=f"{4096 * 4096 * 4} bytes"):
            run()
    np.testing.assert_array_equal(call(None, small, small), small * small)


def declare(function: onnx_pb2.FunctionProto, shapes: Mapping[str, tuple[int | str, ...]]) -> None:
    for name, shape in shapes.items():
        tensor = function.value_info.add(name=name).type.tensor_type
        tensor.elem_type = 1
        tensor.shape.SetInParent()
        for dim in shape:
            tensor.shape.dim.add(**{"dim_param" if isinstance(dim, str) else "dim_value": dim})


def test_declared_shapes_are_not_counted(make: Make) -> None:
    column, row = floats(64, 1), floats(1, 64)
    static, batch = make("x y", "z", OUTER), make("x y", "z", OUTER)
    declare(static, {"x": (64, 1), "y": (1, 64)})
    declare(batch, {"x": ("N", 1), "y": (1, 64)})
    (z,) = NumPyBackend(tensor_bytes=FEW).prepare(static).run((column, row))
    np.testing.assert_array_equal(z, column * row)
    for function in (batch, make("x y", "z", OUTER)):
        with pytest.raises(TensorBytesError):
            NumPyBackend(tensor_bytes=FEW).prepare(function).run((column, row))


def test_values_of_one_run_are_counted_together(make: Make) -> None:
    """Each of the four is allowed; together they are not, at the first run or with a plan."""
    nodes = [("Expand", "x n", "a"), ("Expand", "x n", "b"), ("Expand", "x n", "c"), ("Sum", "a b c", "y")]
    function, x = make("x n", "y", nodes), floats(1)
    program = NumPyBackend(tensor_bytes=10_000).prepare(function)
    (y,) = program.run((x, ints(400)))
    np.testing.assert_allclose(y, np.full(400, 3 * x[0]), rtol=1e-6)
    for count in (800, 800, 2000):
        with pytest.raises(TensorBytesError, match="allows 10000"):
            program.run((x, ints(count)))
    assert program.run((x, ints(400)))[0].shape == (400,)


def test_what_follows_a_value_is_counted(make: Make) -> None:
    """The expanded value is small, the product of it with itself is not."""
    nodes = [("Expand", "x n", "a"), ("Transpose", "a", "t"), ("MatMul", "t a", "y")]
    program = NumPyBackend(tensor_bytes=100_000).prepare(make("x n", "y", nodes))
    assert program.run((floats(1, 1), ints(1, 100)))[0].shape == (100, 100)
    with pytest.raises(TensorBytesError, match="MatMul"):
        program.run((floats(1, 1), ints(1, 1000)))


def test_the_largest_node_of_a_plan_is_named(make: Make) -> None:
    """No node of it is too large by itself."""
    nodes = [("Relu", "x", "a"), ("Concat", "a a a", "b", {"axis": 0}), ("Exp", "b", "y")]
    program = NumPyBackend(tensor_bytes=10_000).prepare(make("x", "y a", nodes))
    with pytest.raises(TensorBytesError) as caught:
        program.run((floats(700),))
    assert "8400 of it at" in caught.value.where and "graph" in caught.value.where


def test_plans_that_are_kept_hold_no_more_constants_than_one_run_may_take(make: Make) -> None:
    """A peer sends another length each time, and each plan had a mask of its own."""
    nodes = [
        ("Shape", "x", "n"),
        ("Concat", "n n", "nn", {"axis": 0}),
        ("ConstantOfShape", "nn", "mask"),
        ("Trilu", "mask", "triangle"),
        ("MatMul", "triangle x", "y"),
    ]
    program = NumPyBackend(tensor_bytes=8 << 20).prepare(make("x", "y", nodes))
    program.run((floats(8),))
    tracemalloc.start()
    try:
        for length in range(700, 708):  # masks of 2 MB, twice
            assert program.run((np.ones(length, np.float32),))[0].shape == (length,)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 10 << 20


def loop(make: Make, make_graph: Any, body: Any) -> onnx_pb2.FunctionProto:
    return make("m x", "y s", [("Loop", "m _ x", "y s", {"body": make_graph("i c a", "d b r", body)})])


def test_a_plan_that_is_refused_leaves_the_arena_as_it_was(make: Make) -> None:
    """Each of its values is allowed, all together are not; programs of a node share the arena."""
    nodes = [("Relu", "x", "a"), ("Neg", "a", "b"), ("Exp", "b", "c"), ("Concat", "a b c", "y", {"axis": 0})]
    backend = NumPyBackend(shared_arena=True, tensor_bytes=1 << 20)
    program = backend.prepare(make("x", "y", nodes))
    assert program.run((floats(10),))[0].shape == (30,)
    assert backend.arena is not None
    reserved = backend.arena.reserved
    with pytest.raises(TensorBytesError):
        program.run((floats(60_000),))
    assert backend.arena.reserved == reserved


def test_the_result_of_a_data_dependent_op_is_not_copied(make: Make) -> None:
    """So the largest result is all that is allowed, and not half of it."""
    program = NumPyBackend(tensor_bytes=40_000).prepare(make("x n", "y", [("Expand", "x n", "y")]))
    assert program.run((floats(1), ints(9_990)))[0].shape == (9_990,)
    with pytest.raises(TensorBytesError):
        program.run((floats(1), ints(10_001)))
    both = NumPyBackend().prepare(make("x n", "y x", [("Expand", "x n", "y")]))
    x = floats(1)
    y, same = both.run((x, ints(3)))
    y[:] = 7
    assert same is not x
    np.testing.assert_array_equal(same, x)


def test_a_loop_that_doubles_its_value_ends(make: Make, make_graph: Any) -> None:
    body = [("Identity", "c", "d"), ("Concat", "a a", "b", {"axis": 0}), ("Identity", "i", "r")]
    program = NumPyBackend(tensor_bytes=1 << 20).prepare(loop(make, make_graph, body))
    x = np.ones(2, np.float32)
    assert program.run((np.array(5), x))[0].shape == (64,)
    tracemalloc.start()
    try:
        with pytest.raises(TensorBytesError):
            program.run((np.array(60), x))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_the_rows_that_a_loop_collects_are_counted(make: Make, make_graph: Any) -> None:
    body = [("Identity", "c", "d"), ("Identity", "a", "b"), ("Identity", "a", "r")]
    program = NumPyBackend(tensor_bytes=100_000).prepare(loop(make, make_graph, body))
    x = np.ones(100, np.float32)
    assert program.run((np.array(50), x))[1].shape == (50, 100)
    with pytest.raises(TensorBytesError, match="Loop"):
        program.run((np.array(1_000), x))


def test_a_branch_is_counted(make: Make, make_graph: Any) -> None:
    branches = {
        "then_branch": make_graph("", "y", [("Expand", "x n", "y")]),
        "else_branch": make_graph("", "y", [("Identity", "x", "y")]),
    }
    function = make("x n c", "y", [("If", "c", "y", branches)])
    program = NumPyBackend(tensor_bytes=FEW).prepare(function)
    assert program.run((floats(1), ints(10**9), np.array(False)))[0].shape == (1,)
    with pytest.raises(TensorBytesError, match="4000000000 bytes"):
        program.run((floats(1), ints(10**9), np.array(True)))


def test_primitives_and_graphs_by_name_are_counted(make: Make) -> None:
    backend = NumPyBackend(tensor_bytes=FEW)
    with pytest.raises(TensorBytesError):
        backend.primitive("Mul", [floats(64, 1), floats(1, 64)])
    with pytest.raises(TensorBytesError):
        backend.execute(make("x y", "z", OUTER), {"x": floats(64, 1), "y": floats(1, 64)})


# --- the limit of a node --------------------------------------------------------------------------------


def plan_text(*arenas: object) -> str:
    return "|".join(["v1", "2-64", "00000000", *(f"float32[2] 1 3 {arena} 64 0:8:0:1" for arena in arenas)])


def test_the_budget_is_the_larger_of_64_mib_and_twice_what_is_planned() -> None:
    function = onnx_pb2.FunctionProto(name="f")
    assert tensor_budget([function]) == LEAST == 64 << 20
    entry = function.metadata_props.add(key=keys.MEMORY_PLAN_KEY, value=plan_text(1000))
    assert tensor_budget([function]) == LEAST
    entry.value = plan_text(1000, 50 << 20, 12)
    assert tensor_budget([onnx_pb2.FunctionProto(), function]) == 100 << 20
    for damaged in ("", "v1", plan_text("x", "-1", "9" * 40, "²"), "|||" + " " * 5):
        entry.value = damaged
        assert tensor_budget([function]) == LEAST
