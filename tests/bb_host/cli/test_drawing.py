"""Programs as drawings: Graphviz notation, rendered where `dot` is there."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from bb_host import Compiler, Module, S
from bb_host.cli import main
from bb_host.errors import DrawingError
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
    written, remark = write_drawing(compiled, tmp_path / f"ask.{suffix}")
    assert (written.name, remark) == (f"ask.{suffix}", "")
    assert written.read_bytes().startswith(magic)
    assert len(list(tmp_path.iterdir())) == 1


def test_without_dot_the_notation_is_written_and_said_so(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    written, remark = write_drawing(compiled, tmp_path / "ask.svg")
    assert written == tmp_path / "ask.dot"
    assert "not installed" in remark
    assert written.read_text() == draw(compiled)


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
