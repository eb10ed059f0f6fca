"""Which targets of a program a node is to run."""

from __future__ import annotations

from collections.abc import Sequence

from bb_edge.engine.program.program import Program, Target
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.ir.suggestions import suggestion
from bb_edge.syscalls.results import described

__all__ = ["InstallError", "UnknownTargetError", "check_arguments", "chosen_targets"]


class InstallError(BBError):
    """The program cannot be installed on this node; nothing was kept."""


class UnknownTargetError(InstallError):
    """The program has no such partition."""


def chosen_targets(program: Program, targets: Sequence[str]) -> tuple[Target, ...]:
    """The program's targets of these names: exact ones, else `<target>#<hash>`.

    UnknownTargetError for one that it has not; InstallError for none, one twice, or no list of names.
    """
    if isinstance(targets, str):
        raise InstallError(
            f"targets are a list of names, not the text {targets!r}", "install", f'write ["{targets}"]'
        )
    if not targets:
        raise InstallError("no targets", "install", f"the program has: {', '.join(program.targets)}")
    chosen: dict[str, Target] = {}
    for name in targets:
        if not isinstance(name, str):
            raise InstallError(
                f"targets are a list of names, not of {type(name).__name__}",
                "install",
                f"the program has: {', '.join(program.targets)}",
            )
        found = program.targets.get(name)
        if found is None:
            hashed = [t for t in program.targets if t.startswith(f"{name}#")]
            if len(hashed) > 1:
                raise UnknownTargetError(
                    f"{name!r} is ambiguous", "install", f"say which: {', '.join(hashed)}"
                )
            if not hashed:
                raise UnknownTargetError(
                    f"no target {name!r}",
                    "install",
                    suggestion(name, program.targets, "the program has: "),
                )
            found = program.targets[hashed[0]]
        if found.name in chosen:
            raise InstallError(
                f"target {found.name!r} is named twice",
                "install",
                "name each target once: a node runs it once",
            )
        chosen[found.name] = found
    return tuple(chosen.values())


def check_arguments(peer_id: object, addresses: object, program: object) -> None:
    """InstallError for what is easily taken for a peer, its addresses or a program."""
    for fits, given, wanted, hint in (
        (isinstance(peer_id, PeerId), peer_id, "a PeerId", "PeerId.from_name(…), or of the node's key"),
        (
            isinstance(addresses, Sequence) and not isinstance(addresses, bytes | str),
            addresses,
            "a list of binary multiaddrs",
            "() for none",
        ),
        (
            isinstance(program, Program),
            program,
            "a program",
            "give the bytes of an artifact, or bb_edge.load of them: Path(…).read_bytes()",
        ),
    ):
        if not fits:
            raise InstallError(f"{described(given)} is not {wanted}", "install", hint)
