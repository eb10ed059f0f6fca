"""Graphs of one operator: the call of their kernel gives what their plan gives, run after run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from bb_edge.backends import NumPyBackend
from bb_edge.roles.errors import BackendRunError

Make = Callable[..., Any]

CASES: dict[str, tuple[str, int, Mapping[str, object], Callable[..., Any]]] = {
    "Add": ("Add", 2, {}, np.add),
    "Mul": ("Mul", 2, {}, np.multiply),
    "Less": ("Less", 2, {}, np.less),
    "Relu": ("Relu", 1, {}, lambda a: np.maximum(a, 0)),
    "Exp": ("Exp", 1, {}, np.exp),
    "Neg": ("Neg", 1, {}, np.negative),
    "Identity": ("Identity", 1, {}, lambda a: a),
    "Transpose": ("Transpose", 1, {}, lambda a: a.T),
    "MatMul": ("MatMul", 2, {}, lambda a, b: a @ b),
    "Softmax": (
        "Softmax",
        1,
        {"axis": -1},
        lambda a: np.exp(a) / np.exp(a).sum(-1, keepdims=True) if a.ndim else np.ones_like(a),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_run_is_right_while_shapes_and_dtypes_change(case: str, make: Make) -> None:
    op_type, n, attrs, expected = CASES[case]
    names = " ".join("ab"[:n])
    program = NumPyBackend().prepare(make(names, "y", [(op_type, names, "y", attrs)]))
    rng = np.random.default_rng(3)
    for dtype in (np.float32, np.float64, np.float32):
        for size in (3, 3, 3, 5, 3):
            arrays = [rng.standard_normal((size, size)).astype(dtype) for _ in range(n)]
            before = [array.copy() for array in arrays]
            (result,) = program.run(arrays)
            want = np.asarray(expected(*arrays))
            assert (result.dtype, result.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(result, want, rtol=1e-5)
            assert not any(np.shares_memory(result, array) for array in arrays)
            for array, kept in zip(arrays, before, strict=True):
                np.testing.assert_array_equal(array, kept)


def test_results_of_later_runs_are_arrays_of_their_own(make: Make) -> None:
    program = NumPyBackend().prepare(make("a b", "y", [("Add", "a b", "y")]))
    a = np.ones(4, np.float32)
    kept = [program.run([a, a * i])[0] for i in range(5)]
    for i, result in enumerate(kept):
        np.testing.assert_array_equal(result, 1.0 + i)
        assert result.flags.owndata


def test_scalars_stay_arrays(make: Make) -> None:
    program = NumPyBackend().prepare(make("a b", "y", [("Add", "a b", "y")]))
    one = np.array(1, np.float32)
    for _ in range(3):
        (result,) = program.run([one, one])
        assert isinstance(result, np.ndarray)
        assert result.shape == ()


def test_dtypes_that_numpy_would_choose_otherwise(make: Make) -> None:
    """NumPy divides integers to floats; ONNX does not."""
    program = NumPyBackend().prepare(make("a b", "y", [("Div", "a b", "y")]))
    for _ in range(3):
        (result,) = program.run([np.array([7, -7], np.int32), np.array([2, 2], np.int32)])
        assert result.dtype == np.int32
        np.testing.assert_array_equal(result, [3, -3])


def test_broadcasting(make: Make) -> None:
    program = NumPyBackend().prepare(make("a b", "y", [("Sub", "a b", "y")]))
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, np.float32)
    for first, second in ((a, b), (a, b), (b, a), (b, a), (a[:, :1], b), (a[:, :1], b)):
        np.testing.assert_array_equal(program.run([first, second])[0], first - second)


def test_ever_other_shapes_scalars_and_dtypes(make: Make) -> None:
    two = NumPyBackend().prepare(make("a b", "y", [("Add", "a b", "y")]))
    one = NumPyBackend().prepare(make("a", "y", [("Neg", "a", "y")]))
    rng = np.random.default_rng(5)
    shapes = [(4,), (), (2, 3), (3,), (1, 3), (0, 3), (2, 1, 3)]
    for _ in range(200):
        dtype = rng.choice([np.float32, np.float64, np.int32, np.int64])
        a, b = (
            np.asarray(rng.integers(-9, 9, shapes[rng.integers(len(shapes))])).astype(dtype) for _ in range(2)
        )
        (result,) = one.run([a])
        assert type(result) is np.ndarray and (result.dtype, result.shape) == (dtype, a.shape)
        np.testing.assert_array_equal(result, -a)
        try:
            want = np.asarray(a + b)
        except ValueError:
            with pytest.raises(BackendRunError):
                two.run([a, b])
            continue
        (result,) = two.run([a, b])
        assert type(result) is np.ndarray and (result.dtype, result.shape) == (dtype, want.shape)
        np.testing.assert_array_equal(result, want)


def test_the_same_array_twice_and_constants(make: Make) -> None:
    square = NumPyBackend().prepare(make("a", "y", [("Mul", "a a", "y")]))
    for shape in ((3,), (3,), (2, 3), (), ()):
        a = np.full(shape, 3, np.float32)
        for _ in range(2):
            (result,) = square.run([a])
            assert (type(result), result.shape) == (np.ndarray, shape)
            np.testing.assert_array_equal(result, 9)


def test_a_ufunc_of_one_array_twice_is_looked_up_once(make: Make) -> None:
    program = NumPyBackend().prepare(make("a", "y", [("Add", "a a", "y")]))
    a = np.ones((4, 4), np.float32)
    assert plans_looked_up(program, *[[a]] * 10) == 1
    assert program.plan_for([a]).takes_twice
    np.testing.assert_array_equal(program.run([np.arange(3, dtype=np.float32)])[0], [0, 2, 4])


NO_CALL: dict[str, tuple[str, str, Mapping[str, object]]] = {
    "Softmax": ("Softmax", "a", {"axis": -1}),
    "Transpose": ("Transpose", "a", {}),
    "the inputs the other way round": ("Sub", "b a", {}),
}


def plans_looked_up(program: Any, *runs: Sequence[Any]) -> int:
    """How often the program looks its plan up while it runs on each of these inputs."""
    count = 0

    def profile(frame: Any, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_name == "plan_for"

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        for inputs in runs:
            program.run(inputs)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("case", NO_CALL)
def test_a_plan_of_more_than_its_kernel_has_no_call(case: str, make: Make) -> None:
    op_type, arguments, attrs = NO_CALL[case]
    names = " ".join(sorted(set(arguments.split())))
    program = NumPyBackend().prepare(make(names, "y", [(op_type, arguments, "y", attrs)]))
    arrays = [np.ones((4, 4), np.float32) for _ in names.split()]
    assert program.plan_for(arrays).call is None
    assert plans_looked_up(program, *[arrays] * 10) == 10
    assert program.plans_made == 1


@pytest.mark.parametrize("case", ["Add", "Less", "Relu", "Neg", "MatMul"])
def test_a_plan_of_one_kernel_is_looked_up_once(case: str, make: Make) -> None:
    op_type, n, attrs, _ = CASES[case]
    names = " ".join("ab"[:n])
    program = NumPyBackend().prepare(make(names, "y", [(op_type, names, "y", attrs)]))
    arrays = [np.ones((4, 4), np.float32) for _ in range(n)]
    assert plans_looked_up(program, *[arrays] * 10) == 1


def test_what_one_plan_cannot_do_says_nothing_of_the_next(make: Make) -> None:
    """ONNX's quotient of integers is more than one call, that of floats is NumPy's own."""
    program = NumPyBackend().prepare(make("a b", "y", [("Div", "a b", "y")]))
    whole, floats = [np.array([7, -7])] * 2, [np.array([7.0, -7.0])] * 2
    assert plans_looked_up(program, whole, whole, floats, floats, whole, floats) == 4
    np.testing.assert_array_equal(program.run(whole)[0], 1)


def test_the_engines_call_gives_one_array_and_refuses_what_does_not_fit(make: Make) -> None:
    program = NumPyBackend().prepare(make("a b", "y", [("Add", "a b", "y")]))
    a = np.ones(4, np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(program.call(None, a, a), 2)
        for wrong in ((a, np.ones(3, np.float32)), (a, np.ones(4, np.int32))):
            with pytest.raises(BackendRunError):
                program.call(None, *wrong)


def test_overflow_stays_silent_and_the_callers_settings_come_back(make: Make) -> None:
    program = NumPyBackend().prepare(make("a b", "y", [("Mul", "a b", "y")]))
    big = np.full(4, 3e38, np.float32)
    with np.errstate(all="raise"):
        for _ in range(3):
            assert np.isinf(program.run([big, big])[0]).all()
        with pytest.raises(FloatingPointError):
            np.multiply(big, big)


def test_inputs_that_do_not_fit_are_refused_after_good_runs(make: Make) -> None:
    program = NumPyBackend().prepare(make("a b", "y", [("Add", "a b", "y")]))
    a = np.ones(4, np.float32)
    program.run([a, a])
    program.run([a, a])
    for wrong in ([a], [a, a, a], [a, np.ones(3, np.float32)], [a, np.ones(4, np.int32)]):
        with pytest.raises(BackendRunError):
            program.run(wrong)
    np.testing.assert_array_equal(program.run([a, a])[0], 2)


def test_run_into_goes_beside_it(make: Make) -> None:
    program = NumPyBackend().prepare(make("a b", "y", [("Add", "a b", "y")]))
    a, out = np.ones(4, np.float32), np.zeros(4, np.float32)
    for _ in range(2):
        program.run([a, a])
        program.run_into([a, a], [out])
        np.testing.assert_array_equal(out, 2)


def test_a_value_that_no_kernel_takes_is_named_with_its_node(make: Make) -> None:
    program = NumPyBackend().prepare(make("a i", "y", [("Gather", "a i", "y")]))
    a = np.arange(4, dtype=np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(program.run([a, np.array([1, 2])])[0], [1, 2])
    with pytest.raises(BackendRunError):
        program.run([a, np.array([1, 9])])
