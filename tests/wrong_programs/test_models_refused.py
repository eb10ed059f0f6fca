"""Models and options that cannot be meant: each is refused with file, line and a way out."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import bb_edge
from bb_edge.components.parameter_file import METADATA
from bb_host.build import build_edge
from bb_host.cli import main
from bb_host.errors import LearnError, ModelImportError, NotDifferentiableError
from bb_host.learn import trainable
from tests.aids.refusals import refused

RNG = np.random.default_rng(0)


def model(body, opset=18, of="float[N,4] x", to="float[N,3] y", **weights):
    """`weights` are shapes or arrays, by name."""
    found = parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : {opset}]> g ({of}) => ({to}) {{ {body} }}'
    )
    for name, given in weights.items():
        array = given if isinstance(given, np.ndarray) else RNG.standard_normal(given).astype(np.float32)
        found.graph.initializer.append(numpy_helper.from_array(array, name))
    return found


LINEAR = model("y=MatMul(x,w)", w=(4, 3))

PROGRAM = """\
from bb_edge.components import GraphModel
from bb_host import Compiler, ModelSlot, Module
from bb_host.learn import trainable

class Scores(Module):
    name = "Scores"
    model = ModelSlot("model")

    def body(self, g):
        g.output("y", self.model.forward(g, g.input("x", "F32", (None, 4))))

def program():
    net = trainable({call})
    return Scores(), Compiler().bind_model("model", GraphModel, net)
