"""Random programs over every op of the catalog, in flight together, against a plain model of each op."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from times import S

pytest.importorskip("onnx", reason="compiling needs the host extra")

from bb_edge import install, load
from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.entries.bootstrap import BootstrapAll
from bb_edge.ir import keys, opsets
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.ir.values import TRIGGER, Composite
from bb_edge.transport.in_process import Simulation
from bb_host import Compiler
from bb_host.build import compile_edge
from bb_host.ir.proto import to_proto

pytestmark = pytest.mark.filterwarnings("ignore::bb_host.diagnostics.ProgramWarning")
"""Programs made at random compute what nothing reads."""

PROGRAMS = int(os.environ.get("BB_RANDOM_PROGRAMS", "30"))


def _load(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_load("operator_models")
programs = _load("catalog_programs")


@pytest.fixture(scope="session")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "shard.npz"
    rng = np.random.default_rng(3)
    np.savez(file, x=rng.standard_normal((5, 3)).astype(np.float32), y=np.arange(5, dtype=np.float32))
    return str(file)


CONFIGS = (
    NodeConfig.host(),
    # What runs at once waits for a place, and every poll ends early.
    NodeConfig.host().with_(max_executions=2, max_children=1, cycle_op_budget=7, trace=True),
    NodeConfig.host().with_(max_executions=5, max_children=2, cycle_op_budget=1),
)


class Running:
    """The partitions of one program on their devices."""

    def __init__(self, artifacts, seed):
        config = CONFIGS[seed % len(CONFIGS)]
        self.simulation = Simulation(seed, jitter_ns=200_000)
        self.nodes = {}
        for target, count in programs.DEVICES.items():
            if target not in artifacts:
                # Somebody must be there to be found.
                continue
            program = load(artifacts[target])
            for n in range(count):
                node = install(
                    PeerId.from_name(f"{target}-{n}"), (), program, [target], config, seed=seed + n
                )
                self.simulation.add(node)
                self.nodes.setdefault(target, []).append(node)
        self.server = self.nodes["Server"][0]
        self.run(S)  # everybody has heard of everybody
        for node in self.simulation.nodes:
            node.run_bootstrap(BootstrapAll())

    def run(self, ns):
        self.simulation.at(self.simulation.now_ns + ns, lambda: None)
        self.simulation.run(for_ns=ns)

    def restart(self, seed):
        """Every node goes on from its own snapshot, in another incarnation."""
        simulation = self.simulation
        for several in self.nodes.values():
            for n, old in enumerate(several):
                saved = old.snapshot(simulation.now_ns)
                several[n] = install(
                    old.peer_id, (), old.program, old.targets, old.config,
                    seed=seed, snapshot=saved, now_ns=simulation.now_ns,
                )  # fmt: skip
        for node in chain.from_iterable(self.nodes.values()):
            simulation.add(node)
        self.server = self.nodes["Server"][0]
        self.run(S)

    def rows(self, topic):
        found = []
        for event in self.simulation.events(topic):
            value = event.value
            row = value.values if isinstance(value, Composite) else (value,)
            found.append(() if value is None or value is TRIGGER else tuple(np.array(v) for v in row))
        return found

    def of(self, kind):
        return [seen.step for seen in self.simulation.seen if isinstance(seen.step, kind)]


def matches(row, wanted, close):
    return len(row) == len(wanted) and all(
        np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=close, atol=close)
        for a, b in zip(row, wanted, strict=True)
    )


def compare(what, got, wanted, envs):
    """Every row that came is one that was to come, each as often as it was."""
    starts = [{"all": envs}] if wanted.summed else envs
    expected = [wanted.row(env) for env in starts for _ in range(wanted.times)]
    count = len(expected) if wanted.count < 0 else wanted.count
    assert len(got) == count, f"{what}: {len(got)} came, {count} were to come"
    for row in got:
        found = next((i for i, e in enumerate(expected) if matches(row, e, wanted.close)), -1)
        assert found >= 0, f"{what}: {row} came, to come were {expected}"
        del expected[found]


def compiled(module, edge):
    program = module.record()
    if not edge:
        data = Compiler().compile(program).SerializeToString()
        targets = {f.name for f in load(data).functions.values() if f.name in programs.DEVICES}
        return dict.fromkeys(targets, data)
    return {a.target: a.data for a in compile_edge(to_proto(program), Compiler()).artifacts}


@pytest.mark.parametrize("way", ["portable", "edge", "restarted"])
@pytest.mark.parametrize("seed", range(PROGRAMS * 2 // 3))
def test_every_op_does_what_it_says(seed, way, path):
    module = programs.CatalogModule(seed, 30, path)
    artifacts = compiled(module, way == "edge")
    running = Running(artifacts, seed)
    server = running.server
    rng = np.random.default_rng(seed)
    inputs = server.program.functions[server.program.targets["Server"].main].input

    def array():
        return rng.standard_normal(programs.SHAPE).astype(np.float32)

    envs = {
        "main": [{"x": array(), "y": array()} for _ in range(programs.STARTS["main"])],
        "late": [{"z": array()} for _ in range(programs.STARTS["late"])],
        "rounds": [{"round": n + 1} for n in range(programs.STARTS["rounds"])],
        "pulse": [{}],
        "phase": [{}] * programs.STARTS["phase"],
        "bad": [{}] * programs.STARTS["bad"],
    }
    for env in envs["main"]:
        given = {**env, "Server": (server.peer_id,)}
        server.invoke("Server", {k: v for k, v in given.items() if k in inputs})
    for _ in envs["bad"]:
        server.invoke("Server", {"bad": np.zeros(1, np.float32)})
    for value in (1, 2):
        server.invoke("Server", {"held": np.full(1, value, np.float32)})
    friend, other = PeerId.from_name("friend"), PeerId.from_name("other")
    book = [Address.empty().with_peer(p).to_bytes() for p in (friend, other)]
    server.invoke("Server", {"told": friend, "known": book[0], "told_many": other, "known_many": (book[1],)})
    running.run(30 * S)
    if way == "restarted":  # what ops and components hold is there again
        running.restart(seed)
        server = running.server
    else:
        running.run(S)
    for env in envs["late"]:
        server.invoke("Server", env)
    for _ in range(2):
        server.invoke("Server", {"open": TRIGGER})
    for who in (friend, other):
        server.invoke("Server", {"who": who})
    server.invoke("Server", {"forget": friend})
    for _ in envs["phase"]:
        server.fire_lifecycle(steps.Phase.SNAPSHOT)
    running.run(60 * S)

    failed = running.of(steps.OpFailed)
    assert ["Reshape: (1,)" in str(s.error) for s in failed] == [True] * len(envs["bad"]), failed
    faults = (
        steps.ExecutionStarved | steps.WireReceiveFailed | steps.PeerResolveFailed | steps.OutboundDropped
    )
    assert not running.of(faults | steps.IngressDropped | steps.RoundBackedOff)
    for topic, wanted in module.wanted.items():
        compare(topic, running.rows(topic), wanted, envs[wanted.entry])
    assert running.rows("never") == []
    assert [tuple(a.to_bytes() for a in e.value) for e in running.simulation.events("addresses")] == [
        (b,) for b in book
    ]
    assert [int(row[0][0]) for row in running.rows("let")] == [2]
    assert str(friend) not in server.inspect().peers
    ticks = [int(row[0]) for row in running.rows("ticks")]
    assert len(ticks) == 9 and set(np.diff(ticks)) == {10 * S}
    for (scope, name), count in module.counters.items():
        assert [n.counters.get(name) for n in running.nodes[scope]] == [count] * programs.DEVICES[scope]
    for (scope, name), wanted in module.rings.items():
        for node in running.nodes[scope]:
            compare(name, [(np.array(v),) for v in node.ring(name)], wanted, envs[wanted.entry])
    # Everything has come to its end, and given back what it held.
    for node in (n for several in running.nodes.values() for n in several):
        left = {k: node.counters[k] for k in ("executions.active", "pending_async.count", "requests.open")}
        assert set(left.values()) == {0} and node.counters["ingress.bytes"] == 0, left


def ops_of(data):
    """(domain, op) of all functions of an artifact, subgraphs included."""
    found = Counter()

    def walk(nodes):
        for node in nodes:
            found[opsets.normalize_domain(node.domain), node.op_type] += 1
            for attr in node.attribute:
                walk(attr.g.node)

    for function in load(data).functions.values():
        walk(function.node)
    return found


def test_every_op_of_the_catalog_occurs(path):
    seen = Counter()
    for seed in range(40):
        program = programs.CatalogModule(seed, 30, path).record()
        seen.update(ops_of(Compiler().compile(program).SerializeToString()))
    domains = (*opsets.FRAMEWORK_DOMAINS, keys.ONNX_DOMAIN)
    wanted = {(domain, op) for domain in domains for op in opsets.opset(domain).ops}
    # The name that it has in files since opset 11.
    wanted = (wanted - {(keys.ONNX_DOMAIN, "Scatter")}) | {(keys.ONNX_DOMAIN, "ScatterElements")}
    assert sorted((seen[name], *name) for name in wanted if seen[name] < 5) == []
    assert len(wanted) > 110
