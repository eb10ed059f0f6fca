"""Which sum the ops of an aggregator are about, as the compiler stamps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bb_edge.components import ConstantView, FedAvg
from bb_edge.ir import keys
from bb_host import MS, AggregatorSlot, Compiler, Module, PeerSelectorSlot, S
from bb_host.dsl import Graph
from bb_host.errors import MissingRound, TypeConstraintFailed
from bb_host.ir.spelling import written

pytestmark = pytest.mark.filterwarnings("ignore:.*no op uses")

Body = Callable[[Any, Graph], None]


class Summing(Module):
    """A server with an aggregator, and the body that a test gives."""

    name, home = "Summing", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    agg = AggregatorSlot("agg", at="Server")

    def __init__(self, body: Body) -> None:
        super().__init__()
        self._body = body

    def body(self, g: Graph) -> None:
        self._body(self, g)

    def asked(self, g: Graph, start: Any, port: str = "ask") -> Any:
        """A request for a vector of four numbers."""
        peers = self.clients.sample(g, n=2, after=start)
        r = g.request(port, peers, g.onnx.cast(start.round, to=1), deadline_ns=S)
        r.reply(g.onnx.expand(r.value, g.constant([4])))
        return r


def stamps(body: Body) -> dict[str, list[tuple[str, str]]]:
    """(cohort, shapes) of each op of the aggregator, by kind."""
    compiler = Compiler().bind_aggregator("agg", FedAvg).bind_peer_selector("clients", ConstantView)
    found: dict[str, list[tuple[str, str]]] = {}
    for function in compiler.compile_program(Summing(body)).functions:
        for op in function.ops:
            if op.domain == keys.ROLE_AGGREGATOR_DOMAIN:
                row = written(op.facts).get(keys.COHORT_KEY, ""), written(op.facts).get(keys.SHAPES_KEY, "")
                found.setdefault(op.op_type, []).append(row)
    return found


def test_one_asking_execution_and_its_answers() -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(3) as start:
            r = m.asked(g, start)
            m.agg.contribute(g, r.answer, peer=r.answer.sender, round=start.round)
            m.agg.contribute(g, g.constant([0.0, 0.0, 0.0, 0.0]), after=start)  # its own, in no child
            g.app_emit("mean", m.agg.aggregate(g, after=r.closed)[0])

    assert stamps(body) == {"Contribute": [("1", "[4]"), ("0", "[4]")], "Aggregate": [("0", "")]}


def test_answers_to_a_question_in_an_answer_are_two_executions_below() -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(3) as start:
            first = m.asked(g, start)
            peers = m.clients.sample(g, n=2, after=first.answer)
            second = g.request("again", peers, first.answer, deadline_ns=500 * MS)
            second.reply(second.value)
            m.agg.contribute(g, second.answer, peer=second.answer.sender)
            g.app_emit("mean", m.agg.aggregate(g, after=first.closed)[0])

    assert stamps(body) == {"Contribute": [("2", "[4]")], "Aggregate": [("0", "")]}


def test_rounds_tell_sums_apart_that_several_executions_fill() -> None:
    def body(m: Any, g: Graph) -> None:
        x, number = g.input("x", "F32", (4,)), g.input("round", "I64", ())
        m.agg.contribute(g, x, round=number)
        g.app_emit("mean", m.agg.aggregate(g, round=g.input("over", "I64", ()))[0])

    assert stamps(body) == {"Contribute": [("round", "[4]")], "Aggregate": [("round", "")]}


def test_a_round_that_only_one_side_has_is_refused_at_the_authors_line() -> None:
    def body(m: Any, g: Graph) -> None:
        m.agg.contribute(g, g.input("x", "F32", (4,)))
        g.app_emit("mean", m.agg.aggregate(g, round=g.input("over", "I64", ()))[0])

    with pytest.raises(MissingRound, match=r"test_sums.py:.*Contribute.*give round="):
        stamps(body)


def test_a_round_on_contributions_alone_leaves_one_sum() -> None:
    def body(m: Any, g: Graph) -> None:
        m.agg.contribute(g, g.input("x", "F32"), round=g.input("round", "I64", ()))
        g.app_emit("mean", m.agg.aggregate(g, after=g.interval(S))[0])

    assert stamps(body) == {"Contribute": [("", "")], "Aggregate": [("", "")]}


def test_two_aggregates_of_one_slot_are_one_sum() -> None:
    """The first of them would close the sum of the second."""

    def body(m: Any, g: Graph) -> None:
        with g.rounds(3) as start:
            for port in ("one", "two"):
                r = m.asked(g, start, port)
                m.agg.contribute(g, r.answer, peer=r.answer.sender)
                g.app_emit(port, m.agg.aggregate(g, after=r.closed)[0])

    assert {cohort for rows in stamps(body).values() for cohort, _ in rows} == {""}


def test_a_sum_that_each_answer_may_close_is_one() -> None:
    """The n-th answer aggregates what n executions have given."""

    def body(m: Any, g: Graph) -> None:
        with g.rounds(3) as start:
            r = m.asked(g, start)
            given = m.agg.contribute(g, r.answer, peer=r.answer.sender)
            g.app_emit("mean", m.agg.aggregate(g, after=g.threshold(2, given))[0])

    assert {cohort for rows in stamps(body).values() for cohort, _ in rows} == {""}


def chosen(m: Any, g: Graph, then: Callable[[Any], Any], other: Callable[[Any], Any]) -> None:
    """A round in a branch of which the answers are aggregated, or in both."""
    with g.rounds(3) as start:
        r = m.asked(g, start)
        m.agg.contribute(g, r.answer, peer=r.answer.sender)
        found = g.onnx.if_(start.round > 1, then, other, after=r.closed)
        g.app_emit("mean", found)


def empty(b: Any) -> Any:
    return b.constant([0.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("both", [False, True])
def test_an_aggregate_in_a_branch_is_of_the_execution_that_asked(both: bool) -> None:
    """One in each branch of one `If` are one: only one of them runs."""

    def body(m: Any, g: Graph) -> None:
        def mean(b: Any) -> Any:
            return m.agg.aggregate(b)[0]

        chosen(m, g, mean, mean if both else empty)

    found = {"Contribute": [("1", "[4]")], "Aggregate": [("0", "")] * (1 + both)}
    assert stamps(body) == found


def test_a_contribution_in_a_branch_is_of_the_execution_that_asked() -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(3) as start:
            r = m.asked(g, start)

            def count(b: Any) -> None:
                m.agg.contribute(b, r.answer, peer=r.answer.sender)

            g.onnx.if_(g.onnx.reduce_max(r.answer) < 9.0, count, lambda b: None)
            g.app_emit("mean", m.agg.aggregate(g, after=r.closed)[0])

    assert stamps(body) == {"Contribute": [("1", "[4]")], "Aggregate": [("0", "")]}


def test_aggregates_that_run_often_in_one_execution_are_of_one_sum() -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(3) as start:
            r = m.asked(g, start)
            m.agg.contribute(g, r.answer, peer=r.answer.sender)
            with g.loop(3, after=r.closed) as step:
                m.agg.contribute(g, g.constant([0.0, 0.0, 0.0, 0.0]))
                found = step.collect(m.agg.aggregate(g)[0])
            g.app_emit("means", found)

    assert {cohort for rows in stamps(body).values() for cohort, _ in rows} == {""}


def test_a_round_that_only_one_side_has_is_refused_in_a_branch() -> None:
    def body(m: Any, g: Graph) -> None:
        x, over = g.input("x", "F32", (4,)), g.input("over", "I64", ())
        m.agg.contribute(g, x)
        found = g.onnx.if_(over > 1, lambda b: m.agg.aggregate(b, round=over)[0], empty)
        g.app_emit("mean", found)

    with pytest.raises(MissingRound, match=r"test_sums.py:.*Contribute.*give round="):
        stamps(body)


def warned(body: Body) -> list[str]:
    """The codes of the warnings, and their lines' files."""
    compiler = Compiler().bind_aggregator("agg", FedAvg).bind_peer_selector("clients", ConstantView)
    found = compiler.run(Summing(body)).warnings
    return [f"{w.code} {w.file}" for w in found if w.code == "layout-unknown"]


