"""The gradient of a model's input: derived where an op reads it, and right where a network is cut in two."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bb_edge.components import GraphModel
from bb_edge.ir.types import TENSOR_F32, ValueType
from bb_host import Compiler, Graph, ModelSlot, Module
from bb_host.errors import BackwardWithoutForward, LearnError, NotDifferentiableError
from bb_host.ir.program import Function, Program
from bb_host.ir.queries import reads
from bb_host.learn import TrainableModel, mlp, trainable
from tests.aids.graph_models import C, D, N, built
from tests.aids.refusals import refused


class Ctx:
    exec_id = 1


class Half(Module):
    """Learns, and yields what whoever computed its input goes on with."""

    def __init__(
        self, slot: ModelSlot, input_grad: bool, shape: tuple[int, ...] = (N, D), type_: str = "F32"
    ):
        super().__init__()
        self.slot, self.input_grad, self.given = slot, input_grad, (type_, shape)

    def body(self, g: Graph) -> None:
        y = self.slot.forward(g, g.input("x", *self.given))
        grad = self.slot.backward(g, y * 0.5, input_grad=self.input_grad)  # <-
        g.app_emit("gradient", grad if self.input_grad else self.slot.gradient(g, after=grad))


def graph_of(program: Program, name: str) -> Function:
    (found,) = (f for f in program.functions if f.name == name)
    return found


def compiled(model: TrainableModel, input_grad: bool, concrete: bool = False) -> Program:
    slot = ModelSlot("model", GraphModel, model) if concrete else ModelSlot("model")
    compiler = Compiler() if concrete else Compiler().bind_model("model", GraphModel, model)
    return compiler.run(Half(slot, input_grad)).program


@pytest.mark.parametrize("concrete", [False, True])
def test_it_is_there_where_an_op_reads_it(concrete: bool) -> None:
    model = trainable(mlp([D, 4, C]))
    without, with_it = (graph_of(compiled(model, read, concrete), "model.train") for read in (False, True))
    assert without.outputs == ("d_w1", "d_b1", "d_w2", "d_b2")
    assert with_it.outputs == (*without.outputs, "d_x")
    assert len(with_it.ops) > len(without.ops)
    assert all(
        set(op.outputs) & {v for o in with_it.ops for v in reads(o)} | {*with_it.outputs}
        for op in with_it.ops
    )


def test_the_value_has_the_type_of_the_input() -> None:
    main = graph_of(compiled(trainable(mlp([D, 4, C])), True), "Half")
    (op,) = (op for op in main.ops if op.op_type == "BackwardInput")
    assert main.types[op.outputs[0]] == ValueType(TENSOR_F32, (N, D))


def test_the_vector_has_the_length_of_the_parameters() -> None:
    main = graph_of(compiled(trainable(mlp([D, 4, C])), False), "Half")
    (op,) = (op for op in main.ops if op.op_type == "Gradient")
    assert main.types[op.outputs[0]] == ValueType(TENSOR_F32, (D * 4 + 4 + 4 * C + C,))


def cut(model: onnx.ModelProto, at: str) -> tuple[TrainableModel, TrainableModel]:
    """The two halves of a network, cut at a value."""
    typed = onnx.shape_inference.infer_shapes(model)
    extractor = onnx.utils.Extractor(typed)
    (x,), (y,) = typed.graph.input, typed.graph.output
    return tuple(trainable(extractor.extract_model([a], [b])) for a, b in ((x.name, at), (at, y.name)))


@pytest.mark.parametrize("at", ["z1", "h1", "z2", "h2"])
def test_two_halves_have_the_gradient_of_the_whole(at: str) -> None:
    net = mlp([D, 4, 6, C], seed=3)
    rng = np.random.default_rng(1)
    x, dz = rng.standard_normal((N, D)).astype(np.float32), rng.standard_normal((N, C)).astype(np.float32)
    ctx: Any = Ctx()
    whole = built(trainable(net))
    z = whole.forward(ctx, x)
    whole.backward(ctx, dz)
    halves = cut(net, at)
    first, rest = built(halves[0]), built(halves[1], "BackwardInput")
    np.testing.assert_array_equal(rest.forward(ctx, first.forward(ctx, x)), z)
    first.backward(ctx, rest.backward_input(ctx, dz))
    found = np.concatenate([first.gradient(ctx), rest.gradient(ctx)])
    np.testing.assert_allclose(found, whole.gradient(ctx), rtol=1e-5, atol=1e-6)


def net_of(
    nodes: list[Any], elem: int = TensorProto.FLOAT, rank: int = 2, **weights: np.ndarray
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", elem, [N, D])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [N, None, None][:rank])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


WEIGHT = np.ones((D, C), np.float32)


def test_integers_have_no_gradient() -> None:
    net = net_of(
        [helper.make_node("Gather", ["table", "x"], ["y"])],
        TensorProto.INT64,
        3,
        table=np.ones((9, 2), np.float32),
    )
    compiler = Compiler().bind_model("model", GraphModel, trainable(net))
    compiler.run(Half(ModelSlot("model"), False, (N, D), "I64"))
    with refused(
        LearnError, "the gradient of its input 'x'", "its input is I64[6,5]", "cut the model behind"
    ):
        compiler.run(Half(ModelSlot("model"), True, (N, D), "I64"))


def test_an_input_that_no_gradient_reaches() -> None:
    net = net_of(
        [helper.make_node("Round", ["x"], ["s"]), helper.make_node("MatMul", ["s", "w"], ["y"])], w=WEIGHT
    )
    compiler = Compiler().bind_model("model", GraphModel, trainable(net))
    compiler.run(Half(ModelSlot("model"), False))
    with refused(LearnError, "no gradient reaches it: it ends at Round"):
        compiler.run(Half(ModelSlot("model"), True))


def test_a_model_without_gradient() -> None:
    compiler = Compiler().bind_model("model", GraphModel, trainable(mlp([D, C]), learning=False))
    with refused(BackwardWithoutForward, "has no gradient"):
        compiler.run(Half(ModelSlot("model"), True))


def test_an_operator_without_a_rule_before_the_first_layer() -> None:
    net = net_of(
        [
            helper.make_node("CenterCropPad", ["x", "columns"], ["s"], axes=[1]),
            helper.make_node("MatMul", ["s", "w"], ["y"]),
        ],
        w=WEIGHT,
        columns=np.array([D]),
    )
    compiler = Compiler().bind_model("model", GraphModel, trainable(net))
    compiler.run(Half(ModelSlot("model"), False))
    with refused(NotDifferentiableError, "CenterCropPad"):
        compiler.run(Half(ModelSlot("model"), True))
