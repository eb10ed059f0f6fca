"""Federated averaging over two tiers: clients answer their gateway, gateways answer the server.

The body reads top to bottom through all three classes of nodes: the server asks the gateways, each gateway
asks the clients that it sees, a client trains. What the gateway has averaged goes up with its weight, so the
server's average is that of all clients, as if it had asked each of them.

    bb-host compile tiers.py --target edge -o build/

`program(flat=True)` is the same learning without gateways.
"""

from __future__ import annotations

import os

from bb_edge.components import ArrayDataSource, FedAvg, GraphModel, OncePerRound, PresenceSelector
from bb_host import (
    AggregatorSlot,
    Compiler,
    DataSourceSlot,
    ModelSlot,
    Module,
    PeerSelectorSlot,
    ProtocolSlot,
    S,
)
from bb_host.dsl import Graph, Output
from bb_host.learn import mlp, trainable

ROUNDS = 20
GATEWAYS = 2
CLIENTS = 6
LOCAL_STEPS = 30
BATCH = 32
LEARNING_RATE = 0.1
CHILDREN = 1000
"""The most clients that a gateway asks. Its budget for answers, 256 MiB, is the bound behind it."""

SITE_DEADLINE_NS = 20 * S
"""A gateway waits so long for its clients, and then answers with those that it has heard."""

DEADLINE_NS = 30 * S
"""The server waits longer than a gateway does: else a mute client would cost the whole site its round."""

PIXELS, HIDDEN, DIGITS = 64, 32, 10
FLOAT = 1
"""How ONNX numbers the element type float32."""


def accuracy(g: Graph, logits: Output, one_hot: Output) -> Output:
    """The share of rows whose largest logit stands where the one is: 0-D F32."""
    guess = g.onnx.arg_max(logits, axis=1, keepdims=0)
    truth = g.onnx.arg_max(one_hot, axis=1, keepdims=0)
    hit = g.onnx.cast(g.onnx.equal(guess, truth), to=FLOAT)
    return g.onnx.reduce_mean(hit, keepdims=False)


class Learning(Module):
    """What both programs share: the model, and what clients and server do with it."""

    home = "Server"
    model, top = ModelSlot("model"), AggregatorSlot("top", at="Server")
    shard, test = DataSourceSlot("shard", at="Client"), DataSourceSlot("test", at="Server")

    def __init__(
        self,
        rounds: int = ROUNDS,
        asked: int = GATEWAYS,
        at_least: int = 0,
        children: int = 1,
        local_steps: int = LOCAL_STEPS,
    ) -> None:
        """`asked` are the gateways, or, without such, the clients. 0 `rounds` never end.

        A round begins once `at_least` of them are up (0: all of them). A gateway with fewer than `children`
        clients has nothing to answer with.
        """
        super().__init__()
        self.rounds, self.asked, self.at_least = rounds, asked, at_least or asked
        self.children, self.local_steps = children, local_steps

    def learned(self, g: Graph, params: Output) -> list[Output]:
        """On a client: its parameters after some steps from `params` on, and how many samples it has."""
        loaded = self.model.load_parameters(g, params)
        with g.loop(self.local_steps, after=loaded) as steps:
            x, y = self.shard.next_batch(g)
            self.model.step(g, after=self.model.train(g, x, y))
        return [self.model.params(g, after=steps), self.shard.num_samples(g)]

    def scored(self, g: Graph, number: Output, new: Output, total: Output, missing: Output) -> None:
        """On the server: takes the new parameters and tells [round, loss, accuracy, samples, missing]."""
        x, y = self.test.next_batch(g, after=self.model.load_parameters(g, new))
        score = accuracy(g, self.model.forward(g, x), y)
        g.app_emit("round", g.bundle([number, self.model.evaluate(g, x, y), score, total, missing]))


class Tiers(Learning):
    """Server, gateways, clients."""

    name = "Tiers"
    gateways = PeerSelectorSlot("gateways", peer_class="Gateway", at="Server")
    clients = PeerSelectorSlot("clients", peer_class="Client", at="Gateway")
    site = AggregatorSlot("site", at="Gateway")
    once = ProtocolSlot("once", OncePerRound, at="Client")

    def body(self, g: Graph) -> None:
        with g.rounds(self.rounds or None) as start:
            peers = self.gateways.sample(g, n=self.asked, min=self.at_least, after=start)
            params = self.model.params(g, after=start)
            r = g.request("site", peers, [params, start.attempt], deadline_ns=DEADLINE_NS)

            model, attempt = r.value  # on a gateway
            children = self.clients.sample(g, n=CHILDREN, min=self.children, after=model)
            q = g.request("client", children, [model, attempt], deadline_ns=SITE_DEADLINE_NS)

            own, attempt = q.value  # on a client, which answers once, whoever asks; a repeated round again
            q.reply(self.learned(g, g.gate(own, self.once.first(g, attempt))))

            weights, n = q.answer  # the gateway again, once per client
            self.site.contribute(g, weights, weight=n, peer=q.answer.sender, sent=model)
            r.reply(list(self.site.aggregate(g, after=q.closed)))  # the mean, and the samples behind it

            mean, weight = r.answer  # the server again, once per gateway
            self.top.contribute(g, mean, weight=weight, peer=r.answer.sender, sent=params)
            new, total = self.top.aggregate(g, after=r.closed)
            self.scored(g, start.round, new, total, r.missing)


class Flat(Learning):
    """Server and clients: what the tiers compute, without them."""

    name = "Flat"
    clients = PeerSelectorSlot("clients", peer_class="Client", at="Server")

    def body(self, g: Graph) -> None:
        with g.rounds(self.rounds or None) as start:
            peers = self.clients.sample(g, n=self.asked, min=self.at_least, after=start)
            params = self.model.params(g, after=start)
            r = g.request("client", peers, params, deadline_ns=DEADLINE_NS)
            r.reply(self.learned(g, r.value))
            weights, n = r.answer
            self.top.contribute(g, weights, weight=n, peer=r.answer.sender, sent=params)
            new, total = self.top.aggregate(g, after=r.closed)
            self.scored(g, start.round, new, total, r.missing)


def program(
    flat: bool = os.environ.get("FLAT", "0") != "0", seed: int = 0, **options: int
) -> tuple[Learning, Compiler]:
    """What `bb-host compile` takes. `options` are Learning's.

    Where the digits lie is the device's business: `--set shard.path=FILE`, `--set test.path=FILE`.
    """
    net = trainable(mlp([PIXELS, HIDDEN, DIGITS], seed=seed), learning_rate=LEARNING_RATE)
    compiler = (
        Compiler()
        .bind_model("model", GraphModel, net)
        .bind_aggregator("top", FedAvg)
        .bind_peer_selector("clients", PresenceSelector)
        .bind_data_source("shard", ArrayDataSource, {"batch_size": BATCH, "one_hot": DIGITS})
        .bind_data_source("test", ArrayDataSource, {"batch_size": 0, "one_hot": DIGITS})
    )
    if flat:
        return Flat(**{"asked": CLIENTS, **options}), compiler
    compiler = compiler.bind_aggregator("site", FedAvg).bind_peer_selector("gateways", PresenceSelector)
    return Tiers(**options), compiler
