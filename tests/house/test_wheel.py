"""The wheel and the editable install, made without a network, each in an environment of its own."""

from __future__ import annotations

import email
import importlib.metadata
import json
import os
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest

from benchmarks.measuring import UNPACKED_GOAL, WHEEL_GOAL

PACKAGES = ["bb_edge", "bb_host", "bb_kernels", "bb_shims"]
OFFLINE = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]


def _setuptools_is_new_enough() -> bool:
    try:
        return int(importlib.metadata.version("setuptools").split(".")[0]) >= 77
    except importlib.metadata.PackageNotFoundError:
        return False


pytestmark = [
    pytest.mark.skipif(
        not _setuptools_is_new_enough(), reason="building offline needs setuptools >= 77 here"
    ),
    pytest.mark.xdist_group("wheel"),
]


def run(command: Sequence[str | Path], cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def checkout(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that builds leave nothing behind in the real one."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ["pyproject.toml", "README.md", "LICENSE"]:
        shutil.copy(root / name, copy / name)
    for name in ["bb_edge", "bb_host", "kernels", "firmware_shims", "tests", "examples", "docs"]:
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(root / name, copy / name, ignore=ignore)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "pip", "wheel", *OFFLINE, "-w", folder, checkout], folder)
    (path,) = folder.glob("*.whl")
    return path


def fresh_environment(folder: Path, *install: str | Path) -> Path:
    """An environment with our distribution from `install`; dependencies are borrowed from the running one."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    (site,) = folder.glob("lib/python*/site-packages")
    # A .pth entry adds the folder but not the .pth files in it: an editable install of ours stays out.
    (site / "borrowed.pth").write_text(str(Path(numpy.__file__).parents[1]) + "\n")
    run([*pip, *OFFLINE, *install], folder)
    return python


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_environment(tmp_path_factory.mktemp("from-wheel"), wheel)


def imported_from(python: Path, cwd: Path) -> dict[str, str]:
    names = ", ".join(PACKAGES)
    code = f"import json, {names}; print(json.dumps({{m.__name__: m.__file__ for m in ({names},)}}))"
    found: dict[str, str] = json.loads(run([python, "-c", code], cwd))
    return found


def metadata(wheel: Path) -> Any:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_holds_the_four_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert sorted(top for top in tops if not top.endswith(".dist-info")) == PACKAGES


def test_the_wheel_holds_every_file_of_the_packages(checkout: Path, wheel: Path) -> None:
    expected = set()
    for base in [checkout, checkout / "kernels", checkout / "firmware_shims"]:
        for package in PACKAGES:
            expected |= {p.relative_to(base).as_posix() for p in (base / package).rglob("*") if p.is_file()}
    expected = {name for name in expected if "__pycache__" not in name}
    # Modules are generated of them, and no device reads them.
    expected -= {"bb_edge/ir/onnx.proto", "bb_edge/ir/bb_core.proto"}
    examples = checkout / "examples"
    files = (path.relative_to(examples).as_posix() for path in examples.rglob("*") if path.is_file())
    expected |= {f"bb_host/examples/{name}" for name in files}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected


def test_the_edge_install_stays_small(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        unpacked = sum(info.file_size for info in archive.infolist())
    assert wheel.stat().st_size <= WHEEL_GOAL * 1000
    assert unpacked <= UNPACKED_GOAL * 1000


def test_requirements_and_licence(wheel: Path) -> None:
    data = metadata(wheel)
    requirements = [r for r in data.get_all("Requires-Dist") if "extra ==" not in r]
    names = sorted(r.split(">")[0].split("<")[0].strip() for r in requirements)
    assert names == ["cbor2", "numpy", "paho-mqtt", "protobuf"]
    assert data["Requires-Python"] == ">=3.10"
    assert data["License-Expression"] == "Apache-2.0"
    assert {"host", "demo", "dev", "mutation", "ray", "tflite", "litert", "toml"} == set(
        data.get_all("Provides-Extra")
    )


def test_the_installed_packages_import(installed: Path, tmp_path: Path) -> None:
    found = imported_from(installed, tmp_path)
    assert sorted(found) == PACKAGES
    environment = installed.parents[1]
    assert all(Path(path).is_relative_to(environment) for path in found.values())


@pytest.mark.parametrize("command", ["bb-edge", "bb-host"])
def test_the_commands_run(installed: Path, tmp_path: Path, command: str) -> None:
    assert command in run([installed.parent / command, "--help"], tmp_path)


def test_an_editable_install_imports_from_the_checkout(checkout: Path, tmp_path: Path) -> None:
    python = fresh_environment(tmp_path / "editable", "--editable", checkout)
    found = imported_from(python, tmp_path)
    assert sorted(found) == PACKAGES
    assert all(Path(path).is_relative_to(checkout) for path in found.values())


# --- outside the checkout ---------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="the page needs mosquitto")
def test_what_the_readme_shows_works_from_the_wheel(root: Path, installed: Path) -> None:
    """`./dev pages` runs every page so, with what pip installs; here dependencies are borrowed."""
    pytest.importorskip("onnx")
    page = "tests/pages/test_pages.py::test_what_a_page_shows_works[README.md]"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", page],
        cwd=root,
        env={**os.environ, "BB_TEST_READER": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


BOOTED = """
from bb_host import Compiler, Module, ModelSlot, S
from bb_host.learn import mlp, trainable


