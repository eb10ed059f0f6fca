"""Bodies of If and Loop: what a backend and the engine run; what starts or crosses executions is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from bb_edge.ir import keys
from bb_host import (
    AggregatorSlot,
    BackendSlot,
    Compiler,
    DataSourceSlot,
    Graph,
    ModelSlot,
    Module,
    Output,
    PeerSelectorSlot,
    errors,
)
from bb_host.errors import (
    ArityError,
    LoopError,
    OpInSubgraph,
    PortNameError,
    RoundsError,
    ValueTypeError,
    WireInSubgraph,
)
from bb_host.ir.program import Subgraph
from bb_host.ir.proto import from_proto
from tests.aids.refusals import refused

MODEL, AGGREGATOR, DATA = ModelSlot("model"), AggregatorSlot("aggregator"), DataSourceSlot("data")
CONCRETE = AggregatorSlot("concrete", "bb.FedAvg", {})
BACKEND, PEERS = BackendSlot("fast"), PeerSelectorSlot("peers")


class Scaled(Module):
    """Tensor work alone."""

    def body(self, g: Graph) -> None:
        g.output("y", g.input("x") * 3)


class Doubled(Module):
    """Calls tensor work."""

    def body(self, g: Graph) -> None:
        x = g.input("x")
        g.output("y", g.call(Scaled(), x=x)["y"] - x)


class Emits(Module):
    def body(self, g: Graph) -> None:
        x = g.input("x")
        g.app_emit("seen", x)
        g.output("y", x)


class CallsEmits(Module):
    def body(self, g: Graph) -> None:
        g.output("y", g.call(Emits(), x=g.input("x"))["y"])


class Predicts(Module):
    model = MODEL

    def body(self, g: Graph) -> None:
        g.output("y", self.model.forward(g, g.input("x")))


class Starts(Module):
    def body(self, g: Graph) -> None:
        g.output("y", g.input("x") + 1)

    def bootstrap(self, g: Graph) -> None:
        g.app_notify("up", g.constant(1))


class Sends(Module):
    def body(self, g: Graph) -> None:
        g.output("y", g.net_out("p", PEERS.current_view(g), g.input("x")))


class Pulses(Module):
    def body(self, g: Graph) -> None:
        g.input("x")
        g.output("y", g.pulse())


def test_tensor_work_and_calls_of_it_run_in_branches(compute: Callable[..., dict[str, Any]]) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", (2,))

        def step(h: Graph, n: Output, go: Output, total: Output) -> tuple[Output, Output]:
            return go, total + h.call(Scaled(), x=x)["y"]

        g.output(
            "chosen",
            g.onnx.if_(
                g.input("up", "BOOL", ()), lambda h: h.call(Scaled(), x=x)["y"], lambda h: h.onnx.neg(x)
            ),
        )
        g.output("summed", g.onnx.loop(4, True, [0.0, 0.0], body=step))

    x = np.array([1, 2], np.float32)
    found = compute(body, {"x": x, "up": np.array(True)})
    assert found["chosen"].tolist() == [3, 6]
    assert found["summed"].tolist() == [12, 24]
    assert compute(body, {"x": x, "up": np.array(False)})["chosen"].tolist() == [-1, -2]


def test_a_module_of_calls_runs_in_a_branch(compute: Callable[..., dict[str, Any]]) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", (2,))
        g.output(
            "y", g.onnx.if_(g.input("up", "BOOL", ()), lambda h: h.call(Doubled(), x=x)["y"], lambda h: -x)
        )

    x = np.array([1, 2], np.float32)
    assert compute(body, {"x": x, "up": np.array(True)})["y"].tolist() == [2, 4]


def to(g: Graph) -> Output:
    return g.input("to", "PeerIdVec")


Use = Callable[[Graph, Graph, Output], Any]
# fmt: off
TAKEN: list[tuple[str, Use]] = [
    ("Forward", lambda g, h, x: MODEL.forward(h, x)),
    ("Params", lambda g, h, x: MODEL.params(h)),
    ("Aggregate", lambda g, h, x: CONCRETE.aggregate(h)),
    ("NextBatch", lambda g, h, x: DATA.next_batch(h)),
    ("Sample", lambda g, h, x: PEERS.sample(h, 3)),
    ("Relu", lambda g, h, x: BACKEND.onnx(h).relu(x)),
    ("AppEmit", lambda g, h, x: h.app_emit("seen", x)),
    ("Hold.Stash", lambda g, h, x: h.hold_stash("seen", x)),
    ("Gate", lambda g, h, x: h.gate(x, x)),
    ("Bundle", lambda g, h, x: h.bundle([x, x])),
    ("Constant", lambda g, h, x: h.constant("text")),
    ("Read", lambda g, h, x: h.op("acme", "Read", [x], ["F32"])),
    ("GateDispatch", lambda g, h, x: h.onnx.relu(x, after=x)),
    ("Emits", lambda g, h, x: h.call(Emits(), x=x)["y"]),
    ("CallsEmits", lambda g, h, x: h.call(CallsEmits(), x=x)["y"]),
    ("Predicts", lambda g, h, x: h.call(Predicts(), x=x)["y"]),
]
"""What makes a body one that the engine runs, and the op that it is."""

IN_THE_BRANCH: list[tuple[type[Exception], str, Use]] = [
    (OpInSubgraph, "Pulse starts executions", lambda g, h, x: h.pulse()),  # <-
    (OpInSubgraph, "Interval starts executions", lambda g, h, x: h.interval(10)),  # <-
    (RoundsError, "rounds stand in a branch", lambda g, h, x: h.rounds(3).__enter__()),  # <-
    (LoopError, "stands in a branch", lambda g, h, x: h.loop(3).__enter__()),  # <-
    (WireInSubgraph, "stands in a branch", lambda g, h, x: h.net_out("p", to(g), x)),  # <-
    (WireInSubgraph, "stands in a branch", lambda g, h, x: h.wire.recv("p", "F32")),  # <-
    (PortNameError, "stands in a branch", lambda g, h, x: h.output("y", x)),  # <-
    (PortNameError, "stands in a branch", lambda g, h, x: h.input("y")),  # <-
    (OpInSubgraph, "holds Pulse", lambda g, h, x: h.call(Pulses(), x=x)["y"]),  # <-
    (OpInSubgraph, "has a bootstrap", lambda g, h, x: h.call(Starts(), x=x)["y"]),  # <-
    (WireInSubgraph, "module 'Sends' sends", lambda g, h, x: h.call(Sends(), x=x)["y"]),  # <-
    # A branch's function that records into the graph around it: that would run in any case.
    (OpInSubgraph, "would run whether or not", lambda g, h, x: MODEL.forward(g, x)),  # <-
    (OpInSubgraph, "would run whether or not", lambda g, h, x: g.app_emit("seen", x)),  # <-
    (WireInSubgraph, "would run whether or not", lambda g, h, x: g.net_out("p", to(g), x)),  # <-
    (OpInSubgraph, "holds AppEmit", lambda g, h, x: g.call(Emits(), x=x)["y"]),  # <-
    (PortNameError, "by the function of a branch", lambda g, h, x: g.output("y", x)),  # <-
]
# fmt: on
IDS = [str(n) for n in range(len(IN_THE_BRANCH))]


@pytest.mark.parametrize(("op_type", "use"), TAKEN, ids=[op_type for op_type, _ in TAKEN])
def test_what_the_engine_runs_makes_a_body_the_engines(
    record: Callable[..., Any], op_type: str, use: Use
) -> None:
    def body(g: Graph) -> None:
        x, up = g.input("x", "F32", (2,)), g.input("up", "BOOL", ())

        def then(h: Graph) -> Output:
            use(g, h, x)
            return x

        g.output("y", g.onnx.if_(up, then, lambda h: -x))

    (choice,) = [op for op in record(body).functions[0].ops if op.op_type == "If"]
    branch = choice.attrs["then_branch"]
    assert isinstance(branch, Subgraph)
    assert (choice.domain, op_type in [op.op_type for op in branch.ops]) == (keys.SYSCALL_DOMAIN, True)


@pytest.mark.parametrize(("kind", "words", "use"), IN_THE_BRANCH, ids=IDS)
@pytest.mark.parametrize("place", ["then", "else", "loop", "nested"])
def test_what_starts_or_crosses_executions_is_refused_in_bodies(
    record: Callable[..., Any], kind: Any, words: str, use: Use, place: str
) -> None:
    def body(g: Graph) -> None:
        x, up = g.input("x", "F32", (2,)), g.input("up", "BOOL", ())

        def used(h: Graph) -> Output:
            use(g, h, x)
            return x

        def step(h: Graph, n: Output, go: Output) -> tuple[Output, Output]:
            return go, used(h)

        if place == "loop":
            g.onnx.loop(3, None, body=step)
        elif place == "nested":
            g.onnx.if_(up, lambda h: h.onnx.if_(up, used, lambda k: x), lambda h: x)
        else:
            g.onnx.if_(up, *([used, abs_of] if place == "then" else [abs_of, used]))

    def abs_of(h: Graph) -> Output:
        return h.onnx.abs(h.onnx.constant([1.0, 2.0]))

    with refused(kind, words):
        record(body)


def test_a_refused_branch_leaves_the_graph_as_it_was(record: Callable[..., Any]) -> None:
    def body(g: Graph) -> None:
        x, up = g.input("x", "F32", ()), g.input("up", "BOOL", ())
        with pytest.raises(OpInSubgraph):
            g.onnx.if_(up, lambda h: h.pulse(), lambda h: x)
        g.app_emit("b", g.onnx.if_(up, lambda h: h.onnx.neg(x), lambda h: x))

    assert [op.op_type for op in record(body).functions[0].ops] == ["If", "AppEmit"]


# fmt: off
MISSHAPEN: list[tuple[type[Exception], str, Callable[[Graph, Output], Any]]] = [
    (ArityError, "write: lambda g: …", lambda g, x: g.onnx.if_(x > 0, lambda: x, abs)),  # <-
    (ArityError, "iteration, keep_going", lambda g, x: g.onnx.loop(3, None, x, body=lambda h, i: i)),  # <-
    (ArityError, "2 values, else 1", lambda g, x: g.onnx.if_(x > 0, lambda h: (x, x), lambda h: x)),  # <-
    (ArityError, "1 values, not 2", lambda g, x: g.onnx.loop(3, None, x, body=lambda h, i, c, v: c)),  # <-
    (ValueTypeError, "Python's False", lambda g, x: g.onnx.if_(x is None, lambda h: x, lambda h: -x)),  # <-
    (ArityError, "0 values, else 1", lambda g, x: g.onnx.if_(x > 0, lambda h: None, lambda h: x)),  # <-
    (ArityError, "yield nothing", lambda g, x: g.onnx.if_(x > 0, lambda h: None, lambda h: None)),  # <-
    (OpInSubgraph, "into the scope", lambda g, x: g.onnx.if_(x > 0, lambda h: h.at("A"), abs)),  # <-
]
# fmt: on


@pytest.mark.parametrize(("kind", "words", "use"), MISSHAPEN)
def test_bodies_of_the_wrong_shape(record: Callable[..., Any], kind: Any, words: str, use: Any) -> None:
    with refused(kind, words):
        record(lambda g: use(g, g.input("x", "F32", ())))


# --- recorded protos that come from elsewhere


def _branched(g: Graph) -> None:
    x, up = g.input("x", "F32", (2,)), g.input("up", "BOOL", ())
    g.output("y", g.onnx.if_(up, lambda h: h.call(Scaled(), x=x)["y"], lambda h: -x))  # <-


def _tampered(module: Callable[..., Module], change: Callable[[onnx.NodeProto], None]) -> onnx.ModelProto:
    """A recorded program whose branch another tool has changed."""
    model = module(_branched).build()
    (choice,) = [n for n in model.functions[0].node if n.op_type == "If"]
    inner = next(a.g for a in choice.attribute if a.name == "then_branch")
    (call,) = [n for n in inner.node if n.op_type == "Scaled"]
    change(call)
    return model


def _syscall(node: onnx.NodeProto) -> None:
    node.op_type, node.domain = "PassThrough", keys.SYSCALL_DOMAIN


def _entry(node: onnx.NodeProto) -> None:
    node.op_type, node.domain = "Interval", keys.SYSCALL_DOMAIN
    del node.input[:]
    node.attribute.append(onnx.helper.make_attribute("period_ns", 5))


def _sent(node: onnx.NodeProto) -> None:
    node.op_type, node.domain = "Recv", keys.WIRE_DOMAIN
    del node.input[:]


def _imported(model: onnx.ModelProto) -> onnx.ModelProto:
    for domain in (keys.WIRE_DOMAIN, keys.SYSCALL_DOMAIN):
        model.functions[0].opset_import.add(domain=domain, version=1)
        model.opset_import.add(domain=domain, version=1)
    return model


def test_compiling_gives_them_to_the_engine_too(module: Callable[..., Module]) -> None:
    compiled = from_proto(Compiler().compile(_imported(_tampered(module, _syscall))))
    names = [f.name for f in compiled.functions]
    assert names == ["Main", "Main.then_1", "Main.else_2"]


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [(_entry, errors.OpInSubgraph, "Interval"), (_sent, errors.WireInSubgraph, "Recv")],
)
def test_compiling_refuses_the_others(
    module: Callable[..., Module], change: Any, kind: type[Exception], words: str
) -> None:
    with refused(kind, words, "stands in a branch"):
        Compiler().compile(_imported(_tampered(module, change)))


def test_compiling_sees_what_calls_lead_to(module: Callable[..., Module]) -> None:
    model = module(_branched).build()
    (scaled,) = [f for f in model.functions if f.name == "Scaled"]
    node = scaled.node.add(op_type="AppEmit", domain=keys.SYSCALL_DOMAIN, input=[scaled.input[0]])
    node.attribute.append(onnx.helper.make_attribute("name", "seen"))
    scaled.opset_import.add(domain=keys.SYSCALL_DOMAIN, version=1)
    compiled = from_proto(Compiler().compile(_imported(model)))
    (branch,) = [f for f in compiled.functions if f.name == "Main.then_1"]
    assert [op.op_type for op in branch.ops] == ["Constant", "Mul", "AppEmit", "BodyEnd"]


@pytest.mark.parametrize(
    ("other", "words"),
    [("n", ("Tensor<F32>[2] and Tensor<I64>[2]", "cast")), ("peers", ("Tensor<F32>[2] and PeerIdVec",))],
)
def test_branches_that_the_engine_runs_yield_one_type(
    module: Callable[..., Module], other: str, words: tuple[str, ...]
) -> None:
    def body(g: Graph) -> None:
        ports = {"n": g.input("n", "I64", (2,)), "peers": g.input("peers", "PeerIdVec")}
        x = g.input("x", "F32", (2,))

        def told(b: Graph) -> Output:
            b.app_emit("told", x)
            return x

        g.output("y", g.onnx.if_(g.input("c", "BOOL", ()), told, lambda b: ports[other]))  # <-

    with refused(errors.TypeConstraintFailed, "its branches yield", "yield one type", *words):
        Compiler().compile(module(body))
