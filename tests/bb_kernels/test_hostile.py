"""Models come over a network: whatever a node says, prepare answers with a kernel or with a KernelError."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bb_kernels import KernelError, KernelShapeError, Prepared, TensorSpec, prepare, supported_ops
from bb_kernels.registry import find

F32, I64 = np.dtype(np.float32), np.dtype(np.int64)

ints = st.sampled_from([-(2**63), -(2**31), -3, -2, -1, 0, 1, 2, 3, 5, 2**20, 2**31, 2**62, 2**63 - 1])
floats = st.sampled_from([-np.inf, -1e30, -1.0, 0.0, 0.5, 2.0, 1e30, np.inf, np.nan])
values = st.one_of(
    ints,
    floats,
    st.lists(ints, max_size=6),
    st.lists(floats, max_size=4),
    st.sampled_from([b"", b"\xff", "nearest", "linear", "cubic", "reflect", "SAME_UPPER", "ij,jk->ik", None]),
    st.builds(np.zeros, st.just((1,))),
)
dimensions = st.lists(st.sampled_from([0, 1, 2, 3, 7]), max_size=5).map(tuple)
dtypes = st.sampled_from([np.dtype(t) for t in ("f4", "f4", "f4", "f2", "i8", "i4", "u1", "?", "c8", "U1")])


@st.composite
def tensors(draw: Any) -> tuple[TensorSpec | None, Any]:
    """A spec, and for some the value that is known when preparing."""
    if draw(st.integers(0, 9)) == 0:
        return None, None
    if draw(st.booleans()):
        value = np.array(draw(st.lists(ints, max_size=5)), np.int64)
        return TensorSpec(value.dtype, value.shape), value
    if draw(st.integers(0, 3)) == 0:
        value = np.array(draw(st.lists(floats, max_size=5)), np.float32)
        return TensorSpec(value.dtype, value.shape), value
    return TensorSpec(draw(dtypes), draw(dimensions)), None


@pytest.mark.parametrize("op", sorted(supported_ops()))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_prepare_answers(op: str, data: Any) -> None:
    version = data.draw(st.sampled_from([7, 9, 11, 13, 18, 21, 24, 28]))
    entry = find(op, version)
    names = sorted(entry.attributes(version)) if entry else ["axis"]
    attrs = data.draw(st.dictionaries(st.sampled_from(names), values, max_size=4)) if names else {}
    width = len(entry.signature) if entry else 2
    chosen = data.draw(st.lists(tensors(), min_size=max(0, width - 2), max_size=width + 1))
    inputs, constants = [spec for spec, _ in chosen], [value for _, value in chosen]
    with np.errstate(all="ignore"):
        try:
            prepared = prepare(
                op, version, attrs, inputs, constants, data.draw(st.sampled_from([1, 1, 2, 3]))
            )
        except KernelError:
            return
    assert isinstance(prepared, Prepared)
    for spec in prepared.outputs + prepared.scratch:
        assert all(isinstance(d, int) and d >= 0 for d in spec.shape)


@pytest.mark.parametrize(
    ("op", "attrs", "inputs"),
    [
        ("MaxPool", {"kernel_shape": [2**30], "pads": [2**29, 2**29]}, [(1, 1, 3)]),
        ("AveragePool", {"kernel_shape": [3], "pads": [2**31, 2**31]}, [(1, 1, 3)]),
        ("Pad", {"mode": "reflect"}, [(3,), np.array([2**40, 0])]),
        ("Resize", {"mode": "nearest"}, [(1, 1), None, None, np.array([2**40, 1])]),
        ("Resize", {"mode": "linear"}, [(1, 2**20), None, None, np.array([1, 2**21])]),
        ("Range", {}, [np.int64(0), np.int64(2**60), np.int64(1)]),
        ("OneHot", {}, [np.zeros(3, np.int64), np.int64(2**40), np.zeros(2, np.float32)]),
        ("HannWindow", {}, [np.array(2**40)]),
        ("LRN", {"size": 2**40}, [(1, 3, 2)]),
    ],
)
def test_numbers_in_a_node_do_not_become_memory(op: str, attrs: dict[str, Any], inputs: list[Any]) -> None:
    specs = [TensorSpec(F32, i) if isinstance(i, tuple) else None if i is None else _spec(i) for i in inputs]
    known = [None if isinstance(i, tuple) or i is None else np.asarray(i) for i in inputs]
    tracemalloc.start()
    try:
        with suppress(KernelError):
            prepare(op, 21, attrs, specs, known)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 24


def _spec(value: Any) -> TensorSpec:
    array = np.asarray(value)
    return TensorSpec(array.dtype, array.shape)


def test_huge_results_are_announced_not_made() -> None:
    """The caller has the budget: it reads the size of a result before there is one."""
    shape = np.array([2**40, 4])
    prepared = prepare("Expand", 21, {}, [TensorSpec(F32, (1, 4)), _spec(shape)], [None, shape])
    assert prepared.outputs[0].nbytes == 2**44


def test_long_windows_are_refused() -> None:
    with pytest.raises(KernelShapeError, match="window"):
        prepare(
            "MaxPool", 21, {"kernel_shape": [2**30], "pads": [2**29, 2**29]}, [TensorSpec(F32, (1, 1, 3))]
        )
