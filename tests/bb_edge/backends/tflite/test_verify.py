"""What may not reach an interpreter: forged flatbuffers, each with one thing wrong."""

from __future__ import annotations

import hashlib
import struct
from random import Random

import numpy as np
import pytest

from bb_edge.backends.tflite.backend import TFLiteBackend
from bb_edge.backends.tflite.errors import TFLiteModelError
from bb_edge.backends.tflite.flatbuffer import FlatbufferError
from bb_edge.backends.tflite.operators import OPERATORS
from bb_edge.backends.tflite.probe import interpreter
from bb_edge.backends.tflite.verify import MAX_BYTES, verify
from bb_host.tflite import schema
from bb_host.tflite.graph import DYNAMIC, Operator, Quantization, TfliteGraph
from bb_host.tflite.writer import write

IMAGE = (2, 6, 7, 4)
OPEN = (DYNAMIC, 6, 7, 4)
CONV = {"padding": 1, "stride_w": 1, "stride_h": 1, "act": 0, "dilation_w": 1, "dilation_h": 1}
HALVED = {**CONV, "padding": 0, "stride_w": 2, "stride_h": 2}
POOL = {"padding": 1, "stride_w": 1, "stride_h": 1, "filter_w": 2, "filter_h": 2, "act": 0}


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def single(kind, shape, constants, result, options=None, dtype="float32", out=None, **graph_parts):
    """One operator on x and constants."""
    graph = TfliteGraph()
    quantization = graph_parts.get("quantization")
    x = graph.tensor("x", shape, dtype, None, quantization)
    graph.inputs.append(x)
    given = [x, *(graph.constant(c) if c is not None else -1 for c in constants)]
    graph.outputs.append(graph.op(kind, given, result, out or dtype, options, quantization))
    return graph


