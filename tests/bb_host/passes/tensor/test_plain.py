"""Ordinary models as compiled programs: checked, installed and run on a node, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import bb_edge
from bb_edge import load
from bb_edge.inputs import InvokeError
from bb_edge.ir import keys
from bb_host.errors import TrainingModeError, UnsupportedOperatorError
from bb_host.ir.proto import from_proto, to_bytes
from bb_host.plain import compile_plain, compile_plain_model, is_plain, target_name

Model = Callable[..., Any]
F32 = Callable[..., np.ndarray]

LINEAR = "classify (float[N, 4] x) => (float[N, 3] y) { a = MatMul (x, w)  y = Softmax (a) }"


@pytest.mark.parametrize("optimize", [True, False])
def test_a_model_becomes_an_artifact_with_one_partition(optimize: bool, model: Model, f32: F32) -> None:
    plain = model(LINEAR, w=f32(4, 3))
    assert is_plain(plain)
    artifact = compile_plain_model(plain, optimize=optimize)
    assert not is_plain(artifact)
    onnx.checker.check_model(artifact)
    program = load(artifact.SerializeToString())
    assert list(program.targets) == ["classify"]
    graph = program.graphs[program.targets["classify"].main]
    assert (list(graph.inputs), list(graph.outputs)) == (["x"], ["y"])
    assert graph.input_types["x"].shape == ("N", 4)
    binding = program.targets["classify"].bindings[keys.ROLE_BACKEND]
    assert (binding.role, binding.type_name) == ("backend", "bb.NumPyBackend")


def test_the_bytes_are_deterministic_and_survive_a_round_trip(model: Model, f32: F32) -> None:
    w = f32(4, 3)
    one = to_bytes(compile_plain(model(LINEAR, w=w)))
    assert to_bytes(compile_plain(model(LINEAR, w=w))) == one
    assert to_bytes(from_proto(onnx.ModelProto.FromString(one))) == one
    assert to_bytes(compile_plain(model(LINEAR, w=w + 1))) != one


def test_the_model_is_not_touched(model: Model, f32: F32) -> None:
    plain = model(LINEAR, w=f32(4, 3))
    before = plain.SerializeToString(deterministic=True)
    compile_plain(plain, "other", {"x": (2, 4)})
    assert plain.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("torch-jit-export", "torch_jit_export"),
        ("", "main"),
        ("###", "main"),
        ("7up", "m_7up"),
        ("class", "m_class"),
        ("tf2onnx__1.9", "tf2onnx__1_9"),
        ("größe", "gr_e"),
    ],
)
def test_target_names(given: str, name: str) -> None:
    assert target_name(given) == name


CASES: dict[str, tuple[str, int, dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]] = {
    "auto_pad": (
        """g (float[1, 2, 7, 9] x) => (float[N, C, H, W] y)
        { a = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w)
          y = MaxPool <auto_pad = "SAME_LOWER", kernel_shape = [2, 2], strides = [2, 2]> (a) }""",
        11,
        {"w": (3, 2, 3, 3)},
        {"x": (1, 2, 7, 9)},
    ),
    "symbolic batch": (LINEAR, 13, {"w": (4, 3)}, {"x": (5, 4)}),
    "BatchNormalization after Gemm": (
        """g (float[N, 4] x) => (float[N, 3] y) { a = Gemm (x, w, c)
        b = BatchNormalization (a, s, c, c, v)  y = Relu (b) }""",
        9,
        {"w": (4, 3), "c": (3,), "s": (3,), "v": (3,)},
        {"x": (5, 4)},
    ),
    "opset 7": (
        """g (float[1, 3, 6, 6] x) => (float[N, M] y) { a = Conv <kernel_shape = [3, 3]> (x, w)
        b = Flatten (a)  y = Gemm <transB = 1> (b, w2, c) }""",
        7,
        {"w": (2, 3, 3, 3), "w2": (5, 32), "c": (5,)},
        {"x": (1, 3, 6, 6)},
    ),
    "If": (
        """g (float[2] x) => (float[2] y)
        { total = ReduceSum <keepdims = 0> (x)
          zero = Constant <value_float = 0.0> ()  c = Greater (total, zero)
          y = If (c) <then_branch = h () => (float[2] p) { p = Exp (x) },
                      else_branch = k () => (float[2] q) { q = Neg (x) }> }""",
        13,
        {},
        {"x": (2,)},
    ),
    "Loop": (
        """g (float[2] x) => (float[2] y, float[K, 2] all)
        { n = Constant <value_int = 3> ()  t = Constant <value = bool {1}> ()
          y, all = Loop (n, t, x) <body = h (int64 i, bool go, float[2] state)
            => (bool more, float[2] next, float[2] seen)
            { more = Identity (go)  next = Mul (state, w)  seen = Identity (state) }> }""",
        13,
        {"w": (2,)},
        {"x": (2,)},
    ),
    "several ports": (
        "g (float[2] a, float[2] b) => (float[2] p, float[2] q) { p = Add (a, b)  q = Sub (a, b) }",
        13,
        {},
        {"a": (2,), "b": (2,)},
    ),
}


@pytest.mark.parametrize("optimize", [True, False], ids=["cleaned", "as it is"])
@pytest.mark.parametrize("case", CASES)
def test_models_as_people_have_them_run_on_a_node(
    case: str, optimize: bool, model: Model, f32: F32, reference: Any, on_a_node: Any
) -> None:
    text, opset, weights, inputs = CASES[case]
    tensors = {name: np.abs(f32(*shape)) for name, shape in weights.items()}
    plain = model(text, opset, **tensors)
    given = {name: f32(*shape) for name, shape in inputs.items()}
    wanted = reference(plain, given)
    artifact = compile_plain_model(plain, optimize=optimize)
    onnx.checker.check_model(artifact)
    results = on_a_node(artifact, target_name(plain.graph.name), given)
    assert list(results) == [output.name for output in plain.graph.output]
    for got, want in zip(results.values(), wanted, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_quantised_models_run(model: Model, f32: F32, reference: Any, on_a_node: Any) -> None:
    """QuantizeLinear/DequantizeLinear pairs around a convolution, weights per channel."""
    plain = model(
        """g (float[1, 2, 6, 6] x) => (float[1, 3, 4, 4] y)
        { a = QuantizeLinear (x, xs, xz)  b = DequantizeLinear (a, xs, xz)
          w = DequantizeLinear <axis = 0> (wq, ws, wz)  c = Conv (b, w)
          d = QuantizeLinear (c, ys, xz)  y = DequantizeLinear (d, ys, xz) }""",
        13,
        xs=np.array(0.05, np.float32),
        xz=np.array(3, np.int8),
        ys=np.array(0.2, np.float32),
        wq=np.random.default_rng(5).integers(-127, 128, (3, 2, 3, 3)).astype(np.int8),
        ws=np.array([0.01, 0.02, 0.03], np.float32),
        wz=np.zeros(3, np.int8),
    )
    x = f32(1, 2, 6, 6)
    (want,) = reference(plain, {"x": x})
    (got,) = on_a_node(compile_plain_model(plain), "g", {"x": x}).values()
    assert np.abs(got - want).max() <= 0.2 + 1e-6  # one quantisation step, where a sum falls between two
    assert np.mean(np.abs(got - want) > 1e-5) < 0.05


@pytest.mark.parametrize("left_out", ["shape", "type", "kind"])
def test_an_output_may_leave_its_shape_to_be_inferred(
    left_out: str, model: Model, f32: F32, reference: Any, on_a_node: Any
) -> None:
    plain, x = model(LINEAR, w=f32(4, 3)), f32(2, 4)
    (want,) = reference(plain, {"x": x})
    (output,) = plain.graph.output
    if left_out == "shape":
        output.type.tensor_type.ClearField("shape")
    elif left_out == "type":
        output.ClearField("type")
    else:
        output.type.ClearField("tensor_type")
    before = plain.SerializeToString(deterministic=True)
    got = on_a_node(compile_plain_model(plain), "classify", {"x": x})["y"]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert plain.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("body", ["y = Identity (x)", "z = Relu (x)  y = Identity (x)"])
def test_an_input_handed_through(body: str, model: Model, f32: F32, on_a_node: Any) -> None:
    outputs = "float[2] y, float[2] z" if "z =" in body else "float[2] y"
    x = f32(2)
    results = on_a_node(
        compile_plain_model(model(f"g (float[2] x) => ({outputs}) {{ {body} }}")), "g", {"x": x}
    )
    np.testing.assert_array_equal(results["y"], x)


def test_an_output_that_is_an_input_or_stands_twice_keeps_its_name(
    model: Model, f32: F32, on_a_node: Any
) -> None:
    plain = model("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    plain.graph.output.append(plain.graph.input[0])
    plain.graph.output.append(plain.graph.output[0])
    x = f32(2)
    artifact = compile_plain_model(plain)
    results = on_a_node(artifact, "g", {"x": x})
    assert sorted(results) == ["x", "y"]
    np.testing.assert_array_equal(results["x"], x)
    for opened in (bb_edge.open_model(artifact.SerializeToString()), load(artifact.SerializeToString())):
        found = opened(x)
        assert list(found) == ["y", "x"]
        np.testing.assert_array_equal(found["x"], x)
        assert not np.shares_memory(found["x"], x)


def test_fixed_shapes_are_what_the_node_takes(model: Model, f32: F32, on_a_node: Any) -> None:
    artifact = compile_plain_model(model(LINEAR, w=f32(4, 3)), "Named", {"x": (2, 4)})
    assert on_a_node(artifact, "Named", {"x": f32(2, 4)})["y"].shape == (2, 3)
    with pytest.raises(InvokeError, match="expected"):
        on_a_node(artifact, "Named", {"x": f32(3, 4)})


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "opset", "says"),
    [
        ("a = RandomNormalLike (x)  y = Add (a, x)", 15, "RandomNormalLike .opset 15. at node 'culprit'"),
        ("y, m, v = BatchNormalization <training_mode = 1> (x, s, s, s, s)", 15, "training mode"),
        ("y, mask = Dropout (x, r, t)", 13, "training mode"),
    ],
)
def test_refused_with_node_operator_and_version(
    body: str, opset: int, says: str, model: Model, f32: F32
) -> None:
    plain = model(
        f"g (float[2, 3] x) => (float[2, 3] y) {{ {body} }}",
        opset,
        s=np.abs(f32(3)),
        r=np.array(0.5, np.float32),
        t=np.array(True),
    )
    plain.graph.node[0].name = "culprit"
    kind = UnsupportedOperatorError if "Random" in body else TrainingModeError
    with pytest.raises(kind, match=says) as caught:
        compile_plain(plain)
    (refusal,) = caught.value.refusals
    assert refusal.node == "node 'culprit'"
    assert refusal.version == opset


def test_an_unsupported_operator_inside_a_body_is_refused(model: Model) -> None:
    plain = model(
        """g (float[2] x, bool c) => (float[2] y)
        { y = If (c) <then_branch = h () => (float[2] p) { p = RandomUniformLike (x) },
                      else_branch = k () => (float[2] q) { q = Neg (x) }> }"""
    )
    with pytest.raises(UnsupportedOperatorError, match="RandomUniformLike"):
        compile_plain(plain)


def test_an_element_type_that_a_kernel_refuses_is_found_before_anything_is_written(model: Model) -> None:
    plain = model("g (int16[N, 2] x) => (int16[N, 2] y) { y = Gelu (x) }", 20)
    with pytest.raises(UnsupportedOperatorError, match="int16") as caught:
        compile_plain(plain)
    assert caught.value.refusals[0].op_type == "Gelu"


# --- odd models -----------------------------------------------------------------------------------


def test_a_model_without_inputs_gives_its_constant(model: Model) -> None:
    plain = model("g () => (float[2] y) { a = Constant <value_floats = [1.0, 2.0]> ()  y = Neg (a) }")
    opened = bb_edge.open_model(compile_plain_model(plain).SerializeToString())
    np.testing.assert_array_equal(opened(), [-1, -2])


def test_an_input_that_nothing_reads_stays_a_port(model: Model, f32: F32, on_a_node: Any) -> None:
    artifact = compile_plain_model(model("g (float[2] x, float[2] unused) => (float[2] y) { y = Neg (x) }"))
    x = f32(2)
    np.testing.assert_array_equal(on_a_node(artifact, "g", {"x": x, "unused": x})["y"], -x)
