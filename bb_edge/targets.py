"""Chooses the targets of a program that a node runs, and checks what `install` is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bb_edge.engine.program.program import Program, Target
from bb_edge.engine.run.bound import BoundGraph
from bb_edge.ir.errors import InstallError, SeveralErrors
from bb_edge.ir.ids import PeerId
from bb_edge.ir.suggestions import suggestion
from bb_edge.roles import Component
from bb_edge.roles.contracts import loses
from bb_edge.syscalls.results import described

__all__ = [
    "InstallError",
    "SeveralRefusals",
    "UnknownTargetError",
    "check_arguments",
    "chosen_targets",
    "refuse_forgetful",
]


class SeveralRefusals(SeveralErrors, InstallError):
    """Several slots of the program are refused; `errors` holds one error each."""


class UnknownTargetError(InstallError):
    """The program has no target of this name."""


def chosen_targets(program: Program, targets: Sequence[str]) -> tuple[Target, ...]:
    """Returns the targets of these names; a name also stands for `<name>#<hash>` if that is unique.

    Raises UnknownTargetError for a name that the program does not have, InstallError for an empty list, a
    name that is given twice, and anything that is not a list of names.
    """
    if isinstance(targets, str):
        raise InstallError(
            f"expected a list of target names, got the text {targets!r}", "install", f'write ["{targets}"]'
        )
    if not targets:
        raise InstallError(
            "no targets are named", "install", f"the program has: {', '.join(program.targets)}"
        )
    chosen: dict[str, Target] = {}
    for name in targets:
        if not isinstance(name, str):
            raise InstallError(
                f"expected a list of target names, got one of {type(name).__name__}",
                "install",
                f"the program has: {', '.join(program.targets)}",
            )
        target = program.targets.get(name)
        if target is None:
            hashed = [t for t in program.targets if t.startswith(f"{name}#")]
            if len(hashed) > 1:
                raise UnknownTargetError(
                    f"{name!r} is ambiguous", "install", f"name one of: {', '.join(hashed)}"
                )
            if not hashed:
                raise UnknownTargetError(
                    f"the program has no target {name!r}",
                    "install",
                    suggestion(name, program.targets, "the program has: "),
                )
            target = program.targets[hashed[0]]
        if target.name in chosen:
            raise InstallError(
                f"target {target.name!r} is named twice",
                "install",
                "name each target once: a node runs it once",
            )
        chosen[target.name] = target
    return tuple(chosen.values())


def check_arguments(peer_id: object, addresses: object, program: object) -> None:
    """Raises InstallError for arguments of `install` that have the wrong type."""
    for fits, argument, wanted, hint in (
        (isinstance(peer_id, PeerId), peer_id, "a PeerId", "give PeerId.from_name(…)"),
        (
            isinstance(addresses, Sequence) and not isinstance(addresses, bytes | str),
            addresses,
            "a list of binary multiaddrs",
            "give () for none",
        ),
        (
            isinstance(program, Program),
            program,
            "a program",
            "give the bytes of an artifact, Path(…).read_bytes(), or what bb_edge.load returns",
        ),
    ):
        if not fits:
            raise InstallError(f"expected {wanted}, got {described(argument)}", "install", hint)


def refuse_forgetful(graphs: Iterable[BoundGraph], components: Mapping[str, Component]) -> None:
    """Raises InstallError for a component of a durable target whose state no snapshot would hold.

    `components` are by slot, in the order of their numbers.
    """
    kinds = [(slot, type(component)) for slot, component in components.items()]
    for op in (op for graph in graphs for op in graph.ops if op.component >= 0):
        slot, kind = kinds[op.component]
        if loses(kind, ((op.spec.domain, op.spec.op_type),)):
            raise InstallError(
                f"{op.spec.op_type} changes {kind.__name__}, which has no serialize: a restart of this "
                "durable target would lose that state",
                f"{op.target}, slot {slot!r}",
                "override serialize and restore, or set stateless = True in the class",
            )
