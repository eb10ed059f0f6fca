"""Arrays that tests give to programs and expect from them."""

from __future__ import annotations

from typing import Any

import numpy as np


def f32(*values: float) -> np.ndarray[Any, Any]:
    """The values as a vector of float32."""
    return np.array(values, np.float32)
