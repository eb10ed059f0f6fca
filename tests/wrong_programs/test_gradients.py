"""Wrong uses of gradients as values: keys without activations, wrong flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bb_edge import install
from bb_edge.components import GraphModel
from bb_edge.engine import steps
from bb_edge.ir.ids import PeerId
from bb_host import Compiler, Graph, ModelSlot, S
from bb_host.errors import AttributeValueError, BackwardWithoutForward, TypeConstraintFailed
from bb_host.learn import mlp, trainable
from tests.aids.refusals import quiet, refused

Body = Callable[[Graph], Any]
MODEL = ModelSlot("model")


def x_of(g: Graph) -> Any:
    return g.input("x", "F32", (1, 2))


def compiler() -> Compiler:
    return Compiler().bind_model("model", GraphModel, trainable(mlp([2, 2], 0), loss="mse"))


def a_flag_that_is_a_value(g: Graph) -> None:
    y = MODEL.forward(g, x_of(g))
    MODEL.backward(g, y, input_grad=y)  # type: ignore[arg-type]  # <-


def test_a_flag_that_is_a_value_is_refused(module: Any) -> None:
    with refused(AttributeValueError, "input_grad is", "expected True or False"):
        module(a_flag_that_is_a_value).record()


def a_key_that_nothing_is_kept_under(g: Graph) -> None:
    y = MODEL.forward(g, x_of(g))
    MODEL.backward(g, y, key=1)  # <-


def an_input_gradient_under_such_a_key(g: Graph) -> None:
    y = MODEL.forward(g, x_of(g))
    g.app_emit("dx", MODEL.backward(g, y, key=1, input_grad=True))  # <-


@pytest.mark.parametrize("body", [a_key_that_nothing_is_kept_under, an_input_gradient_under_such_a_key])
def test_a_key_that_no_forward_has_is_refused(module: Any, body: Body) -> None:
    with refused(BackwardWithoutForward, "runs 'model' forward with a key", "model.forward(g, x, key=…)"):
        compiler().compile(module(body))


def activations_under_a_key_alone(g: Graph) -> None:
    y = MODEL.forward(g, x_of(g), key=1)
    g.app_emit("dx", MODEL.backward(g, y, input_grad=True))  # <-


def test_a_backward_without_a_key_does_not_find_what_has_one(module: Any) -> None:
    with refused(BackwardWithoutForward, "runs 'model' forward", "in the same execution"):
        compiler().compile(module(activations_under_a_key_alone))


def an_input_gradient_in_another_execution(g: Graph) -> None:
    g.app_emit("y", MODEL.forward(g, x_of(g)))
    tick = g.interval(S)
    dx = MODEL.backward(g, g.constant(np.zeros((1, 2), np.float32)), input_grad=True, after=tick)  # <-
    g.app_emit("dx", dx)


def test_an_input_gradient_in_another_execution_is_refused(module: Any) -> None:
    with refused(BackwardWithoutForward, "in the same one, or give both a key"):
        compiler().compile(module(an_input_gradient_in_another_execution))


def keys_in_two_executions(g: Graph) -> None:
    g.app_emit("y", MODEL.forward(g, x_of(g), key=g.input("k", "I64", ())))
    done = MODEL.backward(g, g.input("dz", "F32", (1, 2)), key=g.input("j", "I64", ()))
    g.app_emit("gradient", MODEL.gradient(g, after=done))


def test_keys_join_executions(module: Any) -> None:
    quiet(module(keys_in_two_executions), compiler())


def a_gradient_of_another_shape(g: Graph) -> None:
    MODEL.forward(g, x_of(g), key=1)
    MODEL.backward(g, g.input("dz", "F32", (1, 3)), key=1)  # <-


def test_a_keyed_gradient_of_another_shape_is_refused(module: Any) -> None:
    with refused(TypeConstraintFailed, "F32[?,2] as grad", "F32[1,3]"):
        compiler().compile(module(a_gradient_of_another_shape))


def test_a_key_that_is_gone_says_what_to_do(module: Any) -> None:
    data = compiler().compile(module(keys_in_two_executions)).SerializeToString()
    node = install(PeerId.from_name("a"), (), data, ["Main"], seed=1)
    x = np.ones((1, 2), np.float32)
    node.invoke("Main", {"x": x, "k": np.array(1)})
    node.poll(1)
    node.invoke("Main", {"dz": x, "j": np.array(2)})
    (failed,) = (step for step in node.poll(2) if isinstance(step, steps.OpFailed))
    assert "no activations are kept under this key (2)" in str(failed.error)
    assert "slot 'model'" in str(failed.error) and "raise kept_keys or kept_key_bytes" in str(failed.error)


def test_what_had_to_go_is_counted(module: Any) -> None:
    data = compiler().compile(module(keys_in_two_executions)).SerializeToString()
    few = {"model": {"kept_keys": 2}}
    node = install(PeerId.from_name("a"), (), data, ["Main"], components=few, seed=1)
    for key in range(5):
        node.invoke("Main", {"x": np.ones((1, 2), np.float32), "k": np.array(key)})
        node.poll(key + 1)
    assert node.counters["activations.dropped"] == 3
