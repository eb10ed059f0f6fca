"""Inputs without rows, on layers that run on none."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import bb_edge
from bb_edge.backends.tflite.probe import interpreter
from bb_edge.roles.errors import BackendRunError
from bb_host.build import compile_edge

pytestmark = pytest.mark.skipif(interpreter().make is None, reason=interpreter().why_not)


def test_a_convolution_of_no_rows_gives_no_rows_or_is_refused_in_our_words():
    """XNNPACK made a shape up, or gave words of its own, whichever its memory held."""
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", channels, size, size])
        for name, channels, size in (("x", 1, 8), ("y", 2, 6))
    ]
    weights = numpy_helper.from_array(np.ones((2, 1, 3, 3), np.float32), "w")
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    opened = bb_edge.open_model(compile_edge(model, backend="tflite").artifacts[0].data)
    try:
        found = opened(np.zeros((0, 1, 8, 8), np.float32))
    except BackendRunError as error:
        assert "[0, 1, 8, 8] has no values" in str(error) and "XNNPack" not in str(error)
        assert "run it where there are rows: g.when(g.onnx.size(x) > 0)" in str(error)
    else:  # another interpreter, or memory that held the right sizes
        assert np.asarray(found).shape == (0, 2, 6, 6)
    assert np.asarray(opened(np.ones((2, 1, 8, 8), np.float32))).shape == (2, 2, 6, 6)
