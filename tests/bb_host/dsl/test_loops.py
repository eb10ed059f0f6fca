"""`g.loop`: what is recorded in its block, what comes out of it, and what is refused at the author's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bb_edge.ir import types
from bb_edge.ir.types import ValueType
from bb_host import AggregatorSlot, DataSourceSlot, Graph, ModelSlot, Module, PeerSelectorSlot
from bb_host.errors import (
    ArityError,
    AttributeValueError,
    ForeignValueError,
    LoopError,
    ModuleError,
    OpInSubgraph,
    PortNameError,
    ValueTypeError,
    WireInSubgraph,
)
from bb_host.ir.program import Op, Program, Subgraph

Record = Callable[..., Program]


def loops(program: Program) -> list[Op]:
    return [op for op in program.functions[0].ops if op.op_type == "Loop"]


def body_of(op: Op) -> Subgraph:
    body = op.attrs["body"]
    assert isinstance(body, Subgraph)
    return body


def test_the_block_is_the_body(record: Record) -> None:
    model, data = ModelSlot("model"), DataSourceSlot("data")

    def body(g: Graph) -> None:
        start = g.input("go", "Trigger")
        with g.loop(3, after=start) as step:
            x, y = data.next_batch(g)
            error = model.forward(g, x) - y
            model.step(g, after=model.backward(g, error))
        g.app_notify("done", g.threshold(1, model.params(g, after=step)))

    program = record(body)
    (loop,) = loops(program)
    assert [op.op_type for op in body_of(loop).ops] == ["NextBatch", "Forward", "Sub", "Backward", "Step"]
    assert "Step" not in [op.op_type for op in program.functions[0].ops]
    assert loop.source.startswith("test_loops.py:")


def test_values_are_carried_and_collected_and_keep_their_types(record: Record) -> None:
    def body(g: Graph) -> None:
        n, x = g.input("n", "I64", ()), g.input("x", "F32", (2,))
        with g.loop(n, carry=[x, 0]) as step:
            a, count = step.carried
            assert (a.type, count.type) == (ValueType(types.TENSOR_F32), ValueType(types.TENSOR_I64))
            rows = step.collect(x * 2)
            step.next(a * 2, step.index)
        last, number = step.result
        assert last.type == ValueType(types.TENSOR_F32), "it may change its shape"
        assert number.type == ValueType(types.TENSOR_I64, ())
        assert rows.type == ValueType(types.TENSOR_F32, (None, 2))
        for name, value in (("last", last), ("number", number), ("rows", rows)):
            g.output(name, value)

    (loop,) = loops(record(body))
    assert (loop.attrs["carried"], loop.attrs["condition"]) == (2, 0)


def test_one_carried_value_is_no_tuple(record: Record) -> None:
    def body(g: Graph) -> None:
        with g.loop(3, carry=g.input("x", "F32", (2,))) as step:
            step.next(step.carried + 1)
        g.output("y", step.result)

    assert len(loops(record(body))) == 1


def test_a_loop_ends_by_a_value(record: Record) -> None:
    def body(g: Graph) -> None:
        with g.loop(carry=g.input("x", "F32", ())) as step:
            y = step.carried * 0.5
            step.next(y)
            step.stop(y < 1)
            step.stop(y > 100)
        g.output("y", step.result)

    (loop,) = loops(record(body))
    assert loop.attrs["condition"] == 1
    assert [op.op_type for op in body_of(loop).ops][-2:] == ["Or", "Not"]


def test_a_module_is_called_in_a_loop_with_all_that_it_holds(record: Record) -> None:
    data = DataSourceSlot("data")

    class Batch(Module):
        name = "Batch"

        def body(self, g: Graph) -> None:
            x, _ = data.next_batch(g)
            g.output("x", x)

    batch = Batch()

    def body(g: Graph) -> None:
        with g.loop(3) as step:
            rows = step.collect(batch.call().build(g).output("x"))
        g.output("rows", rows)

    (loop,) = loops(record(body))
    assert [op.op_type for op in body_of(loop).ops] == ["Batch"]


def test_a_constant_of_the_block_is_none_behind_it(record: Record) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", ())
        with g.loop(3, carry=x) as step:
            step.next(step.carried * 7)
        g.output("y", step.result * 7)

    program = record(body)
    assert [op.op_type for op in program.functions[0].ops].count("Constant") == 2  # the trips, and 7


# --- refused at the author's line -------------------------------------------------------------------------


def refused(
    record: Record, kind: type[Exception], what: str, body: Callable[[Graph], Any], **more: Any
) -> None:
    with pytest.raises(kind, match=what) as error:
        record(body, **more)
    assert "test_loops.py:" in str(error.value)


def test_what_crosses_or_starts_executions(record: Record) -> None:
    peers = PeerSelectorSlot("peers", peer_class="Client")

    def sends(g: Graph) -> None:
        x = g.input("x", "F32")
        with g.loop(3):
            g.net_out("hello", peers.sample(g, n=1), x)

    def asks(g: Graph) -> None:
        x = g.input("x", "F32")
        with g.loop(3):
            g.request("hello", peers.sample(g, n=1), x, deadline_ns=10**9)

    refused(record, WireInSubgraph, "stands in the loop at test_loops.py", sends)
    refused(record, WireInSubgraph, "stands in the loop at test_loops.py", asks)

    def pulses(g: Graph) -> None:
        with g.loop(3):
            g.app_notify("x", g.pulse())

    def repeats(g: Graph) -> None:
        with g.loop(3), g.rounds(4) as start:
            g.app_emit("x", start.round)

    refused(record, OpInSubgraph, "Pulse starts executions", pulses)
    refused(record, OpInSubgraph, "Repeat starts executions", repeats)

    def scope(g: Graph) -> None:
        with g.loop(3), g.at("Client"):
            g.app_emit("x", g.constant(1))

    refused(record, OpInSubgraph, "a scope of class 'Client'", scope)


def test_what_may_not_fire_is_refused_in_a_body(record: Record) -> None:
    def body(g: Graph) -> None:
        p = g.input("p", "BOOL", ())
        with g.loop(3):
            g.app_notify("x", g.when(p))

    refused(record, OpInSubgraph, "When may not fire, and its body would not end", body)


def test_a_module_that_sends_or_starts_or_has_a_bootstrap(record: Record) -> None:
    peers = PeerSelectorSlot("peers", peer_class="Client")

    def calls(body: Callable[[Graph], Any], bootstrap: Callable[[Graph], Any] | None = None) -> Any:
        members: dict[str, Any] = {"name": "Inner", "body": lambda self, g: body(g)}
        if bootstrap is not None:
            members["bootstrap"] = lambda self, g: bootstrap(g)
        inner = type("Inner", (Module,), members)()

        def outer(g: Graph) -> None:
            with g.loop(3):
                inner.call().build(g)

        return outer

    sends = calls(lambda g: g.net_out("hello", peers.sample(g, n=1), g.constant(1.0)))
    refused(record, WireInSubgraph, "'Inner' sends", sends)
    pulses = calls(lambda g: g.app_notify("x", g.pulse()))
    refused(record, OpInSubgraph, "holds Pulse", pulses)
    starts = calls(lambda g: g.app_emit("x", g.constant(1)), lambda g: g.app_emit("b", g.constant(1)))
    refused(record, OpInSubgraph, "has a bootstrap", starts)


def test_values_of_an_iteration_are_unknown_behind_it(record: Record) -> None:
    def adds(g: Graph) -> None:
        x = g.input("x", "F32", ())
        with g.loop(3, carry=x) as step:
            y = step.carried + 1
            step.next(y)
        g.output("y", y * 2)

    def reads(g: Graph) -> None:
        x = g.input("x", "F32", ())
        with g.loop(3, carry=x) as step:
            y = step.carried + 1
            step.next(y)
        g.output("y", x + y)

    def orders(g: Graph) -> None:
        x = g.input("x", "F32", ())
        with g.loop(3):
            told = g.app_emit("x", x)
        g.output("y", g.pass_through(x, after=told))

    def early(g: Graph) -> None:
        x = g.input("x", "F32", ())
        with g.loop(3) as step:
            rows = step.collect(x)
            g.app_emit("rows", rows)

    for body in (adds, reads, orders, early):
        refused(record, ForeignValueError, "an iteration of the loop at test_loops.py", body)


def test_outputs_are_declared_behind_it(record: Record) -> None:
    def body(g: Graph) -> None:
        with g.loop(3):
            g.output("x", g.constant(1))

    refused(record, PortNameError, "stands in a loop", body)


def test_loops_that_say_too_little_or_too_much(record: Record) -> None:
    def empty(g: Graph) -> None:
        with g.loop(3):
            pass

    refused(record, LoopError, "the loop does nothing", empty)

    def endless(g: Graph) -> None:
        with g.loop():
            g.app_emit("x", g.constant(1))

    refused(record, LoopError, "never ends", endless)

    def forgotten(g: Graph) -> None:
        with g.loop(3, carry=1.0) as step:
            g.app_emit("x", step.carried)

    refused(record, LoopError, "nothing says what the next iteration carries", forgotten)

    def twice(g: Graph) -> None:
        with g.loop(3, carry=1.0) as step:
            step.next(step.carried)
            step.next(step.carried)

    refused(record, LoopError, "step.next is called twice", twice)

    def count(g: Graph) -> None:
        with g.loop(3, carry=[1.0, 2.0]) as step:
            step.next(step.carried[0])

    refused(record, ArityError, "gives 1 value, and the loop carries 2", count)

    def kind(g: Graph) -> None:
        with g.loop(3, carry=g.input("x", "F32")) as step:
            step.next(step.index)

    refused(record, ValueTypeError, "begins as Tensor<F32>, and its next one is Tensor<I64>", kind)

    def behind(g: Graph) -> None:
        with g.loop(3, carry=1.0) as step:
            step.next(step.carried + 1)
        g.output("x", step.carried)

    refused(record, LoopError, "step.carried stands outside", behind)

    def before(g: Graph) -> None:
        with g.loop(3, carry=1.0) as step:
            g.app_emit("x", step.result)

    refused(record, LoopError, "before the end of the loop's block", before)

    def again(g: Graph) -> None:
        loop = g.loop(3)
        for _ in range(2):
            with loop:
                g.app_emit("x", g.constant(1))

    refused(record, LoopError, "was entered before", again)
    refused(record, ModuleError, "without `with`", lambda g: g.loop(3))


@pytest.mark.parametrize(
    ("times", "kind", "what"),
    [
        (True, ValueTypeError, "True is not a number of iterations"),
        (2.5, ValueTypeError, "2.5 is not a number of iterations"),
        (-1, AttributeValueError, "-1 iterations"),
        ("F32", ValueTypeError, "is a Tensor<I64>, got"),
        ((3,), ValueTypeError, "is one number, not"),
    ],
)
def test_what_is_no_number_of_iterations(
    record: Record, times: Any, kind: type[Exception], what: str
) -> None:
    def body(g: Graph) -> None:
        n = times
        if isinstance(times, str):
            n = g.input("n", times)
        elif isinstance(times, tuple):
            n = g.input("n", "I64", times)
        with g.loop(n):
            g.app_emit("x", g.constant(1))

    refused(record, kind, what, body)


def test_stop_takes_a_condition_and_collect_a_tensor(record: Record) -> None:
    def stops(g: Graph) -> None:
        with g.loop(3) as step:
            step.stop(step.index)

    refused(record, ValueTypeError, "step.stop takes a BOOL value", stops)
    agg = AggregatorSlot("agg")

    def collects(g: Graph) -> None:
        x = g.input("x", "F32")
        with g.loop(3) as step:
            step.collect(agg.contribute(g, x))

    refused(record, ValueTypeError, "step.collect stacks tensors", collects)


def test_an_error_in_the_block_is_the_one_that_is_raised(record: Record) -> None:
    def body(g: Graph) -> None:
        with g.loop(3, carry=1.0):
            raise RuntimeError("the author's")

    with pytest.raises(RuntimeError, match="the author's"):
        record(body)
