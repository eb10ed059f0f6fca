"""Personal layers over handwritten digits: clients share what they see, and name it each in their own way.

Every client writes another digit under the same picture: its labels are permuted. One model for all cannot be
right at more than one of them. With `personal=["*2"]` the last layer stays on its client, trained and never
sent; the layer before it is learned by all of them together.

    bb-host compile personal.py --target edge -o build/

The program is the same for both: what is personal is said where the model is bound.
"""

from __future__ import annotations

import os

from bb_edge.components import ArrayDataSource, FedAvg, GraphModel, PresenceSelector
from bb_host import AggregatorSlot, Compiler, DataSourceSlot, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.dsl import Graph, Output
from bb_host.learn import mlp, trainable

ROUNDS = 20
CLIENTS = 4
LOCAL_STEPS = 22
"""Two passes over a client's digits, some 360 less the exam."""

BATCH = 32
LEARNING_RATE = 0.1
DEADLINE_NS = 30 * S
PIXELS, HIDDEN, DIGITS = 64, 32, 10
PERSONAL = ["*2"]
"""`w2` and `b2`, the last layer of `mlp([64, 32, 10])`."""

FLOAT = 1
"""How ONNX numbers the element type float32."""


def accuracy(g: Graph, logits: Output, one_hot: Output) -> Output:
    """The share of rows whose largest logit stands where the one is, F32 [1]."""
    guess = g.onnx.arg_max(logits, axis=1, keepdims=0)
    truth = g.onnx.arg_max(one_hot, axis=1, keepdims=0)
    hit = g.onnx.cast(g.onnx.equal(guess, truth), to=FLOAT)
    return g.onnx.reduce_mean(hit, keepdims=True)


class PersonalDigits(Module):
    """Each round ends in an app event `round`: [round, mean accuracy of the clients' exams, missing].

    A client takes its exam with what the federation gives it, before its local steps: with the shared layers
    of the round before, and its own last layer where that is personal.
    """

    name, home = "PersonalDigits", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    model = ModelSlot("model")
    agg, mean = AggregatorSlot("agg", at="Server"), AggregatorSlot("mean", at="Server")
    shard, exam = DataSourceSlot("shard", at="Client"), DataSourceSlot("exam", at="Client")

    def __init__(self, rounds: int = ROUNDS, clients: int = CLIENTS, local_steps: int = LOCAL_STEPS) -> None:
        super().__init__()
        self.rounds, self.asked, self.local_steps = rounds, clients, local_steps

    def body(self, g: Graph) -> None:
        with g.rounds(self.rounds) as start:
            peers = self.clients.sample(g, n=self.asked, min=self.asked, after=start)
            params = self.model.params(g, after=start)  # of what is shared
            r = g.request("shared", peers, params, deadline_ns=DEADLINE_NS)

            loaded = self.model.load_parameters(g, r.value)  # from here on: the client
            x, y = self.exam.next_batch(g, after=loaded)
            score = accuracy(g, self.model.forward(g, x), y)
            with g.loop(self.local_steps, after=score) as steps:
                x, y = self.shard.next_batch(g)
                self.model.step(g, after=self.model.train(g, x, y))
            r.reply([self.model.params(g, after=steps), self.shard.num_samples(g), score])

            weights, n, score = r.answer  # the server again, once per answer
            self.agg.contribute(g, weights, weight=n, peer=r.answer.sender, sent=params)
            self.mean.contribute(g, score, peer=r.answer.sender)
            new, _ = self.agg.aggregate(g, after=r.closed)
            scores, _ = self.mean.aggregate(g, after=r.closed)
            done = self.model.load_parameters(g, new)
            g.app_emit("round", g.bundle([start.round, scores, r.missing]), after=done)


def program(
    personal: bool = os.environ.get("PERSONAL", "1") != "0", seed: int = 0, **options: int
) -> tuple[PersonalDigits, Compiler]:
    """What `bb-host compile` takes; without `personal` all layers are shared. `options` are PersonalDigits'.

    Where the digits lie is the device's business: `--set shard.path=FILE --set exam.path=FILE`.
    """
    net = trainable(
        mlp([PIXELS, HIDDEN, DIGITS], seed=seed),
        learning_rate=LEARNING_RATE,
        personal=PERSONAL if personal else [],
    )
    compiler = (
        Compiler()
        .bind_model("model", GraphModel, net)
        .bind_aggregator("agg", FedAvg)
        .bind_aggregator("mean", FedAvg)
        .bind_peer_selector("clients", PresenceSelector)
        .bind_data_source("shard", ArrayDataSource, {"batch_size": BATCH, "one_hot": DIGITS})
        .bind_data_source("exam", ArrayDataSource, {"batch_size": 0, "one_hot": DIGITS})
    )
    return PersonalDigits(**options), compiler
