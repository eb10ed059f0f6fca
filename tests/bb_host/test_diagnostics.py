"""The channel of warnings: who hands them in, in what order they come, and what `-W` makes of them."""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from pathlib import Path

import pytest

from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_host import Compiler, ModelSlot, Module
from bb_host.build import compile_edge
from bb_host.cli import main
from bb_host.diagnostics import CODES, Policy, ProgramWarning, UnknownWarningCode, in_order, issue
from bb_host.errors import BindingError
from bb_host.ir.construction import ConstructionLike
from bb_host.ir.program import Function
from bb_host.ir.proto import to_bytes
from bb_host.learn.trainable import Construction

CODE = "body-returns-value"


class Returns(Module):
    def body(self, g):  # the line that is named
        x = g.input("x", "F32", (4,))
        g.output("y", x + x)
        return x


class Clean(Module):
    def body(self, g):
        x = g.input("x", "F32", (4,))
        g.output("y", x + x)


class WithModel(Module):
    model = ModelSlot("model")

    def body(self, g):
        g.output("y", self.model.forward(g, g.input("x", "F32", (None, 4))))


class Warns:
    """A configuration that warns about itself."""

    def __init__(self, *found: object) -> None:
        self.found = found

    def construct(self, slot: str) -> ConstructionLike:
        return Construction(b"\xa0", (Function(f"{slot}.forward", keys.COMPONENT_DOMAIN, ("x",), ("x",)),))

    def warnings(self) -> tuple[object, ...]:
        return self.found


class WarningStage:
    """A compiler pass that warns twice, the second time about an earlier line."""

    NAME = "warns"

    def run(self, program, options, stats):
        stats.warn(CODE, "later", "a.py:9", "hint")
        stats.warn(CODE, "earlier", "a.py:3", "hint")
        stats.warn(CODE, "later", "a.py:9", "hint")
        return program


def test_recording_warns_at_the_authors_line():
    (found,) = Returns().record().warnings
    line = Returns.body.__code__.co_firstlineno
    assert (found.code, found.where) == (CODE, f"test_diagnostics.py:{line}")
    assert found.render().startswith(f"test_diagnostics.py:{line}: warning: the body of 'Returns' returns")
    assert found.render().endswith(f"[{CODE}]")
    assert not Clean().record().warnings


def test_passes_warn_in_order_of_lines_and_each_warning_comes_once():
    found = Compiler().with_stage(WarningStage(), after="validate").run(Clean()).warnings
    assert [w.what for w in found] == ["earlier", "later"]


def test_a_configuration_warns_at_the_line_of_its_binding():
    config = Warns(ProgramWarning("component", "it is slow", hint="another"))
    compiler = Compiler().bind_model("model", "bb.GraphModel", config)
    (found,) = compiler.run(WithModel()).warnings
    line = test_a_configuration_warns_at_the_line_of_its_binding.__code__.co_firstlineno + 2
    assert found.render() == f"test_diagnostics.py:{line}: warning: it is slow (another) [component]"


def test_a_configuration_of_a_concrete_slot_warns_at_the_line_of_the_slot():
    slot = ModelSlot("model", "bb.GraphModel", Warns(ProgramWarning("component", "it is slow")))

    class Concrete(WithModel):
        model = slot

    (found,) = Concrete().record().warnings
    assert found.where == slot.where


def test_a_configuration_that_hands_in_something_else_is_refused():
    with pytest.raises(BindingError, match="gives 'slow'"):
        Compiler().bind_model("model", "bb.GraphModel", Warns("slow"))


def test_compile_issues_python_warnings_at_the_authors_line():
    for make in (Compiler().compile, Compiler().compile_program, compile_edge, Module.build):
        with pytest.warns(ProgramWarning) as caught:
            make(Returns())
        (one,) = caught
        assert isinstance(one.message, ProgramWarning)
        assert (Path(one.filename).name, one.lineno) == ("test_diagnostics.py", one.message.line)


def test_python_filters_apply_and_every_compilation_shows_its_own():
    with warnings.catch_warnings():
        warnings.simplefilter("error", ProgramWarning)
        with pytest.raises(ProgramWarning, match="returns Output"):
            Compiler().compile(Returns())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", ProgramWarning)
        Compiler().compile(Returns())
        Compiler().compile(Returns())
    assert len(caught) == 2


def test_warnings_do_not_change_the_bytes():
    program = Returns().record()
    silent = dataclasses.replace(program, warnings=())
    assert to_bytes(Compiler().run(program).program) == to_bytes(Compiler().run(silent).program)
    assert Compiler().run(silent).warnings == ()


def test_codes_are_checked():
    with pytest.raises(UnknownWarningCode, match="did you mean 'unused-slot'"):
        ProgramWarning("unused-slots", "x")
    assert list(CODES) == sorted(CODES)
    assert all(code == code.lower() and " " not in code for code in CODES)


def test_equal_warnings_are_one_and_places_without_lines_come_first():
    a, b = ProgramWarning("component", "a", "p.py:10"), ProgramWarning("component", "b", "p.py:9")
    nowhere = ProgramWarning("component", "c")
    assert in_order([a, b, ProgramWarning("component", "a", "p.py:10"), nowhere]) == (nowhere, b, a)
    assert (nowhere.file, nowhere.line, nowhere.render()) == ("", 0, "bb-host: warning: c [component]")
    with pytest.warns(ProgramWarning):
        issue([nowhere])


