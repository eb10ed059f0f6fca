"""ONNX's own test cases, by an explicit rule, and how their results are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from bb_edge.backends import NumPyBackend  # noqa: E402
from bb_host.onnx_io.model import NEWEST_OPSET, OLDEST_OPSET  # noqa: E402

T = onnx.TensorProto
DECLARED = frozenset(
    {T.FLOAT, T.DOUBLE, T.FLOAT16, T.INT8, T.INT16, T.INT32, T.INT64}
    | {T.UINT8, T.UINT16, T.UINT32, T.UINT64, T.BOOL}
)
"""The element types that the runtime declares."""

TWO_HALF_ULPS = 2.0**-9
"""float16 results may be two units in the last place off: the reference rounds in between, kernels do not."""


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _nodes(attribute.g)


def _runs(op_type: str, domain: str, version: int, functions: set[tuple[str, str]]) -> bool:
    if (domain, op_type) in functions:
        return True
    if domain not in ("", "ai.onnx"):
        return False
    if version < OLDEST_OPSET:  # read as the oldest where nothing has changed
        if not onnx.defs.has(op_type, OLDEST_OPSET):
            return False
        if onnx.defs.get_schema(op_type, OLDEST_OPSET).since_version > version:
            return False
        version = OLDEST_OPSET
    return NumPyBackend().supports(op_type, version)


def declared(model: Any) -> bool:
    """Whether a model must run: every operator, in bodies and functions too, and every input and output is
    declared.
    """
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if version > NEWEST_OPSET:
        return False
    functions = {(f.domain, f.name) for f in model.functions}
    bodies = [node for f in model.functions for node in f.node]
    if not all(_runs(n.op_type, n.domain, version, functions) for n in (*_nodes(model.graph), *bodies)):
        return False
    types = [v.type for v in (*model.graph.input, *model.graph.output)]
    types += [a.t for n in _nodes(model.graph) for a in n.attribute if a.type == onnx.AttributeProto.TENSOR]
    for kind in types:
        if isinstance(kind, onnx.TensorProto):
            if kind.data_type not in DECLARED:
                return False
        elif not kind.HasField("tensor_type") or kind.tensor_type.elem_type not in DECLARED:
            return False
    return True


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def compare(results: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float) -> None:
    """Shapes and dtypes exactly, values within the case's own tolerance."""
    assert len(results) == len(expected)
    for got, want in zip(results, map(_array, expected), strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        loose = max(rtol, TWO_HALF_ULPS) if want.dtype == np.float16 else rtol
        np.testing.assert_allclose(got, want, rtol=loose, atol=atol)


@pytest.fixture
def check() -> Callable[..., None]:
    """check(prepared, inputs, expected, rtol, atol): twice, since the second run finds the plan made."""

    def run(
        prepared: Any,
        inputs: Sequence[Any],
        expected: Sequence[Any],
        rtol: float,
        atol: float,
        times: int = 2,
    ) -> None:
        arrays = [_array(value) for value in inputs]
        for _ in range(times):
            compare(prepared.run(arrays), expected, rtol, atol)

    return run


@pytest.fixture
def is_declared() -> Callable[[Any], bool]:
    return declared
