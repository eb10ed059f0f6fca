"""Every topic module, imported once so that its kernels register."""

from __future__ import annotations

from . import (
    activations,
    conv,
    conv_transpose,
    elementwise,
    generate,
    indexing,
    linalg,
    norm,
    pad,
    pool,
    quant,
    quant_linear,
    rearrange,
    reductions,
    resize,
    rnn,
    scatter,
    search,
    shape,
    softmax,
    unary,
)

#: The modules that hold kernels, for documentation and tests.
TOPICS = (
    activations,
    conv,
    conv_transpose,
    elementwise,
    generate,
    indexing,
    linalg,
    norm,
    pad,
    pool,
    quant,
    quant_linear,
    rearrange,
    reductions,
    resize,
    rnn,
    scatter,
    search,
    shape,
    softmax,
    unary,
)
