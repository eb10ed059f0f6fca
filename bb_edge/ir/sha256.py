"""SHA-256 of what a device loads, by the implementation that costs a fresh process least."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

__all__ = ["fresh_sha256"]

BUILT_IN_BYTES = 1 << 20
"""Bytes up to which Python's own implementation is taken: 7 ms for 1 MiB.

OpenSSL's is ten times as fast, but loading it takes 3 ms and 4 MB of memory.
"""


def fresh_sha256(size: int) -> Any:
    """Returns an empty SHA-256, as `hashlib.sha256()` does, for about `size` bytes."""
    if size <= BUILT_IN_BYTES and "_hashlib" not in sys.modules:
        for name in ("_sha2", "_sha256"):  # since Python 3.12, and before; other interpreters have neither
            try:
                return import_module(name).sha256()
            except (ImportError, AttributeError):
                continue
    return import_module("hashlib").sha256()
