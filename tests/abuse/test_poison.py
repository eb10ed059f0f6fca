"""Honest clients train the digits beside some that answer with poison, each a process of its own."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from abused.digits import Digits, Heard, ids
from abused.poison import BEHAVIOUR, REFUSED, ids_of, name_of, poisoned, spoiled

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(shutil.which("mosquitto") is None, reason="needs mosquitto"),
]

FAILING = 5
"""After so many in a row, a peer that is refused is not asked any more."""
ROUNDS = 12
"""An update that is clipped costs some of the first rounds, and nothing of the later ones."""
SEEDS = 3
ONE_DIGIT = 1 / 360
"""What one digit of the test set more or less is of the accuracy."""
ATTACKS = {"refused": REFUSED, "huge": ("huge",), "scaled": ("scaled",)}
"""Who attacks at once. Those that are refused do not hide each other: each is named by itself."""


@dataclass(frozen=True)
class Honest:
    """Federations without an attacker, by the seeds of their clients."""

    runs: list[Heard]

    @property
    def first(self) -> Heard:
        return self.runs[0]

    @property
    def least(self) -> float:
        """The lowest accuracy of the last rounds."""
        return min(accuracy for run in self.runs for accuracy in run.accuracy[-4:])


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Honest:
    folder = tmp_path_factory.mktemp("honest")
    runs = [poisoned(folder / str(seed), (), ROUNDS, seed) for seed in range(SEEDS)]
    assert all(run.accuracy[-1] > 0.9 and not any(run.missing) for run in runs), runs
    return Honest(runs)


@pytest.mark.parametrize("attackers", ATTACKS.values(), ids=ATTACKS)
def test_the_model_is_as_good_as_without_an_attacker(
    tmp_path: Path, honest: Honest, attackers: tuple[str, ...]
) -> None:
    failures: dict[str, str] = {}

    def look(digits: Digits) -> None:
        if attackers is REFUSED:
            failures.update(digits.failures(ids_of(attackers)))

    found = poisoned(tmp_path, attackers, ROUNDS, look=look)
    assert len(found.accuracy) == ROUNDS
    assert found.accuracy[-1] >= honest.least - ONE_DIGIT, (found.accuracy, honest.least)
    assert not found.said("server", "RequestClosed", "reason=deadline"), "no round waits for an attacker"
    assert not found.summary["counters"].get("requests.unanswered", 0)
    if attackers is REFUSED:
        refused(found, honest)
        (server,) = ids("server")
        assert failures.keys() == ids_of(REFUSED)
        assert all(f"{server} refuses its answers: " in text for text in failures.values()), failures
    else:
        assert not any(found.missing), "it counts, and moves the model by no more than any other"


def refused(found: Heard, honest: Honest) -> None:
    """What is refused costs nothing, is named at both ends, and is not asked for after five rounds."""
    assert found.accuracy == pytest.approx(honest.first.accuracy, abs=0.01)
    assert found.samples == honest.first.samples, "those of honest clients, all of them"
    for missing in found.missing[:FAILING]:
        assert missing == ids_of(REFUSED), "each round says who was left out"
    assert all(missing <= ids_of(REFUSED) for missing in found.missing)
    said = " ".join(line for line in found.log if " warning " in line or " error " in line)
    for kind in REFUSED:
        assert name_of(kind) in said, f"the log does not name {kind!r}"
        assert found.said("server", "PeerFailing", name_of(kind), "failing=True"), kind
        told = found.said(name_of(kind), " warning ", "AnswerRefused", "peer=server ")
        assert told, f"{kind!r} does not hear at its own end that its answer does not count"
    assert any("inf or nan" in line for line in found.logs[name_of("nan")]), "nor why"


def test_who_gives_no_answer_costs_five_rounds_at_most_and_another_program_none(
    tmp_path: Path, honest: Honest, patience: float
) -> None:
    """One honest client runs an older program, which the server's lists.

    Of two that never answer, either may back off while a round waits for the other: they cost five each. A
    quick round may lie within a back-off, so that there are twice as many rounds as both can cost.
    """
    silent, calm = ("late", "mute"), honest.first
    found = spoiled(tmp_path, 2 * len(silent) * FAILING + 2, 1.5 * patience)
    assert found.accuracy[:ROUNDS] == pytest.approx(calm.accuracy, abs=0.01)
    assert found.samples[:ROUNDS] == calm.samples, "those of honest clients, all of them, of either program"
    assert all(missing <= ids_of(BEHAVIOUR) for missing in found.missing), "another program is not asked"
    assert found.summary["counters"]["requests.unanswered"] == len(silent) * FAILING, "each costs five"
    waited = {kind: rounds_that_waited_for(kind, found) for kind in silent}
    assert all(0 < len(rounds) <= FAILING for rounds in waited.values()), waited
    closed = found.said("server", "RequestClosed", "reason=")
    given_up = max(rounds[-1] for rounds in waited.values())
    assert closed[given_up + 1 :], "nobody is given up before the last round"
    assert all("reason=all settled" in line for line in closed[given_up + 1 :]), closed[given_up + 1 :]
    for kind, reason in (("raises", "OP_FAILED"), ("oversize", "TOO_LARGE")):
        assert found.said("server", "RequestFailed", name_of(kind), reason), f"{kind} is told why"
    for kind in BEHAVIOUR:
        assert found.said("server", "PeerFailing", name_of(kind), "failing=True"), kind
    for one, other in (("server", name_of("program")), (name_of("program"), "server")):
        assert len(found.said(one, "ProgramMismatch", f"peer={other} ")) == 1, "both name the other, once"
    assert not found.said("server", "ProgramMismatch", "honest")


def rounds_that_waited_for(kind: str, found: Heard) -> list[int]:
    """The numbers, from 0, of the requests that the server closed at the deadline with this one missing."""
    missing = re.compile(rf"\['{name_of(kind)} \(\w+\)', 'deadline'\]")
    return [
        n for n, line in enumerate(found.said("server", "RequestClosed", "reason=")) if missing.search(line)
    ]
