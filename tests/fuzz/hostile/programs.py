"""Sound programs and envelopes for mutations to start from: what the real compiler and real nodes make."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

from bb_edge import NodeConfig, PeerId, install, load
from bb_edge.engine import steps
from bb_edge.transport.in_process import Simulation

AIDS = str(Path(__file__).resolve().parents[2] / "aids")
if AIDS not in sys.path:
    sys.path.append(AIDS)

import seals  # noqa: E402
from compiled_programs import compiled_once  # noqa: E402

MS = 1_000_000


def _authored() -> Any:
    from hostile import authored

    return authored


@functools.cache
def net() -> bytes:
    return compiled_once("hostile-net", lambda: _authored().net())["net"]


@functools.cache
def artifacts(durable: bool = False) -> dict[str, bytes]:
    """Edge artifacts by target, and the portable model under ''."""
    made = compiled_once(f"hostile-small-{durable}", lambda: _authored().small(durable))
    return {"" if target == "portable" else target: data for target, data in made.items()}


unsealed = seals.unsealed


def peer(name: str) -> PeerId:
    return PeerId.from_name(name)


def make_node(target: str, name: str, durable: bool = False, **more: Any) -> Any:
    """A node of one target with small budgets."""
    config = NodeConfig(max_executions=4, max_peers=64, ingress_entries=64, ingress_bytes=1 << 20)
    return install(
        peer(name), (), load(artifacts(durable)[target]), [target], config, seed=7, durable=durable, **more
    )


@functools.cache
def traffic() -> tuple[tuple[str, str, bytes], ...]:
    """(sender, receiver, envelope) of what a server and three clients say in their first rounds."""
    found: list[tuple[str, str, bytes]] = []
    simulation = Simulation(seed=3)
    names = {"server": "Server", "client-0": "Client", "client-1": "Client"}
    by_peer = {peer(name): name for name in names}
    for name, target in names.items():
        node = make_node(target, name)
        poll = node.poll

        def listening(now_ns: int, name: str = name, poll: Any = poll) -> list[steps.EngineStep]:
            said: list[steps.EngineStep] = poll(now_ns)
            found.extend(
                (name, by_peer[s.peer], bytes(s.payload)) for s in said if isinstance(s, steps.SendEnvelope)
            )
            return said

        node.poll = listening
        simulation.add(node)
    simulation.run(for_ns=400 * MS)
    return tuple(found)
