"""`--load`: files and modules of users, wherever they lie, and what is said where they cannot be loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from components import forgotten_components

from bb_edge.config_file import load_config
from bb_edge.registry import RegistryError, default_registry
from bb_edge.user_modules import is_file_name

CODEC = """from bb_edge import register
from bb_edge.roles import Codec

@register
class Plain(Codec):
    TYPE_NAME = "{name}"

    @classmethod
    def construct(cls, env):
        return cls()

    def compress(self, ctx, t):
        return t

    def decompress(self, ctx, code):
        return code
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory; what a test loads is forgotten after it."""
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    with forgotten_components():
        yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["./acme_file.py", "acme_file.py", "{folder}/acme_file.py", "acme_file"])
def test_a_file_or_a_module_in_the_working_directory(folder: Path, name: str) -> None:
    write(folder / "acme_file.py", CODEC.format(name="acme.File"))
    default_registry().load_module(name.format(folder=folder))
    assert default_registry().lookup("acme.File").__module__ == "acme_file"


def test_a_package_in_the_working_directory(folder: Path) -> None:
    write(folder / "acme_pkg" / "__init__.py", "from acme_pkg import parts\n")
    write(folder / "acme_pkg" / "parts.py", CODEC.format(name="acme.Packed"))
    default_registry().load_module("acme_pkg")
    default_registry().load_module("acme_pkg.parts")
    assert default_registry().lookup("acme.Packed").__module__ == "acme_pkg.parts"


def test_a_file_is_loaded_once_whatever_it_is_called(folder: Path) -> None:
    write(
        folder / "sub" / "acme_once.py",
        "import counted\ncounted.times.append(1)\n" + CODEC.format(name="acme.O"),
    )
    write(folder / "sub" / "counted.py", "times = []\n")  # its neighbours are importable
    (folder / "link").symlink_to(folder / "sub")
    for name in ("sub/acme_once.py", "./sub/acme_once.py", "link/acme_once.py", "acme_once"):
        default_registry().load_module(name)
    assert sys.modules["counted"].times == [1]


def test_a_file_named_as_a_module_of_python_is_not_that_module(folder: Path) -> None:
    write(folder / "json.py", CODEC.format(name="acme.Json"))
    default_registry().load_module("./json.py")
    assert default_registry().lookup("acme.Json").__module__ == "bb_loaded_json"
    assert hasattr(sys.modules["json"], "loads")


def test_a_module_that_registers_types_alone(folder: Path) -> None:
    write(
        folder / "acme_types.py", "from bb_edge.ir.types import register_type\nT = register_type('acme.T')\n"
    )
    default_registry().load_module("acme_types.py")


def test_files_of_a_configuration_are_relative_to_it(folder: Path) -> None:
    config = write(
        folder / "etc" / "node.json", '{"load": ["./parts.py", "more/parts.py", "acme.parts", "/x.py"]}'
    )
    found = load_config(config).load
    assert found == (f"{folder}/etc/parts.py", f"{folder}/etc/more/parts.py", "acme.parts", "/x.py")
    os.chdir("etc")
    assert load_config(Path("node.json")).load == found


def test_what_is_a_file_name() -> None:
    assert all(map(is_file_name, ("a.py", "./a", "/x/a", "../a.py")))
    assert not any(map(is_file_name, ("a", "a.b", "a_py")))


CASES = {
    "syntax": ("def f(:\n", "acme_bad.py:1: SyntaxError: ", "correct that line"),
    "name": (
        "import os\nx = undefined\n",
        "acme_bad.py:2: NameError: name 'undefined' is not defined",
        "correct",
    ),
    "import": ("import no_such_library\n", "acme_bad.py:1: ModuleNotFoundError: ", "install no_such_library"),
    "attribute": ("from os import nothing\n", "acme_bad.py:1: ImportError: cannot import name", "correct"),
    "relative": ("from . import x\n", "acme_bad.py:1: ImportError: attempted relative", "by its dotted name"),
    "exit": ("import sys\nsys.exit(3)\n", "acme_bad.py:2: it exits the process", "__main__"),
    "neighbour": ("import acme_helper\n", "acme_helper.py:2: ZeroDivisionError: division by zero", "correct"),
    "library": ("import json\njson.loads('{')\n", "acme_bad.py:2: JSONDecodeError: ", "correct"),
    "nothing": ("x = 1\n", "it registers neither a component nor a type", "put @register"),
    "no name": ("@register\nclass A(Codec):\n    pass\n", "acme_bad.py:4: ", "TYPE_NAME"),
}


@pytest.mark.parametrize("name", ["./acme_bad.py", "acme_bad"])
@pytest.mark.parametrize("case", CASES)
def test_what_fails_says_the_line_and_a_remedy(folder: Path, case: str, name: str) -> None:
    text, said, remedy = CASES[case]
    if case == "relative" and name == "acme_bad":
        pytest.skip("the same words without a package")
    if case == "no name":
        text = "from bb_edge import register\nfrom bb_edge.roles import Codec\n\n" + text
    write(folder / "acme_helper.py", "x = 1\n1 / 0\n")
    write(folder / "acme_bad.py", text)
    for _ in range(2):  # what failed once fails again: half a module is not kept
        with pytest.raises(RegistryError) as caught:
            default_registry().load_module(name)
        assert said in str(caught.value)
        assert remedy in caught.value.hint
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./acme_god.py", "did you mean 'acme_good.py'?"),
        ("nowhere/at_all.py", "it was looked for at"),
        ("./sub", "a package by its dotted name"),
        ("./acme.txt", "give FILE.py"),
        ("acme_nothing", "give a file (--load ./acme_nothing.py)"),
        ("acme_good.sub", "give a file"),
        ("", "give FILE.py"),
        (".", "give FILE.py"),
        ("my-parts", "give FILE.py"),
    ],
)
def test_what_is_not_there_says_so(folder: Path, name: str, said: str) -> None:
    write(folder / "acme_good.py", CODEC.format(name="acme.Good"))
    write(folder / "acme.txt", "")
    (folder / "sub").mkdir()
    with pytest.raises(RegistryError) as caught:
        default_registry().load_module(name)
    assert said in caught.value.hint, caught.value


def test_the_console_script_looks_in_the_working_directory(folder: Path) -> None:
    """A console script has its own folder on the path, and not the working directory."""
    script = write(folder / "bin" / "bb-edge", "import sys\nfrom bb_edge.cli import main\nsys.exit(main())\n")
    write(folder / "acme_here.py", CODEC.format(name="acme.Here"))
    write(folder / "broken.py", "x = (\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def doctor(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), "doctor", *words]
        return subprocess.run(command, capture_output=True, text=True, env=env, check=False)

    done = doctor("--load", "acme_here", "--load", "./acme_here.py")
    assert "ok       components    loaded acme_here\n" in done.stdout
    assert "ok       components    loaded ./acme_here.py\n" in done.stdout
    done = doctor("--load", "broken.py")
    assert "failed   components    broken.py:1: SyntaxError" in done.stdout
    assert done.returncode == 1 and "Traceback" not in done.stderr
