"""What authors may call things, and how they spell the ops of the tables."""

from __future__ import annotations

import functools
import re

PORT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
"""What ports, modules, slots and classes may be called: their names stand in paths, keys and topics."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|\.")


@functools.cache  # names of the catalogs
def snake(op_type: str) -> str:
    """``Limit.Acquire`` → ``limit_acquire``."""
    return _HUMP.sub("_", op_type).lower()
