"""What own components and backends do wrong while a program runs: said with slot or backend, and line."""

from __future__ import annotations

import linecache
import re

import numpy as np
import pytest

from bb_edge import PeerId, install
from bb_edge.engine import steps
from bb_edge.extend import Backend, Codec, GraphModel
from bb_edge.registry import Registry
from bb_host import CodecSlot, Compiler, ModelSlot, Module
from bb_host.build import compile_edge
from bb_host.ir.proto import to_bytes
from bb_host.learn import mlp, trainable

X = np.ones((2, 3), np.float32)


class Fails(Codec):
    TYPE_NAME = "acme.Fails"

    @classmethod
    def construct(cls, env):
        return cls()

    def compress(self, ctx, t):
        return {}["x"]  # <-

    def decompress(self, ctx, code):
        return code


class Coded(Module):
    codec = CodecSlot("codec")

    def body(self, g):
        x = g.input("x", "F32", (2, 3))
        g.output("y", self.codec.decompress(g, self.codec.compress(g, x)))


class Sums(Module):
    def body(self, g):
        g.output("y", g.input("x", "F32", (2, 3)) + 1.0)


def failure(data, module, kind):
    registry = Registry()
    registry.register(kind)
    node = install(PeerId.from_name("n"), (), data, [module], registry=registry)
    node.invoke(module, {"x": X})
    (failed,) = [s for s in node.poll(1) if isinstance(s, steps.OpFailed)]
    return failed.text


def marked(text):
    (line,) = re.findall(r"test_component_runs\.py:(\d+)", text)
    return linecache.getline(__file__, int(line)).rstrip().endswith("# <-")


def test_what_a_method_raises_names_its_line():
    text = failure(to_bytes(Compiler().bind_codec("codec", Fails).compile_program(Coded())), "Coded", Fails)
    assert text.startswith("slot 'codec' (acme.Fails.compress): KeyError: 'x', at ")
    assert marked(text), text


class Scales(Fails):
    """Writes into the value that it was given, which others read."""

    TYPE_NAME = "acme.Scales"

    def compress(self, ctx, t):
        t *= 2  # <-
        return t


def test_what_others_read_too_cannot_be_written_to():
    text = failure(to_bytes(Compiler().bind_codec("codec", Scales).compile_program(Coded())), "Coded", Scales)
    assert text.startswith("slot 'codec' (acme.Scales.compress): ValueError: output array is read-only, at ")
    assert marked(text), text


class Promises(Fails):
    """Says what its codes are, and gives others: who reads them, or sends them, was told instead."""

    TYPE_NAME = "acme.Promises"

    @classmethod
    def port_types(cls, config, tensors):
        return {"Compress.code": "F32[n,3]", "Decompress.t": "F32[n,3]"}

    def compress(self, ctx, t):
        return t.astype(np.float64)


def test_what_port_types_promises_of_an_output_is_checked_where_it_is_given():
    compiler = Compiler().bind_codec("codec", Promises)
    (artifact,) = compile_edge(Coded(), compiler).artifacts
    for data in (to_bytes(compiler.compile_program(Coded())), artifact.data):
        text = failure(data, "Coded", Promises)
        assert text.startswith("slot 'codec' (acme.Promises.compress): gave Tensor<F64>[2, 3], expected"), (
            text
        )
        assert "astype('float32')" in text


def backend_of(give, method="execute"):
    def execute(self, graph, inputs, attrs=None):
        return {name: give(X + 1) for name in graph.output}  # <-

    def dispatch(self, graph, inputs, attrs=None, completion=None):
        return execute(self, graph, inputs)

    members = {"execute": execute, **({"dispatch": dispatch} if method == "dispatch" else {})}
    return type(
        "Own", (Backend,), {"TYPE_NAME": "acme.Own", "construct": classmethod(lambda c, env: c()), **members}
    )


def portable(kind):
    return to_bytes(Compiler().bind_backend("backend", kind).compile_program(Sums()))


def stripped(kind):
    (artifact,) = compile_edge(Sums(), Compiler().bind_backend("backend", kind)).artifacts
    return artifact.data


def breaks(_):
    raise ValueError("hw gone")


RESULTS = {
    "another dtype": (lambda y: y.astype(np.float64), "is float64, the graph declares float32"),
    "another rank": (lambda y: y.ravel(), "has 1 dimensions, the graph declares 2"),
    "a list": (lambda y: y.tolist(), "is a list, expected an array"),
    "a number": (lambda y: 3.0, "is a float, expected an array"),
}


@pytest.mark.parametrize("method", ["execute", "dispatch"])
@pytest.mark.parametrize("case", RESULTS)
def test_a_backend_that_gives_something_else(case, method):
    give, words = RESULTS[case]
    kind = backend_of(give, method)
    text = failure(portable(kind), "Sums", kind)
    assert "backend acme.Own: " in text and words in text, text


def test_a_backend_that_gives_something_else_on_a_device():
    kind = backend_of(lambda y: y.tolist())
    text = failure(stripped(kind), "Sums", kind)
    assert "backend acme.Own: " in text and "expected an array" in text, text


@pytest.mark.parametrize("method", ["execute", "dispatch"])
def test_what_a_backend_raises_names_backend_method_and_line(method):
    kind = backend_of(breaks, method)
    text = failure(portable(kind), "Sums", kind)
    assert f"backend acme.Own: {method} raises ValueError: hw gone, at " in text, text


def test_a_backend_that_gives_what_is_declared():
    kind = backend_of(lambda y: y)
    registry = Registry()
    registry.register(kind)
    for data in (portable(kind), stripped(kind)):
        node = install(PeerId.from_name("n"), (), data, ["Sums"], registry=registry)
        node.invoke("Sums", {"x": X})
        assert [s.value.tolist() for s in node.poll(1) if isinstance(s, steps.AppEvent)] == [(X + 1).tolist()]


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def raises_mute(self, ctx, t):
    raise Mute


def test_an_exception_without_words():
    kind = type("Fails", (Fails,), {"compress": raises_mute})
    text = failure(to_bytes(Compiler().bind_codec("codec", kind).compile_program(Coded())), "Coded", kind)
    assert "acme.Fails.compress): Mute: its text cannot be made" in text


class Trains(Module):
    model = ModelSlot("model")

    def body(self, g):
        grad, x = g.input("grad", "F32", (2, 3)), g.input("x", "F32", (2, 4))
        out = self.model.forward(g, x)
        learned = self.model.backward(g, grad, after=out)
        g.output("p", self.model.params(g, after=self.model.step(g, after=learned)))


def test_an_adjusted_gradient_that_is_returned():
    kind = type(
        "Prox",
        (GraphModel,),
        {"TYPE_NAME": "acme.Prox", "adjust_gradient": lambda self, gradient: 2 * gradient},
    )
    registry = Registry()
    registry.register(kind)
    data = to_bytes(
        Compiler().bind_model("model", kind, trainable(mlp([4, 3], seed=1))).compile_program(Trains())
    )
    node = install(PeerId.from_name("n"), (), data, ["Trains"], registry=registry)
    node.invoke("Trains", {"x": np.ones((2, 4), np.float32), "grad": X})
    (failed,) = [s for s in node.poll(1) if isinstance(s, steps.OpFailed)]
    assert "acme.Prox.adjust_gradient gives a ndarray, which nobody reads" in failed.text
    assert "in place" in failed.text