def test_a_policy_prefers_the_single_code_and_the_later_option():
    warning = ProgramWarning("unused-slot", "x")
    for options, action in {
        (): None,
        ("error",): "error",
        ("error", "ignore"): "ignore",
        ("error=unused-slot", "ignore"): "error",
        ("error", "ignore=unused-slot"): "ignore",
        ("error=empty-body",): None,
    }.items():
        assert Policy.parse(options).action(warning) == action
    for option in ("warn", "error=", "error=unused", "ignore=unused-slots"):
        with pytest.raises(BBError):
            Policy.parse([option])


# --- the command line -------------------------------------------------------------------------------------

PROGRAM = """
from bb_host import Module

class Returns(Module):
    def body(self, g):
        x = g.input("x", "F32", (4,))
        g.output("y", x + x)
        return x

def program():
    return Returns()
"""
LINE = "returns.py:5: warning: the body of 'Returns' returns Output, which nothing reads"


@pytest.fixture
def compile_file(tmp_path, monkeypatch, capsys):
    """compile_file(*options): exit code, stdout, stderr and the files that were written."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "returns", raising=False)
    file = tmp_path / "returns.py"
    file.write_text(PROGRAM)

    def run(*options: str, verb: str = "compile"):
        out = ["-o", str(tmp_path / "build")] if verb == "compile" else []
        code = main([verb, str(file), *out, *options])
        stdout, stderr = capsys.readouterr()
        return code, stdout, stderr, sorted((tmp_path / "build").glob("*"))

    run.file = file  # type: ignore[attr-defined]
    return run


def test_the_command_line_prints_warnings_to_stderr(compile_file):
    code, _, stderr, files = compile_file()
    assert code == 0 and files
    assert stderr.startswith(LINE) and stderr.endswith(f"[{CODE}]\n") and stderr.count("\n") == 1
    assert compile_file(verb="inspect")[2] == stderr


def test_json_holds_the_warnings(compile_file):
    code, stdout, _, _ = compile_file("--json")
    (found,) = json.loads(stdout)["warnings"]
    assert code == 0
    assert found.keys() == {"code", "what", "where", "hint"}
    assert (found["code"], found["where"]) == (CODE, "returns.py:5")
    assert json.loads(compile_file("--json", "-W", "ignore")[1])["warnings"] == []


@pytest.mark.parametrize("option", ["error", f"error={CODE}"])
def test_w_error_writes_nothing(compile_file, option):
    code, stdout, stderr, files = compile_file("-W", option)
    assert (code, stdout, files) == (1, "", [])
    assert stderr.startswith(LINE.replace("warning", "error"))


@pytest.mark.parametrize("options", [["ignore"], [f"ignore={CODE}"], ["error", f"ignore={CODE}"]])
def test_w_ignore_is_silent(compile_file, options):
    code, _, stderr, files = compile_file(*(f"-W{option}" for option in options))
    assert (code, stderr) == (0, "") and files


def test_an_unknown_code_is_a_wrong_command_line(compile_file, capsys):
    with pytest.raises(SystemExit) as ended:
        compile_file("-W", "error=body-return-value")
    assert ended.value.code == 2
    assert f"did you mean '{CODE}'?" in capsys.readouterr().err


@pytest.mark.parametrize("call", ["Compiler().compile(Returns())", "Returns().build()"])
def test_warnings_of_a_file_that_compiles_by_itself_obey_the_options_too(compile_file, call):
    text = PROGRAM.replace("return Returns()", f"return {call}")
    compile_file.file.write_text(text.replace("import Module", "import Compiler, Module"))
    code, _, stderr, _ = compile_file()
    assert code == 0 and stderr.startswith(LINE) and stderr.count("\n") == 1
    assert compile_file("-W", "error")[0] == 1


def test_a_refused_program_shows_its_warnings_first(compile_file):
    text = PROGRAM.replace("x + x", "ModelSlot('unbound').forward(g, x)")
    compile_file.file.write_text(text.replace("import Module", "import ModelSlot, Module"))
    code, _, stderr, _ = compile_file()
    assert code == 1
    assert [line.split(": ")[1] for line in stderr.splitlines()] == ["warning", "error"]


PARTS = """
from bb_edge.extend import register
from bb_edge.roles import Codec

@register
class Halves(Codec):
    TYPE_NAME = "acme.Halves"

    @classmethod
    def construct(cls, env):
        return cls()

    def compress(self, ctx, t):
        return t

    def decompress(self, ctx, code):
        return code
"""


@pytest.mark.parametrize("verb", ["compile", "graph"])
def test_load_makes_a_type_known(compile_file, tmp_path, capsys, verb):
    text = PROGRAM.replace("        return x\n", "").replace("import Module", "import CodecSlot, Module")
    text = text.replace("x + x", "CodecSlot('codec', 'acme.Halves_VERB').compress(g, x)")
    compile_file.file.write_text(text.replace("VERB", verb))
    out = tmp_path / ("build" if verb == "compile" else "program.dot")
    command = [verb, str(compile_file.file), "-o", str(out)]
    assert main(command) == 0
    assert "[unknown-component]" in capsys.readouterr().err
    parts = tmp_path / f"halves_{verb}.py"
    parts.write_text(PARTS.replace("acme.Halves", f"acme.Halves_{verb}"))
    assert main([*command, "--load", str(parts)]) == 0
    assert capsys.readouterr().err == ""
