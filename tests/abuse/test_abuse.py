"""The short form of `./dev abuse`: a few processes, a few faults, the ledger still right."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from abused.flood import BUDGET, Flood
from abused.reports import HUB, Heard, ReportWorld
from abused.tiers import TierWorld
from abused.world import World

from bb_edge.ir.ids import PeerId
from federated_digits.processes import Child

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(shutil.which("mosquitto") is None, reason="needs mosquitto"),
]


@pytest.mark.parametrize(("durable", "brokers"), [(False, 1), (True, 1), (True, 3)])
def test_the_ledger_is_right_whatever_dies(tmp_path: Path, durable: bool, brokers: int) -> None:
    world = World(tmp_path, clients=2, rounds=5, reports=6, pause_ms=300, durable=durable, brokers=brokers)
    try:
        world.abuse(seed=1 + durable, faults=3, stopped_s=0.5, every_s=0.3)
    finally:
        world.close()
    assert not world.wrong(), (world.wrong(), world.done, [c.tail for c in world.nodes.values()])
    assert world.done


def test_two_tiers_count_once_or_say_who_is_missing_whatever_dies(tmp_path: Path) -> None:
    world = TierWorld(tmp_path, clients=4, rounds=6, pause_ms=500)
    try:
        world.abuse(seed=3, faults=3, every_s=0.5)
    finally:
        world.close()
    assert not world.wrong(), (world.wrong(), world.done, [c.tail for c in world.nodes.values()])
    assert world.done and world.counted


def test_the_oracle_of_two_tiers_sees_what_is_wrong(tmp_path: Path) -> None:
    world = TierWorld(tmp_path, clients=4, rounds=1)
    both = {"gateway-0", "gateway-1"}

    def found(mean: float, total: float, missing: set[str]) -> str:
        world.told[1] = [[mean, total, missing, both]]
        return "; ".join(world.wrong())

    assert found(3.75, 4.0, set()) == ""
    assert "client-1 is not in the sum, and nobody says why" in found(13 / 3, 3.0, set())
    assert found(5 / 2, 2.0, {"gateway-1"}) == "", "a gateway that is missing takes its clients with it"
    assert "its gateway has not answered" in found(3.75, 4.0, {"gateway-1"})
    assert "5 counted" in found(16 / 5, 5.0, set()), "client-0 was counted twice"
    world.asked["gateway-1", 1] = [{"client-1", "client-3"}]
    world.heard_at["gateway-1", 1] = [(8.0, 1.0, {"client-1"})]
    assert found(13 / 3, 3.0, set()) == "", "its gateway has missed it"
    world.heard_at["gateway-1", 1] = [(8.0, 1.0, set())]
    assert "gateway-1, round 1: counted ['client-3'], missing []" in found(13 / 3, 3.0, set())
    world.asked["gateway-1", 1] = [{"client-3"}]
    assert found(13 / 3, 3.0, set()) == "", "its gateway has not seen it"
    world.told[1].append([3.75, 4.0, set(), both])
    assert any("two ways" in text for text in world.wrong())
    world.told.clear()
    assert any("rounds told: [] of 1" in text for text in world.wrong())
    world.close()


def test_a_flood_of_ten_budgets_costs_one_and_others_are_served(tmp_path: Path) -> None:
    found = Flood(tmp_path).run(1.0, 10 * BUDGET)
    assert found.sent_bytes >= 10 * BUDGET
    assert found.grown_bytes <= 1.1 * BUDGET, found
    assert found.counters["ingress.turned_away"] > 100
    assert found.reports[1] and found.reports[2], found


def test_the_oracle_sees_what_is_wrong(tmp_path: Path) -> None:
    world = World(tmp_path, clients=2, rounds=1, reports=1, durable=False)
    world.told[1] = [[1, 1.5, 2, []]]
    assert world.wrong() == []
    world.told[1] = [[1, 2.0, 3, []]]
    assert "3 counted" in world.wrong()[0], "one was counted twice"
    world.told[1] = [[1, 1.0, 2, []]]
    assert "2 counted" in world.wrong()[0], "the same one twice, another not"
    world.durable = True
    world.nodes["server"] = Child("server", ["true"], tmp_path / "log", world.events)
    world.told[1] = [[1, 1.0, 1, []]]
    world.ticks["somebody", 1] = ["server"]
    assert any("neither" in text for text in world.wrong())
    assert any("lost" in text for text in world.wrong())
    world.told[1] = [[1, 1.0, 1, [str(PeerId.from_name("client-1"))]], [1, 1.5, 2, []]]
    assert any("two ways" in text for text in world.wrong())
    world.close()


@pytest.mark.parametrize(("brokers", "seed"), [(1, 6), (2, 1), (3, 9)])
def test_every_durable_report_is_heard_once_whoever_is_away_killed_put_back_or_full(
    tmp_path: Path, brokers: int, seed: int
) -> None:
    world = ReportWorld(tmp_path, devices=2, brokers=brokers)
    try:
        world.abuse(seed=seed, faults=4, away_s=2.0, every_s=0.5)
        world.settle()
    finally:
        world.close()
    assert world.complete and not world.wrong(), (world.wrong(), world.done)
    assert min(world.told.values()) > 20


def test_the_oracle_of_reports_sees_what_is_lost_and_what_comes_twice(tmp_path: Path) -> None:
    world = ReportWorld(tmp_path, devices=1)
    world.due["device-0"] = 3
    heard, ran = world.heard["device-0"], world.ran["device-0"]
    heard |= {1: [Heard(0, 0)], 2: [Heard(0, 0), Heard(1, 0)], 3: [Heard(0, 0)]}
    ran |= {1: {0}, 2: {0}, 3: {0}}
    assert not world.wrong(), "the hub was killed between the two"
    heard[3] = [Heard(0, 0), Heard(0, 1)]
    assert world.wrong() == ["device-0: [3] were heard again, neither named nor run again"]
    ran[3] = {0, 1}
    assert not world.wrong(), "its round was run again"
    ran[3] = {0}
    world.is_old("device-0", "StateRolledBack peer=hub (Q) own=True text=x: records 1, 3 to 4 of the outbox")
    assert not world.wrong(), "its record was named"
    assert world.named["device-0"] == {1: 1, 3: 1, 4: 1}
    heard[3] = [Heard(0, 0), Heard(0, 0)]
    assert world.wrong() == ["device-0: [3] were heard twice"]
    del heard[1]
    assert "[1] of 3" in world.wrong()[0]
    world.is_old("device-0", "StateRolledBack peer=hub (Q) own=False text=x")
    assert not world.old["device-0"], "a device does not tell of itself"
    world.is_old(HUB, "StateRolledBack peer=device-0 (Q) own=False text=x")
    assert world.old["device-0"] == 1
    world.close()
