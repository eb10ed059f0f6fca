"""Models as they come: what exporters write, what people bring, and what they are told."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import bb_edge
from bb_edge.components import GraphModel
from bb_edge.components.parameter_file import pack
from bb_host import Compiler, ModelSlot, Module
from bb_host.cli import main
from bb_host.errors import LearnError, ModelImportError, NotDifferentiableError
from bb_host.learn import mlp, trainable
from tests.aids.refusals import refused

RNG = np.random.default_rng(0)
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"


def net(
    nodes, initializers, shape=("N", 4), out=("N", 3), kinds=None, opset=18, inputs=("x",), outputs=("y",)
):
    """A model of nodes `(op, inputs, outputs, attributes)` and of initializers as arrays or shapes."""
    tensors = []
    for name, given in initializers.items():
        array = given if isinstance(given, np.ndarray) else RNG.standard_normal(given).astype(np.float32)
        tensors.append(numpy_helper.from_array(array, name))
    made = [
        helper.make_node(op, ins.split(), outs.split(), name=f"n{number}", **(more[0] if more else {}))
        for number, (op, ins, outs, *more) in enumerate(nodes)
    ]
    info = []
    for name, kind in (kinds or {}).items():
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        entry = value.metadata_props.add()
        entry.key, entry.value = KIND, kind
        info.append(value)
    graph = helper.make_graph(
        made,
        "main_graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(out)) for name in outputs],
        tensors,
        value_info=info,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 10
    return model


def learned(model, **more):
    return [i.name for i in trainable(model, **more).initializers if i.learned]


def why(model, name, **more):
    return next(i.why for i in trainable(model, **more).initializers if i.name == name)


LINEAR = [("Gemm", "x fc.weight fc.bias", "y", {"transB": 1})]
WEIGHTS = {"fc.weight": (3, 4), "fc.bias": (3,)}


# --- constants of exporters -----------------------------------------------------------------------


def attention(scale):
    """torch.nn.MultiheadAttention of one head, as the dynamo exporter writes it."""
    nodes = [
        ("MatMul", "x val_1", "q0"),
        ("Add", "q0 attn.q_bias", "q1"),
        ("Mul", f"q1 {scale}", "q"),
        ("MatMul", "x val_2", "k"),
        ("Transpose", "k", "kt", {"perm": [0, 2, 1]}),
        ("MatMul", "q kt", "s0"),
        ("Add", "s0 val_88", "s"),
        ("Softmax", "s", "p", {"axis": -1}),
        ("MatMul", "p x", "y"),
    ]
    weights = {"val_1": (4, 4), "attn.q_bias": (4,), scale: (1,), "val_2": (4, 4), "val_88": (1, 5, 5)}
    return net(nodes, weights, (1, 5, 4), (1, 5, 4))


def test_the_scale_and_the_mask_of_attention_are_constants():
    assert learned(attention("val_72")) == ["val_1", "attn.q_bias", "val_2"]
    assert "a constant that its exporter has named" in why(attention("val_72"), "val_72")
    assert "a single number" in why(attention("scaling"), "scaling")


def test_a_scale_of_attention_stays_as_it_is_while_the_model_is_trained():
    model = trainable(attention("val_72"))
    assert "val_72" not in model.gradient.wrt
    assert model.parameter_count == 16 + 4 + 16


def test_mean_and_std_of_an_input_normalization_are_constants():
    nodes = [
        ("Sub", "x mean", "c"),
        ("Div", "c std", "z"),
        ("Gemm", "z fc.weight fc.bias", "y", {"transB": 1}),
    ]
    model = net(nodes, {"mean": (4,), "std": np.full(4, 0.3, np.float32), **WEIGHTS})
    assert learned(model) == ["fc.weight", "fc.bias"]
    assert "before the first layer: it normalizes the input" in why(model, "mean")
    assert learned(model, train=["mean"]) == ["mean", "fc.weight", "fc.bias"]


INVENTED = [
    "onnx::Mul_31",
    "val_5",
    "/b/Constant_output_0",
    "model/rescaling/Mul/y:0",
    "42",
    "c_lifted_tensor_0",
]


@pytest.mark.parametrize("name", INVENTED)
def test_names_that_exporters_invent_are_no_parameters_in_elementwise_operators(name):
    nodes = [*LINEAR[:0], ("MatMul", "x w", "h"), ("Relu", "h", "r"), ("Mul", f"r {name}", "y")]
    model = net(nodes, {"w": (4, 3), name: (3,)})
    assert learned(model) == ["w"]


def test_what_tf2onnx_has_computed_is_learned_where_it_holds_several_numbers():
    nodes = [("MatMul", "x w", "h"), ("Mul", "h bn/mul:0", "s"), ("Add", "s const_fold_opt__7", "y")]
    shift = net(nodes, {"w": (4, 3), "bn/mul:0": (3,), "const_fold_opt__7": (1, 3)})
    assert learned(shift) == ["w", "bn/mul:0", "const_fold_opt__7"]
    single = net(nodes, {"w": (4, 3), "bn/mul:0": (3,), "const_fold_opt__7": (1, 1)})
    assert learned(single) == ["w", "bn/mul:0"]
    first = [("Add", "x const_fold_opt__7", "c"), ("MatMul", "c w", "y")]
    assert learned(net(first, {"w": (4, 3), "const_fold_opt__7": (4,)})) == ["w"]


@pytest.mark.parametrize(("width", "is_bias"), [(3, False), (1, True)])
def test_a_single_number_is_a_bias_only_of_a_layer_that_gives_one(width, is_bias):
    """Hard activations begin with x + 3, which exporters write as [1, 1]."""
    nodes = [("MatMul", "x w", "h"), ("Add", "h three", "y")]
    model = net(nodes, {"w": (4, width), "three": (1, 1)}, out=("N", width))
    assert learned(model) == (["w", "three"] if is_bias else ["w"])


def test_a_single_number_that_was_a_variable_of_tensorflow_is_learned():
    nodes = [("MatMul", "x w", "h"), ("Mul", "h attention/mul/ReadVariableOp:0", "y")]
    model = net(nodes, {"w": (4, 3), "attention/mul/ReadVariableOp:0": ()})
    assert learned(model) == ["w", "attention/mul/ReadVariableOp:0"]


def test_what_exporters_fold_into_weights_of_layers_is_learned_whatever_its_name():
    nodes = [("MatMul", "x onnx::MatMul_17", "h"), ("Add", "h const_fold_opt__23", "y")]
    model = net(nodes, {"onnx::MatMul_17": (4, 3), "const_fold_opt__23": (3,)})
    assert learned(model) == ["onnx::MatMul_17", "const_fold_opt__23"]
    assert "bias of MatMul" in why(model, "const_fold_opt__23")


def test_a_scale_and_a_position_behind_a_layer_are_learned():
    nodes = [("MatMul", "x w", "h"), ("Add", "h pos_embed", "p"), ("Mul", "p ls.gamma", "y")]
    model = net(nodes, {"w": (4, 3), "pos_embed": (1, 3), "ls.gamma": (3,)})
    assert learned(model) == ["w", "pos_embed", "ls.gamma"]


def test_a_weight_is_one_where_it_is_transposed_or_computed_on_its_way():
    nodes = [
        ("ReduceL2", "v axes", "norm"),
        ("Div", "v norm", "u"),
        ("Mul", "u g", "w"),
        ("Transpose", "w", "wt"),
        ("MatMul", "x wt", "y"),
    ]
    found = {"v": (3, 4), "g": (3, 1), "axes": np.array([1])}
    nodes[0] = ("Mul", "v v", "norm")  # ReduceL2 has no rule yet
    model = net(nodes, {k: a for k, a in found.items() if k != "axes"})
    assert learned(model) == ["v", "g"]


def test_buffers_that_pytorch_marks_are_constants_and_parameters_are_learned():
    nodes = [("MatMul", "x filters", "f"), ("Mul", "f gain", "h"), *[("MatMul", "h w", "y")]]
    arrays = {"filters": (4, 4), "gain": (1,), "w": (4, 3)}
    assert learned(net(nodes, arrays)) == ["filters", "w"]
    marked = net(nodes, arrays, kinds={"filters": "BUFFER", "gain": "PARAMETER", "w": "PARAMETER"})
    assert learned(marked) == ["gain", "w"]
    assert "a buffer of the module" in why(marked, "filters")


def test_statistics_shapes_integers_and_unread_tensors_are_listed_with_their_reasons():
    nodes = [
        ("BatchNormalization", "x s b mean var", "n"),
        ("Reshape", "n shape", "r"),
        ("Clip", "r low high", "c"),
        ("Gemm", "c fc.weight fc.bias", "y", {"transB": 1}),
    ]
    arrays = {
        "s": (4,), "b": (4,), "mean": (4,), "var": np.ones(4, np.float32), "shape": np.array([-1, 4]),
        "low": np.array(0, np.float32), "high": np.array(6, np.float32), "spare": (7,), **WEIGHTS,
    }  # fmt: skip
    model = net(nodes, arrays)
    assert learned(model) == ["s", "b", "fc.weight", "fc.bias"]
    assert "running mean of BatchNormalization" in why(model, "mean")
    assert "only float32" in why(model, "shape")
    assert "nothing reads it" in why(model, "spare")
    assert "a setting of Clip" in why(model, "high")
    text = trainable(model).table()
    assert "23 parameters in 4 tensors are learned" in text
    assert text.count("constant") >= 6


def test_weights_as_constant_nodes_are_listed_as_not_learned():
    model = net([("MatMul", "x w", "h"), ("MatMul", "h v", "y")], {"w": (4, 3), "v": (3, 3)})
    tensor = model.graph.initializer.pop()
    model.graph.node.insert(0, helper.make_node("Constant", [], ["v"], value=tensor))
    assert learned(model) == ["w"]
    assert "written as a Constant node" in why(model, "v")


def test_a_model_of_constants_alone_says_why_nothing_is_learned():
    model = net([("MatMul", "x w", "y")], {"w": (4, 3)}, kinds={"w": "BUFFER"})
    with refused(LearnError, "nothing of it is learned", "w: a buffer", "--train", marked=False):
        trainable(model)


# --- freezing -------------------------------------------------------------------------------------


def two_layers():
    nodes = [
        ("MatMul", "x enc.0.w", "a"),
        ("Add", "a enc.0.b", "b"),
        ("Relu", "b", "c"),
        ("MatMul", "c head.w", "y"),
    ]
    return net(nodes, {"enc.0.w": (4, 5), "enc.0.b": (5,), "head.w": (5, 3)})


def test_globs_freeze_and_train():
    assert learned(two_layers(), frozen=["enc.*"]) == ["head.w"]
    assert learned(two_layers(), frozen=["*.b", "head.?"]) == ["enc.0.w"]
    frozen = trainable(two_layers(), frozen="enc.*").initializers
    assert [i.frozen for i in frozen] == [True, True, False]


def test_a_pattern_that_matches_nothing_proposes_a_name():
    with refused(
        ModelImportError, "no initializer 'enc.0.W' to freeze", "did you mean 'enc.0.w'?", marked=False
    ):
        trainable(two_layers(), frozen=["enc.0.W"])
    with refused(ModelImportError, "'decoder.*' to train", "enc.0.b, enc.0.w, head.w", marked=False):
        trainable(two_layers(), train=["decoder.*"])


def test_one_name_is_not_frozen_and_trained():
    with refused(ModelImportError, "'head.w' is frozen and trained", marked=False):
        trainable(two_layers(), frozen=["head.*"], train=["*.w"])


def test_what_cannot_be_trained_is_not_forced():
    nodes = [
        ("BatchNormalization", "x s b mean var", "n"),
        ("Gemm", "n fc.weight fc.bias", "y", {"transB": 1}),
    ]
    model = net(nodes, {"s": (4,), "b": (4,), "mean": (4,), "var": np.ones(4, np.float32), **WEIGHTS})
    with refused(ModelImportError, "'mean' cannot be trained: running mean", marked=False):
        trainable(model, train=["mean"])
    model = net([*LINEAR], {**WEIGHTS, "n": np.arange(3)})
    with refused(ModelImportError, "'n' cannot be trained: int64", marked=False):
        trainable(model, train=["n"])


def test_everything_frozen_is_refused():
    with refused(LearnError, "nothing of it is learned", "frozen by its author", marked=False):
        trainable(two_layers(), frozen=["*"])


# --- gradients ------------------------------------------------------------------------------------


def codes(model, **more):
    return [(w.code, w.what) for w in trainable(model, **more).warnings()]


def fake_quantized(*between):
    nodes = [
        ("QuantizeLinear", "fc.weight scale zero", "q", {"axis": 1}),
        *between,
        ("DequantizeLinear", f"{between[-1][2] if between else 'q'} scale zero", "d", {"axis": 1}),
        ("MatMul", "x d", "m"),
        ("Add", "m fc.bias", "y"),
    ]
    arrays = {
        "fc.weight": (4, 3), "scale": np.full(3, 0.1, np.float32), "zero": np.zeros(3, np.int8),
        "fc.bias": (3,),
    }  # fmt: skip
    return net(nodes, arrays)


def test_fake_quantized_weights_learn():
    assert learned(fake_quantized()) == ["fc.weight", "fc.bias"]
    assert codes(fake_quantized()) == []


def test_quantized_weights_that_are_computed_with_are_a_warning_that_names_the_operator():
    model = fake_quantized(("Sub", "q zero", "p"), ("Add", "p zero", "r"))
    assert learned(model) == ["fc.weight", "fc.bias"]
    ((code, what),) = codes(model)
    assert code == "parameter-without-gradient"
    assert "'fc.weight'" in what and "Sub 'n1'" in what
    assert codes(model, frozen=["fc.weight"]) == []


def test_parameters_behind_a_jump_are_a_warning():
    nodes = [("MatMul", "x w", "h"), ("Sign", "h", "s"), ("MatMul", "s v", "y")]
    ((code, what),) = codes(net(nodes, {"w": (4, 4), "v": (4, 3)}))
    assert code == "parameter-without-gradient"
    assert "'w'" in what and "Sign 'n1'" in what


def test_batch_normalization_is_a_warning():
    nodes = [
        ("BatchNormalization", "x s b mean var", "n"),
        ("Gemm", "n fc.weight fc.bias", "y", {"transB": 1}),
    ]
    model = net(nodes, {"s": (4,), "b": (4,), "mean": (4,), "var": np.ones(4, np.float32), **WEIGHTS})
    ((code, what),) = codes(model)
    assert code == "frozen-statistics"
    assert "BatchNormalization 'n0'" in what


def test_a_softmax_before_a_loss_that_takes_its_own_is_a_warning():
    nodes = [
        ("Gemm", "x fc.weight fc.bias", "z", {"transB": 1}),
        ("Softmax", "z", "p"),
        ("Identity", "p", "y"),
    ]
    ((code, what),) = codes(net(nodes, WEIGHTS))
    assert code == "probabilities-as-output"
    assert "softmax_cross_entropy takes logits" in what and "Softmax" in what
    assert codes(net(nodes, WEIGHTS), loss="mse") == []
    nodes[1] = ("LogSoftmax", "z", "p")  # of which a softmax takes nothing away
    assert codes(net(nodes, WEIGHTS)) == []


class Learner(Module):
    name = "Learner"
    model = ModelSlot("model")

    def body(self, g):
        x = g.input("x", "F32", (2, 4))
        g.output("y", self.model.forward(g, x))


def test_the_compiler_shows_what_a_model_warns_about():
    nodes = [("MatMul", "x w", "h"), ("Sign", "h", "s"), ("MatMul", "s v", "y")]
    model = trainable(net(nodes, {"w": (4, 4), "v": (4, 3)}))
    compiler = Compiler().bind_model("model", GraphModel, model)
    found = compiler.run(Learner()).warnings
    assert "parameter-without-gradient" in [w.code for w in found]
    assert all(w.file.endswith("test_models.py") for w in found)


def test_all_operators_without_a_rule_are_named_at_once():
    nodes = [
        ("Conv", "x c1", "a", {"pads": [1, 1, 1, 1]}),
        ("CenterCropPad", "a size", "b", {"axes": [3]}),
        ("Conv", "b c2", "c", {"pads": [1, 1, 1, 1]}),
        ("MaxUnpool", "c c", "d", {"kernel_shape": [1, 1]}),
        ("Conv", "d c3", "y", {"pads": [1, 1, 1, 1]}),
    ]
    model = net(
        nodes,
        {"c1": (2, 1, 3, 3), "c2": (2, 2, 3, 3), "c3": (1, 2, 3, 3), "size": np.array([8])},
        ("N", 1, 8, 8),
        ("N", 1, 8, 8),
    )
    with pytest.raises(NotDifferentiableError) as caught:
        trainable(model)
    assert caught.value.operators == ("CenterCropPad", "MaxUnpool")
    assert "CenterCropPad 'n1'; MaxUnpool 'n3'" in str(caught.value)
    assert "Conv" not in str(caught.value)  # the cause is not the Conv behind them
    assert caught.value.hint


def test_one_operator_without_a_rule_is_named_with_its_place():
    nodes = [("MatMul", "x w", "h"), ("CenterCropPad", "h size", "y", {"axes": [1]})]
    with refused(NotDifferentiableError, "CenterCropPad 'n1'", "no gradient rule", marked=False):
        trainable(net(nodes, {"w": (4, 3), "size": np.array([3])}))


def test_operators_before_what_is_trained_need_no_rule():
    nodes = [("CenterCropPad", "x size", "h", {"axes": [1]}), ("MatMul", "h w", "y")]
    assert learned(net(nodes, {"w": (4, 3), "size": np.array([4])})) == ["w"]


# --- other models ---------------------------------------------------------------------------------


def test_several_inputs_are_refused_by_name():
    model = net([("Add", "x mask", "s"), ("MatMul", "s w", "y")], {"w": (4, 3)}, inputs=("x", "mask"))
    with refused(LearnError, "2 inputs ('x', 'mask')", "a slot's model has one", "join_inputs", marked=False):
        trainable(model)


def test_several_outputs_are_refused_by_name():
    model = net([("MatMul", "x w", "y"), ("Relu", "y", "z")], {"w": (4, 3)}, outputs=("y", "z"))
    with refused(LearnError, "2 outputs ('y', 'z')", "a slot's model has one", "output='y'", marked=False):
        trainable(model)
    with refused(LearnError, "no output and no inner value 'Z_'", "did you mean 'z'?", marked=False):
        trainable(model, output="Z_")
    with refused(LearnError, "no output and no inner value 'logits'", "'y', 'z'", marked=False):
        trainable(model, output="logits")
    with refused(LearnError, "output is the name of a value, not 1", marked=False):
        trainable(model, output=1)


def test_no_input_at_all_is_refused():
    with refused(LearnError, "it has no input", marked=False):
        trainable(net([("Relu", "w", "y")], {"w": (4, 3)}, inputs=()))


@pytest.mark.parametrize("op", ["BatchNormalization", "Dropout"])
def test_models_in_training_mode_are_refused_by_name(op):
    if op == "Dropout":
        nodes = [("MatMul", "x w", "h"), ("Dropout", "h ratio on", "y")]
        arrays = {"w": (4, 3), "ratio": np.array(0.5, np.float32), "on": np.array(True)}
    else:
        nodes = [("MatMul", "x w", "h"), ("BatchNormalization", "h s b m v", "y m2 v2", {"training_mode": 1})]
        arrays = {"w": (4, 3), "s": (3,), "b": (3,), "m": (3,), "v": np.ones(3, np.float32)}
    with refused(ModelImportError, "training mode", f"{op} at", "model.eval()", marked=False):
        trainable(net(nodes, arrays))


def test_half_precision_weights_are_listed_and_not_learned():
    nodes = [("Cast", "w", "c", {"to": 1}), ("MatMul", "x c", "y")]
    model = net(nodes, {"w": np.zeros((4, 3), np.float16)})
    with refused(LearnError, "w: float16: only float32 is learned", marked=False):
        trainable(model)


def test_a_model_prints_as_one_line():
    assert repr(trainable(mlp([4, 3]))) == (
        "<TrainableModel: 15 parameters in 2 tensors, loss softmax_cross_entropy>"
    )


def test_a_trained_scalar_learns():
    nodes = [("MatMul", "x w", "h"), ("Mul", "h logit_scale", "y")]
    model = net(nodes, {"w": (4, 3), "logit_scale": np.array(2, np.float32)})
    assert learned(model) == ["w"]
    assert learned(model, train=["logit_scale"]) == ["w", "logit_scale"]


def test_the_model_is_checked_by_onnx_first():
    broken = onnx.ModelProto()
    broken.CopyFrom(net(LINEAR, WEIGHTS))
    broken.graph.node[0].input[0] = "nowhere"
    with pytest.raises(ModelImportError, match="no valid ONNX model"):
        trainable(broken)


# --- the command line -----------------------------------------------------------------------------


def compile_(capsys, *arguments):
    code = main(["compile", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_line_lists_what_is_learned_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(two_layers(), "net.onnx")
    code, out, err = compile_(capsys, "net.onnx", "--trainable", "--freeze", "enc.*")
    assert (code, err) == (0, "")
    assert "learned  head.w" in out and "frozen   enc.0.b" in out
    assert "15 parameters in 1 tensor are learned" in out
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]
    found = json.loads(compile_(capsys, "net.onnx", "--trainable", "--json")[1])
    assert [i["name"] for i in found["initializers"] if i["learned"]] == ["enc.0.w", "enc.0.b", "head.w"]
    assert found["initializers"][0]["shape"] == [4, 5] and found["initializers"][0]["count"] == 20
    assert found["warnings"] == []


def test_the_command_line_lists_before_it_refuses(tmp_path, capsys):
    nodes = [("MatMul", "x w", "h"), ("CenterCropPad", "h size", "y", {"axes": [1]})]
    onnx.save(net(nodes, {"w": (4, 3), "size": np.array([3])}), tmp_path / "net.onnx")
    code, out, err = compile_(capsys, tmp_path / "net.onnx", "--trainable")
    assert code == 1
    assert "weight of MatMul 'n0'" in out
    assert "CenterCropPad 'n1': there is no gradient rule" in err


def test_the_command_line_shows_warnings_and_makes_them_errors(tmp_path, capsys):
    nodes = [("MatMul", "x w", "h"), ("Sign", "h", "s"), ("MatMul", "s v", "y")]
    onnx.save(net(nodes, {"w": (4, 4), "v": (4, 3)}), tmp_path / "net.onnx")
    code, _, err = compile_(capsys, tmp_path / "net.onnx", "--trainable")
    assert code == 0 and "net.onnx: warning: no gradient reaches the parameter 'w'" in err
    assert compile_(capsys, tmp_path / "net.onnx", "--trainable", "-W", "error")[0] == 1


def test_patterns_without_a_list_are_refused(tmp_path, capsys):
    onnx.save(two_layers(), tmp_path / "net.onnx")
    code, _, err = compile_(capsys, tmp_path / "net.onnx", "--freeze", "enc.*", "-o", tmp_path / "b")
    assert code == 1 and "add --trainable" in err
    assert not (tmp_path / "b").exists()
    code, _, err = compile_(capsys, tmp_path / "net.onnx", "--trainable", "--train", "enc.1.w")
    assert code == 1 and "did you mean 'enc.0.w'?" in err


def test_a_program_is_not_listed(tmp_path, capsys):
    (tmp_path / "program.py").write_text("def program(): ...\n")
    code, _, err = compile_(capsys, tmp_path / "program.py", "--trainable")
    assert code == 1 and "not a program" in err and "table()" in err


# --- parameters in and out ------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path):
    """A folder with `net.onnx` (two_layers) and `p.npz`, other parameters for it."""
    onnx.save(two_layers(), tmp_path / "net.onnx")
    shapes = {"enc.0.w": (4, 5), "enc.0.b": (5,), "head.w": (5, 3)}
    arrays = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    (tmp_path / "p.npz").write_bytes(pack(arrays, {"slot": "model"}))
    return tmp_path


def bb_host(capsys, *words):
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


def test_trained_parameters_go_back_into_the_file(trained, capsys):
    code, out, _ = bb_host(
        capsys, "export", "--params", trained / "p.npz", trained / "net.onnx", "-o", trained / "t.onnx"
    )
    assert code == 0 and "40 parameters in 3 tensors" in out
    with np.load(trained / "p.npz") as given:
        for tensor in onnx.load(trained / "t.onnx").graph.initializer:
            np.testing.assert_array_equal(numpy_helper.to_array(tensor), given[tensor.name])
    assert learned(str(trained / "t.onnx")) == learned(str(trained / "net.onnx"))


def test_parameters_of_another_model_are_listed(trained, capsys):
    onnx.save(net(LINEAR, WEIGHTS), trained / "other.onnx")
    code, _, err = bb_host(
        capsys, "export", "--params", trained / "p.npz", trained / "other.onnx", "-o", trained / "t.onnx"
    )
    assert code == 1 and not (trained / "t.onnx").exists()
    assert all(f"unknown '{name}'" in err for name in ("enc.0.w", "enc.0.b", "head.w"))
    assert "another export of it" in err


def test_the_names_of_an_optimized_export_are_not_guessed(trained, capsys):
    """BatchNormalization folded into its Conv: the scale is not there any more, and nothing is written."""
    onnx.save(net([("MatMul", "x enc.0.w", "h"), ("MatMul", "h head.w", "y")],
                  {"enc.0.w": (4, 5), "head.w": (5, 3)}), trained / "folded.onnx")  # fmt: skip
    code, _, err = bb_host(
        capsys, "export", "--params", trained / "p.npz", trained / "folded.onnx", "-o", trained / "t.onnx"
    )
    assert code == 1 and "unknown 'enc.0.b'" in err and not (trained / "t.onnx").exists()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("p.npz", "net.onnx", "net.onnx"), "the result would take its place"),
        (("p.npz", "net.onnx", "t.bin"), "write it as t.onnx"),
        (("absent.npz", "net.onnx", "t.onnx"), "No such file"),
        (("net.onnx", "net.onnx", "t.onnx"), "no file of parameters"),
        (("p.npz", "absent.onnx", "t.onnx"), "No such file"),
        (("p.npz", "p.npz", "t.onnx"), "no ONNX model"),
    ],
)
def test_wrong_arguments_of_export(trained, capsys, monkeypatch, wrong, words):
    monkeypatch.chdir(trained)
    before = {p.name: p.read_bytes() for p in trained.iterdir()}
    params, model, out = wrong
    code, _, err = bb_host(capsys, "export", "--params", params, model, "-o", out)
    assert code == 1 and words in err
    assert {p.name: p.read_bytes() for p in trained.iterdir()} == before


def test_a_slot_of_an_ordinary_model_is_refused(trained, capsys):
    command = ("export", "--params", trained / "p.npz", trained / "net.onnx", "-o", trained / "t.onnx")
    code, _, err = bb_host(capsys, *command, "--slot", "model")
    assert code == 1 and "an ordinary model has no slots" in err
    code, _, err = bb_host(
        capsys, "compile", trained / "net.onnx", "--params", f"model={trained / 'p.npz'}", "-o", trained / "b"
    )
    assert code == 1 and "of an ordinary model" in err


def test_an_ordinary_model_is_compiled_with_trained_parameters(trained, capsys):
    code, _, err = bb_host(
        capsys, "compile", trained / "net.onnx", "--params", trained / "p.npz", "-o", trained / "b"
    )
    assert (code, err) == (0, "")
    with np.load(trained / "p.npz") as given:
        x = np.ones((2, 4), np.float32)
        hidden = np.maximum(x @ given["enc.0.w"] + given["enc.0.b"], 0)
        found = bb_edge.open_model(trained / "b" / "net.edge.onnx")(x)
        np.testing.assert_allclose(found, hidden @ given["head.w"], rtol=1e-5)


PROGRAM = """
from bb_edge.components import GraphModel
from bb_host import Compiler, ModelSlot, Module
from bb_host.learn import trainable

