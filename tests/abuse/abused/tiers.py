"""Two tiers under faults: a server, a gateway per site with a broker of its own, clients; and their oracle.

Each client answers with its own power of two times the round's number, so the sum of a round, at the server
and at each gateway, tells who is in it and how often.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from node_processes import id_of

from bb_edge.components import ArrayDataSource, FedAvg, OncePerRound, PresenceSelector
from bb_edge.ir.ids import PeerId
from bb_host import MS, AggregatorSlot, Compiler, DataSourceSlot, Module, PeerSelectorSlot, ProtocolSlot, S
from bb_host.build import compile_edge
from bb_host.dsl import Graph
from federated_digits.processes import Line

from .world import Abused

SITE_DEADLINE, DEADLINE = 3 * S, 6 * S
"""A gateway waits so long for its clients, the server so long for its gateways."""

CHILDREN = 100


class Tiers(Module):
    """The server asks the gateways that are up, each of them its clients; they tell whom they asked."""

    name, home = "Tiers", "Server"
    gateways = PeerSelectorSlot("gateways", peer_class="Gateway", at="Server")
    clients = PeerSelectorSlot("clients", peer_class="Client", at="Gateway")
    top, site = AggregatorSlot("top", at="Server"), AggregatorSlot("site", at="Gateway")
    shard = DataSourceSlot("shard", at="Client")
    once = ProtocolSlot("once", OncePerRound, at="Client")

    def __init__(self, gateways: int, rounds: int, pause_ms: int) -> None:
        super().__init__()
        self.asked, self.rounds, self.pause_ms = gateways, rounds, pause_ms

    def body(self, g: Graph) -> None:
        with g.rounds(self.rounds, pause_ns=self.pause_ms * MS) as start:
            peers = self.gateways.sample(g, n=self.asked, min=1, after=start)
            factor = g.onnx.cast(start.round, to=1)
            r = g.request("site", peers, [factor, start.round, start.attempt], deadline_ns=DEADLINE)

            factor, number, attempt = r.value  # on a gateway
            children = self.clients.sample(g, n=CHILDREN, min=1, after=factor)
            g.app_emit("asked", g.bundle([number, children]))
            q = g.request("client", children, [factor, attempt], deadline_ns=SITE_DEADLINE)

            factor, attempt = q.value  # on a client, which answers once, whoever asks; a repeated round again
            factor = g.gate(factor, self.once.first(g, attempt))
            own, _ = self.shard.next_batch(g, after=factor)
            q.reply([g.onnx.reshape(own * factor, g.constant([1, 1])), self.shard.num_samples(g)])

            value, n = q.answer  # the gateway again
            self.site.contribute(g, value, weight=n, peer=q.answer.sender)
            mean, total = self.site.aggregate(g, after=q.closed)
            _, number, _ = r.value
            g.app_emit("site", g.bundle([number, g.onnx.reduce_mean(mean, keepdims=0), total, q.missing]))
            r.reply([g.onnx.reshape(mean, g.constant([1, 1])), total])

            mean, weight = r.answer  # the server again
            self.top.contribute(g, mean, weight=weight, peer=r.answer.sender)
            mean, total = self.top.aggregate(g, after=r.closed)
            mean = g.onnx.reduce_mean(mean, keepdims=0)
            g.app_emit("round", g.bundle([start.round, mean, total, r.missing, peers]))


class TierWorld(Abused):
    """A server at the first broker; at each other one, which is bridged to it, a gateway and its clients.

    A site shares with the center what server and gateways say to each other, and nothing of its clients.
    """

    kinds = ("client", "client", "gateway", "gateway", "broker")

    def __init__(
        self, folder: Path, clients: int = 6, rounds: int = 30, pause_ms: int = 1500, brokers: int = 3
    ) -> None:
        super().__init__(folder, brokers)
        self.sites, self.clients, self.rounds = brokers - 1, clients, rounds
        self.gateways = [f"gateway-{n}" for n in range(self.sites)]
        of_clients = [f"client-{n}" for n in range(clients)]
        self.names = ("server", *self.gateways, *of_clients)
        self.name_of = {str(PeerId.from_name(name)): name for name in self.names}
        compiler = (
            Compiler()
            .bind_peer_selector("gateways", PresenceSelector)
            .bind_peer_selector("clients", PresenceSelector)
            .bind_aggregator("top", FedAvg)
            .bind_aggregator("site", FedAvg)
            .bind_data_source("shard", ArrayDataSource, {"batch_size": 0})
        )
        compile_edge(Tiers(self.sites, rounds, pause_ms), compiler, folder)
        for n, name in enumerate(of_clients):
            np.savez(folder / f"{name}.npz", x=np.full((1, 1), 2.0**n, np.float32))
        self.asked: dict[tuple[str, int], list[set[str]]] = defaultdict(list)
        """By gateway and round: the clients that it has asked, once per request that it took."""
        self.heard_at: dict[tuple[str, int], list[tuple[float, float, set[str]]]] = defaultdict(list)
        """By gateway and round: mean, samples and missing clients."""

    def site_of(self, client: str) -> str:
        """The gateway of a client's site."""
        return self.gateways[int(client.rpartition("-")[2]) % self.sites]

    def shared(self, number: int) -> list[str]:
        server, own = (PeerId.from_name(name).to_text() for name in ("server", self.gateways[number - 1]))
        classes = ["presence/Gateway/# both", "presence/Server/# both", "rollcall/# both"]
        return [*classes, f"{server}/# out", f"{own}/# in"]

    def command(self, name: str) -> list[str | Path]:
        kind, _, number = name.partition("-")
        broker = self.brokers[1 + int(number) % self.sites if number else 0]
        target = kind.title()
        found = [self.folder / f"Tiers.{target}.edge.onnx", "--target", target, "--broker", broker.url]
        return [*found, "--set", f"shard.path={self.folder / name}.npz"] if kind == "client" else found

    def heard(self, line: Line) -> None:
        record, who = line.record, line.child.name
        value: Any = record.get("value")
        if record.get("event") == "round":
            self.told[value[0]].append([*value[1:3], self._names(value[3]), self._names(value[4])])
        elif record.get("event") == "asked":
            self.asked[who, value[0]].append(self._names(value[1]))
        elif record.get("event") == "site":
            self.heard_at[who, value[0]].append((value[1], value[2], self._names(value[3])))

    def _names(self, peers: list[Any]) -> set[str]:
        return {self.name_of[id_of(peer)] for peer in peers}

    @property
    def complete(self) -> bool:
        return self.rounds in self.told and bool(self.told[self.rounds][-1][1])

    @property
    def full(self) -> int:
        """How many rounds have counted all clients."""
        return sum(any(round(one[1]) == self.clients for one in several) for several in self.told.values())

    @property
    def counted(self) -> int:
        """How many contributions of clients all rounds have counted."""
        return sum(round(one[1]) for several in self.told.values() for one in several)

    # --- the oracle -------------------------------------------------------------------------------------

    def wrong(self) -> list[str]:
        """What is not as it must be; empty where all is well."""
        found = list(self.unexpected)
        if sorted(self.told) != list(range(1, self.rounds + 1)):
            found.append(f"rounds told: {sorted(self.told)} of {self.rounds}")
        for number, several in sorted(self.told.items()):
            for mean, total, missing, asked in several:
                inside = self._inside(number, mean, total, found, f"round {number}")
                for client in (f"client-{n}" for n in range(self.clients)):
                    if client not in inside and not self._reported(number, client, missing, asked):
                        found.append(f"round {number}: {client} is not in the sum, and nobody says why")
                    if client in inside and self.site_of(client) not in asked - missing:
                        found.append(f"round {number}: {client} is in the sum, its gateway has not answered")
            if sum(bool(round(one[1])) for one in several) > 1:
                found.append(f"round {number} has counted in two ways: {several}")
        for (gateway, number), sites in sorted(self.heard_at.items()):
            for mean, total, missing in sites:
                inside = self._inside(number, mean, total, found, f"{gateway}, round {number}")
                if inside & missing or not any(
                    inside | missing == one for one in self.asked[gateway, number]
                ):
                    found.append(
                        f"{gateway}, round {number}: counted {sorted(inside)}, missing {sorted(missing)}, "
                        f"asked {self.asked[gateway, number]}"
                    )
        return found

    def _inside(self, number: int, mean: float, total: float, found: list[str], where: str) -> set[str]:
        """Who is in a sum. Notes where it is not a sum of different clients, as many as it says."""
        count = round(total)
        have = round(mean * count) if count else 0
        bits, rest = divmod(have, number)
        if rest or bits >= 2**self.clients or bin(bits).count("1") != count:
            found.append(f"{where}: {count} counted, the sum {have} is that of {bits:b}, rest {rest}")
        return {f"client-{n}" for n in range(self.clients) if bits >> n & 1}

    def _reported(self, number: int, client: str, missing: set[str], asked: set[str]) -> bool:
        """Whether server or gateway says that somebody who is not in a round was missing, or away."""
        gateway = self.site_of(client)
        if gateway not in asked or gateway in missing:
            return True
        at = self.heard_at[gateway, number]
        return any(client in one for _, _, one in at) or any(
            client not in one for one in self.asked[gateway, number]
        )
