"""Which board it is, and what is particular to each: temperature, power."""

from __future__ import annotations

import pytest

from bb_shims import LinuxThermal, SensorError, detect

ZONE = "/sys/class/thermal/thermal_zone{}/{}"
FIRMWARE = "/sys/devices/platform/soc/soc:firmware/get_throttled"


def test_a_raspberry_pi(tree, trees) -> None:
    board = detect(tree(trees["rpi"]), environ={})
    assert (board.name, board.model) == ("rpi", "Raspberry Pi 4 Model B Rev 1.4")
    assert board.thermal.celsius() == pytest.approx(48.199)
    status = board.power.status()
    assert (status.throttled, status.undervoltage) == (True, True)
    assert (status.was_throttled, status.was_undervoltage) == (True, True)
    assert status.mode == "ondemand"


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        ("0", (False, False, False, False)),
        ("0x1", (False, True, False, False)),
        ("2", (True, False, False, False)),
        ("4", (True, False, False, False)),
        ("8", (True, False, False, False)),
        ("10000", (False, False, False, True)),
        ("80000", (False, False, True, False)),
    ],
)
def test_the_firmwares_bits(tree, trees, bits: str, expected: tuple[bool, ...]) -> None:
    status = detect(tree({**trees["rpi"], FIRMWARE: bits + "\n"}), environ={}).power.status()
    found = (status.throttled, status.undervoltage, status.was_throttled, status.was_undervoltage)
    assert found == expected


def test_the_firmwares_nonsense_is_an_error(tree, trees) -> None:
    board = detect(tree({**trees["rpi"], FIRMWARE: "throttled=maybe\n"}), environ={})
    with pytest.raises(SensorError, match="get_throttled"):
        board.power.status()


def test_a_raspberry_pi_whose_kernel_shows_the_voltage_alarm_only(tree, trees) -> None:
    files = trees["rpi"]
    del files[FIRMWARE]
    files["/sys/class/hwmon/hwmon1/name"] = "rpi_volt\n"
    files["/sys/class/hwmon/hwmon1/in0_lcrit_alarm"] = "1\n"
    status = detect(tree(files), environ={}).power.status()
    assert (status.undervoltage, status.throttled) == (True, None)


def test_a_jetson(tree, trees) -> None:
    board = detect(tree(trees["jetson"]), environ={})
    assert (board.name, board.model) == ("jetson", "NVIDIA Jetson Nano Developer Kit")
    assert board.thermal.celsius() == 44.0, "the processor's zone, not the warmer AO nor the constant PMIC"
    status = board.power.status()
    assert (status.mode, status.was_throttled) == ("5W", True)


def test_a_jetson_mode_without_a_name_is_its_number(tree, trees) -> None:
    files = trees["jetson"]
    del files["/etc/nvpmodel.conf"]
    assert detect(tree(files), environ={}).power.status().mode == "1"
    files["/var/lib/nvpmodel/status"] = "broken"
    with pytest.raises(SensorError, match="pmode"):
        detect(tree(files), environ={}).power.status()


def test_a_jetson_by_its_compatible_string(tree, trees) -> None:
    files = {
        **trees["generic"],
        "/sys/firmware/devicetree/base/compatible": "vendor,board\0nvidia,tegra234\0",
    }
    assert detect(tree(files), environ={}).name == "jetson"


def test_any_other_machine_is_generic(tree, trees) -> None:
    board = detect(
        tree({**trees["generic"], "/sys/class/dmi/id/product_name": "Industrial PC 9\n"}), environ={}
    )
    assert (board.name, board.model) == ("generic", "Industrial PC 9")
    assert board.thermal.celsius() is None
    assert board.power.status().mode is None
    assert (board.watchdog, board.notifier) == (None, None)


def test_the_hottest_zone_where_none_is_the_processors(tree) -> None:
    root = tree(
        {
            ZONE.format(0, "type"): "acpitz\n",
            ZONE.format(0, "temp"): "27800\n",
            ZONE.format(1, "type"): "battery\n",
            ZONE.format(1, "temp"): "31000\n",
            ZONE.format(2, "type"): "broken\n",
            ZONE.format(2, "temp"): "hot\n",
            ZONE.format(3, "type"): "silent\n",
        }
    )
    thermal = LinuxThermal(root)
    assert thermal.zones() == {"acpitz": 27.8, "battery": 31.0}
    assert thermal.celsius() == 31.0


def test_zones_of_one_type_give_their_hottest(tree) -> None:
    root = tree({ZONE.format(n, "type"): "cpu-thermal\n" for n in (0, 1)})
    for n, temp in ((0, "51000"), (1, "49000")):
        (root / ZONE.format(n, "temp").lstrip("/")).write_text(temp)
    assert LinuxThermal(root).celsius() == 51.0
