"""Programs whose outputs were dropped once, or asked for in a wrong way: each is delivered, or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from bb_edge import NodeConfig, PeerId, install, load, open_model
from bb_edge.components import FedAvg, Float16Codec, PresenceSelector, ScalarQuantizer
from bb_edge.engine import steps
from bb_edge.inference import InferenceError
from bb_host import MS, AggregatorSlot, CodecSlot, Graph, Module, PeerSelectorSlot, S
from bb_host.build import compile_edge
from bb_host.errors import ForeignValueError, InvalidModelError, PortNameError, ValueTypeError
from tests.aids.refusals import quiet, refused, warned

Body = Callable[[Graph], Any]
X = np.array([1, -2, 3], np.float32)


def events(
    source: Any, inputs: Mapping[str, Any] | None = None, target: str = "", **config: int
) -> dict[str, list[Any]]:
    """What a host hears of one invoke, or of 100 ms without: alike in the portable and the stripped form."""
    build = compile_edge(source)
    artifact = next(a for a in build.artifacts if target in ("", a.target))
    found: list[dict[str, list[Any]]] = []
    for data in (build.data or artifact.data, artifact.data):
        node = install(
            PeerId.from_name("n"), (), data, [artifact.target], NodeConfig().with_(**config), seed=1
        )
        if inputs is not None:
            node.invoke(artifact.target, inputs)
        heard: dict[str, list[Any]] = {}
        for now in range(0, 100 * MS, MS):
            for step in node.poll(now):
                assert not isinstance(step, steps.OpFailed), step
                if isinstance(step, steps.AppEvent):
                    value = step.value if step.omitted_bytes == 0 else f"{step.omitted_bytes} bytes"
                    heard.setdefault(step.topic, []).append(value)
        found.append(heard)
    assert Counter({t: len(v) for t, v in found[0].items()}) == {t: len(v) for t, v in found[1].items()}
    return found[1]


def x_of(g: Graph) -> Any:
    return g.input("x", "F32", (3,))


# --- delivered --------------------------------------------------------------------------------------------


def test_an_output_that_is_read(
    compute: Callable[..., dict[str, Any]], module: Callable[..., Module]
) -> None:
    def body(g: Graph) -> None:
        feat = g.onnx.relu(x_of(g))
        g.output("feat", feat)
        g.output("prob", g.onnx.softmax(feat))

    found = compute(body, {"x": X})
    assert list(found) == ["feat", "prob"]
    assert found["feat"].tolist() == [1, 0, 3]
    assert events(module(body), {"x": X})["feat"][0].tolist() == [1, 0, 3]


def test_what_output_gives_back_is_read(compute: Callable[..., dict[str, Any]]) -> None:
    def body(g: Graph) -> None:
        first = g.output("first", x_of(g) * 2.0)
        g.output("second", first + 1.0)

    assert {n: v.tolist() for n, v in compute(body, {"x": X}).items()} == {
        "first": [2, -4, 6],
        "second": [3, -3, 7],
    }


def test_one_value_under_several_names(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        y = -x_of(g)
        for name in ("a", "b", "c"):
            g.output(name, y)

    found = events(module(body), {"x": X})
    assert {n: [v.tolist() for v in vs] for n, vs in found.items()} == {n: [[-1, 2, -3]] for n in "abc"}


def test_an_input_as_an_output(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        g.output("echo", x_of(g))

    assert events(module(body), {"x": X})["echo"][0].tolist() == X.tolist()


@pytest.mark.parametrize(
    ("value", "comes"),
    [(7, 7), (1.5, 1.5), ([1, 2], [1, 2]), ("text", b"text"), (b"\x00", b"\x00"), (True, True)],
)
def test_a_constant_output_comes_with_each_invoke(
    value: Any, comes: Any, module: Callable[..., Module]
) -> None:
    def body(g: Graph) -> None:
        g.output("c", g.constant(value))
        g.output("y", x_of(g) + 1.0)

    for inputs in ({"x": X}, {}):
        (found,) = events(module(body), inputs)["c"]
        assert (found if isinstance(found, bytes) else found.tolist()) == comes


def test_numbers_are_constant_outputs(compute: Callable[..., dict[str, Any]]) -> None:
    def body(g: Graph) -> None:
        x_of(g)
        g.output("n", 3)
        g.output("sum", g.constant(1) + g.constant(2))

    assert {n: v.tolist() for n, v in compute(body, {"x": X}).items()} == {"n": 3, "sum": 3}


def test_a_program_of_constants_alone(compute: Callable[..., dict[str, Any]]) -> None:
    def body(g: Graph) -> None:
        g.output("v", 1)
        g.output("w", g.constant([1.0, 2.0]))

    found = compute(body, {})
    assert {n: v.tolist() for n, v in found.items()} == {"v": 1, "w": [1, 2]}


def test_a_constant_output_comes_in_each_round(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        with g.rounds(3) as start:
            g.output("round", start.round)
        g.output("version", g.constant(7))

    found = events(module(body))
    assert [int(v) for v in found["round"]] == [1, 2, 3] and [int(v) for v in found["version"]] == [7, 7, 7]


def test_values_that_are_no_tensors(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        x = x_of(g)
        done = g.threshold(1, x)
        g.output("done", done)
        g.output("again", done)
        g.output("both", g.bundle([x, done]))
        g.output("peers", g.input("to", "PeerIdVec"))
        g.output("when", g.clock(done))

    peers = (PeerId.from_name("a"),)
    found = events(module(body), {"x": X, "to": peers})
    assert {n: len(v) for n, v in found.items()} == dict.fromkeys(
        ("done", "again", "both", "peers", "when"), 1
    )
    assert found["peers"] == [peers]


def test_outputs_of_a_called_module_are_its_callers(module: Callable[..., Module]) -> None:
    def called(g: Graph) -> None:
        g.output("kept", x_of(g) * 2.0)
        g.output("left", g.constant(1))

    inner = module(called, name="Inner")

    def body(g: Graph) -> None:
        kept = g.call(inner, x=x_of(g))["kept"]
        g.output("y", kept)
        g.output("z", kept + 1.0)

    assert set(events(module(body), {"x": X})) == {"y", "z"}


def test_a_value_that_is_too_large_comes_as_its_size(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        x = x_of(g)
        g.output("large", g.onnx.expand(g.onnx.unsqueeze(x, [0]), g.constant([1000, 3])))
        g.output("small", x)
        g.app_emit("event", g.onnx.expand(g.onnx.unsqueeze(x, [0]), g.constant([500, 3])))

    found = events(module(body), {"x": X}, app_event_bytes=1000)
    assert (found["large"], found["event"]) == (["12000 bytes"], ["6000 bytes"])
    assert found["small"][0].tolist() == X.tolist()


class Sides(Module):
    """Outputs on both sides of a wire, and a constant that both use."""

    home = "Server"
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client", at="Server")

    def body(self, g: Graph) -> None:
        x = x_of(g)
        three = g.constant(3.0)
        there = g.net_out("down", self.clients.sample(g, n=1, after=x), x * three)
        g.output("three", three)
        g.output("there", there)
        g.output("scaled", there * three)
        g.output("here", x * 4.0)


def test_an_output_is_of_the_one_partition_where_it_is() -> None:
    build = compile_edge(Sides())
    program = load(build.data)
    outputs = {t: set(program.graphs[target.main].outputs) for t, target in program.targets.items()}
    assert outputs == {"Server": {"three", "here"}, "Client": {"there", "scaled"}}
    for artifact in build.artifacts:
        stripped = load(artifact.data)
        assert (
            set(stripped.graphs[stripped.targets[artifact.target].main].outputs) == outputs[artifact.target]
        )


def test_a_caller_may_write_into_what_it_got(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        x = x_of(g)
        g.output("c", g.constant([1.0, 2.0]))
        g.output("echo", x)
        g.app_notify("seen", g.threshold(1, x))  # more than tensor work: it runs on a node

    model = open_model(compile_edge(module(body)).artifacts[0].data)
    for _ in range(2):
        x = X.copy()
        found = model(x)
        assert found["c"].tolist() == [1, 2]
        found["c"][:] = 9
        found["echo"][:] = 9
        assert x.tolist() == X.tolist()


def test_an_ordinary_model_keeps_the_names_of_its_outputs() -> None:
    info = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [3]) for n in ("x", "a", "b")]
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    graph = helper.make_graph(nodes, "net", [info[0]], [info[2], info[0], info[1]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = open_model(compile_edge(model).artifacts[0].data)(X)
    assert {n: v.tolist() for n, v in found.items()} == {"b": [-1, 0, -3], "x": [1, -2, 3], "a": [1, 0, 3]}
    assert list(found) == ["b", "x", "a"]


# --- a batch that nobody answered ---------------------------------------------------------------------------


HALF, BYTES = CodecSlot("half", Float16Codec), CodecSlot("bytes", ScalarQuantizer)


class Lonely(Module):
    """A request to nobody; `use` says what is done with the batch of replies."""

    home = "Server"
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client", at="Server")

    def __init__(self, reply: Callable[..., Any], use: Callable[..., Any]) -> None:
        super().__init__()
        self.reply, self.use = reply, use

    def body(self, g: Graph) -> None:
        x = g.input("x", "I64", (3,))
        r = g.request("ask", self.clients.sample(g, n=1, after=x), x, deadline_ns=S)
        r.reply(self.reply(g, r.value))
        g.output("y", self.use(g, r.responses, x))


@pytest.mark.filterwarnings("ignore:.*layout-unknown")
@pytest.mark.parametrize(
    ("reply", "use", "dtype", "value"),
    [
        (lambda g, v: v, lambda g, b, x: b, np.int64, np.zeros((0, 3))),
        (lambda g, v: v, lambda g, b, x: g.onnx.reduce_sum(b, [0], keepdims=0), np.int64, [0, 0, 0]),
        (
            lambda g, v: v,
            lambda g, b, x: g.onnx.concat([b, g.onnx.unsqueeze(x, [0])], axis=0),
            np.int64,
            [[1, 2, 3]],
        ),
        (lambda g, v: v > 1, lambda g, b, x: b, np.bool_, np.zeros((0, 3))),
        (lambda g, v: v[0], lambda g, b, x: b, np.int64, np.zeros((0,))),
        (
            lambda g, v: HALF.compress(g, g.onnx.cast(v, to=1)),
            lambda g, b, x: HALF.decompress(g, b),
            np.float32,
            np.zeros((0,)),
        ),
        (
            lambda g, v: BYTES.compress(g, g.onnx.cast(v, to=1)),
            lambda g, b, x: BYTES.decompress(g, b),
            np.float32,
            np.zeros((0,)),
        ),
        (
            lambda g, v: HALF.compress(g, g.onnx.cast(v, to=1)),
            lambda g, b, x: b,
            np.float16,
            np.zeros((0,)),
        ),
    ],
)
def test_a_batch_that_nobody_answered_has_the_declared_type(
    reply: Any, use: Any, dtype: Any, value: Any
) -> None:
    (found,) = events(Lonely(reply, use), {"x": np.array([1, 2, 3])}, "Server")["y"]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.asarray(value, dtype))


# --- groups of first arrivals -----------------------------------------------------------------------------


def test_a_group_passes_one_arrival(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        x, late = x_of(g), g.input("late", "F32", (3,))
        held = g.gate(late, g.sleep(g.threshold(1, late), 5 * MS))
        g.output("first", g.any(x, held, group="G"))
        g.output("second", g.any(held, group="G"))
        g.output("other", g.any(held, group="H"))
        g.output("alone", g.any(held))

    found = events(module(body), {"x": X, "late": X * 2})
    assert {n: len(v) for n, v in found.items()} == {"first": 1, "other": 1, "alone": 1}


@pytest.mark.parametrize("sends", [False, True])
def test_each_call_of_a_module_has_groups_of_its_own(sends: bool, module: Callable[..., Module]) -> None:
    """Inlined, as one that sends is, or called."""

    def inner(g: Graph) -> None:
        x = x_of(g)
        if sends:
            g.wire.send("out", g.input("to", "PeerIdVec"), x)
        g.output("y", g.any(x, x * 2.0, group="G"))

    def body(g: Graph) -> None:
        x, callee = x_of(g), module(inner, name="Inner")
        more = {"to": g.input("to", "PeerIdVec")} if sends else {}
        for name in ("a", "b"):
            g.output(name, g.call(callee, x=x, **more)["y"])
        g.output("c", g.any(x, group="G"))

    given = {"x": X, "to": ()} if sends else {"x": X}
    found = events(module(body), given)
    assert {n: len(v) for n, v in found.items()} == {"a": 1, "b": 1, "c": 1}


# --- refused and warned of ---------------------------------------------------------------------------------


def test_two_outputs_of_one_name(record: Callable[..., Any]) -> None:
    def body(g: Graph) -> None:
        x = x_of(g)
        g.output("y", x)
        g.output("y", x + 1.0)  # <-

    with refused(PortNameError, "'y'"):
        record(body)


def test_an_output_of_an_inputs_name(record: Callable[..., Any]) -> None:
    def body(g: Graph) -> None:
        g.output("x", x_of(g))  # <-

    with refused(PortNameError, "'x'"):
        record(body)


@pytest.mark.parametrize("name", ["", "a b", "1st", 3, None])
def test_a_name_that_is_none(name: Any, record: Callable[..., Any]) -> None:
    def body(g: Graph) -> None:
        g.output(name, x_of(g))  # <-

    with refused(PortNameError, repr(name)):
        record(body)


def test_an_output_in_a_branch(record: Callable[..., Any]) -> None:
    def body(g: Graph) -> None:
        x = x_of(g)
        high = g.onnx.reduce_max(x, keepdims=0) > 0.0
        g.onnx.if_(high, lambda h: h.output("y", x), lambda h: x)  # <-

    with refused(PortNameError, "'y'"):
        record(body)


@pytest.mark.parametrize("value", [None, object(), {"a": 1}])
def test_an_output_of_nothing(value: Any, record: Callable[..., Any]) -> None:
    def body(g: Graph) -> None:
        g.output("y", value)  # <-

    with refused(ValueTypeError):
        record(body)


def test_an_output_of_another_modules_value(module: Callable[..., Module]) -> None:
    kept: list[Any] = []
    module(lambda g: kept.append(x_of(g)), name="Other").record()

    def body(g: Graph) -> None:
        g.output("y", kept[0])  # <-

    with refused(ForeignValueError):
        module(body).record()


def test_an_event_of_an_outputs_name(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        x = x_of(g)
        g.output("y", x + 1.0)
        g.app_emit("y", x)  # <-

    warned("event-like-output", "'y'", program=module(body))


def test_an_event_of_an_outputs_name_in_a_called_module(module: Callable[..., Module]) -> None:
    def inner(g: Graph) -> None:
        x = x_of(g)
        g.app_notify("y", g.threshold(1, x))  # <-
        g.output("z", x)

    def body(g: Graph) -> None:
        g.output("y", g.call(module(inner, name="Inner"), x=x_of(g))["z"])

    warned("event-like-output", "'y'", program=module(body))


def test_a_constant_among_several_entries(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        g.app_notify("a", g.pulse())
        g.app_emit("b", g.interval(S))
        g.output("version", g.constant(7))  # <-

    warned("never-started", "'version'", "2 entries", program=module(body))

    def said(g: Graph) -> None:
        g.app_emit("b", g.interval(S))
        g.output("version", g.gate(g.constant(7), g.pulse()))

    quiet(module(said))
    assert [int(v) for v in events(module(said))["version"]] == [7]


def test_a_constant_that_the_host_asks_for(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        g.app_notify("a", g.pulse())
        g.app_emit("b", g.interval(S))
        with g.on_invoke():
            g.output("version", g.constant(7))

    quiet(module(body))
    assert [int(v) for v in events(module(body), {})["version"]] == [7]


@pytest.mark.filterwarnings("ignore:.*nothing is contributed")
def test_an_output_that_no_call_brings_is_named(module: Callable[..., Module]) -> None:
    agg = AggregatorSlot("agg", FedAvg)

    def body(g: Graph) -> None:
        x = x_of(g)
        g.output("y", x + 1.0)
        g.output("third", g.threshold(3, x))
        mean, _ = agg.aggregate(g)
        g.output("mean", mean)

    for data in (compile_edge(module(body)).data, compile_edge(module(body)).artifacts[0].data):
        for opened in (open_model(data), load(data)):
            with refused(InferenceError, "'third', 'mean'", marked=False):
                opened(X)


def test_a_sparse_tensor_beyond_all_bounds() -> None:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3])
    values = onnx.numpy_helper.from_array(np.ones(1, np.float32), "W")
    at = onnx.numpy_helper.from_array(np.zeros(1, np.int64), "at")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "W"], ["y"])], "net", [x], [x])
    graph.output[0].name = "y"
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, at, [3, 1 << 40]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with refused(InvalidModelError, "'W'", "bytes written out", marked=False):
        compile_edge(model)
