"""Numbers, arrays, indices and shapes beside values: computed as written, or refused at the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bb_host import Graph
from bb_host.errors import ValueTypeError
from tests.aids.refusals import refused

X = np.array([1.5, 4, 9, -2], np.float32)
I = np.array([9, 7, -2, 3], np.int32)  # noqa: E741
L = np.array([20, 5, 0, 3], np.int64)
U = np.array([0, 5, 200, 7], np.uint8)
T = np.arange(12, dtype=np.float32).reshape(4, 3)

# --- what NumPy computes of the same expression, in the same element type

COMPUTED: list[Callable[..., Any]] = [
    lambda x, i, n, u, t: x**2,
    lambda x, i, n, u, t: x**0.5,
    lambda x, i, n, u, t: 2**x,
    lambda x, i, n, u, t: i**2,
    lambda x, i, n, u, t: i**3,
    lambda x, i, n, u, t: 3**n,  # 3**20 needs 64 bits
    lambda x, i, n, u, t: n**n,
    lambda x, i, n, u, t: np.float32(2) ** x,
    lambda x, i, n, u, t: x / 2,
    lambda x, i, n, u, t: 2 / x,
    lambda x, i, n, u, t: u // 3,
    lambda x, i, n, u, t: n < 2**63 - 1,
    lambda x, i, n, u, t: n + -(2**63),
    lambda x, i, n, u, t: x + 3.4e38,
    lambda x, i, n, u, t: x * float("inf"),
    lambda x, i, n, u, t: x * X.astype(">f4"),  # bytes in another order are the same numbers
    lambda x, i, n, u, t: x * np.ma.masked_array(X, [False] * 4),
    lambda x, i, n, u, t: x[: 2**63],
    lambda x, i, n, u, t: x[:: 2**63],
    lambda x, i, n, u, t: x[-(2**70) : 2**70],
    lambda x, i, n, u, t: x[np.int64(1)],
    lambda x, i, n, u, t: x[np.int64(1) : np.int8(3)],
    lambda x, i, n, u, t: t[1],
    lambda x, i, n, u, t: t[-1, 2],
    lambda x, i, n, u, t: t[1:, -1],
    lambda x, i, n, u, t: t[2, 1:],
    lambda x, i, n, u, t: t[::2, 0],
]


@pytest.mark.parametrize("size", [4, None, "n"])
def test_what_stands_beside_a_value_means_what_it_means_to_numpy(
    compute: Callable[..., dict[str, Any]], size: int | str | None
) -> None:
    def body(g: Graph) -> None:
        values = [
            g.input("x", "F32", (4,)),
            g.input("i", "I32", (4,)),
            g.input("n", "I64", (4,)),
            g.input("u", "U8", (4,)),
            g.input("t", "F32", (size, 3)),
        ]
        for number, expression in enumerate(COMPUTED):
            g.output(f"r{number}", expression(*values))

    found = compute(body, {"x": X, "i": I, "n": L, "u": U, "t": T})
    with np.errstate(invalid="ignore"):
        for number, expression in enumerate(COMPUTED):
            wanted = np.asarray(expression(X, I, L, U, T))
            got = found[f"r{number}"]
            assert got.dtype == wanted.dtype, f"expression {number}"
            np.testing.assert_allclose(got, wanted, rtol=1e-6, err_msg=f"expression {number}")


def test_unsigned_constants_of_64_bits_are_kept(compute: Callable[..., dict[str, Any]]) -> None:
    def body(g: Graph) -> None:
        g.output("y", g.input("u", "U64", (1,)) + (2**64 - 3))
        g.output("c", g.constant(2**63, "U64") + g.constant(0, "U64"))

    found = compute(body, {"u": np.array([2], np.uint64)})
    assert found["y"].tolist() == [2**64 - 1]
    assert found["c"].tolist() == 2**63


# --- what has no meaning, or another one than it seems

Case = tuple[str, Callable[..., Any]]
# fmt: off
REFUSED: list[Case] = [
    # powers
    ("0.5 does not fit Tensor<I32>", lambda g, x, i, n, u, h: i**0.5),  # <-
    ("nan does not fit Tensor<I32>", lambda g, x, i, n, u, h: i ** float("nan")),  # <-
    ("cast it first", lambda g, x, i, n, u, h: i**-1),  # <-
    ("cast it first", lambda g, x, i, n, u, h: i ** [2, -1, 2, 2]),  # <-
    ("300 does not fit Tensor<U8>", lambda g, x, i, n, u, h: u**300),  # <-
    ("-3 does not fit Tensor<U8>", lambda g, x, i, n, u, h: u**-3),  # <-
    ("** is not defined on", lambda g, x, i, n, u, h: u**2),  # <-
    ("** is not defined on", lambda g, x, i, n, u, h: (x > 0) ** True),  # <-
    ("one element type", lambda g, x, i, n, u, h: np.int64(2) ** x),  # <-
    ("one element type", lambda g, x, i, n, u, h: x**n),  # <-
    ("one element type", lambda g, x, i, n, u, h: x ** g.onnx.cast(x, "F64")),  # <-
    ("0.5 does not fit Tensor<I32>", lambda g, x, i, n, u, h: 0.5**i),  # <-
    # division of integers
    ("g.onnx.cast(x, to='F32')", lambda g, x, i, n, u, h: i / 2),  # <-
    ("rounds toward zero", lambda g, x, i, n, u, h: 9 / i),  # <-
    ("rounds toward zero", lambda g, x, i, n, u, h: i / i),  # <-
    ("x // y", lambda g, x, i, n, u, h: u / 2),  # <-
    # integers that no element holds
    ("9223372036854775808 does not fit Tensor<I64>", lambda g, x, i, n, u, h: g.constant(2**63)),  # <-
    ("9223372036854775808 does not fit Tensor<I64>", lambda g, x, i, n, u, h: n < 2**63),  # <-
    ("9223372036854775808 does not fit Tensor<I64>", lambda g, x, i, n, u, h: n + 2**63),  # <-
    ("does not fit Tensor<I64>", lambda g, x, i, n, u, h: g.constant(np.array([2**63], "u8"), "I64")),  # <-
    ("-1 does not fit Tensor<U64>", lambda g, x, i, n, u, h: g.constant(-1, "U64")),  # <-
    ("is beyond 64 bits", lambda g, x, i, n, u, h: x * 2**70),  # <-
    ("is beyond 64 bits", lambda g, x, i, n, u, h: g.constant([1, -(2**70)])),  # <-
    ("16777217 does not fit Tensor<F32>", lambda g, x, i, n, u, h: x + (2**24 + 1)),  # <-
    # floats that become infinite
    ("1e+300 does not fit Tensor<F32>", lambda g, x, i, n, u, h: g.constant(1e300)),  # <-
    ("1e+39 does not fit Tensor<F32>", lambda g, x, i, n, u, h: x + 1e39),  # <-
    ("-1e+39 does not fit Tensor<F32>", lambda g, x, i, n, u, h: x < -1e39),  # <-
    ("100000.0 does not fit Tensor<F16>", lambda g, x, i, n, u, h: g.constant(1e5, "F16")),  # <-
    ("70000.0 does not fit Tensor<F16>", lambda g, x, i, n, u, h: h + 70000.0),  # <-
    ("does not fit Tensor<F32>", lambda g, x, i, n, u, h: g.constant([0.0, float("inf"), 1e39])),  # <-
    # element types of constants
    ("a constant of PeerIdVec", lambda g, x, i, n, u, h: g.constant(2, "PeerIdVec")),  # <-
    ("a constant of Bytes", lambda g, x, i, n, u, h: g.constant(2, "Bytes")),  # <-
    ("a constant of Trigger", lambda g, x, i, n, u, h: g.constant(2, "Trigger")),  # <-
    ("a constant of Any", lambda g, x, i, n, u, h: g.constant(2, "Any")),  # <-
    ("a constant of Scalar<F32>", lambda g, x, i, n, u, h: g.onnx.constant(2, "Scalar<F32>")),  # <-
    ("no Tensor<I32>", lambda g, x, i, n, u, h: g.constant("12", "I32")),  # <-
    ("no Tensor<F32>", lambda g, x, i, n, u, h: g.constant("a", "F32")),  # <-
    ("no Tensor<U8>", lambda g, x, i, n, u, h: g.constant(b"a", "U8")),  # <-
    # arrays
    ("no mask", lambda g, x, i, n, u, h: g.constant(np.ma.masked_array(X, [0, 1, 0, 0]))),  # <-
    ("no mask", lambda g, x, i, n, u, h: x + np.ma.masked_array(X, [0, 1, 0, 0])),  # <-
    ("no mask", lambda g, x, i, n, u, h: np.ma.masked_array(X, [0, 1, 0, 0]) * x),  # <-
    ("differ in length", lambda g, x, i, n, u, h: x * [[1], [1, 2]]),  # <-
    ("differ in length", lambda g, x, i, n, u, h: g.constant([[1], [2, 3]])),  # <-
    ("dtype complex128", lambda g, x, i, n, u, h: x * np.ones(4, complex)),  # <-
    ("dtype object", lambda g, x, i, n, u, h: x * np.array([1, None, 2, 3])),  # <-
    ("dtype <U1", lambda g, x, i, n, u, h: x == np.array(["a", "b", "c", "d"])),  # <-
    ("dtype datetime64", lambda g, x, i, n, u, h: g.constant(np.zeros(2, "M8[s]"))),  # <-
    ("np.asarray(a, np.float32)", lambda g, x, i, n, u, h: x * np.ones(4, np.longdouble)),  # <-
    ("np.asarray(a, np.float32)", lambda g, x, i, n, u, h: x * np.zeros(4, "f4,i4")),  # <-
    ("float(number)", lambda g, x, i, n, u, h: x * np.sqrt(2)),  # <-
    ("a.astype(np.float32)", lambda g, x, i, n, u, h: x * np.ones(4)),  # <-
    # indices
    ("not True", lambda g, x, i, n, u, h: x[True]),  # <-
    ("not by 1.9", lambda g, x, i, n, u, h: x[0:1.9]),  # <-
    ("not by '1'", lambda g, x, i, n, u, h: x[0:"1"]),  # <-
    ("not by 'a'", lambda g, x, i, n, u, h: x["a":]),  # <-
    ("not by True", lambda g, x, i, n, u, h: x[True:]),  # <-
    ("g.onnx.slice", lambda g, x, i, n, u, h: x[: n[0]]),  # <-
    ("g.onnx.unsqueeze(x, [0])", lambda g, x, i, n, u, h: x[None]),  # <-
    ("one slice per axis", lambda g, x, i, n, u, h: x[..., 0]),  # <-
    ("a step of 0", lambda g, x, i, n, u, h: x[::0]),  # <-
    # shapes
    ("-1 in the shape", lambda g, x, i, n, u, h: g.input("y", "F32", (-1, 3))),  # <-
    ("2.0 in the shape", lambda g, x, i, n, u, h: g.input("y", "F32", (2.0, 3))),  # <-
    ("True in the shape", lambda g, x, i, n, u, h: g.input("y", "F32", (True, 3))),  # <-
    ("'' in the shape", lambda g, x, i, n, u, h: g.input("y", "F32", ("", 3))),  # <-
    ("'a b' in the shape", lambda g, x, i, n, u, h: g.input("y", "F32", ("a b", 3))),  # <-
    ("(3,) in the shape", lambda g, x, i, n, u, h: g.input("y", "F32", (2, (3,)))),  # <-
    ("in the shape", lambda g, x, i, n, u, h: g.input("y", "F32", (2**64,))),  # <-
    ("a tuple of sizes", lambda g, x, i, n, u, h: g.input("y", "F32", {2, 3})),  # <-
    ("a tuple of sizes", lambda g, x, i, n, u, h: g.input("y", "F32", "23")),  # <-
    ("(4,)", lambda g, x, i, n, u, h: g.input("y", "F32", 4)),  # <-
]
# fmt: on


@pytest.mark.parametrize(("words", "use"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_what_no_value_is_is_refused(record: Callable[..., Any], words: str, use: Callable[..., Any]) -> None:
    def body(g: Graph) -> None:
        values = [g.input("x", "F32", (4,)), g.input("i", "I32", (4,)), g.input("n", "I64", (4,))]
        found = use(g, *values, g.input("u", "U8", (4,)), g.input("h", "F16", (4,)))
        g.output("found", found)

    with refused(ValueTypeError, words):
        record(body)


def test_an_index_beyond_an_open_axis_is_named_on_the_device(compute: Callable[..., dict[str, Any]]) -> None:
    def body(g: Graph) -> None:
        g.output("y", g.input("x", "F32", (None, 3))[5])

    with pytest.raises(Exception, match="5 are out of range"):
        compute(body, {"x": T})
