"""ONNX's own single-node backend tests, run directly through prepare and run.

A case takes part unless a rule below leaves it out: its model is not one node; it uses an operator, domain or
opset that ``supported`` denies; or one of its values is not a tensor of an element type in ``ALL``. Nothing
is left out by name.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest

import bb_kernels
from bb_kernels.spec import ALL

onnx = pytest.importorskip("onnx")

# What the runtime does for a whole plan: floating point warnings are not errors of a kernel.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def _cases() -> list[Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(collect_testcases(None))


def _tensor_types(values: Any) -> bool:
    for value in values:
        if not value.type.HasField("tensor_type"):
            return False
        try:
            dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        except (KeyError, TypeError):
            return False
        if dtype not in ALL:
            return False
    return True


def _version(node: Any, version: int) -> int:
    """Cases of operators that never changed since the first opsets run at the oldest opset covered."""
    oldest = bb_kernels.OLDEST_OPSET
    if not 0 < version < oldest or not onnx.defs.has(node.op_type, oldest, node.domain):
        return version
    return (
        oldest
        if onnx.defs.get_schema(node.op_type, oldest, node.domain).since_version <= version
        else version
    )


def _left_out(case: Any) -> str | None:
    model = case.model
    if len(model.graph.node) != 1:
        return "not one node"
    node = model.graph.node[0]
    versions = {o.domain: o.version for o in model.opset_import}
    version = _version(node, versions.get(node.domain, 0))
    if node.domain not in ("", "ai.onnx"):
        return "other domain"
    if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
        return "subgraph"
    if not bb_kernels.supported(node.op_type, version, node.domain):
        return f"no kernel: {node.op_type}"
    if not _tensor_types([*model.graph.input, *model.graph.output]):
        return "element type"
    return None


def _attribute(attribute: Any) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return value


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


CASES = _cases()
LEFT_OUT = Counter(reason for case in CASES if (reason := _left_out(case)) is not None)
SELECTED = [case for case in CASES if _left_out(case) is None]


def test_count(record_property: Any, capsys: pytest.CaptureFixture[str]) -> None:
    record_property("selected", len(SELECTED))
    with capsys.disabled():
        print(
            f"\nONNX backend node tests: {len(SELECTED)} of {len(CASES)} selected; left out: {dict(LEFT_OUT)}"
        )
    assert len(SELECTED) >= 300


@pytest.mark.parametrize("mode", ["constant", "variable", "bound"])
@pytest.mark.parametrize("case", SELECTED, ids=[case.name for case in SELECTED])
def test_node(case: Any, mode: str) -> None:
    """With shape-like inputs known when preparing, with nothing known (dynamic where needed), and bound."""
    node = case.model.graph.node[0]
    version = _version(node, next(o.version for o in case.model.opset_import if o.domain == node.domain))
    attrs = {a.name: _attribute(a) for a in node.attribute}
    names = [i.name for i in case.model.graph.input]
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in case.model.graph.initializer}
    for inputs, expected in case.data_sets:
        feed = {**weights, **{n: _array(v) for n, v in zip(names, inputs, strict=False)}}
        arrays = [feed[n] if n else None for n in node.input]
        while arrays and arrays[-1] is None:
            arrays.pop()
        specs = [None if a is None else bb_kernels.TensorSpec(a.dtype, a.shape) for a in arrays]
        known = [None if mode == "variable" else a for a in arrays]
        prepared = bb_kernels.prepare(
            node.op_type, version, attrs, specs, known, n_outputs=len(node.output), domain=node.domain
        )
        results = _run(prepared, arrays, node, bound=mode == "bound")
        for want, got in zip(expected, results, strict=True):
            want = _array(want)
            assert got.dtype == want.dtype
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=case.rtol, atol=case.atol)


def _run(prepared: Any, arrays: list[Any], node: Any, bound: bool) -> list[Any]:
    if prepared.dynamic:
        return [r for r, name in zip(prepared.run(*arrays), node.output, strict=True) if name]
    # Filled with a pattern: a kernel must not rely on zeroed outputs or scratch.
    full = [np.empty(s.shape, s.dtype) for s in (*prepared.outputs, *prepared.scratch)]
    for a in full:
        a.view(np.uint8).fill(0x5A) if a.ndim else a.fill(True)
    outputs = [a if name else None for a, name in zip(full, node.output, strict=False)]
    scratch = full[len(prepared.outputs) :]
    before = [None if a is None else a.copy() for a in arrays]
    if bound:
        step = prepared.bind(*arrays, *outputs, *scratch)
        step()
        if all(a.name != "seed" for a in node.attribute):  # drawn numbers go on; everything else repeats
            for a in full:
                a.view(np.uint8).fill(0x33) if a.ndim else a.fill(False)
            step()
    else:
        prepared.run(*arrays, *outputs, *scratch)
    for a, b in zip(arrays, before, strict=True):
        if a is not None:
            np.testing.assert_array_equal(a, b, err_msg="an input was changed")
    if prepared.values:
        for value, out in zip(prepared.values, outputs, strict=True):
            np.testing.assert_array_equal(value, out)
    return [a for a in outputs if a is not None]
