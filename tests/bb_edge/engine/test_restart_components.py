"""What a restart changes for components: answers that were to come, closures and unwritten state are lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import f32
from busy_components import CALLS, PARKED, Caller, doubled
from components import Slow, slow
from durable_program import greeted
from kinds_of_steps import of
from peers import A
from plays import installer, polled
from times import MS, S

from bb_edge.engine import steps
from bb_edge.engine.steps import AppEvent, EngineStep, OpFailed, SendEnvelope
from bb_edge.ir.values import TRIGGER
from bb_edge.node import Node
from bb_edge.roles import Aggregator
from bb_edge.roles.errors import CompletionLostError
from bb_edge.wire import envelope
from bb_edge.wire.caps import EDGE_CAPS

# --- answers that come later --------------------------------------------------------------------------


def answered(node: Node, now_ns: int) -> list[EngineStep]:
    """Polls, each time after all that is open has been answered."""
    found: list[EngineStep] = []
    for when_ns in range(now_ns, now_ns + 5):
        found += node.poll(when_ns)
        component = node.component("a")
        for later, tensor in component.open:
            later.complete(tensor)
        component.open.clear()
    return found


@pytest.mark.parametrize("restartable", [True, False])
def test_an_op_whose_answer_is_lost_runs_again_or_fails_and_who_waited_has_its_turn(restartable):
    make = installer(PARKED, slow(restartable))
    node = make()
    for k in (1, 2, 3):  # the others wait for the component, and sleep
        node.invoke("Main", {"x": f32(k, k), "go": TRIGGER})
    node.poll(1)
    again = make(node.snapshot(2), 2)
    found = [*answered(again, 3), *again.poll(11 * MS)]
    failed = [(type(step.error), step.error.what, step.error.where, step.op) for step in of(OpFailed, found)]
    what = "the node was restarted while its component worked on it"
    assert failed == ([] if restartable else [(CompletionLostError, what, *[failed[0][3]] * 2)])
    values = [s.value.tolist() for s in of(AppEvent, found) if s.topic == "y"]
    assert values == [[-k, -k] for k in ((1, 2, 3) if restartable else (2, 3))]
    assert len([s for s in of(AppEvent, found) if s.topic == "late"]) == 3
    assert again.counters["executions.active"] == 0


UNKNOWN = "its result could not be kept"


@pytest.mark.parametrize(
    ("answer", "result", "error"),
    [
        (np.ones(2, np.float32), "Tensor<F32>[2]", ""),
        (object(), "None", UNKNOWN),
        (ValueError(), "None", UNKNOWN),
        (ValueError("the sensor is gone"), "None", "the sensor is gone"),
    ],
)
def test_a_completion_comes_back_as_its_result_or_says_what_was_lost(answer, result, error):
    make = installer(PARKED, Slow)
    node = make()
    node.invoke("Main", {"x": f32(1, 1), "go": TRIGGER})
    node.poll(1)
    ((later, _),) = node.component("a").open
    later.complete(answer) if not isinstance(answer, Exception) else later.fail(answer)
    (before,) = node.inspect().ingress["completions"]
    again = make(node.snapshot(1), 1)
    assert again.inspect().ingress["completions"] == [{**before, "result": result, "error": error}]
    assert again.counters["executions.active"] == 1


# --- inputs, and state --------------------------------------------------------------------------------


class Sum(Aggregator):
    """Adds up, and does not say so to a snapshot."""

    TYPE_NAME = "test.Sum"
    restartable = True

    def __init__(self) -> None:
        self.calls: list[Any] = []

    @classmethod
    def construct(cls, env: Any) -> Sum:
        return cls()

    def contribute(
        self,
        ctx: Any,
        contribution: Any,
        weight: Any = None,
        peer: Any = None,
        round: Any = None,
        sent: Any = None,
    ) -> Any:
        self.calls.append((contribution.tolist(), weight, peer, round))
        return ctx.later(100 * S)

    def aggregate(self, ctx: Any, stack: Any = None, round: Any = None) -> Any: ...

    def current_tensor(self, ctx: Any, trigger: Any = None) -> Any: ...


class Stateless(Sum):
    stateless = True


class Keeping(Sum):
    def serialize(self) -> bytes:
        return b"kept"

    def restore(self, state: bytes) -> None:
        assert state == b"kept"


SUM = """
program Demo {module=Demo, binding.Main.sum="aggregator|test.Sum|1"}
function program.Main(x: F32[1], who: PeerIdVec) -> () {entry=1, partition=self}
  slot sum: aggregator
  c: CommandId = role.aggregator.Contribute(x, "", who) {slot=sum}
"""


@pytest.mark.parametrize(("kind", "said"), [(Sum, ["sum"]), (Stateless, []), (Keeping, [])])
def test_an_op_runs_again_with_its_inputs_and_a_component_that_forgets_says_so(kind, said):
    make = installer(SUM, kind)
    node = make()
    node.invoke("Main", {"x": f32(4), "who": (A,)})
    assert not of(steps.StateForgotten, node.poll(1))
    again = make(node.snapshot(2), 2)
    forgotten = of(steps.StateForgotten, again.poll(3))
    assert [(s.slot, s.type_name) for s in forgotten] == [(slot, "test.Sum") for slot in said]
    assert again.component("sum").calls == [([4.0], None, (A,), None)] == node.component("sum").calls
    assert not of(steps.StateForgotten, again.poll(4))


class Drawing(Keeping):
    def contribute(self, ctx: Any, *args: Any, **named: Any) -> None:
        self.calls.append(int(ctx.rng.integers(1 << 62)))


@pytest.mark.parametrize("drawn", [0, 1, 5])
def test_a_component_draws_what_it_would_have_drawn(drawn):
    make = installer(SUM, Drawing)
    node = make()

    def draw(node: Node, now_ns: int) -> list[int]:
        node.invoke("Main", {"x": f32(4), "who": (A,)})
        node.poll(now_ns)
        return list(node.component("sum").calls)

    for now_ns in range(1, drawn + 1):
        draw(node, now_ns)
    again = make(node.snapshot(9), 9)
    assert draw(again, 10)[-1] == draw(node, 10)[-1]


# --- closures -----------------------------------------------------------------------------------------


class Closures(Caller):
    """Asks, and keeps time, by closures too: a snapshot cannot name them."""

    def ask(self, ctx: Any, peers: Any) -> None:
        super().ask(ctx, peers)
        ctx.request(
            peers[0], "Double", b"closure", 2 * S, lambda _ctx, reply: self.heard.append(("closure", reply))
        )
        ctx.scheduler.after(S, lambda _ctx: self.heard.append(("rang, a closure", None)))


@pytest.mark.parametrize("replied", [True, False])
def test_what_was_to_call_a_closure_calls_nobody_and_is_over_all_the_same(replied):
    make = installer(CALLS, Closures)
    node = greeted(make(), A)
    node.invoke("Main", {"to": (A,)})
    sent = [envelope.decode(s.payload, EDGE_CAPS) for s in of(SendEnvelope, node.poll(2))]
    again = make(node.snapshot(3), 3)
    assert len(again.inspect().calls) == 2
    if replied:
        for seq, message in enumerate(sent, 1):
            again.deliver_inbound(doubled(message.wire_req_id, bytes(message.fills[0].payload), seq), A)
    polled(again, 10 * S, 3)
    method = ("method", b"methodmethod" if replied else None)
    expected = [method, ("rang", None)] if replied else [("rang", None), method]
    assert again.component("e").heard == expected
    assert not again.inspect().calls
    polled(node, 10 * S, 3)
    assert len(node.component("e").heard) == 4
