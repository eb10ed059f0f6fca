"""The verb `bb-edge outbox`: what a stopped node still has to send durably, and how to drop some of it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bb_edge.cli.arguments import file_name
from bb_edge.cli.endings import Exit, MayPass
from bb_edge.cli.peer_names import PeerNames
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId, PeerIdError

if TYPE_CHECKING:
    from bb_edge.state.store import StateStore
    from bb_edge.wire.durable_rows import Flow, Numbers, Rows
    from bb_edge.wire.outbox import OutboxRecord

COLUMNS = ("id", "what", "bytes", "written", "expires", "peer")
UNKNOWN, NEVER = "unknown", "never"
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class OutboxRefused(BBError):
    """The state folder cannot be read, or what is to be dropped cannot be dropped."""


class Kept(NamedTuple):
    """A record that is not known to be acknowledged, and the key of its row."""

    id: str
    key: bytes
    record: OutboxRecord


class Folder(NamedTuple):
    """What a state folder has to send: `names` tells peers' names, `journal` inputs that will run again.

    `flows` and `given` tell which numbers were given to records, besides what their own rows tell; `missing`
    are the ids of records that the snapshot names, and of which there is too little to be sent. Records from
    `next_id` on are newer than the snapshot.
    """

    kept: tuple[Kept, ...]
    flows: Mapping[PeerId, Flow]
    given: Sequence[Numbers]
    names: PeerNames
    journal: int
    notes: tuple[str, ...]
    missing: tuple[int, ...]
    next_id: int


def add_parser(verbs: Any) -> None:
    p: argparse.ArgumentParser = verbs.add_parser(
        "outbox",
        help="list what a node still has to send durably, and drop some of it",
        description="Reads the state folder of `bb-edge run --state`. What is listed is not known to be"
        " acknowledged by the last snapshot. --id, --peer and --older choose among it; where several are"
        " given, all must fit. With --drop a stopped node forgets what is chosen: it is never sent again.",
    )
    p.add_argument(
        "--state", type=file_name, required=True, metavar="FOLDER", help="the node's folder, or a copy"
    )
    p.add_argument("--id", action="append", default=[], metavar="ID", help="a record (repeatable)")
    p.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="PEER",
        help="what is for a peer, by name or id",
    )
    p.add_argument(
        "--older", type=_age, metavar="AGE", help="what was written longer ago: 90s, 15m, 12h or 30d"
    )
    p.add_argument("--drop", action="store_true", help="forget what is chosen; without --id it needs --yes")
    p.add_argument("--yes", action="store_true", help="with --drop: do it, instead of listing what")
    p.add_argument("--json", action="store_true")
    p.set_defaults(run=run, usage_error=p.error)


def _age(text: str) -> int:
    """Seconds of an age such as 12h."""
    number, unit = text[:-1], text[-1:]
    if not number.isascii() or not number.isdecimal() or unit not in UNITS or len(number) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age: write 90s, 15m, 12h or 30d")
    return int(number) * UNITS[unit]


def run(arguments: argparse.Namespace) -> int:
    """Lists what is chosen, or drops it."""
    chooses = bool(arguments.id or arguments.peer or arguments.older is not None)
    if arguments.drop and not chooses:
        arguments.usage_error("--drop says what to forget with --id, --peer or --older")
    if arguments.yes and not arguments.drop:
        arguments.usage_error("--yes says nothing without --drop")
    if not all((*arguments.id, *arguments.peer)):
        arguments.usage_error("an empty text names no record and no peer")
    does = arguments.drop and (bool(arguments.id) or arguments.yes)
    now_s = time.time()
    with ExitStack() as stack:
        store = _locked(arguments.state, stack) if arguments.drop else _read_only(arguments.state)
        folder = _look(store, str(arguments.state))
        for note in folder.notes:
            print(f"bb-edge: warning: {arguments.state}: {note}", file=sys.stderr)
        if folder.missing:
            ids = ", ".join(map(str, folder.missing))
            what = "are lost: the snapshot names them, and no file of the outbox has them whole"
            print(f"bb-edge: warning: {arguments.state}: records {ids} {what}", file=sys.stderr)
        chosen = _chosen(folder, arguments, now_s)
        if does:
            _drop(store, folder, chosen, str(arguments.state))
    records = [_record(kept, folder.names) for kept in chosen]
    bodies = {kept.record.body_name: len(kept.record.body) for kept in chosen}  # each is there once
    size = sum(len(kept.record.encoded) for kept in chosen) + sum(bodies.values())
    if arguments.json:
        print(json.dumps({"dropped": bool(does), "bytes": size, "records": records}))
        return Exit.DONE
    for line in _table(records):
        print(line)
    what = f"{len(chosen)} records, {size} bytes"
    if arguments.drop:
        print(f"dropped {what}" if does else f"would drop {what}; --yes drops them")
    else:
        print(what if chooses or not chosen else f"{what}; --drop with --id, --peer or --older forgets some")
    return Exit.DONE


# --- reading ------------------------------------------------------------------------------------------------


def _read_only(folder: Path) -> StateStore:
    """The folder's files, whether a node runs in it or not."""
    from bb_edge.cli.kept_folder import ReadOnly
    from bb_edge.state.store import StateStore
    from bb_shims import folder_in_use

    _check(folder)
    try:
        if folder_in_use(folder):
            print(
                f"bb-edge: warning: a node runs in {folder}: what is listed changes while it is read",
                file=sys.stderr,
            )
    except OSError as error:
        raise OutboxRefused(
            f"it cannot be read: {error.strerror}", str(folder), "look at its owner"
        ) from error
    return StateStore(ReadOnly(folder), (OSError,))


