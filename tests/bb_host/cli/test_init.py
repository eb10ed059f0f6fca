"""`bb-host init`: the broker's configuration and the examples, as they came along."""

from __future__ import annotations

from pathlib import Path

import pytest

import bb_shims
from bb_host import cli_init
from bb_host.cli import main

ROOT = Path(__file__).resolve().parents[3]


def test_the_broker_s_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "broker", "-o", str(tmp_path)]) == 0
    source = Path(bb_shims.__file__).parent / "files" / "broker"
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {
        p.name: p.read_bytes() for p in source.iterdir()
    }
    assert "bb-host acl" in capsys.readouterr().out


def test_the_examples_are_written_and_never_over_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "examples", "-o", str(tmp_path)]) == 0
    for path in (ROOT / "examples").rglob("*.py"):
        assert (tmp_path / path.relative_to(ROOT / "examples")).read_bytes() == path.read_bytes()
    assert (tmp_path / "data" / "optdigits.csv.gz").exists() and not list(tmp_path.rglob("*.pyc"))
    (tmp_path / "local_run.py").write_text("mine")
    assert main(["init", "examples", "-o", str(tmp_path)]) == 1
    assert "local_run.py: it is there already" in capsys.readouterr().err


def test_an_installation_without_examples_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_init, "__file__", str(tmp_path / "bb_host" / "cli_init.py"))
    assert main(["init", "examples", "-o", str(tmp_path / "out")]) == 1
    assert "no examples came with it" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
