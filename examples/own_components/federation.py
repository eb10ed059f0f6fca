"""Federated regression with components of one's own: data, codec, aggregator, model, backend, protocol, pass.

    bb-host compile federation.py -o build/

The body reads top to bottom across devices, as in every program; what is special is what its slots are bound
to, at the end of this file.
"""

from __future__ import annotations

from mycomponents import CsvSource, FedProx, Fixed16, HealthBook, PlainBackend, TrimmedMean
from mypasses import KeepRawDataHome

from bb_host import (
    AggregatorSlot,
    CodecSlot,
    Compiler,
    DataSourceSlot,
    Graph,
    ModelSlot,
    Module,
    PeerSelectorSlot,
    ProtocolSlot,
    S,
)
from bb_host.learn import mlp, trainable

ROUNDS, CLIENTS, BATCH, LOCAL_STEPS = 5, 2, 8, 12


class OwnComponents(Module):
    """The server asks, the clients learn from their CSV files, and answer with what they learned and how they
    are. Events: `answer` = [round, loss, samples], `health` = [noted, hottest], `round` = [round, samples].
    """

    name, home = "OwnComponents", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    model, codec = ModelSlot("model"), CodecSlot("codec")
    agg, shard = AggregatorSlot("agg", at="Server"), DataSourceSlot("shard", at="Client")
    health = ProtocolSlot("health", opset=HealthBook.atomic_opset())

    def body(self, g: Graph) -> None:
        with g.rounds(ROUNDS, pause_ns=1 * S) as start:
            peers = self.clients.sample(g, n=CLIENTS, min=CLIENTS, after=start)
            params = self.model.params(g, after=start)
            r = g.request("train", peers, self.codec.compress(g, params), deadline_ns=20 * S)

            received = self.codec.decompress(g, r.value)  # from here on: the client
            loaded = self.model.load_parameters(g, received)
            with g.loop(LOCAL_STEPS, after=loaded) as done:
                x, y = self.shard.next_batch(g)
                error = self.model.forward(g, x) - y
                self.model.step(g, after=self.model.backward(g, error * (2 / BATCH)))
            x, y = self.shard.next_batch(g, after=done)
            loss = self.model.evaluate(g, x, y)
            learned = self.codec.compress(g, self.model.params(g, after=done))
            r.reply([learned, self.shard.num_samples(g), loss, self.health.measure(g, received)])

            code, n, loss, health = r.answer  # back on the server, once per answer
            given = self.codec.decompress(g, code)
            self.agg.contribute(g, given, weight=n, peer=r.answer.sender, sent=params)
            g.app_emit("answer", g.bundle([start.round, loss, n]))
            g.app_emit("health", g.bundle(list(self.health.note(g, health))))
            new, total = self.agg.aggregate(g, after=r.closed)  # once, when the round is closed
            ok = self.model.load_parameters(g, new)
            g.app_emit("round", g.bundle([start.round, total]), after=ok)


def program() -> tuple[Module, Compiler]:
    """What `bb-host compile` takes. A class that this host can import is checked where it is bound."""
    model = trainable(mlp([3, 8, 1], seed=0), loss="mse", learning_rate=0.05, config={"mu": 0.05})
    compiler = (
        Compiler()
        .bind_backend("backend", PlainBackend)
        .bind_model("model", FedProx, model)
        .bind_codec("codec", Fixed16)
        .bind_aggregator("agg", TrimmedMean, {"trim": 0.25})
        .bind_data_source("shard", CsvSource, {"batch_size": BATCH})
        .bind_protocol("health", HealthBook)
        .bind_peer_selector("clients", "bb.PresenceSelector")
        .with_stage(KeepRawDataHome(), after="type_solver")
    )
    return OwnComponents(), compiler
