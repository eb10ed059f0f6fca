"""What `--quantize` makes of an ordinary model, held against onnxruntime's float results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.installer import install
from bb_edge.ir import keys
from bb_edge.ir.ids import PeerId
from bb_edge.loading import load
from bb_host.build import Artifact, build_edge
from bb_host.errors import CalibrationError, NothingToQuantizeError, QuantizeError
from bb_host.ir.program import Function
from bb_host.ir.values import Values
from bb_host.passes.device.quantize import Quantization
from bb_host.passes.device.quantize.calibration import HEADROOM
from bb_host.passes.device.quantize.qdq import quantize_function

Array = np.ndarray[Any, np.dtype[Any]]
Model = Callable[..., onnx.ModelProto]
Samples = Callable[..., Array]
Reference = Callable[[onnx.ModelProto, Array], Array]


def artifact(model: onnx.ModelProto, asked: Quantization | None) -> Artifact:
    (found,) = build_edge(model, quantization=asked).artifacts
    return found


def body(found: Artifact) -> Function:
    return next(f for f in found.program.functions if f.domain == keys.BACKEND_DOMAIN)


def invoke(found: Artifact, x: Array) -> Array:
    node = install(PeerId.from_name("t"), (), load(found.data), [found.target], NodeConfig())
    (port,) = found.program.functions[0].inputs
    node.invoke(found.target, {port: x})
    (event,) = [s for s in node.poll(0) if isinstance(s, steps.AppEvent)]
    return np.asarray(event.value)


def of_range(got: Array, want: Array) -> float:
    return float(np.abs(got - want).max() / (want.max() - want.min()))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", ["mlp", "cnn"])
def test_int8_is_near_the_float_results(
    family: str, seed: int, samples: Samples, reference: Reference, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(family)(seed)
    x = samples(model)
    found = artifact(model, Quantization("int8", {"x": x}))
    want, got = reference(model, x), invoke(found, x)
    assert 0 < of_range(got, want) <= 0.04
    rms = float(np.sqrt(np.mean(np.square(got - want))) / (want.max() - want.min()))
    assert rms <= 0.01


def test_weights_are_int8_per_channel_and_biases_int32(cnn: Model, samples: Samples) -> None:
    model = cnn()
    function = body(artifact(model, Quantization("int8", {"x": samples(model)})))
    values = Values(function)
    for op in function.ops:
        if op.op_type not in ("Conv", "Gemm"):
            continue
        weight, scale = (values.constants[v] for v in values.maker[op.inputs[1]].inputs)
        assert weight.dtype == np.int8
        assert weight.min() >= -127
        axis = 0 if op.op_type == "Conv" else 1
        assert scale.shape == (weight.shape[axis],)
        assert values.maker[op.inputs[1]].attrs["axis"] == axis
        if len(op.inputs) > 2:
            bias, own = (values.constants[v] for v in values.maker[op.inputs[2]].inputs)
            assert bias.dtype == np.int32
            made = values.maker[op.inputs[0]]
            assert made.op_type == "DequantizeLinear"
            np.testing.assert_allclose(own, scale * values.constants[made.inputs[1]], rtol=1e-6)


def test_what_tflite_fixes_is_fixed(cnn: Model, mlp: Model, samples: Samples) -> None:
    def parameters(function: Function, op_type: str) -> tuple[float, int]:
        values = Values(function)
        (op,) = [o for o in function.ops if o.op_type == op_type]
        (pair,) = [o for o in function.ops if o.op_type == "QuantizeLinear" and o.inputs[0] == op.outputs[0]]
        return float(values.constants[pair.inputs[1]]), int(values.constants[pair.inputs[2]])

    made = {}
    for model in (cnn(), mlp()):
        made[model.graph.name] = body(artifact(model, Quantization("int8", {"x": samples(model)})))
    assert parameters(made["mlp"], "Softmax") == (1 / 256, -128)
    assert parameters(made["cnn"], "Sigmoid") == (1 / 256, -128)
    assert parameters(made["cnn"], "MaxPool") == parameters(made["cnn"], "Add")


@pytest.mark.parametrize(("kind", "lowest"), [("Sigmoid", 0.0), ("Tanh", -1.0)])
def test_a_grid_ends_where_the_only_reader_does_not_change_any_more(kind: str, lowest: float) -> None:
    make, w = onnx.helper.make_node, onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    x = np.linspace(-90, 70, 400, dtype=np.float32).reshape(100, 4)
    ends = {}
    for read_twice in (False, True):
        nodes = [make(kind, ["x"], ["h"]), make("MatMul", ["h", "w"], ["y"])]
        if read_twice:
            nodes.append(make("Relu", ["x"], ["z"]))
        graph = onnx.helper.make_graph(
            nodes,
            "g",
            [onnx.helper.make_tensor_value_info("x", 1, ["N", 4])],
            [onnx.helper.make_tensor_value_info(name, 1, ["N", 4]) for name in ("y", "z")[: 1 + read_twice]],
            [w],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        function = body(artifact(model, Quantization("int8", {"x": x})))
        values = Values(function)
        first = next(op for op in function.ops if op.op_type == "QuantizeLinear")
        scale, zero = (values.constants[v] for v in first.inputs[1:])
        ends[read_twice] = [float(scale) * (n - int(zero)) for n in (-128, 127)]
    room = 1 + HEADROOM
    assert np.allclose(ends[True], [-90 * room, 70 * room], atol=0.4)
    # Both ends are there, and no more: of 256 steps from `lowest` to 1, the last half one and the first.
    found = [1 / (1 + np.exp(-e)) if kind == "Sigmoid" else np.tanh(e) for e in ends[False]]
    step = (1 - lowest) / 256
    assert np.allclose(found, [lowest + step / 2, 1 - step / 2], atol=step / 4)


def test_no_pair_stands_between_an_op_and_its_activation(cnn: Model, samples: Samples) -> None:
    model = cnn()
    function = body(artifact(model, Quantization("int8", {"x": samples(model)})))
    maker = Values(function).maker
    hosts = [maker[op.inputs[0]].op_type for op in function.ops if op.op_type in ("Relu", "Clip")]
    assert hosts == ["Conv", "Conv"]


def test_a_layer_that_is_kept_stays_in_float(cnn: Model, samples: Samples) -> None:
    model = cnn()
    found = artifact(model, Quantization("int8", {"x": samples(model)}, ["c3"]))
    values = Values(body(found))
    (op,) = [o for o in body(found).ops if o.op_type == "Conv" and len(o.inputs) == 2]
    assert values.constants[op.inputs[1]].dtype == np.float32
    assert found.accuracy is not None
    assert found.accuracy.left["c3"] == "kept in float as asked"
    with pytest.raises(QuantizeError, match="no layer is called 'nope'"):
        artifact(model, Quantization("int8", {"x": samples(model)}, ["nope"]))


def test_equal_programs_have_equal_artifacts(cnn: Model, samples: Samples) -> None:
    asked = Quantization("int8", {"x": samples(cnn())})
    assert artifact(cnn(), asked).data == artifact(cnn(), asked).data


def test_accuracy_is_what_the_two_programs_differ_by(
    mlp: Model, samples: Samples, reference: Reference
) -> None:
    model = mlp()
    x = samples(model)
    found = artifact(model, Quantization("int8", {"x": x}))
    assert found.accuracy is not None
    (output,) = found.accuracy.outputs
    want, got = reference(model, x), invoke(found, x)
    assert output.name == "y"
    assert output.max_abs == pytest.approx(np.abs(want - got).max(), rel=1e-3)
    assert output.argmax == (want.argmax(1) == got.argmax(1)).mean()
    assert found.accuracy.quantized == 5
    added = [layer.added for layer in found.accuracy.layers]
    assert added == sorted(added, reverse=True)
    assert {"a", "h", "m", "z", "y"} == {layer.name for layer in found.accuracy.layers}
    assert "argmax" in found.accuracy.table()


def test_a_model_in_qdq_form_is_taken_as_it_is(mlp: Model, samples: Samples) -> None:
    model = mlp()
    x = samples(model)
    pairs = artifact(model, Quantization("int8", {"x": x}))
    already = as_it_is(pairs)
    again = artifact(already, None)
    assert kinds(again) == kinds(pairs)
    stored = {str(a.dtype) for a in Values(body(again)).constants.values() if a.ndim == 2}
    assert stored == {"int8"}
    np.testing.assert_array_equal(invoke(again, x), invoke(pairs, x))
    with pytest.raises(NothingToQuantizeError, match="it is quantized already"):
        artifact(already, Quantization("int8", {"x": x}))


@pytest.mark.filterwarnings("ignore:`mapping:DeprecationWarning")  # onnxruntime 1.18's, of onnx 1.16
@pytest.mark.parametrize("activations", ["QInt8", "QUInt8"])
def test_models_of_another_quantizer_run_as_they_are(
    cnn: Model, samples: Samples, reference: Reference, tmp_path: Path, activations: str
) -> None:
    tool = pytest.importorskip("onnxruntime.quantization")
    model = cnn()
    x = samples(model)

    class Reader(tool.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.rows = iter(x)

        def get_next(self) -> dict[str, Array] | None:
            row = next(self.rows, None)
            return None if row is None else {"x": row[None]}

    source, made = tmp_path / "float.onnx", tmp_path / "qdq.onnx"
    onnx.save(model, source)
    tool.quantize_static(
        source,
        made,
        Reader(),
        quant_format=tool.QuantFormat.QDQ,
        per_channel=True,
        activation_type=getattr(tool.QuantType, activations),
        weight_type=tool.QuantType.QInt8,
    )
    foreign = onnx.load(made)
    with pytest.raises(NothingToQuantizeError, match="it is quantized already"):
        artifact(foreign, Quantization("int8"))
    found = artifact(foreign, None)
    assert found.accuracy is None
    assert len(found.data) < len(artifact(model, None).data) + 8000
    weights = [a for a in Values(body(found)).constants.values() if a.ndim == 4]
    assert {str(a.dtype) for a in weights} == {"int8"}
    assert of_range(invoke(found, x), reference(foreign, x)) <= 0.01
    assert of_range(invoke(found, x), reference(model, x)) <= 0.05


def kinds(found: Artifact) -> list[str]:
    """What it consists of, but for the order of what is constant."""
    return sorted(op.op_type for op in body(found).ops if op.op_type != "Constant")


def as_it_is(found: Artifact) -> onnx.ModelProto:
    """The artifact's backend function as an ordinary model."""
    from bb_host.onnx_io.model import as_model

    function = body(found)
    main = found.program.functions[0]
    typed = dict(zip(function.inputs, main.inputs, strict=True))
    types = {a: main.types[b] for a, b in typed.items()}
    types.update({a: main.types[b] for a, b in zip(function.outputs, main.outputs, strict=True)})
    return as_model(dataclasses.replace(function, types={**function.types, **types}))


