"""Honest clients train the digits beside some that answer with poison, each a process of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from abused.poison import REFUSED, Poisoned, ids, name_of, poisoned

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(shutil.which("mosquitto") is None, reason="needs mosquitto"),
]

ROUNDS = 5
"""After five in a row, a peer that is refused is not asked any more."""


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Poisoned:
    """The federation without an attacker."""
    found = poisoned(tmp_path_factory.mktemp("honest"), (), ROUNDS)
    assert found.accuracy[-1] > 0.8 and not any(found.missing), found
    return found


def test_what_is_refused_costs_nothing_and_is_named(tmp_path: Path, honest: Poisoned) -> None:
    found = poisoned(tmp_path, REFUSED, ROUNDS)
    assert found.accuracy == pytest.approx(honest.accuracy, abs=0.01)
    assert found.samples == honest.samples, "those of honest clients, all of them"
    assert all(missing == ids(REFUSED) for missing in found.missing), "each round says who was left out"
    said = " ".join(line for line in found.log if " warning " in line or " error " in line)
    for kind in REFUSED:
        assert name_of(kind) in said, f"the log does not name {kind!r}"


@pytest.mark.parametrize("attack", ["huge", "scaled"])
def test_an_update_beyond_all_bounds_is_clipped(tmp_path: Path, honest: Poisoned, attack: str) -> None:
    found = poisoned(tmp_path, (attack,), ROUNDS)
    assert len(found.accuracy) == ROUNDS and not any(found.missing)
    assert found.accuracy[-1] > honest.accuracy[-1] - 0.1, (found.accuracy, honest.accuracy)
