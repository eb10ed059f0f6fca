"""Wrong uses of the catalog: addresses, peers, events, numbers, gates, timers, queues, ports, gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bb_edge import install, load
from bb_edge.components import GraphModel
from bb_edge.engine import steps
from bb_edge.ir.ids import PeerId
from bb_edge.ir.values import TRIGGER
from bb_host import MS, Compiler, Graph, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.errors import (
    ArityError,
    AttributeValueError,
    BackwardWithoutForward,
    CrossExecutionJoin,
    MalformedOp,
    NotWireEligible,
    UnknownOp,
    UnknownPortError,
    UnresolvedType,
    ValueTypeError,
)
from bb_host.learn import mlp, trainable
from tests.aids.refusals import quiet, refused, warned

Body = Callable[[Graph], Any]


def x_of(g: Graph) -> Any:
    return g.input("x", "F32", (2,))


def go_of(g: Graph) -> Any:
    return g.input("go", "Trigger")


# --- refused at recording ---------------------------------------------------------------------------------


def insert_a_list(g: Graph) -> None:
    g.address_book_insert(g.input("peers", "PeerIdVec"), g.input("a", "Multiaddress"))  # <-


def insert_an_address_list(g: Graph) -> None:
    g.address_book_insert(g.own_peer(), g.own_addresses())  # <-


def insert_many_of_one(g: Graph) -> None:
    g.address_book_insert_many(g.own_peer(), g.address_of(g.own_peer()))  # <-


def insert_text(g: Graph) -> None:
    g.address_book_insert(g.own_peer(), "/p2p/QmYw")  # <-


def look_up_a_sender(g: Graph) -> None:
    sent = g.net_out("it", g.input("peers", "PeerIdVec"), x_of(g))
    g.address_book_lookup(sent.sender)  # <-


def send_to_one_peer(g: Graph) -> None:
    g.net_out("it", g.own_peer(), x_of(g))  # <-


def ask_one_peer(g: Graph) -> None:
    g.request("it", g.input("peer", "PeerId"), x_of(g), deadline_ns=S)  # <-


def a_list_of_lists(g: Graph) -> None:
    g.peer_list(g.input("peers", "PeerIdVec"))  # <-


def a_list_of_nobody(g: Graph) -> None:
    g.peer_list()  # <-


def a_peer_by_half(g: Graph) -> None:
    g.peer_at(g.input("peers", "PeerIdVec"), 0.5)  # <-


def count_one_peer(g: Graph) -> None:
    g.peer_count(g.own_peer())  # <-


def add_to_a_peer(g: Graph) -> None:
    g.own_peer() + 1  # <-


def an_event_misspelt(g: Graph) -> None:
    g.event_source("peer_upp")  # <-


def an_event_that_is_none(g: Graph) -> None:
    g.event_source(99)  # <-


def an_event_below_zero(g: Graph) -> None:
    g.event_source(-1)  # <-


def an_event_of_true(g: Graph) -> None:
    g.event_source(True)  # <-


def an_event_compared_to_a_typo(g: Graph) -> None:
    g.is_event(g.event_source("peer_up"), "peerup")  # <-


def an_event_that_is_a_tensor(g: Graph) -> None:
    g.is_event(x_of(g), "peer_up")  # <-


def arithmetic_on_an_event(g: Graph) -> None:
    g.event_source("peer_up") * 2  # <-


def a_difference_of_clocks(g: Graph) -> None:
    go = go_of(g)
    g.clock(go) - g.clock(go)  # <-


def elapsed_from_a_number(g: Graph) -> None:
    g.elapsed(0, g.clock(go_of(g)))  # <-


def a_scalar_of_many(g: Graph) -> None:
    g.as_scalar(x_of(g))  # <-


def a_scalar_of_i64(g: Graph) -> None:
    g.as_scalar(g.input("n", "I64", ()))  # <-


def a_scalar_in_arithmetic(g: Graph) -> None:
    g.input("s", "Scalar<F32>") + 1.0  # <-


def a_tensor_of_a_tensor(g: Graph) -> None:
    g.as_tensor(x_of(g))  # <-


def a_tensor_of_a_peer(g: Graph) -> None:
    g.as_tensor(g.own_peer())  # <-


def a_tensor_of_a_number(g: Graph) -> None:
    g.as_tensor(3)  # type: ignore[arg-type]  # <-


def a_negative_delay(g: Graph) -> None:
    g.after(go_of(g), -5 * MS)  # <-


def a_delay_of_seconds(g: Graph) -> None:
    g.sleep(go_of(g), 0.5)  # type: ignore[arg-type]  # <-


def an_interval_of_nothing(g: Graph) -> None:
    g.interval(0)  # <-


def a_negative_interval(g: Graph) -> None:
    g.interval(-S)  # <-


def a_threshold_of_nothing(g: Graph) -> None:
    g.threshold(0, go_of(g))  # <-


def a_threshold_over_nothing(g: Graph) -> None:
    g.threshold(3)  # <-


def a_limit_of_nothing(g: Graph) -> None:
    g.limit_acquire("l", go_of(g), 0)  # <-


def a_limit_of_true(g: Graph) -> None:
    g.limit_acquire("l", go_of(g), True)  # <-


def a_tee_of_nothing(g: Graph) -> None:
    g.tee(x_of(g), 0)  # <-


def a_flush_triggered_by_what_says_when(g: Graph) -> None:
    g.app_emit("y", g.hold_flush("h", g.hold_stash("h", x_of(g))))  # <-


def an_unknown_phase(g: Graph) -> None:
    g.lifecycle_phase(3)  # <-


def a_clock_of_a_tensor(g: Graph) -> None:
    g.clock(x_of(g))  # <-


def a_metric_by_half(g: Graph) -> None:
    g.incr_metric("m", go_of(g), delta=0.5)  # type: ignore[arg-type]  # <-


def a_metric_that_falls(g: Graph) -> None:
    g.incr_metric("m", go_of(g), delta=-3)  # <-


def a_metric_of_the_node(g: Graph) -> None:
    g.incr_metric("ops.failed", go_of(g))  # <-


def a_metric_spelt_as_one_of_the_node(g: Graph) -> None:
    g.syscall.incr_metric(go_of(g), name="ops_failed")  # <-


def a_topic_that_is_a_number(g: Graph) -> None:
    g.app_emit(7, x_of(g))  # type: ignore[arg-type]  # <-


def a_queue_without_name(g: Graph) -> None:
    g.serialize_enqueue(None, x_of(g))  # type: ignore[arg-type]  # <-


def a_hold_of_nothing(g: Graph) -> None:
    g.hold_stash("h", None)  # type: ignore[arg-type]  # <-


def an_op_that_is_none(g: Graph) -> None:
    g.syscall.sleeep(go_of(g), duration_ns=5)  # <-


def what_is_done_as_a_value(g: Graph) -> None:
    g.app_emit("x", g.hold_stash("h", x_of(g)))  # type: ignore[arg-type]  # <-


def a_gate_that_says_across(g: Graph) -> None:
    g.gate(x_of(g), go_of(g), across=1)  # type: ignore[call-arg]  # <-


class Sends(Module):
    def body(self, g: Graph) -> None:
        g.net_out("news", g.input("to", "PeerIdVec"), g.input("x", "F32", (2,)))


class Reads(Module):
    def body(self, g: Graph) -> None:
        g.app_emit("read", g.lookup_output("news"))  # <-


def a_port_read_before_it_is_sent_to(g: Graph) -> None:
    g.call(Reads())
    g.call(Sends(), to=g.input("to", "PeerIdVec"), x=x_of(g))


def a_port_misspelt(g: Graph) -> None:
    call = g.call(Sends(), to=g.input("to", "PeerIdVec"), x=x_of(g))
    call.output("newz")  # <-


def a_port_of_two_calls(g: Graph) -> None:
    to, x, module = g.input("to", "PeerIdVec"), x_of(g), Sends()
    g.call(module, to=to, x=x)
    g.call(module, to=to, x=x)
    g.lookup_output("news")  # <-


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (insert_a_list, ValueTypeError, ("expects a PeerId", "PeerIdVec", "g.peer_at")),
        (insert_an_address_list, ValueTypeError, ("expects a Multiaddress", "g.address_at")),
        (insert_many_of_one, ValueTypeError, ("expects a AddressVec", "g.address_list")),
        (insert_text, ValueTypeError, ("expects a Multiaddress", "/p2p/QmYw", "g.address_of")),
        (look_up_a_sender, ValueTypeError, ("expects a PeerId", "g.peer_at")),
        (send_to_one_peer, ValueTypeError, ("PeerIdVec", "g.peer_list")),
        (ask_one_peer, ValueTypeError, ("PeerIdVec", "g.peer_list")),
        (a_list_of_lists, ValueTypeError, ("expects a PeerId", "g.peer_at")),
        (a_list_of_nobody, ArityError, ("at least one",)),
        (a_peer_by_half, ValueTypeError, ("0.5",)),
        (a_flush_triggered_by_what_says_when, ValueTypeError, ("<hold_stash: done>", "pass it as after=")),
        (count_one_peer, ValueTypeError, ("expects a PeerIdVec", "g.peer_list")),
        (add_to_a_peer, ValueTypeError, ("Add", "PeerId")),
        (an_event_misspelt, AttributeValueError, ("peer_upp", "did you mean 'peer_up'?")),
        (an_event_that_is_none, AttributeValueError, ("99", "peer_up", "1000")),
        (an_event_below_zero, AttributeValueError, ("-1", "peer_up")),
        (an_event_of_true, AttributeValueError, ("True", "peer_up")),
        (an_event_compared_to_a_typo, AttributeValueError, ("peerup", "did you mean 'peer_up'?")),
        (an_event_that_is_a_tensor, ValueTypeError, ("AsTensor", "Tensor<F32>", "already")),
        (arithmetic_on_an_event, ValueTypeError, ("EventKind", "g.as_tensor")),
        (a_difference_of_clocks, ValueTypeError, ("Timestamp", "g.elapsed")),
        (elapsed_from_a_number, ValueTypeError, ("expects a Timestamp", "0")),
        (a_scalar_of_many, ValueTypeError, ("one element", "reduce")),
        (a_scalar_of_i64, ValueTypeError, ("I64", "g.onnx.cast")),
        (a_scalar_in_arithmetic, ValueTypeError, ("Scalar<F32>", "g.as_tensor")),
        (a_tensor_of_a_tensor, ValueTypeError, ("a tensor is a number already",)),
        (a_tensor_of_a_peer, ValueTypeError, ("PeerId", "Timestamp")),
        (a_tensor_of_a_number, ValueTypeError, ("3",)),
        (a_negative_delay, AttributeValueError, ("delay_ns", "-5000000")),
        (a_delay_of_seconds, AttributeValueError, ("duration_ns", "0.5")),
        (an_interval_of_nothing, AttributeValueError, ("period_ns", "0")),
        (a_negative_interval, AttributeValueError, ("period_ns", "-1000000000")),
        (a_threshold_of_nothing, AttributeValueError, ("n ", "0")),
        (a_threshold_over_nothing, ArityError, ("at least one",)),
        (a_limit_of_nothing, AttributeValueError, ("n ", "0")),
        (a_limit_of_true, AttributeValueError, ("True",)),
        (a_tee_of_nothing, AttributeValueError, ("fanout", "0")),
        (an_unknown_phase, AttributeValueError, ("phase", "3")),
        (a_clock_of_a_tensor, ValueTypeError, ("expects a Trigger", "g.threshold")),
        (a_metric_by_half, AttributeValueError, ("delta", "0.5")),
        (a_metric_that_falls, AttributeValueError, ("-3", "only goes up")),
        (a_metric_of_the_node, AttributeValueError, ("'ops.failed'", "node's own", "'app.ops.failed'")),
        (a_metric_spelt_as_one_of_the_node, AttributeValueError, ("'ops_failed'", "node's own")),
        (a_topic_that_is_a_number, AttributeValueError, ("name", "7")),
        (a_queue_without_name, AttributeValueError, ("queue",)),
        (a_hold_of_nothing, ArityError, ("value",)),
        (an_op_that_is_none, UnknownOp, ("sleeep", "did you mean 'sleep'?")),
        (what_is_done_as_a_value, ValueTypeError, ("hold_stash", "after=")),
        (a_port_read_before_it_is_sent_to, UnknownPortError, ("'news'", "call the module that sends")),
        (a_port_misspelt, UnknownPortError, ("newz", "did you mean 'news'?")),
        (a_port_of_two_calls, UnknownPortError, ("2 calls", ".input(")),
    ],
)
def test_refused_where_it_is_recorded(record: Any, body: Body, kind: type, words: tuple[str, ...]) -> None:
    with refused(kind, *words):
        record(body)


# --- refused when it is compiled --------------------------------------------------------------------------

MODEL = ModelSlot("model")
CLIENTS = PeerSelectorSlot("clients", "bb.PresenceSelector", peer_class="Client", at="Server")


def compiler(learning: bool = True) -> Compiler:
    return Compiler().bind_model(
        "model", GraphModel, trainable(mlp([2, 2], 0), loss="mse", learning=learning)
    )


def a_timestamp_that_travels(g: Graph) -> None:
    g.net_out("when", g.input("to", "PeerIdVec"), g.clock(go_of(g)))  # <-


def a_token_that_travels(g: Graph) -> None:
    g.net_out("it", g.input("to", "PeerIdVec"), g.correlate_tag(go_of(g)))  # <-


def an_event_that_travels(g: Graph) -> None:
    event = g.event_source("peer_up")
    g.net_out("it", g.peer_list(g.own_peer(after=event)), event)  # <-


@pytest.mark.parametrize("body", [a_timestamp_that_travels, a_token_that_travels, an_event_that_travels])
def test_what_does_not_travel_is_refused(module: Any, body: Body) -> None:
    with refused(NotWireEligible):
        Compiler().compile(module(body))


def backward_alone(g: Graph) -> None:
    MODEL.backward(g, g.input("grad", "F32", (1, 2)))  # <-


def forward_in_another_execution(g: Graph) -> None:
    y = MODEL.forward(g, g.input("x", "F32", (1, 2)))
    g.app_emit("y", y)
    tick = g.interval(S)
    MODEL.backward(g, g.constant(np.zeros((1, 2), np.float32)), after=tick)  # <-


class ServerFirst(Module):
    """The server asks for activations in one request, and sends gradients in another execution."""

    home = "Client"
    servers = PeerSelectorSlot("servers", "bb.PresenceSelector", peer_class="Server", at="Client")

    def body(self, g: Graph) -> None:
        with g.at("Server"):
            to = g.input("to", "PeerIdVec")
            go = g.input("go", "Trigger")
        asked = g.net_out("ask", to, go)
        g.net_out(
            "activations",
            asked.sender,
            MODEL.forward(g, g.constant(np.ones((1, 2), np.float32)), after=asked),
        )
        with g.at("Server"):
            grad = g.input("grad", "F32", (1, 2))
        sent = g.net_out("gradient", to, grad)
        MODEL.backward(g, sent)  # <-


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (backward_alone, ("runs 'model' forward", "model.forward(g, x)")),
        (forward_in_another_execution, ("Interval", "in the same one")),
    ],
)
def test_a_gradient_without_activations_is_refused(module: Any, body: Body, words: tuple[str, ...]) -> None:
    with refused(BackwardWithoutForward, *words):
        compiler().compile(module(body))


def test_a_gradient_that_comes_in_another_execution_than_its_activations_is_refused() -> None:
    with refused(BackwardWithoutForward, "Recv"):
        compiler().compile(ServerFirst())


def learns(g: Graph) -> None:
    y = MODEL.forward(g, g.input("x", "F32", (1, 2)))
    MODEL.step(g, after=MODEL.backward(g, y))  # <-


def test_a_gradient_of_a_model_that_was_built_without_is_refused(module: Any) -> None:
    with refused(BackwardWithoutForward, "has no gradient", "learning=True"):
        compiler(learning=False).compile(module(learns))
    quiet(module(learns), compiler())


def trains(g: Graph) -> None:
    loss = MODEL.train(g, g.input("x", "F32", (1, 2)), g.input("t", "F32", (1, 2)))  # <-
    MODEL.step(g, after=loss)


def test_batches_for_a_model_that_was_built_without_a_gradient_are_refused(module: Any) -> None:
    with refused(BackwardWithoutForward, "cannot be trained on batches", "learning=True"):
        compiler(learning=False).compile(module(trains))
    quiet(module(trains), compiler())


def two_sizes(g: Graph) -> None:
    go = go_of(g)
    g.app_notify("a", g.limit_acquire("l", go, 2))
    g.app_notify("b", g.limit_acquire("l", go, 3))  # <-


def test_a_limit_of_two_sizes_is_refused(module: Any) -> None:
    with refused(MalformedOp, "limit 'l' has 3 permits here, and 2"):
        Compiler().compile(module(two_sizes))


def two_counters(g: Graph) -> None:
    go = go_of(g)
    g.incr_metric("my.metric", go)
    g.incr_metric("my.metric", go, delta=2)
    g.incr_metric("my_metric", go)  # <-


def test_two_counters_that_metrics_spell_alike_are_refused(module: Any) -> None:
    with refused(MalformedOp, "'my.metric'", "'my_metric'", "bb_my_metric_total"):
        Compiler().compile(module(two_counters))


def a_gate_of_two_entries(g: Graph) -> None:
    g.app_emit("y", g.gate(g.interval(S), g.event_source("peer_up")))  # <-


def test_a_gate_that_no_host_opens_needs_one_execution(module: Any) -> None:
    with refused(CrossExecutionJoin, "never meet", "Hold"):
        Compiler().compile(module(a_gate_of_two_entries))


def a_flush_of_nothing(g: Graph) -> None:
    g.app_emit("y", g.hold_flush("h", go_of(g)))  # <-


def a_dequeue_of_another_queue(g: Graph) -> None:
    g.app_notify("n", g.serialize_enqueue("jobs", x_of(g)))
    g.app_emit("y", g.serialize_dequeue("job", go_of(g)))  # <-


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (a_flush_of_nothing, ("slot 'h'", "g.hold_stash('h', …)")),
        (a_dequeue_of_another_queue, ("queue 'job'", "g.serialize_enqueue('job', …)")),
    ],
)
def test_what_nothing_puts_in_is_not_taken_out(module: Any, body: Body, words: tuple[str, ...]) -> None:
    with refused(UnresolvedType, *words):
        Compiler().compile(module(body))


# --- warned of --------------------------------------------------------------------------------------------


def a_stash_alone(g: Graph) -> None:
    g.hold_stash("h", x_of(g))  # <-


def a_flush_alone(g: Graph) -> None:
    g.app_emit("y", g.as_tensor(g.clock(g.on_trigger(go_of(g)))))
    g.app_notify("n", g.hold_flush("h", g.inputs["go"]))  # <-


def an_enqueue_alone(g: Graph) -> None:
    g.app_notify("n", g.serialize_enqueue("q", x_of(g)))  # <-


def a_dequeue_of_another_name(g: Graph) -> None:
    g.app_notify("n", g.serialize_enqueue("jobs", x_of(g)))  # <-
    g.app_notify("m", g.serialize_dequeue("job", go_of(g)))


def a_release_alone(g: Graph) -> None:
    g.limit_release("l", go_of(g))  # <-


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (a_stash_alone, ("nothing flushes", "g.hold_flush('h', …)")),
        (an_enqueue_alone, ("nothing takes", "g.serialize_dequeue('q', …)")),
        (a_release_alone, ("nothing acquires", "g.limit_acquire('l', …)")),
    ],
)
def test_half_of_a_pair_is_warned_of(module: Any, body: Body, words: tuple[str, ...]) -> None:
    warned("missing-half", *words, program=module(body), compiler=Compiler().with_strict_types(False))


@pytest.mark.parametrize(("body", "count"), [(a_flush_alone, 1), (a_dequeue_of_another_name, 2)])
def test_halves_of_other_names_do_not_meet(module: Any, body: Body, count: int) -> None:
    found = Compiler().with_strict_types(False).run(module(body)).warnings
    assert [w.code for w in found] == ["missing-half"] * count


class Across(Module):
    """What clients stash, the server cannot flush."""

    home = "Server"

    def body(self, g: Graph) -> None:
        with g.at("Client"):
            g.hold_stash("h", g.input("x", "F32", (2,)))
        g.app_notify("y", g.hold_flush("h", g.input("go", "Trigger")))


def test_halves_on_two_classes_do_not_meet() -> None:
    found = Compiler().with_strict_types(False).run(Across()).warnings
    assert [w.code for w in found] == ["missing-half"] * 2
    assert {"on Client" in w.what for w in found} == {True, False}


# --- right ------------------------------------------------------------------------------------------------


def run(module: Module, *invokes: dict[str, Any]) -> tuple[list[Any], list[str]]:
    """What a device emits as `y` for these invokes, one after the other, and what failed."""
    data = Compiler().compile(module).SerializeToString()
    node = install(PeerId.from_name("n"), (), load(data), ["Main"], seed=1)
    values: list[Any] = []
    failed: list[str] = []
    for number, inputs in enumerate(invokes):
        node.invoke("Main", inputs)
        for step in node.poll(number):
            if isinstance(step, steps.AppEvent) and step.topic == "y":
                values.append(step.value)
            if isinstance(step, steps.OpFailed):
                failed.append(str(step.error))
            assert not isinstance(step, steps.ExecutionStarved)
    return values, failed


def look_up_behind_insert(g: Graph) -> None:
    me = g.own_peer(after=go_of(g))
    inserted = g.address_book_insert(me, g.address_of(me))
    g.app_emit("y", g.address_book_lookup(me, after=inserted))


def flush_behind_stash(g: Graph) -> None:
    x = x_of(g)
    stashed = g.hold_stash("h", x)
    g.app_emit("y", g.hold_flush("h", g.threshold(1, x), after=stashed))


def test_ops_without_a_value_are_waited_for(module: Any) -> None:
    values, failed = run(module(look_up_behind_insert), {"go": TRIGGER})
    assert (len(values), failed) == (1, [])
    x = np.ones(2, np.float32)
    values, failed = run(module(flush_behind_stash), {"x": x})
    assert ([v.tolist() for v in values], failed) == ([[1, 1]], [])


def opened_by_the_host(g: Graph) -> None:
    g.app_emit("y", g.gate(x_of(g), go_of(g)))


def test_value_and_trigger_of_a_gate_in_two_invokes_starve_nobody(module: Any) -> None:
    x = np.ones(2, np.float32)
    values, failed = run(module(opened_by_the_host), {"x": x}, {"go": TRIGGER}, {"go": TRIGGER}, {"x": x * 2})
    assert ([v.tolist() for v in values], failed) == ([[1, 1], [2, 2]], [])


def the_first_of_nobody(g: Graph) -> None:
    g.app_emit("y", g.peer_at(g.input("peers", "PeerIdVec"), 0))


def test_a_peer_of_an_empty_list_fails_its_op_by_name(module: Any) -> None:
    values, failed = run(module(the_first_of_nobody), {"peers": ()})
    assert values == []
    assert len(failed) == 1 and "no peer at 0: the list has 0" in failed[0]