def _locked(folder: Path, stack: ExitStack) -> StateStore:
    """The folder's files, which no node can open until `stack` is left. MayPass where one has them open."""
    from bb_edge.cli.kept import in_use
    from bb_edge.state.store import StateStore
    from bb_shims import StorageError, detect

    _check(folder)
    try:
        storage = detect().storage(folder)
    except StorageError as error:
        if in_use(error):
            stop = "stop it first (systemctl stop, or SIGTERM); it writes its last snapshot then"
            raise MayPass("a node runs in it", str(folder), stop) from error
        raise OutboxRefused(f"it cannot be opened: {error}", str(folder), "look at its owner") from error
    stack.callback(storage.close)
    return StateStore(storage, (StorageError,))


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise OutboxRefused("there is no such folder", str(folder), "name the folder of bb-edge run --state")


def _look(store: StateStore, where: str) -> Folder:
    """Reads what a folder has to send. StateError, SnapshotError, or OutboxRefused for wrong rows."""
    from bb_edge.cli.kept_folder import newest_in
    from bb_edge.wire import durable_rows
    from bb_edge.wire.durable_saved import Saved
    from bb_edge.wire.outbox import OutboxError

    found = newest_in(store, lambda body: body)
    body = {} if found is None else found.body
    opened = store.open() if found is None else found.opened
    if found is None and not opened.outbox and not opened.journal:
        raise OutboxRefused("it holds no state of a node", where, "name the folder of bb-edge run --state")
    try:
        saved = Saved.of(body.get("outbound", {}).get("flows", ()))
        rows = saved.rows(opened.outbox)
    except OutboxError as error:
        raise OutboxRefused(f"its outbox cannot be read: {error.what}", where, error.hint) from error
    held = _held(body, rows)
    missing = durable_rows.missed(rows.missing(saved.live, held), body.get("outbound", {}).get("over"))
    names, journal = _names(body), len(opened.journal)
    kept = _kept(rows, held)
    return Folder(kept, saved.flows, rows.given, names, journal, opened.notes, missing, saved.next_id)


def _held(body: dict[str, Any], rows: Rows) -> dict[int, OutboxRecord]:
    """The records that the snapshot alone has: the disk took no row of them."""
    from bb_edge.engine.plain import Shift
    from bb_edge.wire.outbox import OutboxRecord

    found, bodies = {}, Shift(0, body.get("bodies", ()))
    for number, row, place, written_s in body.get("outbound", {}).get("unwritten", ()):
        record = replace(OutboxRecord.from_bytes(row), written_s=written_s)
        if rows.lack(number, record):
            found[number] = record.with_body(bodies.body(place))
    return found


def _kept(rows: Rows, held: Mapping[int, OutboxRecord]) -> tuple[Kept, ...]:
    from bb_edge.state.keeper import key_bytes

    new = [
        Kept(str(number), key_bytes(number), record)
        for number, record in sorted({**rows.records, **held}.items())
        if number not in rows.settled
    ]
    old = [
        Kept(f"{key.peer}:{key.epoch}:{key.seq}", key_bytes(key), record)
        for record in rows.older
        for key in (record.key,)
    ]
    return (*old, *new)


