"""What one file holds at most, and what is named of a program that is larger."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bb_host.errors import ArtifactTooLargeError
from bb_host.ir.program import Array, Program, RawTensor, Subgraph, walk_ops

MAX_BYTES = 2**31 - 1
"""What a serialized protobuf message may take: 2 GiB."""

LOAD_INSTEAD = (
    "load it on the device instead: hand it in as an input, or let a data source read it from a file"
)
"""What an author can do about it."""


_NAMED = 3
"""So many constants are named of what is too large."""


def too_large(program: Program) -> ArtifactTooLargeError:
    """The error of a program that does not fit, with its largest tensors and their lines."""
    sizes = sorted(_tensors(program), key=lambda found: -found[0])
    named = [f"{what} {size:,} bytes" + (f" ({line})" if line else "") for size, what, line in sizes[:_NAMED]]
    line = next((line for _, _, line in sizes if line), "")
    return ArtifactTooLargeError(
        f"{program.name} has constants of {of_tensors(program):,} bytes, and a file holds"
        f" {MAX_BYTES:,} at most; the largest: {', '.join(named)}",
        line or f"program {program.name}",
        LOAD_INSTEAD,
    )


def of_tensors(program: Program) -> int:
    """Bytes of all tensors of a program."""
    return sum(size for size, _, _ in _tensors(program))


def _tensors(program: Program) -> Iterator[tuple[int, str, str]]:
    """Bytes of each tensor, what it is, and its author's line."""
    for function in program.functions:
        for op in walk_ops(function.ops):
            line = op.source
            for value in op.attrs.values():
                if isinstance(value, np.ndarray | RawTensor):
                    yield _size_of(value), f"{op.op_type} → {', '.join(op.outputs)}", line
                elif isinstance(value, Subgraph):
                    for name, tensor in value.initializers.items():
                        yield _size_of(tensor), f"initializer {name!r}", line
        for name, slot in function.slots.items():
            if isinstance(slot.state, np.ndarray | RawTensor):
                yield _size_of(slot.state), f"slot {name!r}", ""
            elif isinstance(slot.state, Subgraph):
                for key, tensor in slot.state.initializers.items():
                    yield _size_of(tensor), f"parameter {key!r} of slot {name!r}", ""


def _size_of(value: Array | RawTensor) -> int:
    return len(value.data) if isinstance(value, RawTensor) else value.nbytes
