"""What a component has to say beside its results: told as steps, behind each call of an op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from bb_edge.components.kept_value import KeptValue
from bb_edge.engine import steps
from bb_edge.engine.binding import OpContext
from bb_edge.roles import DataSource, Model

Step = type[steps.DataNoted] | type[steps.ModelNoted]


class Notes(NamedTuple):
    """The list that a component keeps of what is untold, and what tells and empties it."""

    untold: Sequence[object]
    tell: Callable[[OpContext], None]


NO_NOTES = Notes((), lambda _: None)


def kept_notes(component: DataSource | Model, slot: str, step: Step) -> Notes | None:
    """Returns the notes of a component that says where it keeps them; None of one that is to be asked.

    An author's `take_notes` is asked: it may say what the class that it inherits from does not know of.
    """
    untold = component.untold
    if untold is None or not is_shipped(type(component).take_notes):
        return None
    return Notes(untold, partial(tell, component, slot, step))


def tell(component: DataSource | Model, slot: str, step: Step, ctx: OpContext) -> None:
    """Asks a component what there is to say, and tells it."""
    for note in component.take_notes():
        ctx.runtime.emit(step(ctx.target, slot, note))


def begun_anew(component: KeptValue, slot: str) -> Notes:
    """Returns the notes of a value that begins anew behind an adoption: they are counted, too."""

    def tell_anew(ctx: OpContext) -> None:
        for kept, given in component.anew:
            ctx.runtime.count("components.kept_anew")
            ctx.runtime.emit(steps.ValueBeganAnew(ctx.target, slot, kept, given))
        component.anew.clear()

    return Notes(component.anew, tell_anew)


def is_shipped(defined: object) -> bool:
    """Returns whether a class or method is the project's own, and not an author's."""
    return getattr(defined, "__module__", "").startswith(("bb_edge.", "bb_host."))