def test_fp16_halves_the_artifact(reference: Reference, mlp: Model, samples: Samples) -> None:
    model = mlp()
    x = samples(model)
    plain, half = artifact(model, None), artifact(model, Quantization("fp16"))
    saved = len(plain.data) - len(half.data)
    assert saved >= 0.8 * (32 * 16 + 32 * 10) * 2
    assert 0 < of_range(invoke(half, x), reference(model, x)) < 1e-3


def test_fp16_leaves_what_it_cannot_hold(mlp: Model) -> None:
    model = mlp()
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    weight[0, 0] = 1e6
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w1"))
    values = Values(body(artifact(model, Quantization("fp16"))))
    large = {str(a.dtype) for a in values.constants.values() if a.size >= 64}
    assert large == {"float32", "float16"}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, r"target mlp: no calibration data for x \[N,16\], and nothing is given"),
        (
            {"z": np.zeros((4, 16), np.float32)},
            r"target mlp: no calibration data for x \[N,16\], and z is given",
        ),
        ({"x": np.zeros((4, 15), np.float32)}, r"shape \[4, 15\], the input is \[\?, 16\]"),
        ({"x": np.zeros((4, 16), np.float64)}, "float64, the input is float32"),
        ({"x": np.zeros((0, 16), np.float32)}, "no samples"),
        ({"x": np.full((4, 16), np.nan, np.float32)}, "NaN or infinite"),
        ({"x": np.zeros((4, 16), np.float32)}, r"x is 0.0 throughout \(give samples of what the device"),
    ],
)
def test_data_that_do_not_fit_are_refused(mlp: Model, data: dict[str, Array], said: str) -> None:
    with pytest.raises(CalibrationError, match=said):
        artifact(mlp(), Quantization("int8", data))


