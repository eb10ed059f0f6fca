"""Own components on the host and in files: neighbours of one name, backends and passes of nonsense."""

from __future__ import annotations

import dataclasses
import pydoc
import subprocess
import sys

import pytest

import bb_edge.extend
from bb_edge.extend import Backend, Codec, register
from bb_host import CodecSlot, Compiler, Module
from bb_host.errors import BindingError, StageError
from tests.aids.refusals import refused


class Sums(Module):
    def body(self, g):
        g.output("y", g.input("x", "F32", (2, 3)) + 1.0)


# --- files ----------------------------------------------------------------------------------------------

COMPONENT = """
from bb_edge.extend import *
from neigh import K
@register
class C(Codec):
    TYPE_NAME = "acme.C{n}"
    @classmethod
    def construct(cls, env): return cls()
    def compress(self, ctx, t): return t * K
    def decompress(self, ctx, code): return code
"""


def loaded(folder, *files):
    code = "import sys; from bb_edge.registry import load_all\ntry: load_all(sys.argv[1:])\n"
    code += "except Exception as e: print(type(e).__name__, e)"
    done = subprocess.run([sys.executable, "-c", code, *files], cwd=folder, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize("first_imports", [True, False])
def test_two_neighbours_of_one_name(tmp_path, first_imports):
    for name, k in (("a", 10), ("b", 1000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "neigh.py").write_text(f"K = {k}\n")
        text = COMPONENT.replace("{n}", name)
        if name == "a" and not first_imports:
            text = text.replace("from neigh import K", "K = 1")
        (tmp_path / name / "comp.py").write_text(text)
    said = loaded(tmp_path, "a/comp.py", "b/comp.py")
    assert said.startswith(
        "RegistryError b/comp.py:3: it imports 'neigh', but gets a/neigh.py and not b/neigh.py"
    ), said
    assert "another name" in said
    assert loaded(tmp_path, "b/comp.py") == ""


def test_two_files_with_neighbours_of_their_own(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"neigh_{name}.py").write_text("K = 1\n")
        text = COMPONENT.replace("{n}", name).replace("from neigh ", f"from neigh_{name} ")
        (tmp_path / name / "comp.py").write_text(text)
    assert loaded(tmp_path, "a/comp.py", "b/comp.py") == ""


def test_help_of_what_components_import():
    assert "Codec" in pydoc.render_doc(bb_edge.extend)


# --- backends -------------------------------------------------------------------------------------------


def backend_of(answer):
    members = {
        "supported_ops": classmethod(lambda cls: answer()),
        "execute": lambda self, graph, inputs, attrs=None: {},
    }
    members["construct"] = classmethod(lambda cls, env: cls())
    return type("Own", (Backend,), {"TYPE_NAME": "acme.Own", **members})


@pytest.mark.parametrize("answer", [lambda: None, lambda: 3, lambda: {}["x"]])
def test_a_backend_that_cannot_say_what_it_has(answer):
    compiler = Compiler().bind_backend("backend", backend_of(answer))
    with refused(BindingError, "acme.Own cannot say whether it has ", "frozenset", marked=False):
        compiler.compile(Sums())


class Trained(Module):
    codec = CodecSlot("codec")

    def body(self, g):
        x = g.input("x", "F32", (2,))
        trained = self.codec.train_codebook(g, x)  # <-
        g.output("y", self.codec.compress(g, x, after=trained))


def test_an_optional_op_that_the_class_leaves_out():
    members = {"construct": classmethod(lambda cls, env: cls()), "compress": lambda self, ctx, t: t}
    members["decompress"] = lambda self, ctx, code: code
    kind = register(type("Plain", (Codec,), {"TYPE_NAME": "acme.Untrained", **members}))
    with refused(BindingError, "acme.Untrained does not offer TrainCodebook", "define train_codebook"):
        Compiler().bind_codec("codec", kind).compile(Trained())


# --- passes ---------------------------------------------------------------------------------------------


class Nonsense:
    NAME = "nonsense"

    def __init__(self, act):
        self.act = act

    def run(self, program, options, stats):  # <-
        return self.act(program, stats)


def with_ops(change):
    def act(program, stats):
        first, *rest = program.functions
        return dataclasses.replace(
            program, functions=(dataclasses.replace(first, ops=change(first.ops)), *rest)
        )

    return act


def warns(program, stats):
    stats.warn("component", "odd", program.functions[0].ops[0])
    return program


PASSES = {
    "nothing": (lambda program, stats: None, "returns nothing"),
    "no functions": (lambda p, s: dataclasses.replace(p, functions=()), "whose functions are ()"),
    "functions of nothing": (lambda p, s: dataclasses.replace(p, functions=None), "whose functions are None"),
    "no function": (lambda p, s: dataclasses.replace(p, functions=("f",)), "with 'f' among its functions"),
    "ops of nothing": (with_ops(lambda ops: None), "whose ops are None"),
    "no op": (with_ops(lambda ops: (*ops, "x")), "with 'x' among its ops"),
    "a warning at an op": (warns, "warns at <Op Constant"),
}


@pytest.mark.parametrize("case", PASSES)
def test_a_pass_that_gives_nonsense(case):
    act, words = PASSES[case]
    compiler = Compiler().with_stage(Nonsense(act), after="validate")
    with refused(StageError, "stage 'nonsense'", words):
        compiler.compile(Sums())
