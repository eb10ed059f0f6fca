"""Federated averaging over a few dozen flowers, in variants: for what outlives a program."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bb_edge.components import ArrayDataSource, FedAvg, Float16Codec, GraphModel, PresenceSelector
from bb_edge.extend import Codec
from bb_host import (
    MS,
    AggregatorSlot,
    CodecSlot,
    Compiler,
    DataSourceSlot,
    ModelSlot,
    Module,
    PeerSelectorSlot,
)
from bb_host.learn import mlp, trainable

BATCH, FEATURES, CLASSES = 8, 4, 3


class Averaging(Module):
    """Each round ends in the event `round`: [round, loss, samples that counted]."""

    name, home = "Averaging", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    model, agg = ModelSlot("model"), AggregatorSlot("agg", at="Server")
    shard, test = DataSourceSlot("shard", at="Client"), DataSourceSlot("test", at="Server")
    codec = CodecSlot("codec")

    def __init__(self, rounds: int, outputs: int, durable: bool) -> None:
        super().__init__()
        self.rounds, self.outputs, self.durable = rounds, outputs, durable

    def body(self, g) -> None:
        with g.rounds(self.rounds or None, pause_ns=20 * MS) as start:
            peers = self.clients.sample(g, n=2, min=2, after=start)
            params = self.model.params(g, after=start)
            r = g.request("global", peers, params, deadline_ns=600_000 * MS, durable=self.durable)
            done = self.model.load_parameters(g, r.value)
            for _ in range(2):
                x, y = self.shard.next_batch(g, after=done)
                p = g.onnx.softmax(self.model.forward(g, x), axis=1)
                done = self.model.step(g, after=self.model.backward(g, (p - y) / BATCH))
            trained = self.model.params(g, after=done)
            r.reply([self.codec.compress(g, trained), self.shard.num_samples(g)])
            code, n = r.answer
            self.agg.contribute(g, self.codec.decompress(g, code), weight=n, peer=r.answer.sender)
            new, total = self.agg.aggregate(g, after=r.closed)
            ok = self.model.load_parameters(g, new)
            x, y = self.test.next_batch(g, after=ok)
            loss = self.model.evaluate(g, x, y)
            g.app_emit("round", g.bundle([start.round, loss, total]))
            for number in range(self.outputs):
                g.app_emit(f"more{number}", total)


def compiled(
    *,
    rounds: int = 0,
    learning_rate: float = 0.2,
    momentum: float = 0.0,
    hidden: int = 5,
    outputs: int = 0,
    codec: type[Codec] = Float16Codec,
    model: type[GraphModel] = GraphModel,
    durable: bool = False,
) -> dict[str, bytes]:
    """The artifacts of one variant, by target."""
    from bb_host.build import build_edge

    trained = trainable(
        mlp([FEATURES, hidden, CLASSES], seed=1),
        loss="softmax_cross_entropy",
        learning_rate=learning_rate,
        momentum=momentum,
    )
    compiler = (
        Compiler()
        .bind_model("model", model, trained)
        .bind_aggregator("agg", FedAvg)
        .bind_codec("codec", codec)
        .bind_peer_selector("clients", PresenceSelector)
        .bind_data_source("shard", ArrayDataSource, {"batch_size": BATCH, "one_hot": CLASSES})
        .bind_data_source("test", ArrayDataSource, {"batch_size": 0, "one_hot": CLASSES})
    )
    made = build_edge(Averaging(rounds, outputs, durable), compiler)
    return {artifact.target: artifact.data for artifact in made.artifacts}


def write_flowers(path: Path, seed: int, samples: int = 48) -> Path:
    """Writes samples of three kinds that a small model learns to tell apart."""
    random = np.random.default_rng(seed)
    y = random.integers(0, CLASSES, samples)
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES)) * 2
    x = (centres[y] + random.normal(size=(samples, FEATURES)) * 0.4).astype(np.float32)
    np.savez(path, x=x, y=y)
    return path
