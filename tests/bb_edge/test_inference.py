"""A compiled artifact as a function: with and without an engine behind it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from program_text import parse

import bb_edge
from bb_edge.inference import InferenceError, Model
from bb_edge.ir import keys, types
from bb_edge.ir.host_arrays import ArrayMisfitError, host_array
from bb_edge.ir.onnx_pb2 import ModelProto
from bb_edge.ir.types import ValueType
from bb_edge.loading import MissingPassport
from bb_host.ir.proto import to_bytes

SCALE = """program Demo {module=Demo}
function program.Main(x: F32[N, 2], s: F32[2]) -> (y) {entry=1, partition=self}
  y: F32[N, 2] = backend.subgraph_a(x, s)
function backend.subgraph_a(x: F32[N, 2], s: F32[2]) -> (y) {backend_slot=backend}
  y: F32[N, 2] = Mul(x, s)
"""
TWO = SCALE.replace("-> (y) {entry", "-> (y, z) {entry").replace(
    "function backend", "  z: F32[N, 2] = Neg(x)\nfunction backend"
)


def artifact(text: str, config: bytes = b"") -> bytes:
    model = ModelProto.FromString(to_bytes(parse(text)))
    model.metadata_props.add(key=keys.COMPILED_KEY, value=keys.COMPILED_VERSION)
    for function in model.functions:
        if any(p.key == keys.ENTRY_KEY for p in function.metadata_props):
            key = f"{keys.BINDING_PREFIX}{function.name}.backend"
            model.metadata_props.add(key=key, value="backend|bb.NumPyBackend|1")
            if config:
                function.attribute_proto.add(name="backend", type=3, s=config)
    data: bytes = model.SerializeToString()
    return data


X = np.array([[1, 2], [3, 4]], np.float32)
S = np.array([2, 3], np.float32)


@pytest.fixture(params=["backend", "node"])
def opened(request: pytest.FixtureRequest) -> Any:
    """opened(text): the same model by both ways."""
    components = {"backend": {"arena_limit": 0}} if request.param == "node" else None

    def make(text: str) -> Any:
        model = bb_edge.open_model(artifact(text), components=components)
        assert (model.program is None) == (request.param == "node")
        return model

    return make


def test_three_lines(opened: Any) -> None:
    model = opened(SCALE)
    y = model(X, S)
    np.testing.assert_array_equal(y, X * S)
    np.testing.assert_array_equal(model(X[:1], s=S), X[:1] * S)
    np.testing.assert_array_equal(model(x=[[1, 1]], s=[5, 6]), [[5, 6]])


def test_a_loaded_program_is_called_in_the_same_way() -> None:
    program = bb_edge.load(artifact(SCALE))
    np.testing.assert_array_equal(program(X, s=S), X * S)
    (outputs,) = program.run({"x": X, "s": [2, 3]}).items()
    assert outputs[0] == program.outputs[0]
    np.testing.assert_array_equal(outputs[1], X * S)
    with pytest.raises(InferenceError, match="'s' is missing"):
        program.run({"x": X})
    with pytest.raises(InferenceError, match="expected a dict of inputs by name"):
        program.run([X, S])  # type: ignore[arg-type]


def test_what_it_says_of_itself(opened: Any) -> None:
    model = opened(SCALE)
    assert model.target == "Main"
    assert list(model.inputs) == ["x", "s"]
    assert model.inputs["x"].shape == ("N", 2)
    assert model.outputs == ("y",)


def test_several_outputs_come_by_name(opened: Any) -> None:
    found = opened(TWO)(X, S)
    assert list(found) == ["y", "z"]
    np.testing.assert_array_equal(found["z"], -X)


def test_results_are_the_callers(opened: Any) -> None:
    model = opened(SCALE)
    first = model(X, S)
    kept = first.copy()
    model(X + 1, S)
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize(
    ("arrays", "named", "says"),
    [
        ((X,), {}, "'s' is missing"),
        (({"x": X, "s": S},), {}, r"expected arrays, got a dict \(write model\(\*\*inputs\), or model.run"),
        ((X, S, S), {}, "expected 2 inputs, got 3"),
        ((X,), {"x": X}, "given twice"),
        ((X, S), {"q": S}, "'q'"),
        ((X.astype(np.float64), S), {}, "expected dtype float32, got float64"),
        ((np.ones((2, 3), np.float32), S), {}, r"expected shape \['N', 2\], got \[2, 3\]"),
        ((np.ones(2, np.float32), S), {}, "expected shape"),
        (("text", S), {}, "'text' is not a number or a list of numbers"),
    ],
)
def test_inputs_that_do_not_fit(opened: Any, arrays: Any, named: Any, says: str) -> None:
    with pytest.raises(InferenceError, match=says):
        opened(SCALE)(*arrays, **named)


def test_a_target_with_more_than_tensor_work_runs_on_a_node() -> None:
    text = """program Demo {module=Demo}
function program.Main(x: F32[2]) -> (y) {entry=1, partition=self}
  a: F32[2] = Neg(x)
  syscall.AppEmit<name="seen">(a)
  y: F32[2] = Neg(a)
