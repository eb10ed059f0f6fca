"""Lists of peers through the ONNX operators that pick and join."""

from __future__ import annotations

import numpy as np
import pytest

from bb_edge.engine.errors import OpError
from bb_edge.ir.opsets.wire import ONNX_OPS_OVER_PEERS
from bb_edge.syscalls.peer_lists import OVER_PEERS
from tests.aids.peers import numbered

PEERS = tuple(numbered(n) for n in range(5))
FAR = np.iinfo(np.int64).max


def test_the_operators_are_those_of_the_catalog():
    assert OVER_PEERS.keys() == ONNX_OPS_OVER_PEERS


@pytest.mark.parametrize("name", ["Identity", "Squeeze", "Unsqueeze"])
def test_some_leave_the_list_as_it_is(name):
    assert OVER_PEERS[name]((PEERS, np.array([0]))) is PEERS


def test_lists_are_joined_in_order():
    assert OVER_PEERS["Concat"]((PEERS[3:], PEERS[:1], ())) == (*PEERS[3:], PEERS[0])


@pytest.mark.parametrize("indices", [[0, 2], [-1], [[1], [1]], []])
def test_peers_are_gathered(indices):
    wanted = np.array(indices, np.int64)
    expected = tuple(PEERS[i] for i in wanted.ravel())
    assert OVER_PEERS["Gather"]((PEERS, wanted)) == expected


@pytest.mark.parametrize("index", [5, -6])
def test_a_peer_that_is_not_there_is_refused(index):
    with pytest.raises(OpError, match="among 5"):
        OVER_PEERS["Gather"]((PEERS, np.array(index)))


@pytest.mark.parametrize("start", [0, 1, 4, 5, 9, -1, -5, -9])
@pytest.mark.parametrize("end", [0, 2, 5, FAR, -1, -5, -9])
@pytest.mark.parametrize("step", [1, 2, -1, -2])
def test_slices_are_those_of_onnx(start, end, step):
    onnx = pytest.importorskip("onnx", reason="the reference needs the host extra")
    from onnx.reference import ReferenceEvaluator

    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]>'
        "g (int64[n] x, int64[1] a, int64[1] b, int64[1] c, int64[1] s) => (int64[m] y)"
        "{ y = Slice(x, a, b, c, s) }"
    )
    bounds = [np.array([v], np.int64) for v in (start, end, 0, step)]
    feeds = dict(zip("xabcs", [np.arange(5), *bounds], strict=True))
    expected = tuple(PEERS[i] for i in ReferenceEvaluator(model).run(None, feeds)[0])
    assert OVER_PEERS["Slice"]((PEERS, *bounds)) == expected


@pytest.mark.parametrize("step", [0])
def test_a_step_of_nothing_is_refused(step):
    with pytest.raises(OpError, match="one axis"):
        OVER_PEERS["Slice"]((PEERS, np.array([0]), np.array([2]), np.array([0]), np.array([step])))
