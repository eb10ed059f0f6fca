"""A pass explained: the program before and after it, as a text diff."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from bb_host import Compiler, Module
from bb_host.cli import main
from bb_host.compiler.pipeline import CANONICAL_PASS_NAMES
from bb_host.errors import UnknownStage
from bb_host.explain import explain, pass_name

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
    assert "source=" not in found.before
    assert "…800 bytes" in found.before
    assert max(map(len, found.before.splitlines())) < 300


def test_a_pass_that_changes_nothing_says_so():
    found = explain(Hello(), Compiler(), "validate")
    assert found.diff() == ""
    assert str(found).endswith("validate changes nothing in this program")


def test_passes_have_numbers():
    assert [pass_name(str(n + 1), Compiler()) for n in range(17)] == list(CANONICAL_PASS_NAMES)


@pytest.mark.parametrize("name", ["", "0", "18", "partition"])
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
