"""The back half of --target edge: collapse ONNX ops, strip, plan memory, budget, source map, report."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bb_host.edge.budget import Budget, BudgetError, Limits
    from bb_host.edge.collapse import Collapsed
    from bb_host.edge.memory_plan import PlannedGraph
    from bb_host.edge.pipeline import EdgeError
    from bb_host.edge.report import TargetReport
    from bb_host.edge.strip import StripError, Stripped, targets_of
    from bb_host.edge.target import Artifact, Build, build_edge, compile_edge

_WHERE = {
    "Artifact": "target",
    "Budget": "budget",
    "BudgetError": "budget",
    "Build": "target",
    "Collapsed": "collapse",
    "EdgeError": "pipeline",
    "Limits": "budget",
    "PlannedGraph": "memory_plan",
    "StripError": "strip",
    "Stripped": "strip",
    "TargetReport": "report",
    "build_edge": "target",
    "compile_edge": "target",
    "targets_of": "strip",
}

__all__ = [
    "Artifact",
    "Budget",
    "BudgetError",
    "Build",
    "Collapsed",
    "EdgeError",
    "Limits",
    "PlannedGraph",
    "StripError",
    "Stripped",
    "TargetReport",
    "build_edge",
    "compile_edge",
    "targets_of",
]


def __getattr__(name: str) -> object:
    """Exports on demand: who writes flatbuffers needs no `onnx`, which all of the compiler needs."""
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
