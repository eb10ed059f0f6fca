"""A device that reports durably gets another program while its hub is away: real processes.

What the old program had not got rid of arrives once, before what the new one tells; what the new program
would say otherwise is told as not delivered.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_programs import compiled_once

from federated_digits.processes import Child, Line

NEW = 100_000
"""What the new program adds to its numbers."""

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def _compile(version: str) -> dict[str, bytes]:
    from bb_edge.components import Float16Codec, PresenceSelector, ScalarQuantizer
    from bb_host import MS, CodecSlot, Compiler, Graph, Module, PeerSelectorSlot
    from bb_host.build import build_edge

    new = version == "new"

    class Reports(Module):
        """A device that tells hubs it knows the number of each of its rounds, plain and coded."""

        name, home = "Reports", "Device"
        hubs = PeerSelectorSlot("hubs", peer_class="Hub", at="Device")
        codec = CodecSlot("codec")

        def body(self, g: Graph) -> None:
            with g.rounds(10_000 if new else None, pause_ns=30 * MS if new else 20 * MS) as start:
                hubs = self.hubs.sample(g, n=1, min=1, after=start)
                number = start.round + (NEW if new else 0)
                vector = g.onnx.reshape(g.onnx.cast(number, to=1), np.array([1]))
                told = g.net_out("report", hubs, number, durable=True)
                coded = g.net_out("coded", hubs, self.codec.compress(g, vector), durable=True)
                g.app_emit(f"told by {version}", number, after=hubs)
                if new:
                    g.app_emit("more", start.round)
                g.app_emit("report", told)
                g.app_emit("coded", self.codec.decompress(g, coded))

    compiler = (
        Compiler()
        .bind_peer_selector("hubs", PresenceSelector, {"known": True})
        .bind_codec("codec", ScalarQuantizer if new else Float16Codec)
    )
    return {artifact.target: artifact.data for artifact in build_edge(Reports(), compiler).artifacts}


class Rollout:
    """A hub and a device of two versions of a program, and what they have said."""

    def __init__(self, federation: Any, folder: Path) -> None:
        self.f = federation
        self._folder = folder
        for version in ("old", "new"):
            for target, data in compiled_once(f"reports-{version}", lambda v=version: _compile(v)).items():
                (folder / f"{version}-{target}.onnx").write_bytes(data)

    def run(self, version: str, target: str, *more: str) -> Child:
        name = target.lower()
        state = str(self._folder / f"{version}-{name}")
        artifact = self._folder / f"{version}-{target}.onnx"
        found: Child = self.f.run(name, artifact, target, "--state", state, *more)
        return found

    def adopting(self, target: str) -> Child:
        return self.run("new", target, "--adopt", str(self._folder / f"old-{target.lower()}"))

    def said(self, event: str) -> list[Any]:
        lines = (e.record for e in self.f.heard if isinstance(e, Line) and e.record.get("event") == event)
        return [record["value"] for record in lines]

    def more(self, event: str, count: int) -> int:
        """Returns once as many further numbers were said, and which is the last."""
        last = max(self.said(event), default=0)

        def wanted(e: Any) -> bool:
            return (
                isinstance(e, Line) and e.record.get("event") == event and e.record["value"] >= last + count
            )

        found: int = int(self.f.wait(wanted, f"{count} more of {event}").record["value"])
        return found

    def log_of(self, child: Child) -> list[str]:
        return [e.text for e in self.f.heard if isinstance(e, Line) and e.error and e.child is child]

    def until_all(self, wanted: set[int]) -> None:
        """Returns once the hub has had every report of these."""
        missing = wanted - set(self.said("report"))

        def had(e: Any) -> bool:
            if isinstance(e, Line) and e.record.get("event") == "report":
                missing.discard(int(e.record["value"]))
            return not missing

        if missing:
            self.f.wait(had, "all reports")


@pytest.fixture
def rollout(mosquitto_broker, federation, tmp_path):
    return Rollout(federation(mosquitto_broker), tmp_path)


def test_reports_that_wait_for_a_hub_outlive_the_program_and_arrive_once(rollout):
    r = rollout
    hub, device = r.run("old", "Hub"), r.run("old", "Device")
    r.more("report", 5)
    assert r.f.end(hub)[0] == 0
    r.more("told by old", 15)
    assert r.f.end(device)[0] == 0
    told = set(r.said("told by old"))
    assert told - set(r.said("report"))

    device = r.adopting("Device")  # the hub is away all the while
    r.more("told by new", 10)
    log = "\n".join(r.log_of(device))
    assert "adopted slot=outbox what=" in log
    why = "it was sent as Tensor<F16>, this program sends Tensor<U8>"
    assert "not adopted slot=outbox what=a send 'coded' to " in log and why in log
    r.f.says(device, "OutboundDropped", 0)
    hub = r.adopting("Hub")
    new = {number for number in range(NEW + 1, r.more("told by new", 10))}
    r.until_all(told | new)
    assert r.f.end(device)[0] == 0
    r.f.end(hub)
    times = Counter(int(number) for number in r.said("report"))
    assert {times[number] for number in told | new} == {1}
    first_new = next(i for i, number in enumerate(r.said("report")) if number > NEW)
    assert told == set(r.said("report")[:first_new]), "the old ones come first"
