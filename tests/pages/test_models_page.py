"""What docs/how-to/models.md says of models that only answer; test_pages.py runs its blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from page_steps import read_page

pytest.importorskip("onnx", reason="the page's program is compiled, which needs the host extra")
import onnx

from bb_edge.ir import keys
from bb_host.build import build_edge
from bb_host.learn import mlp

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "models.md"


def test_weights_of_a_frozen_model_are_in_the_flatbuffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(mlp([4, 3, 2]), "net.onnx")
    (shown,) = (step.text for step in read_page(PAGE).steps if step.name == "serve.py")

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
