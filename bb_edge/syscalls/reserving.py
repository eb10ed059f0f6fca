"""Memory that components take at the start of a node, because their ops are known to need it."""

from __future__ import annotations

from collections.abc import Callable

from bb_edge.engine.errors import OpError
from bb_edge.engine.run.bound import BoundOp
from bb_edge.ir.errors import BBError
from bb_edge.roles.component import Component
from bb_edge.roles.containment import contained


def reserve(op: BoundOp, component: Component, call: Callable[[], object], what: str) -> None:
    """Calls a component's `reserve`. OpError where the memory is not there, or whatever else it raises."""
    try:
        call()
    except BaseException as error:
        reason = contained(error)
        if isinstance(reason, BBError):
            raise reason from error
        # NumPy has ValueError for a size that no address space holds.
        if isinstance(reason, MemoryError | ValueError | OverflowError):
            hint = "run it on a device with more memory, or compile a smaller model"
            raise OpError(f"there is no memory {what}", where=op.spec.name, hint=hint) from error
        text = f"{component.TYPE_NAME}.reserve fails: {type(reason).__name__}: {reason}"
        raise OpError(text, where=op.spec.name, hint="correct the component") from error