@pytest.mark.parametrize("sent", [False, True])
def test_contributions_whose_shape_nothing_tells_are_warned_about(sent: bool) -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(3) as start:
            peers = m.clients.sample(g, n=2, after=start)
            size = g.onnx.reshape(start.round, g.constant([1]))
            asked = g.onnx.expand(g.constant(1.0), size)
            r = g.request("ask", peers, asked, deadline_ns=S)
            r.reply(r.value)
            more = {"sent": asked} if sent else {}
            m.agg.contribute(g, r.answer, peer=r.answer.sender, **more)
            g.app_emit("mean", m.agg.aggregate(g, after=r.closed)[0])

    assert warned(body) == ([] if sent else ["layout-unknown test_sums.py"])


@pytest.mark.parametrize("known", [False, True])
def test_batches_whose_shape_nothing_tells_are_warned_about(known: bool) -> None:
    def body(m: Any, g: Graph) -> None:
        with g.rounds(3) as start:
            peers = m.clients.sample(g, n=2, after=start)
            r = g.request("ask", peers, start.round, deadline_ns=S)
            r.reply(r.value if known else g.onnx.expand(1.0, g.onnx.reshape(r.value, g.constant([1]))))
            g.app_emit("all", r.responses)

    assert warned(body) == ([] if known else ["layout-unknown test_sums.py"])


@pytest.mark.parametrize("gated", [False, True])
def test_a_sample_of_several_is_no_peer_of_a_contribution(gated: bool) -> None:
    def body(count: int) -> Body:
        def record(m: Any, g: Graph) -> None:
            with g.rounds(3) as start:
                peers = m.clients.sample(g, n=count, after=start)
                peers = g.gate(peers, start.round) if gated else peers
                m.agg.contribute(g, g.onnx.cast(start.round, to=1), peer=peers)
                g.app_emit("mean", m.agg.aggregate(g, after=start)[0])

        return record

    refusal = r"test_sums.py:\d+: Contribute.* its peer is Sample .*test_sums.py:\d+.* up to 3 peers"
    with pytest.raises(TypeConstraintFailed, match=refusal):
        stamps(body(3))
    assert stamps(body(1))["Contribute"] == [("", "[]")]