def test_samples_of_whole_inputs_and_names_with_a_target(mlp: Model, samples: Samples) -> None:
    model = mlp()
    x = samples(model)
    rows = artifact(model, Quantization("int8", {"x": x}))
    assert artifact(model, Quantization("int8", {"mlp.x": x})).data == rows.data
    whole = artifact(model, Quantization("int8", {"x": x[:, None]}))
    # Not byte for byte: a BLAS may sum a row on its own in another order than a row among others.
    found, want = (Values(body(each)).constants for each in (whole, rows))
    assert found.keys() == want.keys()
    assert any(np.issubdtype(value.dtype, np.int8) for value in want.values())
    for name, value in want.items():
        atol = 1 if np.issubdtype(value.dtype, np.integer) else 0
        np.testing.assert_allclose(found[name].astype(float), value.astype(float), rtol=1e-5, atol=atol)


@pytest.mark.parametrize("opset", [9, 12])
def test_an_older_opset_is_converted(opset: int, mlp: Model, samples: Samples, reference: Reference) -> None:
    model = mlp(opset=opset)
    x = samples(model)
    before = model.SerializeToString(deterministic=True)
    found = artifact(model, Quantization("int8", {"x": x}, ["h"]))
    assert found.accuracy is not None and found.accuracy.left["h"] == "kept in float as asked"
    assert of_range(invoke(found, x), reference(model, x)) <= 0.04
    assert model.SerializeToString(deterministic=True) == before


