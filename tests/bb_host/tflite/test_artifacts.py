"""Artifacts as devices run them, on each interpreter: `open_model` and `Node.invoke`, batches open or not."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from bb_edge.backends.tflite.backend import TFLiteBackend
from bb_edge.ir import keys
from bb_edge.ir.onnx_reader import read_model
from bb_host.build import build_edge
from benchmarks import models

ROOT = Path(__file__).resolve().parents[3]
SECOND = ROOT / ".venv-tflite"
HAS_SECOND = (SECOND / "bb-setup.json").is_file()
LEFT_OUT = "no .venv-tflite: `./dev test` makes it where tflite-runtime has a wheel"


def mixed(rows) -> onnx.ModelProto:
    """Two models with If and an operator without a rule between them."""
    rng = np.random.default_rng(0)
    node, value = helper.make_node, helper.make_tensor_value_info
    weights = [
        numpy_helper.from_array(rng.standard_normal((32, 32)).astype(np.float32) * 0.2, name) for name in "ab"
    ]
    zero = numpy_helper.from_array(np.float32(0), "zero")
    branches = {
        f"{name}_branch": helper.make_graph([node(op, ["e"], [name])], name, [], [value(name, 1, None)])
        for name, op in (("then", "Neg"), ("else", "Identity"))
    }
    nodes = [
        node("MatMul", ["x", "a"], ["h"]),
        node("Atan", ["h"], ["e"]),
        node("ReduceSum", ["e"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["high"]),
        node("If", ["high"], ["i"], **branches),
        node("MatMul", ["i", "b"], ["z"]),
        node("Add", ["z", "h"], ["y"]),
    ]
    ports = [value("x", 1, [rows, 32])], [value("y", 1, [rows, 32])]
    graph = helper.make_graph(nodes, "mixed", *ports, [*weights, zero])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def opened(name: str) -> onnx.ModelProto:
    model = models.ALL[name]()
    for port in (model.graph.input[0], model.graph.output[0]):
        port.type.tensor_type.shape.dim[0].dim_param = "N"
    del model.graph.value_info[:]
    return model


NETS = {
    "mixed": lambda: mixed(3),
    "mixed, open": lambda: mixed("N"),
    "ds_cnn": models.ALL["ds_cnn"],
    "ds_cnn, open": lambda: opened("ds_cnn"),
    "resnet8, open": lambda: opened("resnet8"),
}


@pytest.mark.parametrize("backend", ["tflite", "auto"])
@pytest.mark.parametrize("name", NETS)
def test_an_artifact_computes_what_onnxruntime_does(name, backend, run_on, reference):
    model = NETS[name]()
    (artifact,) = build_edge(model, backend=backend).artifacts
    nodes = [n for f in read_model(artifact.data).functions for n in f.node]
    assert any(n.domain == keys.TFLITE_DOMAIN for n in nodes) or (
        name.startswith("mixed") and backend == "auto"
    )
    dims = model.graph.input[0].type.tensor_type.shape.dim
    for rows in (1, 4, 2) if name.endswith("open") else (dims[0].dim_value,):
        shape = [rows, *(d.dim_value for d in dims[1:])]
        x = np.random.default_rng(rows).standard_normal(shape).astype(np.float32)
        (want,) = reference(model, {"x": x})
        for way in ("opened", "invoked"):
            (got,) = run_on(way, artifact.data, [x])
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


def test_ports_are_checked_against_what_the_entry_declares(run_on):
    """The artifact's own declaration reaches the model through the call between them."""
    (artifact,) = build_edge(mixed(3), backend="tflite").artifacts
    run_on("opened", artifact.data, [np.zeros((3, 32), np.float32)])
    proto = read_model(artifact.data)
    functions = {(f.domain, f.name): f for f in proto.functions}
    (main,) = [f for f in proto.functions if any(p.key == keys.ENTRY_KEY for p in f.metadata_props)]
    (dim, _) = next(i for i in main.value_info if i.name == "x").type.tensor_type.shape.dim
    dim.dim_value = 5
    with pytest.raises(Exception, match="but is declared as"):
        TFLiteBackend().prepare(main, functions)


@pytest.mark.skipif(not HAS_SECOND, reason=LEFT_OUT)
def test_the_backends_own_tests_pass_on_tflite_runtime():
    """All of them, in the second environment, where nothing needs the onnx package."""
    command = [
        SECOND / "bin" / "python",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/bb_edge/backends/tflite",
    ]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    counted = re.search(r"(\d+) passed", done.stdout)
    assert counted is not None and int(counted[1]) > 100
    assert "skipped" not in done.stdout


@pytest.mark.skipif(not HAS_SECOND, reason=LEFT_OUT)
def test_the_probe_says_why_it_is_not_litert_there():
    script = "from bb_edge.backends.tflite.probe import interpreter; print(interpreter())"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([SECOND / "bin" / "python", "-c", script], env=env, capture_output=True, text=True)
    assert re.fullmatch(r"tflite-runtime 2\.\S+ \(not ai-edge-litert: not installed\)\n", done.stdout), done
