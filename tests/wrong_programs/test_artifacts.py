"""Artifacts of other versions, artifacts that are too large, and program files that `bb-host` cannot take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bb_edge import load
from bb_edge.components import ArrayDataSource, GraphModel
from bb_edge.ir import keys
from bb_edge.ir.onnx_pb2 import ModelProto
from bb_edge.ir.opsets import opset
from bb_edge.loading import IncompatibleRuntime
from bb_host import Compiler, DataSourceSlot, Graph, ModelSlot, Module, cli
from bb_host.build import compile_edge
from bb_host.errors import (
    ArtifactTooLargeError,
    StageError,
    TooLargeError,
    TypeConstraintFailed,
    UnknownStage,
)
from bb_host.ir import artifact_size
from bb_host.ir.program import Program
from bb_host.learn import mlp, trainable
from bb_host.report.explain import explain
from tests.aids.refusals import refused
from tests.aids.seals import resealed


class Learns(Module):
    def body(self, g: Graph) -> None:
        model, data = ModelSlot("model"), DataSourceSlot("data")
        x, y = data.next_batch(g)
        g.output("loss", model.evaluate(g, x, y))


def artifact() -> ModelProto:
    compiler = Compiler().bind_model("model", GraphModel, trainable(mlp([4, 2])))
    compiler = compiler.bind_data_source("data", ArrayDataSource, {"path": "x.npz", "one_hot": 2})
    (found,) = compile_edge(Learns(), compiler).artifacts
    return ModelProto.FromString(found.data)


# --- versions of opsets

OURS = (
    keys.ROLE_MODEL_DOMAIN,
    keys.ROLE_DATA_LOADER_DOMAIN,
    keys.PROGRAM_DOMAIN,
    keys.COMPONENT_DOMAIN,
)


@pytest.mark.parametrize("domain", OURS)
@pytest.mark.parametrize("version", [7, 0])
@pytest.mark.parametrize("place", ["model", "function"])
def test_a_version_of_our_domains_that_this_runtime_does_not_know(
    domain: str, version: int, place: str
) -> None:
    found = artifact()
    imports = found.opset_import if place == "model" else found.functions[0].opset_import
    for o in found.opset_import if version == 0 else ():
        o.version = 0 if o.domain == domain else o.version
    for function in found.functions if version == 0 else ():
        for o in function.opset_import:
            o.version = 0 if o.domain == domain else o.version
    if version:
        del_domain(imports, domain)
        imports.add(domain=domain, version=version)
    known = 1 if (table := opset(domain)) is None else table.version
    with refused(IncompatibleRuntime, domain, f"version {version}", f"knows version {known}", marked=False):
        load(resealed(found))


def del_domain(imports: Any, domain: str) -> None:
    for index in reversed(range(len(imports))):
        if imports[index].domain == domain:
            del imports[index]


def test_a_domain_of_ours_that_this_runtime_does_not_have() -> None:
    found = artifact()
    future = f"{keys.PREFIX}.telepathy"
    found.opset_import.add(domain=future, version=1)
    with refused(IncompatibleRuntime, future, "update the runtime", marked=False):
        load(resealed(found))


@pytest.mark.parametrize("domain", [keys.ROLE_MODEL_DOMAIN, keys.ONNX_DOMAIN])
def test_a_domain_that_is_used_and_not_imported(domain: str) -> None:
    found = artifact()
    for imports in (found.opset_import, *(f.opset_import for f in found.functions)):
        del_domain(imports, domain)
    with refused(IncompatibleRuntime, domain or "ai.onnx", "compile the program again", marked=False):
        load(resealed(found))


def test_domains_of_others_are_not_ours_to_check() -> None:
    found = artifact()
    found.opset_import.add(domain="acme.sensors", version=12)
    assert load(resealed(found)).opsets["acme.sensors"] == 12


# --- sizes


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files hold 4000 bytes: as 2 GiB, only sooner."""
    monkeypatch.setattr(artifact_size, "MAX_BYTES", 4000)


LARGE: list[Callable[[Graph], Any]] = [
    lambda g: g.constant(np.zeros(1001, np.float32)),  # <-
    lambda g: g.onnx.constant(np.zeros(501)),  # <-
    lambda g: g.onnx.zeros([1001]),  # <-
    lambda g: g.onnx.ones([10**9, 10**9], "F64"),  # <-
    lambda g: g.input("x", np.float32) + np.zeros(1001, np.float32),  # <-
    lambda g: g.onnx.constant([0] * 501),  # <-
]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("constant", LARGE, ids=range(len(LARGE)))
def test_a_constant_that_no_file_holds(record: Callable[..., Program], constant: Any) -> None:
    def body(g: Graph) -> None:
        g.output("y", constant(g))

    with refused(TooLargeError, "4,000 at most", "data source"):
        record(body)


