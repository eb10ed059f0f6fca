"""`==` on a value records an op, so the recorder itself compares handles with `is`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import bb_host
from bb_host import Output

_OURS = str(Path(bb_host.__file__).parent)


def refuse_comparisons_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """`==`, `!=`, `in`, `.index`, `.remove` and `.count` over handles fail the test where bb_host asks.

    All of them end in `Output.__eq__` or `__ne__`, called from the frame that asks.
    """
    for name in ("__eq__", "__ne__"):
        recording = getattr(Output, name)

        def checked(self: Output, other: Any, recording: Any = recording) -> Output:
            asks = sys._getframe(1).f_code
            assert not asks.co_filename.startswith(_OURS), (
                f"{asks.co_filename}: {asks.co_qualname if sys.version_info >= (3, 11) else asks.co_name} "
                f"compares handles with == or `in`, which records an op: use `is`"
            )
            return recording(self, other)

        # The frame is passed by like those of bb_host when an error looks for the author's line.
        checked.__code__ = checked.__code__.replace(co_filename=f"{_OURS}/guard.py")
        monkeypatch.setattr(Output, name, checked)
