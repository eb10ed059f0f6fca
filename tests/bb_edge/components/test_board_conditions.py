"""`bb.BoardConditions`: a program asks whether the board is cool, on mains and idle, or waits for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bb_edge.engine import steps
from bb_edge.ir.values import TRIGGER
from bb_edge.roles import ComponentError

MS = 1_000_000
PROGRAM = """program Demo {module=Demo, binding.Main.board="protocol|bb.BoardConditions|1"}
function program.Main(ask: Trigger, work: Trigger) -> () {entry=1, partition=self}
  slot board: protocol
  fit: BOOL[] = "bb.BoardConditions"::Fit(ask) {slot=board}
  syscall.AppEmit<name="fit">(fit)
  now: Trigger = "bb.BoardConditions"::WhenFit(work) {slot=board}
  syscall.AppNotify<name="works">(now)
"""


class Board:
    """The kernel's files of a board, and a node on it."""

    def __init__(self, root: Path, bench: Callable[..., Any]) -> None:
        self._root, self._bench = root, bench
        self.write("/proc/meminfo", "MemTotal: 3884080 kB\nMemAvailable: 2500000 kB\n")
        self.write("/proc/self/status", "VmHWM: 61000 kB\nVmRSS: 52000 kB\n")
        self.write("/proc/loadavg", "0.00 0.00 0.00 1/100 1000\n")
        self.write("/sys/class/thermal/thermal_zone0/type", "cpu-thermal\n")
        self.heat(40)

    def write(self, name: str, text: str) -> None:
        path = self._root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def heat(self, celsius: int) -> None:
        self.write("/sys/class/thermal/thermal_zone0/temp", f"{celsius}000\n")

    def node(self, **config: object) -> Any:
        return self._bench(PROGRAM, components={"board": {"root": str(self._root), **config}})


@pytest.fixture
def board(tmp_path: Path, bench: Callable[..., Any]) -> Board:
    return Board(tmp_path, bench)


def test_whether_all_conditions_hold(board: Board) -> None:
    b = board.node(cool_celsius=60)
    for celsius in (59, 60, 40):
        board.heat(celsius)
        b.node.invoke("Main", {"ask": TRIGGER})
        b.poll()
    board.write("/sys/class/power_supply/BAT0/type", "Battery\n")
    board.write("/sys/class/power_supply/BAT0/status", "Discharging\n")
    b.node.invoke("Main", {"ask": TRIGGER})
    b.poll()
    assert [bool(fit) for fit in b.events("fit")] == [True, False, True, False]
    b.assert_clean()


def test_work_waits_until_the_board_is_cool(board: Board) -> None:
    b = board.node(conditions=["cool"], poll_ms=500)
    board.heat(80)
    b.node.invoke("Main", {"work": TRIGGER})
    b.poll()
    b.poll(60_000 * MS)
    assert b.topics() == []
    board.heat(50)
    b.poll(500 * MS)
    b.poll()
    assert b.topics() == ["works"]
    b.node.invoke("Main", {"work": TRIGGER})
    b.poll()
    assert b.topics() == ["works", "works"]
    b.settle()
    b.assert_clean()


def test_work_that_waits_too_long_says_why(board: Board) -> None:
    b = board.node(conditions=["cool"], wait_ms=3_000)
    board.heat(80)
    b.node.invoke("Main", {"work": TRIGGER})
    b.settle()
    (failed,) = b.of(steps.OpFailed)
    assert "the board has 80 °C, cool is below 65, and so it was for 3000 ms" in failed.text


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"conditions": ["cold"]}, "no condition 'cold'"),
        ({"conditions": "cool"}, "not a list of conditions"),
        ({"conditions": []}, "not a list of conditions"),
        ({"idle_load": 0}, "above 0"),
    ],
)
def test_a_bad_configuration_says_what_is_wrong(board: Board, config: dict[str, object], says: str) -> None:
    with pytest.raises(ComponentError, match=says):
        board.node(**config)


def test_a_board_without_the_sensor_is_refused(board: Board, tmp_path: Path) -> None:
    (tmp_path / "sys/class/thermal/thermal_zone0/temp").unlink()
    with pytest.raises(ComponentError, match="does not tell whether it is cool"):
        board.node()
