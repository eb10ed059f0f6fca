"""Blocks of README and docs: parsers take their commands, their programs run, their files load.

Pages that are walked from end to end have tests of their own: docs/tutorials/first-federation.md,
docs/how-to/reports.md, docs/how-to/components.md, docs/reference/warnings.md, docs/tour.md.
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the pages' programs are compiled, which needs the host extra")
import onnx

from bb_edge.cli import parser as edge_parser
from bb_edge.config_file import load_config
from bb_edge.ir import keys
from bb_host.build import build_edge
from bb_host.cli import main as host
from bb_host.cli import parser as host_parser
from bb_host.learn import mlp

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PARSERS = {"bb-host": host_parser, "bb-edge": edge_parser}


def blocks(page: Path, *kinds: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text("utf-8")) if kind in kinds]


def commands() -> list[Any]:
    """Every command line of ours on a page, `\\` at line ends joined, without what a shell does around it."""
    found = []
    for page in PAGES:
        for block in blocks(page, "sh", "console"):
            for line in block.replace("\\\n", " ").splitlines():
                own = line.strip().removeprefix("$ ").removeprefix("sudo ")
                words = re.split(r"#|&&|\||>|…", own)[0].split()
                if words and words[0] in PARSERS:
                    text = " ".join(words)
                    found.append(pytest.param(shlex.split(text), id=f"{page.stem}: {text[:60]}"))
    return found


FILES = [text for page in PAGES for text in blocks(page, "json") if text.lstrip().startswith("{")]


@pytest.mark.parametrize("words", commands())
def test_parsers_take_the_commands(words: list[str]) -> None:
    assert PARSERS[words[0]]().parse_args(words[1:]).verb == words[1]


def test_blocks_were_found() -> None:
    assert len(commands()) > 60 and len(FILES) > 2


@pytest.mark.parametrize("text", FILES)
def test_configuration_files_are_taken(text: str, tmp_path: Path) -> None:
    config = json.loads(text)
    config.setdefault("artifact", "x.onnx")
    (tmp_path / "node.json").write_text(json.dumps(config))
    assert load_config(tmp_path / "node.json") is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_is_python(page: Path) -> None:
    for text in blocks(page, "python", "py"):
        compile(textwrap.dedent(text).replace("…", "..."), page.name, "exec")


@pytest.fixture
def moons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program of README.md in a folder of its own, with data that a line divides."""
    (program,) = (text for text in blocks(README, "python") if text.startswith("# moons.py"))
    (tmp_path / "moons.py").write_text(program)
    x = np.random.default_rng(0).normal(size=(400, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez(tmp_path / "train.npz", x=x, y=y)
    np.savez(tmp_path / "test.npz", x=x[:50], y=y[:50])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_readme_s_program_is_simulated_and_compiled(moons: Path, capsys: Any) -> None:
    shown = [line for text in blocks(README, "sh") for line in text.splitlines()]
    simulate = next(line for line in shown if line.startswith("bb-host simulate"))
    build = next(line for line in shown if line.startswith("bb-host compile"))
    assert host([*shlex.split(simulate)[1:], "--quiet", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    losses = [event["value"][1] for event in events if event.get("event") == "round"]
    assert len(losses) == 20 and losses[-1] < losses[0] / 3
    assert host(shlex.split(build)[1:]) == 0
    artifacts = {word for line in shown for word in line.split() if word.startswith("build/")} - {"build/"}
    assert len(artifacts) == 2 and all(Path(name).exists() for name in artifacts)


def test_the_commands_of_the_page_of_simulations_run(moons: Path, capsys: Any) -> None:
    """With the program of README.md in the place of the page's, and with fewer clients and runs."""
    smaller = {"federation.py": "moons.py", "shard=": "data=", "0,1,2": "0", "dirichlet:0.3": "dirichlet:100"}
    for text in blocks(ROOT / "docs" / "how-to" / "simulate.md", "sh"):
        line = text.replace("\\\n", " ")
        for there, here in smaller.items():
            line = line.replace(there, here)
        words = shlex.split(line)[1:]
        words[words.index("--clients") + 1] = "20"
        assert host([*words, "--quiet", "--set", "data.batch_size=4"]) == 0, capsys.readouterr().err
    assert (moons / "out" / "summary.json").exists() and (moons / "out" / "picture.png").exists()


def test_the_function_of_the_page_of_simulations_runs(moons: Path) -> None:
    (text,) = blocks(ROOT / "docs" / "how-to" / "simulate.md", "python")
    text = text.replace("workers=2", 'on="here"').replace("dirichlet:0.3", "draw:40")
    names: dict[str, Any] = {}
    exec(text.replace('"shard"', '"data"'), names)
    exec((moons / "moons.py").read_text(), names)
    counted = names["accuracy_of"](*names["program"](), 0)
    assert 200 <= counted <= 400 and counted % 40 == 0, "ten clients have 40 rows each, and some drop out"


def test_the_binding_of_the_page_of_models_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(mlp([4, 3, 2]), "net.onnx")
    page = ROOT / "docs" / "how-to" / "models.md"
    shown = next(text for text in blocks(page, "py") if "trainable(" in text)
    names: dict[str, Any] = {}
    exec(shown.replace('["encoder.*"]', '["w1"]'), names)
    assert names["net"].parameter_count == 3 + 3 * 2 + 2
    assert [binding.slot for binding in names["compiler"].bindings] == ["model"]


def test_the_page_s_program_that_answers_has_its_weights_in_the_flatbuffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(mlp([4, 3, 2]), "net.onnx")
    (shown,) = blocks(ROOT / "docs" / "how-to" / "models.md", "python")

    def inputs(text: str) -> list[int]:
        """How many inputs each flatbuffer of the server has."""
        names: dict[str, Any] = {}
        exec(text, names)
        artifacts = build_edge(*names["program"](), backend="tflite").artifacts
        (server,) = (artifact for artifact in artifacts if artifact.target == "Server")
        found = onnx.ModelProto.FromString(server.data)
        nodes = [node for f in found.functions for node in f.node if node.domain == keys.TFLITE_DOMAIN]
        return [len(node.input) for node in nodes]

    assert inputs(shown) == [1]
    assert inputs(shown.replace(', frozen=["*"]', "")) == [5], "the input and four parameters"
