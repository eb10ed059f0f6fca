"""Arguments of recording calls that mean something else than they seem to: refused at the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bb_host import Graph, IndexSlot, ModelSlot, PeerSelectorSlot
from bb_host.errors import (
    ArityError,
    AttributeValueError,
    CallError,
    LoopError,
    RoundsError,
    UnknownAttributeError,
    ValueTypeError,
)
from tests.aids.refusals import refused

MODEL, PEERS, INDEX = ModelSlot("model"), PeerSelectorSlot("peers"), IndexSlot("index")

Case = tuple[type[Exception], str, Callable[..., Any]]
# fmt: off
REFUSED: list[Case] = [
    # `after` goes by name: one value too many is not an order
    (CallError, "add(a, b, after=…)", lambda g, x, p: g.onnx.add(x, x, x)),  # <-
    (CallError, "takes 1 positional arguments but 2", lambda g, x, p: g.onnx.relu(x, x)),  # <-
    (CallError, "sqrt(x, after=…)", lambda g, x, p: g.onnx.sqrt(x, x)),  # <-
    (CallError, "takes from 1 to 2 positional arguments", lambda g, x, p: g.onnx.softmax(x, 1, x)),  # <-
    (CallError, "where(condition, x, y, after=…)", lambda g, x, p: g.onnx.where(x > 0, x, x, x)),  # <-
    (CallError, "app_emit(name, value, after=…)", lambda g, x, p: g.app_emit("y", x, x)),  # <-
    (CallError, "record(name, value, after=…)", lambda g, x, p: g.record("y", x, x)),  # <-
    (CallError, "hold_stash(slot, value, after=…)", lambda g, x, p: g.hold_stash("y", x, x)),  # <-
    (CallError, "forward(g, input, key=…, after=…)", lambda g, x, p: MODEL.forward(g, x, x)),  # <-
    (CallError, "bundle(parts, after=…)", lambda g, x, p: g.bundle([x], x)),  # <-
    # element types and flags
    (ValueTypeError, "None names no type", lambda g, x, p: g.onnx.cast(x, None)),  # <-
    (AttributeValueError, "pass True or False", lambda g, x, p: g.onnx.reduce_sum(x, keepdims=2)),  # <-
    (AttributeValueError, "True or False", lambda g, x, p: g.onnx.reduce_mean(x, 1, keepdims="no")),  # <-
    (AttributeValueError, "pass True or False", lambda g, x, p: g.onnx.reduce_max(x, keepdims=None)),  # <-
    (AttributeValueError, "True or False", lambda g, x, p: g.onnx.op("ReduceProd", x, keepdims=-1)),  # <-
    (AttributeValueError, "pass True or False", lambda g, x, p: g.onnx.gemm(x, x, trans_a="yes")),  # <-
    (AttributeValueError, "axis is int, not True", lambda g, x, p: g.onnx.softmax(x, axis=True)),  # <-
    (AttributeValueError, "not False", lambda g, x, p: g.onnx.concat(x, x, axis=False)),  # <-
    (AttributeValueError, "perm is ints", lambda g, x, p: g.onnx.transpose(x, [True, False])),  # <-
    # numbers that an attribute does not hold
    (AttributeValueError, "F32 can hold", lambda g, x, p: g.onnx.leaky_relu(x, alpha=1e300)),  # <-
    (AttributeValueError, "F32 can hold", lambda g, x, p: g.onnx.leaky_relu(x, alpha=10**400)),  # <-
    (AttributeValueError, "64 bits can hold", lambda g, x, p: g.onnx.softmax(x, axis=2**63)),  # <-
    (AttributeValueError, "kernel_shape is ints, not 2", lambda g, x, p: g.onnx.max_pool(x, 2)),  # <-
    (AttributeValueError, "kernel_shape is ints, not 2", lambda g, x, p: g.onnx.average_pool(x, 2)),  # <-
    (AttributeValueError, "shape is ints, not 3", lambda g, x, p: g.onnx.ones(3)),  # <-
    (AttributeValueError, "shape is ints, not [2.5]", lambda g, x, p: g.onnx.ones([2.5])),  # <-
    (ValueTypeError, "[-1, 3] is not a shape", lambda g, x, p: g.onnx.zeros([-1, 3])),  # <-
    (AttributeValueError, "64 bits can hold", lambda g, x, p: PEERS.sample(g, n=2**63)),  # <-
    (AttributeValueError, "n is int, not True", lambda g, x, p: PEERS.sample(g, n=True)),  # <-
    (AttributeValueError, "is not a number of peers", lambda g, x, p: PEERS.sample(g, n=2, min=-1)),  # <-
    (AttributeValueError, "is not a number of peers", lambda g, x, p: PEERS.sample(g, n=2, min=True)),  # <-
    # numbers by which nobody is ever chosen
    (AttributeValueError, "sample: n=0 is not a number of peers", lambda g, x, p: PEERS.sample(g, n=0)),  # <-
    (AttributeValueError, "write n=1 or more; current_view(g)", lambda g, x, p: PEERS.sample(g, n=-1)),  # <-
    (AttributeValueError, "near_key: n=0 is", lambda g, x, p: PEERS.near_key(g, g.constant("k"), n=0)),  # <-
    (AttributeValueError, "search: k=0 is not a number of n", lambda g, x, p: INDEX.search(g, x, k=0)),  # <-
    (AttributeValueError, "k=-1 is not a number of n", lambda g, x, p: INDEX.search(g, x, k=-1)),  # <-
    (AttributeValueError, "min=5 is above n=2", lambda g, x, p: PEERS.sample(g, n=2, min=5)),  # <-
    (AttributeValueError, "or n=5 or more", lambda g, x, p: PEERS.sample(g, n=2, min=5, fraction=0.5)),  # <-
    (AttributeValueError, "not a share of the", lambda g, x, p: PEERS.sample(g, 2, fraction=0)),  # <-
    (AttributeValueError, "not a share of the", lambda g, x, p: PEERS.sample(g, 2, fraction=-0.1)),  # <-
    (AttributeValueError, "not a share of the", lambda g, x, p: PEERS.sample(g, 2, fraction=1.5)),  # <-
    (AttributeValueError, "not a share of the", lambda g, x, p: PEERS.sample(g, 2, fraction=True)),  # <-
    (AttributeValueError, "not a share of the", lambda g, x, p: PEERS.sample(g, 2, fraction="0.1")),  # <-
    (AttributeValueError, "not a share of the", lambda g, x, p: PEERS.sample(g, 2, fraction=1e-10)),  # <-
    (AttributeValueError, "not a share of the", lambda g, x, p: PEERS.sample(g, 2, fraction=1e999)),  # <-
    (AttributeValueError, "True or False", lambda g, x, p: g.net_out("p", p, x, durable="no")),  # <-
    # names and numbers of results
    (UnknownAttributeError, "g.onnx.relu(…)", lambda g, x, p: g.relu(x)),  # <-
    (UnknownAttributeError, "g.onnx.matmul(…)", lambda g, x, p: g.matmul(x, x)),  # <-
    (UnknownAttributeError, "did you mean 'output'?", lambda g, x, p: g.outputs("y", x)),  # <-
    (UnknownAttributeError, "did you mean 'input'?", lambda g, x, p: g.inputs("y", "F32")),  # <-
    (ArityError, "at least 2 outputs", lambda g, x, p: g.onnx.top_k(x, [2], outputs=1)),  # <-
    (ValueTypeError, "index 7 is out of range", lambda g, x, p: g.onnx.scatter(x, [[7]], [[1.0]])),  # <-
    (ValueTypeError, "index -5 is", lambda g, x, p: g.onnx.scatter(x, [[-5]], [[1.0]], axis=1)),  # <-
    (RoundsError, "write: with g.rounds(…) as start:", lambda g, x, p: list(g.rounds(3))),  # <-
    (LoopError, "write: with g.loop(…) as step:", lambda g, x, p: list(g.loop(3))),  # <-
    (ValueTypeError, "g.onnx.shape(x)", lambda g, x, p: g.output("y", g.input("z", "F32").shape)),  # <-
    (
        ValueTypeError,
        "a shape with open sizes record g.onnx.shape(x)",
        lambda g, x, p: g.output("y", g.input("z", "F32", ("n", 3)).shape),  # <-
    ),
    (ValueTypeError, "<rounds: no value", lambda g, x, p: g.clock(g.rounds(3))),  # <-
]
# fmt: on


@pytest.mark.parametrize(("kind", "words", "use"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_an_argument_of_another_meaning_is_refused(
    record: Callable[..., Any], kind: Any, words: str, use: Callable[..., Any]
) -> None:
    def body(g: Graph) -> None:
        use(g, g.input("x", "F32", (4, 4)), g.input("p", "PeerIdVec"))

    with refused(kind, words):
        record(body)


def test_a_sample_may_want_all_that_it_chooses(record: Callable[..., Any]) -> None:
    record(lambda g: g.output("peers", PEERS.sample(g, n=2, min=2)))
