"""The board: clock, entropy, memory, flash storage, watchdog, thermal, sensors."""

from __future__ import annotations
