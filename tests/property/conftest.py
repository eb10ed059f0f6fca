"""Random programs and what they compute: `random_module(seed)` records through the DSL, `oracle` interprets
the recorded program with wire ops as identities, `federation` runs its partitions as nodes of a simulation.
"""

# ruff: noqa: E402  (nothing below can be imported without the onnx package)

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="random programs are compiled here, which needs the onnx package")

from onnx.reference import ReferenceEvaluator

from bb_edge import install, load
from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.ir import keys
from bb_edge.ir.ids import PeerId
from bb_edge.ir.types import ValueType
from bb_edge.ir.values import TRIGGER, Composite
from bb_edge.transport.in_process import Simulation
from bb_host import Compiler, Module, S
from bb_host.build import compile_edge
from bb_host.ir.program import Function, Op, Program, Subgraph
from bb_host.ir.proto import to_proto
from bb_host.passes.analysis.flow import reads

SHAPE = (2, 3)
CLIENTS = 2


# ---- random programs


@dataclass
class Place:
    """Values that may meet in one op, and the peers that can be reached from there.

    `scope` is the class; `replies` tells whether ops here run for each of several senders.
    """

    scope: str
    values: list[Any] = field(default_factory=list)
    sender: Any = None


class RandomModule(Module):
    """Ops chosen by a seed; every value that nothing else shows is emitted to the host in the end."""

    name, home = "Random", "Server"

    def __init__(self, seed: int, steps: int) -> None:
        super().__init__()
        self.seed = seed
        self.steps = steps

    def body(self, g: Any) -> None:
        rng = random.Random(self.seed)
        author = Author(g, rng)
        home = Place("Server", [g.input("x", np.float32, SHAPE), g.input("y", np.float32, SHAPE)])
        author.places.append(home)
        author.peers = {name: g.input(name, "PeerIdVec") for name in ("Client", "Edge", "Server")}
        for _ in range(self.steps):
            author.act()
        author.show()


