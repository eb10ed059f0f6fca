"""What gives bytes to TFLite interpreters: forged flatbuffers with right digests, and artifacts with models.

Interpreters are not Python: they run in a process of their own, so that one which dies is a failure with an
input, and the next input gets a new one.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from bb_edge.backends.tflite.probe import attempt
from bb_edge.ir import keys, onnx_pb2
from bb_edge.ir.errors import BBError

from . import mutations, tflite_mutations
from .campaign import Absent, Subject
from .programs import unsealed

ROOT = Path(__file__).resolve().parents[3]
CHILD = Path(__file__).with_name("tflite_child.py")
SECOND = ROOT / ".venv-tflite"
PATIENCE_S = 120.0
LONGEST_SEED = 32 << 10


class Refused(BBError):
    """The child said so, and which error it was."""


class Child:
    """A process with an interpreter, started when there is something to read."""

    def __init__(self, python: str, what: str, distribution: str) -> None:
        self._command = [python, str(CHILD), what, distribution]
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, data: bytes) -> object:
        process = self._process
        if process is None:
            places = os.pathsep.join(str(ROOT / place) for place in (".", "kernels", "firmware_shims"))
            env = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
            process = self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=env,
                bufsize=0,
            )
        said = self._exchange(process, data)
        if said is None:
            process.kill()
            self.close()
            code = process.returncode
            name = signal.Signals(-code).name if -code in {s.value for s in signal.Signals} else str(code)
            raise RuntimeError(f"the process ended with {name}")
        kind, _, detail = said.partition(" ")
        if kind == "refused":
            raise Refused(detail)
        if kind != "taken":
            raise RuntimeError(detail)
        return said

    def _exchange(self, process: subprocess.Popen[bytes], data: bytes) -> str | None:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(struct.pack("<I", len(data)) + data)
        except BrokenPipeError:
            return None
        found = b""
        wanted = 4
        while len(found) < wanted:
            ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
            part = process.stdout.read(wanted - len(found)) if ready else b""
            if not part:
                return None
            found += part
            if len(found) == 4:
                wanted = 4 + struct.unpack("<I", found)[0]
        return found[4:].decode()

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


def _python(distribution: str) -> str:
    """Who runs an interpreter here; Absent where nobody does."""
    package = distribution.replace("-", "_")
    if importlib.util.find_spec(package) is not None and attempt(package)[0] is not None:
        return sys.executable
    if distribution == "tflite-runtime" and (SECOND / "bb-setup.json").is_file():
        return str(SECOND / "bin" / "python")
    raise Absent(f"{distribution} does not run here")


def _module(path: str) -> Any:
    place = ROOT / path
    spec = importlib.util.spec_from_file_location(f"hostile_{place.parent.name}_{place.stem}", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def models_of(data: bytes) -> list[bytes]:
    """The flatbuffers of an artifact."""
    proto = onnx_pb2.ModelProto.FromString(data)
    nodes = [n for f in proto.functions for n in f.node if n.domain == keys.TFLITE_DOMAIN]
    return [a.s for n in nodes for a in n.attribute if a.name == "model"]


@functools.cache
def artifacts_with_models() -> list[bytes]:
    """Small nets: one model, two with an operator between them, open batches, int8 and float16."""
    import numpy as np

    from bb_host.build import build_edge
    from bb_host.passes.device.quantize import Quantization

    nets = _module("tests/bb_host/passes/device/quantize/conftest.py")
    mixed = _module("tests/bb_host/tflite/test_step.py").mixed()
    found = []
    for net in (nets.mlp_model(), nets.cnn_model()):
        shape = [d.dim_value or 8 for d in net.graph.input[0].type.tensor_type.shape.dim]
        x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
        for asked in (None, Quantization("int8", {"x": x}), Quantization("fp16")):
            found += [
                unsealed(a.data) for a in build_edge(net, backend="tflite", quantization=asked).artifacts
            ]
    for backend in ("tflite", "auto"):
        found += [unsealed(a.data) for a in build_edge(mixed, backend=backend).artifacts]
    assert sum(map(len, map(models_of, found))) > len(found) // 2
    return found


def _plain(model: Any, feeds: dict[str, Any]) -> list[Any]:
    """What a model computes, for the grids of its results."""
    try:
        import onnxruntime
    except ImportError as error:
        raise Absent("onnxruntime is not installed here") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    found = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(found.run(None, feeds))


@functools.cache
def flatbuffers() -> list[bytes]:
    """Of every operator that the lowering writes."""
    cases = _module("tests/bb_host/tflite/test_conformance.py").CASES
    lowered = _module("tests/bb_host/tflite/conftest.py").Compiled
    found = [model for data in artifacts_with_models() for model in models_of(data)]
    for number, case in enumerate(cases):
        model, _ = case.model(case.open_batch and number % 2 == 0)
        found += [op.attrs["model"] for op in lowered(model).models]
    integers = _module("tests/bb_host/tflite/test_integers.py")
    for number, case in enumerate(integers.CASES):
        symbolic = case.open_batch and number % 2 == 0
        model, _, _ = integers.build(case, ("int8", "uint8")[number % 2], symbolic, _plain)
        found += [op.attrs["model"] for op in lowered(model).models]
    return [data for data in dict.fromkeys(found) if len(data) <= LONGEST_SEED]


def resealed(data: bytes, seeds: Sequence[bytes], rng: Random) -> bytes:
    """Models that say something else, with the digest of what they say now."""
    proto = onnx_pb2.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception:  # noqa: BLE001  (protobuf's classes differ; a first mutation may have broken it)
        return mutations.blind(data, seeds, rng)
    for function in proto.functions:
        for node in function.node:
            held = {a.name: a for a in node.attribute}
            if node.domain == keys.TFLITE_DOMAIN and {"model", "sha256"} <= set(held) and held["model"].s:
                held["model"].s = tflite_mutations.forged(held["model"].s, seeds, rng)
                held["sha256"].s = hashlib.sha256(held["model"].s).hexdigest().encode()
    return proto.SerializeToString()


def _subject(what: str, distribution: str) -> Callable[[], Subject]:
    def make() -> Subject:
        python = _python(distribution)
        if importlib.util.find_spec("onnx") is None:
            raise Absent("flatbuffers are made here, which needs the onnx package")
        if what == "flatbuffers":
            seeds, change = flatbuffers(), (tflite_mutations.forged,)
        else:
            seeds, change = artifacts_with_models(), (mutations.protobuf, mutations.blind, resealed, resealed)
        child = Child(python, what, distribution)
        name = f"{what} on {distribution}"
        return Subject(name, seeds, change, child.read, lambda n: 4 * n + (1 << 20), child.close)

    return make


ON_INTERPRETERS = tuple(
    _subject(what, distribution)
    for distribution in ("ai-edge-litert", "tflite-runtime")
    for what in ("flatbuffers", "artifacts")
)
