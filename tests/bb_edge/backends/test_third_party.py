"""Backends as a user would write them: handles of their own, answers that come later, few operators."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from times import S

pytest.importorskip("onnx")

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine import steps
from bb_edge.installer import UnsupportedOps
from bb_edge.ir import tensors
from bb_edge.registry import Registry
from bb_edge.roles import Backend, BackendAttrs, ComponentEnv
from bb_edge.roles.completion import Later
from bb_edge.roles.errors import ContractError
from bb_edge.transport.in_process import Simulation
from bb_host import Compiler, Module, PeerSelectorSlot
from bb_host.build import compile_edge
from bb_host.errors import BackendLacksOps

OPERATORS: Mapping[str, Callable[..., Any]] = {
    "Add": lambda a, b: a + b,
    "Mul": lambda a, b: a * b,
    "Relu": lambda a: np.maximum(a, 0),
    "Identity": lambda a: a,
}


class Handle:
    """A tensor on a device of its own: NumPy does not know it, and it has no arithmetic."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.on_device = array


class Few(Backend):
    """Five operators, on handles."""

    TYPE_NAME: ClassVar[str] = "test.Few"

    def __init__(self) -> None:
        self.calls: list[BackendAttrs | None] = []
        self.materialized = 0

    @classmethod
    def construct(cls, env: ComponentEnv) -> Few:
        return cls()

    @classmethod
    def supported_ops(cls) -> frozenset[str]:
        return frozenset({*OPERATORS, "Constant"})

    def from_array(self, array: Any) -> Any:
        assert isinstance(array, np.ndarray), f"a slot held a {type(array).__name__}"
        return Handle(array)

    def to_array(self, tensor: Any) -> Any:
        return tensor.on_device

    def materialize_from_wire(self, type_hash: int, payload: bytes | memoryview) -> Any:
        self.materialized += 1
        return super().materialize_from_wire(type_hash, payload)

    def execute(self, graph: Any, inputs: Mapping[str, Any], attrs: BackendAttrs | None = None) -> Any:
        self.calls.append(attrs)
        values = {name: handle.on_device for name, handle in inputs.items()}
        for node in graph.node:
            given = [values[name] for name in node.input]
            run = OPERATORS.get(node.op_type)
            values[node.output[0]] = (
                tensors.from_tensor_proto(node.attribute[0].t) if run is None else run(*given)
            )
        return {name: Handle(np.asarray(values[name])) for name in graph.output}


class Device(Few):
    """Work is queued, and answered when the device is done: here when a test says so."""

    TYPE_NAME: ClassVar[str] = "test.Device"

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[Callable[[], bool]] = []

    def dispatch(self, graph: Any, inputs: Any, attrs: Any = None, completion: Any = None) -> Any:
        self.queue.append(lambda: completion.complete(self.execute(graph, inputs, attrs)))
        return Later(completion)


class Again(Device):
    """What was under way when the node stopped is queued again."""

    TYPE_NAME: ClassVar[str] = "test.Again"
    restartable: ClassVar[bool] = True


@pytest.fixture
def registry() -> Registry:
    found = Registry()
    for kind in (Few, Device, Again):
        found.register(kind)
    return found


class Scale(Module):
    def body(self, g: Any) -> None:
        x = g.input("x", shape=[3])
        y = g.onnx.relu(x * 2.0 + 1.0)
        g.app_emit("y", y)


def artifact(module: Module, kind: type[Backend], portable: bool = False) -> bytes:
    compiler = Compiler().bind_backend("backend", kind)
    if portable:
        return compiler.compile(module).SerializeToString()
    (made,) = compile_edge(module, compiler).artifacts
    return made.data


def node_of(data: bytes, registry: Registry, **more: Any) -> Any:
    return install(
        PeerId.from_name("n"), (), data, ["Scale"], NodeConfig.edge(), registry=registry, seed=1, **more
    )


def values(found: list[steps.EngineStep]) -> list[Any]:
    return [s.value.tolist() for s in found if isinstance(s, steps.AppEvent)]


def errors(found: list[steps.EngineStep]) -> list[str]:
    return [str(s.error) for s in found if isinstance(s, steps.OpFailed)]


X = np.array([1, -2, 3], np.float32)
Y = [[3, 0, 7]]


@pytest.mark.parametrize("portable", [False, True])
def test_a_backend_with_few_operators_and_handles_of_its_own(registry: Registry, portable: bool) -> None:
    node = node_of(artifact(Scale(), Few, portable), registry)
    node.invoke("Scale", {"x": X})
    assert values(node.poll(0)) == Y
    calls = node.component("backend").calls
    assert calls and all(isinstance(attrs, BackendAttrs) for attrs in calls)


@pytest.mark.parametrize("portable", [False, True])
def test_a_backend_that_answers_later(registry: Registry, portable: bool) -> None:
    node = node_of(artifact(Scale(), Device, portable), registry)
    first = node.invoke("Scale", {"x": X})
    device = node.component("backend")
    said = node.poll(0)
    while device.queue:
        assert values(said) == [], "nothing before the device is done"
        came = threading.Event()
        node.set_waker(came.set)
        threading.Thread(target=device.queue.pop(0)).start()
        assert came.wait(60)
        node.set_waker(None)
        said += node.poll(1)
    assert values(said) == Y
    assert [s.execution for s in said if isinstance(s, steps.ExecutionEnded)] == [first]


