"""Parameters in and out: of ONNX files, of programs, of compiled artifacts."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

from bb_edge.components import GraphModel
from bb_edge.components.parameter_file import ParameterFileError, pack
from bb_host import Compiler, ModelSlot, Module
from bb_host.build import build_edge
from bb_host.compiler.driver import as_program
from bb_host.errors import LearnError, ParameterMismatchError
from bb_host.ir.proto import to_proto
from bb_host.learn import mlp, trainable
from bb_host.learn.exchange import (
    export_model,
    has_external_data,
    read_parameters,
    slot_model,
    with_parameters,
    write_model,
)


def other(model: onnx.ModelProto, seed: int = 7) -> dict[str, np.ndarray]:
    """Other values for all f32 initializers of a model."""
    rng = np.random.default_rng(seed)
    return {t.name: rng.standard_normal(list(t.dims)).astype(np.float32) for t in model.graph.initializer}


def run(model, x):
    data = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return onnxruntime.InferenceSession(data).run(None, {"x": x})[0]


# --- into a file ----------------------------------------------------------------------------------


def test_only_what_was_learned_is_replaced():
    model = mlp([4, 8, 3], 1)
    before = onnx.ModelProto()
    before.CopyFrom(model)
    given = {"w2": np.ones((8, 3), np.float32)}
    assert export_model(model, given) == 1
    assert [t.name for t in model.graph.initializer] == ["w1", "b1", "w2", "b2"]
    for ours, theirs in zip(model.graph.initializer, before.graph.initializer, strict=True):
        if ours.name == "w2":
            np.testing.assert_array_equal(numpy_helper.to_array(ours), given["w2"])
        else:
            assert ours == theirs
    del model.graph.initializer[:], before.graph.initializer[:]
    assert model == before


def test_the_order_in_the_file_of_parameters_does_not_matter():
    model, given = mlp([4, 8, 3], 1), other(mlp([4, 8, 3]))
    export_model(model, dict(reversed(given.items())))
    x = np.ones((2, 4), np.float32)
    expected = np.maximum(x @ given["w1"] + given["b1"], 0) @ given["w2"] + given["b2"]
    np.testing.assert_allclose(run(model, x), expected, rtol=1e-5)


def test_what_does_not_fit_is_listed_as_a_whole_and_nothing_changes():
    model = mlp([4, 8, 3], 1)
    before = model.SerializeToString()
    given = {
        "w1": np.zeros((8, 4), np.float32),
        "b1": np.zeros(8),
        "W2": np.zeros((8, 3), np.float32),
        "b2": np.zeros(3, np.float32),
    }
    with pytest.raises(ParameterMismatchError) as caught:
        export_model(model, given, "p.npz")
    text = str(caught.value)
    for words in (
        "'w1' is [8, 4], the model's is [4, 8]",
        "'b1' is float64",
        "unknown 'W2' (did you mean 'w2'?)",
    ):
        assert words in text
    assert "b2" not in text and "another export" in caught.value.hint
    assert model.SerializeToString() == before


def test_numbers_that_no_model_works_with_are_refused_with_their_own_remedy():
    model = mlp([4, 8, 3], 1)
    before, given = model.SerializeToString(), other(mlp([4, 8, 3]))
    given["w2"] = np.full((8, 3), np.nan, np.float32)
    with pytest.raises(ParameterMismatchError, match="'w2' holds values that are not numbers") as caught:
        export_model(model, given, "p.npz")
    assert "diverged" in caught.value.hint and "another" not in caught.value.hint
    assert model.SerializeToString() == before


def test_a_variance_below_0_is_refused():
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,2] x) => (float[N,2] y) <float[2,2] w, float[2] s, float[2] b, float[2] m, float[2] v>
        { h = MatMul(x, w)  y = BatchNormalization(h, s, b, m, v) }"""
    values = {"w": np.eye(2), "s": np.ones(2), "b": np.zeros(2), "m": np.zeros(2), "v": np.ones(2)}
    model = onnx.parser.parse_model(text)
    del model.graph.initializer[:]
    model.graph.initializer.extend(numpy_helper.from_array(np.float32(a), n) for n, a in values.items())
    low = {"m": np.float32([-3, -3]), "v": np.float32([1, -0.5])}
    message = "'v' is a running variance and holds -0.5, below 0"
    with pytest.raises(ParameterMismatchError, match=message) as caught:
        export_model(model, low, "p.npz")
    assert "'m'" not in caught.value.what
    compiler = Compiler().bind_model("model", GraphModel, trainable(model, batch_norm="update"))

    class Two(One):
        def body(self, g):
            g.output("y", self.model.forward(g, g.input("x", "F32", (None, 2))))

    whole = {name: np.float32(array) for name, array in values.items()}
    with pytest.raises(ParameterMismatchError, match=message):
        with_parameters(as_program(Two()), compiler, None, {**whole, **low}, "p.npz")
    with_parameters(as_program(Two()), compiler, None, whole, "p.npz")


