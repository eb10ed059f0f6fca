"""Refusals, dynamic nodes, half precision and the record that prepare returns."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from itertools import pairwise

import numpy as np
import pytest

import bb_kernels
from bb_kernels import (
    KernelAttributeError,
    KernelError,
    KernelShapeError,
    TensorSpec,
    UnsupportedDtypeError,
    UnsupportedOpError,
    evaluate,
    prepare,
    supported,
    supported_ops,
)
from bb_kernels.catalog import TOPICS

F32, F16, I64 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.int64)


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(F32, shape)


def test_spec_counts_bytes() -> None:
    assert f32(2, 3).nbytes == 24
    assert f32().nbytes == 4
    assert f32(0, 7).size == 0


def test_unknown_operator_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedOpError, match="NoSuchOp at opset 17") as caught:
        prepare("NoSuchOp", 17, {}, [f32(1)])
    assert (caught.value.op_type, caught.value.version) == ("NoSuchOp", 17)
    assert isinstance(caught.value, KernelError)


@pytest.mark.parametrize("version", [bb_kernels.OLDEST_OPSET - 1, bb_kernels.NEWEST_OPSET + 1])
def test_opsets_outside_of_the_range_are_refused(version: int) -> None:
    assert not supported("Add", version)
    with pytest.raises(UnsupportedOpError, match=r"7\.\.28"):
        prepare("Add", version, {}, [f32(1), f32(1)])


def test_operator_is_refused_before_it_existed() -> None:
    assert not supported("LayerNormalization", 16)
    assert supported("LayerNormalization", 17)


def test_other_domains_are_refused() -> None:
    assert supported("Add", 17, "ai.onnx")
    assert not supported("Add", 17, "com.example")
    assert not supported_ops("com.example")
    with pytest.raises(UnsupportedOpError, match=r"com\.example\.Add"):
        prepare("Add", 17, {}, [f32(1), f32(1)], domain="com.example")


def test_ranges_are_ascending_and_apart() -> None:
    for op, ranges in supported_ops().items():
        assert list(ranges) == sorted(ranges), op
        for (_, until), (since, _) in pairwise(ranges):
            assert until < since, op


@pytest.mark.parametrize(
    ("dtype", "op"), [(np.int32, "Exp"), (np.bool_, "Add"), (np.complex64, "Add"), (np.float32, "And")]
)
def test_element_types_are_checked(dtype: type, op: str) -> None:
    spec = TensorSpec(np.dtype(dtype), (2,))
    inputs = [spec] if op == "Exp" else [spec, spec]
    with pytest.raises(UnsupportedDtypeError, match=f"{op}: input 0"):
        prepare(op, 17, {}, inputs)


def test_element_types_must_agree() -> None:
    with pytest.raises(UnsupportedDtypeError, match="input 1 is float16"):
        prepare("Add", 17, {}, [f32(2), TensorSpec(F16, (2,))])


@pytest.mark.parametrize("inputs", [[], [f32(1)], [f32(1), None], [f32(1)] * 3])
def test_number_of_inputs_is_checked(inputs: list[TensorSpec | None]) -> None:
    with pytest.raises(KernelShapeError, match="Add"):
        prepare("Add", 17, {}, inputs)


def test_number_of_outputs_is_checked() -> None:
    with pytest.raises(KernelShapeError, match="expected 1 output, got 2"):
        prepare("Add", 17, {}, [f32(1), f32(1)], n_outputs=2)


def test_unknown_attributes_are_refused() -> None:
    with pytest.raises(KernelAttributeError, match="fast"):
        prepare("Relu", 17, {"fast": 1}, [f32(1)])


def test_attribute_of_a_later_version_is_refused() -> None:
    assert prepare("Shape", 15, {"start": 1}, [f32(2, 3)]).values[0].tolist() == [3]
    with pytest.raises(KernelAttributeError, match="start is not known at opset 14"):
        prepare("Shape", 14, {"start": 1}, [f32(2, 3)])


@pytest.mark.parametrize("value", ["x", None, [1]])
def test_attribute_types_are_checked(value: object) -> None:
    with pytest.raises(KernelAttributeError, match="axis"):
        prepare("Softmax", 17, {"axis": value}, [f32(2, 3)])


def test_shapes_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(KernelShapeError, match=r"\(2, 3\), \(4,\)"):
        prepare("Mul", 17, {}, [f32(2, 3), f32(4)])


def test_constants_must_fit_their_specs() -> None:
    with pytest.raises(KernelShapeError, match="constant of input 1"):
        prepare("Reshape", 17, {}, [f32(4), TensorSpec(I64, (1,))], [None, np.array([2, 2])])


def test_strings_as_bytes_or_text() -> None:
    for mode in (b"edge", "edge"):
        pads = np.array([1, 1], I64)
        prepared = prepare("Pad", 17, {"mode": mode}, [f32(2), TensorSpec(I64, (2,))], [None, pads])
        assert prepared.outputs == (f32(4),)


def test_run_of_a_plain_operator_is_the_ufunc() -> None:
    assert prepare("Add", 17, {}, [f32(3), f32(3)]).run is np.add
    assert prepare("Exp", 17, {}, [f32(3)]).run is np.exp


def test_inplace_only_where_shape_and_type_agree() -> None:
    assert prepare("Add", 17, {}, [f32(2, 3), f32(3)]).inplace == (0,)
    assert prepare("Add", 17, {}, [f32(3), f32(2, 3)]).inplace == (1,)
    assert prepare("Less", 17, {}, [f32(3), f32(3)]).inplace == ()
    assert prepare("Max", 17, {}, [f32(3), f32(3), f32(3)]).inplace == (0, 1)


def test_shape_unknown_until_run() -> None:
    prepared = prepare("Reshape", 17, {}, [f32(6), TensorSpec(I64, (2,))])
    assert prepared.dynamic
    assert prepared.outputs == ()
    x = np.arange(6, dtype=F32)
    assert prepared.run(x, np.array([2, 3]))[0].shape == (2, 3)  # type: ignore[index]
    assert prepared.run(x, np.array([3, -1]))[0].shape == (3, 2)  # type: ignore[index]
    with pytest.raises(KernelShapeError):
        prepared.run(x, np.array([4, 4]))


def test_alias_refuses_to_copy() -> None:
    prepared = prepare("Reshape", 17, {}, [f32(2, 3), TensorSpec(I64, (1,))], [None, np.array([6], I64)])
    assert prepared.alias is not None
    x = np.arange(6, dtype=F32)
    view = prepared.alias(x.reshape(2, 3))
    view[0] = 9
    assert x[0] == 9
    with pytest.raises(KernelShapeError, match="no view"):
        prepared.alias(x.reshape(3, 2).T)


def test_half_precision_is_computed_in_float32() -> None:
    # In float16 the sum 4096·1 would stick at 2048 and overflow as 65536·2.
    x = np.full((1, 70000), 1, np.float16)
    prepared = prepare("ReduceMean", 17, {"axes": [1]}, [TensorSpec(F16, x.shape)])
    (mean,) = evaluate(prepared, [x])
    assert mean.dtype == F16
    assert mean.item() == 1.0


def test_every_output_and_scratch_is_float16_or_named() -> None:
    prepared = prepare("Softmax", 17, {}, [TensorSpec(F16, (2, 3))])
    assert prepared.outputs == (TensorSpec(F16, (2, 3)),)
    assert {s.dtype for s in prepared.scratch} == {F32}


def test_omitted_output() -> None:
    prepared = prepare(
        "TopK", 17, {}, [f32(4), TensorSpec(I64, (1,))], [None, np.array([2], I64)], n_outputs=2
    )
    places = np.empty(2, np.int64)
    prepared.run(np.array([3, 9, 1, 9], F32), np.array([2], I64), None, places)
    assert places.tolist() == [1, 3]


@pytest.mark.parametrize("topic", sorted(TOPICS))
def test_topics_hold_the_operators_that_the_catalog_says(topic: str) -> None:
    module = import_module(f"bb_kernels.{topic}")
    assert module.__doc__
    lines = "import bb_kernels.registry as r, importlib; importlib.import_module('bb_kernels.' + {0!r}); "
    lines += "print(*sorted(op for op, rows in r._TABLE.items()))"
    # A fresh interpreter: what one topic registers besides what the topics it imports do.
    alone = subprocess.run(
        [sys.executable, "-c", lines.format(topic)],
        check=True,
        capture_output=True,
        text=True,
        env=_environment(),
    )
    registered = set(alone.stdout.split())
    assert set(TOPICS[topic].split()) <= registered
    assert registered <= set(" ".join(TOPICS.values()).split())


def test_every_operator_is_in_one_topic() -> None:
    named = " ".join(TOPICS.values()).split()
    assert len(named) == len(set(named))
    assert set(named) == set(supported_ops())


def test_importing_the_package_imports_no_topic() -> None:
    code = "import sys, bb_kernels; print(*(m for m in sys.modules if m.startswith('bb_kernels.')))"
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=_environment()
    )
    loaded = {name.partition(".")[2] for name in run.stdout.split()}
    assert not loaded & set(TOPICS)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
