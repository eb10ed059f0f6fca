"""The portable model in the place of a target's artifact: it is told, with what to give instead."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="the host needs the onnx package, which is not installed here")

from bb_edge import load
from bb_edge.cli import main
from bb_host import Graph, Module
from bb_host.build import compile_edge


class Pair(Module):
    name, home = "Pair", "Server"

    def body(self, g: Graph) -> None:
        g.app_emit("beat", g.interval(10**9))
        with g.at("Client"):
            g.app_emit("tick", g.interval(10**9))


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """The portable model of two targets, and the artifact of one of them beside it."""
    build = compile_edge(Pair())
    (tmp_path / "Pair.onnx").write_bytes(build.data)
    for artifact in build.artifacts:
        (tmp_path / f"Pair.{artifact.target}.edge.onnx").write_bytes(artifact.data)
    return tmp_path


def test_check_and_run_tell_of_it(artifacts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    portable, own = (str(artifacts / name) for name in ("Pair.onnx", "Pair.Server.edge.onnx"))
    told = "Pair.onnx is the portable model"
    for words in (["check"], ["check", "--target", "Server", "--peer", "p", "--broker", "mqtt://b"]):
        assert main([words[0], portable, *words[1:]]) == 0
        said = capsys.readouterr().err
        assert told in said and "Pair.Server.edge.onnx, Pair.Client.edge.onnx" in said
        assert main([words[0], own, *words[1:]]) == 0
        assert told not in capsys.readouterr().err
    (artifacts / "Pair.Server.edge.onnx").unlink()
    (artifacts / "Pair.Client.edge.onnx").unlink()
    assert main(["check", portable]) == 0
    assert "what `bb-host compile` writes as Pair.TARGET.edge.onnx" in capsys.readouterr().err


def test_a_program_knows_what_it_is(artifacts: Path) -> None:
    assert not load(artifacts / "Pair.onnx").stripped
    assert load(artifacts / "Pair.Server.edge.onnx").stripped