class Affine(Module):
    """A pure sub-module."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def body(self, g: Any) -> None:
        x = g.input("x", np.float32, SHAPE)
        g.output("y", g.onnx.tanh(x * self.scale + 0.5))


class Remote(Module):
    """A sub-module that sends."""

    def __init__(self, port: str) -> None:
        super().__init__()
        self.port = port

    def body(self, g: Any) -> None:
        x = g.input("x", np.float32, SHAPE)
        there = g.net_out(self.port, g.input("peers", "PeerIdVec"), g.onnx.relu(x))
        g.output("there", g.onnx.neg(there))


class Author:
    """Takes one random step after another. The values of a place are all F32 of one shape: any may meet."""

    def __init__(self, g: Any, rng: random.Random) -> None:
        self.g = g
        self.rng = rng
        self.places: list[Place] = []
        self.peers: dict[str, Any] = {}
        self.ports = 0
        self.topics = 0

    def act(self) -> None:
        place = self.rng.choice(self.places)
        kinds = [self.arithmetic] * 4 + [self.layers, self.compare, self.bundle, self.syscall, self.branch]
        kinds += [self.call, self.emit]
        if place.scope == "Server" and place.sender is None:
            kinds += [self.send, self.send, self.ask, self.call_remote]
        elif place.sender is not None and self.ports < 6:
            kinds += [self.send_back]
        self.rng.choice(kinds)(place)

    def pick(self, place: Place) -> Any:
        return self.rng.choice(place.values)

    def port(self) -> str:
        self.ports += 1
        return f"port{self.ports}"

    # --- ops on one device

    def arithmetic(self, place: Place) -> None:
        a, b = self.pick(place), self.pick(place)
        made = self.rng.choice(
            [
                lambda: a + b,
                lambda: a - b,
                lambda: a * 0.5,
                lambda: 1.0 - a,
                lambda: a / 3.0,
                lambda: -a,
                lambda: self.g.onnx.relu(a),
                lambda: self.g.onnx.sigmoid(a),
                lambda: self.g.onnx.tanh(a) * b,
            ]
        )
        place.values.append(made())

    def layers(self, place: Place) -> None:
        g, a, b = self.g, self.pick(place), self.pick(place)
        made = self.rng.choice(
            [
                lambda: g.onnx.softmax(a, axis=1),
                lambda: a @ g.constant(np.eye(3, dtype=np.float32) * 0.5),
                lambda: g.onnx.transpose(g.onnx.transpose(a, perm=[1, 0]), perm=[1, 0]),
                lambda: g.onnx.reshape(g.onnx.reshape(a, [6]), [2, 3]),
                lambda: g.onnx.concat([a[0:1], b[1:2]], axis=0),
                lambda: a + g.onnx.reduce_mean(b, keepdims=1),
                lambda: g.onnx.gather(a, g.constant(np.array([1, 0])), axis=0),
                lambda: g.onnx.unsqueeze(g.onnx.squeeze(a[0:1], [0]), [0]) + b,
                lambda: g.onnx.exp(g.onnx.tanh(a)),
            ]
        )
        place.values.append(made())

    def compare(self, place: Place) -> None:
        a, b = self.pick(place), self.pick(place)
        g = self.g
        place.values.append(
            g.onnx.where(a > b, a, b) if self.rng.random() < 0.5 else g.onnx.cast(a < b, to=1)
        )

    def bundle(self, place: Place) -> None:
        parts = [self.pick(place) for _ in range(self.rng.randint(1, 3))]
        place.values.extend(self.g.unbundle(self.g.bundle(parts)))

    def syscall(self, place: Place) -> None:
        g, a, b = self.g, self.pick(place), self.pick(place)
        made = self.rng.choice(
            [
                lambda: [g.pass_through(a)],
                lambda: g.tee(a, 2),
                lambda: [g.gate(a, b)],
                lambda: [g.pass_through(a, after=b)],
                lambda: [g.onnx.add(a, b, after=self.pick(place))],
            ]
        )
        place.values.extend(made())

    def branch(self, place: Place) -> None:
        g, a, b = self.g, self.pick(place), self.pick(place)
        high = g.onnx.reduce_mean(a, keepdims=0) > 0.0
        place.values.append(g.onnx.if_(high, lambda h: h.onnx.relu(a) + b, lambda h: a - b))

    def call(self, place: Place) -> None:
        scale = self.rng.choice([0.5, 2.0])
        place.values.append(self.g.call(Affine(scale), x=self.pick(place))["y"])

    def emit(self, place: Place) -> None:
        """A bundle of some of what is there, to the host."""
        self.topics += 1
        values = [self.pick(place) for _ in range(self.rng.randint(1, 2))]
        value = self.g.bundle(values) if len(values) > 1 else values[0]
        self.g.app_emit(f"topic{self.topics}", value)

    # --- ops between devices

    def send(self, place: Place) -> None:
        to = self.rng.choice(sorted(self.peers))
        peers = self.peers[to]
        if self.rng.random() < 0.4:
            through = [self.g.pass_through, self.g.onnx.identity, lambda p: p[0:1], lambda p: p[-1]]
            peers = self.rng.choice(through)(peers)
        port = self.port()
        if self.rng.random() < 0.5:
            seen = self.g.net_out(port, peers, self.pick(place))
            self.places.append(Place(to, [seen], seen.sender))
        elif self.rng.random() < 0.5:
            several = self.g.net_out(port, peers, [self.pick(place) for _ in range(3)])
            self.places.append(Place(to, list(several), several.sender))
        else:
            packed = self.g.net_out(port, peers, self.g.bundle([self.pick(place), self.pick(place)]))
            parts = self.g.unbundle(packed, part_types=[ValueType(place.values[0].node, SHAPE)] * 2)
            self.places.append(Place(to, list(parts), packed.sender))

    def send_back(self, place: Place) -> None:
        seen = self.g.net_out(self.port(), place.sender, self.pick(place))
        self.places.append(Place("Server", [seen], seen.sender))

    def call_remote(self, place: Place) -> None:
        to = self.rng.choice(["Client", "Edge"])
        found = self.g.call(Remote(self.port()), x=self.pick(place), peers=self.peers[to])["there"]
        self.places.append(Place(to, [found]))

    def ask(self, place: Place) -> None:
        to = self.rng.choice(["Client", "Edge"])
        asked = [self.pick(place) for _ in range(self.rng.randint(1, 2))]
        r = self.g.request(self.port(), self.peers[to], asked, deadline_ns=5 * S)
        there = Place(to, list(r.values))
        for _ in range(self.rng.randint(0, 3)):
            self.rng.choice([self.arithmetic, self.layers, self.compare, self.bundle, self.call])(there)
        answer = [self.pick(there) for _ in range(self.rng.randint(1, 2))]
        r.reply(answer)
        if self.rng.random() < 0.5:
            self.places.append(Place("Answers", [*r.answer, self.pick(place) + r.answer[0]]))
            return
        batches = [self.g.onnx.reduce_sum(b, [0], keepdims=0) for b in r.responses]
        place.values.append(batches[0] + self.pick(place))
        self.topics += 1
        self.g.app_notify(f"topic{self.topics}", r.closed)

    def show(self) -> None:
        for place in self.places:
            self.topics += 1
            self.g.app_emit(f"topic{self.topics}", self.g.bundle(place.values[-8:]))
            for value in self.rng.sample(place.values, min(3, len(place.values))):
                self.topics += 1
                self.g.output(f"output{self.topics}", value)


# ---- what a recorded program computes


@dataclass(frozen=True)
class Peers:
    """A list of peers in the oracle: how many there are."""

    count: int


Event = tuple[str, tuple[Any, ...]]


class Oracle:
    """Interprets a recorded program in one piece: wire ops are identities, every receiver does the same.

    A value carries how many copies of it there are: one per device that computes it.
    """

    def __init__(self, program: Program) -> None:
        self.functions = {f.key: f for f in program.functions}
        self.program = program
        self.events: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self.copies: dict[int, int] = {}

    def run(self, inputs: Mapping[str, Any]) -> dict[str, list[tuple[Any, ...]]]:
        """The values of each app event and declared output, once per device and execution that has it."""
        root = self.program.functions[0]
        found = self.call(root, [(inputs[name], 1) for name in root.inputs])
        for name, (value, copies) in zip(root.outputs, found, strict=True):
            self.events[name] += [(value,)] * copies
        return dict(self.events)

    def call(self, function: Function, inputs: Sequence[tuple[Any, int]]) -> list[tuple[Any, int]]:
        env: dict[str, tuple[Any, int]] = dict(zip(function.inputs, inputs, strict=True))
        asks: dict[str, int] = {}
        answers: dict[str, list[Any]] = {}
        for op in function.ops:
            given = [env.get(name, (None, 1)) for name in op.inputs]
            copies = max([1, *(env[name][1] for name in reads(op) if name)])
            values = [value for value, _ in given]
            if op.domain == keys.WIRE_DOMAIN:
                found = self.wire(op, values, copies, asks, answers)
            elif op.domain == keys.ONNX_DOMAIN:
                found = [(v, copies) for v in self.onnx(op, env)]
            elif (op.domain, op.op_type) in self.functions:
                found = self.call(self.functions[op.domain, op.op_type], given)
            else:
                found = [(v, copies) for v in self.ours(op, values, copies)]
            env.update(zip(op.outputs, found, strict=True))
        return [env[name] for name in function.outputs]

    def wire(
        self,
        op: Op,
        values: list[Any],
        copies: int,
        asks: dict[str, int],
        answers: dict[str, list[Any]],
    ) -> list[tuple[Any, int]]:
        number = op.facts.wire_id
        one = Peers(1)
        if op.op_type == "Send":
            reached = copies * values[-1].count
            return [*((v, reached) for v in values[:-1]), (one, reached)]
        if op.op_type == "SendReqBatched":
            asks[number] = values[-1].count
            reached = copies * values[-1].count
            return [("request", copies), *((v, reached) for v in values[:-2]), (one, reached)]
        if op.op_type == "SendResp":
            answers[number] = values[:-2]
            asks[number] = asks[op.facts.request]
            return [*((v, copies) for v in values[:-2]), (one, copies)]
        assert op.op_type == "RecvRespBatched"
        stacks = [np.stack([v] * asks[number]) for v in answers[number]]
        return [(TRIGGER, copies), (Peers(0), copies), *((s, copies) for s in stacks)][: len(op.outputs)]

    def ours(self, op: Op, values: list[Any], copies: int) -> list[Any]:
        if op.op_type in ("AppEmit", "AppNotify"):
            value = values[0] if op.op_type == "AppEmit" else []
            row = tuple(value) if isinstance(value, list) else (value,)
            topic = op.attrs["name"]
            assert isinstance(topic, bytes)
            self.events[topic.decode()] += [row] * copies
            return []
        if op.op_type == "Bundle":
            return [values]
        if op.op_type == "Unbundle":
            return list(values[0])
        if op.op_type == "Tee":
            return [values[0]] * len(op.outputs)
        assert op.op_type in ("PassThrough", "Gate", "GateDispatch"), op.op_type
        return [values[0]]

    def onnx(self, op: Op, env: Mapping[str, tuple[Any, int]]) -> list[Any]:
        names = list(dict.fromkeys(n for n in reads(op) if n))
        if names and isinstance(env[names[0]][0], Peers):
            return [Peers(1) if op.op_type == "Slice" else env[names[0]][0]]
        node = to_proto(
            Program("one", (Function("one", "one", tuple(names), op.outputs, (op,), opsets={"": 21}),))
        ).functions[0]
        infos = [onnx.helper.make_empty_tensor_value_info(n) for n in names]
        outs = [onnx.helper.make_empty_tensor_value_info(n) for n in op.outputs]
        graph = onnx.helper.make_graph(list(node.node), "one", infos, outs)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
        found = ReferenceEvaluator(model).run(None, {n: env[n][0] for n in names})
        return [np.asarray(v) for v in found]


# ---- what its partitions compute


class Federation:
    """The partitions of a compiled program on nodes of a simulation: one server, several of the others."""

    def __init__(self, artifacts: Mapping[str, bytes], counts: Mapping[str, int], seed: int) -> None:
        programs = {target: load(data) for target, data in artifacts.items()}
        server = programs["Server"]
        self.inputs = server.functions[server.targets["Server"].main].input
        self.simulation = Simulation(seed, jitter_ns=200_000)
        self.peers: dict[str, tuple[PeerId, ...]] = {}
        self.server: Any = None
        for target, count in counts.items():
            ids = tuple(PeerId.from_name(f"{target}-{n}") for n in range(count))
            self.peers[target] = ids
            if target not in programs:
                continue
            for number, peer in enumerate(ids):
                node = install(peer, (), programs[target], [target], NodeConfig.host(), seed=seed + number)
                self.simulation.add(node)
                if target == "Server":
                    self.server = node
        self.simulation.run(for_ns=50_000_000)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, list[tuple[Any, ...]]]:
        """Invokes the server and gives the values of each app event."""
        self.server.invoke("Server", {k: v for k, v in inputs.items() if k in self.inputs})
        self.simulation.run(for_ns=60_000_000_000)
        found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for event in self.simulation.events():
            value = event.value
            row = value.values if isinstance(value, Composite) else () if _is_trigger(value) else (value,)
            found[event.topic].append(tuple(np.array(v) for v in row))
        return dict(found)

    def failures(self) -> list[Any]:
        """Steps that tell of something gone wrong."""
        bad = (steps.OpFailed, steps.ExecutionStarved, steps.WireReceiveFailed, steps.PeerResolveFailed)
        return [seen.step for seen in self.simulation.seen if isinstance(seen.step, bad)]


def _is_trigger(value: object) -> bool:
    return value is None or value is TRIGGER


# ---- fixtures


@pytest.fixture
def random_module() -> Callable[..., Module]:
    """`random_module(seed, steps=…)`: a module of that many random steps."""

    def make(seed: int, steps: int = 24) -> Module:
        return RandomModule(seed, steps)

    return make


@pytest.fixture
def compute() -> Callable[..., tuple[dict[str, Any], dict[str, Any], list[Any]]]:
    """`compute(module, seed)`: (events of the oracle, events of the federation, its failures).

    With `edge` the nodes run one stripped artifact each, else all the same portable model.
    """

    def run(
        module: Module, seed: int, edge: bool = False
    ) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
        rng = np.random.default_rng(seed)
        x, y = (rng.standard_normal(SHAPE).astype(np.float32) for _ in range(2))
        counts = {"Server": 1, "Client": CLIENTS, "Edge": 1}
        program = module.record()
        expected = Oracle(program).run({"x": x, "y": y, **{k: Peers(n) for k, n in counts.items()}})
        build = compile_edge(to_proto(program), Compiler())
        artifacts = {a.target: a.data if edge else build.data for a in build.artifacts}
        federation = Federation(artifacts, counts, seed)
        got = federation.run({"x": x, "y": y, **federation.peers})
        return expected, got, federation.failures()

    return run


@pytest.fixture
def count_subgraphs() -> Callable[[Program], int]:
    """How many branches a program holds."""

    def count(program: Program) -> int:
        ops = [op for f in program.functions for op in f.ops]
        return sum(isinstance(v, Subgraph) for op in ops for v in op.attrs.values())

    return count
