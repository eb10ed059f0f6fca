"""ONNX's own single-node backend tests, run directly through prepare and run.

A case takes part unless a rule below leaves it out: its model is not one node; it uses an operator, domain or
opset that ``supported`` denies; or one of its values is not a tensor of an element type in ``DATA_TYPES``.
Nothing is left out by name, but for the cases of onnx 1.16 whose expected results later versions correct.
"""

from __future__ import annotations

import io
import pickle
import re
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
from compiled_programs import compiled_once
from onnx_cases import node_cases

import bb_kernels
from bb_kernels.registry import find
from bb_kernels.unary import DATA_TYPES

try:
    import onnx
except ImportError:  # then the cases come from elsewhere, or all are skipped
    onnx = None

WRONG = re.compile(
    r"test_qlinearmatmul_.*_int8_.*|test_averagepool_3d_dilations_large_.*pad_is_1_ceil_mode_is_True"
)
"""Of onnx 1.16: later versions of the package expect other results of the same cases."""

# What the runtime does for a whole plan: floating point warnings are not errors of a kernel.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def _tensor_types(values: Any) -> bool:
    for value in values:
        if not value.type.HasField("tensor_type"):
            return False
        if value.type.tensor_type.elem_type not in DATA_TYPES:
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
    if onnx.__version__.startswith("1.16.") and WRONG.fullmatch(case.name):
        return "other results are expected than by later versions of the package"
    return None


def _attribute(attribute: Any) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return value


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


class Case(NamedTuple):
    """One case in plain values, for machines without the onnx package (tests/aids/compiled_programs.py)."""

    name: str
    op_type: str
    domain: str
    version: int
    attributes: dict[str, Any]
    outputs: tuple[str, ...]
    data: list[tuple[list[Any], list[Any]]]  # inputs in the node's order, absent ones None; expected
    rtol: float
    atol: float


def _plain(case: Any) -> tuple[Any, ...]:
    node = case.model.graph.node[0]
    version = _version(node, next(o.version for o in case.model.opset_import if o.domain == node.domain))
    names = [i.name for i in case.model.graph.input]
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in case.model.graph.initializer}
    data = []
    for inputs, expected in case.data_sets:
        feed = {**weights, **{n: _array(v) for n, v in zip(names, inputs, strict=False)}}
        arrays = [feed[n] if n else None for n in node.input]
        while arrays and arrays[-1] is None:
            arrays.pop()
        data.append((arrays, [_array(v) for v in expected]))
    attributes = {a.name: _attribute(a) for a in node.attribute}
    outputs = tuple(node.output)
    head = (case.name, node.op_type, node.domain, version, attributes, outputs)
    return (*head, data, case.rtol, case.atol)


def _collected() -> dict[str, bytes]:
    cases = node_cases()
    left_out = Counter(reason for case in cases if (reason := _left_out(case)) is not None)
    selected = [_plain(case) for case in cases if _left_out(case) is None]
    return {"cases": pickle.dumps((len(cases), dict(left_out), selected))}


class _Reader(pickle.Unpickler):
    """NumPy 1 has under numpy.core what NumPy 2 writes as of numpy._core."""

    def find_class(self, module: str, name: str) -> Any:
        old = np.lib.NumpyVersion(np.__version__) < "2.0.0"
        return super().find_class(module.replace("numpy._core", "numpy.core") if old else module, name)


ALL, LEFT_OUT, _SELECTED = _Reader(io.BytesIO(compiled_once("onnx-node-cases", _collected)["cases"])).load()
SELECTED = [Case(*values) for values in _SELECTED]


def test_count(record_property: Any, capsys: pytest.CaptureFixture[str]) -> None:
    record_property("selected", len(SELECTED))
    with capsys.disabled():
        print(f"\nONNX backend node tests: {len(SELECTED)} of {ALL} selected; left out: {LEFT_OUT}")
    assert len(SELECTED) >= 800


