"""What tests ask of a node's bootstraps."""

from __future__ import annotations

from bb_edge import Node
from bb_edge.engine.entries.bootstrap import BootstrapStatus


def bootstrap_status(node: Node, name: str) -> BootstrapStatus:
    """The status of the bootstrap of a target, or of a slot's component."""
    (status,) = (state.status for state in node.bootstraps if name == (state.slot or state.target))
    return status
