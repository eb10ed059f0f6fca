"""Where the board's power comes from: the mains, or a battery that it empties."""

from __future__ import annotations

import os
from typing import Protocol

from .sysfiles import SysFiles


class Supply(Protocol):
    """The source of the board's power."""

    def on_mains(self) -> bool | None:
        """Return whether the board runs without emptying a battery; None where nobody can say."""
        ...


class LinuxSupply:
    """The kernel's power supplies.

    A board without any is fed by its plug. Batteries of other devices (a mouse) do not count.
    """

    __slots__ = ("_files",)

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self._files = SysFiles(root)

    def on_mains(self) -> bool | None:
        """Read all supplies anew: one that feeds the board, else no battery that it empties."""
        feeds: list[bool] = []
        batteries: list[str] = []
        for folder in self._files.folders("/sys/class/power_supply", ""):
            if (self._files.text(f"{folder}/scope") or "").lower() == "device":
                continue
            kind, online = self._files.text(f"{folder}/type"), self._files.number(f"{folder}/online")
            if kind == "Battery":
                batteries.append((self._files.text(f"{folder}/status") or "").lower())
            elif online is not None:
                feeds.append(online > 0)
        if any(feeds):
            return True
        if batteries:
            known = [status for status in batteries if status not in ("", "unknown")]
            return "discharging" not in known if known else None
        return None if feeds else True
