"""Numbers beyond what a device holds, and what to do instead: each refusal says it, at the author's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bb_edge import install, load
from bb_edge.engine import steps
from bb_edge.ir.ids import PeerId
from bb_edge.ir.values import TRIGGER
from bb_host import AggregatorSlot, Compiler, Graph, Module, PeerSelectorSlot, S
from bb_host.errors import (
    ArityError,
    AttributeValueError,
    EmptyBundleError,
    ModuleError,
    TypeConstraintFailed,
    ValueTypeError,
)
from tests.aids.refusals import refused

Body = Callable[[Graph], Any]

agg = AggregatorSlot("agg", "bb.FedAvg")
servers = PeerSelectorSlot("servers", "bb.PresenceSelector", peer_class="Server", at="Client")


def x_of(g: Graph) -> Any:
    return g.input("x", "F32", (3,))


def rounds_of(g: Graph, **given: Any) -> None:
    with g.rounds(**given) as start:
        g.app_emit("round", start.round)


def ask(g: Graph, **given: Any) -> None:
    g.request("r", g.input("peers", "PeerIdVec"), 1.0, **given)  # <-


CASES: list[tuple[type, tuple[str, ...], Body]] = [
    (AttributeValueError, ("delta",), lambda g: g.incr_metric("c", g.pulse(), delta=2**80)),  # <-
    (AttributeValueError, ("times", "-1", "None"), lambda g: g.rounds(-1)),  # <-
    (AttributeValueError, ("times", "0"), lambda g: g.rounds(0)),  # <-
    (AttributeValueError, ("pause_ns", "-5"), lambda g: g.rounds(3, pause_ns=-5)),  # <-
    (AttributeValueError, ("times", "64 bits"), lambda g: g.rounds(2**63).__enter__()),  # <-
    (AttributeValueError, ("pause_ns",), lambda g: g.rounds(3, pause_ns=2**64).__enter__()),  # <-
    (AttributeValueError, ("at most 2**63 - 1",), lambda g: g.interval(2**63)),  # <-
    (AttributeValueError, ("at most 2**63 - 1",), lambda g: g.threshold(2**70, g.pulse())),  # <-
    (AttributeValueError, ("at most 2**63 - 1",), lambda g: ask(g, deadline_ns=2**70)),  # <-
    (AttributeValueError, ("enough", "leave it out"), lambda g: ask(g, deadline_ns=S, enough=0)),  # <-
    (AttributeValueError, ("64 bits",), lambda g: servers.sample(g, n=2**70)),  # <-
    (EmptyBundleError, ("g.bundle([a, b])",), lambda g: g.bundle([])),  # <-
    (ValueTypeError, ("g.bundle([a])",), lambda g: g.bundle(g.pulse())),  # <-
    (EmptyBundleError, ("name",), lambda g: g.unbundle(g.input("c", "Composite"), [])),  # <-
    (ValueTypeError, ("Trigger", "Bytes"), lambda g: g.unbundle(g.bundle([g.pulse()]), ["Bytes"])),  # <-
    (ValueTypeError, ("I32",), lambda g: g.unbundle(g.bundle([x_of(g)]), ["I32"])),  # <-
    (ArityError, ("1 parts",), lambda g: g.unbundle(g.bundle([g.pulse()]), ["Trigger"] * 2)),  # <-
    (ValueTypeError, ("-1.0", "weight"), lambda g: agg.contribute(g, x_of(g), -1.0)),  # <-
    (ValueTypeError, ("0", "above 0"), lambda g: agg.contribute(g, x_of(g), 0)),  # <-
    (ValueTypeError, ("[1.0, 2.0]",), lambda g: agg.contribute(g, x_of(g), [1.0, 2.0])),  # <-
    (ValueTypeError, ("nan",), lambda g: agg.contribute(g, x_of(g), np.float32("nan"))),  # <-
    (ValueTypeError, ("step of 0",), lambda g: g.input("p", "PeerIdVec")[0:1:0]),  # <-
    (ValueTypeError, ("step of 0",), lambda g: x_of(g)[::0]),  # <-
    (ValueTypeError, ("g.address_at",), lambda g: g.own_addresses()[0:1]),  # <-
    (ValueTypeError, ("g.address_at",), lambda g: g.own_addresses()[0]),  # <-
    (AttributeValueError, ("start.stop(condition)",), lambda g: g.rounds(g.input("n", "I64", ()))),  # <-
    (AttributeValueError, ("5 * MS",), lambda g: g.rounds(3, pause_ns=g.input("n", "I64", ()))),  # <-
]


@pytest.mark.parametrize(("kind", "words", "body"), CASES)
def test_refused_with_a_way_out(record: Any, kind: type, words: tuple[str, ...], body: Body) -> None:
    with refused(kind, *words):
        record(body)


@pytest.mark.parametrize("dtype", ["I64", "U8", "BOOL"])
@pytest.mark.parametrize("bound", [True, False])
def test_an_average_of_whole_numbers_is_refused(module: Any, dtype: str, bound: bool) -> None:
    slot = AggregatorSlot("agg") if bound else agg

    def body(g: Graph) -> None:
        slot.contribute(g, g.input("x", dtype, (3,)), 1.0)  # <-

    compiler = Compiler().bind_aggregator("agg", "bb.FedAvg") if bound else Compiler()
    with refused(TypeConstraintFailed, "F32, F64 or F16", f"{dtype}[3]", "g.onnx.cast(x, to='F32')"):
        compiler.compile(module(body))


@pytest.mark.parametrize("dtype", ["F32", "F64", "F16"])
def test_an_average_of_floats_compiles(module: Any, dtype: str) -> None:
    def body(g: Graph) -> None:
        agg.contribute(g, g.input("x", dtype, (3,)), 1.0)
        g.output("y", agg.aggregate(g, after=g.pulse())[0])

    Compiler().compile(module(body))


def test_the_largest_numbers_are_recorded(module: Any) -> None:
    def body(g: Graph) -> None:
        g.app_notify("a", g.threshold(2**63 - 1, g.interval(2**63 - 1)))
        agg.contribute(g, x_of(g), 5e-324)
        agg.contribute(g, x_of_again(g), np.float32([2.5]))
        g.output("y", agg.aggregate(g, after=g.pulse())[0])

    def x_of_again(g: Graph) -> Any:
        return g.input("x2", "F32", (3,))

    Compiler().compile(module(body))


def test_the_first_of_two_types(module: Any) -> None:
    def body(g: Graph) -> None:
        g.app_emit("a", g.any(g.pulse(), g.interval(S)))  # <-

    with refused(TypeConstraintFailed, "Trigger", "Timestamp", "g.threshold(1, value)"):
        Compiler().compile(module(body))


class Again(Module):
    """A module that calls a new one of its class, and that another one."""

    def body(self, g: Graph) -> None:
        g.call(Again(), "again")  # <-


class Tree(Module):
    """One that calls smaller ones of its class, and ends."""

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def body(self, g: Graph) -> None:
        x = x_of(g)
        g.output("y", x * 2.0 if not self.depth else g.call(Tree(self.depth - 1), "t", x=x).output("y"))


def test_modules_that_call_their_class_without_end() -> None:
    with refused(ModuleError, "'Again'", "no end", "g.rounds"):
        Again().record()
    assert len(Tree(12).record().functions) == 13


# --- on the device ----------------------------------------------------------------------------------------


def drop_a_stranger(g: Graph) -> None:
    peers = g.input("peers", "PeerIdVec")
    g.address_book_drop(g.peer_at(peers, 0))


def look_up_a_stranger(g: Graph) -> None:
    g.app_emit("y", g.address_book_lookup(g.peer_at(g.input("peers", "PeerIdVec"), 0)))


def the_fourth_address(g: Graph) -> None:
    g.app_emit("y", g.address_at(g.own_addresses(after=g.input("go", "Trigger")), 3))


STRANGER = {"peers": (PeerId.from_name("stranger"),)}


@pytest.mark.parametrize(
    ("body", "inputs", "remedy", "wrong"),
    [
        (drop_a_stranger, STRANGER, "g.address_book_insert", "add_peer"),
        (look_up_a_stranger, STRANGER, "g.address_book_insert", "add_peer"),
        (the_fourth_address, {"go": TRIGGER}, "long enough", "slice"),
    ],
)
def test_hints_name_what_there_is(
    module: Any, body: Body, inputs: dict[str, Any], remedy: str, wrong: str
) -> None:
    data = Compiler().compile(module(body)).SerializeToString()
    node = install(PeerId.from_name("n"), (), load(data), ["Main"], seed=1)
    node.invoke("Main", inputs)
    (failed,) = [step for step in node.poll(1) if isinstance(step, steps.OpFailed)]
    assert remedy in str(failed.error) and wrong not in str(failed.error)
