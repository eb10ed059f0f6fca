"""Spans of time in nanoseconds, as nodes count them."""

from __future__ import annotations

MS = 1_000_000
S = 1_000_000_000
