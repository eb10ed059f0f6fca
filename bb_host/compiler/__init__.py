"""The driver and its passes: pure functions over a recorded program."""

from __future__ import annotations
