"""Python's operators and functions on values: what they say, or a typed error at the line."""

from __future__ import annotations

import contextlib
import copy
import fractions
import functools
import math
import operator
import random
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bb_host import Graph, Module, Output
from bb_host.errors import AttributeValueError, PortNameError, UnknownAttributeError, ValueTypeError
from tests.aids.refusals import quiet, refused, warned

X = np.array([0, 1, 2.5, -3], np.float32)
Y = np.array([2, -2, 2, 2], np.float32)
I = np.array([-7, 0, 5, 8], np.int32)  # noqa: E741
J = np.array([3, -3, -3, 3], np.int32)
U = np.array([0, 5, 200, 7], np.uint8)
C = np.array([True, False, True, False])
D = np.array([True, True, False, False])

# --- what can be recorded computes what NumPy computes of the same expression

EXPRESSIONS: list[Callable[..., Any]] = [
    lambda where, x, y, i, j, u, c, d: where(x == 1.0, x, x * 10.0),
    lambda where, x, y, i, j, u, c, d: where(x != 1.0, x, x * 10.0),
    lambda where, x, y, i, j, u, c, d: x == 1.0,
    lambda where, x, y, i, j, u, c, d: x == y,
    lambda where, x, y, i, j, u, c, d: i != j,
    lambda where, x, y, i, j, u, c, d: c == d,
    lambda where, x, y, i, j, u, c, d: x // 2,
    lambda where, x, y, i, j, u, c, d: 7 // y,
    lambda where, x, y, i, j, u, c, d: x // y,
    lambda where, x, y, i, j, u, c, d: u // 3,
    lambda where, x, y, i, j, u, c, d: x % y,
    lambda where, x, y, i, j, u, c, d: 5 % y,
    lambda where, x, y, i, j, u, c, d: i % j,
    lambda where, x, y, i, j, u, c, d: 7 % j,
    lambda where, x, y, i, j, u, c, d: u % 3,
    lambda where, x, y, i, j, u, c, d: divmod(x, y)[1],
    lambda where, x, y, i, j, u, c, d: divmod(5, y)[0],
    lambda where, x, y, i, j, u, c, d: c & d,
    lambda where, x, y, i, j, u, c, d: c | d,
    lambda where, x, y, i, j, u, c, d: c ^ d,
    lambda where, x, y, i, j, u, c, d: ~c,
    lambda where, x, y, i, j, u, c, d: (x > 0) & (x < 2) | ~(y > 0),
    lambda where, x, y, i, j, u, c, d: True ^ c,
    lambda where, x, y, i, j, u, c, d: i & j,
    lambda where, x, y, i, j, u, c, d: 6 | i,
    lambda where, x, y, i, j, u, c, d: i ^ 5,
    lambda where, x, y, i, j, u, c, d: ~i,
    lambda where, x, y, i, j, u, c, d: ~u & 15,
    lambda where, x, y, i, j, u, c, d: +x,
    lambda where, x, y, i, j, u, c, d: sum([x, y, x]),
    lambda where, x, y, i, j, u, c, d: functools.reduce(operator.and_, [c, d, c]),
    lambda where, x, y, i, j, u, c, d: X + x,  # an array on the left leaves it to the value
    lambda where, x, y, i, j, u, c, d: Y % (x + 0.75),
    lambda where, x, y, i, j, u, c, d: x == Y,
    lambda where, x, y, i, j, u, c, d: np.float32(2) * x,
    lambda where, x, y, i, j, u, c, d: D & c,
]


def test_operators_compute_what_numpy_computes(compute: Callable[..., dict[str, Any]]) -> None:
    def body(g: Graph) -> None:
        values = [
            g.input("x", "F32", (4,)),
            g.input("y", "F32", (4,)),
            g.input("i", "I32", (4,)),
            g.input("j", "I32", (4,)),
            g.input("u", "U8", (4,)),
            g.input("c", "BOOL", (4,)),
            g.input("d", "BOOL", (4,)),
        ]
        for number, expression in enumerate(EXPRESSIONS):
            g.output(f"r{number}", expression(g.onnx.where, *values))

    found = compute(body, {"x": X, "y": Y, "i": I, "j": J, "u": U, "c": C, "d": D})
    with np.errstate(divide="ignore", invalid="ignore"):
        for number, expression in enumerate(EXPRESSIONS):
            wanted = np.asarray(expression(np.where, X, Y, I, J, U, C, D))
            got = found[f"r{number}"]
            assert got.dtype == wanted.dtype, f"expression {number}"
            np.testing.assert_allclose(got, wanted, rtol=1e-6, err_msg=f"expression {number}")