def _strided(array: Any) -> Any:
    """A place with gaps and reversed steps for an array: kernels must not assume contiguous inputs."""
    wide = np.full((*array.shape[:-1], 2 * array.shape[-1]) if array.ndim else (), 1, array.dtype)
    return wide[..., ::-2] if array.ndim else wide


#: constant: all inputs are known when preparing. variable: none is, so that shape-like inputs make the node
#: dynamic. bound: through bind, twice. strided: inputs have gaps and come late. inplace: output on an input.
MODES = ("constant", "variable", "bound", "strided", "inplace")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", SELECTED, ids=[case.name for case in SELECTED])
def test_node(case: Case, mode: str) -> None:
    for arrays, expected in case.data:
        specs = [None if a is None else bb_kernels.TensorSpec(a.dtype, a.shape) for a in arrays]
        # Strided inputs are filled after binding: only what shapes depend on may be known before.
        needed = find(case.op_type, case.version).needs
        told = {"variable": (), "strided": needed}.get(mode, range(len(arrays)))
        known = [a if i in told else None for i, a in enumerate(arrays)]
        prepared = bb_kernels.prepare(
            case.op_type,
            case.version,
            case.attributes,
            specs,
            known,
            n_outputs=len(case.outputs),
            domain=case.domain,
        )
        for results in _runs(prepared, arrays, case, mode):
            for want, got in zip(expected, results, strict=True):
                assert got.dtype == want.dtype
                assert got.shape == want.shape
                np.testing.assert_allclose(got, want, rtol=case.rtol, atol=case.atol)


def _fill(arrays: list[Any], byte: int) -> None:
    """A pattern: a kernel must not rely on zeroed outputs or scratch."""
    for a in arrays:
        a.reshape(-1).view(np.uint8).fill(byte if a.dtype != np.bool_ else byte & 1)


def _runs(prepared: Any, arrays: list[Any], case: Case, mode: str) -> Any:
    if prepared.dynamic:
        yield [r for r, name in zip(prepared.run(*arrays), case.outputs, strict=True) if name]
        return
    for spec in prepared.outputs + prepared.scratch:
        assert isinstance(spec, bb_kernels.TensorSpec)
    full = [np.empty(s.shape, s.dtype) for s in (*prepared.outputs, *prepared.scratch)]
    _fill(full, 0x5A)
    outputs = [a if name else None for a, name in zip(full, case.outputs, strict=False)]
    scratch = full[len(prepared.outputs) :]
    before = [None if a is None else a.copy() for a in arrays]
    if mode == "inplace":
        for i in prepared.inplace:
            own = arrays[i].copy()
            placed = [own if j == i else a for j, a in enumerate(arrays)]
            _fill(scratch, 0x5A)
            prepared.bind(*placed, own, *outputs[1:], *scratch)()
            yield [own, *(a for a in outputs[1:] if a is not None)]
            if "seed" in case.attributes:
                return
        if prepared.alias is not None:
            assert len(prepared.outputs) == 1
            view = prepared.alias(arrays[0])
            assert view.size == 0 or np.may_share_memory(view, arrays[0])
            yield [view]
        return
    if mode == "strided":
        places = [None if a is None else _strided(a) for a in arrays]
        step = prepared.bind(*places, *outputs, *scratch)
        for place, a in zip(places, arrays, strict=True):
            if place is not None:
                np.copyto(place, a)
        arrays = places
        step()
    elif mode == "bound":
        step = prepared.bind(*arrays, *outputs, *scratch)
        step()
        if "seed" not in case.attributes:  # drawn numbers go on; everything else repeats
            _fill(full, 0x33)
            step()
    else:
        prepared.run(*arrays, *outputs, *scratch)
    for a, b in zip(arrays, before, strict=True):
        if a is not None:
            np.testing.assert_array_equal(a, b, err_msg="an input was changed")
    for value, out in zip(prepared.values, outputs, strict=False):
        np.testing.assert_array_equal(value, out)
    yield [a for a in outputs if a is not None]
