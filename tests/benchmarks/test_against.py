"""The comparison of two checkouts, here of this one with itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import against, federated_round

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("group", ["engine", "rounds"])
def test_every_act_of_a_group_is_done_on_both_sides(group, capsys):
    against.main([str(ROOT), "--only", group, "--pairs", "2"])
    title, *lines = capsys.readouterr().out.split("\n\n")[-1].strip().splitlines()
    assert title == group
    assert lines
    for line in lines:
        assert re.search(r"there +[\d.]+ ms  here +[\d.]+ ms  ratio [\d.]+  median [\d.]+$", line), line


def test_federations_are_run_in_turns_by_each_checkouts_own_benchmark(monkeypatch, capsys, tmp_path):
    done: list[Path] = []
    rounds = iter([(8.0, 16.0, 3.0, 1.0), (2.0, 3.0, 2.0, 1.0), (2.0, 4.0, 2.0, 1.0), (10.0, 16.0, 5.0, 1.0)])

    def federations(root: Path) -> tuple[float, float, float, float]:
        done.append(root)
        return next(rounds)

    monkeypatch.setattr(against, "_federations", federations)
    against.main([str(tmp_path), "--only", "federated_round", "--pairs", "2"])
    assert done == [ROOT, tmp_path, tmp_path, ROOT]
    there, here = capsys.readouterr().out.splitlines()
    assert there == (
        "there  a round   2.00 ms  durable   3.00 ms  ratio 1.50  median 1.75  each 1.50 2.00"
        "  syncs 2.00 and 1.00"
    )
    assert here == (
        "here   a round   8.00 ms  durable  16.00 ms  ratio 2.00  median 1.78  each 2.00 1.60"
        "  syncs 4.00 and 1.00"
    )


def test_federations_are_not_run_where_nobody_asks_for_them(monkeypatch):
    monkeypatch.setattr(against, "federated", lambda *_: pytest.fail("they take half a minute a pair"))
    monkeypatch.setattr(against, "GROUPS", ())
    against.main([str(ROOT), "--pairs", "1"])


def test_what_the_benchmark_of_federations_needs_of_a_checkout_is_there():
    for name in ("prepare", "edge_command", "durable_command", "federate", "ROUNDS", "CLIENTS", "WARM_UP"):
        assert f"fr.{name}" in against.FEDERATIONS and hasattr(federated_round, name), name


@pytest.mark.parametrize("name", ["weather", "federated", "federated_rounds"])
def test_a_group_that_is_none_is_refused(capsys, name):
    with pytest.raises(SystemExit) as ended:
        against.main([str(ROOT), "--only", name])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert f"'{name}'" in told and "compile" in told and "federated_round" in told
