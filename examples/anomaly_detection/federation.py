"""Pumps learn together what is normal, and each watches itself meanwhile.

    bb-host compile federation.py --target edge -o build/

An autoencoder is trained on what the pumps recorded while they were well: it learns to give back six
readings through three numbers, and what it has never seen it gives back badly. No reading leaves its pump.
Beside the rounds each pump scores the newest rows of its logger's file with the model that it has, and says
which of them are far from normal.
"""

from __future__ import annotations

from anomaly_detection.sensors import COLUMNS, DIVISOR, OFFSET
from bb_edge.components import (
    CsvDataSource,
    CsvStreamDataSource,
    FedAvg,
    GraphModel,
    PresenceSelector,
)
from bb_host import MS, AggregatorSlot, Compiler, DataSourceSlot, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.dsl import Graph, Output
from bb_host.learn import mlp, trainable

ROUNDS, PUMPS, LOCAL_STEPS, BATCH = 15, 3, 30, 32
WATCHED = 48
"""Rows that are scored at once: more than a logger writes between two looks."""
LOOK_NS = 100 * MS
NORMAL = 512
"""Rows without faults that say how large an error is usual."""
FAR = 6.0
"""An error is far from normal at so many standard deviations above the mean."""
LEARNING_RATE = 0.05


class AnomalyDetection(Module):
    """Events: `round` = [round, loss, rows that counted] at the server; at each pump, ten times a second,
    `scored` = [the pump, time of the newest row, the limit of the error, times and errors of rows beyond it].
    """

    name, home = "AnomalyDetection", "Server"
    pumps = PeerSelectorSlot("pumps", peer_class="Pump")
    model, agg = ModelSlot("model"), AggregatorSlot("agg", at="Server")
    history, normal = DataSourceSlot("history", at="Pump"), DataSourceSlot("normal", at="Pump")
    live = DataSourceSlot("live", at="Pump")

    def __init__(self, rounds: int = ROUNDS, pumps: int = PUMPS, local_steps: int = LOCAL_STEPS) -> None:
        super().__init__()
        self.rounds, self.asked, self.local_steps = rounds, pumps, local_steps

    def body(self, g: Graph) -> None:
        with g.rounds(self.rounds) as start:
            peers = self.pumps.sample(g, n=self.asked, min=self.asked, after=start)
            params = self.model.params(g, after=start)
            r = g.request("normal", peers, params, deadline_ns=30 * S)

            loaded = self.model.load_parameters(g, r.value)  # from here on: the pump
            with g.loop(self.local_steps, after=loaded) as steps:
                x, _times = self.history.next_batch(g)
                loss = self.model.train(g, x, x)
                self.model.step(g, after=loss)
                losses = steps.collect(loss)
            mean = g.onnx.reduce_mean(losses, keepdims=False)
            r.reply([self.model.params(g, after=steps), self.history.num_samples(g), mean])

            weights, n, mean = r.answer  # back on the server, once per answer
            self.agg.contribute(g, weights, weight=n, peer=r.answer.sender, sent=params)
            new, total = self.agg.aggregate(g, after=r.closed)
            ok = self.model.load_parameters(g, new)
            g.app_emit("answer", g.bundle([start.round, mean]))
            g.app_emit("round", g.bundle([start.round, total, r.missing]), after=ok)

        with g.at("Pump"):  # beside the rounds
            look = g.threshold(1, g.interval(LOOK_NS))
            x, times = self.live.next_batch(g, after=look)
            usual, _times = self.normal.next_batch(g, after=look)
            limit = self.limit(g, self.errors(g, usual))
            errors = self.errors(g, x)
            beyond = g.onnx.greater(errors, limit)
            far_times = g.onnx.compress(times, beyond, axis=0)
            far_errors = g.onnx.compress(errors, beyond, axis=0)
            newest = g.onnx.reduce_max(times, keepdims=False)
            g.app_emit("scored", g.bundle([g.own_peer(after=look), newest, limit, far_times, far_errors]))

    def errors(self, g: Graph, x: Output) -> Output:
        """How badly each row comes back: the mean squared difference, F32 [rows]."""
        apart = self.model.forward(g, x) - x
        return g.onnx.reduce_mean(apart * apart, [1], keepdims=False)

    def limit(self, g: Graph, errors: Output) -> Output:
        """The error at which a row is far from normal: mean and `FAR` standard deviations, 0-D F32."""
        mean = g.onnx.reduce_mean(errors, keepdims=False)
        apart = errors - mean
        return mean + FAR * g.onnx.sqrt(g.onnx.reduce_mean(apart * apart, keepdims=False))


def program(seed: int = 0, **options: int) -> tuple[AnomalyDetection, Compiler]:
    """What `bb-host compile` takes. Where the files lie is the device's business: `--set live.path=FILE`."""
    wide = len(COLUMNS)
    model = trainable(mlp([wide, 16, 3, 16, wide], seed=seed), loss="mse", learning_rate=LEARNING_RATE)
    scaled = {
        "columns": list(COLUMNS),
        "label": "time",  # whole numbers of 64 bits: a float32 would tell times apart by two minutes
        "scale": "fixed",
        "scale_offset": list(OFFSET),
        "scale_divisor": list(DIVISOR),
    }
    compiler = (
        Compiler()
        .bind_model("model", GraphModel, model)
        .bind_aggregator("agg", FedAvg, {"clip_norm": 10.0})
        .bind_peer_selector("pumps", PresenceSelector)
        .bind_data_source("history", CsvDataSource, {**scaled, "batch_size": BATCH})
        .bind_data_source("normal", CsvDataSource, {**scaled, "batch_size": NORMAL})
        .bind_data_source("live", CsvStreamDataSource, {**scaled, "order": "latest", "batch_size": WATCHED})
    )
    return AnomalyDetection(**options), compiler
