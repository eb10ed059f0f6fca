"""A warning about models that are scored where nothing trains their personal parameters.

What is personal is never sent: each class of devices that holds the model has a copy of its own, and on one
that trains none of it the copy is what was compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bb_edge.ir import keys
from bb_host.errors import source
from bb_host.ir.construction import config_of
from bb_host.ir.program import Slot, Subgraph
from bb_host.passes.analysis.slot_table import TargetSlots
from bb_host.passes.one_pass import Stats

_SCORING = frozenset(("Forward", "ForwardKeyed", "Evaluate"))
_TRAINING = frozenset(("Step", "Train"))
_NAMED = 3


def warn_of_personal(
    targets: Sequence[TargetSlots], resolved: Mapping[tuple[str, str], Mapping[str, Slot]], stats: Stats
) -> None:
    """Warns of each model that a target runs and does not train, where some parameters are personal.

    `resolved` are the slots of each partition main, by its key.
    """
    for target in targets:
        for name, slot in resolved[target.main.key].items():
            personal = _personal(slot) if slot.role == keys.ROLE_MODEL else ()
            ops = target.ops.get(name, ()) if personal else ()
            scoring = next((op for op in ops if op.op_type in _SCORING), None)
            if scoring is None or any(op.op_type in _TRAINING for op in ops):
                continue
            more = f" and {len(personal) - _NAMED} more" if len(personal) > _NAMED else ""
            named = ", ".join(map(repr, personal[:_NAMED])) + more
            stats.warn(
                "personal-untrained",
                f"slot {name!r} on {target.main.name}: {scoring.op_type} reads {named}, which are personal"
                f" and which {target.main.name} never trains: they are as they were compiled",
                source(scoring),
                "run the model where it is trained, or send what it needs: take those names out of personal",
            )


def _personal(slot: Slot) -> tuple[str, ...]:
    """The parameters that each node has for itself: the first tensors, and the last statistics."""
    state = slot.state
    if not isinstance(state, Subgraph) or not state.initializers:
        return ()
    config, names = config_of(state), tuple(state.initializers)
    first, last = (config.get(key, 0) for key in ("personal_tensors", "personal_statistics"))
    if not isinstance(first, int) or not isinstance(last, int):
        return ()
    return (*names[:first], *names[len(names) - last :])
