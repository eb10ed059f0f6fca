"""Contributions that counted and never will: an aggregator notes them, the engine says so."""

from __future__ import annotations

from bb_edge.engine import steps
from bb_edge.engine.runtime import Runtime
from bb_edge.roles import Aggregator


def tell_given_up(runtime: Runtime, target: str, aggregator: Aggregator) -> None:
    """Tells what the aggregator has given up since it was asked last."""
    for lost in aggregator.take_given_up():
        runtime.count("contributions.given_up", lost.contributions)
        runtime.emit(steps.ContributionsGivenUp(target, lost.why, lost.contributions, lost.peers))