@pytest.mark.usefixtures("small")
def test_constants_that_no_file_holds_together(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", np.float32, [300])
        y = x + np.arange(300, dtype=np.float32)
        z = y + g.constant(np.arange(900, dtype=np.float32))[:300]  # <-
        g.output("y", z)

    with refused(ArtifactTooLargeError, "4,000 at most", "3,600 bytes (test_artifacts.py:", "1,200 bytes"):
        Compiler().compile(module(body))


@pytest.mark.usefixtures("small")
def test_a_model_that_no_file_holds() -> None:
    compiler = Compiler().bind_model("model", GraphModel, trainable(mlp([64, 32, 2])))
    compiler = compiler.bind_data_source("data", ArrayDataSource, {"path": "x.npz", "one_hot": 2})
    with refused(ArtifactTooLargeError, "parameter 'w1' of slot 'model' 8,192 bytes", marked=False):
        compiler.compile(Learns())


def test_two_gibibytes_is_the_limit() -> None:
    assert artifact_size.MAX_BYTES == 2**31 - 1


# --- stages from outside


class Stage:
    NAME = "acme"

    def __init__(self, act: Callable[[Program], Any]) -> None:
        self._act = act

    def run(self, program: Program, options: Any, stats: Any) -> Any:
        return self._act(program)


def raises(error: Exception) -> Callable[[Program], Any]:
    def act(program: Program) -> Any:
        raise error  # <-

    return act


@pytest.mark.parametrize("error", [KeyError("rows"), ValueError("no"), ZeroDivisionError()], ids=repr)
def test_a_stage_that_raises(error: Exception) -> None:
    compiler = Compiler().with_stage(Stage(raises(error)), after="validate")
    with refused(StageError, "stage 'acme' raises", type(error).__name__):
        compiler.run(Program("Main", Learns().record().functions))


@pytest.mark.parametrize("found", [None, 7, "program"])
def test_a_stage_that_returns_no_program(found: Any) -> None:
    compiler = Compiler().with_stage(Stage(lambda program: found), after="validate")
    with refused(StageError, "stage 'acme' returns", marked=False):
        compiler.run(Learns())


@pytest.mark.parametrize("stage", [7, Learns, lambda program: program], ids=["number", "class", "function"])
def test_what_is_no_stage(stage: Any) -> None:
    with refused(UnknownStage, "is not a stage", "NAME and run", marked=False):
        Compiler().with_stage(stage, after="validate")


# --- program files

HEAD = "import numpy as np\nfrom bb_host import Compiler, Module\n\n\nclass A(Module):\n"
BODY = "    def body(self, g):\n        g.output('y', g.onnx.relu(g.input('x', np.float32, [4])))\n\n\n"

FILES: list[tuple[str, int, tuple[str, ...]]] = [
    ("def program():\n    return A, Compiler()\n", 11, ("returns the class A", "return an instance: A(…)")),
    ("def program():\n    return A\n", 11, ("returns the class A",)),
    ("def program():\n    return A(), Compiler\n", 11, ("returns the class Compiler",)),
    ("def program():\n    return Compiler(), A()\n", 11, ("not a program", "in this order")),
    ("def program():\n    return A(), {}\n", 11, ("as the compiler",)),
    (
        "def program():\n    return Compiler()\n",
        11,
        ("returns a Compiler, which is not a program (return (module, compiler))",),
    ),
    ("def program():\n    return 'A'\n", 11, ("'A', which is not a program",)),
    ("def program():\n    A()\n", 11, ("returns nothing",)),
    ("def program():\n    return A(), Compiler(), 1\n", 11, ("returns 3 values",)),
    ("def program(a):\n    return A()\n", 10, ("without arguments", "(a)", "defaults")),
    ("def program(*, rate):\n    return A()\n", 10, ("without arguments", "rate")),
    ("def program():\n    return A(1, 2)\n", 11, ("TypeError",)),
    ("def program():\n    raise KeyError('rate')\n", 11, ("KeyError: 'rate'",)),
]


@pytest.mark.parametrize(("text", "line", "words"), FILES, ids=[words[0] for *_, words in FILES])
@pytest.mark.parametrize("verb", ["compile", "inspect"])
def test_program_files_that_give_no_program(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    line: int,
    words: tuple[str, ...],
    verb: str,
) -> None:
    path = tmp_path / "net.py"
    path.write_text(HEAD + BODY + text)
    assert cli.main([verb, str(path)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"net.py:{line}: error: " in error, error
    for word in words:
        assert word in error, error


# --- explain


class Misfits(Module):
    def body(self, g: Graph) -> None:
        model = ModelSlot("model")
        g.output("y", model.forward(g, g.input("x", np.float32, [2, 7])))  # <-


def test_a_pass_is_explained_though_a_later_one_refuses() -> None:
    compiler = Compiler().bind_model("model", GraphModel, trainable(mlp([4, 2])))
    found = explain(Misfits(), compiler, "expand_ops")
    assert "expand_ops changes nothing" in str(found)
    assert isinstance(found.refused, TypeConstraintFailed)
    with refused(TypeConstraintFailed, "takes F32[?,4] as input"):
        explain(Misfits(), compiler, "type_solver")


def test_the_command_line_shows_the_pass_and_then_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "import numpy as np\nfrom bb_host import Compiler, Module\n\n\nclass A(Module):\n"
        "    def body(self, g):\n        g.output('y', g.onnx.bernoulli(g.input('x', np.float32, [4])))\n\n\n"
        "def program():\n    return A(), Compiler()\n"
    )
    assert cli.main(["compile", str(path), "--explain", "partition_by_wire_ops"]) == 1
    shown = capsys.readouterr()
    assert "compiler.partition_by_wire_ops" in shown.out
    assert "+++ after partition_by_wire_ops" in shown.out
    assert "net.py:7: error: " in shown.err
    assert "Bernoulli" in shown.err
