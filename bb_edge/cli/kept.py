"""The state folder of `bb-edge run --state`: restores the node from it, and keeps the node in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bb_edge.cli.endings import BoardFailure
from bb_edge.cli.render import Log
from bb_edge.engine.snapshot import SnapshotDamagedError, SnapshotError
from bb_edge.engine.steps import Phase
from bb_edge.ir.errors import BBError
from bb_edge.state.errors import StateForeignError
from bb_edge.state.keeper import Keeper, Restored, restore
from bb_edge.state.record_framing import Owner
from bb_edge.state.store import StateStore

if TYPE_CHECKING:
    from bb_edge.config_file import RunConfig
    from bb_edge.engine.snapshot import Identity
    from bb_edge.node import Node
    from bb_edge.transport.driver import Report
    from bb_shims import Board


class StateRefused(BBError):
    """The state folder is of another node, or cannot be read; the message says what to do with it."""


def check_folder(folder: Path, flag: str) -> None:
    """Raises StateRefused where the path exists and is not a folder."""
    if folder.exists() and not folder.is_dir():
        raise StateRefused("it is not a folder", f"{flag} {folder}", "name another one")


def check_writable(folder: Path) -> None:
    """Raises BoardFailure where the folder, or the one that it would be made in, cannot be written to."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise BoardFailure(
            f"{there} cannot be written to", "state", "let the node's user own it, and mount it for writing"
        )


def in_use(error: Exception) -> bool:
    """Whether a folder could not be opened because another process, such as a running node, has it open."""
    return "another storage" in str(error)


def open_kept(
    config: RunConfig,
    board: Board,
    log: Log,
    make: Callable[[bytes | None], Node],
    identity: Identity,
    stack: ExitStack,
) -> tuple[Node, StateStore]:
    """Returns the node, restored from the state folder, and the folder's files; it is closed with `stack`.

    `identity` says who the node is and what it runs: every file of the folder has to be of that.

    Nothing in the folder changes. Raises StateRefused where it does not fit this node, StateError where it
    cannot be read, and the board's StorageError where it cannot be opened.
    """
    from bb_shims import StorageError

    folder = config.state
    assert folder is not None
    storage = board.storage(folder)
    stack.callback(storage.close)
    log("info", f"state in {folder}", free_bytes=storage.free_bytes())
    owner = Owner(identity.peer, identity.program)
    store = StateStore(storage, (StorageError,), config.store_limits(), owner)
    now_ns, wall_ns = board.clock.monotonic_ns(), board.clock.wall_ns()
    try:
        node, restored = restore(store, make, SnapshotDamagedError, now_ns, wall_ns)
    except SnapshotError as error:
        raise StateRefused(
            f"its snapshot: {error.what}",
            str(folder),
            error.hint or "give this node its own folder with --state, or move the files aside to start anew",
        ) from error
    except StateForeignError as error:
        raise StateRefused(error.what, str(folder / error.where), error.hint) from error
    _tell(log, node, restored)
    return node, store


def keeper_of(node: Node, store: StateStore, interval_s: int, report: Report) -> Keeper:
    """What writes the node's state while it runs, with a snapshot every `interval_s` seconds (0: none)."""
    announce = partial(node.fire_lifecycle, Phase.SNAPSHOT) if node.has_phase(Phase.SNAPSHOT) else None
    return Keeper(node, store, interval_ns=interval_s * 1_000_000_000, report=report, announce=announce)


def _tell(log: Log, node: Node, restored: Restored) -> None:
    for note in restored.notes:
        log("error" if note in restored.losses else "warning", note)
    counters = node.counters
    if restored.generation or restored.journal or restored.outbox:
        log(
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
        log("info", "no state yet: a new node")
