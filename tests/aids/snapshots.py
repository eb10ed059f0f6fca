"""Snapshots opened and sealed again, and what hangs on the executions of a node."""

from __future__ import annotations

import hashlib
from typing import Any

from bb_edge.engine.snapshot import VERSION
from bb_edge.node import Node
from bb_edge.wire import cbor

_HEADER = 50


def body_of(snapshot: bytes) -> dict[str, Any]:
    found: Any = cbor.loads(snapshot[_HEADER:], max_items=1 << 20, max_depth=32)
    return found


def sealed(data: bytes, version: int = VERSION, size: int | None = None) -> bytes:
    """Bytes as the body of a snapshot that is whole, or says another size."""
    length = len(data) if size is None else size
    head = b"BBSNAP\r\n" + version.to_bytes(2, "big") + length.to_bytes(8, "big")
    return head + hashlib.sha256(data).digest() + data


def resealed(body: dict[str, Any]) -> bytes:
    """A snapshot that is whole and says this."""
    return sealed(cbor.dumps(body))


def look(node: Node) -> dict[str, Any]:
    """All that hangs on executions, as it stands in the node itself."""
    seen = node.inspect()
    waits = {
        "runnable": seen.runnable,
        "parked": seen.parked,
        "claims": seen.claims,
        "locked": seen.locked_ops,
    }
    bytes_held = {name: value for name, value in seen.ingress.items() if "bytes" in name}
    return {
        "executions": seen.executions,
        "cohorts": seen.requests,
        "components": seen.components,
        **waits,
        **bytes_held,
    }
