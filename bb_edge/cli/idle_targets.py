"""Targets that nothing would ever start where `bb-edge run` is the host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bb_edge.ir.errors import BBError

if TYPE_CHECKING:
    from bb_edge.engine.program.program import Program, Target


class NothingStarts(BBError):
    """Nothing would ever start any of the targets: the artifact is for `open_model`, not for `run`."""


def what_nothing_starts(targets: Sequence[Target], program: Program, artifact: Path) -> list[str]:
    """Returns a warning per target that nothing starts; raises NothingStarts if that is all of them.

    Such a target waits for an `invoke` by a host, which `bb-edge run` never makes.
    """
    idle = [target.name for target in targets if not _starts(program, target)]
    what = "nothing ever starts it: it has no round, timer, bootstrap or port that peers send to"
    if len(idle) == len(targets):
        raise NothingStarts(
            what,
            f"{artifact.name}, target {', '.join(idle)}",
            f"run it with `bb-edge bench {artifact}`, or call it in Python: "
            f"bb_edge.open_model({str(artifact)!r})",
        )
    return [f"target {name}: {what}" for name in idle]


def _starts(program: Program, target: Target) -> bool:
    from bb_edge.cli.bootstraps import own_bootstraps
    from bb_edge.ir import keys
    from bb_edge.ir.opsets import OpKind

    return (
        target.bootstrap is not None
        or any(op.kind is OpKind.ENTRY for op in program.graphs[target.main].ops)
        or any(b.role == keys.ROLE_PROTOCOL for b in target.bindings.values())
        or bool(own_bootstraps(target))
    )
