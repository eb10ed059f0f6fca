"""The host is tested where its packages are; boards without them run the rest."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx", reason="the host needs the onnx package, which is not installed here")
