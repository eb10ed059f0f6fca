"""What kernels and their callers exchange: tensor specs, prepared kernels, groups of element types."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"
Dtype: TypeAlias = "np.dtype[Any]"
Run: TypeAlias = "Callable[..., object]"
Bound: TypeAlias = "Callable[[], object]"
Ufunc: TypeAlias = Any  # NumPy's stubs give every ufunc a type of its own

F16: Dtype = np.dtype(np.float16)
F32: Dtype = np.dtype(np.float32)
F64: Dtype = np.dtype(np.float64)
I8: Dtype = np.dtype(np.int8)
I16: Dtype = np.dtype(np.int16)
I32: Dtype = np.dtype(np.int32)
I64: Dtype = np.dtype(np.int64)
U8: Dtype = np.dtype(np.uint8)
U16: Dtype = np.dtype(np.uint16)
U32: Dtype = np.dtype(np.uint32)
U64: Dtype = np.dtype(np.uint64)
BOOL: Dtype = np.dtype(np.bool_)

FLOAT: frozenset[Dtype] = frozenset({F16, F32, F64})
SIGNED: frozenset[Dtype] = frozenset({I8, I16, I32, I64})
UNSIGNED: frozenset[Dtype] = frozenset({U8, U16, U32, U64})
INTEGER: frozenset[Dtype] = SIGNED | UNSIGNED
NUMERIC: frozenset[Dtype] = FLOAT | INTEGER
ALL: frozenset[Dtype] = NUMERIC | {BOOL}


class TensorSpec(NamedTuple):
    """Element type and shape of a tensor; every dimension is known."""

    dtype: Dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the bytes of a contiguous tensor of this spec."""
        return prod(self.shape) * self.dtype.itemsize


class Prepared(NamedTuple):
    """A kernel fitted to the shapes and types of its inputs.

    ``run(*inputs, *outputs, *scratch)`` computes. Inputs may have any strides, outputs and scratch must be
    C-contiguous and of exactly the spec given here; scratch content need not survive from one run to the
    next and need not be zeroed. An omitted input or output is ``None`` in its position. Floating point
    warnings belong to the caller: run under ``np.errstate(all="ignore")`` once around a whole plan.
    """

    outputs: tuple[TensorSpec, ...]
    run: Run
    scratch: tuple[TensorSpec, ...] = ()
    #: Inputs whose memory output 0 may take over (same dtype and shape, safe element by element).
    inplace: tuple[int, ...] = ()
    #: Set when output 0 can be a view of input 0. Called once, when arrays are bound to a plan; raises
    #: KernelShapeError when the input's strides allow no view (then use ``run``, which copies).
    alias: Callable[..., Array] | None = None
    #: Output shapes depend on data: ``run(*inputs, most=0)`` returns a tuple of fresh arrays, ``outputs`` is
    #: (). ``most`` bounds the bytes that it allocates; KernelMemoryError comes before the allocation.
    dynamic: bool = False
    #: Set when the outputs follow from shapes and attributes alone (Shape, Size, Constant): their values.
    values: tuple[Array, ...] = ()
    #: Makes the views of a run once; see ``bind``.
    binder: Callable[..., Bound] | None = None
    #: Bytes that a run allocates and frees by itself, where they are a multiple of its inputs.
    working: int = 0

    @property
    def nbytes(self) -> int:
        """Return the bytes of all outputs and scratch, and of what a run allocates by itself."""
        return sum(spec.nbytes for spec in (*self.outputs, *self.scratch)) + self.working

    def bind(self, *arrays: Array | None) -> Bound:
        """Fix the arguments of ``run`` (same order); the result does one run on those very arrays.

        Kernels that need views of their arguments (padding, windows) make them here instead of in every
        run, so a plan over an arena that never moves should prefer ``bind`` to ``run``.
        """
        if self.binder is not None:
            return self.binder(*arrays)
        return partial(self.run, *arrays)


def run_bound(binder: Callable[..., Bound]) -> Run:
    """Return the ``run`` of a kernel that is written as a binder: bind to the arguments, run once."""

    def run(*arrays: Array | None) -> None:
        binder(*arrays)()

    return run
