"""Conditions, counts and carried values of If and Loop: one number of the right type, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bb_edge import open_model
from bb_edge.components import GraphModel
from bb_edge.inference import InferenceError
from bb_host import Compiler, Graph, ModelSlot, Module
from bb_host.build import compile_edge
from bb_host.errors import ArityError, TypeConstraintFailed, ValueTypeError
from bb_host.learn import mlp, trainable
from tests.aids.refusals import refused

V, A = ValueTypeError, ArityError
Case = tuple[type[Exception], str, Callable[..., Any]]
# fmt: off
REFUSED: list[Case] = [
    (V, "a condition is BOOL", lambda o, x, n, c: o.loop(3, None, x, body=lambda *a: a[1:4:2])),  # <-
    (V, "a condition is BOOL", lambda o, x, n, c: o.loop(3, None, x, body=lambda *a: (1, a[3]))),  # <-
    (V, "one number", lambda o, x, n, c: o.loop(3, None, x, body=lambda *a: (x > 0, a[3]))),  # <-
    (V, "begins as Tensor<I64>", lambda o, x, n, c: o.loop(3, True, 0, body=lambda *a: (a[2], x))),  # <-
    (V, "makes Tensor<I64>", lambda o, x, n, c: o.loop(3, True, x, body=lambda *a: (a[2], a[1]))),  # <-
    (V, "max_trip is one number", lambda o, x, n, c: o.loop(n, True, x, body=lambda *a: a[2:])),  # <-
    (V, "max_trip is one number", lambda o, x, n, c: o.loop([3, 4], None, x, body=abs)),  # <-
    (V, "max_trip is True", lambda o, x, n, c: o.loop(True, 3, x, body=lambda *a: a[2:])),  # <-
    (V, "condition is one number", lambda o, x, n, c: o.loop(3, c, x, body=lambda *a: a[2:])),  # <-
    (V, "condition is one number", lambda o, x, n, c: o.if_(c, lambda h: x, lambda h: -x)),  # <-
    (A, "iteration, keep_going, carried", lambda o, x, n, c: o.loop(3, True, x, body=lambda h, i: x)),  # <-
    (A, "nothing but its condition", lambda o, x, n, c: o.loop(3, True, body=lambda h, i, go: go)),  # <-
]
# fmt: on


@pytest.mark.parametrize(("kind", "words", "use"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_what_a_loop_cannot_go_on_with_is_refused(
    record: Callable[..., Any], kind: Any, words: str, use: Callable[..., Any]
) -> None:
    def body(g: Graph) -> None:
        use(g.onnx, g.input("x", "F32", (4,)), g.input("n", "I64", (3,)), g.input("c", "BOOL", (2, 3)))

    with refused(kind, words):
        record(body)


def test_a_loop_may_collect_and_carry_nothing(compute: Callable[..., dict[str, Any]]) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", (2,))
        g.output("y", g.onnx.loop(3, None, body=lambda h, i, go: (True, x * h.onnx.cast(i, "F32"))))

    assert compute(body, {"x": np.array([1, 2], np.float32)})["y"].tolist() == [[0, 0], [1, 2], [2, 4]]


def test_a_count_and_a_condition_of_one_element_are_numbers(compute: Callable[..., dict[str, Any]]) -> None:
    def body(g: Graph) -> None:
        n, go = g.input("n", "I64", (1,)), g.input("go", "BOOL", (1,))
        g.output("y", g.onnx.loop(n, go, 1.0, body=lambda h, i, on, v: (on, v * 2.0)))
        g.output("z", g.onnx.if_(go, lambda h: h.constant(1.0), lambda h: h.constant(2.0)))

    found = compute(body, {"n": np.array([3]), "go": np.array([True])})
    assert found["y"].tolist() == 8
    assert found["z"].tolist() == 1


# --- conditions that are vectors

ANY = "g.onnx.reduce_max(g.onnx.cast(x, to='I32'), keepdims=False) > 0"


def of_an_input(g: Graph, x: Any) -> None:
    with g.loop(3, carry=x) as step:
        step.next(step.carried + 1.0)
        step.stop(x > 3.0)  # <-


def of_what_is_carried(g: Graph, x: Any) -> None:
    with g.loop(carry=x) as step:
        step.stop(step.index > 9)
        step.stop(step.carried * 2.0 > 3.0)  # <-
        step.next(step.carried + 1.0)


def awaited(g: Graph, x: Any) -> None:
    g.output("y", g.gate(x, g.when(x > 3.0)))  # <-


def of_rounds(g: Graph, x: Any) -> None:
    with g.rounds(3) as start:
        start.stop(g.constant(np.ones(4)) * g.onnx.cast(start.round, to="F64") > 3.0)  # <-


@pytest.mark.parametrize("use", [of_an_input, of_what_is_carried, awaited, of_rounds])
def test_a_condition_of_several_elements(record: Callable[..., Any], use: Callable[..., None]) -> None:
    with refused(ValueTypeError, "the condition is one number", "BOOL>[4]", ANY):
        record(lambda g: use(g, g.input("x", "F32", (4,))))


def test_a_condition_of_several_elements_that_the_compiler_finds(module: Callable[..., Module]) -> None:
    model = ModelSlot("model", GraphModel, trainable(mlp([3, 2]), loss="mse"))

    def body(g: Graph) -> None:
        x = g.input("x", "F32", (2, 3))
        with g.loop(3, after=x) as step:
            large = model.params(g, after=step) > 9.0  # <-
            step.stop(step.index > 9)
            step.stop(large)
        g.output("y", model.params(g, after=step))

    with refused(TypeConstraintFailed, "a condition is one number, not Tensor<BOOL>[8]", "Greater", ANY):
        Compiler().compile(module(body, slot=model))

    def waits(g: Graph) -> None:
        large = model.params(g, after=g.input("x", "F32", (2, 3))) > 9.0
        g.output("y", g.when(large))  # <-

    with refused(TypeConstraintFailed, "When", "a condition is one number, not Tensor<BOOL>[8]", ANY):
        Compiler().compile(module(waits, slot=model))


def test_a_condition_of_open_shape_is_one_number_when_it_runs(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        with g.loop(carry=g.input("x", "F32", ("n",))) as step:
            step.next(step.carried + 1.0)
            step.stop(step.carried > 3.0)
            step.stop(step.index > 1)
        g.output("y", step.result)

    (artifact,) = compile_edge(module(body)).artifacts
    opened = open_model(artifact.data)
    assert opened(np.array([1], np.float32)).tolist() == [4]
    assert opened(np.array([3], np.float32)).tolist() == [5]
    with pytest.raises(InferenceError, match=r"the condition is one number, and \[2\] came") as caught:
        opened(np.array([1, 2], np.float32))
    assert "Reshape" not in str(caught.value)
