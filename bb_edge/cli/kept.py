"""The state folder of `bb-edge run --state`: restores the node from it, and keeps the node in it."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bb_edge.cli.endings import MayPass
from bb_edge.cli.peer_names import PeerNames
from bb_edge.cli.render import Log
from bb_edge.cli.state_federation import FILE, StateRefused, mark, refuse_another
from bb_edge.engine.snapshot import SnapshotDamagedError, SnapshotError
from bb_edge.engine.steps import Phase, StorageFailed
from bb_edge.ir.ids import PeerId
from bb_edge.state import record_framing
from bb_edge.state.errors import StateForeignError, StateReadError, StateWriteError
from bb_edge.state.files import numbers
from bb_edge.state.keeper import Keeper, Restored, key_bytes, restore
from bb_edge.state.limits import OLD_GENERATIONS, StoreLimits
from bb_edge.state.record_framing import Owner
from bb_edge.state.store import StateStore
from bb_edge.state.writer import ThreadWriter
from bb_edge.wire.durable_rows import name_and_peer

if TYPE_CHECKING:
    from bb_edge.engine.snapshot import Identity
    from bb_edge.node import Node
    from bb_edge.run_config import RunConfig
    from bb_edge.transport.driver import Report
    from bb_edge.wire.durable_rows import OutboxName
    from bb_shims import Board


_MAY_PASS = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EINTR)
)
"""Why a folder cannot be made that may be otherwise at the next try; a wrong name or owner stays so."""


def check_folder(folder: Path, flag: str) -> None:
    """Refuses a path that is not a folder, or a folder that cannot be written to or made.

    For one that is not there a folder like it is made for trial: nothing else tells that it can be made.
    Raises StateRefused, or MayPass where a full disk, say, is in the way.
    """
    where = f"{flag} {folder}"
    if os.path.isdir(folder):
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise StateRefused("it cannot be written to", where, _OWN)
        return
    if os.path.exists(folder):
        raise StateRefused("it is not a folder", where, "name another one")
    if os.path.islink(folder):
        raise StateRefused("it is a link that leads nowhere", where, "name a folder")
    try:
        with trial_folder(folder):
            pass
    except OSError as error:
        kind = MayPass if error.errno in _MAY_PASS else StateRefused
        raise kind(f"it cannot be made: {error.strerror}", where, _OWN) from error


_OWN = "name another one, or make it for the node's user"


@contextmanager
def trial_folder(folder: Path) -> Iterator[Path]:
    """A folder like one that is not there, made for trial under a name of its own, and removed at the end.

    Neither the folder nor one above it is made: other nodes may begin below the same new parent then.
    Raises OSError where it cannot be made.
    """
    above = _missing(folder)[-1].parent
    with TemporaryDirectory(prefix=".bb-trial-", dir=above) as trial:
        made = Path(trial, folder.absolute().relative_to(above))
        os.makedirs(made, mode=0o700)
        yield made


def _missing(folder: Path) -> list[Path]:
    """The folder and those above it that are not there, the outermost last."""
    absolute = folder.absolute()
    return [place for place in (absolute, *absolute.parents) if not os.path.lexists(place)]


def in_use(error: Exception) -> bool:
    """Whether a folder could not be opened because another process, such as a running node, has it open."""
    return "another storage" in str(error)


def open_kept(
    folder: Path,
    limits: StoreLimits,
    board: Board,
    log: Log,
    make: Callable[[bytes | None], Node],
    identity: Identity,
    stack: ExitStack,
    adopted: Callable[[], Iterable[tuple[OutboxName, bytes]]],
    federation: str,
    known: Iterable[str],
) -> tuple[Node, StateStore, Mapping[str, int]]:
    """Returns the node, restored from the state folder, the folder's files, closed with `stack`, and the
    counters that the node's snapshot had.

    `limits` are those of the folder. `identity` says who the node is and what it runs: every file of the
    folder has to be of that, and the folder of that `federation`. `known` are names of peers, for the log.

    `adopted` gives the rows that the node has taken over from another folder; see `restore`. Nothing else in
    the folder changes. Raises StateRefused where it does not fit this node, StateError where it cannot be
    read, MayPass where those rows cannot be written, and the board's StorageError where it cannot be opened.
    """
    from bb_shims import StorageError

    made = not os.path.lexists(folder)
    storage = board.storage(folder)
    stack.callback(storage.close)
    if made:
        stack.callback(_remove_empty, folder)  # while it is locked, so that nobody begins in it
    remedy = "run it with the federation that is named there, or give it another folder with --state"
    refuse_another(storage, federation, str(folder), remedy)
    _tell_foreign(log, folder, storage.list())
    free = storage.free_bytes()
    log("info", f"state in {folder}", free_bytes=free)
    warn_of_room(folder, free, limits, log)
    owner = Owner(identity.peer, identity.program)
    store = StateStore(storage, (StorageError,), limits, owner, OLD_GENERATIONS)
    now_ns, wall_ns = board.clock.monotonic_ns(), board.clock.wall_ns()
    try:
        node, restored = restore(store, make, SnapshotDamagedError, now_ns, wall_ns, adopted)
    except SnapshotError as error:
        raise StateRefused(
            f"its snapshot: {error.what}",
            str(folder),
            error.hint or "give this node its own folder with --state, or move the files aside to start anew",
        ) from error
    except StateForeignError as error:
        raise StateRefused(error.what, str(folder / error.where), error.hint) from error
    except StateWriteError as error:
        what = f"what is adopted cannot be written: {error.what}"
        raise MayPass(what, str(folder), error.hint or "make room on the disk") from error
    _tell(log, node, restored, PeerNames(node.peer_meta, known))
    return node, store, restored.counters


def _tell_foreign(log: Log, folder: Path, names: Sequence[str]) -> None:
    """Says of a folder without a state what else is in it: a folder that was named by mistake, as a rule."""
    kinds = (record_framing.SNAPSHOT, record_framing.JOURNAL, record_framing.OUTBOX)
    if not names or FILE in names or any(numbers(names, kind) for kind in kinds):
        return
    shown = ", ".join(f"{name!r:.60}" for name in names[:3]) + (", …" if len(names) > 3 else "")
    what = f"{folder} holds {len(names)} files that are not a node's ({shown}), and no state"
    log("warning", f"{what}: a folder of its own, with --state, keeps the node's files apart")


def warn_of_room(folder: Path, free: int | None, limits: StoreLimits, log: Log) -> None:
    """Warns where fewer bytes are free than the folder may come to hold; None looks how many are."""
    if free is None:
        missing = _missing(folder)
        disk = os.statvfs(missing[-1].parent if missing else folder)
        free = disk.f_bavail * disk.f_frsize
    needs = 2 * (limits.journal_bytes + limits.outbox_bytes + limits.snapshot_bytes)
    if free < needs:
        # What the folder has already counts twice here, on the careful side: it is a warning.
        what = f"{folder} may come to hold {needs} bytes, and {free} are free there"
        why = "a disk that the node's own files have filled frees nothing"
        log("warning", f"{what}: {why}; lower outbox_bytes and the bounds under 'disk'")


def _remove_empty(folder: Path) -> None:
    """Takes back a folder that was made for a node which was refused before it wrote anything."""
    with suppress(OSError):
        folder.rmdir()


def keeper_of(
    node: Node, store: StateStore, config: RunConfig, report: Report, wake: Callable[[], None]
) -> Keeper:
    """What writes the node's state while it runs.

    It takes a snapshot every `snapshot_interval_s` seconds and every `snapshot_rounds` rounds (0: none).
    `wake` brings the next poll, from any thread. The folder says from now on for which federation it is.
    """
    assert config.state is not None
    try:
        mark(config.state, config.federation)
    except OSError as error:
        report(StorageFailed("the folder's federation", error))  # the next start notes it
    announce = partial(node.fire_lifecycle, Phase.SNAPSHOT) if node.has_phase(Phase.SNAPSHOT) else None
    return Keeper(
        node,
        store,
        interval_ns=config.snapshot_interval_s * 1_000_000_000,
        rounds=config.snapshot_rounds,
        rounds_ended=lambda: node.rounds_ended,
        report=report,
        announce=announce,
        still_runs=lambda: node.has_ready,
        writer=ThreadWriter(wake),
    )


def tell_lost(
    log: Log, folder: Path, node: Node, store: StateStore, keeper: Keeper, names: PeerNames
) -> bool:
    """Logs at the end what the folder does not hold though it should. Returns whether there is any."""
    gone = not os.path.isdir(folder)
    lost: Counter[PeerId] = Counter()
    if keeper.failing:
        log(
            "error",
            f"the state folder {folder} is gone: all that this node had kept in it is lost"
            if gone
            else "the last snapshot was not written: what changed since the one before is lost, but for what"
            " is in the outbox and the journal",
        )
        lost.update(node.unkept())
    texts = list[str]()
    if keeper.failing and gone:
        lost.update(node.unkept(lambda _: True))
    else:
        keys = set[bytes]()
        try:
            for text, records in store.removed():
                texts.append(text)
                keys.update(records)
        except StateReadError as error:
            texts.append(f"it is not known whether the files in {folder} are whole: {error}")
        lost.update(node.unkept(lambda name: key_bytes(name) in keys))
    for text in texts:
        log("error", text)
    for peer, count in lost.items():
        log("error", f"{count} durable envelopes are not on the disk, and are lost", peer=names(peer))
    return keeper.failing or bool(texts)


MOST_NAMED = 3
"""Peers that the last line names, those with the most records first."""


def still_waiting(node: Node, names: PeerNames, how: str = "") -> str:
    """What of its outbox a node that stops leaves behind, as the end of a sentence; empty for nothing.

    `how` is how it has to run for that to leave, ` without --until-done`; empty where it does so anyway.
    """
    waiting = Counter(node.unkept(lambda _: True))
    if not waiting:
        return ""
    count, most = waiting.total(), waiting.most_common(MOST_NAMED)
    named = (
        [f"{names(peer)} ({records:,})" for peer, records in most]
        if len(waiting) > 1
        else [names(most[0][0])]
    )
    more = [f"{len(waiting) - MOST_NAMED} more"] if len(waiting) > MOST_NAMED else []
    envelopes, they = (
        ("durable envelope waits", "it leaves") if count == 1 else ("durable envelopes wait", "they leave")
    )
    whom = ", ".join(named + more)
    return f"; {count:,} {envelopes} on disk for {whom}: {they} when this node runs again{how}"


def _discarded(rows: tuple[bytes, ...]) -> dict[PeerId, list[str]]:
    """The ids of dropped records, by the peers that they were for."""
    found: dict[PeerId, list[str]] = {}
    for row in rows:
        name, peer = name_and_peer(row)
        found.setdefault(peer, []).append(name)
    return found


def _tell(log: Log, node: Node, restored: Restored, names: PeerNames) -> None:
    for note in restored.notes:
        log("error" if note in restored.losses else "warning", names.in_text(note))
    for peer, ids in _discarded(restored.discarded).items():
        log("warning", "dropped by bb-edge outbox: it is never sent", peer=names(peer), records=ids)
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
    elif node.origin is None:
        log("info", "no state yet: a new node")
