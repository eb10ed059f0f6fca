"""Cutting, joining, reducing and indexing against Python's and NumPy's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bb_kernels import KernelShapeError, TensorSpec, evaluate, prepare

Compute = Callable[..., list[Any]]
bounds = st.integers(-12, 12)


@settings(max_examples=300, deadline=None)
@given(n=st.integers(0, 6), start=bounds, end=bounds, step=st.integers(-4, 4).filter(bool))
def test_slice_is_pythons_slice(n: int, start: int, end: int, step: int) -> None:
    x = np.arange(2 * n, dtype=np.int32).reshape(2, n)
    inputs = [x, *(np.array([v]) for v in (start, end, 1, step))]
    prepared = prepare("Slice", 17, {}, [TensorSpec(a.dtype, a.shape) for a in inputs], inputs)
    (got,) = evaluate(prepared, inputs)
    # One difference: stepping down, ONNX moves a start before the first element to the first element.
    want = x[:, max(start, -n) if step < 0 else start : end : step]
    np.testing.assert_array_equal(got, want)
    assert prepared.alias is not None
    np.testing.assert_array_equal(prepared.alias(x), want)


def test_slice_to_the_very_ends(compute: Compute) -> None:
    x = np.arange(5)
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    assert compute("Slice", [x, [0], [high]])[0].tolist() == [0, 1, 2, 3, 4]
    assert compute("Slice", [x, [high], [low], [0], [-2]])[0].tolist() == [4, 2, 0]


def test_slice_step_of_zero(compute: Compute) -> None:
    with pytest.raises(KernelShapeError, match="step of 0"):
        compute("Slice", [np.arange(5), [0], [5], [0], [0]])


@pytest.mark.parametrize(
    ("target", "allow", "want"),
    [([-1], 0, (24,)), ([0, -1], 0, (2, 12)), ([4, 0, 2], 0, (4, 3, 2)), ([3, -1, 2], 0, (3, 4, 2))],
)
def test_reshape(target: list[int], allow: int, want: tuple[int, ...], compute: Compute) -> None:
    x = np.arange(24).reshape(2, 3, 4)
    (got,) = compute("Reshape", [x, target], allowzero=allow)
    np.testing.assert_array_equal(got, x.reshape(want))


@pytest.mark.parametrize("target", [[5], [-1, -1], [-2], [7, -1], [0, 0, 0, 0]])
def test_reshape_refusals(target: list[int], compute: Compute) -> None:
    with pytest.raises(KernelShapeError, match="Reshape"):
        compute("Reshape", [np.arange(24).reshape(2, 3, 4), target])


def test_split_into_unequal_parts(compute: Compute) -> None:
    x = np.arange(7)
    parts = compute("Split", [x], n_outputs=3)
    assert [p.tolist() for p in parts] == [[0, 1, 2], [3, 4, 5], [6]]
    with pytest.raises(KernelShapeError, match="equal parts"):
        compute("Split", [x], n_outputs=3, version=13)
    with pytest.raises(KernelShapeError, match="add up"):
        compute("Split", [x, [3, 3]], n_outputs=2)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"])
@pytest.mark.parametrize("axes", [None, [0], [-1], [0, 2], [2, 0, 1]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(op: str, axes: Any, keepdims: int, compute: Compute, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 4, 2)).astype(np.float32)
    call = {
        "ReduceSum": np.sum,
        "ReduceMean": np.mean,
        "ReduceMax": np.max,
        "ReduceMin": np.min,
        "ReduceProd": np.prod,
    }
    want = call[op](x, None if axes is None else tuple(axes), keepdims=bool(keepdims))
    inputs = [x] if axes is None else [x, np.array(axes)]
    np.testing.assert_allclose(compute(op, inputs, keepdims=keepdims)[0], want, rtol=1e-5, atol=1e-6)
    if op != "ReduceSum":
        attrs = {} if axes is None else {"axes": axes}
        (old,) = compute(op, [x], version=13, keepdims=keepdims, **attrs)
        np.testing.assert_allclose(old, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axes", [[0, 2, 3], [0], [2, 3], [-1, 0], [1], [0, 1]])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
def test_sums_of_many(
    axes: Any, keepdims: int, layout: str, compute: Compute, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((33, 6, 17, 5)).astype(np.float32) + np.float32(0.5)
    if layout == "strided":
        x = np.ascontiguousarray(x.transpose()).transpose()
    (got,) = compute("ReduceSum", [x, np.int64(axes)], keepdims=keepdims)
    want = x.astype(np.float64).sum(tuple(axes), keepdims=bool(keepdims))
    assert got.dtype == np.float32 and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def test_reduction_without_axes_may_do_nothing(compute: Compute) -> None:
    x = np.arange(4, dtype=np.float32)
    assert compute("ReduceSum", [x], noop_with_empty_axes=1)[0].tolist() == [0, 1, 2, 3]
    assert compute("ReduceSum", [x, np.zeros(0, np.int64)], keepdims=0)[0].tolist() == 6


def test_log_sum_exp_does_not_overflow(compute: Compute) -> None:
    x = np.array([[1000.0, 1000.0], [-np.inf, -np.inf]], np.float32)
    (got,) = compute("ReduceLogSumExp", [x, [1]], keepdims=0)
    np.testing.assert_allclose(got, [1000 + np.log(2), -np.inf])


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("op", ["Gather", "GatherElements"])
def test_gather_bounds(op: str, known: bool, compute: Compute) -> None:
    x = np.arange(4, dtype=np.float32)
    assert compute(op, [x, np.array([-4, 3, -1])], known=known)[0].tolist() == [0, 3, 3]
    for bad in (4, -5):
        with pytest.raises(KernelShapeError, match="out of range"):
            compute(op, [x, np.array([0, bad])], known=known)
    with pytest.raises(
        KernelShapeError, match=r"dimension of 0; nothing is along that axis: an input of leng"
    ):
        compute(op, [x[:0], np.array([-1])], known=known)


@pytest.mark.parametrize("op", ["ScatterElements", "Scatter"])
def test_scatter(op: str, compute: Compute) -> None:
    x = np.zeros((2, 3), np.float32)
    (got,) = compute(op, [x, np.array([[0, -1]]), np.array([[5, 7]], np.float32)], axis=1)
    assert got.tolist() == [[5, 0, 7], [0, 0, 0]]
    assert not x.any()
    with pytest.raises(KernelShapeError, match="out of range"):
        compute(op, [x, np.array([[3]]), np.array([[1]], np.float32)], axis=1)


def test_scatter_adds_repeated_indices(compute: Compute) -> None:
    data, index, updates = (
        np.ones(3, np.float32),
        np.array([1, 1, -2], np.int64),
        np.array([1, 2, 3], np.float32),
    )
    assert compute("ScatterElements", [data, index, updates], reduction="add")[0].tolist() == [1, 7, 1]
    (got,) = compute("ScatterND", [data, index[:, None], updates], reduction="max")
    assert got.tolist() == [1, 3, 1]


def test_scatter_nd_bounds(compute: Compute) -> None:
    with pytest.raises(KernelShapeError, match="out of range"):
        compute("ScatterND", [np.ones(3), np.array([[3]], np.int64), np.array([1.0])])


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_arg_extremes_and_ties(op: str, compute: Compute) -> None:
    x = np.array([[2, 9, 9], [1, 1, 5]], np.int32) * (1 if op == "ArgMax" else -1)
    assert compute(op, [x], axis=1, keepdims=0)[0].tolist() == [1, 2]
    assert compute(op, [x], axis=1, keepdims=0, select_last_index=1)[0].tolist() == [2, 2]


def test_top_k_of_unsigned_ties(compute: Compute) -> None:
    values, places = compute("TopK", [np.array([5, 0, 5, 7], np.uint8), [3]], n_outputs=2)
    assert (values.tolist(), places.tolist()) == ([7, 5, 5], [3, 0, 2])
    values, places = compute("TopK", [np.array([5, 0, 5, 7], np.uint8), [3]], n_outputs=2, largest=0)
    assert (values.tolist(), places.tolist()) == ([0, 5, 5], [1, 0, 2])


def test_range_ends_before_its_limit_and_has_a_ceiling(compute: Compute) -> None:
    assert compute("Range", [np.int32(0), np.int32(10), np.int32(4)])[0].tolist() == [0, 4, 8]
    assert compute("Range", [np.int32(3), np.int32(0), np.int32(1)])[0].tolist() == []
    with pytest.raises(KernelShapeError, match="cannot be allocated"):
        compute("Range", [np.int64(0), np.int64(2**62), np.int64(1)])
    with pytest.raises(KernelShapeError, match="delta of 0"):
        compute("Range", [np.int64(0), np.int64(1), np.int64(0)])


def test_one_hot_ceiling(compute: Compute) -> None:
    with pytest.raises(KernelShapeError, match="classes are more than the limit"):
        compute("OneHot", [np.zeros(4, np.int64), np.int64(2**40), np.array([0, 1], np.float32)])


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-3, -1, 0, 2, 9])
def test_trilu(upper: int, k: int, compute: Compute) -> None:
    x = np.arange(1, 25).reshape(2, 3, 4)
    want = np.triu(x, k) if upper else np.tril(x, k)
    np.testing.assert_array_equal(compute("Trilu", [x, np.array(k)], upper=upper)[0], want)


@pytest.mark.parametrize(
    "equation", ["ij,jk->ik", "bij,bjk->bik", "ii->i", "ij->", "i,j", "...ij,...jk->...ik"]
)
def test_einsum(equation: str, compute: Compute, rng: np.random.Generator) -> None:
    shapes = {"ij,jk->ik": [(2, 3), (3, 4)], "ii->i": [(3, 3)], "ij->": [(2, 3)], "i,j": [(2,), (3,)]}
    arrays = [rng.standard_normal(s) for s in shapes.get(equation, [(5, 2, 3), (5, 3, 4)])]
    np.testing.assert_allclose(compute("Einsum", arrays, equation=equation)[0], np.einsum(equation, *arrays))


@pytest.mark.parametrize("equation", ["ij,jk->ik", "i->i", "ij,kl->zz"])
def test_einsum_refusals(equation: str, compute: Compute) -> None:
    with pytest.raises(KernelShapeError, match="Einsum"):
        compute("Einsum", [np.ones((2, 3)), np.ones((4, 4))], equation=equation)


@pytest.mark.parametrize("a_shape", [(3,), (2, 3), (4, 2, 3), (5, 4, 2, 3), (1, 4, 2, 3)])
@pytest.mark.parametrize("b_shape", [(3,), (3, 2), (4, 3, 2), (1, 3, 2)])
def test_matmul_ranks(a_shape: Any, b_shape: Any, compute: Compute, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal(a_shape), rng.standard_normal(b_shape)
    np.testing.assert_allclose(compute("MatMul", [a, b])[0], a @ b)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 1.0), (1.0, -2.0), (3.0, 0.0)])
@pytest.mark.parametrize("c_shape", [None, (), (5,), (4, 1), (1, 5), (4, 5)])
def test_gemm(
    trans_a: int,
    trans_b: int,
    alpha: float,
    beta: float,
    c_shape: Any,
    compute: Compute,
    rng: np.random.Generator,
) -> None:
    a = rng.standard_normal((3, 4) if trans_a else (4, 3)).astype(np.float32)
    b = rng.standard_normal((5, 3) if trans_b else (3, 5)).astype(np.float32)
    inputs = [a, b] if c_shape is None else [a, b, rng.standard_normal(c_shape).astype(np.float32)]
    (got,) = compute("Gemm", inputs, transA=trans_a, transB=trans_b, alpha=alpha, beta=beta)
    want = alpha * (a.T if trans_a else a) @ (b.T if trans_b else b)
    if c_shape is not None:
        want = want + beta * inputs[2]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_products_over_nothing_are_zero(compute: Compute) -> None:
    a, b = np.ones((2, 0), np.float32), np.ones((0, 3), np.float32)
    for op in ("MatMul", "Gemm"):
        (got,) = compute(op, [a, b])
        assert got.tolist() == [[0, 0, 0], [0, 0, 0]]
