"""Shapes that a model computes from an open batch: regions, and what is beside them, stay in order."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

import bb_edge
from bb_edge.backends import NumPyBackend
from bb_edge.ir import keys
from bb_host.build import build_edge
from bb_host.ir.program import Function, Op
from bb_host.ir.proto import function_to_proto
from bb_host.ir.values import constant
from bb_host.tflite.facts import facts_of
from bb_host.tflite.lower import MODEL

WEIGHTS = np.random.default_rng(0)
"""For the models below, which are made in the order in which they stand."""


def model(shape: str, result: str, body: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    """`weights` are shapes; `mo` is [-1], `zero` and `one` are scalars."""
    found = parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> g (float[{shape}] x) => (float[{result}] y)'
        f" <int64[1] mo={{-1}}, int64 zero={{0}}, int64[1] axes={{0}}> {{ {body} }}"
    )
    for name, dims in weights.items():
        array = WEIGHTS.standard_normal(dims).astype(np.float32)
        found.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return found


FLAT = "q=Shape<start=0,end=1>({0}) v=Concat<axis=0>(q,mo)"
"""`x.view(x.size(0), -1)` as exporters write it."""

SMALL = model("N,2,4,4", "N,32", f"c=Conv(x,w) {FLAT.format('c')} y=Reshape(c,v)", w=(2, 2, 1, 1))
LARGE = model(
    "N,3,16,16",
    "N,10",
    f"c=Conv<pads=[1,1,1,1]>(x,w) r=Relu(c) {FLAT.format('r')} f=Reshape(r,v) y=MatMul(f,d)",
    w=(16, 3, 3, 3),
    d=(4096, 10),
)
FROM_THE_INPUT = model(
    "N,3,16,16",
    "N,10",
    f"{FLAT.format('x')} e=Erf(x) c=Conv<pads=[1,1,1,1]>(e,w) r=Relu(c) f=Reshape(r,v) y=MatMul(f,d)",
    w=(16, 3, 3, 3),
    d=(4096, 10),
)
GATHERED = model(
    "N,3,16,16",
    "N,256,16",
    "c=Conv<pads=[1,1,1,1]>(x,w) s=Shape(c) n=Gather(s,zero) nu=Unsqueeze(n,axes) k=Shape<start=1,end=2>(c)"
    " v=Concat<axis=0>(nu,k,mo) f=Reshape(c,v) y=Transpose<perm=[0,2,1]>(f)",
    w=(16, 3, 3, 3),
)
EXPANDED = model(
    "N,64",
    "N,64",
    "h=MatMul(x,a) s=Shape(h) e=Expand(h,s) r=Relu(e) y=MatMul(r,b)",
    a=(64, 64),
    b=(64, 64),
)
AROUND = model(
    "N,64",
    "N,64",
    # A small region (r) needs the shape of a large one (h), which reads what comes of the small one.
    "e1=Erf(x) e2=Erf(e1) h=MatMul(e2,a) q=Shape<start=0,end=1>(h) v=Concat<axis=0>(q,mo)"
    " n=Neg(x) f=Reshape(n,v) e3=Erf(f) z=MatMul(e3,b) y=Add(z,h)",
    a=(64, 64),
    b=(64, 64),
)


def assert_as_the_reference(found: np.ndarray, want: np.ndarray) -> None:
    """Within what float32 loses in sums of some 4,000 products, which may be far larger than their result."""
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(want).max())))


CASES = {
    "small": SMALL, "large": LARGE, "input": FROM_THE_INPUT, "gathered": GATHERED, "expanded": EXPANDED,
    "around": AROUND,
}  # fmt: skip


@pytest.mark.parametrize("backend", ["auto", "tflite", "numpy"])
@pytest.mark.parametrize("case", CASES)
def test_a_shape_computed_from_the_batch(case, backend, reference):
    found = CASES[case]
    (artifact,) = build_edge(found, backend=backend).artifacts
    opened = bb_edge.open_model(artifact.data)
    shape = [d.dim_value for d in found.graph.input[0].type.tensor_type.shape.dim][1:]
    rng = np.random.default_rng(1)
    for batch in (1, 3):
        x = rng.standard_normal((batch, *shape)).astype(np.float32)
        (want,) = reference(found, {"x": x})
        assert_as_the_reference(opened(x), want)


@pytest.mark.parametrize("case", ["large", "input", "gathered", "expanded", "around"])
def test_the_fallback_needs_no_more_than_the_model(case, reference):
    """Every `Model` in plain ops, and what is beside it: as onnxruntime."""
    found = CASES[case]
    (artifact,) = build_edge(found, backend="auto").artifacts
    functions = {f.name: f for f in artifact.program.functions}
    (body,) = (f for f in functions.values() if any(op.op_type == MODEL for op in f.ops))
    shape = [d.dim_value for d in found.graph.input[0].type.tensor_type.shape.dim][1:]
    x = np.random.default_rng(1).standard_normal((3, *shape)).astype(np.float32)
    values = {body.inputs[0]: x}
    for op in body.ops:
        if op.op_type == MODEL:
            plain = functions[op.attrs["fallback"].decode()]
            assert all(o.domain == keys.ONNX_DOMAIN for o in plain.ops)
            results = (
                NumPyBackend().prepare(function_to_proto(plain), {}, {}).run([values[v] for v in op.inputs])
            )
        else:
            results = _plain(op, values)
        values.update(zip(op.outputs, results, strict=True))
    assert_as_the_reference(values[body.outputs[0]], reference(found, {"x": x})[0])


def _plain(op, values):
    from bb_kernels import TensorSpec, evaluate, prepare

    given = [values[v] for v in op.inputs]
    specs = [TensorSpec(v.dtype, v.shape) for v in given]
    prepared = prepare(op.op_type, 18, op.attrs, specs, given, len(op.outputs))
    return list(prepared.values or evaluate(prepared, given))


def test_a_result_that_only_a_dropped_op_reads_is_none_of_the_models():
    (artifact,) = build_edge(LARGE, backend="tflite").artifacts
    (node,) = [op for f in artifact.program.functions for op in f.ops if op.op_type == MODEL]
    assert len(node.outputs) == 1


def test_facts_of_constants_that_have_no_number_come_without_a_warning():
    """Warnings are errors here: infinity is what ONNX computes of 1 / 0, and nothing to tell an author."""
    divided = Function("f", "d", (), ("y",), (
        constant("one", np.float32([1.0])), constant("none", np.float32([0.0])),
        Op("Div", "", ("one", "none"), ("y",)),
    ))  # fmt: skip
    value = facts_of(divided, {}, 18)["y"].value
    assert value is not None and np.isposinf(value).all()
