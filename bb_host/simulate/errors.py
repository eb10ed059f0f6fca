"""What a simulation refuses."""

from __future__ import annotations

from bb_edge.ir.errors import BBError


class ScenarioError(BBError):
    """A simulation that was asked for and cannot run: its nodes, data, conditions or end."""


class WorkerError(BBError):
    """A worker process of a simulation has failed or is gone; the message holds what it said last."""
