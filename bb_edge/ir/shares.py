"""Shares of a number of peers, in whole billionths: every device and host gets the same number from one."""

from __future__ import annotations

WHOLE = 1_000_000_000
"""The share that is everybody. As f32, 0.1 is a little more than a tenth, which rounds 10 peers up to 2."""


def share_of(count: int, share: int, most: int, least: int = 0) -> int:
    """Returns how many of `count` a share is: rounded up, then raised to `least`, then lowered to `most`."""
    return min(max(-(-count * share // WHOLE), least), most)
