"""A pass explained: the program before and after it, as a text diff."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

import onnx
import onnx.parser

from bb_host import Compiler, Module
from bb_host.cli import main
from bb_host.errors import UnknownStage
from bb_host.passes.pipeline import CANONICAL_PASS_NAMES
from bb_host.report.explain import explain, pass_name

PROGRAM = """
from bb_host import Compiler, Module

class Hello(Module):
    home = "Server"

    def body(self, g):
        x = g.input("x", "F32", [200])
        big = g.constant([float(n) for n in range(200)])
        there = g.net_out("hello", g.input("Client", "PeerIdVec"), x + big)
        g.app_emit("said", there)

def program():
    return Hello(), Compiler()
"""


class Hello(Module):
    home = "Server"

    def body(self, g):
        x = g.input("x", "F32", [200])
        big = g.constant([float(n) for n in range(200)])
        there = g.net_out("hello", g.input("Client", "PeerIdVec"), x + big)
        g.app_emit("said", there)


def test_the_diff_shows_what_the_pass_rewrote():
    found = explain(Hello(), Compiler(), "synthesize_wire_recvs")
    lines = found.diff().splitlines()
    assert lines[:2] == ["--- before synthesize_wire_recvs", "+++ after synthesize_wire_recvs"]
    gone = [line for line in lines[2:] if line.startswith("-")]
    new = [line for line in lines[2:] if line.startswith("+")]
    assert len(gone) == 1
    assert "wire.Send(" in gone[0]
    assert ["wire.Send(" in line for line in new] == [True, False]
    assert "wire.Recv()" in new[1]
    assert found.report.counters == {"wire_recvs_synthesized": 1}


def test_source_lines_and_long_values_are_left_out():
    found = explain(Hello(), Compiler(), "validate")
    ((_, before, _),) = found.runs
    assert "source=" not in before
    assert "…800 bytes" in before
    assert max(map(len, before.splitlines())) < 300


def test_a_pass_that_changes_nothing_says_so():
    found = explain(Hello(), Compiler(), "validate")
    assert found.diff() == ""
    assert str(found).endswith("validate changes nothing in this program")


def test_passes_have_numbers():
    assert [pass_name(str(n + 1), Compiler()) for n in range(len(CANONICAL_PASS_NAMES))] == list(
        CANONICAL_PASS_NAMES
    )


@pytest.mark.parametrize("name", ["", "0", str(len(CANONICAL_PASS_NAMES) + 1), "partition"])
def test_unknown_passes_are_refused(name):
    with pytest.raises(UnknownStage, match="no pass"):
        explain(Hello(), Compiler(), name)


def test_a_pass_that_is_left_out_cannot_be_explained():
    with pytest.raises(UnknownStage, match="did not run"):
        explain(Hello(), Compiler().without_stage("derive_wire_deadlines"), "derive_wire_deadlines")


def test_a_stage_of_the_users_own_can_be_explained():
    class Rename:
        NAME = "rename"

        def run(self, program, options, stats):
            stats.count("renamed")
            return program

    compiler = Compiler().with_stage(Rename(), after="expand_ops")
    report = explain(Hello(), compiler, "rename").report
    assert report is not None
    assert report.counters == {"renamed": 1}


def test_the_command_prints_and_writes_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "hello.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    assert main(["compile", "hello.py", "--explain", "8"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "+function program.Client(" in out
    assert [p.name for p in tmp_path.iterdir() if p.name != "__pycache__"] == ["hello.py"]
    assert main(["compile", "hello.py", "--explain", "none"]) == 1
    assert "no pass 'none'" in capsys.readouterr().err


def test_passes_over_targets_are_explained_for_each_target(tmp_path, monkeypatch, capsys):
    (tmp_path / "hello.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    assert main(["compile", "hello.py", "--explain", "collapse"]) == 0
    assert re.search(r"^\+function .*subgraph_", capsys.readouterr().out, re.MULTILINE)
    assert main(["compile", "hello.py", "--explain", "strip"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("--- ")] == [
        "--- before strip of Server",
        "--- before strip of Client",
    ]
    assert [p.name for p in tmp_path.iterdir() if p.name != "__pycache__"] == ["hello.py"]


def test_passes_over_an_ordinary_model_are_explained_round_by_round(tmp_path, capsys):
    text = """<ir_version: 8, opset_import: ["": 17]>
        net (float[2, 3] x) => (float[2, 3] y) { a = Identity (x)  y = Relu (a) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    given = str(tmp_path / "net.onnx")
    assert main(["compile", given, "--explain", "identities"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if "Identity" in line and line.startswith("-")]
    assert main(["compile", given, "--explain", "check"]) == 0
    assert "check changes nothing in this program" in capsys.readouterr().out


def test_clean_up_of_a_program_is_explained_function_by_function(tmp_path, capsys):
    (tmp_path / "hello.py").write_text(PROGRAM.replace("x + big", "g.onnx.identity(x) + big"))
    assert main(["compile", str(tmp_path / "hello.py"), "--explain", "identities"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^--- before identities of subgraph_", out, re.MULTILINE)
    assert [line for line in out.splitlines() if "Identity" in line and line.startswith("-")]


def test_a_pass_over_programs_does_not_run_over_an_ordinary_model(tmp_path, capsys):
    text = """<ir_version: 8, opset_import: ["": 17]>
        net (float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    assert main(["compile", str(tmp_path / "net.onnx"), "--explain", "place"]) == 1
    assert "no pass 'place'" in capsys.readouterr().err
    assert main(["compile", str(tmp_path / "net.onnx"), "--explain", "validate"]) == 1
    err = capsys.readouterr().err
    assert "validate is a pass over recorded programs, and this is an ordinary ONNX model" in err
    assert "identities" in err


def test_a_pass_over_an_ordinary_model_shows_also_where_the_model_is_refused_later(tmp_path, capsys):
    text = '<ir_version: 8, opset_import: ["": 17]> m (float[2] x) => (float[2] y)'
    nodes = "a = Identity(x) y = RandomNormalLike(a)"
    onnx.save(onnx.parser.parse_model(f"{text} {{ {nodes} }}"), tmp_path / "m.onnx")
    assert main(["compile", str(tmp_path / "m.onnx"), "--explain", "identities"]) == 1
    shown = capsys.readouterr()
    assert "-  a: F32[2] = Identity(x)" in shown.out
    assert "RandomNormalLike" in shown.err
