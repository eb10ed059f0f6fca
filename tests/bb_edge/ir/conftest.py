"""The onnx package, for the tests that hold the runtime's own reading and writing against it."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def onnx() -> Any:
    """The package; the test is skipped on machines that it is not made for."""
    return pytest.importorskip("onnx", reason="compares with the onnx package, which is not installed here")