"""
LINE = PROGRAM.splitlines().index("    net = trainable({call})") + 1


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(LINEAR, "net.onnx")
    return tmp_path


@pytest.fixture
def bb_host(capsys):
    def run(*arguments):
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run


@pytest.fixture
def program(here):
    def write(call='"net.onnx"', name="scores.py"):
        (here / name).write_text(PROGRAM.replace("{call}", call))
        return name

    return write


# --- parameters ------------------------------------------------------------------------------------


def test_a_parameter_with_the_name_of_the_metadata_is_refused():
    named = model(f"y=MatMul(x,{METADATA})", **{METADATA: (4, 3)})
    with refused(ModelImportError, METADATA, "rename it"):
        trainable(named)  # <-
    with pytest.raises(LearnError, match="nothing of it is learned"):
        trainable(named, frozen=[METADATA])


def params(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_two_files_for_one_model_are_refused(here, bb_host):
    a, b = (params(f"{n}.npz", w=np.zeros((4, 3), np.float32)) for n in "ab")
    code, _, err = bb_host("compile", "net.onnx", "--params", a, "--params", b)
    assert code == 1 and "the model starts from two files: a.npz, b.npz" in err


@pytest.mark.parametrize("slots", [("", ""), ("", "model="), ("model=", "model="), ("model=", "")])
def test_two_files_for_one_slot_are_refused(here, bb_host, program, slots):
    files = [params(f"{n}.npz", w=np.zeros((4, 3), np.float32)) for n in "ab"]
    given = [option for s, f in zip(slots, files, strict=True) for option in ("--params", s + f)]
    code, _, err = bb_host("compile", program(), *given)
    assert code == 1 and "slot 'model' starts from two files: a.npz, b.npz" in err
    assert not (here / "build").exists()


@pytest.mark.parametrize("which", ["net.onnx", "scores.py"])
def test_parameters_that_are_no_numbers_are_refused(here, bb_host, program, which):
    program()
    path = params("nan.npz", w=np.full((4, 3), np.nan, np.float32))
    code, _, err = bb_host("compile", which, "--params", path)
    assert code == 1 and "'w' holds values that are not numbers (NaN)" in err


@pytest.mark.parametrize("dtype", ["<f8", ">f4"])
def test_parameters_of_another_float_say_how_to_save_them(here, bb_host, program, dtype):
    path = params("p.npz", w=np.zeros((4, 3), dtype))
    code, _, err = bb_host("compile", program(), "--params", path)
    assert code == 1 and "save it as array.astype('float32')" in err


# --- options that --trainable has no use for ------------------------------------------------------

UNUSED = [
    ("--shape", "bogus=1,2"), ("--quantize", "int8"), ("-o", "zz"), ("--ram", "1"), ("--flash", "1"),
    ("--params", "none.npz"), ("--backend", "numpy"), ("--name", "a"), ("--force",), ("--max-batch", "2"),
    ("--calibrate", "none.npz"), ("--keep-float", "a"), ("--like-litert",), ("--interpreter", "1M"),
    ("--target", "portable"), ("--timings",), ("--explain", "backend"),
]  # fmt: skip


@pytest.mark.parametrize("option", UNUSED, ids=lambda o: o[0])
def test_options_that_a_list_does_not_use_are_refused(here, bb_host, option):
    code, out, err = bb_host("compile", "net.onnx", "--trainable", *option)
    name = {"-o": "--out"}.get(option[0], option[0])
    assert (code, out) == (1, "") and f"{name}: --trainable only lists" in err


def test_the_list_takes_what_it_uses(here, bb_host):
    code, _, err = bb_host("compile", "net.onnx", "--trainable", "--freeze", "w", "--json", "-W", "error")
    assert code == 1 and "nothing of it is learned" in err
    assert bb_host("compile", "net.onnx", "--trainable", "--train", "w", "-W", "error")[0] == 0


# --- trainable() in a program ---------------------------------------------------------------------

CROPPED = model("h=MatMul(x,w) m=CenterCropPad<axes=[1]>(h,size) y=Identity(m)", w=(4, 3), size=np.array([3]))
TWO_INPUTS = model("s=Add(x,z) y=MatMul(s,w)", of="float[N,4] x, float[N,4] z", w=(4, 3))
FLOAT8 = model("c=Cast<to=1>(w) y=MatMul(x,c)", opset=19)
FLOAT8.graph.initializer.append(
    onnx.TensorProto(name="w", dims=[4, 3], data_type=onnx.TensorProto.FLOAT8E4M3FN, raw_data=bytes(12))
)
SHORT = model("y=MatMul(x,w)")
SHORT.graph.initializer.append(
    onnx.TensorProto(name="w", dims=[4, 3], data_type=onnx.TensorProto.FLOAT, raw_data=bytes(8))
)
OLD = model("y=MatMul(x,w)", w=(4, 3), of="float[2,4] x", to="float[2,3] y")
OLD.opset_import[0].version = 99
BAD_MODELS = {
    "cropped": (CROPPED, "there is no gradient rule"),
    "two": (TWO_INPUTS, "2 inputs"),
    "float8": (FLOAT8, "float8e4m3fn"),
    "short": (SHORT, "name: w) raw_data size"),
    "opset": (OLD, "opset"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_model_that_cannot_be_trained_names_the_line_and_the_file(here, bb_host, program, case):
    found, words = BAD_MODELS[case]
    onnx.save(found, "bad.onnx")
    code, _, err = bb_host("compile", program('"bad.onnx"'))
    assert code == 1 and err.startswith(f"scores.py:{LINE}: error: bad.onnx")
    assert words in err and err.rstrip().endswith(")"), "no remedy"


WRONG_CALLS = [
    ('"net.onnx", loss="mae"', "unknown loss 'mae'"),
    ('"net.onnx", learning_rate=-1', "learning_rate must be finite, at least 0, not -1"),
    ('"net.onnx", learning_rate="0.1"', "learning_rate must be a number, not '0.1'"),
    ('"net.onnx", learning_rate=True', "learning_rate must be a number, not True"),
    ('"net.onnx", learning_rate=float("nan")', "learning_rate must be finite"),
    ('"net.onnx", momentum=2.0', "momentum must be finite, at least 0 and at most 1, not 2.0"),
    ('"net.onnx", momentum=None', "momentum must be a number, not None"),
    ('"net.onnx", frozen=[3]', "frozen holds names of initializers, not 3"),
    ('"net.onnx", frozen=None', "frozen holds names of initializers, not None"),
    ('"net.onnx", train=7', "train holds names of initializers, not 7"),
    ('"net.onnx", frozen=["nope*"]', "net.onnx: no initializer 'nope*' to freeze"),
    ('"net.onnx", config=[1]', "config is a table of keys and values, not [1]"),
    ("None", "no ONNX model: None"),
    ("3", "no ONNX model: 3"),
    ('"missing.onnx"', "missing.onnx: No such file or directory"),
    ('"."', "it is a folder"),
    ('b"junk"', "no valid ONNX model"),
]


@pytest.mark.parametrize(("call", "words"), WRONG_CALLS)
def test_a_wrong_call_of_trainable_names_the_line(here, bb_host, program, call, words):
    code, _, err = bb_host("compile", program(call))
    assert code == 1 and err.startswith(f"scores.py:{LINE}: error: ")
    assert words in err and err.rstrip().endswith(")"), "no remedy"


def test_at_the_command_line_there_is_only_the_file(here, bb_host):
    onnx.save(CROPPED, "bad.onnx")
    code, _, err = bb_host("compile", "bad.onnx", "--trainable")
    assert code == 1 and err.startswith("bb-host: error: bad.onnx, CenterCropPad")


def test_errors_keep_their_kind():
    with refused(NotDifferentiableError, "CenterCropPad", "there is no gradient rule"):
        trainable(CROPPED)  # <-


@pytest.mark.parametrize(("key", "value"), [("learning_rate", -1), ("learning_rate", "nan"), ("momentum", 2)])
def test_a_device_refuses_what_trainable_refuses(here, bb_host, program, capsys, key, value):
    from bb_edge.cli import main as edge

    assert bb_host("compile", program())[0] == 0
    command = ["check", "build/Scores.Scores.edge.onnx", "--set", f"model.{key}={value}"]
    assert edge(command) == 1
    found = "".join(capsys.readouterr())
    assert key in found and "-inf" not in found


# --- program files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [('os.environ["NOPE"]', "KeyError: 'NOPE'"), ("json.loads('{')", "JSONDecodeError"), ("1 / 0", "Zero")],
)
def test_what_python_raises_is_said_at_the_line_of_the_file(here, bb_host, line, words):
    (here / "prog.py").write_text(f"import json, os\n{line}\n")
    code, _, err = bb_host("compile", "prog.py")
    assert code == 1 and "prog.py:2: error: " in err and words in err


def test_packages_beside_the_program_are_not_the_author(here, bb_host):
    package = here / "venv" / "lib" / "site-packages"
    package.mkdir(parents=True)
    (package / "somebodys.py").write_text("def fails():\n    raise RuntimeError('inside')\n")
    (here / "prog.py").write_text(
        f"import sys\nsys.path.insert(0, {str(package)!r})\nimport somebodys\n\nsomebodys.fails()\n"
    )
    code, _, err = bb_host("compile", "prog.py")
    assert code == 1 and "prog.py:5: error: RuntimeError: inside" in err


# --- what cannot be trained, and what to do instead -----------------------------------------------


def test_the_hint_of_frozen_statistics_names_what_can_be_trained(here):
    found = model(
        "n=BatchNormalization(x,s,b,m,v) y=MatMul(n,w)", w=(4, 3), s=(4,), b=(4,), m=(4,), v=np.ones(4, "f")
    )
    (warning,) = trainable(found).warnings()
    assert warning.code == "frozen-statistics"
    assert 'batch_norm="update"' in warning.hint


def test_a_rank_that_is_unknown_has_a_remedy_that_can_be_followed():
    body = "s=Shape(x) c=ConstantOfShape(s) k=NonZero(c) z=Squeeze(x) h=MatMul(z,w) y=Softmax(h)"
    with refused(NotDifferentiableError, "the rank of", "dynamo=True"):
        trainable(model(body, of="float[N,M,4] x", w=(4, 3)))  # <-


# --- options of an ordinary model -----------------------------------------------------------------


@pytest.mark.parametrize("shape", ["x=0,4", "x=-1,4", "x", "x=a,4", "=1,4"])
def test_shapes_that_are_none_are_refused(here, bb_host, shape):
    code, _, err = bb_host("compile", "net.onnx", "--shape", shape)
    assert code == 1 and f"--shape: '{shape}' is not a shape" in err and "NAME=1,3,224,224" in err


def test_a_shape_given_twice_is_refused(here, bb_host):
    code, _, err = bb_host("compile", "net.onnx", "--shape", "x=1,4", "--shape", "x=2,4")
    assert code == 1 and "'x' is given twice" in err


def test_a_name_of_nothing_is_refused(here, bb_host):
    code, _, err = bb_host("compile", "net.onnx", "--name", "")
    assert code == 1 and "'' is not a valid name for files" in err


# --- ordinary models ------------------------------------------------------------------------------

BF16 = model("c=Cast<to=1>(w) y=MatMul(x,c)", opset=19)
BF16.graph.initializer.append(
    onnx.TensorProto(name="w", dims=[4, 3], data_type=onnx.TensorProto.BFLOAT16, raw_data=bytes(24))
)
NO_NODES = onnx.ModelProto()
NO_NODES.CopyFrom(model("y=Identity(x)", to="float[N,4] y"))
del NO_NODES.graph.node[:]
NO_NODES.graph.output[0].name = "x"
WRONG_MODELS = {
    "float8": (FLOAT8, "float8e4m3fn"),
    "bfloat16": (BF16, "a tensor of bfloat16"),
    "string": (model("y=Identity(x)", of="string[N] x", to="string[N] y"), "strings, only numbers are taken"),
    "complex": (model("y=Identity(x)", of="complex64[N] x", to="complex64[N] y"), "(complex64)"),
    "no nodes": (NO_NODES, "its graph has no nodes"),
    "opset": (OLD, "opset 99"),
}


@pytest.mark.parametrize("case", WRONG_MODELS)
def test_an_ordinary_model_that_is_refused_names_its_file_and_a_remedy(here, bb_host, case):
    found, words = WRONG_MODELS[case]
    onnx.save(found, "wrong.onnx")
    code, _, err = bb_host("compile", "wrong.onnx")
    assert code == 1 and err.startswith("bb-host: error: wrong.onnx") and words in err
    assert err.rstrip().endswith(")"), "no remedy"
    assert "model 'g'" not in err


def test_an_input_may_be_called_self():
    found = model("y=MatMul(self,w)", of="float[N,4] self", w=np.ones((4, 3), np.float32))
    (artifact,) = build_edge(found).artifacts
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(bb_edge.open_model(artifact.data)(self=x), np.full((2, 3), 4.0))


# --- shapes that cannot fit -----------------------------------------------------------------------

MISFITS = {
    "product": model("y=MatMul(x,w)", of="float[N,5] x", w=(4, 3)),
    "sum": model("h=MatMul(x,w) y=Add(h,b)", w=(4, 3), b=(7,)),
    "layer": model("f=Flatten(x) y=Gemm(f,w)", of="float[N,3,2,2] x", w=(11, 3)),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["auto", "numpy"])
@pytest.mark.parametrize("case", MISFITS)
def test_shapes_that_fit_with_no_batch_are_refused(here, bb_host, case, backend):
    onnx.save(MISFITS[case], "misfit.onnx")
    code, _, err = bb_host("compile", "misfit.onnx", "--backend", backend)
    assert code == 1 and err.startswith("bb-host: error: misfit.onnx: cannot run")
    assert "its shapes contradict each other" in err
    assert not (here / "build").exists()


FITTING = {
    "a batch of eight": model("y=Reshape(x,s)", to="float[A,4] y", s=np.array([8, 4])),
    "two that are added": model("y=Add(x,z)", of="float[N,4] x, float[M,4] z", to="float[N,4] y"),
    "a height of sixteen": model(
        "f=Flatten(x) y=MatMul(f,w)", of="float[N,1,H,W] x", to="float[N,3] y", w=(256, 3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FITTING)
def test_shapes_that_fit_with_some_size_are_compiled(here, bb_host, case):
    onnx.save(FITTING[case], "fits.onnx")
    code, _, err = bb_host("compile", "fits.onnx")
    assert (code, err) == (0, "")


# --- parameters that several layers read ----------------------------------------------------------

SHARED = {
    "twice": model("h=MatMul(x,w) r=Relu(h) y=MatMul(r,w)", to="float[N,4] y", w=(4, 4)),
    "through Identity": model(
        "v=Identity(w) h=MatMul(x,w) r=Relu(h) y=MatMul(r,v)", to="float[N,4] y", w=(4, 4)
    ),
    "transposed": model(
        "v=Transpose(w) h=MatMul(x,w) r=Relu(h) y=MatMul(r,v)", to="float[N,4] y", w=(4, 4)
    ),
    "a bias": model(
        "h=MatMul(x,a) i=Add(h,w) r=Relu(i) j=MatMul(r,b) y=Add(j,w)", to="float[N,4] y",
        a=(4, 4), b=(4, 4), w=(4,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SHARED)
def test_a_parameter_that_several_layers_read_is_warned_of(case):
    found = trainable(SHARED[case])
    (warning,) = found.warnings()
    assert warning.code == "shared-parameter" and "'w' is trained as one for " in warning.what
    assert next(i.why for i in found.initializers if i.name == "w").endswith(", and 1 more")
    assert trainable(SHARED[case], train=["w"]).warnings() == ()
    assert trainable(SHARED[case], frozen=["w"], learning=False).warnings() == ()


def test_a_weight_that_is_normalized_has_one_reader():
    found = model("n=Mul(v,v) u=Div(v,n) w=Mul(u,g) y=MatMul(x,w)", v=(4, 3), g=(1, 3))
    assert trainable(found).warnings() == ()


def test_the_warning_of_a_shared_parameter_reaches_the_command_line(here, bb_host, program):
    onnx.save(SHARED["twice"], "net.onnx")
    for arguments in (("net.onnx", "--trainable"), (program(),)):
        code, _, err = bb_host("compile", *arguments, "-W", "error=shared-parameter")
        assert code == 1 and "[shared-parameter]" in err


# --- files ----------------------------------------------------------------------------------------


def test_an_array_for_calibration_that_is_no_input_is_refused(here, bb_host):
    samples = np.arange(32, dtype=np.float32).reshape(8, 4)
    for extra in ("X", "labels"):
        params("cal.npz", x=samples, **{extra: samples})
        code, _, err = bb_host("compile", "net.onnx", "--quantize", "int8", "--calibrate", "cal.npz")
        assert code == 1 and f"{extra!r} is not an input" in err and err.rstrip().endswith(")")
    quantize = ("compile", "net.onnx", "--quantize", "int8", "--calibrate", "cal.npz")
    params("cal.npz", x=samples)
    assert bb_host(*quantize)[0] == 0
    params("cal.npz", x=samples, **{"net.x": samples})  # which has been used, and the other one ignored
    code, _, err = bb_host(*quantize)
    assert code == 1 and "'x' is not used: each target that has this input has an array of its own" in err
    params("cal.npz", **{"net.x": samples})
    assert bb_host(*quantize)[0] == 0
    two = model("y=MatMul(x,w)", of="float[N,4] x, float[N,4] labels", to="float[N,4] y", w=(4, 4))
    onnx.save(two, "net.onnx")
    params("cal.npz", x=samples, labels=samples)
    code, _, err = bb_host(*quantize)
    assert code == 1 and "'labels' is not used: no tensor work reads this input" in err


def test_an_exported_model_and_its_weights_have_one_mode(here, bb_host):
    big = model("y=MatMul(x,w)", of="float[N,64] x", to="float[N,64] y", w=(64, 64))
    onnx.save(big, "big.onnx", save_as_external_data=True, location="big.onnx.data", size_threshold=0)
    params("p.npz", w=np.zeros((64, 64), np.float32))
    assert bb_host("export", "--params", "p.npz", "big.onnx", "-o", "trained.onnx")[0] == 0
    modes = {(here / name).stat().st_mode & 0o777 for name in ("trained.onnx", "trained.onnx.data")}
    assert modes == {0o644}


@pytest.mark.parametrize("arguments", [(), ("--trainable",)])
def test_weights_that_are_missing_are_said_alike(here, bb_host, arguments):
    big = model("y=MatMul(x,w)", of="float[N,64] x", to="float[N,64] y", w=(64, 64))
    onnx.save(big, "big.onnx", save_as_external_data=True, location="big.onnx.data", size_threshold=0)
    (here / "big.onnx.data").unlink()
    code, _, err = bb_host("compile", "big.onnx", *arguments)
    assert code == 1 and "big.onnx: its weights cannot be read" in err and "belongs beside it" in err


@pytest.mark.parametrize("arguments", [(), ("--trainable",)])
def test_an_empty_file_is_said_alike(here, bb_host, arguments):
    (here / "empty.onnx").write_bytes(b"")
    code, _, err = bb_host("compile", "empty.onnx", *arguments)
    assert code == 1 and "empty.onnx: no ONNX model: it is empty" in err


@pytest.mark.parametrize("arguments", [(), ("--trainable",)])
def test_an_opset_of_old_has_a_remedy_that_works(here, bb_host, arguments):
    old = model("y=Gemm<broadcast=1>(x,w,b)", opset=6, w=(4, 3), b=(3,))
    old.ir_version = 3
    for tensor in old.graph.initializer:
        old.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, 1, list(tensor.dims)))
    onnx.save(old, "old.onnx")
    code, _, err = bb_host("compile", "old.onnx", *arguments)
    assert code == 1 and err.startswith("bb-host: error: old.onnx")
    assert "Assertion" not in err and "export it again with opset 13 or later" in err


# --- what PyTorch exports and nobody can train ------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "element", "method"), [("float64", "double", "double"), ("float16",) * 2 + ("half",)]
)
def test_weights_of_another_precision_are_named_with_the_method_that_converts_the_net(dtype, element, method):
    weights = {name: np.ones(shape, dtype) for name, shape in {"w": (4, 3), "b": (3,)}.items()}
    net = model("m=MatMul(x,w)  y=Add(m,b)", of=f"{element}[N,4] x", to=f"{element}[N,3] y", **weights)
    with refused(LearnError, f"its weights are {dtype} (w and 1 more)", "net.float()", f"net.{method}()"):
        trainable(net)  # <-


def test_an_output_with_as_many_rows_as_the_data_say_is_refused_with_the_operator():
    rows = """m=MatMul(x,w)  zero=Constant<value_float=0.0>()  top=ReduceMax<keepdims=0>(m, last)
        asked=Greater(top,zero)  places=NonZero(asked)  at=Transpose(places)  y=GatherND(m,at)"""
    net = model(rows, to="float[K,3] y", w=(4, 3), last=np.array([1]))
    with refused(LearnError, "its output 'y' has as many rows as the data say (NonZero", "torch.where"):
        trainable(net)  # <-
    assert trainable(net, learning=False).gradient is None


def test_places_that_the_data_say_are_trained_where_all_rows_stay():
    rows = """m=MatMul(x,w)  zero=Constant<value_float=0.0>()  asked=Greater(m,zero)  places=NonZero(asked)
        at=Transpose(places)  picked=GatherND(m,at)  twice=Add(picked,picked)  y=ScatterND(m,at,twice)"""
    assert trainable(model(rows, w=(4, 3))).gradient is not None


def test_an_lstm_with_a_projection_is_refused_with_its_layer():
    body = 'y=LSTM<hidden_size=3>(x,w,r,"","",h,c)  z=Squeeze(y,first)'
    net = model(
        body, of="float[5,2,4] x", to="float[5,2,3] z", opset=18, w=(1, 12, 4), r=(1, 12, 3),
        h=np.zeros((1, 2, 3), np.float32), c=np.zeros((1, 2, 8), np.float32), first=np.array([1]),
    )  # fmt: skip
    net.graph.node[0].name = "encoder"
    with refused(NotDifferentiableError, "LSTM 'encoder'", "cell has 8 numbers", "proj_size", "nn.Linear"):
        trainable(net)  # <-


BAGS = """<ir_version: 9, opset_import: ["" : 18]> g (int64[N,3] x, int64 n) => (float[N,2] y) {{
    rows = Gather(table, x)  empty = CastLike(zero, table)  cond = Constant<value = bool {{1}}>()
    last, bags = Loop <body = b (int64 i, bool go, float[2] state) => (bool on, float[2] out, float[2] bag) {{
        on = Identity(go)  row = Gather({read}, i)  axis = Constant<value_ints = [0]>()
        bag = ReduceSum<keepdims = 0>(row, axis)  out = Identity(bag)
    }}> (n, cond, start)
    y = MatMul(bags, w)
}}"""


@pytest.mark.parametrize("read", ["rows", "table3"])
def test_bags_of_an_open_number_are_refused_or_told_with_the_layer_that_trains(read):
    net = parser.parse_model(BAGS.format(read=read))
    arrays = {
        "table": (7, 2),
        "w": (2, 2),
        "start": np.zeros(2, np.float32),
        "zero": np.float64(0),
        "table3": (4, 3, 2),
    }
    for name, given in arrays.items():
        array = np.asarray(given) if isinstance(given, (np.ndarray, np.float64)) else RNG.normal(size=given)
        kept = array if name == "zero" else array.astype(np.float32)
        net.graph.initializer.append(numpy_helper.from_array(kept, name))
    net.graph.input.pop()  # the number of steps: of the batch
    net.graph.node.insert(0, onnx.helper.make_node("Gather", ["sizes", "first"], ["n"]))
    net.graph.node.insert(0, onnx.helper.make_node("Shape", ["x"], ["sizes"]))
    net.graph.initializer.append(numpy_helper.from_array(np.array(0), "first"))
    if read == "rows":
        words = ("Loop", "its subgraph reads what is to be trained", "nn.EmbeddingBag", ".mean(1)")
        with refused(NotDifferentiableError, *words):
            trainable(net)  # <-
    else:
        (warning,) = (w for w in trainable(net).warnings() if w.code == "weights-in-loop")
        assert "nn.EmbeddingBag" in warning.hint
