"""Wrong programs are compiled, so the host's packages have to be there; boards without them run the rest."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx", reason="the host needs the onnx package, which is not installed here")
