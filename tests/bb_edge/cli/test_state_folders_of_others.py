"""`--state` over a folder that has lost its snapshots, or is another one than was meant."""

from __future__ import annotations

import pytest

from bb_edge.cli import main
from bb_edge.cli.endings import Exit

pytestmark = pytest.mark.broker


def test_a_node_that_has_lost_its_snapshots_does_not_begin_anew(configured, start, tmp_path, capsys):
    path = configured(state="state", snapshot_interval_s=0)
    for _ in range(2):
        node = start("run", "--config", str(path))
        node.says("tick")
        assert node.end() == Exit.DONE
    snapshots = sorted((tmp_path / "state").glob("snapshot-*"))
    assert len(snapshots) > 1
    for snapshot in snapshots:
        snapshot.unlink()
    before = sorted(p.name for p in (tmp_path / "state").iterdir())

    for verb, code in (("run", Exit.REFUSED), ("check", 1)):
        assert main([verb, "--config", str(path)]) == code
        said = capsys.readouterr()
        assert "the snapshots are missing" in said.err + said.out
        assert "start anew" in said.err + said.out
    assert sorted(p.name for p in (tmp_path / "state").iterdir()) == before


def test_a_folder_of_other_files_is_told_once(configured, start, tmp_path):
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "P.Main.edge.onnx").write_bytes(b"x")
    (tmp_path / "build" / "notes.txt").write_text("x")
    path = configured(state="build")
    for words in (["2 files that are not a node's ('P.Main.edge.onnx', 'notes.txt'), and no state"], []):
        node = start("run", "--config", str(path))
        node.says("tick")
        assert node.end() == Exit.DONE
        told = [line for line in node.lines if "are not a node's" in line]
        assert len(told) == len(words) and all(w in line for w, line in zip(words, told, strict=True))
