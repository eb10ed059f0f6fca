"""`--adopt OLD`: what a node takes from the state folder of another program, and how that is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bb_edge.adoption import Former, Row
from bb_edge.cli.endings import MayPass
from bb_edge.cli.kept_folder import ReadOnly, newest
from bb_edge.cli.render import Log
from bb_edge.cli.state_federation import StateRefused, refuse_another
from bb_edge.engine.snapshot import SnapshotDamagedError, SnapshotError
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.state.errors import StateError
from bb_edge.wire.outbox import OutboxError

if TYPE_CHECKING:
    from bb_edge.node import Node
    from bb_edge.run_config import RunConfig

_ROW_BYTES = 64
"""At most what a row has on disk beside its content: its key, its length and a checksum."""
FINISH = "run the old program with this folder once more until it ends or SIGTERM stops it, then try again"


def former_at(folder: Path, config: RunConfig, wall_ns: int, log: Log, trial: bool = False) -> Former:
    """The node whose state is in a folder, which is only read.

    With `trial` a node may still run in it. Raises StateRefused where the folder is of another peer than
    `config` names, holds nothing, or holds what adopting it now would lose; MayPass where a node runs in it.
    """
    where = f"--adopt {folder}"
    if not folder.is_dir():
        raise StateRefused("there is no such folder", where, "name the old program's --state folder")
    _check_unused(folder, where, log, trial)
    remedy = (
        "name that federation with --federation, or adopt the state of a node of this one; bb-edge export"
        " takes parameters out of any other"
    )
    try:
        refuse_another(ReadOnly(folder), config.federation, where, remedy)
        found = newest(folder, lambda body: body)
        former = None if found is None else Former(found.identity, found.body, found.opened.outbox, wall_ns)
    except OutboxError as error:
        raise StateRefused(f"its outbox cannot be read: {error.what}", where, error.hint) from error
    except (SnapshotError, StateError, OSError) as error:
        what = error.what if isinstance(error, BBError) else str(error)
        hint = (
            error.hint if isinstance(error, BBError) and not isinstance(error, SnapshotDamagedError) else ""
        )
        raise StateRefused(
            f"it cannot be read: {what}", where, hint or "leave the flag out to start anew"
        ) from error
    if found is None or former is None:
        raise StateRefused(
            "it holds no snapshot", where, "name the old program's --state folder; or leave the flag out"
        )
    for note in found.opened.notes:
        log("error" if note in found.opened.losses else "warning", f"{folder}: {note}")
    own = PeerId.from_name(config.peer) if config.peer else former.peer
    if former.peer != own:
        raise StateRefused(
            f"it is the folder of peer {former.peer}, this is {config.peer} ({own})",
            where,
            "adopt the state of the same peer",
        )
    journal = len(found.opened.journal) + former.unprocessed
    if journal:
        raise StateRefused(
            f"its journal holds {journal} envelopes that were acknowledged and that no snapshot has in it:"
            " they would be lost",
            where,
            FINISH,
        )
    former.generation = found.opened.generation
    former.drops_outbox = config.adopt_without_outbox
    log(
        "info",
        f"adopting from {folder}",
        module=former.identity.module,
        targets=",".join(former.identity.targets),
        generation=found.opened.generation,
    )
    return former


def _check_unused(folder: Path, where: str, log: Log, trial: bool) -> None:
    from bb_shims import folder_in_use

    try:
        running = folder_in_use(folder)
    except OSError as error:
        raise StateRefused(f"it cannot be read: {error.strerror}", where, "look at its owner") from error
    if running and not trial:
        raise MayPass("a node runs in it", where, "stop the old program; it writes its last snapshot then")
    if running:
        log("warning", f"a running node has {folder} open: stop it before this one starts")


def check_room(former: Former, folder: Path, config: RunConfig) -> None:
    """Raises StateRefused where the records that come over are more than the new outbox may hold."""
    size = sum(len(row) + _ROW_BYTES for _, row in former.outbox)
    room = config.store_limits().outbox_bytes
    if size > room:
        raise StateRefused(
            f"the records that come over have {size} bytes, and the outbox may have {room}",
            f"--adopt {folder}",
            f"raise disk.outbox_bytes to {2 * size}, or drop some of them with bb-edge outbox --drop",
        )


def adopting(former: Former, folder: Path, make: Callable[[], Node], log: Log) -> Node:
    """Makes the node that adopts, and logs a line per row. StateRefused where parts of OLD cannot be read."""
    try:
        node = make()
    except SnapshotError as error:
        raise StateRefused(
            f"it cannot be read: {error.what}", f"--adopt {folder}", "leave the flag out to start anew"
        ) from error
    for row in former.rows:
        level, word = ("warning", "not adopted") if row.why else ("info", "adopted")
        more = {"slot": row.name, "type": row.type_name, "what": row.what, "why": row.why}
        given = {name: value for name, value in more.items() if value}
        log(level, word, kind=f"{word} {row.name} {row.what}", **given)
    return node


def check_origin(node: Node, folder: Path, log: Log) -> None:
    """Tells that a node goes on with its own snapshot.

    Raises StateRefused where that was not made by adopting the program in `folder`. A folder that is gone, or
    cannot be read any more, is not needed for that.
    """
    where = f"--adopt {folder}"
    if node.origin is None:
        raise StateRefused(
            "this node's own state folder holds a snapshot already, and it was not made by adopting another",
            where,
            "leave the flag out to go on with it; or name an empty folder with --state to begin from OLD",
        )
    module, program, generation, rounds = node.origin
    there = _program_in(folder)
    if there is not None and there != program:
        raise StateRefused(
            f"this node has adopted another program's state: {module}, state {program.hex()[:16]}…, not"
            f" {there.hex()[:16]}… (bb-edge inspect shows that of an artifact)",
            where,
            "leave the flag out to go on; or name an empty folder with --state to begin from OLD",
        )
    log("info", f"{folder} was adopted before: the node goes on with its own state", module=module)
    now = _moved_on(folder, generation) if there is not None else None
    if now is not None:
        log(
            "warning",
            f"{folder} has moved on since it was adopted: it is at generation {now[0]} after {now[1]} rounds,"
            f" what was adopted is generation {generation} after {rounds} rounds. What it has learned since"
            " is not here, and this node goes on without it: to begin from it, name an empty folder with"
            " --state; what this node has learned itself stays behind then. Nor does this node send what"
            " waits in its outbox: bb-edge outbox --state lists that",
            module=module,
        )


def _moved_on(folder: Path, adopted: int) -> tuple[int, int] | None:
    """Generation and rounds of a folder that has a newer snapshot than the one that was adopted; else None.

    None as well where that one is not known, or the folder cannot be read any more: it is not needed.
    """
    from bb_edge.state.files import numbers
    from bb_edge.state.record_framing import SNAPSHOT

    try:
        names = [entry.name for entry in folder.iterdir()]
        if not adopted or max(numbers(names, SNAPSHOT), default=0) <= adopted:
            return None
        found = newest(folder, lambda body: int(body["core"]["counters"].get("rounds.ended", 0)))
    except (SnapshotError, StateError, OSError, LookupError, TypeError, ValueError):
        return None
    if found is None or found.opened.generation <= adopted:
        return None
    return found.opened.generation, found.read


def _program_in(folder: Path) -> bytes | None:
    """The program of the first file of a state folder that names one; None if no file does."""
    from bb_edge.input_files import FileRefused, open_regular
    from bb_edge.state.files import numbers
    from bb_edge.state.record_framing import JOURNAL, owner_at

    try:
        names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        for number in numbers(names, JOURNAL):
            with open_regular(folder / f"journal-{number}") as file:
                owner = owner_at(file.read(1024), JOURNAL, number)
            if owner is not None:
                return owner.program
    except (FileRefused, OSError, StateError):
        pass
    return None


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as lines for people: taken or not, slot, what and why."""
    width = max((len(row.name) for row in rows), default=0)
    return [
        f"{'not adopted' if row.why else 'adopted':11}  {row.name:{width}}  {row.what}"
        + (f": {row.why}" if row.why else "")
        for row in rows
    ]


def as_record(former: Former) -> dict[str, object]:
    """The same for JSON."""
    return {
        "module": former.identity.module,
        "targets": list(former.identity.targets),
        "rows": [row._asdict() for row in former.rows],
    }
