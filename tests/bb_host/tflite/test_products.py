"""Einsum and Attention against onnxruntime: equations, heads and masks, a fixed batch and an open one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]


def normal(*shape: int, seed: int = 3) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.6).astype(np.float32)


def model(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    constants: Mapping[str, np.ndarray],
    opset: int,
    symbolic: bool,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    feeds = {name: normal(*shape, seed=seed) for seed, (name, shape) in enumerate(inputs.items())}
    dims = {name: ["N", *shape[1:]] if symbolic else [*shape] for name, shape in inputs.items()}
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in dims.items()],
        [helper.make_empty_tensor_value_info("result")],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip("newer than the onnx package that is installed")
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(whole), feeds


def agree(found: tuple[onnx.ModelProto, dict[str, np.ndarray]], compiled, run_lowered, reference) -> None:
    whole, feeds = found
    lowered = compiled(whole)
    assert lowered.models
    assert not lowered.lowering.kept, lowered.lowering.explain()
    (got,), (want,) = run_lowered(lowered, feeds), reference(whole, feeds)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


COMPUTED = {
    "bij,bjk->bik": ((3, 4, 6), (3, 6, 5)),
    "bij,bkj->bik": ((3, 4, 6), (3, 5, 6)),
    "bji,bkj->bki": ((3, 6, 4), (3, 5, 6)),
    "bhid,bhjd->bhij": ((2, 3, 4, 5), (2, 3, 6, 5)),
    "bihd,bjhd->bhij": ((2, 4, 3, 5), (2, 6, 3, 5)),
    "bhij,bjhd->bihd": ((2, 3, 4, 6), (2, 6, 3, 5)),
    "bijk,bijl->bkl": ((2, 4, 3, 5), (2, 4, 3, 6)),
    "bij,bj->bi": ((3, 4, 6), (3, 6)),
    "bi,bi->b": ((3, 6), (3, 6)),
    "...ij,...jk->...ik": ((2, 3, 4, 6), (2, 3, 6, 5)),
    "abcde,abcfe->abcdf": ((2, 3, 2, 4, 5), (2, 3, 2, 6, 5)),
}
WEIGHTED = {
    "ij,jk->ik": ((3, 6), (6, 5)),
    "ij,kj": ((3, 6), (5, 6)),
    "bij,jk->bik": ((3, 4, 6), (6, 5)),
    "bij,jkl->bikl": ((3, 4, 6), (6, 5, 2)),
    "bihd,hdo->bio": ((2, 4, 3, 5), (3, 5, 7)),
    "bij,j->bi": ((3, 4, 6), (6,)),
    "bij,ki->bkj": ((3, 4, 6), (5, 4)),
    "b...d,de->b...e": ((2, 3, 4, 5), (5, 6)),
    "abcde,ef->abcdf": ((2, 3, 2, 4, 5), (5, 6)),
    "bhwc,hkc->bhwk": ((2, 3, 4, 5), (3, 6, 5)),
    "bwhc,hkc->bwhk": ((2, 4, 3, 5), (3, 6, 5)),
    "bnhwc,hkc->bnhwk": ((2, 2, 3, 4, 5), (3, 6, 5)),
    "nkctv,kvw->nctw": ((2, 3, 4, 5, 6), (3, 6, 7)),
}
NEVER_OPEN = {
    "ji,jk->ik": ((6, 3), (6, 5)),
    "ij,jk->ki": ((3, 6), (6, 5)),
    "hid,hjd->hij": ((3, 4, 5), (3, 6, 5)),
    "i,ij": ((6,), (6, 5)),
    "bi...,bj...": ((2, 4, 3), (2, 5, 3)),
}


def einsum(
    equation: str, x: Shape, y: Shape, symbolic: bool, *, weighted: bool = False, swapped: bool = False
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    names = ["x", "y"]
    if swapped:
        terms, arrow, result = equation.partition("->")
        equation = f"{','.join(terms.split(',')[::-1])}{arrow}{result}"
        names = ["y", "x"]
    node = helper.make_node("Einsum", names, ["result"], equation=equation)
    constants = {"y": normal(*y)} if weighted else {}
    return model([node], {"x": x} if weighted else {"x": x, "y": y}, constants, 17, symbolic)


@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("swapped", [False, True], ids=["", "swapped"])
@pytest.mark.parametrize("equation", [*COMPUTED, *WEIGHTED, *NEVER_OPEN])
def test_an_einsum_agrees(equation, swapped, symbolic, compiled, run_lowered, reference):
    if swapped and "->" not in equation:
        pytest.skip("the order of its result is that of its letters")
    if symbolic and equation in NEVER_OPEN:
        pytest.skip("its batch cannot be open")
    shapes = {**COMPUTED, **WEIGHTED, **NEVER_OPEN}[equation]
    found = einsum(equation, *shapes, symbolic, weighted=equation not in COMPUTED, swapped=swapped)
    agree(found, compiled, run_lowered, reference)


@pytest.mark.parametrize(
    ("equation", "x", "y", "reason"),
    [
        ("bij,bij->bij", (3, 4, 6), (3, 4, 6), "sums over nothing"),
        ("bij,bkl->bkl", (3, 4, 6), (3, 4, 5), "what one operand alone has"),
        ("bii,bij->bj", (3, 4, 4), (3, 4, 5), "twice in one operand"),
        ("bij,bjk->bik", (3, 4, 6), (1, 6, 5), "two sizes"),
        ("ij,ij->", (3, 4), (3, 4), "over all"),
        ("bi,bj->ij", ("N", 4), ("N", 5), "over an open batch"),
    ],
)
def test_an_equation_that_is_no_product_stays(equation, x, y, reason, compiled):
    symbolic = x[0] == "N"
    whole, _ = einsum(equation, (3, *x[1:]), (3, *y[1:]) if symbolic else y, symbolic)
    assert reason in compiled(whole).lowering.explain()


def test_three_operands_stay(compiled):
    node = helper.make_node("Einsum", ["x", "y", "x"], ["result"], equation="ij,jk,il->kl")
    whole, _ = model([node], {"x": (3, 4), "y": (4, 5)}, {}, 17, False)
    assert "3 operands" in compiled(whole).lowering.explain()


Q, K, V = (2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 7)
MERGED = {"q_num_heads": 4, "kv_num_heads": 4}
HEADS = [
    (Q, K, V, {}),
    (Q, K, V, {"scale": 0.8, "softcap": 1.5}),
    (Q, K, V, {"is_causal": 1, "softcap": 0.5}),
    ((2, 3, 7, 5), K, V, {"is_causal": 1}),
    ((2, 4, 3, 5), (2, 2, 6, 5), (2, 2, 6, 7), {}),
    ((2, 4, 3, 5), (2, 2, 6, 5), (2, 2, 6, 7), {"is_causal": 1}),
    ((2, 3, 20), (2, 6, 20), (2, 6, 28), MERGED),
    ((2, 3, 20), (2, 6, 20), (2, 6, 28), {**MERGED, "is_causal": 1}),
    ((2, 3, 20), (2, 6, 10), (2, 6, 6), {**MERGED, "kv_num_heads": 2}),
    ((2, 3, 20), (2, 6, 5), (2, 6, 7), {**MERGED, "kv_num_heads": 1, "scale": 0.3}),
]


@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize(("q", "k", "v", "said"), HEADS)
def test_attention_agrees(q, k, v, said, symbolic, compiled, run_lowered, reference, runtime_is_old):
    if runtime_is_old and said == {"is_causal": 1, "softcap": 0.5}:
        pytest.skip("onnxruntime before 1.24 computes another result of a capped score and a mask")
    node = helper.make_node("Attention", ["q", "k", "v"], ["result"], **said)
    agree(model([node], {"q": q, "k": k, "v": v}, {}, 23, symbolic), compiled, run_lowered, reference)


SEEN = np.tile([True, True, False], 8).reshape(4, 6)
MASKS = {
    "float": normal(4, 6),
    "per head": normal(3, 4, 6),
    "bool": SEEN,
    "infinite": np.where(SEEN, 0, -np.inf).astype(np.float32),
    "keys": np.array([[True] * 4 + [False] * 2] * 4),
}


@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_with_a_constant_mask_agrees(mask, causal, symbolic, compiled, run_lowered, reference):
    node = helper.make_node("Attention", ["q", "k", "v", "mask"], ["result"], is_causal=causal)
    found = model([node], {"q": Q, "k": K, "v": V}, {"mask": MASKS[mask]}, 23, symbolic)
    agree(found, compiled, run_lowered, reference)


@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("kind", ["float", "bool", "infinite", "least"])
@pytest.mark.parametrize("shape", [(2, 1, 4, 6), (2, 3, 4, 6), (4, 6)])
def test_attention_with_a_computed_mask_agrees(
    shape, kind, causal, symbolic, compiled, run_lowered, reference
):
    """Some queries see no key: their result is zero."""
    if symbolic and len(shape) < 4:
        pytest.skip("its first dimension counts queries")
    least = np.float32(-np.inf if kind == "infinite" else np.finfo(np.float32).min)
    constants = {"bound": np.float32(0.4), "none": np.float32(0), "least": least}
    nodes = [
        helper.make_node("Greater", ["given", "bound"], ["seen"]),
        helper.make_node("Where", ["seen", "none", "least"], ["added"]),
    ]
    mask = {"float": "given", "bool": "seen"}.get(kind, "added")
    nodes = nodes[: {"float": 0, "bool": 1}.get(kind, 2)]
    nodes.append(helper.make_node("Attention", ["q", "k", "v", mask], ["result"], is_causal=causal))
    used = {name: value for name, value in constants.items() if any(name in node.input for node in nodes)}
    found = model(nodes, {"q": Q, "k": K, "v": V, "given": shape}, used, 24, symbolic)
    if kind != "float":
        assert not np.all(np.any(found[1]["given"] > 0.4, -1))
    agree(found, compiled, run_lowered, reference)


@pytest.mark.parametrize(
    ("more", "said", "reason"),
    [
        (["", "past_key", "past_value"], {}, "a cache"),
        (["mask"], {}, "a query sees no key"),
    ],
)
def test_attention_that_stays(more, said, reason, compiled):
    node = helper.make_node("Attention", ["q", "k", "v", *more], ["result"], **said)
    past = {"past_key": (2, 3, 2, 5), "past_value": (2, 3, 2, 7)} if "past_key" in more else {}
    mask = {"mask": np.arange(24).reshape(4, 6) > 5} if "mask" in more else {}
    whole, _ = model([node], {"q": Q, "k": K, "v": V, **past}, mask, 23, False)
    assert reason in compiled(whole).lowering.explain()
