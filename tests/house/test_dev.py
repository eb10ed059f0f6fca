"""`./dev`: set up once, start at once afterwards, pass arguments and exit codes on."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

# A build backend without dependencies, so that a real set-up runs without a network.
BACKEND = """
import zipfile
NAME = "miniature-0.1-py3-none-any.whl"
def _wheel(folder):
    info = "miniature-0.1.dist-info"
    with zipfile.ZipFile(f"{folder}/{NAME}", "w") as archive:
        archive.writestr("miniature.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: miniature\\nVersion: 0.1\\n"
                                             "Provides-Extra: demo\\nProvides-Extra: dev\\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\n"
                                          "Tag: py3-none-any\\n")
        archive.writestr(f"{info}/RECORD", "")
    return NAME
def build_wheel(folder, config_settings=None, metadata_directory=None):
    return _wheel(folder)
build_editable = build_wheel
"""

RUN = "import sys, miniature\nprint('ran with', sys.argv[1:], sys.prefix)\nsys.exit(7)\n"


@pytest.fixture
def miniature(root: Path, tmp_path: Path) -> Path:
    """A project with our `dev`, a package without requirements, and a demo that exits with 7."""
    shutil.copy(root / "dev", tmp_path / "dev")
    (tmp_path / "backend.py").write_text(BACKEND)
    (tmp_path / "constraints.txt").write_text("")
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "miniature"\nversion = "0.1"\n'
        "[project.optional-dependencies]\ndemo = []\ndev = []\n"
    )
    script = tmp_path / "examples" / "federated_digits" / "run.py"
    script.parent.mkdir(parents=True)
    script.write_text(RUN)
    return tmp_path


@pytest.fixture
def dev(miniature: Path) -> ModuleType:
    """The script as a module, standing in the miniature project."""
    loader = SourceFileLoader("dev_script", str(miniature / "dev"))
    spec = importlib.util.spec_from_loader("dev_script", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def run_dev(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, folder / "dev", *arguments], env=env, capture_output=True, text=True
    )


@pytest.mark.skipif(importlib.util.find_spec("ensurepip") is None, reason="this Python has no ensurepip")
def test_the_first_run_sets_up_and_the_second_starts_at_once(miniature: Path) -> None:
    first = run_dev(miniature, "demo", "--rounds", "3")
    assert first.returncode == 7, first.stderr
    assert "ran with ['--rounds', '3']" in first.stdout
    assert str(miniature / ".venv") in first.stdout
    assert "setting up .venv" in first.stderr

    second = run_dev(miniature, "demo")
    assert (second.returncode, second.stderr) == (7, "")

    (miniature / "constraints.txt").write_text("# other versions\n")
    third = run_dev(miniature, "demo")
    assert third.returncode == 7
    assert "setting up .venv" in third.stderr

    (miniature / "examples" / "federated_digits" / "run.py").unlink()
    missing = run_dev(miniature, "demo")
    assert missing.returncode == 1
    assert "examples/federated_digits/run.py is missing" in missing.stderr


def test_what_pip_says_is_shown_when_it_fails(miniature: Path) -> None:
    (miniature / "backend.py").write_text("raise RuntimeError('a broken backend')\n")
    done = run_dev(miniature, "setup")
    assert done.returncode == 1
    assert "a broken backend" in done.stderr
    assert ".venv/bb-setup.log" in done.stderr
    assert "Traceback" not in done.stderr.split("./dev:")[0]


def test_usage(miniature: Path) -> None:
    for arguments, code in [((), 0), (("help",), 0), (("--help",), 0), (("tset",), 2)]:
        done = run_dev(miniature, *arguments)
        assert (done.returncode, done.stdout.splitlines()[0]) == (code, "usage: ./dev COMMAND [ARGUMENTS...]")
    assert not (miniature / ".venv").exists()


@pytest.mark.parametrize("stamp", ["", "[]", "{", '{"extra": "demo"}', '{"extra": 3, "fingerprint": ""}'])
def test_a_strange_stamp_means_not_set_up(dev: ModuleType, stamp: str) -> None:
    dev.VENV.mkdir()
    dev.STAMP.write_text(stamp)
    assert not dev.is_set_up("demo")


def test_the_larger_extra_serves_the_smaller(dev: ModuleType) -> None:
    dev.PYTHON.parent.mkdir(parents=True)
    dev.PYTHON.symlink_to(sys.executable)
    for had, verdicts in [("dev", (True, True)), ("demo", (True, False))]:
        dev.STAMP.write_text(json.dumps({"extra": had, "fingerprint": dev.fingerprint()}))
        assert (dev.is_set_up("demo"), dev.is_set_up("dev")) == verdicts
    dev.PYTHON.unlink()
    assert not dev.is_set_up("demo")


def test_without_any_means_the_debian_package_is_named(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dev, "installed", lambda module: False)
    monkeypatch.setattr(dev.shutil, "which", lambda name: None)
    with pytest.raises(dev.SetupError, match="sudo apt install python3-venv"):
        dev.make_venv()


def test_debians_venv_without_ensurepip_is_filled_by_the_systems_pip(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensurepip = pytest.importorskip("ensurepip")
    wheels = Path(ensurepip.__file__).parent / "_bundled"
    if not (dev.has_pip(sys.executable) and any(wheels.glob("pip-*.whl"))):
        pytest.skip("needs a pip, and the wheel of one, on this machine")
    monkeypatch.setattr(dev, "installed", lambda module: module == "venv")
    monkeypatch.setattr(dev.shutil, "which", lambda name: None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    dev.make_venv()
    assert dev.runs(dev.PYTHON) and dev.has_pip(dev.PYTHON)


def second_environment(dev: ModuleType, capsys: pytest.CaptureFixture[str]) -> str:
    """What it says; it never fails the command."""
    dev.ensure_second()
    return str(capsys.readouterr().err)


def test_where_tflite_runtime_cannot_be_a_line_says_so(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (dev.ROOT / dev.SECOND_PINS).write_text("")
    monkeypatch.setattr(dev, "SECOND_NEWEST", (3, 9))
    assert "left out: it has no wheel for Python 3." in second_environment(dev, capsys)
    assert not dev.SECOND.exists()

    monkeypatch.setattr(dev, "SECOND_NEWEST", sys.version_info[:2])
    monkeypatch.setattr(dev, "installed", lambda module: False)
    monkeypatch.setattr(dev.shutil, "which", lambda name: None)
    assert "left out: this Python can't make virtual environments" in second_environment(dev, capsys)


@pytest.mark.skipif(importlib.util.find_spec("ensurepip") is None, reason="this Python has no ensurepip")
def test_the_second_environment_is_made_once_and_again_for_other_versions(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dev, "SECOND_NEWEST", sys.version_info[:2])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (dev.ROOT / dev.SECOND_PINS).write_text("")
    said = second_environment(dev, capsys)
    assert "left out: pip could not install it: ERROR" in said
    assert (dev.SECOND / "bb-setup.log").is_file()
    assert not (dev.SECOND / "bb-setup.json").exists()

    monkeypatch.setattr(dev, "SECOND_PACKAGES", ("pip",))  # which is there
    assert "set up in" in second_environment(dev, capsys)
    assert second_environment(dev, capsys) == ""
    (dev.ROOT / dev.SECOND_PINS).write_text("# others\n")
    assert "set up in" in second_environment(dev, capsys)


@pytest.mark.parametrize(
    ("tests", "failed", "code"),
    [(0, [], 0), (0, ["mypy"], 1), (5, [], 5), (1, ["mypy"], 1), (3, ["mypy"], 3)],
)
def test_a_failed_check_or_test_fails_the_command(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, tests: int, failed: list[str], code: int
) -> None:
    handed: list[tuple[str, ...]] = []

    def call(*command: str, env: dict[str, str]) -> int:
        handed.append(command)
        assert env["BB_FAILED_CHECKS"] == ", ".join(failed)
        return tests

    monkeypatch.setattr(dev, "checks", lambda: failed)
    monkeypatch.setattr(dev, "call", call)
    assert dev.command_test(["-k", "x"]) == code
    assert handed == [("python", "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-k", "x")]
    assert dev.command_test(["-n", "0"]) == code
    assert handed[1] == ("python", "-m", "pytest", "-n", "0")


def test_what_it_starts_keeps_compiled_modules(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    command = [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"]
    assert subprocess.check_output(command, env=dev.environment(), text=True) == "False\n"


def test_bare_hides_the_optional_programs_and_nothing_else(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder, names in (("bin", ("dot", "tool")), ("sbin", ("mosquitto", "tool", "other"))):
        (tmp_path / folder).mkdir()
        for name in names:
            program = tmp_path / folder / name
            program.write_text(f"#!/bin/sh\necho {folder}/{name}\n")
            program.chmod(0o755)
    path = os.pathsep.join(str(tmp_path / folder) for folder in ("bin", "sbin", "none"))
    seen: list[tuple[tuple[str, ...], dict[str, str | None]]] = []
    folders: list[Path] = []

    def call(*command: str, env: dict[str, str]) -> int:
        folders.append(Path(env["PATH"]))
        names = ("dot", "mosquitto", "tool", "other")
        places = {name: shutil.which(name, path=env["PATH"]) for name in names}
        seen.append((command, {name: place and os.path.realpath(place) for name, place in places.items()}))
        tool = subprocess.run(["tool"], env={"PATH": env["PATH"]}, capture_output=True, text=True)
        assert tool.stdout == "bin/tool\n"
        return 0

    monkeypatch.setattr(dev, "environment", lambda: {"PATH": path})
    monkeypatch.setattr(dev, "call", call)
    assert dev.command_test(["--bare", "--no-lint", "-n", "0"]) == 0
    ((command, found),) = seen
    assert command == ("python", "-m", "pytest", "-n", "0")
    assert found == {
        "dot": None,
        "mosquitto": None,
        "tool": str(tmp_path / "bin" / "tool"),
        "other": str(tmp_path / "sbin" / "other"),
    }
    assert not folders[0].exists(), "the folder of links goes with the run"


def test_the_check_script_is_valid_shell(root: Path) -> None:
    done = subprocess.run(["bash", "-n", root / ".ci" / "run"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.access(root / ".ci" / "run", os.X_OK) and os.access(root / "dev", os.X_OK)


def test_the_readers_environment_is_made_without_the_checkout_on_pythons_path(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With it, pip takes the checkout for the installed distribution, and installs no wheel."""
    monkeypatch.setenv("PYTHONPATH", str(dev.ROOT))
    dev.finish(sys.executable, "-c", "import os; assert 'PYTHONPATH' not in os.environ")
    with pytest.raises(dev.SetupError, match="it says why"):
        dev.finish(sys.executable, "-c", "import sys; sys.exit('it says why')")
