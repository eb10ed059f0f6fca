"""ONNX's node tests of operators that are functions, in their expanded form: small graphs of many operators.

Node by node, every value known, so that shape arithmetic, casts and data work together. A case takes part
when ``supported`` knows its operators and its values are tensors of element types in ``DATA_TYPES``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_cases import node_cases

import bb_kernels
from bb_kernels.unary import DATA_TYPES

onnx = pytest.importorskip("onnx")


def _cases() -> list[Any]:
    return [case for case in node_cases() if len(case.model.graph.node) > 1 and _takes_part(case)]


def _takes_part(case: Any) -> bool:
    graph = case.model.graph
    versions = _versions(case.model)
    return all(
        v.type.HasField("tensor_type") and v.type.tensor_type.elem_type in DATA_TYPES
        for v in (*graph.input, *graph.output)
    ) and all(bb_kernels.supported(n.op_type, versions[n.domain], n.domain) for n in graph.node)


def _versions(model: Any) -> dict[str, int]:
    return {o.domain: max(o.version, bb_kernels.OLDEST_OPSET) for o in model.opset_import}


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _attribute(attribute: Any) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _evaluate(model: Any, values: dict[str, Any]) -> list[Any]:
    versions = _versions(model)
    values.update({t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer})
    for node in model.graph.node:
        inputs = [values[name] if name else None for name in node.input]
        specs = [None if a is None else bb_kernels.TensorSpec(a.dtype, a.shape) for a in inputs]
        prepared = bb_kernels.prepare(
            node.op_type,
            versions[node.domain],
            {a.name: _attribute(a) for a in node.attribute},
            specs,
            inputs,
            max(1, len(node.output)),
            node.domain,
        )
        while inputs and inputs[-1] is None:
            inputs.pop()
        with np.errstate(all="ignore"):
            outputs = bb_kernels.evaluate(prepared, inputs)
        values.update(zip(node.output, outputs, strict=False))
    return [values[output.name] for output in model.graph.output]


CASES = _cases()


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_function_body(case: Any) -> None:
    for inputs, expected in case.data_sets:
        names = [i.name for i in case.model.graph.input]
        results = _evaluate(case.model, {n: _array(v) for n, v in zip(names, inputs, strict=True)})
        for want, got in zip(map(_array, expected), results, strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            # A chain in float16 rounds at every step, where ours rounds less.
            rtol = max(case.rtol, 2.0**-8) if want.dtype == np.float16 else case.rtol
            np.testing.assert_allclose(got, want, rtol=rtol, atol=case.atol)
