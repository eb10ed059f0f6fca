"""ONNX's own cases of single ops, of whatever release is installed."""

from __future__ import annotations

import warnings
from typing import Any


def node_cases() -> list[Any]:
    """All of them. Making some computes infinities, which NumPy warns about."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(collect_testcases(None))
