"""Model files that are damaged, incomplete, too new, or made of what no device runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from bb_edge.input_files import FileRefused
from bb_host import cli
from bb_host.build import compile_edge
from bb_host.compiler import Compiler
from bb_host.errors import (
    BindingError,
    InvalidModelError,
    ModelImportError,
    ModelTooLargeError,
    SourceFileError,
    TrainingModeError,
    UnsupportedOperatorError,
    UnsupportedValueError,
)
from bb_host.learn import trainable
from bb_host.source_file import read_model
from tests.aids.refusals import refused

Model = onnx.ModelProto


def value(name: str, *shape: int | str | None, elem: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, shape)


def model(
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    weights: dict[str, Any] | None = None,
    opset: int = 17,
    ml: int = 0,
    **domains: int,
) -> Model:
    """An ordinary model of one input `x`, f32 [N, 4]."""
    initializers = [numpy_helper.from_array(np.asarray(w, np.float32), n) for n, w in (weights or {}).items()]
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid("ai.onnx.ml", ml)] if ml else [])
    imports += [helper.make_opsetid(domain.replace("_", "."), n) for domain, n in domains.items()]
    graph = helper.make_graph(nodes, "net", [value("x", "N", 4)], outputs, initializers)
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def relu(**more: Any) -> Model:
    return model([helper.make_node("Relu", ["x"], ["y"], "act")], [value("y", "N", 4)], **more)


def ml(op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, op, domain="ai.onnx.ml", **attrs)


def probabilities(name: str = "p") -> onnx.ValueInfoProto:
    return value(name, "N", 2)


def zipped(name: str = "z") -> onnx.ValueInfoProto:
    """A sequence of maps, as a classifier of scikit-learn yields its probabilities by default."""
    entry = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    return helper.make_value_info(name, helper.make_sequence_type_proto(entry))


LINEAR = ml(
    "LinearClassifier",
    ["scaled"],
    ["label", "p"],
    coefficients=[1.0] * 8,
    intercepts=[0.0, 0.0],
    classlabels_ints=[0, 1],
    post_transform="SOFTMAX",
)
SCALER = ml("Scaler", ["x"], ["scaled"], offset=[0.0] * 4, scale=[1.0] * 4)
TREE = ml(
    "TreeEnsembleRegressor",
    ["x"],
    ["y"],
    n_targets=1,
    nodes_treeids=[0],
    nodes_nodeids=[0],
    nodes_featureids=[0],
    nodes_modes=["LEAF"],
    nodes_values=[0.0],
    nodes_truenodeids=[0],
    nodes_falsenodeids=[0],
    target_ids=[0],
    target_nodeids=[0],
    target_treeids=[0],
    target_weights=[1.0],
)

CLASSICAL: list[tuple[Model, tuple[str, ...]]] = [
    (
        model(
            [SCALER, LINEAR, ml("ZipMap", ["p"], ["z"], classlabels_int64s=[0, 1])],
            [value("label", "N", elem=TensorProto.INT64), zipped()],
            ml=1,
        ),
        (
            "Scaler",
            "LinearClassifier",
            "ZipMap",
            "export with options={id(model): {'zipmap': False}}, black_op={'LinearClassifier', 'Scaler'}",
            "cut the label off",
            "['x'], ['probabilities'])",
        ),
    ),
    (
        model([SCALER, LINEAR], [value("label", "N", elem=TensorProto.INT64), probabilities()], ml=1),
        (
            "export with black_op={'LinearClassifier', 'Scaler'}; then cut the label off",
            "onnx.utils.extract_model('model.onnx', 'cut.onnx', ['x'], ['p'])",
        ),
    ),
    (
        model(
            [
                helper.make_node("Softmax", ["x"], ["p"]),
                helper.make_node("ArgMax", ["p"], ["i"], axis=1, keepdims=0),
                ml("ArrayFeatureExtractor", ["x", "i"], ["label"]),
            ],
            [value("label", None, None), value("p", "N", 4)],
            ml=1,
        ),
        (
            "ArrayFeatureExtractor",
            "(cut the label off",
            "extract_model('model.onnx', 'cut.onnx', ['x'], ['p'])",
        ),
    ),
    (model([ml("Normalizer", ["x"], ["y"], norm="L2")], [value("y", "N", 4)], ml=1), ("{'Normalizer'}",)),
    (model([TREE], [value("y", "N", 1)], ml=1), ("TreeEnsembleRegressor", "MLPClassifier", "trees")),
    (
        model([ml("Binarizer", ["x"], ["y"], threshold=0.5)], [value("y", "N", 4)], ml=1),
        ("Binarizer", "ONNX's own operators"),
    ),
]


@pytest.mark.parametrize(("source", "words"), CLASSICAL, ids=[words[0] for _, words in CLASSICAL])
def test_models_of_scikit_learn_are_told_the_way_out(source: Model, words: tuple[str, ...]) -> None:
    with refused(UnsupportedOperatorError, "ai.onnx.ml", *words, marked=False):
        compile_edge(source)


def test_a_model_of_scikit_learn_that_is_to_learn() -> None:
    with refused(ModelImportError, "Scaler", "ZipMap", "{'zipmap': False}", marked=False):
        trainable(CLASSICAL[0][0])


def stochastic(op: str, **attrs: Any) -> Model:
    flag = helper.make_tensor("on", TensorProto.BOOL, [], [True])
    nodes = [
        helper.make_node("Constant", [], ["on"], value=flag),
        helper.make_node("Constant", [], ["ratio"], value_float=0.5),
        helper.make_node(op, ["x", "ratio", "on"], ["y"], "drop", **attrs),
    ]
    return model(nodes, [value("y", "N", 4)])


def normalized(**attrs: int) -> Model:
    outputs = ["y", "mean", "var"] if attrs else ["y"]
    node = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], outputs, "bn", **attrs)
    weights = {name: np.ones(4) for name in "sbmv"}
    return model([node], [value("y", "N", 4)], weights)


def sequenced() -> Model:
    nodes = [helper.make_node("SplitToSequence", ["x"], ["s"], "parts", axis=1)]
    out = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    return model(nodes, [out])


def imagined() -> Model:
    found = relu()
    found.graph.node[0].op_type = "Frobnicate"
    return found


def dangling() -> Model:
    found = relu()
    found.graph.node[0].input[0] = "nothing"
    return found


def looped() -> Model:
    """A loop over a sequence: no tensor operator says its length."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("SequenceInsert", ["s", "x"], ["longer"]),
        ],
        "body",
        [
            value("i", elem=TensorProto.INT64),
            value("go", elem=TensorProto.BOOL),
            helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None),
        ],
        [
            value("go_on", elem=TensorProto.BOOL),
            helper.make_tensor_sequence_value_info("longer", TensorProto.FLOAT, None),
        ],
    )
    three = helper.make_tensor("three", TensorProto.INT64, [], [3])
    nodes = [
        helper.make_node("Constant", [], ["n"], value=three),
        helper.make_node("SequenceEmpty", [], ["empty"]),
        helper.make_node("Loop", ["n", "", "empty"], ["s"], "repeat", body=body),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
    ]
    return model(nodes, [value("y", None, 4)])