def test_external_weights_stay_external(tmp_path):
    model = mlp([64, 64, 3], 1)
    onnx.save(
        model, tmp_path / "net.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    assert has_external_data(tmp_path / "net.onnx")
    loaded = onnx.load(tmp_path / "net.onnx")
    given = other(loaded)
    export_model(loaded, given)
    (tmp_path / "out").mkdir()
    written = write_model(loaded, tmp_path / "out" / "trained.onnx", external=True)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["trained.onnx", "trained.onnx.data"]
    assert [p.name for p in written] == ["trained.onnx.data", "trained.onnx"]
    x = np.ones((1, 64), np.float32)
    inline = mlp([64, 64, 3], 1)
    export_model(inline, given)
    np.testing.assert_array_equal(run(tmp_path / "out" / "trained.onnx", x), run(inline, x))
    again = onnx.load(tmp_path / "out" / "trained.onnx")
    write_model(again, tmp_path / "out" / "trained.onnx", external=True)  # not appended
    assert (tmp_path / "out" / "trained.onnx.data").stat().st_size < 2 * 64 * 64 * 4


def test_a_model_that_cannot_be_written_leaves_the_old_one(tmp_path):
    (tmp_path / "net.onnx").write_bytes(b"old")
    broken = mlp([4, 3])
    broken.graph.node[0].input[0] = "nowhere"
    with pytest.raises(onnx.checker.ValidationError):
        write_model(broken, tmp_path / "net.onnx")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"net.onnx": b"old"}


def test_a_missing_file_of_parameters_is_named(tmp_path):
    with pytest.raises(ParameterFileError, match=r"p\.npz: No such file"):
        read_parameters(tmp_path / "p.npz")


# --- into a program -------------------------------------------------------------------------------


class One(Module):
    name = "One"
    model = ModelSlot("model")

    def body(self, g):
        g.output("y", self.model.forward(g, g.input("x", "F32", (None, 4))))


def bound(model=None):
    return Compiler().bind_model("model", GraphModel, trainable(model or mlp([4, 3], 1)))


def initial(program, compiler=None):
    (artifact,) = build_edge(program, compiler).artifacts
    states = [f.slots["model"].state for f in artifact.program.functions if "model" in f.slots]
    return {name: np.array(a) for name, a in states[0].initializers.items()}


def test_a_program_starts_from_parameters():
    given = other(mlp([4, 3]))
    program, compiler = with_parameters(as_program(One()), bound(), None, given, "p.npz")
    for name, array in initial(program, compiler).items():
        np.testing.assert_array_equal(array, given[name])


def test_a_compiled_program_and_a_concrete_slot_start_from_parameters():
    given = other(mlp([4, 3]))
    compiled = bound().compile_program(One())
    program, _ = with_parameters(compiled, None, "model", given, "p.npz")
    np.testing.assert_array_equal(initial(program)["w1"], given["w1"])


def test_parameters_of_another_model_are_refused_whole():
    given = other(mlp([4, 3]))
    del given["b1"]
    given["w1"] = given["w1"][:2]
    given["w9"] = np.zeros(1, np.float32)
    with pytest.raises(ParameterMismatchError) as caught:
        with_parameters(as_program(One()), bound(), None, given, "p.npz")
    text = str(caught.value)
    assert "p.npz, slot 'model'" in text
    for words in ("'w1' is [2, 3]", "unknown 'w9'", "'b1' is missing"):
        assert words in text


def test_the_slot_is_named_where_there_are_several():
    class Both(Module):
        name = "Both"
        a, b = ModelSlot("a"), ModelSlot("b")

        def body(self, g):
            g.output("y", self.b.forward(g, self.a.forward(g, g.input("x", "F32", (None, 4)))))

    compiler = (
        Compiler()
        .bind_model("a", GraphModel, trainable(mlp([4, 3], 1)))
        .bind_model("b", GraphModel, trainable(mlp([3, 3], 1)))
    )
    given = other(mlp([4, 3]))
    with pytest.raises(LearnError, match="the program has 2 models") as caught:
        with_parameters(as_program(Both()), compiler, None, given, "x/p.npz")
    assert caught.value.hint == "--params a=p.npz or --params b=p.npz"
    with pytest.raises(LearnError, match="no slot 'c'"):
        with_parameters(as_program(Both()), compiler, "c", given, "p.npz")
    _, changed = with_parameters(as_program(Both()), compiler, "a", given, "p.npz")
    assert changed is not None
    np.testing.assert_array_equal(changed.bindings[0].state.initializers["w1"], given["w1"])
    assert changed.bindings[1] is compiler.bindings[1]


# --- out of an artifact ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["portable", "edge"])
def test_the_model_of_a_slot_is_an_ordinary_model(form):
    source = mlp([4, 5, 3], 4)
    build = build_edge(One(), bound(source))
    data = build.data if form == "portable" else build.artifacts[0].data
    model = slot_model(onnx.ModelProto.FromString(data))
    onnx.checker.check_model(model, full_check=True)
    assert [t.name for t in model.graph.initializer] == ["w1", "b1", "w2", "b2"]
    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    (name,) = (i.name for i in model.graph.input)
    found = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {name: x})[0]
    np.testing.assert_allclose(found, run(source, x), rtol=1e-6)
    given = other(source)
    export_model(model, given)
    export_model(source, given)
    found = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {name: x})[0]
    np.testing.assert_allclose(found, run(source, x), rtol=1e-5, atol=1e-6)


def test_an_artifact_without_a_model_is_refused():
    class Plain(Module):
        name = "Plain"

        def body(self, g):
            g.output("y", g.onnx.relu(g.input("x", "F32", (2,))))

    with pytest.raises(LearnError, match="no model with parameters"):
        slot_model(to_proto(build_edge(Plain()).program))
    model = to_proto(build_edge(One(), bound()).program)
    with pytest.raises(LearnError, match="no slot 'modle'") as caught:
        slot_model(model, "modle")
    assert caught.value.hint == "did you mean 'model'?"


def test_packed_parameters_come_back(tmp_path):
    given = other(mlp([4, 3]))
    (tmp_path / "p.npz").write_bytes(pack(given, {"slot": "model"}))
    model = mlp([4, 3], 1)
    export_model(model, read_parameters(tmp_path / "p.npz").arrays)
    for tensor in model.graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), given[tensor.name])
