"""Gates that the host opens in an invoke of its own work across executions."""

from __future__ import annotations

import numpy as np
import pytest

from bb_edge import install, load
from bb_edge.engine import steps
from bb_edge.ir import keys
from bb_edge.ir.ids import PeerId
from bb_edge.ir.values import TRIGGER
from bb_host import MS, Compiler, Graph, Module, PeerSelectorSlot, errors
from bb_host.build import compile_edge
from bb_host.ir.proto import to_proto

ONE, TWO = np.array([1.0], np.float32), np.array([2.0], np.float32)


def compiled(body, name="Main"):
    program = type(name, (Module,), {"body": lambda self, g: body(g)})().record()
    return Compiler().run(program).program, program


def across(program):
    """Whether each gate of the compiled program works across executions."""
    return [
        "across" in op.attrs
        for f in program.functions
        for op in f.ops
        if (op.domain, op.op_type) == (keys.SYSCALL_DOMAIN, "Gate")
    ]


def node_of(program, target="Main"):
    model = Compiler().compile(program)
    stripped = compile_edge(to_proto(program), Compiler()).artifacts
    assert len(stripped) == 1
    for data in (model.SerializeToString(), stripped[0].data):
        yield install(PeerId.from_name("n"), (), load(data), [target], seed=1)


def events(node, topic, now_ns=0):
    return [s.value for s in node.poll(now_ns) if isinstance(s, steps.AppEvent) and s.topic == topic]


def separate(g: Graph) -> None:
    x, allowed = g.input("x", "F32", (1,)), g.input("allowed", "Trigger")
    g.app_emit("y", g.gate(x * 2.0, allowed))


def one_input(g: Graph) -> None:
    x = g.input("x", "F32", (1,))
    g.app_emit("y", g.gate(x * 2.0, g.threshold(1, x)))


def partly_shared(g: Graph) -> None:
    x, t = g.input("x", "F32", (1,)), g.input("t", "Trigger")
    g.app_emit("y", g.gate(x, g.any(g.threshold(1, x), t)))


def of_a_tick(g: Graph) -> None:
    tick, allowed = g.interval(5 * MS), g.input("allowed", "Trigger")
    g.app_emit("y", g.gate(g.as_tensor(tick), allowed))


def by_a_tick(g: Graph) -> None:
    tick = g.interval(5 * MS)
    g.app_emit("y", g.gate(g.as_tensor(tick), g.sleep(g.threshold(1, tick), MS)))


def of_a_constant(g: Graph) -> None:
    g.app_emit("y", g.gate(g.constant(ONE), g.input("t", "Trigger")))


class Child(Module):
    def body(self, g: Graph) -> None:
        g.output("y", g.gate(g.input("x", "F32", (1,)), g.input("t", "Trigger")))


def in_a_child(g: Graph) -> None:
    out = g.call(Child(), x=g.input("x", "F32", (1,)), t=g.input("t", "Trigger"))
    g.app_emit("y", out["y"])


def in_a_child_of_one_input(g: Graph) -> None:
    x = g.input("x", "F32", (1,))
    g.app_emit("y", g.call(Child(), x=x, t=g.threshold(1, x))["y"])


def in_a_child_called_both_ways(g: Graph) -> None:
    x, child = g.input("x", "F32", (1,)), Child()
    g.app_emit("y", g.call(child, x=x, t=g.input("t", "Trigger"))["y"])
    g.app_emit("z", g.call(child, x=x, t=g.threshold(1, x))["y"])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (separate, [True]),
        (one_input, [False]),
        (partly_shared, [False]),
        (of_a_tick, [True]),
        (by_a_tick, [False]),
        (of_a_constant, [False]),
        (in_a_child, [True]),
        (in_a_child_of_one_input, [False]),
        (in_a_child_called_both_ways, [True, False]),
    ],
)
def test_which_gates_work_across_executions(body, expected):
    assert across(compiled(body)[0]) == expected


@pytest.mark.parametrize("body", [separate, in_a_child])
def test_the_host_opens_a_gate_between_two_invokes(body):
    trigger = "allowed" if body is separate else "t"
    factor = 2 if body is separate else 1
    for node in node_of(compiled(body)[1]):
        node.invoke("Main", {"x": ONE})
        assert events(node, "y") == []
        node.invoke("Main", {trigger: TRIGGER})
        assert [v.tolist() for v in events(node, "y")] == [[factor]]
        node.invoke("Main", {"x": TWO, trigger: TRIGGER})
        assert [v.tolist() for v in events(node, "y")] == [[2 * factor]]
        assert node.counters["ops.failed"] == 0 if "ops.failed" in node.counters else True


def test_a_snapshot_holds_what_waits_at_a_gate():
    for node in node_of(compiled(separate)[1]):
        node.invoke("Main", {"x": ONE})
        events(node, "y")
        again = install(node.peer_id, (), node.program, ["Main"], seed=2, snapshot=node.snapshot(5), now_ns=5)
        again.invoke("Main", {"allowed": TRIGGER})
        assert [v.tolist() for v in events(again, "y", 6)] == [[2]]


class Guarded(Module):
    """What peers send passes when the server's host says so."""

    home = "Server"
    servers = PeerSelectorSlot("servers", peer_class="Server", at="Client")

    def body(self, g: Graph) -> None:
        with g.at("Client"):
            x = g.input("x", "F32", (1,))
            allowed_there = g.input("go", "Trigger")
        sent = g.net_out("it", self.servers.sample(g, n=1, after=allowed_there), x)
        g.app_emit("y", g.gate(sent, g.input("allowed", "Trigger")))


def test_what_arrives_from_a_peer_waits_for_the_host():
    program = Compiler().bind_peer_selector("servers", "bb.PresenceSelector").run(Guarded().record()).program
    assert across(program) == [True]


def test_answers_of_a_request_are_not_opened_from_outside():
    class Asking(Module):
        home = "Server"
        clients = PeerSelectorSlot("clients", "bb.PresenceSelector", peer_class="Client", at="Server")

        def body(self, g: Graph) -> None:
            t = g.input("t", "Trigger")
            with g.rounds(1) as start:
                r = g.request("ask", self.clients.current_view(g, after=start), start.round, deadline_ns=MS)
                r.reply(r.value)
                g.app_emit("y", g.gate(r.answer, t))

    with pytest.raises(errors.CrossExecutionJoin):
        Compiler().compile(Asking())
