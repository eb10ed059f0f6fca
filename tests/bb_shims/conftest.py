"""Boards to test: kernel files of several machines, written into a temp tree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Tree = Callable[[dict[str, str]], Path]

MEMORY = {
    "/proc/meminfo": "MemTotal:        3884080 kB\nMemFree:  200000 kB\nMemAvailable:    2500000 kB\n",
    "/proc/self/status": "Name:\tnode\nVmHWM:\t   61000 kB\nVmRSS:\t   52000 kB\nThreads:\t1\n",
    "/proc/self/cgroup": "0::/system.slice/bb-edge@a.service\n",
}
RASPBERRY_PI = {
    **MEMORY,
    "/proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0",
    "/proc/device-tree/compatible": "raspberrypi,4-model-b\0brcm,bcm2711\0",
    "/sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
    "/sys/class/thermal/thermal_zone0/temp": "48199\n",
    "/sys/devices/platform/soc/soc:firmware/get_throttled": "50005\n",
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "ondemand\n",
}
JETSON = {
    **MEMORY,
    "/proc/device-tree/model": "NVIDIA Jetson Nano Developer Kit\0",
    "/proc/device-tree/compatible": "nvidia,p3450-0000\0nvidia,jetson-nano\0nvidia,tegra210\0",
    "/sys/class/thermal/thermal_zone0/type": "AO-therm\n",
    "/sys/class/thermal/thermal_zone0/temp": "52500\n",
    "/sys/class/thermal/thermal_zone1/type": "CPU-therm\n",
    "/sys/class/thermal/thermal_zone1/temp": "44000\n",
    "/sys/class/thermal/thermal_zone2/type": "GPU-therm\n",
    "/sys/class/thermal/thermal_zone2/temp": "-256000\n",
    "/sys/class/thermal/thermal_zone4/type": "PMIC-Die\n",
    "/sys/class/thermal/thermal_zone4/temp": "100000\n",
    "/etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=MAXN >\nCPU CORE_0 1\n< POWER_MODEL ID=1 NAME=5W >\n",
    "/var/lib/nvpmodel/status": "pmode:0001",
    "/sys/class/hwmon/hwmon0/name": "soctherm_oc\n",
    "/sys/class/hwmon/hwmon0/oc1_event_cnt": "0\n",
    "/sys/class/hwmon/hwmon0/oc2_event_cnt": "3\n",
}
TREES = {"generic": MEMORY, "rpi": RASPBERRY_PI, "jetson": JETSON}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Write kernel files, by absolute name, below a fresh root; the root is returned."""

    def write(files: dict[str, str]) -> Path:
        root = tmp_path / "root"
        for name, text in files.items():
            path = root / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    return write


@pytest.fixture
def trees() -> dict[str, dict[str, str]]:
    """The kernel files of three machines: generic, rpi, jetson."""
    return {name: dict(files) for name, files in TREES.items()}
