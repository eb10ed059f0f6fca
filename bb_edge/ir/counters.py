"""Names of counters: the node's own, and how Prometheus' text spells them."""

from __future__ import annotations

OWN = (
    "activations",
    "addresses",
    "app_events",
    "backpressure",
    "bootstraps",
    "bus",
    "certificate",
    "completions",
    "components",
    "contributions",
    "control",
    "counters",
    "cycles",
    "data",
    "deadlines",
    "executions",
    "frames",
    "frontier",
    "gates",
    "ingress",
    "journal",
    "log_lines",
    "marks",
    "mqtt",
    "node",
    "ops",
    "outbound",
    "peers",
    "pending_async",
    "process",
    "requests",
    "rounds",
    "rtt",
    "state",
    "storage",
    "ticks",
    "wire",
)
"""What the node's own counters begin with, before the dot: `ops.failed`."""


def spelling(name: str) -> str:
    """Returns a name as Prometheus takes it: `ops.failed` becomes `ops_failed`."""
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name)


_OWN_SPELLED = tuple(f"{prefix}_" for prefix in OWN)


def is_own(name: str) -> bool:
    """Returns whether a counter of that name would be taken for one of the node's own."""
    return spelling(name).startswith(_OWN_SPELLED)
