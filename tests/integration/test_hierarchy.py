"""Sites behind bridged brokers: a gateway that is killed in mid-round, and clients that move elsewhere."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brokers import Broker
from node_processes import NodeProcess

from bb_host.build import compile_edge
from federated_digits.data import load_digits
from hierarchical.run import shared_topics
from hierarchical.tiers import program

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SIZES = [32 * 3**n for n in range(4)]
"""Any sum of these says which clients have counted, and how often."""

SITES = ("gateway-0", "gateway-1")


def counted(total: float) -> tuple[int, ...]:
    found, rest = [], int(total) // 32
    for _ in SIZES:
        rest, times = divmod(rest, 3)
        found.append(times)
    assert rest == 0 and int(total) % 32 == 0, total
    return tuple(found)


class Sites:
    """A center with the server, and two sites whose brokers are bridged to it."""

    def __init__(self, folder: Path, start_broker: Callable[..., Broker]) -> None:
        self._folder = folder
        x, y = load_digits()
        np.savez(folder / "exam.npz", x=x[:300], y=y[:300])
        ends = np.cumsum([300, *SIZES])
        for number, size in enumerate(SIZES):
            rows = slice(ends[number + 1] - size, ends[number + 1])
            np.savez(folder / f"client-{number}.npz", x=x[rows], y=y[rows])
        compile_edge(*program(seed=1, rounds=0, at_least=1, local_steps=3), folder)
        center = start_broker("mosquitto")
        self._urls = {"center": f"mqtt://{center.host}:{center.port}"}
        for site in SITES:
            lines = [
                f"connection {site}",
                f"address {center.host}:{center.port}",
                *(f"topic bb/home/{topic} 1" for topic in shared_topics(site)),
                "bridge_protocol_version mqttv50",
                f"remote_clientid bridge-{site}",
                "notifications false",
                "restart_timeout 1",
            ]
            broker = start_broker("mosquitto", lines)
            self._urls[site] = f"mqtt://{broker.host}:{broker.port}"
        self.started: list[NodeProcess] = []

    def run(self, name: str, target: str, site: str, *more: str) -> NodeProcess:
        words = ("run", str(self._folder / f"Tiers.{target}.edge.onnx"), "--target", target, "--peer", name)
        where = ("--broker", self._urls[site], "--federation", "home", "--budget", "host")
        state = ("--state", str(self._folder / f"of-{name}"))
        self.started.append(NodeProcess(*words, *where, *state, *more))
        return self.started[-1]

    def client(self, number: int, site: str) -> NodeProcess:
        return self.run(
            f"client-{number}", "Client", site, "--set", f"shard.path={self._folder / f'client-{number}.npz'}"
        )

    def server(self) -> NodeProcess:
        return self.run("tiers", "Server", "center", "--set", f"test.path={self._folder / 'exam.npz'}")


@pytest.fixture
def sites(tmp_path: Path, start_broker: Callable[..., Broker]) -> Any:
    found = Sites(tmp_path, start_broker)
    yield found
    for process in found.started:
        assert process.process.stdout is not None
        if not process.process.stdout.closed:
            process.process.send_signal(signal.SIGCONT)
            process.end(signal.SIGKILL)


def counted_in(line: str) -> tuple[int, ...]:
    """Who has counted in the round that the line tells of, and how often; () where it tells of none."""
    event = json.loads(line) if line.startswith("{") else {}
    return counted(event["value"][3]) if event.get("event") == "round" else ()


def until(server: NodeProcess, who: tuple[int, ...]) -> None:
    """Returns once a round that begins from now on has had these clients."""
    server.says_one(lambda line: counted_in(line) == who, since=len(server.lines))


def test_a_killed_gateway_costs_its_round_and_clients_that_move_are_counted_once(sites: Sites) -> None:
    gateways = [sites.run(name, "Gateway", name) for name in SITES]
    clients = [sites.client(number, SITES[number // 2]) for number in range(4)]
    server = sites.server()
    until(server, (1, 1, 1, 1))

    clients[0].process.send_signal(signal.SIGSTOP)  # from now on a round of its gateway stays open
    gateways[0].end(signal.SIGKILL)
    until(server, (0, 0, 1, 1))
    clients[0].process.send_signal(signal.SIGCONT)
    for number in (0, 1):
        assert clients[number].end() == 0
        clients[number] = sites.client(number, SITES[1])
    until(server, (1, 1, 1, 1))

    assert clients[1].end() == 0
    clients[1] = sites.client(1, SITES[0])
    sites.run(SITES[0], "Gateway", SITES[0])
    until(server, (1, 1, 1, 1))
    assert {times for line in server.lines for times in counted_in(line)} == {0, 1}