class Scores(Module):
    name = "Scores"
    model = ModelSlot("model")

    def body(self, g):
        g.output("y", self.model.forward(g, g.input("x", "F32", (None, 4))))

def program():
    return Scores(), Compiler().bind_model("model", GraphModel, trainable("net.onnx"))
"""


@pytest.fixture
def program(trained, monkeypatch):
    monkeypatch.chdir(trained)
    (trained / "program.py").write_text(PROGRAM)
    return trained / "program.py"


def test_a_program_is_compiled_with_trained_parameters_and_gives_them_back(program, trained, capsys):
    code, _, err = bb_host(capsys, "compile", program, "--params", "model=p.npz", "-o", "b")
    assert (code, err) == (0, "")
    for artifact in ("b/Scores.onnx", "b/Scores.Scores.edge.onnx"):
        out = f"{artifact.rpartition('.')[0]}-model.onnx"
        assert bb_host(capsys, "export", "--params", "p.npz", artifact, "-o", out)[0] == 0
        given = np.load("p.npz")
        for tensor in onnx.load(out).graph.initializer:
            np.testing.assert_array_equal(numpy_helper.to_array(tensor), given[tensor.name])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"head.w": None}, "'head.w' is missing"),
        ({"head.w": np.zeros((5, 4), np.float32)}, "'head.w' is [5, 4], the model's is [5, 3]"),
        ({"head.w": np.zeros((5, 3))}, "'head.w' is float64, the model's is float32"),
        ({"head.W": np.zeros((5, 3), np.float32)}, "unknown 'head.W' (did you mean 'head.w'?)"),
    ],
)
def test_parameters_that_do_not_fit_a_program_are_refused(program, trained, capsys, change, words):
    with np.load("p.npz") as given:
        arrays = {n: given[n] for n in ("enc.0.w", "enc.0.b", "head.w")}
    arrays = {n: a for n, a in {**arrays, **change}.items() if a is not None}
    np.savez("wrong.npz", **arrays)
    code, _, err = bb_host(capsys, "compile", program, "--params", "wrong.npz", "-o", "b")
    assert code == 1 and words in err and "wrong.npz, slot 'model'" in err
    assert not (trained / "b").exists()


def test_a_slot_without_a_model_is_refused(program, capsys):
    code, _, err = bb_host(capsys, "compile", program, "--params", "modle=p.npz", "-o", "b")
    assert code == 1 and "no slot 'modle' is bound to a model (did you mean 'model'?)" in err


# --- names of files -------------------------------------------------------------------------------


def test_artifacts_are_named_after_the_file_and_not_the_graph(trained, capsys):
    assert bb_host(capsys, "compile", trained / "net.onnx", "-o", trained / "b")[0] == 0
    assert sorted(p.name for p in (trained / "b").iterdir()) == ["net.edge.map.json", "net.edge.onnx"]
    assert list(bb_edge.load(trained / "b" / "net.edge.onnx").targets) == ["net"]
    assert bb_host(capsys, "compile", trained / "net.onnx", "--name", "v2", "-o", trained / "c")[0] == 0
    assert sorted(p.name for p in (trained / "c").iterdir()) == ["v2.edge.map.json", "v2.edge.onnx"]


def test_two_models_in_one_folder_do_not_overwrite_each_other(trained, capsys):
    (trained / "other").mkdir()
    onnx.save(net(LINEAR, WEIGHTS), trained / "other" / "net.onnx")
    out = trained / "b"
    assert bb_host(capsys, "compile", trained / "net.onnx", "-o", out)[0] == 0
    before = (out / "net.edge.onnx").read_bytes()
    code, _, err = bb_host(capsys, "compile", trained / "other" / "net.onnx", "-o", out)
    assert code == 1
    assert "it was compiled from ../net.onnx" in err and "--name NAME" in err and "--force" in err
    assert (out / "net.edge.onnx").read_bytes() == before
    assert bb_host(capsys, "compile", trained / "other" / "net.onnx", "-o", out, "--force")[0] == 0
    assert (out / "net.edge.onnx").read_bytes() != before
    assert bb_host(capsys, "compile", trained / "net.onnx", "-o", out, "--name", "n2")[0] == 0


def test_the_same_file_is_compiled_again_whatever_is_in_it(trained, capsys):
    out = trained / "b"
    assert bb_host(capsys, "compile", trained / "net.onnx", "-o", out)[0] == 0
    onnx.save(net(LINEAR, WEIGHTS), trained / "net.onnx")
    assert bb_host(capsys, "compile", trained / "net.onnx", "-o", out)[0] == 0


def test_a_program_does_not_overwrite_another_programs_artifacts(program, trained, capsys):
    assert bb_host(capsys, "compile", program, "-o", "b")[0] == 0
    assert bb_host(capsys, "compile", program, "-o", "b")[0] == 0
    (trained / "copy.py").write_text(PROGRAM)
    code, _, err = bb_host(capsys, "compile", trained / "copy.py", "-o", "b")
    assert code == 1 and "it was compiled from ../program.py" in err
    assert bb_host(capsys, "compile", trained / "copy.py", "-o", "b", "--name", "Copy")[0] == 0
    assert "Copy.Scores.edge.onnx" in {p.name for p in (trained / "b").iterdir()}


def test_a_file_that_is_no_artifact_is_not_overwritten(trained, capsys):
    (trained / "b").mkdir()
    (trained / "b" / "net.edge.onnx").write_bytes((trained / "net.onnx").read_bytes())
    code, _, err = bb_host(capsys, "compile", trained / "net.onnx", "-o", trained / "b")
    assert code == 1 and "it is not a result of bb-host compile" in err


def test_a_name_that_is_none_is_refused(trained, capsys):
    code, _, err = bb_host(capsys, "compile", trained / "net.onnx", "--name", "a/b", "-o", trained / "b")
    assert code == 1 and "--name a_b" in err


def normalized():
    nodes = [
        ("BatchNormalization", "x s b mean var", "n"),
        ("Gemm", "n fc.weight fc.bias", "y", {"transB": 1}),
    ]
    return net(nodes, {"s": (4,), "b": (4,), "mean": (4,), "var": np.ones(4, np.float32), **WEIGHTS})


@pytest.mark.parametrize("frozen", [["mean", "var"], ["s", "b"]])
def test_statistics_that_are_frozen_on_purpose_are_no_warning(frozen):
    assert codes(normalized(), frozen=frozen) == []


def test_a_model_that_no_gradient_reaches_is_refused():
    nodes = [("MatMul", "x w", "h"), ("Round", "h", "y")]
    with refused(LearnError, "reaches any of its parameters", "'w' ends at Round 'n1'", marked=False):
        trainable(net(nodes, {"w": (4, 3)}))


@pytest.mark.parametrize("artifact", ["b/Scores.onnx", "b/Scores.Scores.edge.onnx"])
def test_a_compiled_program_is_no_model_to_train(program, capsys, artifact):
    assert bb_host(capsys, "compile", program, "-o", "b")[0] == 0
    code, _, err = bb_host(capsys, "compile", artifact, "--trainable")
    assert code == 1 and "a compiled program" in err
    with refused(ModelImportError, "it is a program", marked=False):
        trainable(artifact)


def test_parameters_into_an_artifact_without_a_model(program, trained, capsys):
    assert bb_host(capsys, "compile", "net.onnx", "-o", "b")[0] == 0
    code, _, err = bb_host(capsys, "export", "--params", "p.npz", "b/net.edge.onnx", "-o", "t.onnx")
    assert code == 1 and "it holds no model with parameters" in err


def test_a_sparse_weight_is_trained_and_comes_back_dense(trained, capsys):
    model = net([("MatMul", "x enc.0.w", "y")], {}, out=("N", 5))
    values = numpy_helper.from_array(np.float32([2.0]), "enc.0.w")
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([3]), "indices"), [4, 5])
    )
    onnx.save(model, trained / "sparse.onnx")
    assert learned(str(trained / "sparse.onnx")) == ["enc.0.w"]
    np.savez(trained / "w.npz", **{"enc.0.w": np.full((4, 5), 3, np.float32)})
    command = ("--params", trained / "w.npz", trained / "sparse.onnx")
    assert bb_host(capsys, "export", *command, "-o", trained / "t.onnx")[0] == 0
    (tensor,) = onnx.load(trained / "t.onnx").graph.initializer
    assert (numpy_helper.to_array(tensor) == 3).all()
    assert bb_host(capsys, "compile", *command, "-o", trained / "b")[0] == 0
    found = bb_edge.open_model(trained / "b" / "sparse.edge.onnx")(np.ones((1, 4), np.float32))
    assert (np.asarray(found) == 12).all()
