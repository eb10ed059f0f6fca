"""Who is here and speaks keeps its place in a full table, and is reached: real processes that die."""

from __future__ import annotations

import json
import signal

import numpy as np
import pytest
from node_processes import NodeProcess

from bb_edge.ir.ids import PeerId
from bb_host import MS, Compiler, Graph, Module, PeerSelectorSlot, S
from bb_host.ir.proto import to_proto

pytestmark = pytest.mark.broker


class Roll(Module):
    """A server asks all of its clients, again and again."""

    name, home = "Roll", "Server"
    clients = PeerSelectorSlot("clients", "bb.PresenceSelector", peer_class="Client")

    def body(self, g: Graph) -> None:
        with g.rounds(None, pause_ns=200 * MS) as start:
            peers = self.clients.sample(g, n=8, min=1, after=start)
            request = g.request("ask", peers, g.constant(np.float32(1.0)), deadline_ns=S)
            request.reply(request.value)
            g.app_emit("round", g.bundle([peers, request.missing]))


@pytest.fixture
def start(mosquitto_broker, tmp_path):
    """`start(name, target, **settings)`: a node of the program as a process."""
    artifact = tmp_path / "roll.onnx"
    artifact.write_bytes(Compiler().compile(to_proto(Roll().record())).SerializeToString())
    started: list[NodeProcess] = []

    def make(name: str, target: str = "Client", **settings: object) -> NodeProcess:
        path = tmp_path / f"{name}.json"
        fixed = {"artifact": str(artifact), "targets": [target], "peer": name}
        path.write_text(json.dumps({**fixed, "broker": mosquitto_broker.url, **settings}))
        started.append(NodeProcess("run", "--config", str(path)))
        return started[-1]

    yield make
    for process in started:
        if process.process.poll() is None:
            process.end(signal.SIGKILL)


def says_all_answer(server: NodeProcess, *names: str) -> None:
    """Returns once the server tells of a round, from now on, in which these were asked and all answered."""
    told = len(server.lines)
    wanted = {str(PeerId.from_name(name)) for name in names}

    def is_it(line: str) -> bool:
        if '"event":"round"' not in line.replace(" ", ""):
            return False
        asked, missing = json.loads(line)["value"]
        return wanted <= {peer.rpartition("(")[2].rstrip(")") for peer in asked} and not missing

    server.says_one(is_it, told)


def test_a_newcomer_takes_the_place_of_a_dead_peer_and_nobody_loses_an_address(start):
    server = start("server", "Server", limits={"max_peers": 4})
    start("c").says("connected")
    says_all_answer(server, "c")
    dead = [start(name) for name in ("x0", "x1", "x2")]
    says_all_answer(server, "c", "x0", "x1", "x2")
    for process in dead:
        process.end(signal.SIGKILL)
    start("late").says("connected")
    says_all_answer(server, "c", "late")
    assert not [line for line in server.lines if "PeerResolveFailed" in line]
