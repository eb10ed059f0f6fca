"""Federated averaging over handwritten digits: one program for the server and all of its clients.

The body reads top to bottom across devices. What follows `g.request` runs on the clients, until `r.reply`;
what uses `r.answer` runs on the server again, once per client that has answered, and what comes after
`r.closed` once per round. Where each op runs follows from the slots that it uses.

    bb-host compile federation.py --target edge -o build/

Nothing here says which model is trained: `program("softmax")` binds another one to the same module.
"""

from __future__ import annotations

import os
from typing import Any

from bb_edge.components import ArrayDataSource, FedAvg, GraphModel, PresenceSelector
from bb_host import MS, AggregatorSlot, Compiler, DataSourceSlot, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.dsl import Graph, Output
from bb_host.learn import TrainableModel, mlp, trainable

ROUNDS = 20
CLIENTS = 4
LOCAL_STEPS = 44
"""Four passes over a shard of 359 digits."""

BATCH = 32
LEARNING_RATE = 0.1
DEADLINE_NS = 30 * S
"""A round closes without the clients that have not answered by then."""

CLIP_NORM = 3.0
"""What one client may change in a round: an honest update measures 2.5 in the first, and ever less."""

MAX_SAMPLES = 1500
"""What one client may say that it has, where nobody knows better: 1,437 digits are there to be dealt.

Who deals them does: one client with half of the weight decides what is learned, whatever `CLIP_NORM` is.
"""

PIXELS, DIGITS = 64, 10
LAYERS = {"mlp": [PIXELS, 32, DIGITS], "softmax": [PIXELS, DIGITS]}
FLOAT = 1
"""How ONNX numbers the element type float32."""


def accuracy(g: Graph, logits: Output, one_hot: Output) -> Output:
    """The share of rows whose largest logit stands where the one is: 0-D F32."""
    guess = g.onnx.arg_max(logits, axis=1, keepdims=0)
    truth = g.onnx.arg_max(one_hot, axis=1, keepdims=0)
    hit = g.onnx.cast(g.onnx.equal(guess, truth), to=FLOAT)
    return g.onnx.reduce_mean(hit, keepdims=False)


class FederatedDigits(Module):
    """The server asks, the clients train on what only they see, and the server averages what comes back.

    Each round ends in an app event `round`: [round, loss, accuracy, samples that counted, peers that did not
    answer]. A round that nobody answers leaves the model as it was, and says so.
    """

    name, home = "FederatedDigits", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    model, agg = ModelSlot("model"), AggregatorSlot("agg", at="Server")
    shard, test = DataSourceSlot("shard", at="Client"), DataSourceSlot("test", at="Server")

    def __init__(
        self,
        rounds: int = ROUNDS,
        clients: int = CLIENTS,
        local_steps: int = LOCAL_STEPS,
        pause_ms: int = 0,
        at_least: int = 0,
        durable: bool = False,
        deadline_ns: int = DEADLINE_NS,
    ) -> None:
        """0 `rounds` never end. A round begins with `at_least` clients up, `pause_ms` after the last, and
        waits `deadline_ns` at most.

        `durable`: what is asked and answered outlives the nodes' processes; they need a state folder.
        """
        super().__init__()
        self.rounds = rounds
        self.asked = clients
        self.local_steps = local_steps
        self.pause_ms = pause_ms
        self.at_least = at_least
        self.durable = durable
        self.deadline_ns = deadline_ns

    def body(self, g: Graph) -> None:
        with g.rounds(self.rounds or None, pause_ns=self.pause_ms * MS) as start:
            peers = self.clients.sample(g, n=self.asked, min=self.at_least, after=start)
            params = self.model.params(g, after=start)
            r = g.request("global", peers, params, deadline_ns=self.deadline_ns, durable=self.durable)

            loaded = self.model.load_parameters(g, r.value)  # from here on: the client
            with g.loop(self.local_steps, after=loaded) as steps:
                x, y = self.shard.next_batch(g)
                self.model.step(g, after=self.model.train(g, x, y))
            r.reply([self.model.params(g, after=steps), self.shard.num_samples(g)])

            weights, n = r.answer  # back on the server, once per answer
            self.agg.contribute(g, weights, weight=n, peer=r.answer.sender, sent=params)
            new, total = self.agg.aggregate(g, after=r.closed)  # once, when the round is closed
            ok = self.model.load_parameters(g, new)
            x, y = self.test.next_batch(g, after=ok)
            loss = self.model.evaluate(g, x, y)
            score = accuracy(g, self.model.forward(g, x), y)
            g.app_emit("round", g.bundle([start.round, loss, score, total, r.missing]))


def model(kind: str = "mlp", seed: int = 0) -> TrainableModel:
    """One of `LAYERS`, ready to be trained: cross-entropy over the softmax of its logits."""
    return trainable(mlp(LAYERS[kind], seed=seed), loss="softmax_cross_entropy", learning_rate=LEARNING_RATE)


def program(
    kind: str = os.environ.get("MODEL", "mlp"),
    seed: int = 0,
    max_samples: int = MAX_SAMPLES,
    **options: Any,
) -> tuple[FederatedDigits, Compiler]:
    """What `bb-host compile` takes: the module, and what its slots are bound to.

    Where the data lies is the device's business: `--set shard.path=FILE`. `max_samples` are those of the
    client that has most; `options` are FederatedDigits'.
    """
    compiler = (
        Compiler()
        .bind_model("model", GraphModel, model(kind, seed))
        .bind_aggregator("agg", FedAvg, {"clip_norm": CLIP_NORM, "max_weight": max_samples})
        .bind_peer_selector("clients", PresenceSelector)
        .bind_data_source("shard", ArrayDataSource, {"batch_size": BATCH, "one_hot": DIGITS})
        .bind_data_source("test", ArrayDataSource, {"batch_size": 0, "one_hot": DIGITS})
    )
    return FederatedDigits(**options), compiler