class Booted(Module):
    model = ModelSlot("model")

    def bootstrap(self, g):
        self.model.load_parameters(g, g.input("p", "F32", [8]))

    def body(self, g):
        with g.rounds(times=2) as start:
            params = self.model.params(g, after=start)
            g.app_emit("round", g.bundle([start.round, g.onnx.reduce_sum(params)]))


def program():
    return Booted(), Compiler().bind_model("model", "bb.GraphModel", trainable(mlp([3, 2], 1)))
"""


def test_a_program_with_a_bootstrap_runs_from_the_wheel(
    installed: Path, tmp_path: Path, broker: Any, patience: float
) -> None:
    pytest.importorskip("onnx")
    (tmp_path / "booted.py").write_text(BOOTED)
    numpy.save(tmp_path / "init.npy", numpy.arange(8, dtype=numpy.float32))

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env=environment(installed),
            capture_output=True,
            text=True,
            timeout=100 * patience,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return done

    assert call("bb-host", "compile", "booted.py", "-o", "build/").returncode == 0
    node = ("build/Booted.Booted.edge.onnx", "--target", "Booted", "--peer", "n", "--broker", broker.url)
    refused = call("bb-edge", "run", *node, "--until-done")
    assert refused.returncode != 0 and "--bootstrap Booted.p=" in refused.stderr
    done = call("bb-edge", "run", *node, "--until-done", "--bootstrap", "Booted.p=init.npy")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [e["value"] for e in events if e.get("event") == "round"] == [[1, [28.0]], [2, [28.0]]]
    assert "bootstrap done" in done.stderr


# --- components of one's own ----------------------------------------------------------------------------


def environment(python: Path) -> dict[str, str]:
    """As a user's shell has it: the environment's commands first, nothing of ours on Python's path."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**inherited, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def own_components(root: Path, tmp_path: Path) -> Path:
    """A copy of the example, away from the checkout."""
    folder = tmp_path / "elsewhere"
    ignore = shutil.ignore_patterns("__pycache__", "build")
    shutil.copytree(root / "examples" / "own_components", folder, ignore=ignore)
    return folder


