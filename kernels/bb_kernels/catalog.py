"""Every topic module, imported once so that its kernels register."""

from __future__ import annotations

from . import (
    activations,
    elementwise,
    generate,
    indexing,
    linalg,
    rearrange,
    reductions,
    shape,
    softmax,
    unary,
)

#: The modules that hold kernels, for documentation and tests.
TOPICS = (activations, elementwise, generate, indexing, linalg, rearrange, reductions, shape, softmax, unary)
