"""How hot the processor is, from the kernel's thermal zones."""

from __future__ import annotations

import os
from typing import Final, Protocol

from .sysfiles import SysFiles

PLAUSIBLE_CELSIUS: Final = (-60.0, 150.0)
"""Readings outside are not temperatures: a sleeping Jetson zone reads −256."""
FALSE_ZONES: Final = ("pmic-die",)
"""Zones with a constant reading: the Jetson Nano's PMIC always reads 100."""


class Thermal(Protocol):
    """The processor's temperature."""

    def celsius(self) -> float | None:
        """Return degrees Celsius, or None where the board has no zone that can be read now."""
        ...


class LinuxThermal:
    """The hottest of the processor's zones.

    They have ``cpu`` or ``soc`` in their type; where none does, all zones count.
    """

    __slots__ = ("_files",)

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self._files = SysFiles(root)

    def zones(self) -> dict[str, float]:
        """Return the plausible readings of all zones, by type; of zones of the same type the hottest."""
        hottest: dict[str, float] = {}
        for folder in self._files.folders("/sys/class/thermal", "thermal_zone"):
            kind, milli = self._files.text(f"{folder}/type"), self._files.number(f"{folder}/temp")
            if kind is None or milli is None or kind.lower() in FALSE_ZONES:
                continue
            celsius = milli / 1000
            if PLAUSIBLE_CELSIUS[0] <= celsius <= PLAUSIBLE_CELSIUS[1]:
                hottest[kind] = max(celsius, hottest.get(kind, celsius))
        return hottest

    def celsius(self) -> float | None:
        """Read all zones and return the hottest that counts, None without any."""
        zones = self.zones()
        of_processor = [
            v for k, v in zones.items() if "cpu" in k.lower() or "soc" in k.lower() or "x86_pkg" in k
        ]
        readings = of_processor or list(zones.values())
        return max(readings, default=None)
