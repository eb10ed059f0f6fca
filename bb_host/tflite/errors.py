"""What the TFLite lowering raises."""

from __future__ import annotations

import warnings


class NotLowered(Exception):
    """An operator that stays ONNX, and why; never leaves this room."""


def fault(what: str, error: Exception) -> NotLowered:
    """What a fault of the lowering becomes: its ops stay, as they may, and a warning asks to report it."""
    said = f"the lowering of {what} failed, a fault of the compiler: {type(error).__name__}: {error}"
    warnings.warn(
        f"{said} (it runs on NumPy instead; report this, with the model)", RuntimeWarning, stacklevel=2
    )
    return NotLowered(said)
