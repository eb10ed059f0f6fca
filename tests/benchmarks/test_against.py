"""The comparison of two checkouts, here of this one with itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import against

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("group", ["engine", "rounds"])
def test_every_act_of_a_group_is_done_on_both_sides(group, capsys):
    against.main([str(ROOT), "--only", group, "--pairs", "2"])
    title, *lines = capsys.readouterr().out.split("\n\n")[-1].strip().splitlines()
    assert title == group
    assert lines
    for line in lines:
        assert re.search(r"there +[\d.]+ ms  here +[\d.]+ ms  ratio [\d.]+  median [\d.]+$", line), line


def test_a_group_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit):
        against.main([str(ROOT), "--only", "weather"])
    assert "compile" in capsys.readouterr().err