def optimized() -> Model:
    node = helper.make_node("FusedGemm", ["x", "w"], ["y"], "fused", domain="com.microsoft")
    return model([node], [value("y", "N", 4)], {"w": np.eye(4)}, com_microsoft=1)


def worded() -> Model:
    found = model([helper.make_node("Identity", ["x"], ["y"])], [value("y", 2, elem=TensorProto.STRING)])
    found.graph.input[0].CopyFrom(value("x", 2, elem=TensorProto.STRING))
    return found


def worded_inside() -> Model:
    cast = helper.make_node("Cast", ["x"], ["words"], to=TensorProto.STRING)
    return model(
        [cast, helper.make_node("Cast", ["words"], ["y"], to=TensorProto.FLOAT)], [value("y", "N", 4)]
    )


def scanned() -> Model:
    """Sums over a sequence whose length nobody knows."""
    rows = [value(name, 4) for name in ("sum", "row", "next", "told")]
    nodes = [
        helper.make_node("Add", ["sum", "row"], ["next"]),
        helper.make_node("Identity", ["next"], ["told"]),
    ]
    body = helper.make_graph(nodes, "body", rows[:2], rows[2:])
    scan = helper.make_node("Scan", ["zeros", "x"], ["last", "y"], "steps", body=body, num_scan_inputs=1)
    return model([scan], [value("y", "N", 4)], {"zeros": np.zeros(4)})


WRONG: list[tuple[Callable[[], Model], type[Any], tuple[str, ...]]] = [
    (lambda: stochastic("Dropout"), TrainingModeError, ("drops values", "for inference")),
    (lambda: normalized(training_mode=1), TrainingModeError, ("learns its statistics", "for inference")),
    (sequenced, UnsupportedValueError, ("sequence_type", "extract_model")),
    (imagined, InvalidModelError, ("Frobnicate",)),
    (dangling, InvalidModelError, ("nothing",)),
    (lambda: relu(opset=99), InvalidModelError, ("opset 99", "28 at most", "version_converter")),
    (optimized, UnsupportedOperatorError, ("FusedGemm at node 'fused'", "com.microsoft", "own operators")),
    (worded, UnsupportedValueError, ("strings, only numbers are taken", "value 'x'", "extract_model")),
    (worded_inside, UnsupportedValueError, ("a cast to string", "make numbers of the strings")),
    (scanned, UnsupportedOperatorError, ("Scan", "no backend", "a fixed length", "LSTM, GRU or RNN")),
]


