"""Honest clients train the digits beside some that answer with poison, each a process of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from abused.digits import Heard
from abused.poison import BEHAVIOUR, REFUSED, ids_of, name_of, poisoned, spoiled

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(shutil.which("mosquitto") is None, reason="needs mosquitto"),
]

ROUNDS = 5
"""After five in a row, a peer that is refused is not asked any more."""


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Heard:
    """The federation without an attacker."""
    found = poisoned(tmp_path_factory.mktemp("honest"), (), ROUNDS)
    assert found.accuracy[-1] > 0.8 and not any(found.missing), found
    return found


def test_what_is_refused_costs_nothing_and_is_named(tmp_path: Path, honest: Heard) -> None:
    found = poisoned(tmp_path, REFUSED, ROUNDS)
    assert found.accuracy == pytest.approx(honest.accuracy, abs=0.01)
    assert found.samples == honest.samples, "those of honest clients, all of them"
    assert all(missing == ids_of(REFUSED) for missing in found.missing), "each round says who was left out"
    said = " ".join(line for line in found.log if " warning " in line or " error " in line)
    for kind in REFUSED:
        assert name_of(kind) in said, f"the log does not name {kind!r}"
        told = found.said(name_of(kind), " warning ", "AnswerRefused", "peer=server ")
        assert told, f"{kind!r} does not hear at its own end that its answer does not count"
    assert any("inf or nan" in line for line in found.logs[name_of("nan")]), "nor why"


@pytest.mark.parametrize("attack", ["huge", "scaled"])
def test_an_update_beyond_all_bounds_is_clipped(tmp_path: Path, honest: Heard, attack: str) -> None:
    found = poisoned(tmp_path, (attack,), ROUNDS)
    assert len(found.accuracy) == ROUNDS and not any(found.missing)
    assert found.accuracy[-1] > honest.accuracy[-1] - 0.1, (found.accuracy, honest.accuracy)


def test_who_gives_no_answer_costs_five_rounds_at_most_and_another_program_none(
    tmp_path: Path, honest: Heard, patience: float
) -> None:
    """One honest client runs an older program, which the server's lists."""
    found = spoiled(tmp_path, 2 * ROUNDS, 1.5 * patience)
    assert found.accuracy[:ROUNDS] == pytest.approx(honest.accuracy, abs=0.01)
    assert found.accuracy[-1] > honest.accuracy[-1] - 0.01
    assert found.samples == honest.samples * 2, "those of honest clients, all of them, of either program"
    assert all(missing <= ids_of(BEHAVIOUR) for missing in found.missing), "another program is not asked"
    waited = found.said("server", "RequestClosed", "reason=deadline")
    assert 0 < len(waited) <= 5, "a peer that never answers is not waited for again"
    assert found.said("server", "RequestClosed", "reason=all settled")[-1] > waited[-1]
    for kind, reason in (("raises", "OP_FAILED"), ("oversize", "TOO_LARGE")):
        assert found.said("server", "RequestFailed", name_of(kind), reason), f"{kind} is told why"
    for kind in BEHAVIOUR:
        assert found.said("server", "PeerFailing", name_of(kind), "failing=True"), kind
    for one, other in (("server", name_of("program")), (name_of("program"), "server")):
        assert len(found.said(one, "ProgramMismatch", f"peer={other} ")) == 1, "both name the other, once"
    assert not found.said("server", "ProgramMismatch", "honest")
