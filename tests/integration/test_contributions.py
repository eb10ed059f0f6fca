"""A server of rounds, and peers whose answers a test writes by hand: what counts, and whose does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from arrays import f32
from kinds_of_steps import of
from simulations import failures

pytest.importorskip("onnx", reason="compiling needs the host extra")

from bb_edge.components import ConstantView, FedAvg, PresenceSelector
from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.installer import install
from bb_edge.ir import keys
from bb_edge.ir.address import Address, site_suffix
from bb_edge.ir.ids import PeerId
from bb_edge.node import Node
from bb_edge.roles import Composite, ContributionRefused
from bb_edge.transport.in_process import Simulation
from bb_edge.wire import envelope
from bb_edge.wire.codecs import encode_value, wire_type_hash
from bb_edge.wire.envelope import REQUEST, RESPONSE, Envelope, Fill
from bb_host import AggregatorSlot, Compiler, Module, PeerSelectorSlot, S
from bb_host.dsl import Graph

HONEST = [PeerId.from_name(f"honest-{n}") for n in range(3)]
EVIL = PeerId.from_name("evil")
CAPS = NodeConfig.host().caps


class Averaging(Module):
    """A round asks everybody with a vector, and averages what they make of it."""

    name, home = "Averaging", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    agg = AggregatorSlot("agg", at="Server")

    def __init__(self, known: bool = True, sent: bool = False) -> None:
        """Whether the compiler knows how long the vector is, and whether contributions are held to `sent`."""
        super().__init__()
        self.known, self.sent = known, sent

    def body(self, g: Graph) -> None:
        params = g.input("params", "F32", (4,) if self.known else None)
        peers = self.clients.sample(g, n=10, after=params)
        r = g.request("ask", peers, params, deadline_ns=5 * S)
        r.reply([r.value, g.onnx.reshape(g.onnx.reduce_sum(r.value), g.constant(np.zeros(0, np.int64)))])
        value, weight = r.answer
        self.agg.contribute(
            g, value, weight=weight, peer=r.answer.sender, **({"sent": params} if self.sent else {})
        )
        mean, total = self.agg.aggregate(g, after=r.closed)
        g.app_emit("round", g.bundle([mean, total, r.missing]))


def compiled(module: Module, **config: object) -> Any:
    compiler = Compiler().bind_aggregator("agg", FedAvg, config)
    return compiler.bind_peer_selector("clients", ConstantView).compile(module)


def metadata(model: Any, op_type: str) -> list[dict[str, str]]:
    """Of all ops whose type begins so."""
    return [
        {p.key: p.value for p in node.metadata_props}
        for function in model.functions
        for node in function.node
        if node.op_type.startswith(op_type)
    ]


class Server:
    """The server's node, and its peers' side of each request."""

    def __init__(self, module: Module, peers: Sequence[PeerId], data: Any = None, **config: object) -> None:
        data = compiled(module, **config) if data is None else data
        receiving = metadata(data, "RecvResp")
        (sites,) = [meta[keys.SITE_IDS_KEY] for meta in receiving if keys.SITE_IDS_KEY in meta]
        self.sites = [int(site, 16) for site in sites.split(",")]
        self._install = partial(
            install,
            PeerId.from_name("server"),
            (),
            data.SerializeToString(),
            ["Server"],
            components={"clients": {"peers": [str(peer) for peer in peers]}},
            seed=1,
        )
        self.node = self._install()
        self.now, self.seq = 0, 0
        self.seen: list[Any] = []
        self.asked: list[tuple[PeerId, int]] = []
        for peer in peers:
            address = Address.empty().with_peer(peer).to_bytes()
            self.node.peer_presence(peer, True, (address,), {}, epoch=1, classes=("Client",))
        self.poll()

    def poll(self) -> None:
        self.now += 1_000_000
        for step in self.node.poll(self.now):
            self.seen.append(step)
            if isinstance(step, steps.SendEnvelope):
                message = envelope.decode(step.payload, CAPS)
                if message.kind == envelope.REQUEST:
                    self.asked.append((step.peer, message.wire_req_id))

    def round(self, params: np.ndarray) -> dict[PeerId, int]:
        """Asks, and gives under which number each peer was asked."""
        self.asked = []
        self.node.invoke("Server", {"params": params})
        self.poll()
        return dict(self.asked)

    def answer(
        self, peer: PeerId, number: int, value: Any, weight: Any = 1.0, sites: Sequence[int] = ()
    ) -> None:
        self.seq += 1
        fills = []
        for site, each in zip(sites or self.sites, (value, np.asarray(weight, np.float32)), strict=False):
            type_hash, payload = encode_value(each)
            fills.append(Fill(site_suffix(site), payload, False, type_hash))
        message = Envelope(
            fills, RESPONSE, wire_req_id=number, epoch=1, seq=self.seq, src_peer=peer.to_bytes()
        )
        self.node.deliver_inbound(envelope.encode(message), peer)
        self.poll()

    def restart(self) -> None:
        """The process dies, and another one takes its snapshot."""
        self.node = self._install(snapshot=self.node.snapshot(self.now))
        self.poll()

    @property
    def rounds(self) -> list[tuple[list[float], float]]:
        """(mean, total weight) of every round that is over."""
        return [(e.value.values[0].tolist(), float(e.value.values[1])) for e in of(steps.AppEvent, self.seen)]

    @property
    def missing(self) -> list[tuple[PeerId, ...]]:
        """Whom each round lacks."""
        return [e.value.values[2] for e in of(steps.AppEvent, self.seen)]

    @property
    def refused(self) -> list[tuple[PeerId | None, str]]:
        """Whose contributions were refused, and what was said."""
        failures = of(steps.OpFailed, self.seen)
        assert all(isinstance(f.error, ContributionRefused) for f in failures), failures
        return [(f.peer, f.text) for f in failures]

    @property
    def unread(self) -> list[tuple[PeerId | None, str]]:
        return [(s.peer, s.kind) for s in of(steps.WireReceiveFailed, self.seen)]


PARAMS = f32(1, 2, 3, 4)

SHAPES: dict[str, np.ndarray] = {
    "one number": f32(7),
    "two dimensions": np.ones((4, 1), np.float32),
    "longer": np.ones(5, np.float32),
    "empty": f32(),
}


class Stacked(Averaging):
    """The same, over all answers at once."""

    name = "Stacked"

    def body(self, g: Graph) -> None:
        params = g.input("params", "F32", (4,))
        r = g.request("ask", self.clients.sample(g, n=10, after=params), params, deadline_ns=5 * S)
        r.reply(r.value)
        mean, total = self.agg.aggregate(g, r.responses)
        g.app_emit("round", g.bundle([mean, total, r.missing]))


@pytest.mark.parametrize("shape", SHAPES)
def test_an_answer_of_another_shape_is_in_no_stack(shape: str) -> None:
    server = Server(Stacked(), (EVIL, *HONEST))
    asked = server.round(PARAMS)
    server.answer(EVIL, asked[EVIL], SHAPES[shape])
    for number, peer in enumerate(HONEST):
        server.answer(peer, asked[peer], PARAMS + number)
    assert server.rounds == [([2, 3, 4, 5], 3)] and server.missing == [(EVIL,)]
    assert server.unread == [(EVIL, "ShapeMismatch")] and not server.refused


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("known", "sent"), [(True, False), (True, True), (False, True)])
def test_another_layout_is_refused_alone_though_it_comes_first(known: bool, sent: bool, shape: str) -> None:
    server = Server(Averaging(known, sent), (EVIL, *HONEST))
    asked = server.round(PARAMS)
    server.answer(EVIL, asked[EVIL], SHAPES[shape])
    for number, peer in enumerate(HONEST):
        server.answer(peer, asked[peer], PARAMS + number)
    assert server.rounds == [([2, 3, 4, 5], 3)] and server.missing == [(EVIL,)]
    if known and shape != "empty":
        assert server.unread == [(EVIL, "ShapeMismatch")] and not server.refused
    else:
        ((whose, text),) = server.refused
        assert whose == EVIL and str(EVIL) in text and "slot 'agg'" in text
        assert ("is empty" if shape == "empty" else "the value that was sent has [4]") in text
        assert shape == "empty" or "check the contribution, and the value that was sent for it" in text


ONE = np.ones((), np.float32)


class Bundled(Averaging):
    """The same with bundles both ways: the vector, and what is counted beside it in a bundle of its own."""

    name = "Bundled"

    def body(self, g: Graph) -> None:
        params = g.input("params", "F32", (4,))
        peers = self.clients.sample(g, n=10, after=params)
        r = g.request("ask", peers, g.bundle([params, g.bundle([params])]), deadline_ns=5 * S)
        asked, inner = g.unbundle(r.value)
        r.reply(g.bundle([asked, g.bundle([g.onnx.reduce_sum(asked, keepdims=0)]), inner]))
        value, counted, _ = g.unbundle(r.answer)
        (weight,) = g.unbundle(counted, ["F32"])
        self.agg.contribute(g, value, weight=weight, peer=r.answer.sender)
        mean, total = self.agg.aggregate(g, after=r.closed)
        g.app_emit("round", g.bundle([mean, total, r.missing]))


def packed(value: np.ndarray, weight: Any = ONE, inner: np.ndarray = PARAMS) -> Composite:
    def one(*parts: Any) -> Composite:
        return Composite(tuple((wire_type_hash(part), part) for part in parts))

    return one(value, one(weight), one(inner))


MISPACKED: dict[str, tuple[Any, str]] = {
    "longer": (packed(f32(1, 2, 3, 4, 5)), "[5] in part 0, [4] is expected"),
    "a rank": (packed(np.ones((4, 1), np.float32)), "[4,1] in part 0, [4] is expected"),
    "a weight of each": (packed(PARAMS, f32(1, 1)), "[2] in part 0, [] is expected, within part 1"),
    "what is handed on": (packed(PARAMS, inner=f32(1)), "[1] in part 0, [4] is expected, within part 2"),
    "a dtype": (packed(np.ones(4)), "type hash 0x102 in part 0, 0x101 is expected"),
    "a part": (Composite(packed(PARAMS).children[:2]), "2 parts, 3 are expected"),
}


@pytest.mark.parametrize("what", MISPACKED)
def test_a_bundle_with_another_shape_inside_is_no_answer(what: str) -> None:
    """It arrived as an answer, and failed the op that read it, for which nobody was named."""
    value, text = MISPACKED[what]
    server = Server(Bundled(), (EVIL, *HONEST))
    asked = server.round(PARAMS)
    server.answer(EVIL, asked[EVIL], value)
    for number, peer in enumerate(HONEST):
        server.answer(peer, asked[peer], packed(PARAMS + number))
    assert server.rounds == [([2, 3, 4, 5], 3)] and server.missing == [(EVIL,)]
    (failure,) = of(steps.WireReceiveFailed, server.seen)
    kind = "TypeMismatch" if "hash" in text else "ShapeMismatch"
    assert (failure.peer, failure.kind) == (EVIL, kind) and not server.refused
    assert failure.detail.endswith(f"{text}, of the bundle that is payload 0 of 'ask'")


def test_a_request_with_another_shape_inside_is_refused() -> None:
    data = compiled(Bundled())
    meta = next(m for m in metadata(data, "RecvReq") if keys.PARTS_KEY in m)
    assert meta[keys.PARTS_KEY] == "(101[4];302(101[4]))"
    client = install(PeerId.from_name("client"), (), data.SerializeToString(), ["Client"], seed=1)
    address = Address.empty().with_peer(EVIL).to_bytes()
    client.peer_presence(EVIL, True, (address,), {"features": ["failures"]}, epoch=1, classes=("Server",))
    told: dict[int, str] = {}
    for seq, length in ((1, 4), (2, 3)):
        vector = np.ones(length, np.float32)
        hashed, payload = encode_value(Composite(((0x101, PARAMS), (0x302, Composite(((0x101, vector),))))))
        fill = Fill(site_suffix(int(meta[keys.SITE_IDS_KEY], 16)), payload, False, hashed)
        message = Envelope([fill], REQUEST, wire_req_id=seq, epoch=1, seq=seq, src_peer=EVIL.to_bytes())
        client.deliver_inbound(envelope.encode(message), EVIL)
        for now in range(1, 5):
            for step in client.poll(seq * S + now):
                if isinstance(step, steps.SendEnvelope):
                    sent = envelope.decode(step.payload, CAPS)
                    if sent.kind == RESPONSE:
                        told[sent.wire_req_id] = sent.failure.detail if sent.failure else ""
    assert told[1] == ""
    assert "ShapeMismatch" in told[2] and "[3] in part 0, [4] is expected, within part 1" in told[2]


def test_an_artifact_that_does_not_say_what_bundles_hold_is_taken() -> None:
    """Those of older hosts: what does not fit fails where it is read."""
    data = compiled(Bundled())
    for function in data.functions:
        for node in function.node:
            for entry in [p for p in node.metadata_props if p.key == keys.PARTS_KEY]:
                node.metadata_props.remove(entry)
    server = Server(Bundled(), (EVIL, *HONEST), data)
    asked = server.round(PARAMS)
    server.answer(EVIL, asked[EVIL], packed(f32(1, 2, 3, 4, 5)))
    for number, peer in enumerate(HONEST):
        server.answer(peer, asked[peer], packed(PARAMS + number))
    assert server.rounds == [([2, 3, 4, 5], 3)]
    assert not server.unread and [peer for peer, _ in server.refused] == [EVIL]


BAD: dict[str, tuple[Callable[[], np.ndarray], float]] = {
    "nan": (lambda: f32(1, 2, np.nan, 4), 1.0),
    "inf": (lambda: f32(1, 2, np.inf, 4), 1.0),
    "a weight below 0": (lambda: PARAMS, -1.0),
    "no weight": (lambda: PARAMS, 0.0),
    "a weight that is not a number": (lambda: PARAMS, float("nan")),
    "a weight beyond all": (lambda: PARAMS, 2.0**62),
}


@pytest.mark.parametrize("what", BAD)
def test_what_no_aggregate_may_hold_is_refused_and_named(what: str) -> None:
    value, weight = BAD[what]
    server = Server(Averaging(), (EVIL, *HONEST))
    asked = server.round(PARAMS)
    server.answer(EVIL, asked[EVIL], value(), weight)
    for peer in HONEST:
        server.answer(peer, asked[peer], PARAMS)
    assert server.rounds == [(PARAMS.tolist(), 3)] and server.missing == [(EVIL,)]
    assert [whose for whose, _ in server.refused] == [EVIL]


@pytest.mark.parametrize("value", [f32(*[3e38] * 4), f32(*[1e4] * 4)])
def test_a_clipped_update_moves_the_model_by_its_share_at_most(value: np.ndarray) -> None:
    server = Server(Averaging(sent=True), (EVIL, *HONEST), clip_norm=0.5)
    asked = server.round(PARAMS)
    server.answer(EVIL, asked[EVIL], value)
    for peer in HONEST:
        server.answer(peer, asked[peer], PARAMS)
    ((mean, total),) = server.rounds
    assert total == 4 and not server.refused
    assert abs(np.linalg.norm(np.asarray(mean) - PARAMS) - 0.5 / 4) < 1e-4


def test_a_round_goes_on_after_a_restart_with_what_had_counted() -> None:
    server = Server(Averaging(sent=True), (EVIL, *HONEST))
    first, second = server.round(PARAMS), server.round(10 * PARAMS)
    a, b, c = HONEST
    server.answer(a, first[a], PARAMS)
    server.answer(a, second[a], 10 * PARAMS)
    server.restart()
    server.answer(EVIL, second[EVIL], f32(7))
    for peer in (b, c):
        server.answer(peer, first[peer], 4 * PARAMS)
        server.answer(peer, second[peer], 40 * PARAMS)
    server.answer(EVIL, first[EVIL], f32(7))
    assert server.rounds == [((30 * PARAMS).tolist(), 3), ((3 * PARAMS).tolist(), 3)]


def test_rounds_that_overlap_do_not_mix() -> None:
    """Answers of the first round come while the second one runs, and the other way round."""
    server = Server(Averaging(sent=True), HONEST)
    first, second = server.round(PARAMS), server.round(10 * PARAMS)
    a, b, c = HONEST
    server.answer(a, first[a], PARAMS)
    server.answer(b, second[b], 20 * PARAMS)
    server.answer(c, first[c], 3 * PARAMS, 2.0)
    server.answer(a, second[a], 10 * PARAMS)
    server.answer(c, second[c], 30 * PARAMS)
    server.answer(b, first[b], PARAMS)
    assert server.rounds == [
        ((20 * PARAMS).tolist(), 3),
        ((2 * PARAMS).tolist(), 4),
    ]
    assert not server.refused


class Tiers(Module):
    """Hubs average what their leaves answer, and the server averages the hubs."""

    name, home = "Tiers", "Server"
    hubs = PeerSelectorSlot("hubs", peer_class="Hub")
    leaves = PeerSelectorSlot("leaves", peer_class="Leaf")
    at_hub = AggregatorSlot("at_hub", at="Hub")
    at_server = AggregatorSlot("at_server", at="Server")

    def body(self, g: Graph) -> None:
        params = g.input("params", "F32", (2,))
        r = g.request("down", self.hubs.sample(g, n=9, after=params), params, deadline_ns=9 * S)
        inner = g.request("deeper", self.leaves.sample(g, n=9, after=r.value), r.value, deadline_ns=3 * S)
        inner.reply(inner.value * 2.0)
        self.at_hub.contribute(g, inner.answer, peer=inner.answer.sender, sent=r.value)
        mean, total = self.at_hub.aggregate(g, after=inner.closed)
        r.reply([mean, total])
        value, weight = r.answer
        self.at_server.contribute(g, value, weight=weight, peer=r.answer.sender, sent=params)
        g.app_emit("round", g.bundle(list(self.at_server.aggregate(g, after=r.closed))))


class Twice(Module):
    """Each first answer asks again; what the second answers give counts in the round that began it."""

    name, home = "Twice", "Server"
    hubs = PeerSelectorSlot("hubs", peer_class="Hub")
    leaves = PeerSelectorSlot("leaves", peer_class="Leaf")
    agg = AggregatorSlot("agg", at="Server")

    def body(self, g: Graph) -> None:
        params = g.input("params", "F32", (2,))
        first = g.request("first", self.hubs.sample(g, n=9, after=params), params, deadline_ns=9 * S)
        first.reply(first.value + 1.0)
        leaves = self.leaves.sample(g, n=9, after=first.answer)
        second = g.request("second", leaves, first.answer, deadline_ns=3 * S)
        second.reply(second.value * 2.0)
        self.agg.contribute(g, second.answer)
        g.app_emit("round", g.bundle(list(self.agg.aggregate(g, after=first.closed))))


def simulated(compiler: Compiler, module: Module) -> tuple[Simulation, Node]:
    """A server, two hubs and three leaves, and the server's node."""
    for slot in ("hubs", "leaves"):
        compiler = compiler.bind_peer_selector(slot, PresenceSelector)
    data = compiler.compile(module).SerializeToString()
    sim = Simulation(seed=4, jitter_ns=5_000_000)
    names = {"server": "Server", "hub-1": "Hub", "hub-2": "Hub", "a": "Leaf", "b": "Leaf", "c": "Leaf"}
    for number, (name, target) in enumerate(names.items()):
        sim.add(install(PeerId.from_name(name), (), data, [target], seed=number))
    sim.run(for_ns=S // 10)
    (server,) = [node for node in sim.nodes if node.peer_id == PeerId.from_name("server")]
    assert isinstance(server, Node)
    return sim, server


TIERS: list[tuple[Module, Compiler, Callable[[np.ndarray], np.ndarray]]] = [
    (
        Tiers(),
        Compiler().bind_aggregator("at_hub", FedAvg).bind_aggregator("at_server", FedAvg),
        lambda params: 2 * params,
    ),
    (Twice(), Compiler().bind_aggregator("agg", FedAvg), lambda params: 2 * (params + 1)),
]


@pytest.mark.parametrize(("module", "compiler", "mean"), TIERS, ids=lambda each: getattr(each, "name", ""))
def test_tiers_whose_rounds_overlap_have_right_means(
    module: Module, compiler: Compiler, mean: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Three requests at once, through the same hubs and leaves; their executions alone tell them apart."""
    sim, server = simulated(compiler, module)
    asked = [f32(number, 10 * number) for number in (1, 2, 3)]
    for params in asked:
        server.invoke("Server", {"params": params})
    sim.run(until=lambda: len(sim.events("round")) == 3)
    found = sorted((e.value.values[0].tolist(), float(e.value.values[1])) for e in sim.events("round"))
    assert found == [(mean(params).tolist(), 6) for params in asked]
    assert not failures(sim)


class EverySecond(Module):
    """Rounds of which the second and the fourth are aggregated, in a branch; the others keep their own."""

    name, home = "EverySecond", "Server"
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client")
    agg = AggregatorSlot("agg", FedAvg, at="Server")

    def body(self, g: Graph) -> None:
        with g.rounds(4) as start:
            number = g.onnx.cast(start.round, to="F32")
            peers = self.clients.sample(g, n=9, min=3, after=start)
            r = g.request("ask", peers, number, deadline_ns=5 * S)
            r.reply(r.value * 10.0)
            self.agg.contribute(g, r.answer, peer=r.answer.sender)

            def mean(b: Graph) -> Any:
                return self.agg.aggregate(b)

            def keep(b: Graph) -> Any:
                return b.constant(np.float32(-1)), b.constant(np.float32(0))

            even = g.onnx.equal(start.round % 2, 0)
            found = g.onnx.if_(even, mean, keep, after=r.closed)
            g.app_emit("round", g.bundle([start.round, *found]))


def test_an_aggregate_in_a_branch_has_the_answers_of_its_own_round() -> None:
    """Those of a round whose branch is not taken are told as lost, and do not count in a later one."""
    data = Compiler().compile(EverySecond()).SerializeToString()
    sim = Simulation(seed=2)
    for name, target in {"server": "Server", "a": "Client", "b": "Client", "c": "Client"}.items():
        sim.add(install(PeerId.from_name(name), (), data, [target], seed=1))
    sim.run(until=lambda: len(sim.events("round")) == 4)
    found = [[float(np.asarray(each)) for each in e.value.values] for e in sim.events("round")]
    assert found == [[1, -1, 0], [2, 20, 3], [3, -1, 0], [4, 40, 3]]
    lost = [step.contributions for step in of(steps.ContributionsGivenUp, [s.step for s in sim.seen])]
    assert lost == [3, 3]
    assert not failures(sim)


class ByRound(Module):
    """Contributions and the end of their rounds come from outside, each in an execution of its own."""

    name = "ByRound"
    agg = AggregatorSlot("agg")

    def body(self, g: Graph) -> None:
        self.agg.contribute(g, g.input("x", "F32", (1,)), round=g.input("round", "I64", ()))
        g.app_emit("mean", self.agg.aggregate(g, round=g.input("over", "I64", ()))[0])


def test_sums_that_several_executions_fill_are_told_by_their_round() -> None:
    data = Compiler().bind_aggregator("agg", FedAvg).compile(ByRound()).SerializeToString()
    node = install(PeerId.from_name("n"), (), data, ["ByRound"], seed=1)
    seen: list[Any] = []
    for inputs in (
        *({"x": f32(10 * number + x), "round": np.array(number)} for x in (1, 2) for number in (1, 2)),
        {"over": np.array(2)},
        {"x": f32(99), "round": np.array(2)},
        {"over": np.array(1)},
    ):
        node.invoke("ByRound", inputs)
        seen += node.poll(1)
    assert [e.value.tolist() for e in of(steps.AppEvent, seen)] == [[21.5], [11.5]]
    (failed,) = of(steps.OpFailed, seen)
    assert "round 2 is over" in failed.text


# --- what counts, and decides alone -----------------------------------------------------------------


ABSURD: dict[str, tuple[np.ndarray, float]] = {
    "in another unit": (PARAMS * 1e4, 1.0),
    "as large as may be": (np.full(4, 4e17, np.float32), 1.0),
    "of an absurd weight": (PARAMS + 1, 2.0**31),
}


def dominant(server: Server) -> list[tuple[int, tuple[PeerId, ...]]]:
    return [(s.contributions, s.peers) for s in of(steps.ContributionsDominate, server.seen)]


@pytest.mark.parametrize("what", ABSURD)
@pytest.mark.parametrize("sent", [False, True])
def test_who_decides_a_round_alone_is_named(what: str, sent: bool) -> None:
    value, weight = ABSURD[what]
    server = Server(Averaging(sent=sent), (EVIL, *HONEST))
    for _ in range(2):  # a round remembers nothing of the one before
        asked = server.round(PARAMS)
        server.answer(EVIL, asked[EVIL], value, weight)
        for number, peer in enumerate(HONEST):
            server.answer(peer, asked[peer], PARAMS + 1 + number)
    assert len(server.rounds) == 2 and server.missing == [(), ()], "it counts all the same"
    assert dominant(server) == [(1, (EVIL,))] * 2
    (first, _) = of(steps.ContributionsDominate, server.seen)
    assert first.times > 1000 and first.target == "Server"
    assert "slot 'agg': 1 of 4 contributions count more than 100 times" in first.why
    assert "set clip_norm and max_weight" in first.why
    assert server.node.counters["contributions.dominant"] == 2


@pytest.mark.parametrize("honest", [1, 2])
@pytest.mark.parametrize("restarted", [False, True])
def test_who_has_all_the_weight_is_named_also_when_it_no_longer_moves(restarted: bool, honest: int) -> None:
    """The mean has come to where it wants it: its update is zero, and others' are nothing beside it."""
    server = Server(Averaging(sent=True), (EVIL, *HONEST[:honest]), clip_norm=10.0)
    asked = server.round(PARAMS)
    server.answer(EVIL, asked[EVIL], PARAMS, 2.0**31)
    if restarted:
        server.restart()
    for peer in HONEST[:honest]:
        server.answer(peer, asked[peer], PARAMS + 1, 60.0)
    assert dominant(server) == [(1, (EVIL,))]
    (told,) = of(steps.ContributionsDominate, server.seen)
    assert "weight 2.15e+09 and not 60; set max_weight" in told.why


def test_two_peers_of_about_as_much_data_are_both_usual() -> None:
    server = Server(Averaging(), (EVIL, HONEST[0]))
    asked = server.round(PARAMS)
    for peer, weight in ((EVIL, 600.0), (HONEST[0], 6.0)):
        server.answer(peer, asked[peer], PARAMS * np.float32(1e4 if peer == EVIL else 1), weight)
    assert dominant(server) == [], "of two lengths, nobody knows which is the usual one"


def test_the_remedy_for_one_that_decides_alone_names_what_is_not_set_yet() -> None:
    told = []
    for config in ({}, {"max_weight": 1e4}, {"max_weight": 1e4, "clip_norm": 1e9}):
        server = Server(Averaging(), (EVIL, *HONEST), **config)
        asked = server.round(PARAMS)
        for peer in (EVIL, *HONEST):
            server.answer(peer, asked[peer], PARAMS, 1e4 if peer == EVIL else 1.0)
        told += [step.why.split("; ")[1] for step in of(steps.ContributionsDominate, server.seen)]
    assert told == ["set clip_norm and max_weight", "set clip_norm", "lower clip_norm or max_weight"]


def test_an_answer_with_two_values_for_one_site_is_refused() -> None:
    server = Server(Averaging(), (EVIL, *HONEST))
    asked = server.round(PARAMS)
    first = server.sites[0]
    server.answer(EVIL, asked[EVIL], 7 * PARAMS, 1.0, sites=[first, first])
    for peer in HONEST:
        server.answer(peer, asked[peer], PARAMS)
    assert server.rounds == [(PARAMS.tolist(), 3.0)] and server.missing == [(EVIL,)]
    (failed,) = of(steps.WireReceiveFailed, server.seen)
    assert failed.peer == EVIL and "two fills for one site" in failed.detail


def clippers(server: Server) -> list[tuple[int, tuple[PeerId, ...]]]:
    return [(s.contributions, s.peers) for s in of(steps.ContributionsClipped, server.seen)]


@pytest.mark.parametrize("restarted", [False, True])
def test_who_is_shortened_where_others_are_not_is_named_with_its_weight(restarted: bool) -> None:
    server = Server(Averaging(), (EVIL, *HONEST), clip_norm=10.0)
    asked = server.round(PARAMS)
    server.answer(EVIL, asked[EVIL], -1e4 * PARAMS, 3.0)
    if restarted:
        server.restart()
    for peer in HONEST:
        server.answer(peer, asked[peer], PARAMS + 1)
    assert clippers(server) == [(1, (EVIL,))] and dominant(server) == []
    (told,) = of(steps.ContributionsClipped, server.seen)
    assert told.times > 1000 and told.target == "Server"
    assert "slot 'agg': 1 of 4 contributions were shortened to clip_norm" in told.why
    assert "with 50% of the weight" in told.why
    assert server.node.counters["contributions.clipped"] == 1
    server.round(PARAMS)
    assert clippers(server) == [(1, (EVIL,))], "a round remembers nothing of the one before"


def test_where_most_are_shortened_they_are_counted_and_nobody_is_named() -> None:
    server = Server(Averaging(), (EVIL, *HONEST), clip_norm=0.5)
    asked = server.round(PARAMS)
    for peer in (EVIL, *HONEST):
        server.answer(peer, asked[peer], PARAMS + 1)
    assert clippers(server) == []
    assert server.node.counters["contributions.clipped"] == 4


@pytest.mark.parametrize("at", range(5))
def test_who_decides_a_round_alone_is_named_by_a_server_that_was_restarted_in_it(at: int) -> None:
    server = Server(Averaging(), (EVIL, *HONEST))
    asked = server.round(PARAMS)
    for number, peer in enumerate((EVIL, *HONEST)):
        if number == at:
            server.restart()
        server.answer(peer, asked[peer], PARAMS * np.float32(1e4 if peer == EVIL else 1))
    assert dominant(server) == [(1, (EVIL,))]


def test_two_that_lie_do_not_hide_each_other() -> None:
    server = Server(Averaging(), (EVIL, *HONEST))
    asked = server.round(PARAMS)
    for peer, factor in ((EVIL, 1e4), (HONEST[0], 1e4), (HONEST[1], 1.0), (HONEST[2], 1.0)):
        server.answer(peer, asked[peer], PARAMS * np.float32(factor))
    assert dominant(server) == [], "of four the median lies between two and two"
    more = [PeerId.from_name(f"more-{n}") for n in range(2)]
    server = Server(Averaging(), (EVIL, *HONEST, *more))
    asked = server.round(PARAMS)
    for peer in (EVIL, *HONEST, *more):
        server.answer(peer, asked[peer], PARAMS * np.float32(1e4 if peer in (EVIL, HONEST[0]) else 1))
    assert dominant(server) == [(2, (EVIL, HONEST[0]))]


@pytest.mark.parametrize(
    ("settings", "value", "weight"),
    [({"clip_norm": 5.0}, PARAMS * 1e4, 1.0), ({}, PARAMS * 3, 20.0), ({}, PARAMS * 0, 1.0)],
    ids=["clipped", "more samples", "nothing learned"],
)
def test_what_is_usual_is_not_told(settings: dict[str, object], value: np.ndarray, weight: float) -> None:
    server = Server(Averaging(), (EVIL, *HONEST), **settings)
    asked = server.round(PARAMS)
    server.answer(EVIL, asked[EVIL], value, weight)
    for number, peer in enumerate(HONEST):
        server.answer(peer, asked[peer], PARAMS + number)
    assert len(server.rounds) == 1 and dominant(server) == []


def test_rows_of_a_stack_are_counted_without_a_name() -> None:
    server = Server(Stacked(), (EVIL, *HONEST))
    asked = server.round(PARAMS)
    server.answer(EVIL, asked[EVIL], PARAMS * np.float32(1e4))
    for peer in HONEST:
        server.answer(peer, asked[peer], PARAMS)
    assert dominant(server) == [(1, ())]
