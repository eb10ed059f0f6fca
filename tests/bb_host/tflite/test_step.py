"""The step in a build: bindings, fallbacks, digests, what stays and why; and the command line."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import bb_edge
from bb_edge.backends.tflite.flatbuffer import FlatbufferError
from bb_edge.ir import keys
from bb_host.build import build_edge
from bb_host.cli import main
from bb_host.ir.spelling import written
from bb_host.tflite import lower
from bb_host.tflite.lower import MODEL, NUMPY_BACKEND, TFLITE_BACKEND
from benchmarks import models


def _models(build):
    (artifact,) = build.artifacts
    return [op for f in artifact.program.functions for op in f.ops if op.op_type == MODEL]


def _backends(build):
    (artifact,) = build.artifacts
    bindings = [v for k, v in written(artifact.program.facts).items() if k.startswith(keys.BINDING_PREFIX)]
    return [v.split("|")[1] for v in bindings if v.startswith(keys.ROLE_BACKEND)]


def mixed() -> onnx.ModelProto:
    """Two products with an operator between them that TFLite lacks."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((16, 16)).astype(np.float32), n) for n in ("a", "b")
    ]
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "a"], ["h"]),
        node("Atan", ["h"], ["e"]),
        node("MatMul", ["e", "b"], ["z"]),
        node("Add", ["z", "h"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "mixed", [value("x", 1, ["N", 16])], [value("y", 1, ["N", 16])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_numpy_is_the_default_and_changes_nothing():
    model = models.ds_cnn()
    build = build_edge(model)
    assert not _models(build)
    assert _backends(build) == [NUMPY_BACKEND]
    assert build.artifacts[0].data == build_edge(model, backend="numpy").artifacts[0].data


def test_a_model_names_its_digest_and_binds_the_backend():
    build = build_edge(models.ds_cnn(), backend="tflite")
    (node,) = _models(build)
    assert node.attrs["model"][4:8] == b"TFL3"
    assert node.attrs["sha256"].decode() == hashlib.sha256(node.attrs["model"]).hexdigest()
    assert b"Conv:9" in node.attrs["ops"]
    assert "fallback" not in node.attrs
    assert _backends(build) == [TFLITE_BACKEND]
    onnx.checker.check_model(build.artifacts[0].data)


def test_auto_keeps_a_fallback_with_the_same_signature_and_a_plan():
    build = build_edge(models.ds_cnn(), backend="auto")
    (node,) = _models(build)
    program = build.artifacts[0].program
    body = program.function(keys.BACKEND_DOMAIN, node.attrs["fallback"].decode())
    assert (len(body.inputs), len(body.outputs)) == (len(node.inputs), len(node.outputs))
    assert all(op.domain == keys.ONNX_DOMAIN for op in body.ops)
    assert keys.MEMORY_PLAN_KEY in written(body.facts)


def test_the_fallback_computes_the_same(reference):
    model = models.u_net()
    build = build_edge(model, backend="auto")
    program = build.artifacts[0].program
    (node,) = _models(build)
    from bb_edge.backends import NumPyBackend
    from bb_host.ir.proto import function_to_proto

    body = program.function(keys.BACKEND_DOMAIN, node.attrs["fallback"].decode())
    feeds = models.example(model)
    (want,) = reference(model, feeds)
    prepared = NumPyBackend().prepare(function_to_proto(body), {}, {})
    (got,) = prepared.run([feeds["x"]])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_auto_leaves_what_is_too_small():
    """Of two regions, a product alone and a product with a sum, one is worth the call."""
    build = build_edge(mixed(), backend="auto")
    (node,) = _models(build)
    assert node.attrs["ops"] == b"Add:1,MatMul:1"
    assert "too small" in build.artifacts[0].lowering.explain()


def test_auto_leaves_a_program_alone_that_is_too_small_everywhere():
    model = mixed()
    del model.graph.node[2:]
    model.graph.output[0].name = "e"
    build = build_edge(model, backend="auto")
    assert not _models(build)
    assert _backends(build) == [NUMPY_BACKEND]
    assert "too small" in build.artifacts[0].lowering.explain()


def test_what_has_no_rule_stays_between_two_models(compiled, run_lowered, reference):
    model = mixed()
    found = compiled(model)
    assert [op.op_type for op in found.body.ops] == [MODEL, "Atan", MODEL]
    assert [(k.op_type, k.reason) for k in found.lowering.kept] == [("Atan", "there is no rule for it")]
    feeds = {"x": np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)}
    (want,), (got,) = reference(model, feeds), run_lowered(found, feeds)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["tflite", "auto"])
def test_what_devices_would_refuse_stays_in_plain_ops(backend, monkeypatch):
    """No rule is known to write such a model; were there one, a device would say so to its owner."""

    def refuse(data):
        raise FlatbufferError("as a rule with a fault would make it")

    monkeypatch.setattr(lower, "verify", refuse)
    model = models.ds_cnn()
    build = build_edge(model, backend=backend)
    assert not _models(build)
    assert _backends(build) == [NUMPY_BACKEND]
    assert "refuse what it becomes: as a rule with a fault" in build.artifacts[0].lowering.explain()
    (x,) = models.example(model).values()
    plain = build_edge(model).artifacts[0].data
    np.testing.assert_array_equal(
        bb_edge.open_model(build.artifacts[0].data)(x), bb_edge.open_model(plain)(x)
    )


def test_the_report_counts_what_was_lowered():
    report = build_edge(mixed(), backend="tflite").artifacts[0].report
    assert (report.tflite_models, report.tflite_ops) == (2, 3)
    assert report.onnx_ops == {"Atan: there is no rule for it": 1}
    assert report.tflite_bytes > 2 * 16 * 16 * 4


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mixed.onnx"
    path.write_bytes(mixed().SerializeToString())
    return path


def test_the_command_line_explains(file, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["compile", str(file), "-o", str(out), "--backend", "tflite", "--explain", "backend"]) == 0
    assert "Atan stays: there is no rule for it" in capsys.readouterr().out
    assert not out.exists()


def test_inspect_shows_the_models(file, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["compile", str(file), "-o", str(out), "--backend", "tflite"]) == 0
    (artifact,) = out.glob("*.edge.onnx")
    capsys.readouterr()
    assert main(["inspect", str(artifact), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["tflite"]
    assert [m["ops"] for m in said] == ["MatMul:1", "Add:1,MatMul:1"]
    assert main(["inspect", str(artifact)]) == 0
    assert "TFLite models" in capsys.readouterr().out
