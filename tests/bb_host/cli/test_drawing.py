"""Programs as drawings: Graphviz notation, rendered where `dot` is there."""

from __future__ import annotations

import dataclasses
import re
import shutil

import numpy as np
import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

import onnx

from bb_host import Compiler, Module, S
from bb_host.cli import main
from bb_host.errors import DrawingError
from bb_host.ir.proto import to_bytes
from bb_host.report.drawing import draw, write_drawing

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed")


class Ask(Module):
    home = "Server"

    def body(self, g):
        x = g.input("x", np.float32, [2])
        r = g.request("ask", g.input("Client", "PeerIdVec"), x, deadline_ns=S, durable=True)
        r.reply(r.value * 2.0)
        g.app_emit("done", r.answer, after=g.pass_through(x))


@pytest.fixture
def compiled():
    return Compiler().compile_program(Ask())


def test_partitions_are_boxes_and_wire_edges_lie_between_them(compiled):
    text = draw(compiled)
    boxes = re.findall(r"subgraph cluster_(\d+) \{\n    label=\"(\w+)\"", text)
    assert boxes == [("0", "Server"), ("1", "Client")]
    wires = re.findall(r'f(\d)_\d+ -> f(\d)_\d+ \[label="([^"]*)", color="#1f5fa8"', text)
    assert wires == [("0", "1", r"ask\nF32[2]\ndurable"), ("1", "0", r"ask\nF32[2]\ndurable")] or wires == [
        ("1", "0", r"ask\nF32[2]\ndurable"),
        ("0", "1", r"ask\nF32[2]\ndurable"),
    ]


def test_constants_are_left_out_and_control_edges_dashed(compiled):
    text = draw(compiled)
    assert "Constant" not in text
    assert 'label="Mul"' in text
    assert "style=dashed" not in draw(Compiler().compile_program(Plain()))


class Plain(Module):
    def body(self, g):
        g.output("y", g.onnx.relu(g.input("x", np.float32, [2])))


def test_recorded_modules_are_boxes_too():
    text = draw(Ask().record())
    assert re.findall(r'label="(\w+) \(Server\)"', text) == ["Ask"]
    assert "SendReqBatched" in text


def test_partitions_alone(compiled):
    text = draw(compiled, ops=False)
    assert "cluster" not in text
    assert re.findall(r'^  f\d_0 \[label="(\w+)', text, re.M) == ["Server", "Client"]
    assert text.count("->") == 2


def test_the_same_program_gives_the_same_text(compiled):
    assert draw(compiled) == draw(Compiler().compile_program(Ask()))


@needs_dot
@pytest.mark.parametrize(("suffix", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_drawings_are_rendered(compiled, tmp_path, suffix, magic):
    write_drawing(compiled, tmp_path / f"ask.{suffix}")
    assert (tmp_path / f"ask.{suffix}").read_bytes().startswith(magic)
    assert len(list(tmp_path.iterdir())) == 1


def test_without_dot_a_picture_is_refused_with_what_to_install(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DrawingError, match=r"`dot` is not installed(?s:.*)graphviz(?s:.*)ask\.dot"):
        write_drawing(compiled, tmp_path / "ask.svg")
    assert not list(tmp_path.iterdir())
    write_drawing(compiled, tmp_path / "ask.dot")
    assert (tmp_path / "ask.dot").read_text() == draw(compiled)


def unsound_model(path, *nodes):
    """An ordinary model from `x` to `y` of these (op type, inputs, output)."""
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xyw"]
    made = [onnx.helper.make_node(op_type, list(inputs), [output]) for op_type, inputs, output in nodes]
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [2], [1.0, 2.0])
    graph = onnx.helper.make_graph(made, "broken", ports[:1], ports[1:2], [weight])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)]), path)
    return str(path)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([("Add", "xb", "a"), ("Relu", "a", "b"), ("Mul", "bw", "y")], "values go round in a circle"),
        ([("Add", "xv", "y")], "reads 'v', which nothing yields"),
        ([("Relu", "x", "z")], "output 'y' is yielded by nothing"),
        ([("Mul", "xw", "y"), ("Relu", "x", "y")], "'y' is yielded by"),
    ],
)
@pytest.mark.parametrize("command", [["inspect"], ["graph", "-o", "model.dot"]])
def test_an_unsound_model_is_shown_and_refused(tmp_path, capsys, monkeypatch, nodes, said, command):
    monkeypatch.chdir(tmp_path)
    assert main([command[0], unsound_model(tmp_path / "m.onnx", *nodes), *command[1:]]) == 1
    shown = capsys.readouterr()
    assert said in shown.err
    assert "ordinary ONNX model" in shown.out or (tmp_path / "model.dot").exists()


@pytest.mark.parametrize("command", [["inspect"], ["graph", "-o", "program.dot"]])
def test_an_unsound_program_is_shown_and_refused(tmp_path, capsys, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    program = Ask().record()
    root = program.functions[0]
    op = next(op for op in root.ops if op.inputs)
    broken = dataclasses.replace(op, inputs=("nowhere", *op.inputs[1:]))
    function = root.with_ops(broken if one is op else one for one in root.ops)
    (tmp_path / "p.onnx").write_bytes(to_bytes(program.with_functions((function, *program.functions[1:]))))
    assert main([command[0], "p.onnx", *command[1:]]) == 1
    assert "reads 'nowhere', which nothing yields" in capsys.readouterr().err


def test_a_sound_model_with_weights_is_no_error(tmp_path):
    path = unsound_model(tmp_path / "m.onnx", ("Mul", "xw", "a"), ("Relu", "a", "y"))
    assert main(["inspect", path]) == 0
    assert main(["graph", path, "-o", str(tmp_path / "m.dot")]) == 0


def test_a_dot_that_fails_leaves_nothing(compiled, tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "dot").write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    (folder / "dot").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    with pytest.raises(DrawingError, match="broken"):
        write_drawing(compiled, tmp_path / "ask.svg")
    assert [p.name for p in tmp_path.iterdir()] == ["bin"]


def test_other_formats_are_refused(compiled, tmp_path):
    with pytest.raises(DrawingError, match="no format"):
        write_drawing(compiled, tmp_path / "ask.jpeg")


def test_the_command_draws_program_files_and_models(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ask.py").write_text(
        "from bb_host import Compiler, Module, S\n\n\n"
        "class Tell(Module):\n    home = 'Server'\n\n    def body(self, g):\n"
        "        x = g.input('x', 'F32', [2])\n"
        "        g.output('y', g.net_out('tell', g.input('Client', 'PeerIdVec'), x))\n\n\n"
        "def program():\n    return Tell(), Compiler()\n"
    )
    assert main(["graph", "ask.py", "-o", "compiled.dot"]) == 0
    assert capsys.readouterr().out == "compiled.dot\n"
    assert (tmp_path / "compiled.dot").read_text().count("subgraph cluster_") == 2
    assert main(["graph", "ask.py", "--recorded", "-o", "recorded.dot"]) == 0
    assert (tmp_path / "recorded.dot").read_text().count("subgraph cluster_") == 1
    assert main(["compile", "ask.py", "-o", "build"]) == 0
    assert main(["graph", "build/Tell.onnx", "--partitions", "-o", "parts.dot"]) == 0
    assert '"Server' in (tmp_path / "parts.dot").read_text()
