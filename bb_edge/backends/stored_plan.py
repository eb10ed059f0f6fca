"""Reads and writes the memory plan in an artifact, a line of text in a function's metadata.

docs/design/artifact.md describes where it is. Its form:

    v1|<basis>|<crc32>|<entry>|<entry>…
    entry = <inputs> <results> <steps> <arena> <live> <buffers>

`inputs` are the dtypes and shapes that the plan is for (`float32[1x3x32x32],int64[]`), `results` the number
of the function's outputs, `steps` the number of kernel calls, `arena` and `live` are bytes, and `buffers` is
a list of `offset:nbytes:first:last` in the order in which the buffers come up.

The text is not trusted. `decode` checks it by itself: version, checksum, numbers, alignment, bounds, and that
buffers which are alive together share no byte. `StoredEntry.check` then compares it with what the kernels of
this runtime need. Only the offsets are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bb_edge.backends.plan_memory import ALIGNMENT, Layout, Lifetime, first_overlap, live_bytes
from bb_edge.roles.errors import BackendError
from bb_kernels import TensorSpec

__all__ = [
    "BASIS",
    "FORMAT",
    "MAX_PLAN_TEXT",
    "MemoryPlanError",
    "StoredEntry",
    "StoredPlan",
    "decode",
    "encode",
]

FORMAT = "v1"
"""The version of the text's form."""

BASIS = f"2-{8 * np.dtype(np.intp).itemsize}"
"""What decides which buffers a graph has: a version, and the bits of an index.

The version is raised when fitting, placing or the scratch of kernels change. A plan with another basis is
used if it fits, else a new one is made.
"""

MAX_PLAN_TEXT = 4 * 1024 * 1024
"""Characters of a plan; `MAX_BUFFERS` of them take about as many."""
MAX_BUFFERS = 100_000
"""Buffers of a plan; a graph has at most as many nodes."""
MAX_ENTRIES = 8
"""Sets of shapes of a plan; a program keeps as many."""
_MAX_NUMBER = 1 << 48
_MAX_DIGITS = 15
_DTYPES = {
    np.dtype(name).name: np.dtype(name)
    for name in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
}


class MemoryPlanError(BackendError):
    """An artifact's memory plan is damaged or unsafe, or was made for another graph."""

    def __init__(self, what: str, where: str = "", hint: str = "") -> None:
        super().__init__(what, where, hint or "compile the program again, or copy the file again")


class StoredEntry(NamedTuple):
    """The plan for one set of input shapes; `lives` and `offsets` have one item per buffer."""

    inputs: tuple[TensorSpec, ...]
    results: int
    steps: int
    arena: int
    live: int
    lives: tuple[Lifetime, ...]
    offsets: tuple[int, ...]

    @property
    def layout(self) -> Layout:
        return Layout(self.offsets, self.arena)

    def check(self, lives: Sequence[Lifetime], steps: int, where: str) -> None:
        """Raises MemoryPlanError unless these are the buffers that the kernels of this runtime need."""
        if steps != self.steps or len(lives) != len(self.lives):
            raise MemoryPlanError(
                f"its memory plan has {len(self.lives)} buffers in {self.steps} steps, the kernels here need "
                f"{len(lives)} in {steps}",
                where,
            )
        for number, (needed, planned) in enumerate(zip(lives, self.lives, strict=True)):
            if needed != planned:
                raise MemoryPlanError(
                    f"buffer {number} of its memory plan has {planned.nbytes} bytes in steps {planned.first} "
                    f"to {planned.last}, the kernels here need {needed.nbytes} in {needed.first} to "
                    f"{needed.last}",
                    where,
                )


class StoredPlan(NamedTuple):
    """All entries of one function; `native` says whether they have this runtime's `BASIS`."""

    entries: tuple[StoredEntry, ...]
    basis: str = BASIS

    @property
    def native(self) -> bool:
        return self.basis == BASIS


# --- writing --------------------------------------------------------------------------------------


def encode(plan: StoredPlan) -> str:
    """The text of a plan; equal plans have equal texts."""
    body = "|".join(_entry(entry) for entry in plan.entries)
    return f"{FORMAT}|{plan.basis}|{_checksum(plan.basis, body)}|{body}"


def _checksum(basis: str, body: str) -> str:
    import zlib  # its import loads a shared library, which only stored plans need

    return f"{zlib.crc32(f'{basis}|{body}'.encode()):08x}"


