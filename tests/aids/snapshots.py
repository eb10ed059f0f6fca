"""Snapshots opened, sealed again, and held against the nodes that took them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

from bb_edge.engine.net.requests import Cohort
from bb_edge.engine.plain import dump
from bb_edge.engine.run.frames import Execution, Frame
from bb_edge.engine.run.waiting import Pending
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


def stands_in(node: Node, snapshot: bytes, now_ns: int, but: Collection[str] = ()) -> None:
    """Asserts that a node that took a snapshot at its own time would write it down as it was.

    `but` are parts that a restart changes. Links always: the best-effort epoch of each life is another.
    """
    old, new = body_of(snapshot), body_of(node.snapshot(now_ns))
    for name in old:
        if name != "links" and name not in but:
            assert new[name] == old[name], name


# --- what hangs on executions, as it stands in a node -----------------------------------------------------

_OF_EXECUTION = (
    *("id", "target", "state", "pending", "waits_outside", "asking", "children", "failed", "expired"),
    *("acknowledged", "bootstrap", "queued", "claimed", "claim_set", "claim_timer", "source"),
    *("cause", "deadline_ns", "bytes_held", "answer_bytes", "requests_made", "asked_somebody", "notify"),
)
_OF_COHORT = (
    *("id", "state", "asked", "gated", "by_req_id", "settled", "accepted", "running", "collector", "timer"),
    *("reason", "port", "mode", "enough", "ask"),
)


def _frame(node: Node, one: Frame | None) -> object:
    if one is None or one.execution is None:
        return None
    return one.execution.id, one.execution.frames.index(one)


def _op(node: Node, one: Any) -> object:
    return None if one is None else (node._engine.graph_of[one], one.index)


def _of_frame(node: Node, one: Frame) -> list[object]:
    near = [_frame(node, one.parent), [_frame(node, child) for child in one.children or ()]]
    calls = [_frame(node, one.caller), _op(node, one.call), one.forward is not None, one.special]
    place = [one.region.graph.index, one.region.region.index]
    return [place, [dump(value) for value in one.values], list(one.waiting), near, calls]


def _of_execution(node: Node, one: Execution) -> dict[str, object]:
    name_of = node._engine.runtime.callbacks.name_of
    due = {
        name: [(_frame(node, f), _op(node, o)) for f, o in getattr(one, name)] for name in ("ready", "parked")
    }
    return {
        **{name: getattr(one, name) for name in _OF_EXECUTION},
        **due,
        "calls": [call and name_of(call) for call in (one.on_end, one.on_claimed, *one.permits)],
        "parent": one.parent and one.parent.id,
        "cohort": one.cohort and one.cohort.id,
        "cohorts": list(one.cohorts),
        "bootstrap_of": one.bootstrap_of and one.bootstrap_of.name,
        "frames": [_of_frame(node, each) for each in one.frames],
    }


def _of_cohort(node: Node, one: Cohort) -> dict[str, object]:
    return {
        **{name: getattr(one, name) for name in _OF_COHORT},
        "at": (one.execution.id, _frame(node, one.frame), _op(node, one.op)),
        "answers": [dump(row) for row in one.answers],
        "waiting": [(peer, dump(values), cause) for peer, values, cause in one.waiting],
        "region": one.region and (one.region.graph.index, one.region.region.index),
    }


def _of_parked(node: Node, one: Pending) -> tuple[object, ...]:
    return _frame(node, one.frame), _op(node, one.op), one.execution.id, one.outside, one.busy_key, one.timer


def look(node: Node) -> dict[str, Any]:
    """All that hangs on executions, as it stands in the node itself."""
    engine, pool = node._engine, node._engine.pool
    return {
        "pool": (pool.next_id, pool.peak, pool.entries, [e.id for e in engine.runnable]),
        "executions": [_of_execution(node, one) for one in pool.active.values()],
        "cohorts": [_of_cohort(node, one) for one in node._cycle.requests.cohorts.values()],
        "expected": sorted(node._cycle.requests._by_req_id),
        "parked": {token: _of_parked(node, one) for token, one in engine.parking.pending.items()},
        "claims": [
            [owner and owner.id for owner in engine.claims.owners],
            [one.id for one in engine.claims.waiters],
        ],
        "locked": [dict(engine.locked), [(_frame(node, f), _op(node, o)) for f, o in engine.locked_ops]],
        "bytes": (node._engine.ledger.bytes, node._engine.ledger.in_use()),
    }
