"""An author's own data source whose batches are not what its `batch_like` says: the source is named."""

from __future__ import annotations

import linecache
import re

import numpy as np
import pytest

from bb_edge import PeerId, install
from bb_edge.engine import steps
from bb_edge.extend import DataSource, GraphModel
from bb_edge.registry import Registry
from bb_host import Compiler, DataSourceSlot, ModelSlot, Module
from bb_host.ir.proto import to_bytes
from bb_host.learn import mlp, trainable

X, Y = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)


class Learns(Module):
    data, model = DataSourceSlot("data"), ModelSlot("model")

    def body(self, g):
        x, y = self.data.next_batch(g, after=g.input("go", "F32", ()))
        g.output("loss", self.model.evaluate(g, x, y))


class Counts(Module):
    """It is not known which batches the program takes."""

    data = DataSourceSlot("data")

    def body(self, g):
        x, _ = self.data.next_batch(g, after=g.input("go", "F32", ()))
        g.output("x", x)


def run(module, batch, like):
    """What the first run of a program tells, with a source that gives `batch`."""

    class Own(DataSource):
        TYPE_NAME = "acme.Own"
        stateless = True

        @classmethod
        def construct(cls, env):
            return cls()

        def next_batch(self, ctx):  # <-
            return batch

        def num_samples(self, ctx):
            return np.array(4, np.int64)

        def batch_like(self):
            return like

    registry = Registry()
    registry.register(Own)
    compiler = Compiler().bind_data_source("data", Own)
    if module is Learns:
        compiler = compiler.bind_model("model", GraphModel, trainable(mlp([3, 2], seed=1), learning_rate=0.1))
    name = module.__name__
    data = to_bytes(compiler.compile_program(module()))
    node = install(PeerId.from_name("n"), (), data, [name], registry=registry)
    node.invoke(name, {"go": np.float32(0)})
    return [s for s in node.poll(1) if isinstance(s, steps.OpFailed)]


BOTH = {
    "f64 rows": (
        (X.astype(np.float64), Y),
        (X, Y),
        "next_batch gives batches of Tensor<F64>[4, 3], batch_like of the same source says Tensor<F32>[4, 3]",
        "give x.astype('float32'), or correct batch_like",
    ),
    "i32 labels": (
        (X, Y.astype(np.int32)),
        (X, Y),
        "next_batch gives labels of Tensor<I32>[4, 2], batch_like of the same source says Tensor<F32>[4, 2]",
        "give x.astype('float32')",
    ),
    "no labels": (
        (X, None),
        (X, Y),
        "next_batch gives no labels, batch_like of the same source says Tensor<F32>[4, 2]",
        "correct batch_like",
    ),
}


@pytest.mark.parametrize("module", [Learns, Counts])
@pytest.mark.parametrize("case", BOTH)
def test_the_source_is_named_with_both_dtypes(module, case):
    batch, like, *words = BOTH[case]
    (failed,) = run(module, batch, like)
    assert failed.text.startswith("slot 'data' (acme.Own.next_batch): "), failed.text
    assert all(word in failed.text for word in words), failed.text
    (line,) = re.findall(r"test_own_batches\.py:(\d+)", failed.text)
    assert linecache.getline(__file__, int(line)).rstrip().endswith("# <-")


def test_a_shape_that_the_program_does_not_take():
    (failed,) = run(Learns, (X[:, :2], Y), (X, Y))
    words = "acme.Own.next_batch): it gives batches of Tensor<F32>[4, 2], the program takes Tensor<F32>[?,3]"
    assert words in failed.text, failed.text


@pytest.mark.parametrize("batch", [(X, Y), [X, Y], (X[:1], Y[:1])], ids=["tuple", "list", "a shorter one"])
def test_batches_as_promised(batch):
    assert not run(Learns, batch, (X, Y))


def test_one_array_is_no_batch_and_labels():
    (failed,) = run(Learns, X, (X, Y))
    assert "a tuple of 2 values is expected: batch, labels" in failed.text, failed.text
