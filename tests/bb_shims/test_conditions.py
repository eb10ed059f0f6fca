"""Where the power comes from, how busy the board is, and whether now is a good time for heavy work."""

from __future__ import annotations

import pytest

from bb_shims import ConditionError, Conditions, LinuxLoad, LinuxSupply, detect
from bb_shims.testing import FakeBoard

SUPPLY = "/sys/class/power_supply/{}/{}"


def supply(name: str, **attributes: str) -> dict[str, str]:
    return {SUPPLY.format(name, key): f"{value}\n" for key, value in attributes.items()}


@pytest.mark.parametrize(
    ("files", "mains"),
    [
        ({}, True),  # a board with a plug and nothing else
        (supply("AC", type="Mains", online="1"), True),
        (supply("AC", type="Mains", online="0"), None),  # and yet it runs
        (supply("BAT0", type="Battery", status="Discharging"), False),
        (supply("BAT0", type="Battery", status="Charging"), True),
        (supply("BAT0", type="Battery", status="Not charging"), True),
        (supply("BAT0", type="Battery", status="Unknown"), None),
        (
            supply("AC", type="Mains", online="0") | supply("BAT0", type="Battery", status="Discharging"),
            False,
        ),
        (supply("usb", type="USB", online="1") | supply("BAT0", type="Battery", status="Discharging"), True),
        (supply("mouse", type="Battery", status="Discharging", scope="Device"), True),
    ],
)
def test_on_mains(tree, trees, files: dict[str, str], mains: bool | None) -> None:
    assert LinuxSupply(tree(trees["generic"] | files)).on_mains() is mains


def test_the_load_is_told_per_core(tree) -> None:
    assert LinuxLoad(tree({"/proc/loadavg": "2.00 0.50 0.25 1/123 4567\n"}), cores=4).per_core() == 0.5


@pytest.mark.parametrize("text", ["", "a lot\n"])
def test_a_load_that_is_none_is_unknown(tree, text: str) -> None:
    assert LinuxLoad(tree({"/proc/loadavg": text})).per_core() is None


def test_all_conditions_hold_or_it_is_said_which_do_not() -> None:
    fake = FakeBoard()
    conditions = Conditions(fake.board, ("cool", "mains", "idle"), cool_celsius=60, idle_load=0.5)
    assert conditions.unmet() == ""
    fake.thermal.reading, fake.supply.reading, fake.load.reading = 60.0, False, 0.5
    assert conditions.unmet() == (
        "the board has 60 °C, cool is below 60; the board runs on its battery; "
        "the load is 0.50 per core, idle is below 0.5"
    )
    assert Conditions(fake.board, ("mains",)).unmet() == "the board runs on its battery"
    fake.supply.reading = True
    assert Conditions(fake.board, ("mains",)).unmet() == ""


def test_what_nobody_can_tell_any_more_does_not_hold() -> None:
    fake = FakeBoard()
    conditions = Conditions(fake.board, ("cool",))
    fake.thermal.reading = None
    assert conditions.unmet() == "nobody can tell whether the board is cool"


def test_what_the_board_does_not_tell_is_refused(tree, trees) -> None:
    board = detect(tree(trees["generic"] | {"/proc/loadavg": "0.00 0 0 1/1 1\n"}), environ={})
    assert Conditions(board, ("mains", "idle")).unmet() == ""
    with pytest.raises(ConditionError, match="does not tell whether it is cool"):
        Conditions(board, ("cool",))
    with pytest.raises(ConditionError, match="no condition 'cold': there are cool, mains, idle"):
        Conditions(board, ("cold",))
