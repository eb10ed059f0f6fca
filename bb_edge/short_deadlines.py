"""Deadlines that no network meets: somebody gave seconds, or milliseconds, for nanoseconds."""

from __future__ import annotations

from bb_edge.engine.program.program import Program
from bb_edge.ir import keys


def short_deadlines(program: Program) -> list[str]:
    """Returns a sentence for each deadline below a millisecond."""
    sends = (op for graph in program.graphs.values() for op in graph.ops if op.domain == keys.WIRE_DOMAIN)
    texts = {op.meta.get(keys.DEADLINE_NS_KEY, "") for op in sends}
    given = sorted(int(text) for text in texts if text.isdecimal() and len(text) < 7)
    return [
        f"deadline_ns={ns} is less than a millisecond: deadlines are nanoseconds, deadline_ns=30 * S"
        for ns in given
        if ns
    ]
