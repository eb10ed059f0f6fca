"""Mistakes that would run and do nothing, or that Python alone would name: said at the author's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bb_edge.components import ConstantView, FedAvg, GraphModel
from bb_host import AggregatorSlot, Compiler, DataSourceSlot, Graph, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.errors import (
    ArityError,
    BindingError,
    CallError,
    CrossClassDataflow,
    LearnError,
    MalformedOp,
    ModuleError,
    TypeConstraintFailed,
    UnknownAttributeError,
    ValueTypeError,
)
from bb_host.learn import mlp, trainable
from tests.aids.refusals import quiet, refused, warned


class Told(Module):
    """A server with clients; the test gives the body."""

    name, home = "Told", "Server"
    clients = PeerSelectorSlot("clients", ConstantView, peer_class="Client", at="Server")

    def __init__(self, body: Callable[[Any, Graph], Any]) -> None:
        super().__init__()
        self._body = body

    def body(self, g: Graph) -> None:
        self._body(self, g)

    def all(self, g: Graph) -> Any:
        return self.clients.current_view(g, after=g.pulse())

    def asked(self, g: Graph, start: Any, value: Any) -> Any:
        return g.request("ask", self.clients.sample(g, n=2, after=start), value, deadline_ns=S)


class Sums(Told):
    """One with an aggregator."""

    agg = AggregatorSlot("agg", FedAvg, at="Server")


FOUR = np.zeros(4, np.float32)


# --- bindings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [None, "Server"])
def test_a_slot_bound_twice_is_refused(target: str | None) -> None:
    once = Compiler().bind_aggregator("agg", FedAvg, {"clip_norm": 2.0}, target)
    with refused(BindingError, "'agg' is bound twice", "test.Mean", "bb.FedAvg (test_unsaid_mistakes.py:"):
        once.bind_aggregator("agg", "test.Mean", None, target)  # <-


def test_a_binding_may_stand_beside_that_of_one_class_and_above_a_default() -> None:
    def body(m: Any, g: Graph) -> None:
        g.app_emit("mean", m.agg.current_tensor(g, after=m.all(g)))

    both = Compiler().bind_aggregator("agg", FedAvg).bind_aggregator("agg", FedAvg, target="Server")
    assert len(both.bindings) == 2
    quiet(Sums(body), Compiler().bind_aggregator("agg", FedAvg, {"clip_norm": 1.0}))


def test_a_binding_is_taken_back_before_another_one_takes_its_place() -> None:
    first = Compiler().bind_aggregator("agg", FedAvg).bind_aggregator("agg", FedAvg, target="Server")
    other = first.without_binding("agg").bind_aggregator("agg", FedAvg, {"clip_norm": 1.0})
    assert [b.target for b in other.bindings] == ["Server", None]
    assert first.bindings != other.bindings
    with refused(BindingError, "slot 'agg' has no binding for Client", "without_binding"):
        first.without_binding("agg", target="Client")  # <-
    with refused(BindingError, "slot 'ag' has no binding", "agg"):
        first.without_binding("ag")  # <-


# --- sums -------------------------------------------------------------------------------------------------


def test_a_contribution_that_nothing_aggregates() -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            r = m.asked(g, start, g.constant(FOUR))
            r.reply(r.value)
            m.agg.contribute(g, r.answer, peer=r.answer.sender)  # <-

    warned("missing-half", "nothing aggregates", "'agg'", "aggregate(g, …)", program=Sums(body))


def test_an_aggregate_to_which_nothing_is_contributed() -> None:
    def body(m: Any, g: Graph) -> None:
        start = m.all(g)
        g.app_emit("mean", m.agg.aggregate(g, after=start)[0])  # <-

    warned("missing-half", "nothing is contributed", "contribute(g, …)", program=Sums(body))


def summed(after: Callable[[Any, Graph, Any, Any], Any], together: bool = True) -> Any:
    """A body whose aggregate waits for what `after` gives of module, graph, start and request."""

    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            x = g.constant(FOUR)
            r = m.asked(g, start, x)
            r.reply(r.value)
            m.agg.contribute(g, r.answer, peer=r.answer.sender, sent=x)
            behind = after(m, g, start, r)
            mean, _ = m.agg.aggregate(g, **({} if behind is None else {"after": behind}))  # <-
            g.app_emit("mean", g.bundle([start.round, mean]) if together else mean)

    return body


@pytest.mark.parametrize("after", [lambda m, g, start, r: None, lambda m, g, start, r: start])
def test_an_aggregate_that_does_not_wait_for_its_answers(after: Any) -> None:
    warned("early-aggregate", "'agg'", "the round before", "after=r.closed", program=Sums(summed(after)))


def summed_of(
    peers: Callable[[Any, Graph, Any], Any], close: Callable[[Any, Graph, Any, Any, Any], Any]
) -> Any:
    """A body that asks `peers`, contributes each answer, and emits the mean that `close` gives."""

    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            x = g.constant(FOUR)
            r = g.request("ask", peers(m, g, start), x, deadline_ns=S)
            r.reply(r.value)
            given = m.agg.contribute(g, r.answer, weight=2.0, peer=r.answer.sender, sent=x)
            g.app_emit("mean", close(m, g, r, given, x)[0])

    return body


def two(m: Any, g: Graph, start: Any) -> Any:
    return m.clients.sample(g, n=2, after=start)


def test_an_aggregate_that_runs_once_for_each_answer() -> None:
    def behind_its_contribution(m: Any, g: Graph, r: Any, given: Any, x: Any) -> Any:
        return m.agg.aggregate(g, after=given)  # <-

    def behind_the_answer(m: Any, g: Graph, r: Any, given: Any, x: Any) -> Any:
        return m.agg.aggregate(g, after=[g.app_emit("answer", r.answer), x])  # <-

    def everyone(m: Any, g: Graph, start: Any) -> Any:
        return m.clients.current_view(g, after=start)

    for peers in two, everyone:
        for close in behind_its_contribution, behind_the_answer:
            words = "'agg'", "once for each answer", "that answer alone", "aggregate(g, after=r.closed)"
            warned("early-aggregate", *words, program=Sums(summed_of(peers, close)))


def test_an_aggregate_for_each_answer_that_may_be_meant_is_quiet() -> None:
    def mixed(m: Any, g: Graph, r: Any, given: Any, x: Any) -> Any:
        own = m.agg.contribute(g, x, peer=g.peer_list(g.own_peer(after=given)), sent=x)
        return m.agg.aggregate(g, after=own)

    def every_second(m: Any, g: Graph, r: Any, given: Any, x: Any) -> Any:
        return m.agg.aggregate(g, after=g.threshold(2, given))

    def some(m: Any, g: Graph, r: Any, given: Any, x: Any) -> Any:
        return m.agg.aggregate(g, after=g.when(g.onnx.reduce_max(r.answer, keepdims=0) > 0.0))

    def rows(m: Any, g: Graph, r: Any, given: Any, x: Any) -> Any:
        return m.agg.aggregate(g, g.onnx.unsqueeze(r.answer, [0]), after=given)

    def each(m: Any, g: Graph, r: Any, given: Any, x: Any) -> Any:
        return m.agg.aggregate(g, after=given)

    def one(m: Any, g: Graph, start: Any) -> Any:
        return m.clients.sample(g, n=1, after=start)

    def itself(m: Any, g: Graph, start: Any) -> Any:
        return g.peer_list(g.own_peer(after=start))

    several = [(two, close) for close in (mixed, every_second, some, rows)]
    for peers, close in [*several, (one, each), (itself, each)]:
        codes = [w.code for w in Compiler().run(Sums(summed_of(peers, close))).warnings]
        assert "early-aggregate" not in codes, close.__name__


@pytest.mark.parametrize("waits", [False, True])
def test_an_aggregate_in_a_branch_that_does_not_wait_for_its_answers(waits: bool) -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            r = m.asked(g, start, g.constant(FOUR))
            r.reply(r.value)
            m.agg.contribute(g, r.answer, peer=r.answer.sender)

            def mean(b: Graph) -> Any:
                return m.agg.aggregate(b, after=r.closed if waits else start)[0]  # <-

            g.app_emit("mean", g.onnx.if_(start.round > 1, mean, lambda b: b.constant(FOUR)))

    if waits:
        quiet(Sums(body))
    else:
        warned("early-aggregate", "'agg'", "or nothing", "after=r.closed in the", program=Sums(body))


def test_an_aggregate_whose_total_is_read_alone() -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            x = g.constant(FOUR)
            r = m.asked(g, start, x)
            r.reply(r.value)
            m.agg.contribute(g, r.answer, peer=r.answer.sender, sent=x)
            _, total = m.agg.aggregate(g, after=r.closed)  # <-
            g.app_emit("total", g.bundle([start.round, total]))

    warned("unread-aggregate", "'agg'", "the total", "load_parameters", program=Sums(body))


def test_an_aggregate_that_is_read_as_the_last_one() -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            x = g.constant(FOUR)
            r = m.asked(g, start, x)
            r.reply(r.value)
            m.agg.contribute(g, r.answer, peer=r.answer.sender, sent=x)
            mean, _ = m.agg.aggregate(g, after=r.closed)
            g.app_emit("last", m.agg.current_tensor(g, after=mean))

    quiet(Sums(body))


def contributed_twice(second: Callable[[Any, Graph, Any, Any], Any]) -> Any:
    """A body with a contribution of each answer, and a second one."""

    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            x = g.constant(FOUR)
            r = m.asked(g, start, x)
            r.reply(r.value)
            m.agg.contribute(g, r.answer, peer=r.answer.sender, sent=x)
            second(m, g, r, x)
            g.app_emit("mean", g.bundle(list(m.agg.aggregate(g, after=r.closed))))

    return body


def test_a_second_contribution_of_one_peer_to_one_sum() -> None:
    def again(m: Any, g: Graph, r: Any, x: Any) -> None:
        m.agg.contribute(g, r.answer * 2.0, peer=r.answer.sender, sent=x)  # <-

    words = "'agg'", "of the same peer", "the other is left out", "a slot for each"
    warned("second-contribution", *words, program=Sums(contributed_twice(again)))


def test_of_two_contributions_behind_conditions_and_aggregates_both_may_count() -> None:
    def behind_a_condition(m: Any, g: Graph, r: Any, x: Any) -> None:
        large = g.when(g.onnx.reduce_max(r.answer, keepdims=0) > 0.0)
        m.agg.contribute(g, r.answer * 2.0, peer=r.answer.sender, sent=x, after=large)

    def behind_an_aggregate(m: Any, g: Graph, r: Any, x: Any) -> None:
        mean, _ = m.agg.aggregate(g, g.constant(np.zeros((1, 4), np.float32)), after=r.answer)
        m.agg.contribute(g, r.answer * 2.0, peer=r.answer.sender, sent=x, after=mean)

    for second in (behind_a_condition, behind_an_aggregate):
        codes = [w.code for w in Compiler().run(Sums(contributed_twice(second))).warnings]
        assert "second-contribution" not in codes

    def behind_the_first(m: Any, g: Graph, r: Any, x: Any) -> None:
        given = m.agg.contribute(g, r.answer * 2.0, sent=x)
        m.agg.contribute(g, r.answer * 3.0, peer=r.answer.sender, sent=x, after=given)  # <-

    warned("second-contribution", "of the same peer", program=Sums(contributed_twice(behind_the_first)))


def test_contributions_of_two_peers_or_of_none_are_quiet() -> None:
    def own(m: Any, g: Graph, r: Any, x: Any) -> None:
        m.agg.contribute(g, x, peer=g.peer_list(g.own_peer(after=r.closed)))

    def nobodys(m: Any, g: Graph, r: Any, x: Any) -> None:
        m.agg.contribute(g, r.answer * 2.0, sent=x)

    for second in (own, nobodys):
        assert "second-contribution" not in [
            w.code for w in Compiler().run(Sums(contributed_twice(second))).warnings
        ]


def summed_twice(*closing: Callable[[Any, Graph, Any, Any, Any], Any]) -> Any:
    """A body with one aggregate per function of `closing`: of module, graph, start, request and value."""

    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            x = g.constant(FOUR)
            r = m.asked(g, start, x)
            r.reply(r.value)
            m.agg.contribute(g, r.answer, peer=r.answer.sender, sent=x)
            for number, close in enumerate(closing):
                g.app_emit(f"mean.{number}", close(m, g, start, r, x)[0])

    return body


def test_a_second_aggregate_of_one_sum() -> None:
    def first(m: Any, g: Graph, start: Any, r: Any, x: Any) -> Any:
        return m.agg.aggregate(g, after=r.closed)

    def second(m: Any, g: Graph, start: Any, r: Any, x: Any) -> Any:
        return m.agg.aggregate(g, after=r.closed)  # <-

    def behind(m: Any, g: Graph, start: Any, r: Any, x: Any) -> Any:
        mean, _ = m.agg.aggregate(g, after=r.closed)
        return m.agg.aggregate(g, after=g.app_emit("norm", g.onnx.reduce_sum(mean)))  # <-

    words = ("slot 'agg'", "takes the same sum", "test_unsaid_mistakes.py:", "use both of its results")
    warned("spent-aggregate", *words, program=Sums(summed_twice(first, second)))
    warned("spent-aggregate", *words, program=Sums(summed_twice(behind)))


def test_aggregates_of_two_sums_are_quiet() -> None:
    def closed(m: Any, g: Graph, start: Any, r: Any, x: Any) -> Any:
        return m.agg.aggregate(g, after=r.closed)

    def a_stack(m: Any, g: Graph, start: Any, r: Any, x: Any) -> Any:
        return m.agg.aggregate(g, g.constant(np.zeros((2, 4), np.float32)), after=r.closed)

    def of_a_second_request(m: Any, g: Graph, start: Any, r: Any, x: Any) -> Any:
        peers = m.clients.sample(g, n=2, after=r.closed)
        again = g.request("again", peers, x, deadline_ns=S)
        again.reply(again.value)
        m.agg.contribute(g, again.answer, peer=again.answer.sender, sent=x)
        return m.agg.aggregate(g, after=again.closed)

    def later(m: Any, g: Graph, start: Any, r: Any, x: Any) -> Any:
        return m.agg.aggregate(g, after=g.sleep(r.closed, S))

    for other in (a_stack, of_a_second_request, later):
        quiet(Sums(summed_twice(closed, other)))


def test_aggregates_of_two_rounds_are_quiet() -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            x = g.constant(FOUR)
            r = m.asked(g, start, x)
            r.reply(r.value)
            m.agg.contribute(g, r.answer, peer=r.answer.sender, sent=x, round=start.round)
            before = start.round - 1
            for number, at in enumerate((start.round, before)):
                g.app_emit(f"mean.{number}", m.agg.aggregate(g, round=at, after=r.closed)[0])

    quiet(Sums(body))


def answered(read: Callable[[Any, Graph], Any]) -> Any:
    """A body that replies with two values, and whose asking side reads what `read` emits."""

    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            r = m.asked(g, start, g.constant(FOUR))
            r.reply([r.value * 2.0, r.value * 3.0])  # <-
            read(r, g)

    return body


def test_a_part_of_an_answer_that_nothing_reads() -> None:
    def each(r: Any, g: Graph) -> None:
        g.app_emit("first", r.answer[0])

    warned("unread-answer", "part 2 of the 2", "leave it out of r.reply", program=Told(answered(each)))

    def many(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            r = m.asked(g, start, g.constant(FOUR))
            r.reply([r.value * float(number) for number in range(1, 10)])  # <-
            g.app_emit("first", r.answer[0])

    warned("unread-answer", "part 2, 3, 4, … (8 in all) of the 9 that answer", program=Told(many))


class Sends(Told):
    """A server with a model whose parameters it can send, and clients with one."""

    model = ModelSlot("model", GraphModel, trainable(mlp([4, 2])))


def asking(sent: Callable[[Any, Any, Any], Any], read: Callable[[Any, Graph, Any], Any]) -> Any:
    """A body that sends what `sent` gives of module, parameters and round; the peer replies with `read`."""

    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            params = m.model.params(g, after=start)
            peers = m.clients.sample(g, n=2, after=start)
            r = g.request("ask", peers, sent(m, params, start), deadline_ns=S)  # <-
            r.reply(read(m, g, r))
            g.app_emit("answer", r.answer)

    return body


def test_what_a_request_sends_and_the_asked_peer_only_waits_for() -> None:
    waits = asking(lambda m, p, start: p, lambda m, g, r: m.model.params(g, after=r.value))
    warned("unread-request", "what request 'ask' sends", "load_parameters", program=Sends(waits))
    gated = asking(lambda m, p, start: p, lambda m, g, r: g.onnx.relu(m.model.params(g, after=r.value)))
    warned("unread-request", "what request 'ask' sends", program=Sends(gated))
    half = asking(lambda m, p, start: [p, start.round], lambda m, g, r: r.value[0] * 2.0)
    warned("unread-request", "part 2 of the 2 that request 'ask'", program=Sends(half))
    many = asking(lambda m, p, start: [p] * 9, lambda m, g, r: r.value[0] * 2.0)
    warned("unread-request", "part 2, 3, 4, … (8 in all) of the 9 that request", program=Sends(many))


def test_requests_that_are_used_and_those_that_are_a_signal_are_quiet() -> None:
    quiet(Sends(asking(lambda m, p, start: p, lambda m, g, r: r.value * 2.0)))
    loaded = asking(
        lambda m, p, start: p,
        lambda m, g, r: m.model.params(g, after=m.model.load_parameters(g, r.value)),
    )
    quiet(Sends(loaded))
    signal = asking(
        lambda m, p, start: p.graph.onnx.reduce_sum(p, keepdims=False),
        lambda m, g, r: m.model.params(g, after=r.value),
    )
    quiet(Sends(signal))


@pytest.mark.parametrize("uses", [True, False])
def test_a_request_of_a_module_is_used_by_its_caller_or_by_nobody(uses: bool) -> None:
    class Child(Module):
        def body(self, g: Graph) -> None:
            x = g.input("x", "F32", (4,))
            r = g.request("ask", g.input("peers", "PeerIdVec"), x, deadline_ns=S)  # <-
            r.reply(g.constant(FOUR), after=r.value)
            g.output("closed", r.closed)

    def body(m: Any, g: Graph) -> None:
        peers = m.all(g)
        called = g.call(Child(), peers=peers, x=g.onnx.relu(g.constant(FOUR)))
        g.app_notify("closed", called.output("closed"))
        if uses:
            g.app_emit("asked", called.output("ask"))

    if uses:
        quiet(Told(body))
    else:
        warned("unread-request", program=Told(body))


def test_answers_that_are_read_whole_or_not_at_all_are_quiet() -> None:
    quiet(Told(answered(lambda r, g: g.app_emit("both", g.bundle(list(r.answer))))))
    quiet(Told(answered(lambda r, g: g.app_notify("closed", r.closed))))


def test_an_aggregate_behind_its_answers_or_of_another_start_is_quiet() -> None:
    bound = Compiler().bind_aggregator("agg", FedAvg)
    for after in (lambda m, g, start, r: r.closed, lambda m, g, start, r: r.missing):
        quiet(Sums(summed(after)), bound)
    quiet(Sums(summed(lambda m, g, start, r: g.interval(S), together=False)), bound)


def test_an_aggregate_of_a_stack_is_whole() -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            r = m.asked(g, start, g.constant(FOUR))
            r.reply(r.value)
            g.app_emit("mean", m.agg.aggregate(g, r.responses)[0])

    quiet(Sums(body))


# --- gradients --------------------------------------------------------------------------------------------


class Learns(Module):
    """One node with a model; the test gives the body."""

    model = ModelSlot("model", GraphModel, trainable(mlp([4, 2])))

    def __init__(self, body: Callable[[Any, Graph], Any]) -> None:
        super().__init__()
        self._body = body

    def body(self, g: Graph) -> None:
        self._body(self.model, g)


def batch(g: Graph) -> tuple[Any, Any]:
    return g.input("x", "F32", (3, 4)), g.input("y", "F32", (3, 2))


def test_a_gradient_that_nothing_applies() -> None:
    def body(model: ModelSlot, g: Graph) -> None:
        g.output("loss", model.train(g, *batch(g)))  # <-

    warned("missing-half", "nothing applies the gradient", "step(g, after=…)", program=Learns(body))


def test_a_step_by_a_gradient_that_nothing_adds_to() -> None:
    def body(model: ModelSlot, g: Graph) -> None:
        y = model.forward(g, batch(g)[0])
        model.step(g, after=y)  # <-
        g.output("out", y)

    warned("missing-half", "no gradient is ever added to", "train(g, x, y)", program=Learns(body))


def test_gradients_that_are_applied_read_or_brought_along() -> None:
    def applied(model: ModelSlot, g: Graph) -> None:
        loss = model.train(g, *batch(g))
        model.step(g, after=loss)
        g.output("loss", loss)

    def read(model: ModelSlot, g: Graph) -> None:
        g.output("grad", model.gradient(g, after=model.train(g, *batch(g))))

    def brought(model: ModelSlot, g: Graph) -> None:
        model.step(g, g.input("grad", "F32", (10,)))

    def of_the_input(model: ModelSlot, g: Graph) -> None:
        x, dy = batch(g)
        g.output("dx", model.backward(g, dy, input_grad=True, after=model.forward(g, x)))

    for body in (applied, read, brought, of_the_input):
        quiet(Learns(body))


def test_a_setting_that_another_one_turns_off() -> None:
    nesterov = {"nesterov": True}

    def body(model: ModelSlot, g: Graph) -> None:
        g.output("loss", model.evaluate(g, *batch(g)))

    adam = trainable(mlp([4, 2]), optimizer="adam", config=nesterov)

    class Adam(Learns):
        model = ModelSlot("model", GraphModel, adam)  # <-

    warned("setting-without-effect", "'nesterov'", "sgd reads it, and optimizer is adam", program=Adam(body))

    class Sgd(Learns):
        model = ModelSlot("model", GraphModel, trainable(mlp([4, 2]), momentum=0.9, config=nesterov))

    quiet(Sgd(body))


@pytest.mark.parametrize(
    "key",
    ["learning_rate", "momentum", "optimizer", "statistics", "personal_tensors", "untrained_tensors"],
)
def test_what_an_argument_of_trainable_says_is_no_key_of_its_config(key: str) -> None:
    with refused(LearnError, f"config has '{key}', which an argument says", f"leave '{key}' out of config"):
        trainable(mlp([2, 1]), config={key: 1})  # <-


@pytest.mark.parametrize("fits", [False, True])
def test_a_contribution_that_can_never_be_of_the_shape_that_was_sent(fits: bool) -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            sent = g.constant(FOUR)
            r = m.asked(g, start, sent)
            r.reply(r.value if fits else g.onnx.slice(r.value, g.constant([0]), g.constant([3])))
            m.agg.contribute(g, r.answer, peer=r.answer.sender, sent=sent)  # <-
            g.app_emit("mean", m.agg.aggregate(g, after=r.closed)[0])

    if fits:
        quiet(Sums(body))
        return
    with refused(TypeConstraintFailed, "given [3]", "`sent` is [4]"):
        Compiler().run(Sums(body))


# --- sends ------------------------------------------------------------------------------------------------


def test_a_send_that_nothing_reads() -> None:
    def body(m: Any, g: Graph) -> None:
        g.net_out("news", m.all(g), 1.0)  # <-

    warned("unread-result", "net_out 'news'", "g.wire.send", program=Told(body))


def test_a_send_whose_value_or_sender_is_read_and_one_to_another_program() -> None:
    quiet(Told(lambda m, g: g.app_emit("got", g.net_out("news", m.all(g), 1.0))))
    quiet(Told(lambda m, g: g.app_notify("from", g.net_out("news", m.all(g), 1.0).sender)))
    quiet(Told(lambda m, g: g.wire.send("news", m.all(g), 1.0)))


@pytest.mark.parametrize("reads", [True, False])
def test_a_send_of_a_module_is_read_by_its_caller_or_by_nobody(reads: bool) -> None:
    class Child(Module):
        def body(self, g: Graph) -> None:
            g.net_out("news", g.input("peers", "PeerIdVec"), 1.0)  # <-

    def body(m: Any, g: Graph) -> None:
        called = g.call(Child(), peers=m.all(g))
        if reads:
            g.app_emit("got", called.output("news"))

    if reads:
        quiet(Told(body))
    else:
        warned("unread-result", "net_out 'news'", program=Told(body))


# --- what Python alone would say --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["answer", "responses"])
def test_a_reply_that_is_unpacked_into_more_names(mode: str) -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            r = m.asked(g, start, 1.0)
            r.reply([r.value, 1.0])
            a, _, _ = getattr(r, mode)  # <-
            g.app_emit("a", a)

    with refused(ArityError, "request 'ask' was replied with 2 values", "test_unsaid_mistakes.py:"):
        Told(body).record()


def test_what_is_sent_unpacked_into_fewer_names() -> None:
    def body(m: Any, g: Graph) -> None:
        (only,) = g.net_out("news", m.all(g), [1.0, g.constant([1, 2])])  # <-
        g.app_emit("only", only)

    with refused(ArityError, "net_out 'news' sends 2 values", "too many values"):
        Told(body).record()


@pytest.mark.parametrize(
    "use",
    [
        lambda g, x: x + 1.0,  # <-
        lambda g, x: 2.0 * x,  # <-
        lambda g, x: x @ x,  # <-
        lambda g, x: -x,  # <-
        lambda g, x: x > 0.0,  # <-
        lambda g, x: x == 1.0,  # <-
        lambda g, x: g.onnx.relu(x),  # <-
    ],
    ids=["add", "times", "matmul", "minus", "greater", "equal", "relu"],
)
@pytest.mark.parametrize("mode", ["answer", "responses"])
def test_a_reply_that_is_a_list_is_no_value(mode: str, use: Callable[[Graph, Any], Any]) -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            r = m.asked(g, start, 1.0)
            r.reply([r.value])
            g.app_emit("a", use(g, getattr(r, mode)))

    with refused(ValueTypeError, "a list", "send x, not [x]"):
        Told(body).record()


def test_the_mean_of_one_answer_names_the_stack_of_all() -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            r = m.asked(g, start, 1.0)
            r.reply(r.value)
            g.app_emit("a", g.onnx.reduce_mean(r.answer, [0]))  # <-

    with refused(ValueTypeError, "axis 0 is out of range", "r.responses stacks all of them"):
        Told(body).record()


def test_a_reply_that_is_a_list_has_no_attributes_of_a_value() -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            r = m.asked(g, start, 1.0)
            r.reply([r.value, 1.0])
            g.app_emit("a", r.answer.shape)  # <-

    with refused(UnknownAttributeError, "replied with 2 values", "has no 'shape'", "a, b = …"):
        Told(body).record()


def test_a_reply_that_is_a_list_is_a_tuple_still() -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            r = m.asked(g, start, 1.0)
            r.reply([r.value, 1.0])
            both = r.answer + (r.answer.sender,)  # noqa: RUF005
            assert len(both) == 3 and not hasattr(r.answer, "after_values")
            g.app_emit("a", g.bundle(both))

    quiet(Told(body))

    def looked_up(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            r = m.asked(g, start, 1.0)
            r.reply([r.value, 1.0])
            g.app_emit("a", {(1, 2): 1.0}.get(r.answer, 0.0))  # <-

    with refused(ValueTypeError, "a look-up in a set or dict", "x == item"):
        Told(looked_up).record()


def test_an_error_of_the_authors_own_unpacking_is_left_alone() -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            r = m.asked(g, start, 1.0)
            r.reply([r.value, 1.0])
            a, _ = r.answer
            g.app_emit("a", a)
            own: list[int] = [1]
            _, _ = own

    with pytest.raises(ValueError, match="not enough values"):
        Told(body).record()


def test_a_body_that_calls_itself() -> None:
    class Again(Module):
        def body(self, g: Graph) -> None:  # <-
            self.body(g)

    with refused(ModuleError, "'Again': body calls itself"):
        Again().record()


def test_a_misspelt_argument_of_trainable() -> None:
    misspelt: Any = {"learning_rat": 0.1}
    with refused(CallError, "no argument 'learning_rat'", "did you mean 'learning_rate'?"):
        trainable(mlp([2, 1]), **misspelt)  # <-


@pytest.mark.parametrize(
    ("sizes", "named"),
    [([4], "sizes [4] make no layers"), ([2, 1.5], "sizes[1] is 1.5"), (["2", 1], "sizes[0] is '2'")],
)
def test_a_width_that_is_no_whole_number(sizes: Any, named: str) -> None:
    with refused(LearnError, f"mlp: {named}"):
        mlp(sizes)  # <-


def test_an_aggregate_in_a_loop_that_nothing_is_contributed_in() -> None:
    def looped(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            x = g.constant(FOUR)
            r = m.asked(g, start, x)
            r.reply(r.value)
            m.agg.contribute(g, r.answer, peer=r.answer.sender, sent=x)
            with g.loop(3, after=r.closed):
                mean, total = m.agg.aggregate(g)  # <-
                g.app_emit("mean", g.bundle([mean, total]))

    words = ("slot 'agg' in its first iteration", "their totals 0", "call it before the loop")
    warned("spent-aggregate", *words, program=Sums(looped))

    def within(m: Any, g: Graph) -> None:
        with g.rounds(2) as start, g.loop(3, after=start):
            done = m.agg.contribute(g, g.constant(FOUR), peer=g.peer_list(g.own_peer()))
            mean, total = m.agg.aggregate(g, after=done)
            g.app_emit("mean", g.bundle([mean, total]))

    assert "spent-aggregate" not in [w.code for w in Compiler().run(Sums(within)).warnings]


def test_events_of_one_name_and_two_types() -> None:
    class Twice(Module):
        def __init__(self, second: Any) -> None:
            self._second = second
            super().__init__()

        def body(self, g: Graph) -> None:
            x = g.input("x", "F32", (2,))
            g.app_emit("found", x)
            g.app_emit("found", self._second(g, x))  # <-

    Compiler().compile(Twice(lambda g, x: g.constant(FOUR)))  # another shape, and a reader takes either
    with refused(
        MalformedOp, "the event 'found' is Composite here", "F32 at AppEmit (test_unsaid_mistakes.py"
    ):
        Compiler().compile(Twice(lambda g, x: g.bundle([x, x])))
    with refused(MalformedOp, "the event 'found' is I64 here, and F32 at", "another name"):
        Compiler().compile(Twice(lambda g, x: g.onnx.cast(x, to="I64")))


@pytest.mark.parametrize("other", [False, True])
def test_events_of_one_name_and_two_types_on_two_classes(other: bool) -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            r = m.asked(g, start, g.constant(FOUR))
            g.app_emit("loss", g.bundle([r.value]) if other else r.value)  # <-
            r.reply(r.value)
            g.app_emit("loss", r.answer)

    if other:
        what = "the event 'loss' is Composite on Client, and F32 on Server, at AppEmit (test_unsaid_mistakes"
        warned("two-event-types", what, "another name", program=Told(body))
    else:
        quiet(Told(body))


def test_a_class_that_is_misspelt_beside_a_slot_s_own() -> None:
    class Typo(Module):
        name, home = "Typo", "Server"
        clients = PeerSelectorSlot("clients", ConstantView, peer_class="Clent", at="Server")
        shard = DataSourceSlot("shard", at="Client")

        def body(self, g: Graph) -> None:
            with g.rounds(2) as start:
                peers = self.clients.sample(g, n=2, after=start)
                r = g.request("ask", peers, g.constant(FOUR), deadline_ns=S)
                r.reply(self.shard.num_samples(g, after=r.value))  # <-

    with refused(CrossClassDataflow, "Clent and Client are two classes", "misspelt"):
        Compiler().compile(Typo())


@pytest.mark.parametrize(
    ("read", "reader"),
    [
        (
            lambda m, g, r, p: m.model.params(g, after=m.model.load_parameters(g, p, after=r.value)),
            "LoadParam",
        ),
        (lambda m, g, r, p: g.onnx.mul(g.constant(FOUR[:1]), p, after=r.value), "Mul → mul_1"),
    ],
)
def test_the_server_s_parameters_on_a_client_are_named_and_not_what_stands_for_an_after(
    read: Any, reader: str
) -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(2) as start:
            params = m.model.params(g, after=start)
            r = g.request("ask", m.clients.sample(g, n=2, after=start), start.round, deadline_ns=S)
            r.reply(read(m, g, r, params))

    with pytest.raises(CrossClassDataflow) as caught:
        Compiler().compile(Sends(body))
    said = str(caught.value)
    assert reader in said and "'params_1' of Params → params_1 (test_unsaid_mistakes.py:" in said
    assert "'ask_1' of SendReqBatched" in said and "GateDispatch" not in said


def test_a_home_that_is_forgotten() -> None:
    class Homeless(Module):
        name = "Homeless"
        agg = AggregatorSlot("agg", at="Server")

        def body(self, g: Graph) -> None:
            self.agg.contribute(g, g.constant(FOUR), after=g.interval(S))  # <-

    with refused(CrossClassDataflow, "on self, and runs on Server", "write home = 'Server' in it"):
        Compiler().compile(Homeless())


def test_an_aggregator_at_the_class_that_is_asked() -> None:
    class Swapped(Module):
        name, home = "Swapped", "Server"
        clients = PeerSelectorSlot("clients", ConstantView, peer_class="Client", at="Server")
        average = AggregatorSlot("average", at="Client")
        shard = DataSourceSlot("shard", at="Client")

        def body(self, g: Graph) -> None:
            with g.rounds(2) as start:
                peers = self.clients.sample(g, n=2, after=start)
                r = g.request("ask", peers, g.constant(FOUR), deadline_ns=S)
                r.reply([r.value, self.shard.num_samples(g, after=r.value)])
                found, samples = r.answer
                self.average.contribute(g, found, weight=samples, peer=r.answer.sender)  # <-

    remedies = "at='Server' on slot 'average' ('Client' now", "Else send the value: g.net_out(…)"
    with refused(CrossClassDataflow, *remedies):
        Compiler().compile(Swapped())


def test_a_selector_that_forgot_whom_it_chooses() -> None:
    class Unsaid(Module):
        name, home = "Unsaid", "Server"
        clients = PeerSelectorSlot("clients", ConstantView)
        shard = DataSourceSlot("shard", at="Client")

        def body(self, g: Graph) -> None:
            with g.rounds(2) as start:
                peers = self.clients.sample(g, n=2, after=start)
                r = g.request("ask", peers, g.constant(FOUR), deadline_ns=S)
                r.reply(self.shard.num_samples(g, after=r.value))  # <-

    with refused(CrossClassDataflow, "slot 'clients'", "write peer_class='Client' if they are of Client"):
        Compiler().compile(Unsaid())
