"""Ports, scopes, order, rounds, bundles, and every op of the catalog as a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bb_edge.ir import keys, opsets, types
from bb_edge.ir.errors import AuthoringError
from bb_edge.ir.opsets import OpDef, Ready
from bb_edge.ir.types import ValueType
from bb_host import MS, Graph, Output
from bb_host.dsl.calls import Done
from bb_host.dsl.names import snake
from bb_host.errors import (
    ArityError,
    AttributeValueError,
    EmptyBundleError,
    PortNameError,
    RoundsError,
    UnknownPortError,
    ValueTypeError,
)
from bb_host.ir.program import Program
from bb_host.ir.spelling import written

Record = Callable[..., Program]
Text = Callable[..., str]


def test_ports_name_the_values(record: Record, notation: Text) -> None:
    def body(g: Graph) -> None:
        x = g.input("relu_1", "F32", ("n", 2))
        y = g.onnx.relu(x)
        g.output("first", y)
        g.output("again", y)
        g.output("through", x)
        g.output("trigger", g.input("t", "Trigger"))

    assert notation(record(body)).splitlines() == [
        "function program.Main(relu_1: F32[n,2], t: Trigger) -> (first, again, through, trigger) {home=self}",
        "  first: F32[n,2] = Relu(relu_1)",
        "  again: F32[n,2] = Identity(first)",
        "  through: F32[n,2] = Identity(relu_1)",
        "  trigger: Trigger = syscall.PassThrough(t)",
    ]


def test_value_names_avoid_those_of_ports(record: Record) -> None:
    def body(g: Graph) -> None:
        x = g.input("relu_1", "F32")
        g.output("relu_3", g.onnx.neg(g.onnx.relu(g.onnx.relu(x))))

    ops = record(body).functions[0].ops
    assert [op.outputs for op in ops] == [("relu_2",), ("relu_4",), ("relu_3",)]


def test_after_makes_a_source_wait_and_gates_the_others(record: Record, notation: Text) -> None:
    def body(g: Graph) -> None:
        t = g.input("t", "Trigger")
        x = g.input("x", "F32")
        g.onnx.add(x, x, after=t)
        g.onnx.constant(1.0, after=t)
        g.hold_stash("s", x, after=[t, [t]])

    assert notation(record(body)).splitlines()[1:] == [
        "  x_1: F32 = syscall.GateDispatch(x, t)",
        "  add_1: F32 = Add(x_1, x)",
        "  const_1: F32[] = Constant<value=F32[]{1.0}>()",
        "  const_2: F32[] = syscall.GateDispatch(const_1, t)",
        "  x_2: F32 = syscall.GateDispatch(x, t)",
        '  syscall.Hold.Stash<slot="s">(x_2)',
    ]


def test_scopes_are_stamped(record: Record) -> None:
    def body(g: Graph) -> None:
        with g.at("Client"):
            x = g.input("x", "F32")
            with g.with_module("cell"), g.at("Server"):
                y = g.onnx.relu(x + 1)
            z = g.onnx.neg(y)
        g.output("y", z)

    function = record(body).functions[0]
    assert written(function.facts)[keys.INPUT_CLASS_PREFIX + "x"] == "Client"
    stamps = [(op.op_type, written(op.facts).get(keys.AT_CLASS_KEY), op.facts.scope) for op in function.ops]
    assert stamps == [
        ("Constant", None, "Main_cell"),
        ("Add", "Server", "Main_cell"),
        ("Relu", "Server", "Main_cell"),
        ("Neg", "Client", "Main"),
    ]


def test_a_scope_ends_where_its_block_fails(module: Callable[..., Any]) -> None:
    def body(g: Graph) -> None:
        try:
            with g.at("Client"):
                raise KeyError("x")
        except KeyError:
            pass
        assert g.at_scopes == []

    module(body).record()


def test_rounds_record_a_repeat(record: Record, notation: Text) -> None:
    def body(g: Graph) -> None:
        with g.rounds(times=3, pause_ns=5 * MS) as start:
            g.app_emit("number", start.round)
        with g.rounds() as forever:
            g.app_notify("again", g.pass_through(1.0, after=forever))

    assert notation(record(body)).splitlines()[1:3] == [
        "  round_1: I64[] = syscall.Repeat<times=3, pause_ns=5000000>()",
        '  syscall.AppEmit<name="number">(round_1)',
    ]
    assert [op.attrs for op in record(body).functions[0].ops if op.op_type == "Repeat"][1] == {
        "times": 0,
        "pause_ns": 0,
    }


def test_bundles_know_their_parts(record: Record, notation: Text) -> None:
    def body(g: Graph) -> None:
        bundle = g.bundle([g.input("x", "F32", (2,)), g.input("p", "PeerIdVec")])
        seen = g.net_out("it", g.input("peers", "PeerIdVec"), bundle)
        x, p = g.unbundle(seen)
        assert (x.type, p.node) == (ValueType(types.TENSOR_F32, (2,)), types.PEER_ID_VEC)
        (y,) = g.unbundle(g.input("c", "Composite"), ["I64"])
        g.output("y", y)

    lines = notation(record(body)).splitlines()[1:]
    assert lines[0] == (
        "  bundle_1: Composite = composite.Bundle<.composite.child_count=2, "
        '.composite.child_types="ai.bytesandbrains.tensor.f32,bb.peer_id_vec">(x, p)'
    )
    assert lines[2].startswith("  child_0_1: F32[2], child_1_1: PeerIdVec = composite.Unbundle<")
    assert lines[3].startswith("  y: I64 = composite.Unbundle<.composite.child_count=1,")


def test_ops_of_unknown_domains_are_recorded_as_they_stand(record: Record, notation: Text) -> None:
    def body(g: Graph) -> None:
        a, b = g.op("user.app", "Split2", [g.input("x", "F32"), 1.0], ["F32", "Trigger"], {"k": 2})
        g.op("user.app", "Sink", [a, b])

    assert notation(record(body)).splitlines()[2:] == [
        '  split2_1: F32, split2_2: Trigger = "user.app"::Split2<k=2>(x, const_1)',
        '  "user.app"::Sink(split2_1, split2_2)',
    ]


def _value(g: Graph, type_id: str) -> Output:
    known = g.inputs.get(f"in_{type_id.lower().replace('<', '_').replace('>', '')}")
    if known is not None:
        return known
    node = {"T": "F32", "Any": "F32"}.get(type_id, type_id)
    return g.input(f"in_{type_id.lower().replace('<', '_').replace('>', '')}", node)


def _arguments(g: Graph, op: OpDef) -> tuple[list[Output], dict[str, object]]:
    inputs = [_value(g, p.type) for p in op.inputs if p.ready is not Ready.OPTIONAL]
    if op.name == "AsTensor":
        inputs = [g.input("scalar", "Scalar<F32>")]
    if op.name == "AsScalar":
        inputs = [g.input("one", "F32", ())]
    samples = {"INT": 1, "STRING": "s", "ANY": 1.0}
    return inputs, {a.name: samples[a.kind.name] for a in op.attrs if a.required}


@pytest.mark.parametrize("domain", ["syscall", "address_book", "gates"])
def test_every_op_of_the_framework_is_a_call(record: Record, domain: str) -> None:
    full = {
        "syscall": keys.SYSCALL_DOMAIN,
        "address_book": keys.ADDRESS_BOOK_DOMAIN,
        "gates": keys.GATE_DOMAIN,
    }
    table = opsets.opset(full[domain])
    assert table is not None

    def body(g: Graph) -> None:
        namespace = getattr(g, domain)
        assert dir(namespace) == sorted(map(snake, table.ops))
        for op in table.ops.values():
            inputs, attrs = _arguments(g, op)
            found = getattr(namespace, snake(op.name))(*inputs, **attrs)
            if isinstance(found, Done):
                found = found.after_values()
            count = 0 if found is None else 1 if isinstance(found, Output) else len(found)
            assert count == len(op.outputs), op.name

    recorded = {op.op_type for op in record(body).functions[0].ops if op.domain == full[domain]}
    assert recorded == set(table.ops)


def test_every_syscall_that_authors_write_has_a_natural_name(record: Record) -> None:
    def body(g: Graph) -> None:
        t, x = g.pulse(), g.input("x", "F32")
        peer, address = g.input("peer", "PeerId"), g.input("address", "Multiaddress")
        g.interval(5), g.event_source("peer_up"), g.lifecycle_phase(1), g.on_trigger(t), g.threshold(3, t, x)
        g.after(t, 10), g.sleep(t, 10), g.deadline_match(t, g.after(t, 5)), g.clock(t), g.rng_u64(t)
        g.any(t, g.on_trigger(t), group="first"), g.gate(x, t), g.pass_through(x), g.tee(x, 3)
        g.limit_acquire("gate", t, 2), g.limit_release("gate", t)
        g.serialize_enqueue("q", x), g.serialize_dequeue("q", t)
        g.hold_stash("h", x), g.hold_flush("h", t), g.correlate_tag(t)
        g.app_emit("a", x), g.app_notify("n", t), g.record("r", x), g.incr_metric("m", t, delta=2)
        g.constant("text")
        g.address_book_insert(peer, address), g.address_book_lookup(peer)
        g.address_book_insert_many(peer, g.address_book_lookup(peer)), g.address_book_drop(peer)
        g.elapsed(g.clock(t), g.clock(t)), g.as_tensor(g.as_scalar(g.onnx.reduce_mean(x, keepdims=0)))
        peers = g.peer_list(g.own_peer(), peer)
        g.peer_at(peers, 0), g.peer_count(peers)
        g.address_at(g.address_list(address, g.address_of(peer)), 0), g.own_addresses()
        with g.rounds(1) as start:
            g.app_emit("round", start.round)
            start.stop(start.round > 2)
        g.app_notify("when", g.when(g.onnx.reduce_max(x, keepdims=0) > 1))
        with g.loop(2):
            g.app_emit("step", x)
        g.onnx.if_(g.onnx.reduce_max(x, keepdims=0) > 1, lambda b: b.app_emit("x", x), lambda b: None)

    recorded = {(op.domain, op.op_type) for op in record(body).functions[0].ops}
    for domain in (keys.SYSCALL_DOMAIN, keys.ADDRESS_BOOK_DOMAIN):
        table = opsets.opset(domain)
        assert table is not None
        named = {name for found, name in recorded if found == domain}
        of_requests = {"MissingReasons"}  # a property of what `g.request` gives
        assert named == {name for name, op in table.ops.items() if not op.inserted} - of_requests


def test_type_variables_give_the_outputs_type(record: Record) -> None:
    def body(g: Graph) -> None:
        x, y = g.input("x", "F32", (2,)), g.input("y", "I64")
        assert g.pass_through(x).type == ValueType(types.TENSOR_F32, (2,))
        assert [v.type for v in g.tee(x, 2)] == [x.type, x.type]
        assert [v.type for v in g.tee(x, 1)] == [x.type]
        assert g.any(x, y).node is types.TENSOR
        assert g.any(x, x).type == x.type
        assert g.any(x, g.pulse()).node is types.ANY

    record(body)


def test_values_of_one_type_share_its_record(record: Record) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", np.float32, [2, 3])
        y = g.onnx.relu(x)
        g.onnx.if_(
            g.constant(True), then_branch=lambda b: b.onnx.tanh(x + y), else_branch=lambda b: b.onnx.relu(y)
        )
        g.output("z", g.onnx.reduce_sum(x * y, keepdims=0))

    function = record(body).functions[0]
    branches = [graph for op in function.ops for _, graph in op.subgraphs()]
    kinds = [kind for each in (function, *branches) for kind in each.types.values()]
    assert len(branches) == 2 and len({id(kind) for kind in kinds}) == len(set(kinds))


def test_an_onnx_op_without_inputs_is_ordered_by_a_gate_whoever_records_it(record: Record) -> None:
    def body(g: Graph) -> None:
        start = g.pulse()
        attrs = {"shape": [2]}
        (found,) = g.op("", "RandomNormal", [], ["F32"], dict(attrs), after=start)
        g.output("by_hand", found)
        g.output("by_name", g.onnx.random_normal(shape=[2], after=start))

    ops = record(body).functions[0].ops
    assert [op.op_type for op in ops] == ["Pulse", *["RandomNormal", "GateDispatch"] * 2]
    assert [op.outputs for op in ops if op.op_type == "GateDispatch"] == [("by_hand",), ("by_name",)]


def input_twice(g: Graph) -> None:
    g.input("x")
    g.input("x")  # here


def output_named_as_input(g: Graph) -> None:
    g.output("x", g.input("x"))  # here


def no_name(g: Graph) -> None:
    g.input("")  # here


def unknown_output(g: Graph) -> None:
    g.output("y", g.pulse())
    g.lookup_output("z")  # here


def empty_bundle(g: Graph) -> None:
    g.bundle([])  # here


def untyped_unbundle(g: Graph) -> None:
    g.unbundle(g.input("c", "Composite"))  # here


def unbundle_too_much(g: Graph) -> None:
    g.unbundle(g.bundle([1.0]), ["F32", "F32"])  # here


def unbundle_a_tensor(g: Graph) -> None:
    g.unbundle(g.input("x", "F32"), ["F32"])  # here


def rounds_not_entered(g: Graph) -> None:
    g.app_emit("n", g.rounds(3).round)  # here


def rounds_nested(g: Graph) -> None:
    with g.rounds(3) as outer:
        g.app_emit("n", outer.round)
        with g.rounds(3):  # here
            pass


def rounds_reused(g: Graph) -> None:
    rounds = g.rounds(3)
    with rounds as start:
        g.app_emit("n", start.round)
    with rounds:  # here
        pass


def rounds_of_nothing(g: Graph) -> None:
    with g.rounds(3):  # here
        g.pulse()


def rounds_zero(g: Graph) -> None:
    g.rounds(0)  # here


def rounds_negative(g: Graph) -> None:
    g.rounds(-1)  # here


def trigger_wanted(g: Graph) -> None:
    g.after(g.input("x", "F32"), 5)  # here


def no_delay(g: Graph) -> None:
    g.after(g.pulse(), 0)  # here


def threshold_of_nothing(g: Graph) -> None:
    g.threshold(3)  # here


def attribute_missing(g: Graph) -> None:
    g.syscall.after(g.pulse())  # here


def attribute_unknown(g: Graph) -> None:
    g.syscall.pulse(speed=3)  # here


def too_many_inputs(g: Graph) -> None:
    t = g.pulse()
    g.syscall.clock(t, t)  # here


def nothing_among_several(g: Graph) -> None:
    g.any(g.pulse(), None)  # here


def a_keyword_of_another_operator(g: Graph) -> None:
    g.onnx.top_k(g.input("x", "F32"), [3], keepdims=None)  # here


def after_a_number(g: Graph) -> None:
    g.on_trigger(g.pulse(), after=3)  # here


def a_shape_of_triggers(g: Graph) -> None:
    g.input("t", "Trigger", (3,))  # here


@pytest.mark.parametrize(
    ("kind", "body", "what"),
    [
        (PortNameError, input_twice, "the input 'x' is there already"),
        (PortNameError, output_named_as_input, "the output 'x' is there already"),
        (PortNameError, no_name, "'' is not a valid name"),
        (UnknownPortError, unknown_output, "no output 'z'"),
        (EmptyBundleError, empty_bundle, "a bundle of nothing"),
        (EmptyBundleError, untyped_unbundle, "types of the parts are not known"),
        (ArityError, unbundle_too_much, "has 1 parts, not 2"),
        (ValueTypeError, unbundle_a_tensor, "is not a Composite"),
        (RoundsError, rounds_not_entered, "were not entered"),
        (RoundsError, rounds_nested, "rounds within rounds"),
        (RoundsError, rounds_reused, "were entered before"),
        (RoundsError, rounds_of_nothing, "depends on the round"),
        (AttributeValueError, rounds_zero, "0 times"),
        (AttributeValueError, rounds_negative, "not -1"),
        (ValueTypeError, trigger_wanted, "After: input trigger expects a Trigger"),
        (AttributeValueError, no_delay, "delay_ns is a whole number above 0"),
        (ArityError, threshold_of_nothing, "at least one value for inputs"),
        (AttributeValueError, attribute_missing, "After wants an attribute delay_ns"),
        (AttributeValueError, attribute_unknown, "Pulse has no attribute or input 'speed'"),
        (ArityError, too_many_inputs, "Clock takes 1 input, not 2"),
        (ValueTypeError, nothing_among_several, "None is neither a recorded value nor"),
        (AttributeValueError, a_keyword_of_another_operator, "TopK has no attribute or input 'keepdims'"),
        (ValueTypeError, after_a_number, "after= takes values"),
        (ValueTypeError, a_shape_of_triggers, "Trigger has no shape"),
    ],
)
def test_refusals_at_the_authors_line(
    module: Callable[..., Any], kind: type[AuthoringError], body: Callable[[Graph], None], what: str
) -> None:
    with pytest.raises(kind) as caught:
        module(body).build()
    source, start = inspect.getsourcelines(body)
    line = start + next(i for i, text in enumerate(source) if "# here" in text)
    assert what in caught.value.what
    assert caught.value.where == f"test_graph.py:{line}"