def _entry(entry: StoredEntry) -> str:
    inputs = ",".join(f"{spec.dtype.name}[{'x'.join(map(str, spec.shape))}]" for spec in entry.inputs)
    buffers = ",".join(
        f"{offset}:{life.nbytes}:{life.first}:{life.last}"
        for offset, life in zip(entry.offsets, entry.lives, strict=True)
    )
    return f"{inputs or '-'} {entry.results} {entry.steps} {entry.arena} {entry.live} {buffers or '-'}"


# --- reading --------------------------------------------------------------------------------------


def decode(text: str, where: str = "memory plan") -> StoredPlan:
    """Reads a plan and checks that it is safe in itself. Raises MemoryPlanError, which says why not."""
    if len(text) > MAX_PLAN_TEXT:
        raise MemoryPlanError(f"its memory plan has {len(text)} characters, {MAX_PLAN_TEXT} at most", where)
    version, *rest = text.split("|", 3)
    if version != FORMAT:
        raise MemoryPlanError(
            f"its memory plan is {version[:16]!r}, this runtime takes {FORMAT!r}",
            where,
            "compile it with the matching bb-host",
        )
    if len(rest) != 3:
        raise MemoryPlanError("its memory plan is cut off", where)
    basis, checksum, body = rest
    if _checksum(basis, body) != checksum:
        raise MemoryPlanError("the checksum of its memory plan is wrong", where)
    parts = body.split("|")
    if len(parts) > MAX_ENTRIES:
        raise MemoryPlanError(f"its memory plan is for {len(parts)} shapes, {MAX_ENTRIES} at most", where)
    return StoredPlan(tuple(_read_entry(part, where) for part in parts), basis)


def _read_entry(text: str, where: str) -> StoredEntry:
    fields = text.split(" ")
    if len(fields) != 6:
        raise MemoryPlanError(f"an entry of its memory plan has {len(fields)} fields instead of 6", where)
    inputs = () if fields[0] == "-" else tuple(_read_spec(spec, where) for spec in fields[0].split(","))
    results, steps, arena, live = (_number(field, where) for field in fields[1:5])
    texts = [] if fields[5] == "-" else fields[5].split(",")
    if len(texts) > MAX_BUFFERS:
        raise MemoryPlanError(f"its memory plan has {len(texts)} buffers, {MAX_BUFFERS} at most", where)
    lives, offsets = [], []
    for number, buffer in enumerate(texts):
        numbers = [_number(n, where) for n in buffer.split(":")]
        if len(numbers) != 4:
            raise MemoryPlanError(
                f"buffer {number} of its memory plan has {len(numbers)} numbers, not 4", where
            )
        offset, nbytes, first, last = numbers
        if offset % ALIGNMENT:
            raise MemoryPlanError(
                f"buffer {number} of its memory plan lies at {offset}, not at a multiple of {ALIGNMENT}",
                where,
            )
        if offset + nbytes > arena:
            raise MemoryPlanError(
                f"buffer {number} of its memory plan ends at {offset + nbytes}, beyond the arena of {arena}",
                where,
            )
        if not first <= last <= steps:  # buffers that are copied out at the end live beyond the last step
            raise MemoryPlanError(
                f"buffer {number} of its memory plan lives from step {first} to {last} of {steps}", where
            )
        offsets.append(offset)
        lives.append(Lifetime(nbytes, first, last))
    overlap = first_overlap(lives, offsets)
    if overlap is not None:
        raise MemoryPlanError(
            f"buffers {overlap[0]} and {overlap[1]} of its memory plan are alive together and overlap", where
        )
    if live_bytes(lives) != live:
        raise MemoryPlanError(
            f"its memory plan names {live} bytes alive at once, but its buffers have {live_bytes(lives)}",
            where,
        )
    return StoredEntry(inputs, results, steps, arena, live, tuple(lives), tuple(offsets))


def _number(text: str, where: str) -> int:
    # Compiling two regular expressions would take longer than reading most plans.
    plain = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    if not plain or (text[0] == "0" and text != "0") or int(text) > _MAX_NUMBER:
        raise MemoryPlanError(f"{text[:24]!r} in its memory plan is not a number of bytes or steps", where)
    return int(text)


def _read_spec(text: str, where: str) -> TensorSpec:
    name, bracket, dims = text.partition("[")
    dtype = _DTYPES.get(name)
    shape = dims[:-1].split("x") if len(dims) > 1 else []
    if not (bracket and dims.endswith("]") and dtype is not None and len(shape) <= 64 and all(shape)):
        raise MemoryPlanError(f"{text[:48]!r} in its memory plan is not a dtype and shape", where)
    return TensorSpec(dtype, tuple(_number(dim, where) for dim in shape))
