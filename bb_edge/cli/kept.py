"""`bb-edge run --state`: the node's folder: opened, restored from, and written to while the node runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bb_edge.cli.render import Output
from bb_edge.engine.snapshot import SnapshotDamagedError, SnapshotError
from bb_edge.engine.steps import Phase
from bb_edge.ir.errors import BBError
from bb_edge.state.keeper import Keeper, Restored, restore
from bb_edge.state.store import StateStore

if TYPE_CHECKING:
    from bb_edge.config_file import RunConfig
    from bb_edge.node import Node
    from bb_edge.transport.driver import Report
    from bb_shims import Board


class StateRefused(BBError):
    """The state folder belongs to somebody else, or cannot be read: says what to do with it."""


def check_folder(folder: Path, flag: str) -> None:
    """Refuses what is there and is no folder."""
    if folder.exists() and not folder.is_dir():
        raise StateRefused("it is there, and no folder", f"{flag} {folder}", "name another one")


def open_kept(
    config: RunConfig,
    folder: Path,
    board: Board,
    output: Output,
    make: Callable[[bytes | None], Node],
    report: Report,
    stack: ExitStack,
) -> tuple[Node, Keeper]:
    """The node, restored from its folder, and who keeps it there; the folder closes with `stack`.

    StateRefused where the folder is no use to this node; the board's StorageError where it cannot be opened.
    """
    from bb_shims import StorageError

    check_folder(folder, "--state")
    storage = board.storage(folder)
    stack.callback(storage.close)
    output.log("info", f"state in {folder}", free_bytes=storage.free_bytes())
    store = StateStore(storage, (StorageError,), config.store_limits())
    now_ns, wall_ns = board.clock.monotonic_ns(), board.clock.wall_ns()
    try:
        node, found = restore(store, make, SnapshotDamagedError, now_ns, wall_ns)
    except SnapshotError as error:
        raise StateRefused(
            f"the snapshot there: {error.what}",
            str(folder),
            error.hint or "give this node its own folder with --state, or move the files aside to start anew",
        ) from error
    _tell(output, node, found)
    interval_ns = config.snapshot_interval_s * 1_000_000_000
    announce = partial(node.fire_lifecycle, Phase.SNAPSHOT) if node.has_phase(Phase.SNAPSHOT) else None
    return node, Keeper(node, store, interval_ns=interval_ns, report=report, announce=announce)


def _tell(output: Output, node: Node, found: Restored) -> None:
    for note in found.notes:
        output.log("warning", note)
    counters = node.counters
    if found.generation or found.journal or found.outbox:
        output.log(
            "info",
            "restored",
            generation=found.generation,
            snapshot_bytes=found.snapshot_bytes,
            rounds_ended=counters.get("rounds.ended", 0),
            executions=counters.get("executions.active", 0),
            outbox=found.outbox,
            journal=found.journal,
        )
    else:
        output.log("info", "no state yet: a new node")
