"""The border of aggregators: what is checked of each contribution, and whom a refusal names.

A contribution has the layout of what the peer was asked with: of the input `sent` where the program gives it,
else the shape that the compiler knows. The first that arrives decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bb_edge.engine import steps
from bb_edge.engine.binding import OpContext
from bb_edge.engine.errors import OpError, failure_text
from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.given_up import tell_given_up
from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.ir.stamped_shapes import StampedShape, fits, read_shapes, shape_text
from bb_edge.roles import Aggregator
from bb_edge.roles.errors import ComponentError, ContributionRefused
from bb_edge.syscalls.reserving import reserve
from bb_edge.wire.envelope_records import FailureCode

REMEDY = (
    "give sent=, what the peer was asked with, to contribute; or declare the shape of what is contributed"
)

_OWN = "does a model, codec or aggregator of your own give another shape?"
OF_WHAT_CAME = f"check what made the contribution: {_OWN}"
OF_EITHER = f"check the contribution, and the value that was sent for it: {_OWN}"


def bind(op: BoundOp, component: Aggregator, method: Callable[..., object]) -> Callable[..., object]:
    """Returns the call of a `contribute` or `aggregate` method, and notes which sum the op is about.

    Where the compiler knows how large contributions are, the component takes the memory for them now. OpError
    for stamps that are not the compiler's, and where that memory is not there.
    """
    cohort, stamp = op.spec.meta.get(keys.COHORT_KEY, ""), op.spec.meta.get(keys.SHAPES_KEY, "")
    try:
        op.cohort = (-1 if cohort == keys.COHORT_ROUND else int(cohort)) if cohort else None
        shapes = read_shapes(stamp)
    except ValueError as error:
        raise OpError(f"a stamp is damaged: {error}", where=op.spec.name, hint="compile it again") from error
    if op.spec.op_type == "Aggregate":
        return _telling(component, method)
    if op.spec.op_type != "Contribute":
        return method
    stamped = shapes[0] if shapes else None
    size = math.prod(stamped) if stamped is not None and all(size > 0 for size in stamped) else None
    component.check_rule(size)
    if size is not None:
        what = f"to join contributions of {size:,} numbers"
        reserve(op, component, partial(component.reserve, size), what)
    return _refusing(component, method, stamped)


def _refusing(
    component: Aggregator, method: Callable[..., object], stamped: StampedShape | None
) -> Callable[..., object]:
    """Returns a `contribute` that holds the layout, and whose typed errors name the peer.

    What the component gives up for it is told, and once that nothing but the first contribution says what the
    layout is.
    """
    decided = stamped is not None

    def contribute(
        ctx: OpContext,
        contribution: Any,
        weight: Any = None,
        peer: Any = None,
        round: Any = None,
        sent: Any = None,
    ) -> object:
        nonlocal decided
        if isinstance(peer, tuple) and len(peer) != 1:
            error = OpError(
                f"peer= is {len(peer)} peers, and a contribution is of one",
                hint="give the one whose it is: peer=r.answer.sender, or peer=send.sender",
            )
            _own_fault(ctx, error)
            raise error
        try:
            if not contribution.size:
                raise ComponentError("it is empty", hint="had the peer nothing to contribute?")
            if sent is not None:
                if contribution.shape != sent.shape:
                    raise _misfit(contribution, shape_text(sent.shape), "the value that was sent", OF_EITHER)
            elif stamped is not None and not fits(contribution.shape, stamped):
                raise _misfit(contribution, shape_text(stamped), "what is asked for", OF_WHAT_CAME)
            result = method(ctx, contribution, weight, peer, round, sent)
            if sent is None and not decided:
                decided = True
                whose, slot = _one_peer(peer) or ctx.execution.source, ctx.op.spec.meta.get(keys.SLOT_KEY, "")
                ctx.runtime.emit(
                    steps.LayoutUndeclared(whose, ctx.target, slot, tuple(contribution.shape), REMEDY)
                )
            return result
        except BBError as error:
            whose = _one_peer(peer) or ctx.execution.source
            raise ContributionRefused(
                f"the contribution{f' of {whose}' if whose else ''} does not count: {error.what}",
                error.where,
                error.hint,
                whose,
                error.what,
            ) from error
        except Exception as error:
            _own_fault(ctx, error)
            raise
        finally:
            tell_given_up(ctx.runtime, ctx.target, component)

    return contribute


def _own_fault(ctx: OpContext, error: BaseException) -> None:
    """Notes that an answer is lost by a fault of this node's, so that its peer is neither blamed nor told.

    Whoever asked this node is told that an op failed, as ever.
    """
    if not ctx.execution.owes:
        ctx.execution.went_wrong(FailureCode.FAULT_HERE, failure_text(error))


def _telling(component: Aggregator, method: Callable[..., object]) -> Callable[..., object]:
    """Returns an `aggregate` behind which it is told who decided the result alone, and who was shortened."""

    def aggregate(ctx: OpContext, *inputs: Any) -> object:
        try:
            return method(ctx, *inputs)
        finally:
            for far in component.take_dominant():
                ctx.runtime.count("contributions.dominant", far.contributions)
                ctx.runtime.emit(steps.ContributionsDominate(ctx.target, *far))
            for clipped in component.take_clipped():
                ctx.runtime.count("contributions.clipped", clipped.contributions)
                if clipped.why:
                    ctx.runtime.emit(steps.ContributionsClipped(ctx.target, *clipped))

    return aggregate


def _misfit(contribution: np.ndarray[Any, Any], wanted: str, whose: str, hint: str) -> ComponentError:
    came = shape_text(contribution.shape)
    return ComponentError(f"it has shape {came}, {whose} has {wanted}", hint=hint)


def _one_peer(peer: Any) -> PeerId | None:
    return peer[0] if isinstance(peer, tuple) and len(peer) == 1 else None
