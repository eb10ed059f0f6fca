"""What a host hands in wrongly: at `invoke` and at `open_model` it is refused, and at calls of modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from bb_edge import NodeConfig, PeerId, install, load, open_model
from bb_edge.engine import steps
from bb_edge.inference import InferenceError
from bb_edge.inputs import InvokeError
from bb_edge.ir.values import TRIGGER
from bb_edge.targets import InstallError
from bb_host import Graph, Module
from bb_host.build import compile_edge
from bb_host.errors import ValueTypeError
from tests.aids.refusals import refused

Body = Callable[[Graph], Any]
ME = PeerId.from_name("me")


def edge(source: Any) -> bytes:
    (artifact,) = compile_edge(source).artifacts
    data: bytes = artifact.data
    return data


def heard(source: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    node = install(ME, (), edge(source), ["Main"], NodeConfig(), seed=1)
    node.invoke("Main", inputs)
    return {s.topic: s.value for now in range(5) for s in node.poll(now) if isinstance(s, steps.AppEvent)}


def passes(kind: str) -> Body:
    def body(g: Graph) -> None:
        g.output("y", g.pass_through(g.input("a", kind)))

    return body


# --- values that are not tensors ---------------------------------------------------------------------------

WRONG = {
    "PeerIdVec": ["s", None, ME, ("s",), 3],
    "PeerId": ["s", None, 3, (ME,)],
    "Trigger": [None, True, 1],
    "Bytes": ["text", None, 3],
    "Timestamp": ["now", None, 1.5, True],
    "Scalar<F32>": ["1", None],
    "Composite": [(1, 2), None],
    "Multiaddress": ["/a/b", None],
    "CorrelationToken": ["t", None],
}


@pytest.mark.parametrize(("kind", "value"), [(k, v) for k, vs in WRONG.items() for v in vs])
def test_another_type_is_refused(kind: str, value: Any, module: Callable[..., Module]) -> None:
    with refused(InvokeError, "input 'a'", kind, marked=False):
        heard(module(passes(kind)), {"a": value})


@pytest.mark.parametrize(
    ("kind", "value", "comes"),
    [
        ("PeerIdVec", [ME], (ME,)),
        ("PeerId", ME, ME),
        ("Trigger", TRIGGER, TRIGGER),
        ("Bytes", bytearray(b"ab"), b"ab"),
        ("Timestamp", np.int64(7), 7),
        ("Scalar<F32>", 1.5, 1.5),
    ],
)
def test_the_declared_type_is_taken(kind: str, value: Any, comes: Any, module: Callable[..., Module]) -> None:
    assert heard(module(passes(kind)), {"a": value}) == {"y": comes}


def test_no_input_where_nothing_runs_without(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        g.output("y", g.input("a", "F32", (2,)) + g.input("b", "F32", (2,)))

    with refused(InvokeError, "no input is given", "a, b", marked=False):
        heard(module(body), {})


# --- masks and shapes -------------------------------------------------------------------------------------


def doubled(g: Graph) -> None:
    g.output("y", g.input("x", "F32", (3,)) * 2.0)


def test_a_masked_array(module: Callable[..., Module]) -> None:
    masked = np.ma.masked_array(np.ones(3, np.float32), [0, 1, 0])
    with refused(InvokeError, "masked", "filled", marked=False):
        heard(module(doubled), {"x": masked})
    data = edge(module(doubled))
    for opened in (open_model(data), load(data)):
        with refused(InferenceError, "masked", "filled", marked=False):
            opened(masked)


def test_other_arrays_are_taken_as_their_base(module: Callable[..., Module]) -> None:
    array = np.ones(3, np.float32).view(np.recarray)
    assert heard(module(doubled), {"x": array})["y"].tolist() == [2, 2, 2]
    assert open_model(edge(module(doubled)))(array).tolist() == [2, 2, 2]


def square(g: Graph) -> None:
    g.output("y", g.input("x", "F32", ("n", "n")) * 2.0)


def sums(g: Graph) -> None:
    g.output("y", g.input("a", "F32", ("n",)) + g.input("b", "F32", ("n",)))


@pytest.mark.parametrize(
    ("body", "wrong", "right", "words"),
    [
        (square, {"x": (4, 3)}, {"x": (3, 3)}, ["'n' is 4 (axis 0 of 'x')", "3 (axis 1 of 'x')"]),
        (sums, {"a": (4,), "b": (1,)}, {"a": (4,), "b": (4,)}, ["4 (axis 0 of 'a')", "1 (axis 0 of 'b')"]),
    ],
)
def test_sizes_of_one_name_are_equal(
    body: Body, wrong: Any, right: Any, words: list[str], module: Callable[..., Module]
) -> None:
    given = {n: np.ones(shape, np.float32) for n, shape in wrong.items()}
    fitting = {n: np.ones(shape, np.float32) for n, shape in right.items()}
    with refused(InvokeError, *words, marked=False):
        heard(module(body), given)
    assert (heard(module(body), fitting)["y"] == 2).all()
    data = edge(module(body))
    for opened in (open_model(data), load(data)):
        with refused(InferenceError, *words, marked=False):
            opened(**given)
        assert (opened(**fitting) == 2).all()


def inner(*shapes: Any) -> Body:
    def body(g: Graph) -> None:
        found = [g.input(name, "F32", shape) for name, shape in zip("ab", shapes, strict=False)]
        g.output("z", found[0] * 2.0)

    return body


@pytest.mark.parametrize("shape", [(4, 3), (2,), (2, 3, 1)])
def test_a_modules_input_gets_another_shape(shape: Any, module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", shape)
        g.output("y", g.call(module(inner((2, 3)), name="Inner"), a=x)["z"])  # <-

    with refused(ValueTypeError, "'Inner'", "input a", "[2,3]"):
        module(body).record()


def test_a_modules_inputs_of_one_size_get_two(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        a, b = g.input("a", "F32", (4,)), g.input("b", "F32", (1,))
        g.output("y", g.call(module(inner(("n",), ("n",)), name="Inner"), a=a, b=b)["z"])  # <-

    with refused(ValueTypeError, "'n' is 4 at input a and 1 at b"):
        module(body).record()


@pytest.mark.parametrize("shape", [(2, 3), ("n", 3), (None, None), None])
def test_a_modules_input_gets_what_fits(shape: Any, module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", shape)
        g.output("y", g.call(module(inner((2, 3)), name="Inner"), a=x)["z"])

    module(body).record()


# --- other things in the place of peers, programs and inputs ----------------------------------------------


def test_inputs_without_names(module: Callable[..., Module]) -> None:
    x = np.ones(3, np.float32)
    node = install(ME, (), edge(module(doubled)), ["Main"], NodeConfig(), seed=1)
    model = open_model(edge(module(doubled)))
    wrong: Any
    for wrong in ([x], x, (x,), "x"):
        with refused(InvokeError, "by name", marked=False):
            node.invoke("Main", wrong)
        with refused(InferenceError, "by name", "model(x)", marked=False):
            model.run(wrong)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"peer_id": "me"}, ["expected a PeerId, got str 'me'", "PeerId.from_name"]),
        ({"addresses": None}, ["expected a list of binary multiaddrs, got None"]),
        ({"addresses": b"abc"}, ["expected a list of binary multiaddrs, got bytes"]),
        ({"program": "net.edge.onnx"}, ["expected a program, got str 'net.edge.onnx'", "read_bytes"]),
        ({"program": None}, ["expected a program, got None"]),
    ],
)
def test_other_things_are_not_installed(
    changed: Any, words: list[str], module: Callable[..., Module]
) -> None:
    given: dict[str, Any] = {"peer_id": ME, "addresses": (), "program": edge(module(doubled))}
    with refused(InstallError, *words, marked=False):
        install(**{**given, **changed}, targets=["Main"])


@pytest.mark.parametrize("wrong", [None, 3, ["net.edge.onnx"]])
def test_what_is_no_artifact_is_not_opened(wrong: Any) -> None:
    with refused(InferenceError, type(wrong).__name__, "bb_edge.load", marked=False):
        open_model(wrong)
