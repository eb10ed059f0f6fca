"""Slots that keep a value: other kinds of values, halves that are missing, calls without an order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bb_edge.components import GraphModel
from bb_host import Compiler, Graph, ModelSlot, Module, ValueSlot
from bb_host.errors import CallError, TypeConstraintFailed
from bb_host.learn import mlp, trainable
from tests.aids.refusals import quiet, refused, warned


class Rounds(Module):
    name, home = "Rounds", "Server"
    model = ModelSlot("model", GraphModel, trainable(mlp([2, 8, 2]), learning_rate=0.3))
    kept = ValueSlot("kept")

    def __init__(self, use: Callable[[Any, Graph, Any], Any]) -> None:
        super().__init__()
        self._use = use

    def body(self, g: Graph) -> None:
        with g.rounds(3) as start:
            self._use(self, g, start)
            g.app_emit("round", start.round)


def momentum(m: Any, g: Graph, start: Any) -> None:
    params = m.model.params(g, after=start)
    velocity = 0.9 * m.kept.read(g, params * 0.0) + params
    m.model.load_parameters(g, params + velocity, after=m.kept.write(g, velocity))


def bundles(m: Any, g: Graph, start: Any) -> None:
    pair = g.bundle([m.model.params(g, after=start), start.round])
    g.app_emit("before", m.kept.read(g, pair))
    m.kept.add(g, pair)


def other_size(m: Any, g: Graph, start: Any) -> None:
    before = m.kept.read(g, m.model.params(g, after=start))
    m.kept.write(g, g.onnx.slice(before, [0], [3]))  # <-


def other_element(m: Any, g: Graph, start: Any) -> None:
    before = m.kept.read(g, m.model.params(g, after=start))
    m.kept.write(g, g.onnx.cast(before, to="F64"))  # <-


def a_bundle(m: Any, g: Graph, start: Any) -> None:
    before = m.kept.read(g, m.model.params(g, after=start))
    m.kept.write(g, g.bundle([before, start.round]))  # <-


def a_trigger(m: Any, g: Graph, start: Any) -> None:
    m.kept.add(g, g.threshold(1, start.round))  # <-


def a_peer(m: Any, g: Graph, start: Any) -> None:
    m.kept.write(g, g.own_peer(after=start))  # <-


def a_time(m: Any, g: Graph, start: Any) -> None:
    m.kept.write(g, g.clock(g.threshold(1, start.round)))  # <-


def reads_only(m: Any, g: Graph, start: Any) -> None:
    g.app_emit("it", m.kept.read(g, m.model.params(g, after=start)))  # <-


def writes_only(m: Any, g: Graph, start: Any) -> None:
    m.kept.write(g, m.model.params(g, after=start))  # <-


def no_order(m: Any, g: Graph, start: Any) -> None:
    params = m.model.params(g, after=start)
    g.app_emit("it", m.kept.read(g, params))
    m.kept.write(g, params)  # <-


@pytest.mark.parametrize("use", [momentum, bundles])
def test_what_is_right(use: Callable[..., Any]) -> None:
    quiet(Rounds(use))


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (other_size, ("slot 'kept' keeps one kind of value", "F32[3]", "F32[42]")),
        (other_element, ("slot 'kept' keeps one kind of value", "F64[42]", "F32[42]")),
        (a_bundle, ("slot 'kept' keeps one kind of value", "Composite", "F32[42]")),
        (a_trigger, ("slot 'kept' keeps tensors and bundles of tensors", "Trigger", "pass it as after=")),
        (a_peer, ("slot 'kept' keeps tensors", "PeerId", "it is not a number", "g.hold_stash(")),
        (a_time, ("slot 'kept' keeps tensors", "Timestamp", "make a number of it: g.as_tensor(value)")),
    ],
)
def test_other_kinds_of_values(use: Callable[..., Any], words: tuple[str, ...]) -> None:
    with refused(TypeConstraintFailed, *words):
        Compiler().compile(Rounds(use))


def a_number_when(m: Any, g: Graph, start: Any) -> None:
    m.kept.add(g, g.constant(1.0), after=g.threshold(1, start.round))
    g.app_emit("it", m.kept.read(g, 0.0, after=start))


def a_held_peer(m: Any, g: Graph, start: Any) -> None:
    peers = g.peer_list(g.hold_flush("who", g.when(start.round >= 1)))
    g.app_emit("peers", g.peer_count(peers))
    g.hold_stash("who", g.own_peer(after=start))
    m.kept.add(g, start.round)


def a_number_of_a_time(m: Any, g: Graph, start: Any) -> None:
    g.app_emit("sum", m.kept.add(g, g.as_tensor(g.clock(g.threshold(1, start.round)))))


@pytest.mark.parametrize("use", [a_number_when, a_held_peer, a_number_of_a_time])
def test_what_the_refusals_advise_compiles(use: Callable[..., Any]) -> None:
    def with_model(m: Any, g: Graph, start: Any) -> None:
        g.app_emit("params", m.model.params(g, after=start))
        use(m, g, start)

    Compiler().compile(Rounds(with_model))


@pytest.mark.parametrize(
    ("use", "code", "words"),
    [
        (reads_only, "missing-half", ("nothing writes it", "self.kept.write")),
        (writes_only, "missing-half", ("nothing reads what it keeps", "self.kept.read")),
        (no_order, "no-order", ("slot 'kept'", "Write or Read")),
    ],
)
def test_halves_and_order(use: Callable[..., Any], code: str, words: tuple[str, ...]) -> None:
    warned(code, *words, program=Rounds(use))


def test_a_config_is_refused() -> None:
    with refused(CallError, "ValueSlot"):
        ValueSlot("kept", {"shape": [3]})  # type: ignore[arg-type, misc] # <-
