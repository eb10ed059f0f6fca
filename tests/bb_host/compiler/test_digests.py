"""Artifacts of the examples and of the benchmarks' nets are, byte for byte, those of `digests.json`.

A change of the compiler that is meant to leave programs alone shows here that it does. Where a change is
meant: `pytest -n 0 tests/bb_host/compiler/test_digests.py --update`, and the commit says why.

What is calibrated is held by its text without numbers: sums of a calibration come out otherwise with another
BLAS. All other numbers are drawn, scaled and folded by operations that IEEE 754 rounds exactly.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the benchmarks compare with it")

from bb_edge.backends import NumPyBackend
from bb_edge.components import ArrayDataSource, GraphModel
from bb_host import Compiler, DataSourceSlot, Graph, ModelSlot, Module
from bb_host.build import Artifact, build_edge
from bb_host.ir.text import print_program
from bb_host.learn import trainable
from bb_host.passes.device.quantize import Quantization
from benchmarks import models, training_nets
from benchmarks.compile import federation

ROOT = Path(__file__).resolve().parents[3]
FILE = Path(__file__).with_name("digests.json")

Build = Callable[[], tuple[Artifact, ...]]


class Training(Module):
    """One step of training, and what it leads to."""

    model, shard = ModelSlot("model"), DataSourceSlot("shard")

    def body(self, g: Graph) -> None:
        x, y = self.shard.next_batch(g, after=g.input("start", np.int64, []))
        done = self.model.step(g, after=self.model.train(g, x, y))
        g.output("params", self.model.params(g, after=done))


@contextmanager
def _beside_its_modules(folder: Path) -> Iterator[None]:
    """Some examples import what lies beside them, as `bb-host compile` lets them."""
    sys.path.insert(0, str(folder))
    _forget_modules(folder)  # what they register may be forgotten since they were imported
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _forget_modules(folder)  # two examples have a module of the same name


def _forget_modules(folder: Path) -> None:
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").parent == folder:
            del sys.modules[name]


def _example(name: str, **options: Any) -> tuple[Artifact, ...]:
    folder, module = name.split("/")
    with _beside_its_modules(ROOT / "examples" / folder):
        program = importlib.import_module(module).program
        return build_edge(*program(**options)).artifacts


def _trained(net: str, backend: Any) -> tuple[Artifact, ...]:
    config = {"batch_size": 8, "one_hot": training_nets.CLASSES}
    compiler = (
        Compiler()
        .bind_model("model", GraphModel, trainable(training_nets.NETS[net](), learning_rate=0.1))
        .bind_backend("backend", NumPyBackend)
        .bind_data_source("shard", ArrayDataSource, config)
    )
    return build_edge(Training(), compiler, backend=backend).artifacts


def _calibrated(net: str) -> tuple[Artifact, ...]:
    model = models.ALL[net]()
    shape = next(iter(models.example(model).values())).shape
    samples = np.random.default_rng(3).standard_normal((4, *shape[1:])).astype(np.float32)
    return build_edge(model, backend="tflite", quantization=Quantization("int8", {"x": samples})).artifacts


def _builds() -> dict[str, Build]:
    found: dict[str, Build] = {
        "anomaly_detection": lambda: _example("anomaly_detection/federation"),
        "federated_digits": lambda: _example("federated_digits/federation", kind="mlp"),
        "federated_digits, softmax": lambda: _example("federated_digits/federation", kind="softmax"),
        "gossip_learning": lambda: _example("gossip_learning/gossip"),
        "hierarchical": lambda: _example("hierarchical/tiers", flat=False),
        "hierarchical, flat": lambda: _example("hierarchical/tiers", flat=True),
        "own_components": lambda: _example("own_components/federation"),
        "personal_layers": lambda: _example("personal_layers/personal", personal=True),
        "personal_layers, none personal": lambda: _example("personal_layers/personal", personal=False),
        "split_learning, the server asks": lambda: _example("split_learning/split", asked_by="server"),
        "split_learning, clients ask": lambda: _example("split_learning/split", asked_by="clients"),
        "a federation of 506 ops": lambda: build_edge(*federation(506)).artifacts,
    }
    for name, make in models.ALL.items():
        found[f"net {name}"] = lambda make=make: build_edge(make()).artifacts
        found[f"net {name}, tflite"] = lambda make=make: build_edge(make(), backend="tflite").artifacts
    for name in training_nets.NETS:
        for backend in ("numpy", "tflite"):
            found[f"training {name}, {backend}"] = lambda name=name, backend=backend: _trained(name, backend)
    for name in models.MLPERF_TINY:
        found[f"net {name}, int8"] = lambda name=name: _calibrated(name)
    return found


BUILDS = _builds()


def _without_numbers(artifact: Artifact) -> bytes:
    """The text of its program: long bytes by their length, floats and digests by name."""
    text = print_program(artifact.program)
    text = re.sub(r"0x[0-9a-f]{32,}", lambda found: f"0x*{len(found.group())}", text)
    text = re.sub(r"[0-9a-f]{64}", "sha256", text)
    text = re.sub(r"-?\d+\.\d+(e[+-]?\d+)?", "float", text)
    return f"{text}\n{artifact.lowering.explain()}".encode()


def _digests(name: str) -> dict[str, str]:
    calibrated = name.endswith("int8")
    return {
        artifact.file: hashlib.sha256(_without_numbers(artifact) if calibrated else artifact.data).hexdigest()
        for artifact in BUILDS[name]()
    }


@pytest.mark.parametrize("name", BUILDS)
def test_an_artifact_has_the_bytes_that_it_had(name: str, request: pytest.FixtureRequest) -> None:
    found = _digests(name)
    expected = json.loads(FILE.read_text()) if FILE.exists() else {}
    if request.config.getoption("--update") and found != expected.get(name):
        expected[name] = found
        kept = {known: expected[known] for known in BUILDS if known in expected}
        FILE.write_text(json.dumps(kept, indent=1) + "\n")
        return
    assert found == expected.get(name), "if other bytes are meant: pytest -n 0 --update, and say why"


def test_every_digest_is_of_something() -> None:
    assert set(json.loads(FILE.read_text())) == set(BUILDS)
