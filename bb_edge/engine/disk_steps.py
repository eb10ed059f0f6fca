"""Steps about what is on disk: rows of the outbox, records of the journal, states of older versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bb_edge.engine.step import EngineStep
from bb_edge.ir.ids import PeerId
from bb_edge.wire.bodies import NO_BODY, BodyName
from bb_edge.wire.cbor import Buffer
from bb_edge.wire.durable_rows import RowName


@dataclass(frozen=True, slots=True)
class RecordStep(EngineStep):
    """A record of an envelope that `Node.persisted(token)` or `persist_failed` answers."""

    token: int
    peer: PeerId


@dataclass(frozen=True, slots=True)
class PersistOutbox(RecordStep):
    """Write this row of the outbox: nothing that it says is acted upon before that is answered.

    Under `name` it stays until `Node.snapshot_written` names it; a row of the same name takes its place. A
    record may name a body that several share: `body`, under `body_name`, has to be on disk with it, and
    stays as long.

    A row that is `with_snapshot` may be written in the file of the next snapshot, which is wanted in the same
    poll, and answered before that is taken: nothing leaves for it before the snapshot is on disk, and without
    the snapshot it says nothing.

    No row of the outbox is on disk before the `ahead` rows of the journal that the same poll asks for: it may
    be an answer to one of them. One that may go `with_journal` may share their write and sync, behind them.
    """

    record: bytes = field(repr=False)
    body: bytes = field(default=b"", repr=False)
    body_name: BodyName = NO_BODY
    name: int | RowName = 0
    with_snapshot: bool = False
    with_journal: bool = False


@dataclass(frozen=True, slots=True)
class Journal(RecordStep):
    """Write this received envelope to the journal: it is acknowledged, and starts something, only then.

    The record comes in pieces, which stand until that is answered: what is large lies in memory once.

    A snapshot that is taken meanwhile holds it. Once two snapshots are on disk, it must not be written any
    more: what it was might be forgotten, and a replay would deliver it a second time.

    One that is `ahead` has started something already. Nothing else of the poll may leave before it is on
    disk, in a snapshot of after the poll or in the journal; where neither takes it, it is asked for again.

    One that is `patient` waits for others of its kind: it may be written with them, some milliseconds later.
    """

    pieces: Sequence[Buffer] = field(repr=False)
    ahead: bool = False
    patient: bool = False

    @property
    def record(self) -> bytes:
        """The record as one text of bytes."""
        return b"".join(self.pieces)


@dataclass(frozen=True, slots=True)
class SentToNobody(EngineStep):
    """A durable send had nobody to go to, so nothing of it was kept. `port` is the author's name of the send.

    A selector with `known=true` has in view whom the node has heard of once, though they are away. A round
    waits for them; what came from a peer does not, and was acknowledged to it.
    """

    target: str
    port: str
    remedy: str = (
        "have the receiver seen once before anything is sent on, and the selector see whom the node knows"
        " (known=true)"
    )


@dataclass(frozen=True, slots=True)
class RecordsMissing(EngineStep):
    """Durable envelopes that the snapshot names, and that no file of the outbox has: they go to nobody.

    `records` are their ids, by which `bb-edge outbox` listed them. Damage of the folder, never a power cut.
    What was written since the snapshot and is gone as well, nobody can name.
    """

    records: tuple[int, ...]
    remedy: str = "stop the node and put the folder's own outbox back, or send again what they said"


@dataclass(frozen=True, slots=True)
class RecordExpired(EngineStep):
    """A durable envelope that asks nothing is given up: `peer` has not acknowledged it by its deadline.

    `record` is its id, by which `bb-edge outbox` lists it. It may have arrived, and its acknowledgement not.
    """

    peer: PeerId
    record: int


@dataclass(frozen=True, slots=True)
class StateUpgraded(EngineStep):
    """A snapshot of an older schema `version` was restored, which does not tell something that today's does.

    `anew` says what begins anew for that, and what follows. Once per such thing, in the first poll.
    """

    version: int
    anew: str


@dataclass(frozen=True, slots=True)
class StorageRecovered(EngineStep):
    """The disk takes again what it had refused (`StorageFailed`): all of it is written, or no longer needed.

    `failures` is how many writes it had refused, a write of several records counting once; `lasted_ns` the
    time from the first of them to the last. The keeper of a state folder tells it.
    """

    failures: int
    lasted_ns: int
