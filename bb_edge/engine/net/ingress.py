"""The doors: what other threads may touch (semantics §3, §4, §6).

`offer_raw`, `notice` and the completion sink only check a bound and store; all decisions are taken in the
next
poll, on the engine's thread. Entries (what starts an execution) and answers (what an open execution waits
for)
have queues of their own, so that answers never wait behind entries.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId

if TYPE_CHECKING:
    from bb_edge.engine.run.direct import Direct


class IngressFull(BBError):
    """The newcomer found no place;

    nothing was kept of it. Names the limit, what is in use, and what was asked.
    """


@dataclass(slots=True)
class Entry:
    """Something that starts an execution, waiting for a place.

    `fill(execution, *args)` writes its values. `internal` entries (rounds, ticks, bootstraps) are bounded by
    how many ops make them and take no place of the queue. `direct` may run instead where it alone waits; its
    values are the last of `args`.
    """

    target: str
    fill: Callable[..., None]
    args: tuple[Any, ...] = ()
    number: int | None = None
    size: int = 0
    peer: PeerId | None = None
    expires_ns: int = 0
    internal: bool = False
    direct: Direct | None = None


@dataclass(frozen=True, slots=True)
class Raw:
    """An inbound envelope as it came."""

    data: bytes
    peer: PeerId
    observed: bytes | None


class Notice(NamedTuple):
    """`act(*args)` in the next poll."""

    act: Callable[..., object]
    args: tuple[Any, ...]


FAIR_SHARE = 7
"""A peer may hold this many times what is free: 7/8 of a queue alone, 7/15 each where there are two."""


class Shares:
    """How much of a bounded store each peer holds; under the lock of whoever owns the store.

    A fixed share per peer would waste most of a queue, none at all would leave it to whoever sends fastest.
    So the share follows what is free (the dynamic thresholds of shared-memory switches): the fuller the
    store, the less a greedy peer may add, and one that holds little finds a place.
    """

    __slots__ = ("held", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.held: dict[PeerId, int] = {}

    def refuses(self, peer: PeerId | None, amount: int) -> str:
        """Why the newcomer gets no place; "" where it gets one."""
        free = self.limit - self.used
        if amount > free:
            return "full"
        if peer is not None and self.held.get(peer, 0) >= FAIR_SHARE * free:
            return "share"
        return ""

    def take(self, peer: PeerId | None, amount: int) -> None:
        self.used += amount
        if peer is not None and amount:
            self.held[peer] = self.held.get(peer, 0) + amount

    def give_back(self, peer: PeerId | None, amount: int) -> None:
        self.used -= amount
        if peer is not None:
            left = self.held.get(peer, 0) - amount
            if left > 0:
                self.held[peer] = left
            else:
                self.held.pop(peer, None)


class Ingress:
    """The inbound queues of one node."""

    def __init__(self, max_entries: int, max_bytes: int, max_answers: int) -> None:
        self._lock = threading.Lock()
        self._max_entries = max_entries
        self._max_answers = max_answers
        self._raw: deque[Raw] = deque()
        self._notices: deque[Notice] = deque()
        self._completions: deque[tuple[int, object, BaseException | None]] = deque()
        self._late = 0
        self._bytes = Shares(max_bytes)
        self._places = Shares(max_entries + max_answers)
        self._waker: Callable[[], None] | None = None
        self.entries: deque[Entry] = deque()
        self._external = Shares(max_entries)

    # --- any thread -----------------------------------------------------------------------------------

    def set_waker(self, waker: Callable[[], None] | None) -> None:
        """`waker()` is called, from whichever thread, when something came that a poll should see."""
        self._waker = waker

    def _wake(self) -> None:
        if self._waker is not None:
            self._waker()

    @property
    def bytes_in_use(self) -> int:
        return self._bytes.used

    def in_use(self) -> dict[str, Any]:
        """Bytes that are charged and places that are taken, in all and by peer, as plain data."""
        with self._lock:
            return {
                "bytes": self._bytes.used,
                "bytes_by_peer": {str(peer): held for peer, held in self._bytes.held.items()},
                "places": self._external.used,
                "places_by_peer": {str(peer): held for peer, held in self._external.held.items()},
            }

    def charge(self, size: int) -> bool:
        """Takes bytes of the budget for nobody in particular; False where it has not got them."""
        with self._lock:
            if self._bytes.refuses(None, size):
                return False
            self._bytes.take(None, size)
            return True

    def charge_to(self, peer: PeerId, size: int) -> bool:
        """Takes bytes of the budget for a peer, whatever its share; False where it has not got them."""
        with self._lock:
            if self._bytes.refuses(None, size):
                return False
            self._bytes.take(peer, size)
            return True

    def recharge(self, peer: PeerId | None, size: int) -> None:
        """Takes bytes that were charged before a restart, whatever the budget is now."""
        with self._lock:
            self._bytes.take(peer, size)

    def release(self, peer: PeerId | None, size: int) -> None:
        with self._lock:
            self._bytes.give_back(peer, size)

    def offer_raw(self, raw: Raw, fair: bool = True) -> None:
        """Stores an envelope for the next poll; its bytes are charged until what it feeds has ended.

        Raises IngressFull, keeping nothing, when the count or the byte budget is used up, or the peer's share
        of them (unless `fair` is False).
        """
        size, peer = len(raw.data), raw.peer
        asking = peer if fair else None
        with self._lock:
            if why := self._places.refuses(asking, 1):
                raise IngressFull(
                    f"{self._places.used} envelopes wait already"
                    + (f", {self._places.held[peer]} of them of this peer" if why == "share" else ""),
                    where=f"ingress, from {peer.short()}",
                    hint="poll more often, or raise ingress_entries",
                )
            if why := self._bytes.refuses(asking, size):
                free = self._bytes.limit - self._bytes.used
                raise IngressFull(
                    f"{size} bytes requested, {free} available of {self._bytes.limit}"
                    + (f", the peer holds {self._bytes.held[peer]}" if why == "share" else ""),
                    where=f"ingress, from {peer.short()}",
                    hint="raise NodeConfig.ingress_bytes",
                )
            self._places.take(peer, 1)
            self._bytes.take(peer, size)
            self._raw.append(raw)
        self._wake()

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
            if len(self._notices) >= self._max_answers:
                raise IngressFull(
                    f"{len(self._notices)} notices wait already",
                    where="ingress",
                    hint="poll more often, or raise answer_entries",
                )
            self._notices.append(Notice(act, args))
        self._wake()

    def offer_invoke(self, entry: Entry) -> None:
        """Queues an entry of the host's. IngressFull at `ingress_entries`."""
        external = self._external
        with self._lock:
            if external.used >= external.limit:
                raise IngressFull(
                    f"{external.used} entries wait already",
                    where="ingress",
                    hint="poll more often, or raise ingress_entries",
                )
            external.used += 1
            self.entries.append(entry)
        if self._waker is not None:
            self._waker()

    def deliver(self, token: int, result: object, error: BaseException | None) -> None:
        """The completion sink: every parked op has its place here."""
        with self._lock:
            self._completions.append((token, result, error))
        self._wake()

    def late(self, token: int) -> None:
        with self._lock:
            self._late += 1

    # --- the engine's thread --------------------------------------------------------------------------

    def take_raw(self) -> Raw | None:
        if not self._raw:
            return None
        raw = self._raw.popleft()
        with self._lock:
            self._places.give_back(raw.peer, 1)
        return raw

    def raws(self) -> list[Raw]:
        """The envelopes that wait, for a snapshot; as the two below."""
        with self._lock:
            return list(self._raw)

    def notices(self) -> list[Notice]:
        with self._lock:
            return list(self._notices)

    def completions(self) -> list[tuple[int, object, BaseException | None]]:
        with self._lock:
            return list(self._completions)

    def take_notice(self) -> Notice | None:
        return self._notices.popleft() if self._notices else None

    @property
    def has_completions(self) -> bool:
        """Whether a completion waits, or one that came too late."""
        return bool(self._completions or self._late)

    def take_completion(self) -> tuple[int, object, BaseException | None] | None:
        return self._completions.popleft() if self._completions else None

    def take_late(self) -> int:
        if not self._late:
            return 0
        with self._lock:
            late, self._late = self._late, 0
        return late

    @property
    def waiting(self) -> bool:
        """Whether a poll has something to take in."""
        return bool(self._raw or self._notices or self._completions)

    @property
    def full(self) -> bool:
        """Whether the entries' queue has no place for one more from outside."""
        return self._external.used >= self._external.limit

    def full_for(self, peer: PeerId) -> bool:
        """Whether the entries' queue has no place for one more of a peer."""
        return bool(self._external.refuses(peer, 1))

    def contributes(self, peer: PeerId) -> bool:
        """Whether a peer holds at least an equal share of what is taken: the others need not be told off."""
        external = self._external
        return external.held.get(peer, 0) * len(external.held) >= external.used

    @property
    def fill_ratio(self) -> float:
        return self._external.used / self._external.limit

    def offer(self, entry: Entry) -> None:
        """Queues an entry; the caller has checked `full` for those from outside."""
        if not entry.internal:
            with self._lock:
                self._external.take(entry.peer, 1)
        self.entries.append(entry)

    def next_entry(self) -> Entry | None:
        if not self.entries:
            return None
        entry = self.entries.popleft()
        if not entry.internal:
            with self._lock:
                if entry.peer is None:
                    self._external.used -= 1
                else:
                    self._external.give_back(entry.peer, 1)
        return entry
