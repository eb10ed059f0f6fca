"""What README.md shows is what is there: the program's text, the command lines, the files it links to."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from bb_edge.cli import parser as edge_parser

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PROGRAM = (ROOT / "examples" / "federated_digits" / "federation.py").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL)


def commands(name: str) -> list[list[str]]:
    """Command lines that begin with this name, `\\` at their ends joined."""
    text = "\n".join(blocks("sh") + blocks("console")).replace("\\\n", " ")
    lines = [line.removeprefix("$ ") for line in text.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith(name + " ")]


@pytest.mark.parametrize(
    "shown", [part for block in blocks("python") for part in block.rstrip().split("\n\n")]
)
def test_the_program_is_the_examples(shown: str) -> None:
    assert shown in PROGRAM


def test_bb_edge_takes_the_commands() -> None:
    shown = commands("bb-edge")
    assert len(shown) == 2
    for line in shown:
        assert edge_parser().parse_args(line).verb == "run"


def test_bb_host_takes_the_commands() -> None:
    pytest.importorskip("onnx", reason="bb-host needs the host extra")
    from bb_host.cli import parser as host_parser

    shown = commands("bb-host")
    assert {line[0] for line in shown} == {"compile", "inspect"}
    for line in shown:
        assert host_parser().parse_args(line)


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README.replace("\n", " "))
    assert len(links) > 8
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []
