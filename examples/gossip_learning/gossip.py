"""Gossip learning over handwritten digits: peers average models with neighbours, and nobody is a server.

Every peer learns from digits of its own, few kinds of them, asks two neighbours for their parameters, and
goes on with the mean of all three. Which neighbours it has says `bb.Cyclon`: a small view of the network that
peers exchange among themselves, so that no peer has to know all others.

    bb-host compile gossip.py --target edge -o build/
"""

from __future__ import annotations

from bb_edge.components import ArrayDataSource, Cyclon, FedAvg, GraphModel
from bb_host import MS, AggregatorSlot, Compiler, DataSourceSlot, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.dsl import Graph, Output
from bb_host.learn import mlp, trainable

ROUNDS = 30
LOCAL_STEPS = 8
"""Of 32 digits each. The fewer, the less do peers drift apart between two exchanges."""

NEIGHBOURS = 2
BATCH = 32
LEARNING_RATE = 0.1
DEADLINE_NS = 5 * S
"""A neighbour that has not answered by then is left out of the mean."""

PIXELS, HIDDEN, DIGITS = 64, 32, 10
FLOAT = 1
"""How ONNX numbers the element type float32."""


def accuracy(g: Graph, logits: Output, one_hot: Output) -> Output:
    """The share of rows whose largest logit stands where the one is: 0-D F32."""
    guess = g.onnx.arg_max(logits, axis=1, keepdims=0)
    truth = g.onnx.arg_max(one_hot, axis=1, keepdims=0)
    hit = g.onnx.cast(g.onnx.equal(guess, truth), to=FLOAT)
    return g.onnx.reduce_mean(hit, keepdims=False)


class GossipDigits(Module):
    """Each round of a peer ends in an app event `round`: [round, accuracy of its exam, models averaged]."""

    name, home = "GossipDigits", "Peer"
    neighbours = PeerSelectorSlot("neighbours")  # of the peers' own class
    model, mean = ModelSlot("model"), AggregatorSlot("mean")
    shard, exam = DataSourceSlot("shard"), DataSourceSlot("exam")

    def __init__(self, rounds: int = ROUNDS, local_steps: int = LOCAL_STEPS, pause_ms: int = 0) -> None:
        super().__init__()
        self.rounds, self.local_steps, self.pause_ms = rounds, local_steps, pause_ms

    def body(self, g: Graph) -> None:
        with g.rounds(self.rounds, pause_ns=self.pause_ms * MS) as start:
            peers = self.neighbours.sample(g, n=NEIGHBOURS, min=1, after=start)
            with g.loop(self.local_steps, after=peers) as steps:
                x, y = self.shard.next_batch(g)
                self.model.step(g, after=self.model.train(g, x, y))
            own = self.model.params(g, after=steps)
            ask = g.request("model", g.gate(peers, own), start.round, deadline_ns=DEADLINE_NS)

            ask.reply(self.model.params(g, after=ask.value))  # the neighbour: what it has right now

            theirs = ask.answer  # the peer that has asked, once per answer
            self.mean.contribute(g, theirs, peer=ask.answer.sender, sent=own)
            self.mean.contribute(g, own, peer=g.peer_list(g.own_peer(after=own)), sent=own)
            new, models = self.mean.aggregate(g, after=ask.closed)
            done = self.model.load_parameters(g, new)
            x, y = self.exam.next_batch(g, after=done)
            score = accuracy(g, self.model.forward(g, x), y)
            g.app_emit("round", g.bundle([start.round, score, models]))


def program(seed: int = 0, **options: int) -> tuple[GossipDigits, Compiler]:
    """What `bb-host compile` takes; `options` are those of GossipDigits.

    Where the digits lie is the device's business: `--set shard.path=FILE --set exam.path=FILE`.
    """
    net = trainable(mlp([PIXELS, HIDDEN, DIGITS], seed=seed), learning_rate=LEARNING_RATE)
    compiler = (
        Compiler()
        .bind_model("model", GraphModel, net)
        .bind_aggregator("mean", FedAvg)
        .bind_peer_selector("neighbours", Cyclon, {"view_size": 3, "shuffle_size": 2, "period_ns": 200 * MS})
        .bind_data_source("shard", ArrayDataSource, {"batch_size": BATCH, "one_hot": DIGITS})
        .bind_data_source("exam", ArrayDataSource, {"batch_size": 0, "one_hot": DIGITS})
    )
    return GossipDigits(**options), compiler
