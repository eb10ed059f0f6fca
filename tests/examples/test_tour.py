"""What docs/tour.md shows is what is there: the program's text, and what the commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from bb_edge.components import ArrayDataSource
from bb_edge.extend import ComponentEnv, build

ROOT = Path(__file__).resolve().parents[2]
TOUR = (ROOT / "docs" / "tour.md").read_text()
PROGRAM = (ROOT / "examples" / "federated_digits" / "federation.py").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", TOUR, re.DOTALL)


@pytest.mark.parametrize(
    "shown", [part for block in blocks("python") for part in block.rstrip().split("\n\n")]
)
def test_the_program_is_the_examples(shown: str) -> None:
    assert shown in PROGRAM


def test_three_lines_lead_from_an_artifact_to_a_result(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="compiling needs the host extra")
    from bb_host.build import compile_edge

    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])],
        "resnet8",
        [value("x", onnx.TensorProto.FLOAT, [2])],
        [value("y", onnx.TensorProto.FLOAT, [2])],
    )
    opset = onnx.helper.make_opsetid("", 17)
    compile_edge(
        onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), out_dir=tmp_path / "build"
    )
    shown = blocks("py")[1]
    names: dict[str, object] = {"x": np.array([-1, 2], np.float32)}
    exec(shown.replace('"build/', f'"{tmp_path}/build/'), names)
    assert np.asarray(names["y"]).tolist() == [0.0, 2.0]


def test_own_data_is_dealt_by_the_lines_that_are_shown(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    exec(blocks("py")[0], {"x": rng.random((50, 64)), "y": rng.integers(0, 10, 50)})
    settings = {"one_hot": 10, "batch_size": 0}
    sizes = {}
    for file in sorted(tmp_path.iterdir()):
        source = build(ArrayDataSource, ComponentEnv("shard", config={"path": str(file), **settings}))
        sizes[file.name] = int(source.num_samples(None))
    assert sizes == dict.fromkeys([*(f"client-{k}.npz" for k in range(4)), "server.npz"], 10)


def test_bb_host_prints_what_is_shown(tmp_path: Path, monkeypatch, capsys) -> None:
    """Figures and digests as they stand there; what a node will take of memory depends on the machine."""
    pytest.importorskip("onnx", reason="bb-host needs the host extra")
    from bb_host.cli import main as host

    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    asked = [block for block in blocks("console") if block.startswith("$ bb-host ")]
    assert len(asked) == 2
    for block in asked:
        command, _, shown = block.partition("\n")
        assert host(shlex.split(command)[2:]) == 0
        said = capsys.readouterr().out
        shown, said = (re.sub(r"≥ [\d.]+ MiB", "≥", text.rstrip()) for text in (shown, said))
        expected = "".join(".*" if part == "…" else re.escape(part) for part in re.split("(…)", shown))
        assert re.fullmatch(expected, said), said