def weights(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


FILTER = weights(5, 3, 2, 4)
MASKS = dict.fromkeys(("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_mask"), 0)
SOUND = {
    "relu": single("RELU", OPEN, (), OPEN),
    "conv": single("CONV_2D", OPEN, (weights(5, 3, 2, 4), weights(5)), (DYNAMIC, 4, 6, 5), CONV),
    "same": single("CONV_2D", IMAGE, (weights(5, 3, 3, 4), weights(5)), (2, 3, 4, 5), HALVED),
    "depthwise": single("DEPTHWISE_CONV_2D", IMAGE, (weights(1, 3, 2, 8), weights(8)), (2, 4, 6, 8),
                        {**CONV, "multiplier": 2}),
    "pool": single("MAX_POOL_2D", OPEN, (), (DYNAMIC, 5, 6, 4), POOL),
    "dense": single("FULLY_CONNECTED", (DYNAMIC, 6), (weights(5, 6), None), (DYNAMIC, 5), {"act": 0}),
    "dense kept": single("FULLY_CONNECTED", (2, 3, 6), (weights(5, 6), None), (2, 3, 5),
                         {"act": 0, "keep_num_dims": True}),
    "slice": single("SLICE", OPEN, (ints(0, 1, 0, 0), ints(-1, 2, 7, 4)), (DYNAMIC, 2, 7, 4)),
    "strided": single("STRIDED_SLICE", (3, 8), (ints(0, 7), ints(3, 0), ints(1, -2)), (3, 4), MASKS),
    "pad": single("PAD", IMAGE, (np.array([[0, 0], [1, 0], [0, 2], [0, 0]], np.int32),), (2, 7, 9, 4)),
    "transpose": single("TRANSPOSE", OPEN, (ints(0, 3, 1, 2),), (DYNAMIC, 4, 6, 7)),
    "reshape": single("RESHAPE", (DYNAMIC, 4, 5), (ints(-1, 5),), (DYNAMIC, 5)),
    "tile": single("TILE", OPEN, (ints(1, 2, 1, 3),), (DYNAMIC, 12, 7, 12)),
    "round": single("ROUND", OPEN, (), OPEN),
    "sign": single("SIGN", OPEN, (), OPEN),
    "gather": single("GATHER", (3, 7), (ints(6, 0),), (3, 2), {"axis": 1, "batch_dims": 0}),
    "mean": single("MEAN", IMAGE, (ints(1, -2),), (2, 4), {"keep_dims": False}),
    "resize": single("RESIZE_BILINEAR", IMAGE, (ints(12, 14),), (2, 12, 14, 4)),
    "blocks": single("DEPTH_TO_SPACE", IMAGE, (), (2, 12, 14, 1), {"block": 2}),
    "add": single("ADD", IMAGE, (weights(7, 1),), IMAGE, {"act": 3}),
    "argmax": single("ARG_MAX", (3, 7), (ints(1),), (3,), {"output_type": 4}, out="int64"),
    "softmax": single("SOFTMAX", (3, 7), (), (3, 7), {"beta": 1.0}),
}  # fmt: skip
FORGED = {
    "no bias": single("CONV_2D", IMAGE, (FILTER,), (2, 4, 6, 5), CONV),
    "bias left out": single("CONV_2D", IMAGE, (FILTER, None), (2, 4, 6, 5), CONV),
    "stride": single("CONV_2D", IMAGE, (FILTER, weights(5)), (2, 4, 6, 5), {**CONV, "stride_w": 0}),
    "dilation": single("CONV_2D", IMAGE, (FILTER, weights(5)), (2, 4, 6, 5), {**CONV, "dilation_h": -1}),
    "padding": single("CONV_2D", IMAGE, (FILTER, weights(5)), (2, 4, 6, 5), {**CONV, "padding": 2}),
    "depth": single("CONV_2D", IMAGE, (weights(5, 3, 2, 3), weights(5)), (2, 4, 6, 5), CONV),
    "bias": single("CONV_2D", IMAGE, (FILTER, weights(4)), (2, 4, 6, 5), CONV),
    "window": single("MAX_POOL_2D", IMAGE, (), (2, 1, 6, 4), {**POOL, "filter_h": 9}),
    "no window": single("MAX_POOL_2D", IMAGE, (), (2, 5, 6, 4), {**POOL, "filter_h": 0}),
    "multiplier": single("DEPTHWISE_CONV_2D", IMAGE, (weights(1, 3, 2, 8), weights(8)), (2, 4, 6, 8),
                         {**CONV, "multiplier": 3}),
    "units": single("FULLY_CONNECTED", (3, 6), (weights(5, 7), None), (3, 5), {"act": 0}),
    "begin": single("SLICE", OPEN, (ints(1, 1, 0, 0), ints(-1, 2, 7, 4)), (DYNAMIC, 2, 7, 4)),
    "size": single("SLICE", IMAGE, (ints(0, 5, 0, 0), ints(2, 2, 7, 4)), (2, 2, 7, 4)),
    "step": single("STRIDED_SLICE", (3, 8), (ints(0, 7), ints(3, 0), ints(1, 0)), (3, 4), MASKS),
    "order": single("TRANSPOSE", IMAGE, (ints(0, 3, 1, 1),), (2, 4, 6, 6)),
    "order's range": single("TRANSPOSE", IMAGE, (ints(0, 3, 1, 4),), (2, 4, 6, 7)),
    "times": single("TILE", (3, 4), (ints(2, 0),), (6, 4)),
    "times' count": single("TILE", (3, 4), (ints(2, 1, 1),), (6, 4)),
    "times an open one": single("TILE", OPEN, (ints(2, 1, 1, 1),), (1, 6, 7, 4)),
    "count": single("RESHAPE", IMAGE, (ints(2, -1, 5),), (2, 33, 5)),
    "index": single("GATHER", (3, 7), (ints(7, 0),), (3, 2), {"axis": 1, "batch_dims": 0}),
    "axis": single("MEAN", IMAGE, (ints(1, 4),), (2, 4), {"keep_dims": False}),
    "negative pad": single("PAD", (3, 4), (np.array([[0, 0], [-1, 2]], np.int32),), (3, 5)),
    "block": single("DEPTH_TO_SPACE", IMAGE, (), (2, 18, 21, 1), {"block": 3}),
    "broadcast": single("ADD", IMAGE, (weights(5),), IMAGE, {"act": 0}),
    "act": single("ADD", IMAGE, (weights(4),), IMAGE, {"act": 7}),
    "result": single("RELU", IMAGE, (), (2, 6, 7, 5)),
    "rank": single("RELU", (1,) * 7, (), (1,) * 7),
    "beta": single("SOFTMAX", (3, 7), (), (3, 7), {"beta": float("nan")}),
    "missing input": single("ADD", IMAGE, (), IMAGE, {"act": 0}),
    "left out": single("ADD", IMAGE, (None,), IMAGE, {"act": 0}),
    "dtypes": single("ADD", IMAGE, (ints(1, 2, 3, 4),), IMAGE, {"act": 0}),
    "no constant": single("RESHAPE", IMAGE, (weights(2),), (84, 4)),
    "huge": single("PAD", (1, 4), (np.array([[1 << 29, 0], [0, 0]], np.int32),), ((1 << 29) + 1, 4)),
    "much": single("PAD", (DYNAMIC, 4), (np.array([[MAX_BYTES // 16, 0], [0, 0]], np.int32),), (DYNAMIC, 4)),
    "no scale": single("RELU", IMAGE, (), IMAGE, dtype="int8"),
    "empty dim": single("RELU", (2, 0), (), (2, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_sound_ones_are_taken_and_run(name, make):
    data = write(SOUND[name])
    assert verify(data) > 0
    if interpreter().make is None:
        return
    f = make.function("x", "y")
    make.model_node(f, "x", "y", data)
    shape = [2 if n == DYNAMIC else n for n in SOUND[name].tensors[0].shape]
    (result,) = TFLiteBackend().prepare(f).run((np.ones(shape, np.float32),))
    assert result.size


@pytest.mark.parametrize("name", FORGED)
def test_forged_ones_are_refused_though_the_digest_is_right(name, make):
    data = write(FORGED[name])
    with pytest.raises(FlatbufferError):
        verify(data)
    if interpreter().make is None:
        return
    f = make.function("x", "y")
    make.model_node(f, "x", "y", data, digest=hashlib.sha256(data).hexdigest().encode())
    with pytest.raises(TFLiteModelError, match="not sound"):
        TFLiteBackend().prepare(f)


def quantized(scales, zeros, axis=0):
    return single("RELU", (2, 3), (), (2, 3), dtype="int8", quantization=Quantization(
        np.array(scales, np.float32), np.array(zeros), axis))  # fmt: skip


@pytest.mark.parametrize(
    ("scales", "zeros", "axis", "sound"),
    [
        ([0.5], [-128], 0, True),
        ([0.5, 0.5, 1], [0, 0, 0], 1, True),
        ([0.0], [0], 0, False),
        ([-1.0], [0], 0, False),
        ([float("nan")], [0], 0, False),
        ([float("inf")], [0], 0, False),
        ([1e-38], [0], 0, False),
        ([0.5], [128], 0, False),
        ([0.5], [0, 0], 0, False),
        ([0.5, 0.5], [0, 0], 1, False),
        ([0.5, 0.5], [0, 0], 2, False),
        ([0.5, 0.5], [0, 0], -1, False),
        ([], [], 0, False),
    ],
)
def test_scales(scales, zeros, axis, sound):
    data = write(quantized(scales, zeros, axis))
    if sound:
        verify(data)
    else:
        with pytest.raises(FlatbufferError):
            verify(data)


@pytest.mark.parametrize(
    ("kind", "scales", "sound"),
    [
        ("ADD", (0.02, 0.01, 0.03), True),
        ("ADD", (0.02, 1e5, 0.03), False),
        ("SUB", (0.02, 0.01, 1e-9), False),
        ("MUL", (1e3, 1e-3, 0.01), True),
        ("MUL", (1.0, 1.0, 0.003), False),
    ],
)
def test_grids_too_far_apart_end_an_interpreter(kind, scales, sound):
    graph = TfliteGraph()
    grids = [Quantization(np.array([s], np.float32), np.array([0])) for s in scales]
    given = [graph.tensor(name, (2, 3), "int8", None, grid) for name, grid in zip("ab", grids, strict=False)]
    graph.inputs += given
    graph.outputs.append(graph.op(kind, given, (2, 3), "int8", {"act": 0}, grids[2]))
    if sound:
        verify(write(graph))
    else:
        with pytest.raises(FlatbufferError, match="too far apart"):
            verify(write(graph))


ORDERS = ("reads later", "reads itself", "writes twice", "writes a constant", "range", "output", "input",
          "no output", "input twice")  # fmt: skip


@pytest.mark.parametrize("wrong", ORDERS)
def test_an_order_that_does_not_compute(wrong):
    graph = TfliteGraph()
    x = graph.input("x", (2, 3))
    c = graph.constant(weights(2, 3))
    a = graph.op("RELU", [x], (2, 3))
    b = graph.op("ADD", [a, c], (2, 3), options={"act": 0})
    graph.outputs.append(b)
    verify(write(graph))
    first, second = graph.operators
    if wrong == "reads later":
        graph.operators = [second, first]
    elif wrong == "reads itself":
        graph.operators[0] = Operator("RELU", (a,), (a,))
    elif wrong == "writes twice":
        graph.operators[1] = Operator("RELU", (x,), (a,))
    elif wrong == "writes a constant":
        graph.operators[0] = Operator("RELU", (x,), (c,))
    elif wrong == "range":
        graph.operators[0] = Operator("RELU", (-3,), (a,))
    elif wrong == "output":
        graph.outputs[0] = graph.tensor("nobody's", (2, 3))
    elif wrong == "input":
        graph.inputs.append(c)
    elif wrong == "no output":
        graph.outputs.clear()
    else:
        graph.inputs.append(x)
    with pytest.raises(FlatbufferError):
        verify(write(graph))


def test_whatever_the_bytes_it_ends_and_says_so():
    """Damage of every kind: nothing else is raised, and nothing takes long."""
    rng = Random(11)
    seeds = [write(graph) for graph in SOUND.values()]
    taken = 0
    for number in range(6000):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = 4 * rng.randrange(len(data) // 4)
            value = rng.choice((0, 1, 4, 8, 255, len(data), -1, -4, 2**31 - 1, rng.randrange(-999, 999)))
            struct.pack_into("<i", data, at, value)
        if number % 5 == 0:
            del data[rng.randrange(len(data)) :]
        try:
            verify(bytes(data))
            taken += 1
        except FlatbufferError:
            pass
    assert 0 < taken < 3000


def test_parts_that_are_referred_to_again_and_again_come_to_an_end():
    """A vector of operators all of which are one: reading it all would be quadratic."""
    graph = SOUND["relu"]
    data = bytearray(write(graph))
    for at in range(8, len(data) - 4, 4):
        changed = bytearray(data)
        count = (len(data) - at) // 4
        struct.pack_into("<I", changed, at, count)
        for i in range(1, count):
            if at + 4 * i + 4 <= len(data):
                struct.pack_into("<I", changed, at + 4 * i, 4)
        with pytest.raises(FlatbufferError):
            verify(bytes(changed))
    with pytest.raises(FlatbufferError):
        verify(b"")


def test_it_knows_every_operator_that_the_lowering_writes():
    """One that is new there belongs into `operators.py` of the backend too, and its rule into `shapes.py`."""
    kinds = {"Int8": "b", "Bool": "b", "Int32": "i", "Float32": "f"}
    for name, known in schema.OPERATORS.items():
        here = OPERATORS[known.code]
        assert (here.name, here.tag) == (name, known.tag)
        assert {(slot, kinds[kind]) for slot, kind in known.slots.values()} <= {o[:2] for o in here.options}
