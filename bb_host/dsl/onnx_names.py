"""What authors may call the operators of ONNX."""

from __future__ import annotations

from functools import lru_cache

import onnx.defs

from bb_edge.ir.opsets import ONNX_ALIASES

_REPLACED = {"Scatter": "ScatterElements", "Upsample": "Resize", **ONNX_ALIASES}
"""Names that authors use and the recorded opset has no longer, or never had."""


@lru_cache(maxsize=1)
def operator_names() -> dict[str, str]:
    """Every operator by its name without case and underscores."""
    found = {
        s.name.lower(): s.name for s in onnx.defs.get_all_schemas() if s.domain == "" and not s.deprecated
    }
    found.update({alias.lower(): op for alias, op in _REPLACED.items() if op != "Constant"})
    return found


@lru_cache(maxsize=1024)
def onnx_name(spelling: str) -> str | None:
    """`reduce_sum`, `ReduceSum`, `and_` → ONNX's name; None where ONNX has no such operator."""
    return operator_names().get(spelling.replace("_", "").lower())