@pytest.mark.parametrize(("make", "kind", "words"), WRONG, ids=[words[0] for *_, words in WRONG])
def test_models_that_cannot_be_compiled(make: Any, kind: type[Any], words: tuple[str, ...]) -> None:
    with refused(kind, *words, marked=False):
        compile_edge(make())


def test_a_loop_over_a_sequence() -> None:
    with pytest.raises(UnsupportedOperatorError) as caught:
        compile_edge(looped())
    assert {r.op_type for r in caught.value.refusals} >= {"SequenceEmpty", "SequenceInsert"}
    assert caught.value.hint


def test_a_model_whose_weights_no_artifact_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    from bb_host.ir import artifact_size

    found = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], [value("y", "N", 99)], {"w": np.ones((4, 99))}
    )
    monkeypatch.setattr(artifact_size, "MAX_BYTES", 1000)
    with refused(ModelTooLargeError, "1,584 bytes", "1,000 at most", "'w'", marked=False):
        compile_edge(found)


# --- what is declared of outputs


def declared(output: onnx.ValueInfoProto, op: str = "Relu") -> Model:
    """A model whose output `y` is F32 [N, 4] by its graph, whatever it declares."""
    return model([helper.make_node(op, ["x"], ["y"], "act")], [output])


CONTRADICTIONS = [
    ("type", value("y", "N", 4, elem=TensorProto.INT64), "Tensor<I64>[N,4]"),
    ("size", value("y", "N", 3), "Tensor<F32>[N,3]"),
    ("rank", value("y", "N"), "Tensor<F32>[N]"),
    ("scalar", value("y"), "Tensor<F32>[]"),
]
ids = [name for name, *_ in CONTRADICTIONS]


@pytest.mark.parametrize(("output", "said"), [c[1:] for c in CONTRADICTIONS], ids=ids)
def test_an_output_that_contradicts_its_graph(output: onnx.ValueInfoProto, said: str, tmp_path: Path) -> None:
    found = declared(output)
    words = ("output 'y'", f"declares {said}", "its graph gives Tensor<F32>[N,4]", "full_check=True")
    with refused(InvalidModelError, "model 'net'", *words, marked=False):
        compile_edge(found)
    with refused(ModelImportError, *words, marked=False):
        trainable(found)
    path = written(tmp_path, found.SerializeToString())
    with refused(BindingError, str(path), *words):
        Compiler().bind_model("model", str(path))  # <-


@pytest.mark.parametrize("verb", ["compile", "inspect", "graph", "trainable"])
def test_the_command_line_names_an_output_that_contradicts_its_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    more = {"compile": ["-o", str(tmp_path / "out")], "graph": ["-o", str(tmp_path / "net.dot")]}
    verbs = ["compile", "--trainable"] if verb == "trainable" else [verb]
    for found, words in (
        (declared(value("y", "N", 3)), "output 'y': the file declares Tensor<F32>[N,3], and its graph gives"),
        (model([helper.make_node("Relu", ["x"], ["y"])], []), "it declares no output"),
    ):
        path = written(tmp_path, found.SerializeToString())
        assert cli.main([*verbs, str(path), *more.get(verb, [])]) == 1
        error = capsys.readouterr().err
        assert words in error and "model.graph.output" in error, error
        assert error.startswith("bb-host: error: ") and error.count("\n") == 1


@pytest.mark.parametrize(
    "output",
    [
        value("y", "rows", "columns"),
        value("y", 7, 4),
        value("y", None, -1),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
        helper.make_empty_tensor_value_info("y"),
    ],
    ids=["symbols", "a size of what is open", "open", "no shape", "no type"],
)
def test_what_is_open_on_one_side_contradicts_nothing(output: onnx.ValueInfoProto) -> None:
    assert compile_edge(declared(output)).artifacts


