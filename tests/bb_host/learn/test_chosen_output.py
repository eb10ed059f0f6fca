"""Models of several outputs, and inner values, trained by the one that is named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.utils
import pytest
from learners import component
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from bb_host.cli import main
from bb_host.errors import LearnError
from bb_host.learn import import_onnx, trainable
from bb_host.learn.exchange import export_model
from tests.aids.refusals import refused

CTX: Any = SimpleNamespace(exec_id=1)
SHAPES = {"trunk": (4, 6), "kind": (6, 3), "size": (6, 2), "bias": (3,)}


def net(body: str, names: str = "trunk kind size bias", opset: int = 17) -> onnx.ModelProto:
    """A graph of float32 weights."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {body}')
    rng = np.random.default_rng(0)
    model.graph.initializer.extend(
        numpy_helper.from_array(rng.normal(0, 0.5, SHAPES[name]).astype(np.float32), name)
        for name in names.split()
    )
    return model


def two_heads() -> onnx.ModelProto:
    """One trunk; a head that names the kind, with its softmax, and one that measures."""
    return net(
        "(float[N,4] x) => (float[N,2] measured, float[N,3] likely, int64[N] label) { t = MatMul(x, trunk)"
        "  h = Tanh(t)  measured = MatMul(h, size)  k = MatMul(h, kind)  logits = Add(k, bias)"
        "  likely = Softmax(logits)  label = ArgMax<axis=1, keepdims=0>(likely) }"
    )


def learned(model: Any) -> list[str]:
    return [i.name for i in model.initializers if i.learned]


@pytest.mark.parametrize(
    ("output", "parameters", "width"),
    [("measured", ["trunk", "size"], 2), ("logits", ["trunk", "kind", "bias"], 3)],
)
def test_one_of_several_is_trained_and_the_rest_left_out(
    output: str, parameters: list[str], width: int, tmp_path: Path
) -> None:
    source = two_heads()
    onnx.save(source, tmp_path / "net.onnx")
    onnx.utils.extract_model(str(tmp_path / "net.onnx"), str(tmp_path / "cut.onnx"), ["x"], [output])
    made = trainable(tmp_path / "net.onnx", "mse", output=output)
    assert learned(made) == parameters
    whys = {i.name: i.why for i in made.initializers}
    assert all(whys[name] == "nothing reads it" for name in SHAPES.keys() - set(parameters))
    ours, cut = component(made), component(trainable(tmp_path / "cut.onnx", "mse"))
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((5, 4)).astype(np.float32), np.ones((5, width), np.float32)
    assert ours.train(CTX, x, y) == cut.train(CTX, x, y)
    for learner in (ours, cut):
        learner.step(CTX)
    np.testing.assert_array_equal(ours.params(CTX), cut.params(CTX))
    untouched = {t.name: numpy_helper.to_array(t).copy() for t in source.graph.initializer}
    export_model(source, ours.named_parameters(), "learned")  # into the file of three outputs
    for tensor in source.graph.initializer:
        same = np.array_equal(numpy_helper.to_array(tensor), untouched[tensor.name])
        assert same == (tensor.name not in parameters)
    (y,) = ReferenceEvaluator(source).run([output] if output == "measured" else ["likely"], {"x": x})
    scores = ours.forward(CTX, x)
    expected = scores if output == "measured" else np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_an_output_that_is_a_softmax_says_what_lies_before_it() -> None:
    (warning,) = trainable(two_heads(), output="likely").warnings()
    assert warning.code == "probabilities-as-output" and "output='logits'" in str(warning.hint)
    assert trainable(two_heads(), output="logits").warnings() == ()


def test_it_is_answered_too_where_nothing_is_learned() -> None:
    model = component(trainable(two_heads(), learning=False, frozen=["*"], output="likely"))
    x = np.ones((2, 4), np.float32)
    (expected,) = ReferenceEvaluator(two_heads()).run(["likely"], {"x": x})
    np.testing.assert_allclose(model.forward(CTX, x), expected, rtol=1e-5)


def test_several_are_refused_early_by_name() -> None:
    words = ("3 outputs ('measured', 'likely', 'label')", "output='measured' (--output measured)")
    with refused(LearnError, *words):
        trainable(two_heads())  # <-
    with refused(LearnError, *words):
        trainable(two_heads(), learning=False)  # <-
    assert import_onnx(two_heads()).function.outputs == ("measured", "likely", "label")


def test_the_label_of_a_classifier_is_no_way_to_train() -> None:
    with pytest.raises(LearnError, match=r"its output is .*, a trainable model's is f32"):
        trainable(two_heads(), output="label")


def test_inputs_that_only_the_rest_reads_are_left_out() -> None:
    model = net(
        "(float[N,4] x, float[N,2] offset) => (float[N,2] moved, float[N,6] seen)"
        " { t = MatMul(x, trunk)  seen = Tanh(t)  s = MatMul(seen, size)  moved = Add(s, offset) }",
        "trunk size",
    )
    assert trainable(model, "mse", output="seen").model.inputs == ("x",)
    with pytest.raises(LearnError, match="2 inputs"):
        trainable(model, "mse", output="moved")


def test_what_a_branch_reads_is_kept() -> None:
    model = net(
        "(float[N,4] x) => (float[N,2] y, float[N,3] z) { t = MatMul(x, trunk)  h = Tanh(t)  yes = Constant"
        "<value = bool {1}>()  double = Add(x, x)  k = MatMul(h, kind)  z = Add(k, bias)"
        "  w = If(yes) <then_branch = a () => (float[N,4] u) { u = Mul(double, double) },"
        "  else_branch = b () => (float[N,4] v) { v = Identity(double) }>"
        "  t2 = MatMul(w, trunk)  y = MatMul(t2, size) }"
    )
    made = trainable(model, "mse", output="y")
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    (expected,) = ReferenceEvaluator(model).run(["y"], {"x": x})
    np.testing.assert_allclose(component(made).forward(CTX, x), expected, rtol=1e-5)


def test_a_model_without_weights_may_be_frozen() -> None:
    plain = net("(float[N,4] x) => (float[N,4] y) { y = Softmax(x) }", "")
    model = component(trainable(plain, learning=False, frozen=["*"]))
    x = np.eye(4, dtype=np.float32)
    np.testing.assert_allclose(model.forward(CTX, x).sum(axis=1), np.ones(4), rtol=1e-6)
    with pytest.raises(LearnError, match="no initializer 'w' to freeze"):
        trainable(plain, learning=False, frozen=["w"])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(two_heads(), path)
    assert main(["compile", str(path), "--trainable"]) == 1
    out = capsys.readouterr()
    assert "--output measured" in out.err and "trunk" in out.out  # the list comes all the same
    assert main(["compile", str(path), "--trainable", "--output", "logits"]) == 0
    out = capsys.readouterr()
    assert "45 parameters in 3 tensors are learned" in out.out and not out.err
