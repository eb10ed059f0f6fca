"""The programs that are simulated, as an author writes them. Needs the onnx package."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bb_edge.components import FedAvg, PresenceSelector
from bb_host import AggregatorSlot, Compiler, DataSourceSlot, Module, PeerSelectorSlot, S
from bb_host.build import Build, build_edge
from bb_host.dsl import Graph
from bb_host.ir.program import Program
from simulated.flaky import Flaky
from simulated.programs import LISTED, LISTS, OTHER, OWN, UNLISTED

MS = 1_000_000


class Editions:
    """What differs between the versions of a program."""

    edition = 0
    """Makes another program of it."""
    suffix = ""
    """Has other things travel."""


class Federation(Editions, Module):
    """Rounds: each client answers with its own numbers times the round's; the server averages.

    Meanwhile every client reports numbers, one way. What the server counts and averages can be worked out
    from who was heard.
    """

    name, home = "Federation", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    servers = PeerSelectorSlot("servers", peer_class="Server")
    agg = AggregatorSlot("agg", at="Server")
    shard = DataSourceSlot("shard", at="Client")

    def __init__(
        self, clients: int, rounds: int, reports: int, durable: bool, enough: int | None, every_ms: int = 30
    ) -> None:
        super().__init__()
        self.asked, self.rounds, self.reports, self.every_ns = clients, rounds, reports, every_ms * MS
        self.durable, self.enough = durable, enough

    def body(self, g: Graph) -> None:
        with g.rounds(self.rounds, pause_ns=20 * MS + self.edition) as start:
            peers = self.clients.sample(g, n=self.asked, min=1, after=start)
            number = g.onnx.cast(start.round, to=1)
            r = g.request(
                "ask" + self.suffix,
                peers,
                number,
                deadline_ns=20 * S,
                enough=self.enough,
                durable=self.durable,
            )
            own, _ = self.shard.next_batch(g, after=r.value)
            r.reply(g.onnx.reshape(own * r.value, g.constant([1, 3])))

            self.agg.contribute(g, r.answer, peer=r.answer.sender, round=start.round)
            mean, total = self.agg.aggregate(g, after=r.closed)
            g.app_emit("round", g.bundle([start.round, mean, total, r.missing, peers]))
        with g.at("Client"), g.rounds(self.reports, pause_ns=self.every_ns) as tick:
            servers = self.servers.sample(g, n=1, min=1, after=tick)
            seen = g.net_out("report" + self.suffix, servers, tick.round, durable=self.durable)
        g.incr_metric("reports", seen)
        g.app_emit("report", g.bundle([seen, seen.sender]))


class Gossip(Editions, Module):
    """Every node tells a few others its numbers, one way; everybody counts what it hears."""

    name, home = "Gossip", "Gossip"
    peers = PeerSelectorSlot("peers", peer_class="Gossip")

    def __init__(self, told: int, reports: int, durable: bool) -> None:
        super().__init__()
        self.told, self.reports, self.durable = told, reports, durable

    def body(self, g: Graph) -> None:
        with g.rounds(self.reports, pause_ns=15 * MS + self.edition) as tick:
            peers = self.peers.sample(g, n=self.told, min=1, after=tick)
            seen = g.net_out("say" + self.suffix, peers, tick.round, durable=self.durable)
        g.incr_metric("reports", seen)
        g.app_emit("report", g.bundle([seen, seen.sender]))


class Nested(Editions, Module):
    """The server asks relays; each asks the leaves before it answers with the sum of theirs."""

    name, home = "Nested", "Server"
    relays = PeerSelectorSlot("relays", peer_class="Relay")
    leaves = PeerSelectorSlot("leaves", peer_class="Leaf", at="Relay")
    shard = DataSourceSlot("shard", at="Leaf")

    def __init__(self, relays: int, leaves: int, rounds: int, durable: bool, inner_s: int) -> None:
        super().__init__()
        self.asked, self.below, self.rounds, self.durable = relays, leaves, rounds, durable
        self.inner_s = inner_s

    def body(self, g: Graph) -> None:
        with g.rounds(self.rounds, pause_ns=20 * MS + self.edition) as start:
            peers = self.relays.sample(g, n=self.asked, min=1, after=start)
            number = g.onnx.cast(start.round, to=1)
            r = g.request("outer" + self.suffix, peers, number, deadline_ns=20 * S, durable=self.durable)
            below = self.leaves.sample(g, n=self.below, after=r.value)
            q = g.request(
                "inner" + self.suffix, below, r.value, deadline_ns=self.inner_s * S, durable=self.durable
            )
            own, _ = self.shard.next_batch(g, after=q.value)
            q.reply(own * q.value)
            # Nobody below: an empty stack, whose sum has no axes; the zeros give it the shape of the others.
            zeros = g.constant(np.zeros((1, 3), np.float32))
            r.reply(g.onnx.reduce_sum(q.responses, [0], keepdims=0) + zeros)
            g.app_emit("asked", g.bundle([start.round, r.responses, r.missing, peers]))


_COMPILERS: dict[str, tuple[type[Module], Callable[[], Compiler]]] = {
    "federation": (
        Federation,
        lambda: (
            Compiler()
            .bind_peer_selector("clients", PresenceSelector)
            .bind_peer_selector("servers", PresenceSelector)
            .bind_aggregator("agg", FedAvg)
            .bind_data_source("shard", Flaky, {"batch_size": 0})
        ),
    ),
    "gossip": (Gossip, lambda: Compiler().bind_peer_selector("peers", PresenceSelector)),
    "nested": (
        Nested,
        lambda: (
            Compiler()
            .bind_peer_selector("relays", PresenceSelector)
            .bind_peer_selector("leaves", PresenceSelector)
            .bind_data_source("shard", Flaky, {"batch_size": 0})
        ),
    ),
}


def _built(kind: str, *options: int | bool | None) -> dict[str, bytes]:
    """The artifacts of a program, by target."""
    make, compiler = _COMPILERS[kind]
    return {artifact.target: artifact.data for artifact in build_edge(make(*options), compiler()).artifacts}


def federation(
    clients: int, rounds: int, reports: int, durable: bool, enough: int | None, every_ms: int
) -> dict[str, bytes]:
    return _built("federation", clients, rounds, reports, durable, enough, every_ms)


def gossip(told: int, reports: int, durable: bool) -> dict[str, bytes]:
    return _built("gossip", told, reports, durable)


def nested(relays: int, leaves: int, rounds: int, durable: bool, inner_s: int) -> dict[str, bytes]:
    return _built("nested", relays, leaves, rounds, durable, inner_s)


def editions(kind: str, *options: int | bool | None) -> dict[str, bytes]:
    """The models of a program's versions, with all targets, by edition."""
    make, compiler = _COMPILERS[kind]

    def build(number: int, suffix: str = "", accepts: Sequence[Program] = ()) -> Build:
        module = make(*options)
        module.edition, module.suffix = number, suffix
        return build_edge(module, compiler(), accepts=accepts, portable=True)

    listed = build(1)
    own = build(0, accepts=[listed.program])
    found = {
        LISTED: listed,
        OWN: own,
        LISTS: build(2, accepts=[own.program]),
        UNLISTED: build(3),
        OTHER: build(4, "_other"),
    }
    return {name: each.data for name, each in found.items()}
