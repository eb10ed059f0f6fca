"""`bb-edge bench` and `bb-edge check`, through the command line's own door."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from program_text import parse

from bb_edge.cli import main
from bb_edge.ir import keys
from bb_edge.ir.onnx_pb2 import ModelProto
from bb_host.ir.proto import to_bytes

LINEAR = """program Demo {module=Demo}
function program.Main(x: F32[4, 2], s: F32[2]) -> (y) {entry=1, partition=self}
  y: F32[4, 2] = backend.subgraph_a(x, s)
function backend.subgraph_a(x: F32[4, 2], s: F32[2]) -> (y) {backend_slot=backend}
  e: F32[4, 2] = Exp(x)
  z: F32[4, 2] = Mul(e, s)
  y: F32[4, 2] = Add(z, e)
"""


@pytest.fixture
def artifact(tmp_path: Path) -> Callable[..., Path]:
    """artifact(text, backend type): a compiled file."""

    def make(text: str = LINEAR, backend: str = "bb.NumPyBackend") -> Path:
        model = ModelProto.FromString(to_bytes(parse(text)))
        model.metadata_props.add(key=keys.COMPILED_KEY, value=keys.COMPILED_VERSION)
        model.metadata_props.add(key=f"{keys.BINDING_PREFIX}Main.backend", value=f"backend|{backend}|1")
        path = tmp_path / "demo.edge.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return make


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


# --- bench ----------------------------------------------------------------------------------------


def test_bench_measures_and_writes_the_outputs(
    artifact: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, s = np.ones((4, 2), np.float32), np.array([2, 3], np.float32)
    given, results = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(given, x=x, s=s)
    code = main(
        ["bench", str(artifact()), "--inputs", str(given), "--outputs", str(results), "--runs", "5", "--json"]
    )
    assert code == 0
    found = said(capsys)
    assert found["target"] == "Main"
    assert found["runs"] == 5
    assert 0 < found["min_us"] <= found["p50_us"] <= found["p90_us"] <= found["p99_us"]
    assert found["arena_bytes"] >= 0
    assert found["cold_start_ms"] > 0
    assert found["peak_rss_bytes"] > 1_000_000
    with np.load(results) as written:
        np.testing.assert_allclose(written["y"], np.exp(x) * s + np.exp(x), rtol=1e-6)


def test_bench_makes_inputs_of_its_own(
    artifact: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(artifact()), "--runs", "2", "--no-cold-start"]) == 0
    out = capsys.readouterr().out
    assert "p50_us" in out
    assert "cold_start_ms" not in out


def test_bench_sets_slots_as_run_does(
    artifact: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    bench = ["bench", str(artifact()), "--runs", "2"]
    assert main([*bench, "--json", "--set", "backend.arena_limit=1000000"]) == 0
    assert said(capsys)["cold_start_ms"] > 0  # fresh processes set it, too
    for wrong, why in (
        ("backend.arena_limit=16", "arena"),
        ("backend.x=1", "'x'"),
        ("back.x=1", "did you mean 'backend'"),
    ):
        assert main([*bench, "--set", wrong]) == 1
        assert why in capsys.readouterr().err


@pytest.mark.parametrize("runs", ["0", "-1"])
def test_bench_refuses_no_runs(
    runs: str, artifact: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(artifact()), f"--runs={runs}"]) == 1
    assert "--runs" in capsys.readouterr().err


def test_bench_with_inputs_that_do_not_fit(
    artifact: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, x=np.ones((4, 2), np.float32))
    assert main(["bench", str(artifact()), "--inputs", str(path)]) == 1
    assert "'s'" in capsys.readouterr().err
    path.write_bytes(b"nonsense")
    assert main(["bench", str(artifact()), "--inputs", str(path)]) == 1
    assert "not an .npy or .npz file" in capsys.readouterr().err


# --- check ----------------------------------------------------------------------------------------


def test_check_says_yes_and_how_much_memory(
    artifact: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = artifact()
    assert main(["check", str(path), "--json"]) == 0
    found = said(capsys)
    assert found["runs"] is True
    (target,) = found["targets"]
    assert target["target"] == "Main"
    assert target["problems"] == []
    assert target["arena_bytes"] is not None
    assert main(["check", str(path)]) == 0
    assert "target Main (class Main): runs" in capsys.readouterr().out


def test_check_says_no_and_names_every_operator(
    artifact: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = artifact(LINEAR.replace("Exp(x)", "RandomNormalLike(x)").replace("Mul(e, s)", "Multinomial(e)"))
    assert main(["check", str(path), "--json"]) == 1
    found = said(capsys)
    assert found["runs"] is False
    (problem,) = found["targets"][0]["problems"]
    assert "RandomNormalLike" in problem
    assert "Multinomial" in problem


def test_check_names_a_component_that_is_not_here(
    artifact: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(artifact(backend="acme.Accelerator"))]) == 1
    out = capsys.readouterr().out
    assert "does not run" in out
    assert "acme.Accelerator" in out


def test_check_tells_what_configuration_does(
    artifact: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(artifact()), "--set", "backend.nonsense=1"]) == 1
    assert "nonsense" in capsys.readouterr().out
    assert main(["check", str(artifact()), "--set", "nowhere.key=1"]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_check_of_a_target_that_is_not_there(
    artifact: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(artifact()), "--target", "Other"]) == 1
    assert "Other" in capsys.readouterr().err
