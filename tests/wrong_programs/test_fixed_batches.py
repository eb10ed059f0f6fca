"""A model whose file fixes the batch, and sources that give other ones: refused before any training."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from bb_edge import PeerId, install
from bb_edge.components import ArrayDataSource, GraphModel
from bb_edge.engine import steps
from bb_edge.engine.errors import OpError
from bb_edge.ir.stamped_parts import read_parts
from bb_edge.ir.types import TENSOR_F32
from bb_host import Compiler, DataSourceSlot, ModelSlot, Module
from bb_host.errors import LearnError
from bb_host.ir.proto import to_bytes
from bb_host.learn import trainable


def net(batch):
    """A dense layer behind a Reshape, whose numbers an exporter takes from its example: `batch` rows."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[{batch},2,2] image) => (float[{batch},3] y)'
        " { flat = Reshape(image, shape)  y = MatMul(flat, w) }"
    )
    weights = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    shape = np.array([4 if batch == 4 else -1, 4], np.int64)
    model.graph.initializer.extend(
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(shape, "shape")]
    )
    return model


class Learns(Module):
    shard, model = DataSourceSlot("shard"), ModelSlot("model")

    def body(self, g):
        x, y = self.shard.next_batch(g, after=g.input("go", "F32", ()))
        stepped = self.model.step(g, after=self.model.train(g, x, y))
        g.app_emit("loss", self.model.evaluate(g, x, y, after=stepped))


class Scales(Module):
    """The batch reaches the model behind arithmetic and a gate."""

    shard, model = DataSourceSlot("shard"), ModelSlot("model")

    def body(self, g):
        x, _ = self.shard.next_batch(g, after=g.input("go", "F32", ()))
        half = (x - 1.0) / 2.0
        g.app_emit("y", self.model.forward(g, half))


class ScalesOften(Module):
    """As `Scales`, in more steps than Python nests calls."""

    shard, model = DataSourceSlot("shard"), ModelSlot("model")
    times = 1_000

    def body(self, g):
        x, _ = self.shard.next_batch(g, after=g.input("go", "F32", ()))
        for _ in range(self.times):
            x = self.scaled(x)
        g.app_emit("y", self.model.forward(g, x))

    def scaled(self, x):
        return (x - 1.0) * 2.0


class ScalesTwice(ScalesOften):
    """In steps of which each reads two values made of the one before: 2**50 ways back."""

    times = 50

    def scaled(self, x):
        return (x - 1.0) + (x * 2.0)


def compiler(module, batch, config):
    model = trainable(net(batch), "sparse_softmax_cross_entropy")
    bound = Compiler().bind_model("model", GraphModel, model)
    return bound.bind_data_source("shard", ArrayDataSource, config)


@pytest.mark.parametrize("module", [Learns, Scales, ScalesOften, ScalesTwice])
def test_a_source_of_other_batches_is_refused_with_both_sizes_and_the_remedy(module) -> None:
    with pytest.raises(LearnError) as error:
        compiler(module, 4, {"batch_size": 8}).compile_program(module())
    what = "model 'model' takes batches of 4 alone: its file says so of input 'image'"
    assert error.value.what == f"{what}; data source 'shard' gives 8 (batch_size)"
    assert "dynamic batch dimension" in error.value.hint and "batch_size=4" in error.value.hint
    assert error.value.where.startswith("test_fixed_batches.py:")


@pytest.mark.parametrize(
    ("module", "shape"), [(Scales, (4, 2, 2)), (ScalesOften, (4, 2, 2)), (ScalesTwice, None)]
)
def test_what_a_batch_has_to_be_is_known_through_any_number_of_steps(module, shape) -> None:
    """Not through a sum of two values whose shapes nothing says: either may be a single column."""
    program = compiler(module, 4, {}).compile_program(module())
    (giving,) = [op for f in program.functions for op in f.ops if op.op_type == "NextBatch"]
    assert read_parts(giving.facts.parts) == (((TENSOR_F32.wire_hash, shape, None), (0, None, None)),)


@pytest.mark.parametrize(("batch", "size"), [(4, 4), ("N", 8)])
def test_a_source_of_such_batches_and_an_open_batch_train(batch, size, tmp_path) -> None:
    assert ended(tmp_path, to_bytes(compiler(Learns, batch, {"batch_size": size}).compile_program(Learns())))


def ended(folder, program, **settings):
    """Whether a node that trains on eight rows does so."""
    np.savez(folder / "shard.npz", x=np.ones((8, 2, 2), np.float32), y=np.arange(8) % 3)
    shard = {"path": str(folder / "shard.npz"), **settings}
    node = install(PeerId.from_name("n"), (), program, ["Learns"], components={"shard": shard}, seed=1)
    node.invoke("Learns", {"go": np.float32(0)})
    told = node.poll(1)
    assert not [s for s in told if isinstance(s, steps.OpFailed)]
    return [s for s in told if isinstance(s, steps.ExecutionEnded)]


@pytest.mark.parametrize("settings", [{}, {"batch_size": 2}, {"batch_size": 8}])
def test_what_a_device_configures_is_refused_at_its_start(settings, tmp_path) -> None:
    program = to_bytes(compiler(Learns, 4, {}).compile_program(Learns()))
    with pytest.raises(OpError, match=r"gives batches of .*, the program takes .*\[4,2,2\]") as error:
        ended(tmp_path, program, **settings)
    assert error.value.where == "slot 'shard'"
    assert error.value.hint.startswith("configure batch_size=4, or export the model with a dynamic batch")
    assert ended(tmp_path, program, batch_size=4)
