"""`bb-edge init service`: the files of a service, as they came along, and never over others."""

from __future__ import annotations

from pathlib import Path

import pytest

import bb_shims
from bb_edge.cli import main

SERVICE = Path(bb_shims.__file__).parent / "files" / "service"


def test_all_files_of_the_service_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "service", "-o", str(tmp_path / "new")]) == 0
    written = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    assert written == {path.name: path.read_bytes() for path in SERVICE.iterdir()}
    said = capsys.readouterr().out
    assert all(name in said for name in written) and f"where {tmp_path / 'new'} is" in said


def test_the_steps_make_what_they_use_and_are_those_of_the_pages(capsys, tmp_path: Path) -> None:
    assert main(["init", "service", "-o", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.index("mkdir -p /etc/bb-edge") < said.index("chgrp -R bb-edge /etc/bb-edge")
    root = SERVICE.parents[3]
    for page in ("docs/tutorials/raspberry-pi.md", "firmware_shims/README.md"):
        text = (root / page).read_text("utf-8")
        for step in ("install -D -m 644 bb-edge.sysusers.conf /etc/sysusers.d/bb-edge.conf", "mkdir -p"):
            assert step in text and step in said, page


def test_what_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["init", "service", "-o", str(tmp_path)]
    assert main(arguments) == main(arguments) == 0
    unit = tmp_path / "bb-edge@.service"
    unit.write_text("mine")
    (tmp_path / "60-bb-watchdog.rules").unlink()
    assert main(arguments) == 1
    assert f"{unit}: it is there already" in capsys.readouterr().err
    assert unit.read_text() == "mine"
    assert not (tmp_path / "60-bb-watchdog.rules").exists(), "nothing is half-done"
    assert main([*arguments, "--force"]) == 0 and unit.read_bytes() == (SERVICE / unit.name).read_bytes()
