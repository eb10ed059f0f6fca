"""The back half of --target edge: collapse ONNX ops, strip, plan memory, budget, source map, report."""

from __future__ import annotations

from bb_host.edge.budget import Budget, BudgetError, Limits
from bb_host.edge.collapse import Collapsed
from bb_host.edge.memory_plan import PlannedGraph
from bb_host.edge.pipeline import EdgeError
from bb_host.edge.report import TargetReport
from bb_host.edge.strip import StripError, Stripped, targets_of
from bb_host.edge.target import Artifact, Build, build_edge, compile_edge

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
