"""What authors may call things, and how they spell the ops of the tables."""

from __future__ import annotations

import functools
import re

PORT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
"""What ports, modules, slots and classes may be called: their names stand in paths, keys and topics."""

_VALUE = re.compile(r"<[\w.-]+: (?:[A-Z]\w*|done>|no value)")
"""How the text of a recorded value begins, of a call that has run, and of a round or a loop."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|\.")


def holds_value(name: str) -> bool:
    """Whether a name was made of a recorded value, as f"loss {total}", which has no number yet."""
    return "<" in name and _VALUE.search(name) is not None


VALUE_IN_NAME = "a name is the same in every round; send the number beside it: g.app_emit('loss', value)"
"""What to do about it."""


@functools.cache  # names of the catalogs
def snake(op_type: str) -> str:
    """``Limit.Acquire`` → ``limit_acquire``."""
    return _HUMP.sub("_", op_type).lower()
