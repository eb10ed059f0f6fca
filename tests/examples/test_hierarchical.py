"""Two tiers learn what one does; who is asked twice in a round counts once; the example as it is started."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine import steps
from bb_edge.transport.in_process import Simulation
from bb_host import S
from bb_host.build import build_edge
from federated_digits.data import load_digits
from hierarchical.run import write_data
from hierarchical.tiers import program
from tests.aids.example_runs import printed
from tests.aids.simulations import failures

RUN = Path(__file__).resolve().parents[2] / "examples" / "hierarchical" / "run.py"
ROUNDS, CLIENTS = 4, 4
SIZES = [32 * 3**n for n in range(CLIENTS)]
"""How many digits each client has: any sum of them says who has counted, and how often."""


def counted(total: Any) -> list[int]:
    """How often each client is in a sum of samples."""
    found, rest = [], int(total) // 32
    for _ in range(CLIENTS):
        rest, digit = divmod(rest, 3)
        found.append(digit)
    assert rest == 0 and int(total) % 32 == 0, total
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    folder = tmp_path_factory.mktemp("digits")
    x, y = load_digits()
    np.savez(folder / "exam.npz", x=x[:300], y=y[:300])
    ends = np.cumsum([300, *SIZES])
    for number, (start, end) in enumerate(pairwise(ends)):
        np.savez(folder / f"client-{number}.npz", x=x[start:end], y=y[start:end])
    return folder / "exam.npz", [folder / f"client-{number}.npz" for number in range(CLIENTS)]


class Federation:
    """Nodes of one of the two programs in a simulated network, in which all of them see each other."""

    def __init__(self, files: tuple[Path, list[Path]], flat: bool = False, **options: int) -> None:
        module, compiler = program(flat, 1, rounds=ROUNDS, local_steps=3, **options)
        self._files = {a.target: a.data for a in build_edge(module, compiler).artifacts}
        self.sim = Simulation(seed=1)
        exam, shards = files
        for number, shard in enumerate(shards):
            self.add(f"client-{number}", "Client", 100 + number, {"shard": {"path": str(shard)}})
        for number in range(0 if flat else 2):
            self.add(f"gateway-{number}", "Gateway", number)
        self.server = self.add("server", "Server", 9, {"test": {"path": str(exam)}})

    def add(self, name: str, target: str, seed: int, settings: Any = None) -> Any:
        peer, config = PeerId.from_name(name), NodeConfig.host()
        node = install(peer, (), self._files[target], [target], config, components=settings or {}, seed=seed)
        self.sim.add(node)
        return node

    def of(self, kind: type) -> list[Any]:
        return [seen.step for seen in self.sim.seen if isinstance(seen.step, kind)]

    def rounds(self) -> list[Any]:
        return [e.copy().value.values for e in self.of(steps.AppEvent) if e.topic == "round"]

    def run(self, until: Callable[[], bool] | None = None) -> None:
        self.sim.run(until, for_ns=600 * S)

    @property
    def parameters(self) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self.server.component("model").parameters
        return found


def test_two_tiers_learn_what_one_does_and_clients_whom_both_gateways_ask_count_once(files: Any) -> None:
    tiers, flat = Federation(files, children=1), Federation(files, flat=True, asked=CLIENTS)
    for federation in (tiers, flat):
        federation.run()
        rounds = federation.rounds()
        assert [int(number) for number, *_ in rounds] == list(range(1, ROUNDS + 1))
        assert [counted(total) for *_, total, _ in rounds] == [[1] * CLIENTS] * ROUNDS
    np.testing.assert_allclose(tiers.parameters, flat.parameters, rtol=1e-4, atol=1e-6)
    declined = tiers.of(steps.RequestDeclined)
    assert len(declined) == ROUNDS * CLIENTS, "each client is asked by two gateways in every round"
    assert re.fullmatch(r"round \d+ has been answered here", declined[0].why)
    assert len({step.why for step in declined}) == ROUNDS, "each round has a number of its own"
    assert not tiers.of(steps.ExecutionStarved), "who waits for what was declined is not a riddle"
    assert not failures(tiers.sim) and not failures(flat.sim)


def test_a_gateway_that_dies_in_mid_round_costs_no_more_than_that_round(files: Any) -> None:
    tiers = Federation(files, at_least=1)
    tiers.run(lambda: len(tiers.rounds()) == 1 and len(tiers.of(steps.RequestDeclined)) > CLIENTS + 1)
    assert len(tiers.rounds()) == 1, "the second round is under way"
    tiers.sim.remove(PeerId.from_name("gateway-0"))
    tiers.run()
    rounds = tiers.rounds()
    totals = {int(number): counted(total) for number, *_, total, _ in rounds}
    assert set(totals) == set(range(1, ROUNDS + 1))
    assert all(times <= 1 for total in totals.values() for times in total), totals
    assert [totals[number] for number in (1, 3, 4)] == [[1] * CLIENTS] * 3


def test_a_round_that_counted_nothing_is_answered_again_by_those_who_have_answered_it(files: Any) -> None:
    tiers = Federation(files, children=1)
    tiers.run(lambda: len(tiers.rounds()) == 1 and len(tiers.of(steps.RequestDeclined)) == 2 * CLIENTS)
    assert len(tiers.rounds()) == 1, "each client has answered the second round, no gateway has"
    for number in range(2):
        tiers.sim.remove(PeerId.from_name(f"gateway-{number}"))
    tiers.run(lambda: bool(tiers.of(steps.RoundBackedOff)))
    for number in range(2):
        tiers.add(f"gateway-{number}", "Gateway", 20 + number)
    tiers.run()
    told = [(int(number), counted(total)) for number, *_, total, _ in tiers.rounds()]
    everybody = [1] * CLIENTS
    assert told == [(1, everybody), (2, [0] * CLIENTS), (2, everybody), (3, everybody), (4, everybody)]


def test_shards_of_the_example_differ_in_size(tmp_path: Path) -> None:
    _, shards = write_data(6, 1, tmp_path)
    sizes = [len(np.load(path)["x"]) for path in shards]
    assert len(set(sizes)) == 6 and min(sizes) >= 32


@pytest.mark.broker
@pytest.mark.slow
def test_the_example_runs_from_nothing(tmp_path: Path) -> None:
    out = printed(RUN, "--rounds", "3", "--clients", "2", "--out", tmp_path)
    (last,) = [line for line in out.splitlines() if "   3/3  tiers 0." in line]
    assert (tmp_path / "hierarchical.png").read_bytes().startswith(b"\x89PNG")
    if "bridged" in out:
        words = last.split()
        assert words[words.index("tiers") + 1] == words[words.index("flat") + 1], last
        at_the_end = out.partition("samples that counted:")[2].splitlines()
        scores = {line.split()[0]: line.split()[1:3] for line in at_the_end if line.startswith("  ")}
        assert scores["tiers"] == scores["flat"], "the accuracy, and the samples behind it"