def test_the_commands_of_the_example_run_from_the_wheel(
    installed: Path, own_components: Path, broker: Any, patience: float
) -> None:
    """The three commands of its README, word for word but for the broker's port."""
    pytest.importorskip("onnx")
    commands = (own_components / "README.md").read_text().split("```\n")[1].replace("\\\n", " ")
    lines = commands.replace("mqtt://127.0.0.1:1883", broker.url).splitlines()
    compile_, serve, kitchen = (shlex.split(line) for line in lines)
    config = own_components / "server.json"
    config.write_text(config.read_text().replace("mqtt://127.0.0.1:1883", broker.url))
    env = environment(installed)
    done = subprocess.run(compile_, cwd=own_components, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr + done.stdout
    attic = [word.replace("kitchen", "attic") for word in kitchen]
    clients = [
        subprocess.Popen(command, cwd=own_components, env=env, stderr=subprocess.PIPE)
        for command in (kitchen, attic)
    ]
    try:
        server = subprocess.run(
            serve,
            cwd=own_components,
            env=env,
            capture_output=True,
            text=True,
            timeout=100 * patience,
            check=False,
        )
    finally:
        for client in clients:
            client.terminate()
        said = [client.communicate()[1].decode() for client in clients]
    assert server.returncode == 0, server.stderr + "".join(said)
    events = [json.loads(line) for line in server.stdout.splitlines()]
    rounds = [e["value"] for e in events if e.get("event") == "round" and e["value"][1] > 0]
    assert [r[0] for r in rounds] == [1, 2, 3, 4, 5]
    assert all(samples in (48, 96) for _, samples in rounds)
    heard = [e["value"] for e in events if e.get("event") == "health"]
    assert heard and all(value == [n, 40.0] for n, value in enumerate(heard, 1))
    assert [client.returncode for client in clients] == [0, 0], said


def test_what_devices_are_told_about_own_components(installed: Path, own_components: Path) -> None:
    """Every verb takes --load, and says in one line what is missing or broken."""
    pytest.importorskip("onnx")
    env = environment(installed)

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(words, cwd=own_components, env=env, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr
        return done

    assert call("bb-host", "compile", "federation.py", "-o", "build/").returncode == 0
    artifact = "build/OwnComponents.Client.edge.onnx"
    shard = ("--set", "shard.path=readings/attic.csv")
    done = call("bb-edge", "inspect", artifact)
    assert "slot codec: codec own.Fixed16 (not registered here: give its file with --load)" in done.stdout
    assert "not registered" not in call("bb-edge", "inspect", artifact, "--load", "mycomponents").stdout
    done = call("bb-edge", "check", artifact, *shard)
    assert done.returncode == 1 and "no component type 'own.PlainBackend' is registered" in done.stdout
    done = call("bb-edge", "check", artifact, "--load", "./mycomponents.py", *shard)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "target Client (class Client): runs")
    done = call("bb-edge", "check", artifact, "--load", "mycomponents.py", "--set", "shard.path=nope.csv")
    assert done.returncode == 1
    assert "slot 'shard' of 'Client', key 'path': nope.csv cannot be read" in done.stdout
    done = call("bb-edge", "check", artifact, "--load", "mycomponent.py")
    assert done.returncode == 1
    assert done.stderr == (
        "bb-edge: error: mycomponent.py: there is no such file (did you mean 'mycomponents.py'?)\n"
    )
    (own_components / "mycomponents.py").write_text("import numpy as np\nnp.flote32\n")
    done = call("bb-edge", "bench", artifact, "--load", "mycomponents.py")
    assert done.returncode == 1
    assert "error: mycomponents.py:2: AttributeError: module 'numpy' has no attribute" in done.stderr
    assert "components" in call("bb-edge", "doctor", "--load", "mycomponents.py").stdout


def test_an_installed_package_brings_components_by_its_entry_points(
    root: Path, installed: Path, tmp_path: Path
) -> None:
    """docs/how-to/components.md: the first example as a package, with the snippet of pyproject.toml."""
    pytest.importorskip("onnx")
    page = (root / "docs" / "how-to" / "components.md").read_text()
    project = tmp_path / "acme"
    project.mkdir()
    (project / "acme_components.py").write_text(page.split("```python\n")[1].split("```")[0])
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "acme-components"\nversion = "1.0"\n'
        + page.split("```toml\n")[1].split("```")[0]
        + '[tool.setuptools]\npy-modules = ["acme_components"]\n'
    )
    run([sys.executable, "-m", "pip", "--python", installed, "install", *OFFLINE, project], tmp_path)
    try:
        (tmp_path / "coded.py").write_text(
            "from bb_host import CodecSlot, Compiler, Module\n"
            "class Coded(Module):\n"
            "    codec = CodecSlot('codec')\n"
            "    def body(self, g):\n"
            "        g.output('y', self.codec.compress(g, g.input('x', 'F32', (2,))))\n"
            "def program():\n"
            "    return Coded(), Compiler().bind_codec('codec', 'acme.Rounded', {'decimals': 1})\n"
        )
        env = environment(installed)
        for words in (
            ["bb-host", "compile", "coded.py"],
            ["bb-edge", "check", "build/Coded.Coded.edge.onnx"],
        ):
            done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr + done.stdout
            assert "warning" not in done.stderr
    finally:
        pip = [sys.executable, "-m", "pip", "--python", installed]
        run([*pip, "uninstall", "-qy", "acme-components"], tmp_path)
