"""Program files that end, interrupt or skip their own compilation: each is told, none looks like success."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bb_edge.cli import main as edge_main
from bb_edge.ir import keys
from bb_host import Graph, Module
from bb_host.cli import main
from bb_host.errors import ModuleError, SourceFileError
from bb_host.source_file import read_source
from tests.aids.refusals import refused

PROGRAM = """
from bb_host import Compiler, Module

class Net(Module):
    def body(self, g):
        g.output("y", g.input("x", "F32", (2,)) + 1.0)
"""
GOOD = "def program():\n    return Net(), Compiler()\n"

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, request: pytest.FixtureRequest) -> Write:
    """write(text, name="…"): a program file, its name its own."""

    def put(text: str, name: str = "") -> Path:
        path = tmp_path / (name or f"file_{abs(hash(request.node.name))}.py")
        path.write_text(text)
        return path

    return put


def line_of(path: Path, text: str) -> str:
    """`FILE:LINE` of the only line that holds the text."""
    (number,) = [n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line]
    return f"{path}:{number}"


@pytest.mark.parametrize("code", ["sys.exit(0)", "sys.exit()", "sys.exit(3)", "exit()", "raise SystemExit"])
@pytest.mark.parametrize("place", ["file", "program", "body"])
def test_an_exit_is_an_error_at_its_line(
    code: str, place: str, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PROGRAM + GOOD
    if place == "file":
        text += code
    elif place == "program":
        text = text.replace("    return Net()", f"    {code}\n    return Net()")
    else:
        text = text.replace("        g.output", f"        {code}\n        g.output")
    path = write("import sys\nfrom builtins import SystemExit\nexit = sys.exit\n" + text)
    assert main(["compile", str(path), "-o", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert f"{line_of(path, code)}: error: it ends the process when it is compiled" in error
    assert "raise an error" in error
    assert not (tmp_path / "out").exists()


def test_what_an_exit_says_is_said(write: Write) -> None:
    path = write(PROGRAM + GOOD + "raise SystemExit('no data here')\n")
    with refused(SourceFileError, "no data here", marked=False):
        read_source(path)


@pytest.mark.parametrize(
    ("written", "remedy"),
    [
        ("from .conf import RATE", "write `from conf import RATE`, without the dot"),
        ("from .sub.conf import RATE  # ours", "write `from sub.conf import RATE`, without the dot"),
        ("from . import conf", "write `import conf`, without the dot"),
        ("from ..conf import RATE", "name modules from there"),
    ],
)
def test_a_relative_import_is_told_how_to_name_a_neighbour(written: str, remedy: str, write: Write) -> None:
    path = write(f"{written}\n{PROGRAM}{GOOD}")
    (path.parent / "__init__.py").touch()
    with refused(SourceFileError, "no known parent package", remedy, marked=False):
        read_source(path)


def test_an_exit_while_compiling_is_no_success(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PROGRAM + (
        "def program():\n"
        "    class Ends(Compiler):\n"
        "        def run(self, *a, **k):\n"
        "            raise SystemExit(0)\n"
        "    return Net(), Ends()\n"
    )
    assert main(["compile", str(write(text)), "-o", str(tmp_path / "out")]) == 1
    assert "ended by exit(0)" in capsys.readouterr().err


def test_an_interrupt_in_the_file(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(PROGRAM + GOOD + "raise KeyboardInterrupt\n")
    assert main(["compile", str(path)]) == 130
    assert capsys.readouterr().err == "bb-host: interrupted\n"


def test_an_interrupt_from_the_keyboard(write: Write, tmp_path: Path) -> None:
    path = write("import time\nprint('ready', flush=True)\nwhile True:\n    time.sleep(0.01)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "bb_host.cli", "compile", str(path), "-o", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, "bb-host: interrupted\n")


def test_an_interrupt_of_the_device_tool(capsys: pytest.CaptureFixture[str], write: Write) -> None:
    path = write("raise KeyboardInterrupt\n")
    assert edge_main(["inspect", "net.edge.onnx", "--load", str(path)]) == 130
    assert capsys.readouterr().err == "bb-edge: interrupted\n"


# --- what Python runs only when it is awaited or drawn from -----------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "async def program():\n    return Net(), Compiler()\n",
        "def program():\n    yield Net(), Compiler()\n",
        "async def program():\n    yield Net(), Compiler()\n",
    ],
)
def test_a_program_that_calling_does_not_run(text: str, write: Write) -> None:
    path = write(PROGRAM + text)
    with refused(SourceFileError, "async def", "yield", "def program():", marked=False):
        read_source(path)


def test_an_async_body() -> None:
    async def body(self: Module, g: Graph) -> None:  # <-
        g.output("y", g.input("x", "F32", (2,)))

    with refused(ModuleError, "async def", "body(self, g)"):
        type("Main", (Module,), {"body": body})().record()


def test_a_generator_as_a_body() -> None:
    class Main(Module):
        def body(self, g: Graph) -> Any:  # <-
            yield g.output("y", g.input("x", "F32", (2,)))

    with refused(ModuleError, "yield", "body(self, g)"):
        Main().record()


def test_an_async_generator_as_a_body() -> None:
    class Main(Module):
        async def body(self, g: Graph) -> Any:  # <-
            yield g.output("y", g.input("x", "F32", (2,)))

    with refused(ModuleError, "yield"):
        Main().record()


def test_an_async_bootstrap() -> None:
    class Main(Module):
        def body(self, g: Graph) -> None:
            g.output("y", g.input("x", "F32", (2,)))

        async def bootstrap(self, g: Graph) -> None:  # <-
            g.app_emit("b", 1.0)

    with refused(ModuleError, "bootstrap(self, g)"):
        Main().record()


# --- modules that would stand for an op -------------------------------------------------------------------


@pytest.mark.parametrize("domain", ["", " ", "ai.onnx", "ai.onnx.ml", keys.SYSCALL_DOMAIN, 3, None])
def test_a_domain_of_the_catalog(domain: Any) -> None:
    class Relu(Module):  # <-
        def body(self, g: Graph) -> None:
            g.output("y", g.input("x", "F32", (2,)) * 2.0)

    Relu.domain = domain
    with refused(ModuleError, repr(domain), "'Relu'", "org.example"):
        Relu().record()


def test_an_ops_name_in_a_domain_of_ones_own(compute: Callable[..., dict[str, Any]]) -> None:
    class Relu(Module):
        domain = "org.example"

        def body(self, g: Graph) -> None:
            g.output("y", g.input("x", "F32", (2,)) * 2.0)

    def body(g: Graph) -> None:
        g.output("z", g.call(Relu(), x=g.input("x", "F32", (2,)))["y"])

    assert compute(body, {"x": np.array([-1, 2], np.float32)})["z"].tolist() == [-2, 4]


# --- options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--target", "portable", "--backend", "tflite"], "--backend has no effect"),
        (["--target", "portable", "--max-batch", "3"], "--max-batch has no effect"),
        (["--target", "portable", "--explain", "backend"], "--explain backend has no effect"),
        (["--explain", "3", "--json"], "--explain has no form as JSON"),
    ],
)
def test_an_option_without_effect(
    options: list[str], words: str, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(PROGRAM + GOOD)
    assert main(["compile", str(path), "-o", str(tmp_path / "out"), *options]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert "leave out" in error
    assert not (tmp_path / "out").exists()


def test_a_file_that_changes_its_folder_moves_no_output(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    path = write("import os\nos.chdir('elsewhere')\n" + PROGRAM + GOOD)
    assert main(["compile", path.name, "-o", "out"]) == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir())[0] == "Net.Net.edge.map.json"


def test_the_shape_of_a_value_that_nothing_says_has_a_remedy(write: Write) -> None:
    for use in ("h.shape[0]", "len(h.shape)", "a, b = h.shape"):
        text = PROGRAM.replace(
            "        g.output", f"        h = g.input('h', 'F32')\n        {use}\n        g.output"
        )
        path = write(text + GOOD, f"shape_{len(use)}.py")
        with refused(SourceFileError, "NoneType", "take it on the device with g.onnx.shape(x)", marked=False):
            read_source(path)


def test_what_a_body_does_to_none_of_its_own_has_no_advice_about_shapes(write: Write) -> None:
    path = write(PROGRAM.replace("        g.output", "        None[0]\n        g.output") + GOOD)
    with pytest.raises(SourceFileError) as caught:
        read_source(path)
    assert "shape" not in str(caught.value)
