"""How hot the processor is, from the kernel's thermal zones."""

from __future__ import annotations

import os
from typing import Final, Protocol

from .sysfiles import SysFiles

PLAUSIBLE_CELSIUS: Final = (-60.0, 150.0)
"""What lies outside is no temperature: a sleeping Jetson zone reads −256."""
FALSE_ZONES: Final = ("pmic-die",)
"""Zones with a constant reading: the Jetson Nano's PMIC says 100 whatever the weather."""


class Thermal(Protocol):
    """The processor's temperature."""

    def celsius(self) -> float | None:
        """Degrees Celsius, or None where the board has no zone that can be read now."""
        ...


class LinuxThermal:
    """The hottest of the processor's zones (``cpu`` or ``soc`` in their type), else the hottest zone there
    is.
    """

    __slots__ = ("_files",)

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self._files = SysFiles(root)

    def zones(self) -> dict[str, float]:
        """The plausible readings of all zones, by type; of zones of one type the hottest."""
        found: dict[str, float] = {}
        for folder in self._files.folders("/sys/class/thermal", "thermal_zone"):
            kind, milli = self._files.text(f"{folder}/type"), self._files.number(f"{folder}/temp")
            if kind is None or milli is None or kind.lower() in FALSE_ZONES:
                continue
            celsius = milli / 1000
            if PLAUSIBLE_CELSIUS[0] <= celsius <= PLAUSIBLE_CELSIUS[1]:
                found[kind] = max(celsius, found.get(kind, celsius))
        return found

    def celsius(self) -> float | None:
        zones = self.zones()
        of_processor = [
            v for k, v in zones.items() if "cpu" in k.lower() or "soc" in k.lower() or "x86_pkg" in k
        ]
        readings = of_processor or list(zones.values())
        return max(readings, default=None)
