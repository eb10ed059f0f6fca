"""Names functions by what they hold, so that equal ones have one name."""

from __future__ import annotations

import hashlib

from bb_host.ir.program import Function
from bb_host.ir.proto import function_to_proto


def content_digest(function: Function) -> str:
    """16 hexadecimal digits over a function as it would be written, its name included: leave that empty."""
    content = function_to_proto(function).SerializeToString(deterministic=True)
    return hashlib.sha256(content).hexdigest()[:16]
