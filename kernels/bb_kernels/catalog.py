"""Every topic module, imported once so that its kernels register."""

from __future__ import annotations

from . import (
    activations,
    conv,
    elementwise,
    generate,
    indexing,
    linalg,
    norm,
    pool,
    rearrange,
    reductions,
    scatter,
    shape,
    softmax,
    unary,
)

#: The modules that hold kernels, for documentation and tests.
TOPICS = (
    activations,
    conv,
    elementwise,
    generate,
    indexing,
    linalg,
    norm,
    pool,
    rearrange,
    reductions,
    scatter,
    shape,
    softmax,
    unary,
)
