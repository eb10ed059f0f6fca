"""The interface itself: inputs in every form, devices, single nodes, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx.parser")

import onnx_backend as backend  # noqa: E402

from bb_edge.roles.errors import BackendRunError  # noqa: E402
from bb_host.errors import InvalidModelError, OnnxModelError, UnsupportedOperatorError, UnsupportedValueError  # noqa: E402


def _model(text: str, opset: int = 17) -> Any:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')


SCALE = "g (float[N, 2] x, float[2] s) => (float[N, 2] y) { y = Mul (x, s) }"


@pytest.mark.parametrize(
    "inputs",
    [
        [np.ones((3, 2), np.float32), np.array([2, 3], np.float32)],
        {"s": np.array([2, 3], np.float32), "x": np.ones((3, 2), np.float32)},
        [[[1, 1]] * 3, [2, 3]],
    ],
    ids=["sequence", "mapping", "lists take the declared dtype"],
)
def test_inputs(inputs: Any) -> None:
    (y,) = backend.run_model(_model(SCALE), inputs)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, [[2, 3]] * 3)


def test_a_lone_array_is_the_only_input() -> None:
    (y,) = backend.run_model(_model("g (float[2] x) => (float[2] y) { y = Neg (x) }"), np.ones(2, np.float32))
    np.testing.assert_array_equal(y, [-1, -1])


@pytest.mark.parametrize(
    "inputs",
    [
        [np.ones((3, 2), np.float32)],
        {"x": np.ones((3, 2), np.float32)},
        [np.ones((3, 2), np.float32), np.ones(2, np.float64)],
        [np.ones((3, 2), np.float32), np.ones(3, np.float32)],
    ],
    ids=["too few", "missing name", "other dtype", "other shape"],
)
def test_inputs_that_do_not_fit(inputs: Any) -> None:
    with pytest.raises(BackendRunError):
        backend.run_model(_model(SCALE), inputs)


def test_one_prepared_model_takes_several_shapes() -> None:
    prepared = backend.prepare(_model(SCALE))
    for rows in (1, 4, 1):
        (y,) = prepared.run([np.ones((rows, 2), np.float32), np.ones(2, np.float32)])
        assert y.shape == (rows, 2)


def test_a_node_alone() -> None:
    node = onnx.helper.make_node("Gemm", ["a", "b", ""], ["y"], transB=1)
    a, b = np.ones((2, 3), np.float32), np.ones((4, 3), np.float32)
    (y,) = backend.run_node(node, [a, b])
    np.testing.assert_array_equal(y, np.full((2, 4), 3))
    (y,) = backend.run_node(node, {"a": a, "b": b}, opset_version=11)
    assert y.shape == (2, 4)
    with pytest.raises(BackendRunError):
        backend.run_node(node, [a])


def test_devices() -> None:
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA")
    with pytest.raises(OnnxModelError):
        backend.prepare(_model(SCALE), "CUDA")


def test_functions_of_the_model_are_inlined() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[2] x) => (float[2] y) { y = mine.Twice (x) }
        <domain: "mine", opset_import: ["" : 17]> Twice (a) => (b) { b = Add (a, a) }"""
    )
    (y,) = backend.run_model(model, [np.array([1, 2], np.float32)])
    np.testing.assert_array_equal(y, [2, 4])


def test_operators_that_onnx_defines_by_others_run_by_their_definition() -> None:
    """AffineGrid has no kernel; ONNX defines it by a function of some thirty operators."""
    model = _model(
        """g (float[2, 2, 3] theta) => (float[2, 4, 5, 2] grid)
        { size = Constant <value_ints = [2, 1, 4, 5]> ()
          grid = AffineGrid <align_corners = 1> (theta, size) }""",
        20,
    )
    theta = np.array([[[1, 0, 0], [0, 1, 0]]] * 2, np.float32)
    (grid,) = backend.run_model(model, [theta])
    np.testing.assert_allclose(grid[0, :, :, 0], np.tile(np.linspace(-1, 1, 5), (4, 1)), atol=1e-6)
    np.testing.assert_allclose(grid[0, :, :, 1], np.tile(np.linspace(-1, 1, 4), (5, 1)).T, atol=1e-6)


@pytest.mark.parametrize("opset", [3, 6])
def test_an_older_opset_runs_where_nothing_has_changed(opset: int) -> None:
    model = _model("g (float[2] x) => (float[2] y) { y = Floor (x) }", opset)
    if opset == 3:
        with pytest.raises(UnsupportedOperatorError, match="export it again with opset 13"):
            backend.prepare(model)
        return
    (y,) = backend.run_model(model, [np.array([1.5, -1.5], np.float32)])
    np.testing.assert_array_equal(y, [1, -2])


def test_refusals_name_every_operator_its_version_and_its_node() -> None:
    model = _model(
        """g (float[4, 8] x) => (float[4, 8] y)
        { a = RandomNormalLike (x)  b = RandomUniformLike (a)  y = Add (a, b) }"""
    )
    model.graph.node[0].name = "draw"
    assert not backend.is_compatible(model)
    with pytest.raises(UnsupportedOperatorError) as caught:
        backend.prepare(model)
    first, second = caught.value.refusals
    assert (first.node, first.op_type, first.version) == ("node 'draw'", "RandomNormalLike", 17)
    assert second.op_type == "RandomUniformLike"
    assert "draw" in str(caught.value)


@pytest.mark.parametrize("kind", ["bfloat16", "string", "float8e4m3fn"])
def test_element_types_without_arrays_are_refused(kind: str) -> None:
    with pytest.raises(UnsupportedValueError):
        backend.prepare(_model(f"g ({kind}[2] x) => ({kind}[2] y) {{ y = Identity (x) }}", 19))


def test_a_cast_to_a_type_without_arrays_is_refused() -> None:
    model = _model("g (float[2] x) => (float[2] y) { a = Cast <to = 16> (x)  y = Cast <to = 1> (a) }")
    with pytest.raises(UnsupportedValueError, match="bfloat16"):
        backend.prepare(model)


def test_damaged_models_are_refused() -> None:
    model = _model(SCALE)
    model.graph.node[0].input[0] = "nowhere"
    with pytest.raises(InvalidModelError):
        backend.prepare(model)
    with pytest.raises(InvalidModelError, match="at most"):
        newer = _model(SCALE)
        newer.opset_import[0].version = 99
        backend.prepare(newer)


def test_external_data_is_refused_with_the_way_out() -> None:
    model = _model(SCALE)
    tensor = model.graph.initializer.add(name="w", dims=[2], data_type=1)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    with pytest.raises(InvalidModelError, match=r"onnx\.load"):
        backend.prepare(model)
