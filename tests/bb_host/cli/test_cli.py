"""`bb-host` as its user calls it, through `main` and once as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from host_commands import run

from bb_edge.ir.errors import BBError
from bb_host.cli import error_line, main

PROGRAM = """
from __future__ import annotations
from bb_host import Compiler, Module
import helper_beside

class Classify(Module):
    name = "Classify"

    def body(self, g):
        x = g.input("x", "F32", (None, 4))
        g.output("y", g.onnx.softmax(x * helper_beside.SCALE, axis=1))

def program():
    return Classify(), Compiler()
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """write(text, name="classify.py"): a file beside `helper_beside.py`, which the program imports."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("classify", "helper_beside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "helper_beside.py").write_text("SCALE = 2.0\n")

    def put(text: str, name: str = "classify.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return put


def test_a_file_in_place_of_the_folder_is_refused_and_kept(write, tmp_path, capsys):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    code, _, err = run(capsys, "compile", write(PROGRAM), "-o", taken)
    assert (code, taken.read_text()) == (1, "mine")
    assert f"{taken}: it is a file" in err
    assert "name a folder: -o build" in err
    code, _, err = run(capsys, "compile", write(PROGRAM), "-o", taken / "build")
    assert code == 1 and "(a part of the path is a file: name a folder)" in err


def test_compile_writes_the_artifacts_and_reports(write, tmp_path, capsys):
    code, out, err = run(
        capsys, "compile", write(PROGRAM), "--target", "edge", "-o", tmp_path / "build", "--timings"
    )
    assert (code, err) == (0, "")
    names = sorted(p.name for p in (tmp_path / "build").iterdir())
    assert names == ["Classify.Classify.edge.map.json", "Classify.Classify.edge.onnx", "Classify.onnx"]
    assert "Classify.Classify.edge.onnx" in out
    assert "type_solver" in out and "collapse" in out


def test_compile_reports_as_json(write, tmp_path, capsys):
    code, out, _ = run(capsys, "compile", write(PROGRAM), "-o", tmp_path / "build", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["module"] == "Classify"
    assert len(found["files"]) == 3
    (target,) = found["targets"]
    assert target["bytes_after"] == found["bytes"]["Classify.Classify.edge.onnx"]
    names = [row["name"] for row in found["passes"]]
    assert len(set(names)) == len(names) >= 17 + 8
    assert {"to_proto", "collapse", "quantize", "strip", "lower", "plan", "seal", "check"} <= set(names)


def test_portable_target(write, tmp_path, capsys):
    code, _, _ = run(capsys, "compile", write(PROGRAM), "--target", "portable", "-o", tmp_path / "build")
    assert code == 0
    assert [p.name for p in (tmp_path / "build").iterdir()] == ["Classify.onnx"]


@pytest.mark.parametrize("returns", ["Classify()", "Classify().build()", "(Classify(), Compiler())"])
def test_what_program_may_return(returns, write, tmp_path, capsys):
    text = PROGRAM.replace("return Classify(), Compiler()", f"return {returns}")
    code, _, err = run(capsys, "compile", write(text), "-o", tmp_path / "build")
    assert (code, err) == (0, "")


def test_a_program_file_does_not_stand_in_for_a_module_of_its_name(write, tmp_path, capsys):
    text = PROGRAM.replace("import helper_beside\n", "import json, helper_beside\nassert json.dumps\n")
    code, _, err = run(capsys, "compile", write(text, "json.py"), "-o", tmp_path / "build")
    assert (code, err) == (0, "")
    assert sys.modules["json"] is json


def test_inspect_every_form(write, tmp_path, capsys):
    path = write(PROGRAM)
    run(capsys, "compile", path, "-o", tmp_path / "build")
    for file, form in (
        (path, "recorded"),
        (tmp_path / "build" / "Classify.onnx", "compiled"),
        (tmp_path / "build" / "Classify.Classify.edge.onnx", "edge"),
    ):
        code, out, _ = run(capsys, "inspect", file, "--json")
        assert code == 0
        assert json.loads(out)["form"] == form
        assert form in run(capsys, "inspect", file)[1]


def test_version(capsys):
    assert "onnx " in run(capsys, "version")[1]
    assert json.loads(run(capsys, "version", "--json")[1])["numpy"]


# --- errors ---------------------------------------------------------------------------------------

REFUSED = {
    "an error of recording, at the author's line": (
        PROGRAM.replace('g.output("y"', 'g.input("x", "F32", (None, 4))\n        g.output("y"'),
        r"classify.py:11: error: ",
    ),
    "an exception in the author's code": (
        PROGRAM.replace("helper_beside.SCALE", "helper_beside.SCALES"),
        r"classify.py:11: error: AttributeError: ",
    ),
    "a syntax error": (
        PROGRAM.replace("def program():", "def program(:"),
        r"classify.py:13: error: SyntaxError: ",
    ),
    "a module that is not there": (
        PROGRAM.replace("import helper_beside", "import no_such_module_here"),
        r"classify.py:4: error: ModuleNotFoundError: ",
    ),
    "no program()": (PROGRAM.replace("def program", "def other"), "no function program()"),
    "program() that returns nothing": (PROGRAM.replace("return Cl", "Cl"), "returns nothing"),
    "program() that returns too much": (
        PROGRAM.replace("Compiler()\n", "Compiler(), 1\n"),
        "returns 3 values",
    ),
    "program() that returns something else": (
        PROGRAM.replace("return Classify(), Compiler()", "return 7"),
        "is not a program",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_one_line_without_a_traceback(name, write, tmp_path, capsys):
    text, expected = REFUSED[name]
    code, out, err = run(capsys, "compile", write(text), "-o", tmp_path / "build")
    assert (code, out) == (1, "")
    assert expected in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert not (tmp_path / "build").exists()


@pytest.mark.parametrize("left", [None, b"short"], ids=["absent", "cut off"])
def test_weights_in_another_file_are_read_or_refused(left, tmp_path, capsys):
    value = onnx.helper.make_tensor_value_info
    weights = onnx.numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "net", [value("x", 1, [2, 4])], [value("y", 1, [2, 3])], [weights])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    file, beside = tmp_path / "net.onnx", tmp_path / "net.data"
    onnx.save(model, file, save_as_external_data=True, location=beside.name, size_threshold=0)
    assert run(capsys, "compile", file, "-o", tmp_path / "build")[0] == 0
    beside.unlink()
    if left is not None:
        beside.write_bytes(left)
    code, out, err = run(capsys, "compile", file, "-o", tmp_path / "again")
    assert (code, out) == (1, "")
    assert "its weights cannot be read" in err or "tensor 'w': 5 bytes" in err  # the latter before onnx 1.17
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("absent.py", None, "no such file"),
        ("absent.onnx", None, "No such file"),
        ("damaged.onnx", b"\xff\xff", "no ONNX model"),
        ("notes.txt", b"hello", "neither .py nor .onnx"),
    ],
)
@pytest.mark.parametrize("verb", ["compile", "inspect"])
def test_files_that_are_none(verb, name, content, expected, tmp_path, capsys):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    more = ["-o", str(tmp_path / "build")] if verb == "compile" else []
    code, _, err = run(capsys, verb, path, *more)
    assert code == 1
    assert expected in err and name in err


def test_a_shape_that_is_none(write, tmp_path, capsys):
    code, _, err = run(capsys, "compile", write(PROGRAM), "--shape", "x=a,b", "-o", tmp_path / "build")
    assert code == 1
    assert "NAME=1,3,224,224" in err


def test_a_wrong_command_line_is_two(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["compile"])
    assert caught.value.code == 2


def test_without_the_host_extra_it_says_what_to_install(write, capsys, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "onnx" else real(name, *a)
    )
    code, _, err = run(capsys, "compile", write(PROGRAM))
    assert code == 1
    assert "pip install 'bytesandbrains-edge[host]'" in err
    assert run(capsys, "version")[0] == 0


def test_the_command_starts_without_onnx():
    """--help must work on an edge install: nothing of the host extra is imported for it."""
    script = "import sys; sys.modules['onnx'] = None\nfrom bb_host.cli import main\nmain(['version'])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_the_authors_line_leads():
    assert error_line(BBError("bad", "fed.py:12", "do so")) == "fed.py:12: error: bad (do so)"
    assert error_line(BBError("bad", "fed.py:12, Relu 'x'")) == "fed.py:12: error: Relu 'x': bad"
    assert error_line(BBError("bad", "slot 'x'")) == "bb-host: error: slot 'x': bad"
    assert error_line(BBError("two\nlines", "fed.py:1")) == "fed.py:1: error: two lines"


def test_an_ordinary_model_compiles(tmp_path, capsys):
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, tmp_path / "net.onnx")
    code, _, err = run(capsys, "compile", tmp_path / "net.onnx", "--shape", "x=1,4", "-o", tmp_path)
    assert (code, err) == (0, "")
    assert (tmp_path / "net.edge.onnx").exists()
    assert json.loads(run(capsys, "inspect", tmp_path / "net.edge.onnx", "--json")[1])["form"] == "edge"


ORDINARY = """<ir_version: 8, opset_import: ["": 17]>
    net (float[N, 3] x) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>
    { a = MatMul (x, w)  b = Identity (a)  c = Tan (b)  d = Tan (c)  y = Relu (d) }"""


@pytest.fixture
def ordinary(tmp_path):
    """A file with an ordinary model; `ordinary(old, new)` with another operator in it."""

    def saved(old="", new=""):
        path = tmp_path / "net.onnx"
        onnx.save(onnx.parser.parse_model(ORDINARY.replace(old, new)), path)
        return path

    return saved


def test_inspect_says_what_an_ordinary_model_holds_and_who_runs_it(ordinary, capsys):
    code, out, _ = run(capsys, "inspect", ordinary())
    assert code == 0
    assert "  inputs: x: Tensor<F32>[N,3]\n  outputs: y: Tensor<F32>[N,2]\n  5 ops: " in out
    assert "  parameters: 6 in 1 tensor\n" in out
    assert "  backend numpy: 4 of 4 ops, after clean-up\n" in out
    assert "    Tan (2 times) stays: there is no rule for it\n" in out
    backends = json.loads(run(capsys, "inspect", ordinary(), "--json")[1])["backends"]
    assert backends["ops"] == 4
    assert backends["tflite"] + sum(entry["times"] for entry in backends["stays"]) == 4


def test_inspect_says_why_nobody_runs_an_ordinary_model(ordinary, capsys):
    code, out, _ = run(capsys, "inspect", ordinary("= Relu", "= RandomNormalLike"))
    assert code == 0
    assert "RandomNormalLike 1" in out
    assert "  no backend runs it: cannot run RandomNormalLike (opset 17) at RandomNormalLike → y" in out


def test_inspect_names_the_element_type_of_what_no_backend_takes(tmp_path, capsys):
    onnx = pytest.importorskip("onnx")
    kind = onnx.TensorProto.STRING
    ports = [
        onnx.helper.make_tensor_value_info(name, kind, shape)
        for name, shape in (("x", ["N", None, 3]), ("y", None))
    ]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])], "g", ports[:1], ports[1:]
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "words.onnx")
    out = run(capsys, "inspect", tmp_path / "words.onnx")[1]
    assert "  inputs: x: string[N,?,3]\n  outputs: y: string\n" in out


@pytest.mark.parametrize("last", ["Relu", "RandomNormalLike"])
def test_an_ordinary_model_is_drawn(last, ordinary, tmp_path, capsys):
    model = ordinary("= Relu", f"= {last}")
    assert run(capsys, "graph", model, "-o", tmp_path / "net.dot")[0] == 0
    code, _, err = run(capsys, "graph", model, "-o", tmp_path / "net.dot", "--recorded")
    assert code == 1 and "--recorded has no effect" in err
    drawn = (tmp_path / "net.dot").read_text()
    assert [drawn.count(f'label="{op}"') for op in ("MatMul", "Identity", "Tan", last)] == [1, 1, 2, 1]
    assert 'label="x: F32[N,3]", shape=ellipse' in drawn
    assert '[label="F32[N,2]"]' in drawn
    assert " w" not in drawn
    assert drawn.count("->") == 6


def test_a_drawing_of_a_damaged_model_is_refused(ordinary, tmp_path, capsys):
    path = ordinary()
    model = onnx.load(path)
    damaged = model.graph.sparse_initializer.add(dims=[4])
    damaged.values.CopyFrom(onnx.numpy_helper.from_array(np.ones(2, np.float32), "broken"))
    damaged.indices.CopyFrom(onnx.numpy_helper.from_array(np.array([0, 9]), "places"))
    onnx.save(model, path)
    code, _, err = run(capsys, "graph", path, "-o", tmp_path / "net.dot")
    assert code == 1
    assert err.startswith("bb-host: error: model 'net': its graph cannot be read: ")
    assert "broken" in err
