"""Simulated networks: letting time pass, and what went wrong in it."""

from __future__ import annotations

from typing import Any

from bb_edge.engine import steps
from bb_edge.transport.in_process import Simulation


def advance(sim: Simulation, ns: int) -> None:
    sim.at(sim.now_ns + ns, lambda: None)
    sim.run(for_ns=ns)


def failures(sim: Simulation) -> list[Any]:
    kinds = steps.OpFailed | steps.WireReceiveFailed | steps.IngressDropped
    return [s.step for s in sim.seen if isinstance(s.step, kinds)]
