"""The doors: what other threads may touch.

`offer_raw`, `notice` and the completion sink only check a bound and store; all decisions are taken in the
next poll, on the engine's thread. Entries (what starts an execution) and answers (what an open execution
waits for) have queues of their own, so that answers never wait behind entries.

A queue is a deque, or a list where few things ever wait, as everywhere in the engine: an empty deque takes
760 bytes, and twenty of them are a tenth of a small node. To append to either, to take from it and to copy
it are single steps for other threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from bb_edge.engine.callbacks import Callbacks
from bb_edge.engine.ledger import IngressFull, Ledger
from bb_edge.engine.net.arrivals import Raw
from bb_edge.engine.plain import Shift, UnsavableError, dump, load
from bb_edge.ir.ids import PeerId
from bb_edge.roles.errors import CompletionLostError

if TYPE_CHECKING:
    from bb_edge.engine.run.straight import Schedule
    from bb_edge.wire.outbox import Cause


@dataclass(slots=True)
class Entry:
    """Something that starts an execution, waiting for a place.

    `fill(execution, *args)` writes its values. `internal` entries (rounds, ticks, bootstraps) are bounded by
    how many ops make them and take no place of the queue. `schedule` may run instead where the entry alone
    waits; its values are the last of `args`. Once a snapshot holds it, it has a `cause`.
    """

    target: str
    fill: Callable[..., None]
    args: tuple[Any, ...] = ()
    number: int | None = None
    size: int = 0
    peer: PeerId | None = None
    expires_ns: int = 0
    internal: bool = False
    schedule: Schedule | None = None
    cause: Cause | None = None


Notice: TypeAlias = tuple[Callable[..., object], tuple[Any, ...]]
"""(act, args): `act(*args)` in the next poll."""

Completion: TypeAlias = tuple[int, object, "BaseException | None"]
"""(token, result, error) of something that was parked."""


@dataclass(eq=False)
class Ingress:
    """The inbound queues of one node. The engine looks at them for work: each stays the same object."""

    ledger: Ledger
    _max_notices: int
    envelopes: deque[Raw] = field(default_factory=deque)
    notices: deque[Notice] = field(default_factory=deque)
    completions: list[Completion] = field(default_factory=list)
    late_completions: list[int] = field(default_factory=list)
    entries: deque[Entry] = field(default_factory=deque)
    _waker: Callable[[], None] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- any thread -----------------------------------------------------------------------------------

    def set_waker(self, waker: Callable[[], None] | None) -> None:
        """`waker()` is called, from whichever thread, when something came that a poll should see."""
        self._waker = waker

    def _wake(self) -> None:
        if self._waker is not None:
            self._waker()

    def offer_raw(self, raw: Raw, fair: bool = True) -> None:
        """Stores an envelope for the next poll; its bytes are charged until what it feeds has ended.

        Raises IngressFull, keeping nothing, when the count or the byte budget is used up, or the peer's share
        of them (unless `fair` is False).
        """
        self.ledger.take_envelope(raw.peer, len(raw.data), fair)
        self.envelopes.append(raw)
        if self._waker is not None:
            self._waker()

    def offer_own(self, own: PeerId) -> Callable[[bytes], bool]:
        """A door for the engine's own envelopes to itself; it says False where there is no place."""

        def offer(data: bytes) -> bool:
            try:
                self.offer_raw(Raw(data, own, None), fair=False)
            except IngressFull:
                return False
            return True

        return offer

    def notice(self, act: Callable[..., object], *args: object) -> None:
        """Has `act(*args)` called in the next poll (presence, notices of the transport).

        IngressFull at `answer_entries`.
        """
        with self._lock:
            if len(self.notices) >= self._max_notices:
                raise IngressFull(
                    f"{len(self.notices)} notices wait already",
                    where="ingress",
                    hint="poll more often, or raise limits.answer_entries",
                )
            self.notices.append((act, args))
        self._wake()

    def offer_invoke(self, entry: Entry) -> None:
        """Queues an entry of the host's. IngressFull at `ingress_entries`."""
        self.ledger.take_invoke()
        self.entries.append(entry)
        if self._waker is not None:
            self._waker()

    def deliver(self, token: int, result: object, error: BaseException | None) -> None:
        """The completion sink: every parked op has its place here."""
        self.completions.append((token, result, error))
        self._wake()

    def late(self, token: int) -> None:
        """The completion sink: somebody else was faster, or the deadline has passed."""
        self.late_completions.append(token)

    # --- the engine's thread --------------------------------------------------------------------------

    def waiting_bytes(self) -> int:
        """How many bytes of envelopes wait."""
        return sum([len(raw.data) for raw in self.envelopes])

    def offer(self, entry: Entry) -> None:
        """Queues an entry. For those that are not internal, the caller has asked the ledger for a place."""
        if not entry.internal:
            self.ledger.take_entry(entry.peer)
        self.entries.append(entry)

    def save(self, callbacks: Callbacks) -> dict[str, Any]:
        """All queues, as plain values; callables by name."""
        return {
            "raw": [raw.save() for raw in list(self.envelopes)],
            "notices": [[callbacks.name_of(act), dump(args)] for act, args in list(self.notices)],
            "entries": [_entry_row(entry, callbacks) for entry in self.entries],
            "completions": [
                [token, _result(result), None if error is None else str(error)]
                for token, result, error in list(self.completions)
            ],
        }

    def restore(self, data: Any, shift: Shift, callbacks: Callbacks) -> None:
        """Fills the queues of a new node with those of a snapshot, and charges them.

        IngressFull where they do not fit.
        """
        for row in data["raw"]:
            self.offer_raw(Raw.restored(row), fair=False)
        for name, plain_args in data["notices"]:
            self.notice(callbacks.get(name), *load(plain_args))
        for row in data["entries"]:
            target, name, plain_args, number, size, plain_peer, expires_ns, internal, cause = row
            peer = load(plain_peer)
            args = callbacks.load(name, plain_args, shift)
            fill: Any = callbacks.get(name)
            if size:
                self.ledger.recharge(peer, size)
            entry = Entry(target, fill, args, number, size, peer, shift.time(expires_ns), internal)
            entry.cause = load(cause)
            self.offer(entry)
        for token, result, error in data["completions"]:
            if error is None and result is not None:
                self.deliver(token, load(result[0]), None)
            else:
                self.deliver(token, None, CompletionLostError(error or "its result could not be kept"))


def _result(result: object) -> Any:
    try:
        return [dump(result)]
    except UnsavableError:
        return None


def _entry_row(entry: Entry, callbacks: Callbacks) -> list[Any]:
    name = callbacks.name_of(entry.fill)
    return [
        entry.target,
        name,
        callbacks.dump(name, entry.args),
        entry.number,
        entry.size,
        dump(entry.peer),
        entry.expires_ns,
        entry.internal,
        dump(entry.cause),
    ]
