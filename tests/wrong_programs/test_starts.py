"""`never-started` says of a flow exactly that which a device then does with it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from times import MS

from bb_edge import PeerId, install
from bb_edge.engine import steps
from bb_host import Compiler, Graph, Module
from bb_host.build import build_edge

ONES = np.ones(2, np.float32)


def rounds(g: Graph) -> None:
    with g.rounds(2, pause_ns=50 * MS) as start:
        g.app_emit("round", start.round)


def two_entries(g: Graph) -> None:
    g.app_notify("p", g.pulse())
    g.app_notify("t", g.interval(500 * MS))


def constant(g: Graph) -> None:
    g.output("k", g.constant(ONES))


def computed(g: Graph) -> None:
    g.output("k", g.constant(ONES) * 2.0)


def scalar(g: Graph) -> None:
    g.output("k", g.as_scalar(g.constant(np.float32(2))))


def source(g: Graph) -> None:
    g.output("k", g.own_peer())


def sources(g: Graph) -> None:
    g.output("k", g.own_addresses())
    g.output("k2", g.own_peer())


def source_read_too(g: Graph) -> None:
    own = g.own_peer()
    g.output("k", own)
    g.app_emit("k2", own)


def event_of_a_source(g: Graph) -> None:
    g.app_emit("k", g.own_peer())


def source_in_time(g: Graph) -> None:
    g.output("k", g.gate(g.own_peer(), g.pulse()))


def constant_in_time(g: Graph) -> None:
    g.output("k", g.gate(g.constant(ONES), g.pulse()))


FLOWS = (
    constant,
    computed,
    scalar,
    source,
    sources,
    source_read_too,
    event_of_a_source,
    source_in_time,
    constant_in_time,
)


@pytest.mark.filterwarnings("ignore::bb_host.diagnostics.ProgramWarning")
@pytest.mark.parametrize("entries", [rounds, two_entries])
@pytest.mark.parametrize("flow", FLOWS)
def test_it_warns_of_what_never_comes_and_of_nothing_else(
    flow: Callable[[Graph], None], entries: Callable[[Graph], None], module: Callable[..., Module]
) -> None:
    def body(g: Graph) -> None:
        entries(g)
        flow(g)

    program = module(body)
    build = build_edge(program)
    warned = [w for w in Compiler().run(program).warnings if w.code == "never-started"]
    assert [w.code for w in build.warnings] == [w.code for w in warned]
    for data in (Compiler().compile(program).SerializeToString(), build.artifacts[0].data):
        node = install(PeerId.from_name("n"), (), data, ["Main"], seed=1)
        found = [step for now in range(1, 1200 * MS, 25 * MS) for step in node.poll(now)]
        topics = {step.topic for step in found if isinstance(step, steps.AppEvent)}
        assert topics >= ({"round"} if entries is rounds else {"p", "t"})
        assert bool(warned) != any(topic.startswith("k") for topic in topics)
