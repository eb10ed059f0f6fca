"""Names, arguments and orders that are not part of the DSL: typed errors that propose what was meant."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bb_edge.ir import types
from bb_edge.ir.opsets import OpDef, Opset
from bb_edge.ir.opsets.records import ports
from bb_host import (
    AggregatorSlot,
    BackendSlot,
    Compiler,
    Graph,
    ModelSlot,
    Module,
    Output,
    PeerSelectorSlot,
    ProtocolSlot,
    S,
    errors,
)
from bb_host.errors import (
    ArityError,
    AttributeValueError,
    CallError,
    ForeignValueError,
    ModuleError,
    NotWireEligible,
    PortNameError,
    TooManyOps,
    UnknownAttributeError,
    UnknownOp,
    UnknownPortError,
    ValueTypeError,
)
from tests.aids.refusals import quiet, refused, warned

MODEL, AGGREGATOR, PEERS = ModelSlot("model"), AggregatorSlot("aggregator"), PeerSelectorSlot("peers")
BACKEND = BackendSlot("fast")
TABLE = ProtocolSlot(
    "table",
    opset=Opset(
        "acme.table", 1, {"ReadRow": OpDef("acme.table", "ReadRow", ports("x:Tensor"), ports("y:Tensor"))}
    ),
)


class Child(Module):
    def body(self, g: Graph) -> None:
        g.output("logits", g.input("image", "F32") * 2)


def child(g: Graph, x: Output) -> Any:
    return g.call(Child(), image=x)


def first(g: Graph, x: Output) -> Graph:
    g.output("first", x)
    return g


def sent(g: Graph, x: Output) -> Any:
    return g.wire.send("p", g.input("p", "PeerIdVec"), x)


# --- misspelt names and arguments

Use = Callable[[Graph, Output, Output], Any]
# fmt: off
MISSPELT: list[tuple[type[Exception], str, Use]] = [
    (UnknownOp, "did you mean 'softmax'?", lambda g, x, t: g.onnx.sofmax(x)),  # <-
    (UnknownOp, "did you mean 'reduce_mean'?", lambda g, x, t: g.onnx.reduce_means(x)),  # <-
    (UnknownOp, "did you mean 'top_k'?", lambda g, x, t: g.onnx.op("TopKK", x)),  # <-
    (UnknownOp, "onnx.ai", lambda g, x, t: g.onnx.frobnicate(x)),  # <-
    (UnknownOp, "did you mean 'after'?", lambda g, x, t: g.syscall.aftr(t)),  # <-
    (UnknownOp, "it has backoff_gate_rx", lambda g, x, t: g.gates.debounce(t)),  # <-
    (UnknownOp, "did you mean 'forward'?", lambda g, x, t: MODEL.op(g, "Forwrd", x)),  # <-
    (UnknownOp, "did you mean 'read_row'?", lambda g, x, t: TABLE.red_row(g, x)),  # <-
    (UnknownOp, "did you mean 'matmul'?", lambda g, x, t: BACKEND.matmull(g, x, x)),  # <-
    (UnknownAttributeError, "did you mean 'forward'?", lambda g, x, t: MODEL.forwad(g, x)),  # <-
    (UnknownAttributeError, "did you mean 'current_view'?", lambda g, x, t: PEERS.curent_view(g)),  # <-
    (UnknownAttributeError, "did you mean 'output'?", lambda g, x, t: g.ouput("y", x)),  # <-
    (UnknownAttributeError, "did you mean 'app_emit'?", lambda g, x, t: g.appemit("y", x)),  # <-
    (UnknownAttributeError, "did you mean 'net_out'?", lambda g, x, t: g.netout("y", x)),  # <-
    (UnknownAttributeError, "did you mean 'recv_req'?", lambda g, x, t: g.wire.rcv_req("y", "F32")),  # <-
    (UnknownAttributeError, "did you mean 'round'?", lambda g, x, t: g.rounds(3).rond),  # <-
    (UnknownAttributeError, "did you mean 'input'?", lambda g, x, t: Child().call().inptu("image", x)),  # <-
    (UnknownAttributeError, "did you mean 'output'?", lambda g, x, t: child(g, x).ouput("y")),  # <-
    (UnknownAttributeError, "did you mean 'bootstrap_call'?", lambda g, x, t: Child().bootstrapcall()),  # <-
    (UnknownPortError, "did you mean 'logits'?", lambda g, x, t: g.call(Child(), image=x)["logit"]),  # <-
    (UnknownPortError, "did you mean 'image'?", lambda g, x, t: g.call(Child(), imgae=x)),  # <-
    (UnknownPortError, "give it with .input('image', value)", lambda g, x, t: g.call(Child())),  # <-
    (UnknownPortError, "did you mean 'first'?", lambda g, x, t: first(g, x).lookup_output("frst")),  # <-
    (ValueTypeError, "did you mean 'PeerIdVec'?", lambda g, x, t: g.input("p", "PeerIDVec")),  # <-
    (ValueTypeError, "names no type", lambda g, x, t: g.input("p", "float 32")),  # <-
    (CallError, "did you mean 'axis'?", lambda g, x, t: g.onnx.softmax(x, axs=1)),  # <-
    (CallError, "did you mean 'keepdims'?", lambda g, x, t: g.onnx.reduce_sum(x, keep_dims=False)),  # <-
    (CallError, "did you mean 'approximate'?", lambda g, x, t: g.onnx.gelu(x, aproximate="tanh")),  # <-
    (CallError, "softmax(x, axis=…, after=…)", lambda g, x, t: g.onnx.softmax()),  # <-
    (CallError, "relu(x, after=…)", lambda g, x, t: g.onnx.relu(x, x, x, x)),  # <-
    (CallError, "did you mean 'delay_ns'?", lambda g, x, t: g.after(t, delay=3)),  # <-
    (CallError, "did you mean 'shape'?", lambda g, x, t: g.input("q", shap=(2,))),  # <-
    (CallError, "did you mean 'value'?", lambda g, x, t: g.output("q", valu=x)),  # <-
    (CallError, "did you mean 'durable'?", lambda g, x, t: g.net_out("q", t, x, durabel=True)),  # <-
    (CallError, "did you mean 'deadline_ns'?", lambda g, x, t: g.request("q", t, x, deadlin_ns=3 * S)),  # <-
    (CallError, "forward(g, input, key=…, after=…)", lambda g, x, t: MODEL.forward(x)),  # <-
    (CallError, "it takes after, g, input", lambda g, x, t: MODEL.forward(g, x, training=True)),  # <-
    (CallError, "did you mean 'config'?", lambda g, x, t: ModelSlot("m", confg={})),  # <-
    (CallError, "ModelSlot(name, ", lambda g, x, t: ModelSlot()),  # <-
    (CallError, "did you mean 'peer_class'?", lambda g, x, t: PeerSelectorSlot("m", peerclass="A")),  # <-
    (AttributeValueError, "did you mean 'sorted'?", lambda g, x, t: g.onnx.top_k(x, [1], sortd=1)),  # <-
    (AttributeValueError, "did you mean 'strides'?", lambda g, x, t: g.onnx.max_pool(x, [2], stride=1)),  # <-
    (AttributeValueError, "did you mean 'delay_ns'?", lambda g, x, t: g.syscall.after(t, delayns=3)),  # <-
    (ValueTypeError, "the first argument is the graph", lambda g, x, t: MODEL.forward(x, g)),  # <-
    (ValueTypeError, "the first argument is the graph", lambda g, x, t: BACKEND.relu(x)),  # <-
    (ValueTypeError, "input X expects a Tensor, got <t: Trigger>", lambda g, x, t: g.onnx.relu(t)),  # <-
    (ValueTypeError, "a trigger comes from", lambda g, x, t: g.after(x, 3)),  # <-
]
# fmt: on


@pytest.mark.parametrize(("kind", "words", "use"), MISSPELT, ids=[str(n) for n in range(len(MISSPELT))])
def test_what_is_misspelt_names_what_was_meant(
    record: Callable[..., Any], kind: Any, words: str, use: Use
) -> None:
    with refused(kind, words):
        record(lambda g: use(g, g.input("x", "F32", (4,)), g.input("t", "Trigger")))


def test_a_misspelt_slot_names_the_slot_that_there_is() -> None:
    class Misspelt(Module):
        modl = MODEL

        def body(self, g: Graph) -> None:
            g.output("y", self.model.forward(g, g.input("x", "F32")))  # <-

    with refused(UnknownAttributeError, "module 'Misspelt' has no 'model'", "did you mean 'modl'?"):
        Misspelt().record()


def test_a_property_of_the_author_that_fails_says_why() -> None:
    class Broken(Module):
        @property
        def width(self) -> int:
            return self.wdith_of_layers  # <-

        def body(self, g: Graph) -> None:
            g.output("y", g.input("x", "F32", (self.width,)))

    with refused(UnknownAttributeError, "has no 'wdith_of_layers'"):
        Broken().record()


def test_private_names_are_pythons_own_business() -> None:
    name = "_nothing"
    with pytest.raises(AttributeError) as caught:
        getattr(Child(), name)
    assert not isinstance(caught.value, UnknownAttributeError)


# --- modules, at the line of their class


class NoBody(Module):  # <-
    pass


class BadName(Module):  # <-
    name = "two words"

    def body(self, g: Graph) -> None:
        g.output("y", g.input("x", "F32"))


class BadHome(Module):  # <-
    home = "not/a class"

    def body(self, g: Graph) -> None:
        g.output("y", g.input("x", "F32"))


class WithoutGraph(Module):
    def body(self) -> None:  # <-
        pass


class BootWithoutGraph(Child):
    def bootstrap(self) -> None:  # <-
        pass


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (NoBody, "has no body"),
        (BadName, "'two words' is not a valid name for a module"),
        (BadHome, "'not/a class' is not a valid name for a home class"),
        (WithoutGraph, "def body(self, g):"),
        (BootWithoutGraph, "def bootstrap(self, g):"),
    ],
)
@pytest.mark.parametrize("called", [False, True])
def test_errors_of_a_module_name_its_class(
    record: Callable[..., Any], kind: type[Module], words: str, called: bool
) -> None:
    with refused(ModuleError, words):
        if called:
            record(lambda g: g.call(kind()))
        else:
            kind().record()


def test_the_command_names_the_class_too(tmp_path: Path) -> None:
    file = tmp_path / "nothing.py"
    file.write_text(
        "from bb_host import Module\n\n\nclass A(Module):\n    pass\n\n\ndef program():\n    return A()\n"
    )
    command = [sys.executable, "-m", "bb_host.cli", "compile", "-o", str(tmp_path / "out"), str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert f"{file.name}:4: error: module 'A' has no body (override body(self, g))" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("g.output('y', undefined_name)", "NameError: name 'undefined_name' is not defined"),
        ("g.output('y', 1 // 0)", "ZeroDivisionError"),
        ("g.output('y', g.input('x', 'F32').mean())", "use g.onnx.reduce_mean(x, axes)"),
        ("g.output('y', g.onnx.sofmax(g.input('x', 'F32')))", "did you mean 'softmax'?"),
        ("g.output('y', g.onnx.softmax(g.input('x', 'F32'), axs=1))", "did you mean 'axis'?"),
        ("g.output('y', self.model.forward(g, 1.0))", "module 'A' has no 'model'"),
    ],
)
def test_the_command_shows_each_at_the_authors_line(tmp_path: Path, body: str, message: str) -> None:
    file = tmp_path / "wrong.py"
    lines = ["from bb_host import Module", "class A(Module):", "    def body(self, g):", f"        {body}"]
    file.write_text("\n".join([*lines, "def program():", "    return A()", ""]))
    command = [sys.executable, "-m", "bb_host.cli", "compile", "-o", str(tmp_path / "out"), str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert f"{file.name}:4: error: " in ended.stderr
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


# --- order

# fmt: off
UNORDERED: list[tuple[type[Exception], str, Use]] = [
    (ValueTypeError, "after=None orders nothing", lambda g, x, t: g.onnx.relu(x, after=None)),  # <-
    (ValueTypeError, "after=None orders nothing", lambda g, x, t: g.app_emit("x", x, after=[t, None])),  # <-
    (ValueTypeError, "after=None orders nothing", lambda g, x, t: MODEL.params(g, after=sent(g, x))),  # <-
    (ValueTypeError, "after= takes values", lambda g, x, t: g.onnx.relu(x, after=True)),  # <-
    (ValueTypeError, "after= takes values", lambda g, x, t: g.onnx.relu(x, after="pulse")),  # <-
    (ValueTypeError, "after= takes values", lambda g, x, t: g.onnx.relu(x, after=g.app_emit)),  # <-
]
# fmt: on


@pytest.mark.parametrize(("kind", "words", "use"), UNORDERED, ids=[str(n) for n in range(len(UNORDERED))])
def test_after_takes_values(record: Callable[..., Any], kind: Any, words: str, use: Use) -> None:
    with refused(kind, words):
        record(lambda g: use(g, g.input("x", "F32", (4,)), g.input("t", "Trigger")))


def test_an_op_waits_for_the_effect_of_one_without_a_result(compute: Callable[..., dict[str, Any]]) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", (2,))
        now = g.threshold(1, x)
        stashed = g.hold_stash("held", x)
        g.output("y", g.hold_flush("held", now, after=stashed))

    for number in (1.0, 2.0):
        assert compute(body, {"x": np.full(2, number, np.float32)})["y"].tolist() == [number, number]


def test_the_trigger_of_an_effect_is_recorded_where_it_is_used(record: Callable[..., Any]) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", (2,))
        g.app_emit("unused", x)
        done = g.app_emit("used", x)
        counted = g.incr_metric("n", x, after=done)
        g.record("r", x, after=[counted, done])

    ops = record(body).functions[0].ops
    assert [(op.op_type, op.outputs) for op in ops] == [
        ("AppEmit", ()),
        ("AppEmit", ("app_emit_done_1",)),
        ("GateDispatch", ("x_1",)),
        ("IncrMetric", ("incr_metric_done_1",)),
        ("GateManyDispatch", ("x_2",)),
        ("Record", ()),
    ]


def test_returning_the_trigger_of_an_effect_is_no_result(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> Any:
        return g.app_emit("x", g.input("x", "F32"))

    assert not module(body).record().warnings
    assert Compiler().compile(module(body)).functions


# --- values and ports where none can be


def test_a_value_of_another_module_names_its_line(record: Callable[..., Any]) -> None:
    kept: list[Output] = []
    record(lambda g: kept.append(g.input("x", "F32")))
    with refused(ForeignValueError, "hand values in"):
        record(lambda g: g.onnx.relu(kept[0]))  # <-


def test_ports_are_declared_once(record: Callable[..., Any]) -> None:
    with refused(PortNameError, "choose another name"):
        record(lambda g: (g.input("x"), g.input("x")))  # <-


def test_an_empty_variadic_input_is_refused(record: Callable[..., Any]) -> None:
    with refused(ArityError, "wants at least one value"):
        record(lambda g: g.onnx.concat(axis=0))  # <-


# --- what does not travel, and what no device computes with

AGGREGATED = AggregatorSlot("sums", "bb.FedAvg", {})
OTHERS = PeerSelectorSlot("others", "bb.PresenceSelector", {}, peer_class="Other")


class Inner(Module):
    def body(self, g: Graph) -> None:
        g.output("both", g.bundle([g.constant([1.0]), g.clock(g.input("t", "Trigger"))]))  # <-


def _held(g: Graph, t: Output, local: Output) -> Output:
    held = g.hold_stash("held", g.bundle([local]))
    return g.hold_flush("held", t, after=held)


LOCAL: list[tuple[str, Callable[[Graph, Output], Output]]] = [
    ("CommandId", lambda g, t: AGGREGATED.contribute(g, g.constant([1.0], "F32"), after=t)),
    ("Timestamp", lambda g, t: g.clock(t)),
    ("EventKind", lambda g, t: g.event_source(1)),
    ("CorrelationToken", lambda g, t: g.correlate_tag(t)),
]
KINDS_AND_WAYS = [
    (kind, way, make)
    for kind, make in LOCAL
    for way in ("net_out", "request", "reply", "open")
    if (kind, way) != ("EventKind", "reply")  # an event starts an execution of its own: it cannot answer
]
BUNDLED: list[Callable[[Graph, Output, Output], Output]] = [
    lambda g, t, local: g.bundle([g.constant([1.0]), local]),
    lambda g, t, local: g.bundle([t, g.bundle([local])]),
    lambda g, t, local: g.pass_through(g.bundle([local])),
    lambda g, t, local: g.tee(g.bundle([local]), 2)[1],
    lambda g, t, local: g.any(g.bundle([t]), g.bundle([local])),
    _held,
]


@pytest.mark.parametrize(
    ("kind", "way", "make"), KINDS_AND_WAYS, ids=lambda v: v if isinstance(v, str) else ""
)
@pytest.mark.parametrize("bundle", BUNDLED, ids=["plain", "nested", "passed", "tee", "any", "held"])
def test_what_does_not_travel_does_not_in_bundles(
    module: Callable[..., Module], kind: str, make: Any, bundle: Any, way: str
) -> None:
    def body(g: Graph) -> None:
        if kind == "EventKind":
            local = g.event_source(1)
            t = g.threshold(1, local)
        else:
            t = g.pulse()
            local = make(g, t)
        peers = OTHERS.current_view(g, after=local)
        if way == "net_out":
            g.app_emit("got", g.net_out("p", peers, bundle(g, t, local)))  # <-
        elif way == "open":
            g.wire.send("p", peers, bundle(g, t, local))  # <-
        elif way == "request":
            r = g.request("p", peers, bundle(g, t, local), deadline_ns=S)  # <-
            r.reply(g.constant([1.0]))
        else:
            r = g.request("p", peers, t, deadline_ns=S)
            r.reply(bundle(g, r.value, make(g, r.value)))  # <-
            g.app_emit("got", r.answer)

    with refused(NotWireEligible, f"holds a {kind}", "g.app_emit"):
        Compiler().compile(module(body, home="Me"))


def test_bundles_of_modules_are_followed(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        t = g.pulse()
        g.app_emit("got", g.net_out("p", OTHERS.current_view(g, after=t), g.call(Inner(), t=t)["both"]))  # <-

    with refused(NotWireEligible, "holds a Timestamp"):
        Compiler().compile(module(body, home="Me"))


def test_bundles_of_what_stays_here_go_to_the_host(compute: Callable[..., dict[str, Any]]) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", (1,))
        at = g.clock(g.threshold(1, x))
        g.app_emit("both", g.bundle([x, at]))
        g.output("y", x + 1)

    assert compute(body, {"x": np.zeros(1, np.float32)})["y"].tolist() == [1]


def test_a_bundle_that_is_not_sent_does_not_stop_one_that_is(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        t = g.pulse()
        g.app_emit("here", g.bundle([g.clock(t), t]))
        g.app_emit("there", g.net_out("p", OTHERS.current_view(g, after=t), g.bundle([t, g.constant([1.0])])))

    assert Compiler().compile(module(body, home="Me")).functions


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        ("a CommandId does not travel", lambda g, r: AGGREGATED.contribute(g, r.value)),
        ("read r.answer", lambda g, r: r.sender),
    ],
)
def test_what_cannot_be_stacked_says_what_can_be_done(
    record: Callable[..., Any], words: str, reply: Any
) -> None:
    def body(g: Graph) -> None:
        r = g.request("p", OTHERS.current_view(g), g.input("x", "F32", (2,)), deadline_ns=S)
        r.reply(reply(g, r))
        g.output("y", r.responses)  # <-

    with refused(ValueTypeError, "cannot be stacked", words):
        record(body, home="Me")


# fmt: off
BFLOAT: list[Use] = [
    lambda g, x, t: g.input("b", "BF16", (2,)),  # <-
    lambda g, x, t: g.input("b", types.TENSOR_BF16),  # <-
    lambda g, x, t: g.onnx.cast(x, to="BF16"),  # <-
    lambda g, x, t: g.onnx.cast(x, to=16),  # <-
    lambda g, x, t: g.onnx.op("Cast", x, to=16),  # <-
    lambda g, x, t: g.constant([1, 2], "BF16"),  # <-
    lambda g, x, t: g.onnx.zeros((2,), "BF16"),  # <-
    lambda g, x, t: g.onnx.random_normal(shape=[2], dtype=16),  # <-
    lambda g, x, t: g.onnx.relu(g.wire.recv("p", "BF16")[0]),  # <-
    lambda g, x, t: g.wire.recv("p", "BF16")[0] + 1,  # <-
]
# fmt: on


@pytest.mark.parametrize("use", BFLOAT, ids=[str(n) for n in range(len(BFLOAT))])
def test_bfloat16_is_refused_by_name(record: Callable[..., Any], use: Use) -> None:
    with refused(ValueTypeError, "BF16", "use F16 or F32"):
        record(lambda g: use(g, g.input("x", "F32", (4,)), g.input("t", "Trigger")))


def test_bytes_of_bfloat16_pass_through(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        value, sender = g.wire.recv("p", "BF16")
        g.app_emit("bytes", value)
        g.wire.send("q", sender, value)

    assert Compiler().compile(module(body)).functions


def test_bfloat16_of_other_tools_is_refused_when_compiled(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        value, _ = g.wire.recv("p", "F16")
        g.output("y", g.onnx.relu(value))  # <-

    model = module(body).build()
    for function in model.functions:
        for value in function.value_info:
            if value.type.tensor_type.elem_type == 10:
                value.type.tensor_type.elem_type = 16
                value.type.denotation = types.TENSOR_BF16.denotation
        for node in function.node:
            for attribute in node.attribute:
                if attribute.HasField("tp"):
                    attribute.tp.tensor_type.elem_type = 16
                    attribute.tp.denotation = types.TENSOR_BF16.denotation
    with refused(errors.UnsupportedType, "no device computes with BF16"):
        Compiler().compile(model)


def test_inputs_of_bfloat16_of_other_tools_are_refused_when_compiled(module: Callable[..., Module]) -> None:
    model = module(lambda g: g.app_emit("x", g.input("x", "F16", (2,)))).build()
    (value,) = model.functions[0].value_info
    value.type.tensor_type.elem_type = 16
    value.type.denotation = types.TENSOR_BF16.denotation
    with refused(errors.UnsupportedType, "input 'x' is BF16", marked=False):
        Compiler().compile(model)


# --- compilers


def averaging(slot: str, target: str | None = None) -> Compiler:
    return Compiler().bind_aggregator(slot, "bb.FedAvg", target=target)


# fmt: off
COMPILERS: list[tuple[type[Exception], str, bool, Callable[[Module], Any]]] = [
    (UnknownAttributeError, "'bind_model'?", True, lambda m: Compiler().bind_modl("m", "t")),  # <-
    (UnknownAttributeError, "did you mean 'compile'?", True, lambda m: Compiler().complie(m)),  # <-
    (CallError, "did you mean 'config'?", True, lambda m: Compiler().bind_model("m", "t", confg={})),  # <-
    (CallError, "bind_model(slot, component, ", True, lambda m: Compiler().bind_model("model")),  # <-
    (CallError, "compile(module)", True, lambda m: Compiler().compile()),  # <-
    (errors.UnknownStage, "'type_solver'?", False, lambda m: Compiler().without_stage("type_solvr")),
    (errors.UnsupportedModule, "give an instance: Child(…)", False, lambda m: Compiler().compile(Child)),
    (errors.UnsupportedModule, "give a Module", False, lambda m: Compiler().compile(3)),
    (errors.BindingError, "'Main'?", False, lambda m: averaging("sums", target="Man").compile(m)),
    (errors.BindingError, "did you mean 'sums'?", False, lambda m: averaging("sum").compile(m)),
]
# fmt: on


@pytest.mark.parametrize(("kind", "words", "marked", "use"), COMPILERS)
def test_compilers_name_what_was_meant(
    module: Callable[..., Module], kind: Any, words: str, marked: bool, use: Callable[[Module], Any]
) -> None:
    sums = AggregatorSlot("sums")
    program = module(lambda g: sums.contribute(g, g.input("x", "F32", (2,))), sums=sums)
    with refused(kind, words, marked=marked):
        use(program)


def test_a_python_loop_without_end_is_told_at_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bb_host.dsl.recorder.MOST_OPS", 500)

    class Endless(Module):
        def body(self, g: Graph) -> None:
            x = g.input("x", "F32", (2,))
            while True:
                x = x + 1.0  # <-

    with refused(TooManyOps, "more than 500 ops", "`while True:`", "g.loop(n)"):
        Endless().record()

    class Inner(Module):
        def body(self, g: Graph) -> None:
            with g.loop(3) as step:
                while True:
                    g.app_emit("beat", step.index)  # <-

    with refused(TooManyOps, "more than 500 ops"):
        Inner().record()


# --- random numbers of the machine that records


class Noisy(Module):
    """A constant that `draw` gives, added to an input, in the body of a module that is called as well."""

    def __init__(self, draw: Callable[[], float], inner: Module | None = None) -> None:
        super().__init__()
        self._draw, self._inner = draw, inner

    def body(self, g: Graph) -> None:  # <-
        x = g.input("x", "F32", (2,))
        if self._inner is not None:
            x = g.call(self._inner, x=x)["y"]
        g.output("y", x + float(self._draw()))


@pytest.mark.parametrize(
    ("draw", "generator"),
    [
        (np.random.normal, "numpy.random"),
        (lambda: np.random.uniform(size=700).sum(), "numpy.random"),
        (random.random, "random"),
    ],
)
def test_random_numbers_of_a_body_are_constants(draw: Callable[[], float], generator: str) -> None:
    words = (
        f"numbers of `{generator}` are drawn",
        "the same on all",
        "g.rng_u64(trigger)",
        "default_rng(seed)",
    )
    warned("frozen-random", *words, program=Noisy(draw))
    warned("frozen-random", *words, program=Noisy(lambda: 1.0, Noisy(draw)))


def test_constants_of_a_seeded_generator_are_quiet() -> None:
    random.random()
    quiet(Noisy(lambda: np.random.default_rng(0).normal() + random.Random(0).random()))


def test_numpys_generator_is_loaded_by_the_first_draw_alone() -> None:
    text = """
import sys
from bb_host.dsl.drawn import drawn_since, generators
before = generators()
assert "numpy.random" not in sys.modules
import numpy as np
np.random.default_rng(0).normal()
assert drawn_since(before) == ""
np.random.normal()
assert drawn_since(before) == "numpy.random"
"""
    subprocess.run([sys.executable, "-c", text], check=True)
