"""The state folder of `bb-edge run --state`: restores the node from it, and keeps the node in it."""

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
    """The state folder is of another node, or cannot be read; the message says what to do with it."""


def check_folder(folder: Path, flag: str) -> None:
    """Raises StateRefused where the path exists and is not a folder."""
    if folder.exists() and not folder.is_dir():
        raise StateRefused("it is not a folder", f"{flag} {folder}", "name another one")


def open_kept(
    config: RunConfig,
    folder: Path,
    board: Board,
    output: Output,
    make: Callable[[bytes | None], Node],
    report: Report,
    stack: ExitStack,
) -> tuple[Node, Keeper]:
    """Returns the node, restored from its folder, and its keeper; the folder is closed with `stack`.

    Raises StateRefused where the folder does not fit this node, and the board's StorageError where it cannot
    be opened.
    """
    from bb_shims import StorageError

    check_folder(folder, "--state")
    storage = board.storage(folder)
    stack.callback(storage.close)
    output.log("info", f"state in {folder}", free_bytes=storage.free_bytes())
    store = StateStore(storage, (StorageError,), config.store_limits())
    now_ns, wall_ns = board.clock.monotonic_ns(), board.clock.wall_ns()
    try:
        node, restored = restore(store, make, SnapshotDamagedError, now_ns, wall_ns)
    except SnapshotError as error:
        raise StateRefused(
            f"its snapshot: {error.what}",
            str(folder),
            error.hint or "give this node its own folder with --state, or move the files aside to start anew",
        ) from error
    _tell(output, node, restored)
    interval_ns = config.snapshot_interval_s * 1_000_000_000
    announce = partial(node.fire_lifecycle, Phase.SNAPSHOT) if node.has_phase(Phase.SNAPSHOT) else None
    return node, Keeper(node, store, interval_ns=interval_ns, report=report, announce=announce)


def _tell(output: Output, node: Node, restored: Restored) -> None:
    for note in restored.notes:
        output.log("warning", note)
    counters = node.counters
    if restored.generation or restored.journal or restored.outbox:
        output.log(
            "info",
            "restored",
            generation=restored.generation,
            snapshot_bytes=restored.snapshot_bytes,
            rounds_ended=counters.get("rounds.ended", 0),
            executions=counters.get("executions.active", 0),
            outbox=restored.outbox,
            journal=restored.journal,
        )
    else:
        output.log("info", "no state yet: a new node")