def test_the_device_and_python_agree_on_remainders(compute: Callable[..., dict[str, Any]]) -> None:
    numbers = [-7, -1, 0, 3, 8]
    divisors = [-3, 2]

    def body(g: Graph) -> None:
        i, x = g.input("i", "I64", (5,)), g.input("x", "F64", (5,))
        for d in divisors:
            g.output(f"i{d}", i % d)
            g.output(f"x{d}", x % d)
            g.output(f"f{d}", x // d)

    # A port's name has no minus sign in front; "i-3" is one.
    found = compute(body, {"i": np.array(numbers), "x": np.array(numbers, np.float64)})
    for d in divisors:
        assert found[f"i{d}"].tolist() == [n % d for n in numbers]
        assert found[f"x{d}"].tolist() == [float(n) % d for n in numbers]
        assert found[f"f{d}"].tolist() == [float(n) // d for n in numbers]


def test_a_value_of_a_branch_stands_on_either_side(compute: Callable[..., dict[str, Any]]) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", (4,))

        def step(h: Graph, n: Output, go: Output, total: Output) -> tuple[Output, Output]:
            return go, x + total  # x is of the graph around

        g.output("y", g.onnx.loop(3, True, [0.0, 0.0, 0.0, 0.0], body=step))

    assert compute(body, {"x": X})["y"].tolist() == (X * 3).tolist()


def test_handles_are_told_apart_by_identity(record: Callable[..., Any]) -> None:
    def body(g: Graph) -> None:
        x, y = g.input("x", "F32"), g.input("y", "F32")
        assert {id(x): "x", id(y): "y"}[id(y)] == "y"
        assert x is copy.copy([x])[0]

    program = record(body)
    assert not program.functions[0].ops  # none of it recorded an Equal


# --- what cannot be recorded names what can

Case = tuple[type[Exception], str, Callable[[Graph, Output, Output, Output], Any]]
# fmt: off
REFUSED: list[Case] = [
    (ValueTypeError, "is None", lambda g, x, i, t: x == None),  # noqa: E711  # <-
    (ValueTypeError, "is None", lambda g, x, i, t: x != None),  # noqa: E711  # <-
    (ValueTypeError, "is None", lambda g, x, i, t: x + g.wire.send("p", g.input("p", "PeerIdVec"), x)),  # <-
    (ValueTypeError, "is neither a recorded value nor a number", lambda g, x, i, t: x == "one"),  # <-
    (ValueTypeError, "is neither a recorded value nor a number", lambda g, x, i, t: x == object()),  # <-
    (ValueTypeError, "expects a Tensor, got <t: Trigger>", lambda g, x, i, t: t == 1),  # <-
    (ValueTypeError, "% expects a Tensor", lambda g, x, i, t: t % 2),  # <-
    (ValueTypeError, "0.5 does not fit Tensor<I32>", lambda g, x, i, t: i == 0.5),  # <-
    (ValueTypeError, "wants one element type", lambda g, x, i, t: x == i),  # <-
    (ValueTypeError, "has no truth value", lambda g, x, i, t: x in [x + 1, x]),  # <-
    (ValueTypeError, "has no truth value", lambda g, x, i, t: [x > 0, x > 1].index(x < 2)),  # <-
    (ValueTypeError, "id(x) tells handles apart", lambda g, x, i, t: i in {1, 2, 3}),  # <-
    (ValueTypeError, "g.onnx.gather(table, x)", lambda g, x, i, t: {0: 1.0}.get(i, 5.0)),  # <-
    (ValueTypeError, "x == item", lambda g, x, i, t: {x, i}),  # <-
    (ValueTypeError, "x == item", lambda g, x, i, t: functools.lru_cache(abs)(x)),  # <-
    (ValueTypeError, "has no truth value", lambda g, x, i, t: 0 < x < 1),  # <-
    (ValueTypeError, "has no truth value", lambda g, x, i, t: x > 0 and x < 1),  # <-
    (ValueTypeError, "has no truth value", lambda g, x, i, t: not x),  # <-
    (ValueTypeError, "has no truth value", lambda g, x, i, t: max(x, x + 1)),  # <-
    (ValueTypeError, "has no truth value", lambda g, x, i, t: 1 if x == 1 else 2),  # <-
    (ValueTypeError, "reduce_max", lambda g, x, i, t: 1 in x),  # <-
    (ValueTypeError, "rounds toward zero", lambda g, x, i, t: i // 2),  # <-
    (ValueTypeError, "rounds toward zero", lambda g, x, i, t: 9 // i),  # <-
    (ValueTypeError, "rounds toward zero", lambda g, x, i, t: divmod(i, 2)),  # <-
    (ValueTypeError, "// is not defined", lambda g, x, i, t: (x > 0) // (x > 1)),  # <-
    (ValueTypeError, "% is not defined", lambda g, x, i, t: (x > 0) % (x > 1)),  # <-
    (ValueTypeError, "& is not defined", lambda g, x, i, t: x & 1),  # <-
    (ValueTypeError, "~ is not defined", lambda g, x, i, t: ~x),  # <-
    (ValueTypeError, "and_", lambda g, x, i, t: g.input("any", "Tensor") & 1),  # <-
    (ValueTypeError, "bitwise_not", lambda g, x, i, t: ~g.input("any", "Tensor")),  # <-
    (ValueTypeError, "bit_shift", lambda g, x, i, t: i << 1),  # <-
    (ValueTypeError, "bit_shift", lambda g, x, i, t: 1 >> i),  # <-
    (ValueTypeError, "x**y % z", lambda g, x, i, t: pow(x, 2, 3)),  # <-
    (ValueTypeError, "g.onnx.cast", lambda g, x, i, t: float(x)),  # <-
    (ValueTypeError, "g.onnx.cast", lambda g, x, i, t: int(x)),  # <-
    (ValueTypeError, "complex", lambda g, x, i, t: complex(x)),  # <-
    (ValueTypeError, "g.onnx.round", lambda g, x, i, t: round(x)),  # <-
    (ValueTypeError, "g.onnx.floor", lambda g, x, i, t: math.floor(x)),  # <-
    (ValueTypeError, "g.onnx.ceil", lambda g, x, i, t: math.ceil(x)),  # <-
    (ValueTypeError, "g.onnx.cast", lambda g, x, i, t: math.trunc(x)),  # <-
    (ValueTypeError, "g.onnx.cast", lambda g, x, i, t: math.sqrt(x)),  # <-
    (ValueTypeError, "x.shape[0]", lambda g, x, i, t: len(x)),  # <-
    (ValueTypeError, "takes it as after=", lambda g, x, i, t: contextlib.ExitStack().enter_context(x)),  # <-
    (ValueTypeError, "g.peer_count(peers)", lambda g, x, i, t: len(g.input("ps", "PeerIdVec"))),  # <-
    (ValueTypeError, "g.peer_at(peers, i)", lambda g, x, i, t: list(g.input("ps", "PeerIdVec"))),  # <-
    (ValueTypeError, "g.address_at", lambda g, x, i, t: list(g.input("ads", "AddressVec"))),  # <-
    (ValueTypeError, "g.constant('hello')", lambda g, x, i, t: g.app_emit("s", "hello")),  # <-
    (AttributeValueError, "beside it: g.app_emit", lambda g, x, i, t: g.app_emit(f"x {x}", x)),  # <-
    (AttributeValueError, "name 'n <i: ", lambda g, x, i, t: g.app_notify(f"n {i}", x)),  # <-
    (AttributeValueError, "holds the text", lambda g, x, i, t: g.record(f"x {[x]}", x)),  # <-
    (AttributeValueError, "holds the text", lambda g, x, i, t: g.incr_metric(f"m {t}", t)),  # <-
    (PortNameError, "beside it: g.app_emit", lambda g, x, i, t: g.output(f"y {x}", x)),  # <-
    (ValueTypeError, "g.onnx.loop", lambda g, x, i, t: range(i)),  # <-
    (ValueTypeError, "cannot be unpacked", lambda g, x, i, t: [v for v in x]),  # <-
    (ValueTypeError, "cannot be unpacked", lambda g, x, i, t: statistics.mean(x)),  # <-
    (ValueTypeError, "x.shape[0]", lambda g, x, i, t: random.choice(x)),  # <-
    (ValueTypeError, " does not fit ", lambda g, x, i, t: fractions.Fraction(1, 2) ** i),  # <-
    (ValueTypeError, "x[::-1]", lambda g, x, i, t: reversed(x)),  # <-
    (ValueTypeError, "app_emit", lambda g, x, i, t: f"{x:.2f}"),  # <-
    (ValueTypeError, "not a function", lambda g, x, i, t: x(0)),  # <-
    (ValueTypeError, "values do not change", lambda g, x, i, t: operator.delitem(x, 0)),  # <-
    (ValueTypeError, "g.onnx.reshape", lambda g, x, i, t: setattr(x, "shape", (2, 2))),  # <-
    (ValueTypeError, "a list of recorded values", lambda g, x, i, t: g.onnx.reshape(x, [i, 2])),  # <-
    (ValueTypeError, "a list of recorded values", lambda g, x, i, t: x == [x, x]),  # <-
    (ValueTypeError, "g.bundle([…]) makes one value", lambda g, x, i, t: g.app_emit("both", [x, i])),  # <-
    (ValueTypeError, "g.bundle([…]) makes one value", lambda g, x, i, t: g.output("both", (x, i))),  # <-
    (ValueTypeError, "send x, not [x]", lambda g, x, i, t: g.onnx.relu([x])),  # <-
    (UnknownAttributeError, "g.onnx.reduce_mean", lambda g, x, i, t: x.mean()),  # <-
    (UnknownAttributeError, "g.onnx.reduce_sum", lambda g, x, i, t: x.sum(axis=0)),  # <-
    (UnknownAttributeError, "g.onnx.transpose", lambda g, x, i, t: x.T),  # <-
    (UnknownAttributeError, "g.onnx.reshape", lambda g, x, i, t: x.reshape(2, 2)),  # <-
    (UnknownAttributeError, "g.onnx.cast", lambda g, x, i, t: x.astype(np.int64)),  # <-
    (UnknownAttributeError, "x.node", lambda g, x, i, t: x.dtype),  # <-
    (UnknownAttributeError, "g.onnx.softmax", lambda g, x, i, t: x.softmax()),  # <-
    (UnknownAttributeError, "app_emit", lambda g, x, i, t: x.item()),  # <-
    (UnknownAttributeError, "did you mean 'shape'?", lambda g, x, i, t: x.shap),  # <-
    (UnknownAttributeError, "r.value", lambda g, x, i, t: x.sender),  # <-
    (ValueTypeError, "g.onnx.reduce_mean", lambda g, x, i, t: np.mean(x)),  # <-
    (ValueTypeError, "np.stack", lambda g, x, i, t: np.stack([x, x])),  # <-
    (ValueTypeError, "np.norm", lambda g, x, i, t: np.linalg.norm(x)),  # <-
    (ValueTypeError, "g.onnx.where", lambda g, x, i, t: np.where(x > 0, x, 0)),  # <-
    (ValueTypeError, "g.onnx.add", lambda g, x, i, t: np.asarray(x)),  # <-
    (ValueTypeError, "g.onnx.add", lambda g, x, i, t: np.array([x, 1])),  # <-
    (ValueTypeError, "g.onnx.add", lambda g, x, i, t: np.add(x, 1)),  # <-
    (ValueTypeError, "g.onnx.add", lambda g, x, i, t: np.add(X, x)),  # <-
    (ValueTypeError, "g.onnx.add", lambda g, x, i, t: np.exp(x)),  # <-
    (ValueTypeError, "g.onnx.add", lambda g, x, i, t: np.vectorize(abs)(x)),  # <-
    (ValueTypeError, "g.onnx.add", lambda g, x, i, t: np.float32(x)),  # <-
    (ValueTypeError, "Python's True", lambda g, x, i, t: g.onnx.where(x is x, x, -x)),  # <-
    (ValueTypeError, "Python's False", lambda g, x, i, t: g.onnx.if_(x is i, abs, abs)),  # <-
    (ValueTypeError, "Python's True", lambda g, x, i, t: g.onnx.op("Where", True, x, -x)),  # <-
]
# fmt: on


@pytest.mark.parametrize(("kind", "words", "use"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_what_cannot_be_recorded_names_what_can(
    record: Callable[..., Any], kind: Any, words: str, use: Callable[..., Any]
) -> None:
    def body(g: Graph) -> None:
        found = use(g, g.input("x", "F32", (4,)), g.input("i", "I32", (4,)), g.input("t", "Trigger"))
        g.output("found", found)

    with refused(kind, words):
        record(body)


def test_hasattr_and_getattr_work_on_values(record: Callable[..., Any]) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32")
        assert not hasattr(x, "mean")
        assert getattr(x, "numpy", 3) == 3
        assert not hasattr(g, "onput")

    record(body)


# --- operators that combine several values, given one


class Combines(Module):
    """One output of what `combine` gives of a vector and a number."""

    def __init__(self, combine: Callable[[Graph, Output, Output], Output]) -> None:
        super().__init__()
        self._combine = combine

    def body(self, g: Graph) -> None:
        g.output("y", self._combine(g, g.input("x", "F32", (4,)), g.input("n", "F32", ())) * 2.0)


@pytest.mark.parametrize("name", ["mean", "max", "min", "sum"])
def test_one_value_is_not_combined(name: str) -> None:
    def one(g: Graph, x: Output, n: Output) -> Output:
        return getattr(g.onnx, name)(x)  # <-

    def by_name(g: Graph, x: Output, n: Output) -> Output:
        return g.onnx.op(name.title(), x)  # <-

    for combine in one, by_name:
        words = f"g.onnx.{name} of one value is that value", f"g.onnx.reduce_{name}(x)"
        found = warned("one-operand", *words, program=Combines(lambda g, x, n: combine(g, x, n) + n))  # noqa: B023
        assert found.hint.startswith("over the elements of one")

    for several in (
        lambda g, x, n: getattr(g.onnx, name)(x, n),
        lambda g, x, n: getattr(g.onnx, name)([x + n]),
        lambda g, x, n: getattr(g.onnx, name)(n) * x,
        lambda g, x, n: getattr(g.onnx, f"reduce_{name}")(x) * n,
    ):
        quiet(Combines(several))
