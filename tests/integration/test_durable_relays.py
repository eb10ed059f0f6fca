"""A device whose reports go over a relay to a hub: real processes, killed whenever it suits nobody.

A relay has acknowledged what it passes on. So whom it passes it on to has to be known to it after a crash,
also where its snapshot is older than that, and the hub away and no broker knows of it.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from compiled_programs import compiled_once

from federated_digits.processes import Child, Line

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KILLS = 4


def _compile() -> dict[str, bytes]:
    from bb_edge.components import PresenceSelector
    from bb_host import MS, Compiler, Graph, Module, PeerSelectorSlot
    from bb_host.build import build_edge

    class Relayed(Module):
        """A device that tells a relay the number of each of its rounds, which a hub hears from there."""

        name, home = "Relayed", "Device"
        relays = PeerSelectorSlot("relays", peer_class="Relay", at="Device")
        hubs = PeerSelectorSlot("hubs", peer_class="Hub", at="Relay")

        def body(self, g: Graph) -> None:
            with g.rounds(pause_ns=20 * MS) as start:
                relays = self.relays.sample(g, n=1, min=1, after=start)
                told = g.net_out("told", relays, start.round, durable=True)
                g.app_emit("told", start.round, after=relays)
                hubs = self.hubs.sample(g, n=1, min=1, after=told)
                g.app_emit("report", g.net_out("report", hubs, told, durable=True))

    known = {"known": True}
    compiler = Compiler().bind_peer_selector("relays", PresenceSelector, known)
    compiler = compiler.bind_peer_selector("hubs", PresenceSelector, known)
    return {artifact.target: artifact.data for artifact in build_edge(Relayed(), compiler).artifacts}


@pytest.fixture
def start(mosquitto_broker, federation, tmp_path):
    f = federation(mosquitto_broker)
    artifacts: dict[str, Path] = {}
    for target, data in compiled_once("relayed", _compile).items():
        artifacts[target] = tmp_path / f"Relayed.{target}.edge.onnx"
        artifacts[target].write_bytes(data)

    def run(target: str) -> Child:
        name = target.lower()
        child: Child = f.run(name, artifacts[target], target, *f.state(name))
        return child

    run.f = f  # type: ignore[attr-defined]
    return run


def said(f: Any, event: str) -> Counter[int]:
    lines = (e.record for e in f.heard if isinstance(e, Line) and e.record.get("event") == event)
    return Counter(int(record["value"]) for record in lines)


def reach(f: Any, event: str, numbers: set[int]) -> None:
    """Returns once all of them were said."""
    missing = numbers - set(said(f, event))

    def had(e: Any) -> bool:
        if isinstance(e, Line) and e.record.get("event") == event:
            missing.discard(int(e.record["value"]))
        return not missing

    if missing:
        f.wait(had, f"{event} {sorted(missing)[:5]} …")


def test_a_relay_that_is_killed_before_its_first_snapshot_of_the_hub_loses_nothing(start):
    f = start.f
    hub, relay = start("Hub"), start("Relay")
    f.says(relay, "PeerUp peer=hub")  # what comes before that goes to nobody, which is said
    device = start("Device")
    reach(f, "report", {1, 2, 3})
    f.end(hub)  # what the relay takes from now on waits with it
    for _ in range(KILLS):
        last = max(said(f, "told"))
        reach(f, "told", {last + 10})
        relay.signal(signal.SIGKILL)
        assert f.ended(relay) == -signal.SIGKILL
        relay = start("Relay")
    assert f.end(device)[0] == 0
    told = set(range(1, max(said(f, "told")) + 1))
    hub, device = start("Hub"), start("Device")
    reach(f, "report", told)
    f.end(device)
    f.end(relay)
    f.end(hub)
    assert {said(f, "report")[number] for number in told} == {1}
