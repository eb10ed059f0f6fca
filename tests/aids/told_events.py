"""Compiled programs in a simulated network: nodes by name, and what they told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine import steps
from bb_edge.transport.in_process import Simulation
from bb_host.build import Build
from tests.aids.simulations import failures

Settings = Mapping[str, Mapping[str, object]]


def told(
    build: Build, nodes: Mapping[str, tuple[str, Settings]], topic: str, for_ns: int
) -> dict[str, list[Any]]:
    """Runs nodes, each a target and the settings of its slots; the values of an event, by node.

    No op may fail, and nothing be dropped.
    """
    sim = Simulation(seed=1)
    files = {artifact.target: artifact.data for artifact in build.artifacts}
    names = {}
    for seed, (name, (target, settings)) in enumerate(nodes.items()):
        peer = PeerId.from_name(name)
        config = NodeConfig.host()
        sim.add(install(peer, (), files[target], [target], config, components=settings, seed=seed))
        names[peer] = name
    sim.run(for_ns=for_ns)
    assert not failures(sim)
    found: dict[str, list[Any]] = {name: [] for name in nodes}
    for seen in sim.seen:
        if isinstance(seen.step, steps.AppEvent) and seen.step.topic == topic:
            found[names[seen.peer]].append(seen.step.copy().value)
    return found
