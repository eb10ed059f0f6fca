"""What tests ask of the compiler's passes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bb_host.passes.one_pass import Pass, Promise
from bb_host.passes.pipeline import CANONICAL_PASSES, PRE_PASSES, STAMP, ProgramPass


def pass_named(name: str) -> ProgramPass:
    """The pass of that name."""
    (found,) = (one for one in (*PRE_PASSES, *CANONICAL_PASSES, STAMP) if one.name == name)
    return found


def unmet(passes: Iterable[Pass[Any, Any]], given: Iterable[Promise] = ()) -> dict[str, set[Promise]]:
    """What passes of a list need and none before them gives, by name; empty for a list in a sound order."""
    found: dict[str, set[Promise]] = {}
    held = set(given)
    for one in passes:
        missing = set(one.needs) - held
        if missing:
            found[one.name] = missing
        held.update(one.gives)
    return found
