"""Whether the board runs at full speed: throttling, voltage, power mode."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final, Protocol

from .errors import SensorError
from .sysfiles import SysFiles


@dataclass(frozen=True, slots=True)
class PowerStatus:
    """Throttling, voltage and power mode; None means that the board does not tell.

    ``throttled``: slowed down right now, by heat, voltage or current; ``undervoltage``: right now;
    ``was_throttled``, ``was_undervoltage``: at any time since boot; ``mode``: the chosen power mode's name.
    """

    throttled: bool | None = None
    undervoltage: bool | None = None
    was_throttled: bool | None = None
    was_undervoltage: bool | None = None
    mode: str | None = None


class Power(Protocol):
    """The board's power and speed."""

    def status(self) -> PowerStatus:
        """Read the status anew. Raises :class:`SensorError` where the board answers nonsense."""
        ...


class GenericPower:
    """The frequency governor, which is all that is the same on every Linux board."""

    __slots__ = ("_files",)

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self._files = SysFiles(root)

    def status(self) -> PowerStatus:
        """Read the governor's name; everything else is None."""
        return PowerStatus(mode=self._files.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))


class RaspberryPiPower:
    """The firmware's ``get_throttled`` bits; where the kernel does not show them, its under-voltage alarm."""

    __slots__ = ("_files", "_governor")

    FIRMWARE_FILES: Final = (
        "/sys/devices/platform/soc/soc:firmware/get_throttled",
        "/sys/devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled",
    )
    UNDERVOLTAGE, CAPPED, THROTTLED, SOFT_LIMIT = 1 << 0, 1 << 1, 1 << 2, 1 << 3
    SINCE_BOOT: Final = 16
    """The same four bits, shifted: whether it ever happened."""

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self._files = SysFiles(root)
        self._governor = GenericPower(root)

    def status(self) -> PowerStatus:
        """Read the firmware's bits, or the alarm. Raises :class:`SensorError` for other text than bits."""
        mode = self._governor.status().mode
        for name in self.FIRMWARE_FILES:
            text = self._files.text(name)
            if text is not None:
                return self._from_bits(name, text, mode)
        for folder in self._files.folders("/sys/class/hwmon", "hwmon"):
            if self._files.text(f"{folder}/name") == "rpi_volt":
                alarm = self._files.number(f"{folder}/in0_lcrit_alarm")
                return PowerStatus(undervoltage=None if alarm is None else bool(alarm), mode=mode)
        return PowerStatus(mode=mode)

    def _from_bits(self, name: str, text: str, mode: str | None) -> PowerStatus:
        try:
            bits = int(text, 16)
        except ValueError:
            raise SensorError(
                f"{self._files.path(name)} holds {text!r}: expected a hexadecimal number"
            ) from None
        slow = self.CAPPED | self.THROTTLED | self.SOFT_LIMIT
        return PowerStatus(
            throttled=bool(bits & slow),
            undervoltage=bool(bits & self.UNDERVOLTAGE),
            was_throttled=bool(bits >> self.SINCE_BOOT & slow),
            was_undervoltage=bool(bits >> self.SINCE_BOOT & self.UNDERVOLTAGE),
            mode=mode,
        )


class JetsonPower:
    """nvpmodel's power mode, and the over-current counters of the throttling hardware (Orin and later)."""

    __slots__ = ("_files",)

    STATUS: Final = "/var/lib/nvpmodel/status"
    CONFIGURATION: Final = "/etc/nvpmodel.conf"
    _MODE = re.compile(r"pmode:\s*(\d+)")
    _MODEL = re.compile(r"<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>")

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self._files = SysFiles(root)

    def status(self) -> PowerStatus:
        """Read mode and counters. Raises :class:`SensorError` where nvpmodel's status is damaged."""
        events = self._over_current_events()
        return PowerStatus(was_throttled=None if events is None else events > 0, mode=self._mode())

    def _mode(self) -> str | None:
        status = self._files.text(self.STATUS)
        if status is None:
            return None
        match = self._MODE.search(status)
        if match is None:
            raise SensorError(
                f"{self._files.path(self.STATUS)} holds {status[:80]!r}: expected 'pmode:' and a number"
            )
        number = int(match[1])
        for ident, name in self._MODEL.findall(self._files.text(self.CONFIGURATION) or ""):
            if int(ident) == number:
                return str(name)
        return str(number)

    def _over_current_events(self) -> int | None:
        counts: list[int] = []
        for folder in self._files.folders("/sys/class/hwmon", "hwmon"):
            for file in self._files.folders(folder, "oc"):
                if file.endswith("_event_cnt"):
                    count = self._files.number(file)
                    counts += [] if count is None else [count]
        return sum(counts) if counts else None