"""
    model = bb_edge.open_model(artifact(text))
    assert model.program is None
    np.testing.assert_array_equal(model(S), S)


def test_an_output_that_never_comes_is_an_error_with_its_name() -> None:
    text = """program Demo {module=Demo}
function program.Main(x: F32[2]) -> (y, late, never) {entry=1, partition=self}
  y: F32[2] = Neg(x)
  late: Trigger = syscall.Threshold<n=2>(y)
  never: Trigger = syscall.Threshold<n=9>(y)
"""
    model = bb_edge.open_model(artifact(text))
    for lacking in ("'late', 'never'", "'never'"):
        with pytest.raises(InferenceError, match=f"without its output {lacking}"):
            model(S)


def test_what_a_call_gives_belongs_to_the_caller() -> None:
    text = """program Demo {module=Demo}
function program.Main(x: F32[2]) -> (c, x2) {entry=1, partition=self}
  c: I64 = Constant<value_int=7>()
  x2: F32[2] = Identity(x)
  syscall.AppEmit<name="seen">(x2)
"""
    model = bb_edge.open_model(artifact(text))
    for _ in range(2):
        found = model(S)
        assert list(found) == ["c", "x2"] and found["c"] == 7
        found["c"][...] = 0
        found["x2"][...] = 0
    assert S.tolist() == [2, 3]


def test_a_failing_op_is_an_error_with_its_place() -> None:
    text = SCALE.replace("F32[2])", "F32[K])")
    for components in (None, {"backend": {"arena_limit": 0}}):
        model = bb_edge.open_model(artifact(text), components=components)
        with pytest.raises(bb_edge.BBError, match="Mul"):
            model(X, np.ones(3, np.float32))
        np.testing.assert_array_equal(model(X, S), X * S)


def test_configured_backends_get_their_configuration() -> None:
    model = bb_edge.open_model(artifact(SCALE, b"\xa1karena_limit\x01"))
    assert model.program is None


def test_what_is_no_artifact_is_refused() -> None:
    with pytest.raises(MissingPassport):
        bb_edge.open_model(to_bytes(parse(SCALE)))
    with pytest.raises(bb_edge.BBError):
        bb_edge.open_model(b"\x00\x01")
    with pytest.raises(bb_edge.BBError, match="Other"):
        bb_edge.open_model(artifact(SCALE), "Other")
    with pytest.raises(FileNotFoundError):
        bb_edge.open_model("nowhere.onnx")


def test_several_targets_must_be_chosen_from() -> None:
    second = SCALE.replace("program Demo {module=Demo}\n", "").replace("Main", "Second").replace("_a", "_b")
    data = artifact(SCALE + second)
    with pytest.raises(InferenceError, match="Main, Second"):
        bb_edge.open_model(data)
    np.testing.assert_array_equal(bb_edge.open_model(data, "Second")(X, S), X * S)


def test_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "demo.edge.onnx"
    path.write_bytes(artifact(SCALE))
    np.testing.assert_array_equal(bb_edge.open_model(path)(X, S), X * S)
    np.testing.assert_array_equal(bb_edge.open_model(str(path))(X, S), X * S)


def test_tensor_work_loads_no_engine_no_protobuf_and_no_broker_client(tmp_path: Path) -> None:
    path = tmp_path / "demo.edge.onnx"
    path.write_bytes(artifact(SCALE))
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\nimport numpy as np\n"
        "numpys = set(sys.modules)\nimport bb_edge\n"  # NumPy 1.24 takes _hashlib for its random numbers
        f"model = bb_edge.open_model({str(path)!r})\n"
        "print(model(np.ones((1, 2), np.float32), np.ones(2, np.float32)).shape)\n"
        "heavy = ('bb_edge.engine', 'bb_edge.wire', 'google._upb', '_hashlib', 'paho')\n"
        "print([m for m in sys.modules if m.startswith(heavy) and m not in numpys])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["(1, 2)", "[]"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.ones(3, np.float32), "expected shape [2], got [3]"),
        (np.ones(2), "expected dtype float32, got float64"),
        (np.array([None, None]), "expected dtype float32, got object"),
        (np.ma.masked_array(np.ones(2, np.float32), [True, False]), "masked array"),
        ([[1.0], [1.0, 2.0]], "[[1.0], [1.0, 2.0]] has rows of different lengths"),
        ([1.0, 1e300], "1e+300 does not fit float32"),
        ("[1, 2]", "'[1, 2]' is not a number or a list of numbers"),
        ([1.0, None], "[1.0, None] is not a number or a list of numbers"),
    ],
    ids=["shape", "dtype", "objects", "mask", "ragged", "range", "text", "none"],
)
def test_models_and_nodes_refuse_the_same_arrays_with_the_same_words(value, says):
    with pytest.raises(ArrayMisfitError) as misfit:
        host_array(value, np.dtype(np.float32), (2,))
    declared = {"x": ValueType(types.tensor_type(np.float32), (2,))}
    model = Model("Main", declared, ("y",), lambda arrays: {"y": arrays[0]})
    with pytest.raises(InferenceError) as refused:
        model.run({"x": value})
    assert says in misfit.value.what and refused.value.hint == misfit.value.hint
