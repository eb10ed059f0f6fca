"""ONNX's node tests through ONNX's own backend interface: every declared operator and element type.

The rule (`declared` in conftest.py) looks at the model alone. What it declares must run and be right;
whatever else is taken must be right too; the rest is refused with a typed error. Nothing is left out by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from onnx_cases import node_cases

onnx = pytest.importorskip("onnx")

import onnx_backend as backend  # noqa: E402

from bb_host.errors import OnnxModelError  # noqa: E402

WRONG = re.compile(
    r"test_qlinearmatmul_.*_int8_.*|test_averagepool_3d_dilations_large_.*pad_is_1_ceil_mode_is_True"
)
"""Of onnx 1.16: later versions of the package expect other results of the same cases."""


def _is_right(case: Any) -> bool:
    return not (onnx.__version__.startswith("1.16.") and WRONG.fullmatch(case.name))


CASES = [case for case in node_cases() if _is_right(case)]
RESULTS: dict[str, int] = {"declared": 0, "more": 0, "refused": 0}


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_case(case: Any, is_declared: Callable[[Any], bool], check: Callable[..., None]) -> None:
    required = is_declared(case.model)
    try:
        prepared = backend.prepare(case.model)
    except OnnxModelError:
        assert not required
        RESULTS["refused"] += 1
        return
    RESULTS["declared" if required else "more"] += 1
    draws = any(a.name == "seed" for n in case.model.graph.node for a in n.attribute)
    for inputs, expected in case.data_sets:
        check(prepared, inputs, expected, case.rtol, case.atol, times=1 if draws else 2)


def test_count(request: pytest.FixtureRequest) -> None:
    """The rule covers what it is meant to cover."""
    if sum(RESULTS.values()) == len(CASES):  # the whole file ran, in one process
        assert RESULTS["declared"] >= 0.75 * len(CASES), RESULTS
