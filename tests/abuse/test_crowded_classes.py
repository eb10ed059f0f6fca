"""Clients that hear their own class, larger than their tables: each learns its server all the same."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from abused.called import Called
from abused.flood import memory_of
from abused.forger import forger
from node_processes import NodeProcess

from bb_edge.ir.ids import PeerId
from bb_host import MS, Graph, Module, PeerSelectorSlot, ProtocolSlot, S
from bb_host.build import compile_edge
from tests.aids.peers import numbered

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(shutil.which("mosquitto") is None, reason="needs mosquitto"),
]
CLIENTS, PLACES, FAKES = 5, 4, 10_000
SERVER = PeerId.from_name("server")
ABOUT = "fed"
GROWTH = 8 << 20
"""Bytes that a client may grow by while somebody speaks in its server's name."""
LOG_BYTES = 40_000


class Crowd(Module):
    """Clients ask their server again and again; each has a component that any other may call."""

    name, home = "Crowd", "Client"
    servers = PeerSelectorSlot("servers", "bb.PresenceSelector", peer_class="Server")
    called = ProtocolSlot("called", Called, at="Client")

    def body(self, g: Graph) -> None:
        with g.rounds(None, pause_ns=200 * MS) as start:
            one = self.called.hand_on(g, g.constant(np.float32(1.0)), after=start)
            request = g.request("ask", self.servers.sample(g, n=1, min=1, after=start), one, deadline_ns=S)
            request.reply(request.value)
            g.app_emit("answer", request.answer)


@pytest.fixture
def start(mosquitto_broker, tmp_path):
    """`start(name, target, **settings)`: a node of the program as a process."""
    compile_edge(Crowd(), None, tmp_path)
    started: list[NodeProcess] = []

    def make(name: str, target: str, **settings: object) -> NodeProcess:
        path = tmp_path / f"{name}.json"
        config = {
            "artifact": str(tmp_path / f"Crowd.{target}.edge.onnx"),
            "targets": [target],
            "peer": name,
            "broker": mosquitto_broker.url,
            "federation": ABOUT,
            "load": [str(Path(__file__).parent / "abused" / "called.py")],
        }
        path.write_text(json.dumps({**config, **settings}))
        started.append(NodeProcess("run", "--config", str(path)))
        return started[-1]

    yield make
    for process in started:
        if process.process.poll() is None:
            process.end(signal.SIGKILL)


def answers(line: str) -> bool:
    return '"event":"answer"' in line.replace(" ", "")


def test_each_client_learns_its_server_among_ten_thousand_others(mosquitto_broker, start) -> None:
    with forger(mosquitto_broker.port, ABOUT) as mallory:
        mallory.says("Client", 7, *(numbered(number + 1) for number in range(FAKES)))
        clients = [start(f"c{n}", "Client", limits={"max_peers": PLACES}) for n in range(CLIENTS)]
        for client in clients:
            client.says("connected")
        start("server", "Server", limits={"max_peers": 2 * FAKES, "peer_bytes": 16 << 20})
        for client in clients:
            client.says_one(answers)
        pid = clients[0].process.pid
        before, told = memory_of(pid, "VmRSS"), sum(map(len, clients[0].lines))
        for number in range(100):
            mallory.says("Server", 100 + number, SERVER, up=number % 3 > 0)
        for client in clients:
            client.says_one(answers, len(client.lines))
        said = [line for line in clients[0].lines if not answers(line)]
        assert memory_of(pid, "VmRSS") - before < GROWTH
        assert sum(map(len, said)) - told < LOG_BYTES, "what is forged is told now and then"