def test_large_weights_and_inputs_that_are_outputs_are_held_against_it_too() -> None:
    large = {"w": np.ones((4, 999))}
    product = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    assert compile_edge(model(product, [value("y", "N", 999)], large)).artifacts
    with refused(InvalidModelError, "declares Tensor<F32>[N,998]", "gives Tensor<F32>[N,999]", marked=False):
        compile_edge(model(product, [value("y", "N", 998)], large))
    with refused(InvalidModelError, "output 'x'", "declares Tensor<F32>[N,5]", marked=False):
        compile_edge(model(product, [value("y", "N", 999), value("x", "N", 5)], large))
    places = [helper.make_node("NonZero", ["x"], ["y"])]
    with refused(InvalidModelError, "declares Tensor<I64>[3,7]", "gives Tensor<I64>[2,?]", marked=False):
        compile_edge(model(places, [value("y", 3, 7, elem=TensorProto.INT64)]))


def test_a_model_without_outputs() -> None:
    found = model([helper.make_node("Relu", ["x"], ["y"])], [])
    with refused(InvalidModelError, "model 'net'", "no output", "model.graph.output", marked=False):
        compile_edge(found)
    with refused(ModelImportError, "no output", marked=False):
        trainable(found)


def test_a_value_that_is_chosen_instead_of_wrong_outputs() -> None:
    layers = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Softmax", ["z"], ["y"])]
    for outputs in ([], [value("y", "N", 3)]):
        found = model(layers, outputs, {"w": np.eye(4)})
        assert trainable(found, loss="mse", output="z").initializers[0].learned
    found.graph.value_info.append(value("z", "N", 5))
    with refused(ModelImportError, "output 'z'", "declares Tensor<F32>[N,5]", marked=False):
        trainable(found, loss="mse", output="z")


# --- files


def written(folder: Path, data: bytes, name: str = "net.onnx") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


FILES: list[tuple[str, Callable[[], bytes], str]] = [
    ("empty", lambda: b"", "it is empty"),
    ("text", lambda: b"this is a shopping list: bread, milk\n", "no ONNX model"),
    ("html", lambda: b"<!DOCTYPE html><html>404</html>", "no ONNX model"),
    ("truncated", lambda: relu().SerializeToString()[:-7], "no ONNX model"),
    ("archive", lambda: b"PK\x03\x04" + bytes(60), "no ONNX model"),
    ("graph without nodes", lambda: model([], [value("x", "N", 4)]).SerializeToString(), "has no nodes"),
]


@pytest.mark.parametrize(("data", "words"), [f[1:] for f in FILES], ids=[f[0] for f in FILES])
def test_files_that_hold_no_model(tmp_path: Path, data: Callable[[], bytes], words: str) -> None:
    with refused(SourceFileError, words, "net.onnx", marked=False):
        read_model(written(tmp_path, data()))


def test_a_file_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.onnx", tmp_path):
        with pytest.raises((SourceFileError, FileRefused)) as caught:
            read_model(path)
        assert str(path) in str(caught.value)


def test_weights_beside_the_file_that_are_missing_or_cut(tmp_path: Path) -> None:
    found = model([helper.make_node("MatMul", ["x", "w"], ["y"])], [value("y", "N", 4)], {"w": np.eye(4)})
    convert_model_to_external_data(found, location="net.data", size_threshold=0)
    path = tmp_path / "net.onnx"
    onnx.save(found, str(path))
    assert read_model(path).graph.initializer[0].raw_data
    (tmp_path / "net.data").write_bytes(b"short")
    with refused(SourceFileError, "weights cannot be read", "beside it", marked=False):
        read_model(path)
    (tmp_path / "net.data").unlink()
    with refused(SourceFileError, "weights cannot be read", "beside it", marked=False):
        read_model(path)


@pytest.mark.parametrize("verb", ["compile", "inspect"])
@pytest.mark.parametrize("name", [name for name, *_ in FILES])
def test_the_command_line_says_it_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, name: str
) -> None:
    data = next(make() for n, make, _ in FILES if n == name)
    arguments = [verb, str(written(tmp_path, data))]
    assert cli.main(arguments + (["-o", str(tmp_path / "out")] if verb == "compile" else [])) == 1
    error = capsys.readouterr().err
    assert error.startswith("bb-host: error: ")
    assert error.count("\n") == 1


def test_inspect_shows_an_ordinary_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], [value("y", "N", 3)], {"w": np.ones((4, 3))}
    )
    path = written(tmp_path, found.SerializeToString())
    assert cli.main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    for words in (
        "x: Tensor<F32>[N,4]",
        "y: Tensor<F32>[N,3]",
        "1 ops: MatMul 1",
        "ai.onnx 17",
        "12 in 1 tensor\n",
    ):
        assert words in shown, shown
    assert cli.main(["inspect", str(path), "--json"]) == 0
    assert '"parameters": 12' in capsys.readouterr().out