def _names(body: dict[str, Any]) -> PeerNames:
    """The names that the peers' presences told, as the snapshot has them."""
    from bb_edge.wire.presence import decode_presence

    told = {PeerId.from_bytes(raw): data for raw, data, *_ in body.get("neighbours", {}).get("peers", ())}
    return PeerNames(lambda peer: decode_presence(told[peer]).meta if peer in told else {})


def _chosen(folder: Folder, arguments: argparse.Namespace, now_s: float) -> list[Kept]:
    """What fits all that is given. OutboxRefused for an id or peer of which there is nothing."""
    ids = {kept.id for kept in folder.kept}
    for text in arguments.id:
        if text not in ids:
            raise OutboxRefused(f"no record {text}", "--id", "give an id that bb-edge outbox lists")
    peers = [_peer(text) for text in arguments.peer]
    for text, peer in zip(arguments.peer, peers, strict=True):
        if all(kept.record.key.peer != peer for kept in folder.kept):
            raise OutboxRefused(f"nothing is for {text}", "--peer", "name a peer that bb-edge outbox lists")
    untold = [kept for kept in folder.kept if not kept.record.written_s]
    if arguments.older is not None and untold:
        print(
            f"bb-edge: warning: {len(untold)} records do not say when they were written: choose them by"
            " --id or --peer",
            file=sys.stderr,
        )
    return [
        kept
        for kept in folder.kept
        if (not arguments.id or kept.id in arguments.id)
        and (not peers or kept.record.key.peer in peers)
        and (arguments.older is None or 0 < kept.record.written_s < now_s - arguments.older)
    ]


def _peer(text: str) -> PeerId:
    try:
        return PeerId.from_text(text)
    except PeerIdError:
        return PeerId.from_name(text)


def _drop(store: StateStore, folder: Folder, chosen: Sequence[Kept], where: str) -> None:
    """Drops them for good. OutboxRefused where the node would send them once more."""
    from bb_edge.state.keeper import key_bytes
    from bb_edge.wire.durable_rows import keeping, over

    caused = [kept for kept in chosen if kept.record.cause is not None]
    newer = [kept for kept in caused if kept.id.isdecimal() and int(kept.id) >= folder.next_id]
    if again := caused if folder.journal else newer:
        what = (
            f"{folder.journal} inputs in its journal" if folder.journal else "rounds since its last snapshot"
        )
        raise OutboxRefused(
            f"the node was not stopped in order: {what} run again at its next start, and may send"
            f" {len(again)} of these anew",
            where,
            "start the node once and stop it with SIGTERM, then drop them",
        )
    numbers = keeping([kept.record for kept in chosen], folder.given, folder.flows)
    numbers += over((int(kept.id), kept.record) for kept in chosen if kept.id.isdecimal())
    store.discard([kept.key for kept in chosen], [(key_bytes(row.name), row.to_bytes()) for row in numbers])


# --- printing -----------------------------------------------------------------------------------------------


def _record(kept: Kept, names: PeerNames) -> dict[str, object]:
    """A record in values that JSON has; None for what is not told."""
    record = kept.record
    return {
        "id": kept.id,
        "peer": str(record.key.peer),
        "to": names(record.key.peer),
        "what": _what(record),
        "bytes": len(record.body) + len(record.encoded),
        "written": _utc(record.written_s),
        "expires": _utc(record.expires_wall_ns // 1_000_000_000),
    }


def _what(record: OutboxRecord) -> str:
    from bb_edge.wire import envelope
    from bb_edge.wire.caps import HOST_CAPS

    try:
        kind = envelope.decode(record.body + record.encoded, HOST_CAPS).kind
    except BBError:
        return UNKNOWN
    return {envelope.NONE: "send", envelope.REQUEST: "request", envelope.RESPONSE: "reply"}.get(kind, UNKNOWN)


def _utc(seconds: int) -> str | None:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)) if seconds else None


def _table(records: Sequence[dict[str, object]]) -> list[str]:
    from bb_edge.cli.render import in_columns

    rows = [
        (
            str(record["id"]),
            str(record["what"]),
            str(record["bytes"]),
            str(record["written"] or UNKNOWN),
            str(record["expires"] or NEVER),
            str(record["to"]),
        )
        for record in records
    ]
    return in_columns(COLUMNS, rows) if rows else []
