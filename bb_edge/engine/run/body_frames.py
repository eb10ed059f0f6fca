"""The frames that a node makes at install."""

from __future__ import annotations

from collections.abc import Mapping

from bb_edge.engine.program.program import FunctionKey
from bb_edge.engine.run.bound import BoundGraph, BoundRegion
from bb_edge.engine.run.frames import FreeFrames


def fill_frames(
    frames: FreeFrames,
    region: BoundRegion,
    count: int,
    graphs: Mapping[FunctionKey, BoundGraph],
    now: bool = True,
) -> None:
    """Makes the frames of a region, and one beside each for every body that it may run, or plans them."""
    frames.fill(region, count, now)
    for op in region.graph.ops:
        if op.ended is not None and op.spec.region == region.region.index:
            for key in op.spec.callees:
                fill_frames(frames, graphs[key].regions[0], count, graphs, now)