def test_what_cannot_be_converted_is_refused(cnn: Model) -> None:
    older = dataclasses.replace(body(artifact(cnn(), None)), opsets={"": 12})
    with pytest.raises(QuantizeError, match="opset 12, int8 needs 13"):
        quantize_function(older, {})


@pytest.mark.parametrize(
    ("equation", "shape", "scales", "axis"),
    [
        ("bi,io->bo", (8, 5), (5,), 1),
        ("bi,oi->bo", (5, 8), (5,), 0),
        ("bi, oi", (5, 8), (), None),
        ("bi,iok->bok", (8, 5, 2), (), None),
        ("...i,io->...o", (8, 5), (5,), 1),
        ("bi,...io->...bo", (8, 5), (), None),
    ],
)
def test_weights_of_einsum_have_a_scale_per_channel_where_one_axis_is_channels(
    equation: str, shape: tuple[int, ...], scales: tuple[int, ...], axis: int | None
) -> None:
    rng = np.random.default_rng(2)
    weight = onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), "w")
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Einsum", ["x", "w"], ["y"], equation=equation)],
        "net",
        [info("x", 1, ["N", 8])],
        [info("y", 1, None)],
        [weight],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    x = rng.standard_normal((16, 8)).astype(np.float32)
    function = body(artifact(model, Quantization("int8", {"x": x})))
    values = Values(function)
    (op,) = [op for op in function.ops if op.op_type == "Einsum"]
    made = values.maker[op.inputs[1]]
    assert values.constants[made.inputs[1]].shape == scales
    assert made.attrs.get("axis") == axis


@pytest.mark.parametrize(("equation", "operands"), [("bb->b", 1), ("bi,bj,bk->b", 3)])
def test_an_einsum_of_other_than_two_stays_in_float(equation: str, operands: int) -> None:
    make, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    w = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    nodes = [make("Einsum", ["x"] * operands, ["e"], equation=equation), make("MatMul", ["x", "w"], ["y"])]
    outputs = [info("e", 1, None), info("y", 1, ["N", 4])]
    graph = onnx.helper.make_graph(nodes, "g", [info("x", 1, [4, 4])], outputs, [w])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    found = artifact(model, Quantization("int8", {"x": np.eye(4, dtype=np.float32)}))
    assert found.accuracy is not None
    assert found.accuracy.left == {"e": "it has more than two operands, or one"}


@pytest.mark.parametrize("like_litert", [False, True])
def test_vectors_have_room_for_more_than_was_seen(
    cnn: Model, samples: Samples, reference: Reference, like_litert: bool
) -> None:
    """Of an image there is much to be seen in few samples, of what is pooled from it little."""
    model = cnn()
    x = samples(model)
    function = body(artifact(model, Quantization("int8", {"x": x}, (), like_litert)))
    values = Values(function)

    def highest(kind: str) -> float:
        """Of the grid of what such an op gives."""
        (op,) = [
            op
            for op in function.ops
            if op.op_type == "QuantizeLinear"
            and (made := values.maker.get(op.inputs[0]))
            and made.op_type == kind
        ]
        scale, zero = (float(values.constants[v]) for v in op.inputs[1:])
        return scale * (127 - zero)

    def seen(name: str) -> float:
        part = onnx.ModelProto.FromString(model.SerializeToString())
        del part.graph.output[:]
        part.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
        return float(reference(part, x).max())

    assert highest("Add") == pytest.approx(seen("s"), rel=0.01)
    assert highest("Gemm") == pytest.approx(seen("y") * (1 if like_litert else 1 + HEADROOM), rel=0.01)
