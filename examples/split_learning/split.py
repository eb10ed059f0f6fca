"""Split learning over handwritten digits: clients hold the first layers and the digits, the server the rest.

No digit leaves its client. What travels is what the clients' layers make of a batch, its labels, and back the
gradient of the loss with respect to that: with it the clients' layers learn too. The two halves are models of
their own, of any number of layers each.

    bb-host compile split.py --target edge -o build/

There are two forms of the program. In `ServerAsks` the server asks its clients for a batch each, in rounds.
In `ClientAsks` every client goes through its digits at its own pace, and the server answers.
"""

from __future__ import annotations

import os

from bb_edge.components import ArrayDataSource, FedAvg, GraphModel, PresenceSelector
from bb_host import AggregatorSlot, Compiler, DataSourceSlot, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.dsl import Graph, Output
from bb_host.learn import TrainableModel, mlp, trainable

ROUNDS = 150
CLIENTS = 4
BATCH = 32
LEARNING_RATE = 0.1
DEADLINE_NS = 10 * S
"""A round goes on without the clients that have not answered by then."""

PIXELS, CUT, DIGITS = 64, 24, 10
FIRST = [PIXELS, 48, CUT]
"""The clients' half: two layers. `CUT` numbers per digit travel."""

REST = [CUT, 32, DIGITS]
"""The server's half: two layers more."""

FLOAT = 1
"""How ONNX numbers the element type float32."""


def scores(g: Graph, logits: Output, one_hot: Output) -> Output:
    """Mean cross-entropy and share of right guesses, F32 [2]."""
    log_p = g.onnx.log_softmax(logits, axis=1)
    loss = -g.onnx.reduce_mean(g.onnx.reduce_sum(log_p * one_hot, [1], keepdims=False), keepdims=True)
    guess = g.onnx.arg_max(logits, axis=1, keepdims=0)
    truth = g.onnx.arg_max(one_hot, axis=1, keepdims=0)
    hit = g.onnx.cast(g.onnx.equal(guess, truth), to=FLOAT)
    return g.onnx.concat([loss, g.onnx.reduce_mean(hit, keepdims=True)], axis=0)


class Halves(Module):
    """What both forms have: the slots, and what each side does with a batch."""

    first, rest = ModelSlot("first", at="Client"), ModelSlot("rest", at="Server")
    shard, exam = DataSourceSlot("shard", at="Client"), DataSourceSlot("exam", at="Client")

    def __init__(self, rounds: int = ROUNDS, clients: int = CLIENTS) -> None:
        super().__init__()
        self.rounds = rounds
        self.asked = clients

    def learn_rest(self, g: Graph, cut: Output, labels: Output) -> Output:
        """One step of the server's layers; yields the gradient for whoever has sent `cut`."""
        logits = self.rest.forward(g, cut)
        d_logits = (g.onnx.softmax(logits, axis=1) - labels) / BATCH
        d_cut = self.rest.backward(g, d_logits, input_grad=True)
        done = self.rest.step(g, after=d_cut)
        return g.gate(d_cut, done)


class ServerAsks(Halves):
    """Each round ends in an app event `round`: [round, loss, accuracy, digits, missing] over the exams."""

    name, home = "SplitDigits", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    mean = AggregatorSlot("mean", at="Server")

    def body(self, g: Graph) -> None:
        with g.rounds(self.rounds) as start:
            peers = self.clients.sample(g, n=self.asked, min=self.asked, after=start)
            batch = g.request("batch", peers, start.round, deadline_ns=DEADLINE_NS)

            x, y = self.shard.next_batch(g, after=batch.value)  # from here on: the client
            batch.reply([self.first.forward(g, x, key=batch.value), y])

            cut, y = batch.answer  # the server, once per answer
            d_cut = self.learn_rest(g, cut, y)
            back = g.request("gradient", batch.answer.sender, [d_cut, start.round], deadline_ns=DEADLINE_NS)

            d_cut, key = back.value  # the client again: what it kept for this round is still there
            done = self.first.step(g, after=self.first.backward(g, d_cut, key=key))
            back.reply(self.shard.num_samples(g, after=done))

            exam = g.request("exam", peers, start.round, deadline_ns=DEADLINE_NS, after=batch.closed)
            x, y = self.exam.next_batch(g, after=exam.value)  # the client: digits that nobody learns from
            exam.reply([self.first.forward(g, x), y, self.exam.num_samples(g)])

            cut, y, n = exam.answer  # the server
            result = scores(g, self.rest.forward(g, cut), y)
            self.mean.contribute(g, result, weight=n, peer=exam.answer.sender)
            both, digits = self.mean.aggregate(g, after=exam.closed)
            g.app_emit("round", g.bundle([start.round, both, digits, exam.missing]))


class ClientAsks(Halves):
    """Each client's round ends in an app event `round` of its own: [round, exam's loss and accuracy]."""

    name, home = "SplitDigits", "Client"
    server = PeerSelectorSlot("server", peer_class="Server")

    def body(self, g: Graph) -> None:
        with g.rounds(self.rounds) as start:
            server = self.server.sample(g, n=1, min=1, after=start)
            x, y = self.shard.next_batch(g, after=start)
            cut = self.first.forward(g, x, key=start.round)
            batch = g.request("batch", server, [cut, y], deadline_ns=DEADLINE_NS)

            cut, y = batch.value  # from here on: the server
            d_cut = self.learn_rest(g, cut, y)
            batch.reply(d_cut)

            d_cut = (
                batch.answer
            )  # the client again: an execution of its own, so the key finds the activations
            self.first.step(g, after=self.first.backward(g, d_cut, key=start.round))

            x, y = self.exam.next_batch(g, after=batch.closed)
            exam = g.request("exam", server, [self.first.forward(g, x), y], deadline_ns=DEADLINE_NS)
            cut, y = exam.value  # the server
            exam.reply(scores(g, self.rest.forward(g, cut), y))
            g.app_emit("round", g.bundle([start.round, exam.answer]))  # the client


def halves(seed: int = 0) -> tuple[TrainableModel, TrainableModel]:
    """The clients' and the server's half. A network of yours: cut its file with onnx.utils.extract_model."""
    return tuple(
        trainable(mlp(sizes, seed=seed + n), learning_rate=LEARNING_RATE)
        for n, sizes in enumerate((FIRST, REST))
    )


def program(
    asked_by: str = os.environ.get("ASKED_BY", "server"), seed: int = 0, **options: int
) -> tuple[Halves, Compiler]:
    """What `bb-host compile` takes; `asked_by` is server or client, `options` are those of `Halves`.

    Where the digits lie is the device's business: `--set shard.path=FILE --set exam.path=FILE`.
    """
    first, rest = halves(seed)
    compiler = (
        Compiler()
        .bind_model("first", GraphModel, first)
        .bind_model("rest", GraphModel, rest)
        .bind_data_source("shard", ArrayDataSource, {"batch_size": BATCH, "one_hot": DIGITS})
        .bind_data_source("exam", ArrayDataSource, {"batch_size": 0, "one_hot": DIGITS})
    )
    if asked_by == "client":
        return ClientAsks(**options), compiler.bind_peer_selector("server", PresenceSelector)
    server = compiler.bind_peer_selector("clients", PresenceSelector).bind_aggregator("mean", FedAvg)
    return ServerAsks(**options), server
