"""What follows from the shapes of a data source's batches, found at install and not in the first round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bb_edge.engine.errors import OpError
from bb_edge.engine.run.bound import OfData
from bb_edge.ir.types import elem_of_dtype, tensor_of_elem
from bb_edge.roles.errors import BackendRunError

if TYPE_CHECKING:
    from bb_edge.engine.binding import BindEnv
    from bb_edge.engine.run.bound import BoundOp
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.programs import BackendProgram


def begin(op: BoundOp, of_data: dict[int, OfData], arrays: Sequence[Array], slot: str) -> None:
    """Notes that a `NextBatch` gives batches, and labels, like these."""
    for site, array in zip(op.outs, arrays, strict=False):
        if site >= 0:
            of_data[site] = OfData(array.shape, array.dtype, (slot,))


def follow(
    op: BoundOp, env: BindEnv, program: BackendProgram, sites: Sequence[int], outs: Sequence[int]
) -> None:
    """Notes what a backend call makes of batches alone; OpError where it cannot take them.

    `sites` are the program's inputs in its order, `outs` its results. A call that waits for others is left
    alone: the program may guard it by what the data turn out to be.
    """
    of_data, values = env.graph.of_data, env.graph.slot.values
    given = [of_data[site] for site in sites if site in of_data]
    if not given or op.spec.controls:
        return
    known = [of_data.get(site) or values[site] for site in sites]
    specs = tuple((v.shape, v.dtype) for v in known if isinstance(v, OfData | np.ndarray))
    if len(specs) < len(known):
        return
    slots = tuple(dict.fromkeys(slot for value in given for slot in value.slots))
    try:
        results = env.once(("result specs", id(op.spec), specs), lambda: program.result_specs(specs))
    except BackendRunError as error:
        fed = " and ".join(
            f"{tensor_of_elem(elem_of_dtype(v.dtype) or 0) or v.dtype}{list(v.shape)}" for v in given
        )
        names = " and ".join(repr(slot) for slot in slots)
        refused = OpError(
            f"its batches do not fit the program, which computes with {fed}: {error}",
            f"slot{'s' if len(slots) > 1 else ''} {names}",
            "give it the data that the program was written for, or compile the program for these",
        )
        refused.slot = slots[0]
        raise refused from error
    for site, (shape, dtype) in zip(outs, results or (), strict=False):
        if site >= 0:
            of_data[site] = OfData(shape, dtype, slots)