def test_what_a_device_never_answers_fails_at_the_deadline(registry: Registry) -> None:
    node = node_of(artifact(Scale(), Device), registry)
    node.invoke("Scale", {"x": X})
    node.poll(0)
    due = node.next_deadline_ns()
    assert due is not None
    (text,) = errors(node.poll(due))
    assert "nobody completed it" in text
    assert node.component("backend").queue.pop()() is False, "too late is told, and counted"
    node.poll(due + 1)
    assert node.counters["completions.late"] == 1


def test_what_a_device_answers_wrongly_fails_the_op_alone(registry: Registry) -> None:
    node = node_of(artifact(Scale(), Device), registry)
    for wrong, words in (
        (lambda completion: completion.complete([1.0]), "backend test.Device: its result is a list"),
        (lambda completion: completion.complete({}), "its result has no"),
        (lambda completion: completion.complete({"a": 1}), "its result has no"),
        (lambda completion: completion.fail(OSError("the bus hangs")), "the bus hangs"),
    ):
        device = node.component("backend")
        device.dispatch = lambda g, i, a=None, completion=None, wrong=wrong: (
            wrong(completion),
            Later(completion),
        )[1]
        node.invoke("Scale", {"x": X})
        said = node.poll(0) + node.poll(1)
        (text,) = errors(said)
        assert words in text
        assert values(said) == []
    assert node.counters["executions.active"] == 0


def test_a_node_that_stops_while_the_device_works(registry: Registry) -> None:
    for kind in (Device, Again):
        data = artifact(Scale(), kind)
        node = node_of(data, registry)
        node.invoke("Scale", {"x": X})
        node.poll(0)
        node = node_of(data, registry, snapshot=node.snapshot(0), now_ns=5)
        device = node.component("backend")
        said = node.poll(6)
        if kind is Device:
            (text,) = errors(said)
            assert "restarted" in text
        else:
            (work,) = device.queue
            assert work()
            assert values(node.poll(7)) == Y


class Wire(Module):
    """A tensor that arrives feeds a backend, the host and a bundle: a handle for one of them."""

    name, home = "Wire", "A"
    others = PeerSelectorSlot("others", peer_class="B")

    def body(self, g: Any) -> None:
        x = g.input("x", shape=[3])
        got = g.net_out("x", self.others.current_view(g, after=x), x)
        g.app_emit("raw", got)
        g.app_emit("scaled", got * 2.0)
        g.app_emit("both", g.bundle([got, got + 1.0]))


def test_a_tensor_from_the_wire_is_a_handle_for_its_backend_alone(registry: Registry) -> None:
    compiler = Compiler().bind_backend("backend", Few).bind_peer_selector("others", "bb.PresenceSelector")
    sim = Simulation(seed=1)
    for made in compile_edge(Wire(), compiler).artifacts:
        peer = PeerId.from_name(made.target)
        sim.add(install(peer, (), made.data, [made.target], NodeConfig.edge(), registry=registry, seed=1))
    a, b = sim.nodes if sim.nodes[0].peer_id == PeerId.from_name("A") else reversed(sim.nodes)
    sim.run(for_ns=S)
    a.invoke("A", {"x": X})
    sim.run(for_ns=S)
    assert not [s.step for s in sim.seen if isinstance(s.step, steps.OpFailed | steps.WireReceiveFailed)]
    (raw,), (scaled,), (both,) = sim.events("raw"), sim.events("scaled"), sim.events("both")
    assert isinstance(raw.value, np.ndarray)
    assert raw.value.tolist() == [1, -2, 3]
    assert scaled.value.tolist() == [2, -4, 6]
    assert [value.tolist() for _, value in both.value.children] == [[1, -2, 3], [2, -1, 4]]
    assert b.component("backend").materialized == 1


class Steep(Module):
    def body(self, g: Any) -> None:
        x = g.input("x", shape=[3])
        g.app_emit("y", g.onnx.softmax(g.onnx.sigmoid(x), axis=0))


class Driver(Few):
    """It knows what it has only where its driver is."""

    TYPE_NAME: ClassVar[str] = "test.Driver"

    def supports(self, op_type: str, version: int, domain: str = "") -> bool:  # type: ignore[override]
        return op_type in OPERATORS


@pytest.mark.parametrize("portable", [False, True])
def test_operators_that_only_the_device_knows_to_lack_are_named_at_install(
    registry: Registry, portable: bool
) -> None:
    registry.register(Driver)
    data = artifact(Steep(), Driver, portable)
    with pytest.raises(UnsupportedOps) as caught:
        install(PeerId.from_name("n"), (), data, ["Steep"], registry=registry, seed=1)
    assert all(words in str(caught.value) for words in ("Sigmoid", "Softmax", "test.Driver"))


def test_operators_that_its_class_lacks_are_named_when_it_is_compiled() -> None:
    with pytest.raises(BackendLacksOps) as caught:
        artifact(Steep(), Few)
    assert all(words in str(caught.value) for words in ("Sigmoid", "Softmax", "test.Few", "test_third_party"))


def test_a_class_that_cannot_be_asked_is_refused_when_it_is_written() -> None:
    with pytest.raises(ContractError, match="classmethod"):

        class Old(Backend):
            def supported_ops(self) -> frozenset[str]:  # type: ignore[override]
                return frozenset(OPERATORS)

            def execute(self, graph: Any, inputs: Any, attrs: Any = None) -> Any:
                return {}
