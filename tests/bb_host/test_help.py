"""What `help()` shows of things that are found nowhere else."""

from __future__ import annotations

import pydoc
from typing import Any

import pytest

from bb_edge.transport.in_process import Simulation
from bb_host import Graph


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (Simulation, ("`seen`", "`delivered`", "`now_ns`")),
        (Graph.interval, ("g.threshold(1, tick)",)),
        (Graph.rounds, ("asked nobody", "same number")),
        (Graph.app_emit, ('{"bytes": 2}',)),
        (Graph.lifecycle_phase, ("Snapshot before each", "--state")),
        (Graph.incr_metric, ("bb_<name>_total",)),
    ],
)
def test_help_says_it(thing: Any, words: tuple[str, ...]) -> None:
    shown = " ".join(pydoc.plain(pydoc.render_doc(thing)).split())
    assert not [word for word in words if word not in shown]
