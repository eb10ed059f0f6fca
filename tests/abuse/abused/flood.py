"""A hostile client that sends as fast as it can: what the node it aims at holds, and whom it still serves."""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from brokers import mosquitto
from node_processes import id_of
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

from bb_edge.components import PresenceSelector
from bb_edge.engine.config import NodeConfig
from bb_edge.ir.address import site_suffix
from bb_edge.ir.ids import PeerId
from bb_edge.wire import envelope
from bb_edge.wire.codecs import encode_value
from bb_edge.wire.envelope import Envelope, Fill
from bb_edge.wire.presence import Presence, encode_presence
from bb_host import MS, Compiler, Module, PeerSelectorSlot
from bb_host.build import compile_edge
from bb_host.dsl import Graph
from federated_digits.processes import Child, Ended, Events

from .world import PATIENCE_S

FLOATS = 15_000
"""Of one hostile envelope: just below the 64 KiB that the edge's budget takes in one piece."""

BUDGET = NodeConfig.edge().ingress_bytes


class Reports(Module):
    """Leaves tell a hub a number now and then; the hub takes its time over each."""

    name, home = "Reports", "Hub"
    hubs = PeerSelectorSlot("hubs", peer_class="Hub")

    def body(self, g: Graph) -> None:
        with g.at("Leaf"), g.rounds(pause_ns=100 * MS) as tick:
            hub = self.hubs.sample(g, n=1, min=1, after=tick)
            # As long as the round's number says: the hub takes vectors of any length.
            value = g.onnx.expand(g.onnx.cast(tick.round, to=1), g.onnx.reshape(tick.round, np.array([1])))
            seen = g.net_out("report", hub, value)
        told = g.sleep(g.threshold(1, seen), 200 * MS)
        g.app_emit("report", g.bundle([seen.sender, g.onnx.size(seen)]), after=told)


@dataclass(frozen=True, slots=True)
class Flooded:
    """What came of it: bytes, and how many honest reports were taken before, during and after it."""

    sent_bytes: int
    rest_bytes: int
    peak_bytes: int
    reports: tuple[int, int, int]
    counters: dict[str, int]

    @property
    def grown_bytes(self) -> int:
        return self.peak_bytes - self.rest_bytes


class Flood:
    """A hub with the edge's budget, one honest leaf, one hostile client, all at one mosquitto."""

    def __init__(self, folder: Path) -> None:
        build = compile_edge(Reports(), Compiler().bind_peer_selector("hubs", PresenceSelector), folder)
        ops = [op for a in build.artifacts for f in a.program.functions for op in f.ops]
        (send,) = (op for op in ops if op.op_type == "Send")
        self._site = send.facts.sites[0]
        self._hash = send.facts.type_hashes[0]
        self._folder, self._events, self._broker = folder, Events(), mosquitto(folder)
        self._children: list[Child] = []
        self._loud, self._hub = PeerId.from_name("loud"), PeerId.from_name("hub")
        self._leaf = str(PeerId.from_name("leaf"))
        self._summary: dict[str, Any] = {}

    def run(self, seconds: float, least_bytes: int) -> Flooded:
        """Three times so many seconds: without, with, and after the flood, which goes on until the broker has
        taken `least_bytes` of it.
        """
        self._broker.start()
        hub = self._start("hub", "Hub")
        self._start("leaf", "Leaf")
        try:
            assert self._listen(PATIENCE_S, until=3), "the hub hears nothing"
            self._flood(2, 0)  # what one such envelope needs for good is there then
            self._listen(seconds)
            before, rest = self._listen(seconds), memory_of(hub.pid, "VmRSS")
            Path(f"/proc/{hub.pid}/clear_refs").write_text("5")  # the peak begins anew
            sent: list[int] = []
            flooding = threading.Thread(target=lambda: sent.append(self._flood(seconds, least_bytes)))
            flooding.start()
            during = 0
            while flooding.is_alive():
                during += self._listen(0.2)
            flooding.join()
            peak = memory_of(hub.pid, "VmHWM")
            self._listen(2 * seconds)  # what the broker still holds
            after = self._listen(seconds)
            hub.signal(signal.SIGTERM)
            hub.end(30)
            self._listen(0.5)
            counters = dict(self._summary.get("counters", {}))
            return Flooded(sent[0], rest, peak, (before, during, after), counters)
        finally:
            for child in self._children:
                child.end(within_s=0)
            self._broker.kill()

    def _start(self, name: str, target: str) -> Child:
        child = Child(
            name,
            [
                *(sys.executable, "-m", "bb_edge.cli", "run", self._folder / f"Reports.{target}.edge.onnx"),
                *("--peer", name, "--target", target, "--broker", self._broker.url),
                *("--federation", "flood", "--budget", "edge", "--summary"),
            ],
            self._folder / f"{name}.log",
            self._events,
        )
        self._children.append(child)
        return child

    def _listen(self, seconds: float, until: int = 0) -> int:
        """How many reports of the honest leaf come in so many seconds, or until so many have come."""
        deadline, found = time.monotonic() + seconds, 0
        while (not until or found < until) and (event := self._events.next(deadline)) is not None:
            assert not isinstance(event, Ended) or event.code == 0, event.child.tail
            if isinstance(event, Ended):
                continue
            if "summary" in event.record:
                self._summary = event.record
            if event.record.get("event") == "report":
                value: Any = event.record["value"]
                found += list(map(id_of, value[0])) == [self._leaf]
        return found

    def _flood(self, seconds: float, least_bytes: int) -> int:
        """Publishes sound envelopes, heeding nothing; gives the bytes that the broker has taken."""
        client = Client(CallbackAPIVersion.VERSION2, self._loud.to_text(), protocol=MQTTv5)
        client.max_inflight_messages_set(100)
        client.connect("127.0.0.1", self._broker.port)
        client.loop_start()
        presence = encode_presence(Presence(True, 1, session=1, seq=1))  # it is admitted as a leaf
        client.publish(f"bb/flood/presence/Leaf/{self._loud.to_text()}", presence, qos=1, retain=True)
        topic = f"bb/flood/{self._hub.to_text()}/from/{self._loud.to_text()}"
        type_hash, payload = encode_value(np.zeros(FLOATS, np.float32))
        assert type_hash == self._hash
        end, sent, number = time.monotonic() + seconds, 0, 0
        epoch = time.time_ns()
        while time.monotonic() < end or sent < least_bytes:
            number += 1
            fill = Fill(site_suffix(self._site), payload, False, type_hash)
            data = envelope.encode(
                Envelope(fills=[fill], epoch=epoch, seq=number, src_peer=self._loud.to_bytes())
            )
            client.publish(topic, data, qos=1).wait_for_publish(PATIENCE_S)
            sent += len(data)
        client.disconnect()
        client.loop_stop()
        return sent


def memory_of(pid: int, field: str) -> int:
    """A line of a process's status, such as VmRSS, in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
