"""The sums that an aggregator has open, and which contribution belongs to which.

`ctx.cohort` tells, as the compiler fixed it for the slot:

* above 0: the execution of that number. Its sum lives as long as it does.
* below 0: the round that the op is given. At most `limit` such sums are open at once, and beyond that a new
  one is refused, not an old one dropped. One peer opens at most `PER_PEER` of them. One that is still open
  after `limit` others were closed is given up.
* 0: one sum, which is closed and opened again by each `Aggregate`.

Within a sum a peer counts once; where it names rounds that do not choose the sum, once per round, of which
the newest `limit` of each peer are remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bb_edge.components.dominance import Pulls
from bb_edge.components.state import StateReader, pack_array
from bb_edge.ir.ids import PeerId, PeerIdError
from bb_edge.roles.contracts import GivenUp
from bb_edge.roles.errors import ComponentError

if TYPE_CHECKING:
    from bb_edge.components.combiner import Combiner
    from bb_edge.ir.tensors import Array

PER_PEER = 2
"""Sums by round that one peer may have opened: the present one, and one that overlaps it."""

CLOSED = 64
"""Closed rounds that are remembered. What is below all of them counts as closed, too."""

_ONCE = (None,)
"""What is remembered of a peer that counts once in its sum: one object for all."""
EXECUTION, ROUND, ONLY = "execution", "round", "only"
Key = tuple[str, int]


class Sum:
    """What counts so far under one key. `peers` are those in it, `seen` which rounds of a peer have counted.

    `began` is how many sums by round had been closed when it was opened, `opener` who opened it.
    """

    __slots__ = (
        "began",
        "closed",
        "combiner",
        "count",
        "key",
        "make",
        "opener",
        "peers",
        "pulls",
        "seen",
        "shape",
        "total",
    )

    def __init__(
        self, key: Key, make: Callable[[int], Combiner], began: int = 0, opener: PeerId | None = None
    ) -> None:
        self.key = key
        self.make = make
        self.began = began
        self.opener = opener
        self.combiner: Combiner | None = None
        self.shape: tuple[int, ...] = ()
        self.count = 0
        self.total = 0.0
        self.closed = False
        self.peers: list[PeerId] = []
        self.pulls = Pulls()
        self.seen: OrderedDict[PeerId, tuple[int | None, ...]] = OrderedDict()

    def add(self, shape: tuple[int, ...], values: Array, weight: float) -> None:
        """Adds a 1-D vector that was checked."""
        if self.combiner is None or self.combiner.size != values.size:
            self.combiner = self.make(values.size)
        self.shape = shape
        self.combiner.add(values, weight)
        self.count += 1
        self.total += weight


class OpenSums:
    """The sums of one aggregator. `limit` is the setting `remembered_rounds`."""

    def __init__(self, make: Callable[[int], Combiner], where: str, limit: int, max_peers: int) -> None:
        self._make = make
        self._where = where
        self._limit = limit
        self._max_peers = max_peers
        self._sums: dict[Key, Sum] = {}
        self._closed: list[int] = []  # rounds, in the order in which they were closed
        self._closings = 0
        self._spare: Combiner | None = None  # its memory is used again
        self.duplicates = 0
        self.stale = 0
        self.given_up: list[GivenUp] = []

    def reserve(self, size: int) -> None:
        """Takes the memory of one sum of `size` numbers, for the first that is opened."""
        if self._spare is None or self._spare.size != size:
            self._spare = self._make(size)
            self._spare.reserve()

    # --- which one -------------------------------------------------------------------------------------

    def of(self, cohort: int, number: int | None, peer: PeerId | None, closing: bool = False) -> Sum:
        """Returns the sum of a contribution, or of an `Aggregate` (`closing`); it is opened where need be.

        Raises ComponentError where it is closed, or cannot be opened.
        """
        key = (EXECUTION, cohort) if cohort > 0 else (ONLY, 0)
        if cohort < 0:
            if number is None:
                raise self._error("its sum is told by the round, and it has none", "give round=…")
            key = (ROUND, number)
        found = self._sums.get(key)
        if found is None:
            if key[0] == ROUND and not closing:
                self._check_round(key[1], peer)
            found = Sum(key, self._make, self._closings, peer)
            if not closing:
                self._sums[key] = found
        elif found.closed and not closing:
            raise self._closed_error("its round is over: the sum was aggregated")
        if found.combiner is None and self._spare is not None:
            found.combiner, self._spare = self._spare, None
        return found

    def _check_round(self, number: int, peer: PeerId | None) -> None:
        if number in self._closed or (len(self._closed) == CLOSED and number < min(self._closed)):
            raise self._closed_error(f"round {number} is over: its sum was aggregated")
        rounds = [each for each in self._sums.values() if each.key[0] == ROUND]
        for old in rounds:
            if self._closings - old.began >= self._limit:
                del self._sums[old.key]
                self._lose(old, f"round {old.key[1]} was never aggregated, and {self._limit} later ones were")
        rounds = [each for each in rounds if each.key in self._sums]
        if len(rounds) >= self._limit:
            raise self._error(
                f"{self._limit} rounds are open already, round {number} would be one more",
                "aggregate rounds that are over, or raise remembered_rounds",
            )
        if peer is not None and sum(each.opener == peer for each in rounds) >= PER_PEER:
            raise self._error(f"it opened {PER_PEER} rounds that nobody has aggregated; {number} is one more")

    # --- who counts ------------------------------------------------------------------------------------

    def counted(self, found: Sum, peer: PeerId, number: int | None) -> bool:
        """Returns whether that peer's contribution has counted already. ComponentError where nobody knows."""
        mark = None if found.key[0] == ROUND else number
        seen = found.seen.get(peer)
        if seen is None:
            if len(found.seen) >= self._max_peers:
                raise self._error(
                    f"more than {self._max_peers} peers contribute to one round", "raise max_peers"
                )
            return False
        if mark in seen:
            self.duplicates += 1
            return True
        if mark is not None:
            rounds = [known for known in seen if known is not None]
            if len(rounds) >= self._limit and mark < min(rounds):
                raise self._closed_error(f"round {mark} is older than the {self._limit} that are remembered")
        return False

    def mark(self, found: Sum, peer: PeerId, number: int | None) -> None:
        """Notes that a peer's contribution counts."""
        mark = None if found.key[0] == ROUND else number
        seen = found.seen.get(peer)
        if seen is None:
            found.seen[peer] = _ONCE if mark is None else (mark,)
        else:
            seen = (*seen, mark)
            if len(seen) > self._limit:
                rounds = [known for known in seen if known is not None]
                out = seen.index(min(rounds) if rounds else None)
                seen = (*seen[:out], *seen[out + 1 :])
            found.seen[peer] = seen
            found.seen.move_to_end(peer)
        found.peers.append(peer)

    # --- the end of one --------------------------------------------------------------------------------

    def close(self, found: Sum) -> None:
        """Ends a sum that was aggregated; the only one begins again."""
        if found.combiner is not None:
            found.combiner.clear()
            self._spare, found.combiner = found.combiner, None
        kind, number = found.key
        found.count, found.total = 0, 0.0
        found.peers = []
        found.pulls = Pulls()
        if kind == ONLY:
            for peer, seen in tuple(found.seen.items()):
                found.seen[peer] = tuple(mark for mark in seen if mark is not None)
                if not found.seen[peer]:
                    del found.seen[peer]
            while len(found.seen) > self._max_peers // 2:  # who was heard least lately
                found.seen.popitem(last=False)
        elif kind == EXECUTION:
            found.closed = True
            found.seen.clear()
            self._sums[found.key] = found
        else:
            self._sums.pop(found.key, None)
            self._closings += 1
            if number not in self._closed:
                self._closed.append(number)
                if len(self._closed) > CLOSED:
                    self._closed.remove(min(self._closed))

    def execution_ended(self, number: int) -> None:
        """Forgets the sum of an execution."""
        found = self._sums.pop((EXECUTION, number), None)
        if found is None:
            return
        self._lose(found, "the execution that asked for them ended without aggregating them")
        if found.combiner is not None:
            found.combiner.clear()
            self._spare = found.combiner

    def clear(self) -> int:
        """Drops all sums and which are closed. Returns how many of them had contributions and were open."""
        still_open = sum(1 for each in self._sums.values() if each.count and not each.closed)
        self._sums, self._closed, self._closings = {}, [], 0
        return still_open

    def take_given_up(self) -> Sequence[GivenUp]:
        """Returns what was dropped before anybody aggregated it, since the last call."""
        lost, self.given_up = self.given_up, []
        return lost

    def _lose(self, found: Sum, why: str) -> None:
        if found.count:
            self.given_up.append(GivenUp(f"{self._where}: {why}", found.count, tuple(found.peers)))

    def _closed_error(self, what: str) -> ComponentError:
        self.stale += 1
        return self._error(what)

    def _error(self, what: str, hint: str = "") -> ComponentError:
        return ComponentError(what, self._where, hint)

    # --- snapshots -------------------------------------------------------------------------------------

    def save(self) -> dict[str, object]:
        """Returns everything as plain values."""
        return {
            "sums": [_row(each) for each in self._sums.values()],
            "pulls": [each.pulls.save(each.peers) for each in self._sums.values()],
            "clipped": [each.pulls.save_clipped(each.peers) for each in self._sums.values()],
            "closed": list(self._closed),
            "closings": self._closings,
            "duplicates": self.duplicates,
            "stale": self.stale,
        }

    def restore(self, read: StateReader) -> None:
        """Takes what `save` gave. ComponentStateError, changing nothing, where it is damaged."""
        sums: dict[Key, Sum] = {}
        closed = [number for number in read.items("closed") if isinstance(number, int)]
        closings, duplicates, stale = (read.integer(n) for n in ("closings", "duplicates", "stale"))
        # Beside the rows: older versions neither write nor read these.
        pulls, clipped = read.optional_items("pulls"), read.optional_items("clipped")
        for number, row in enumerate(read.items("sums")):
            of = [rows[number] if number < len(rows) else () for rows in (pulls, clipped)]
            found = self._restored(row, of, read)
            sums[found.key] = found
        self._sums, self._closed, self._closings = sums, closed, closings
        self.duplicates, self.stale = duplicates, stale
        if any(found.combiner is not None for found in sums.values()):
            self._spare = None

    def given_up_at_restore(self, read: StateReader) -> None:
        """Version 1 had one sum, and did not tell of which execution or round it is: it cannot go on."""
        self.duplicates, self.stale = read.integer("duplicates"), read.integer("stale")
        count = read.integer("count")
        if count:
            why = "an older version wrote this sum, which did not tell its execution or round"
            self.given_up.append(GivenUp(f"{self._where}: {why}", count))

    def _restored(self, row: Any, pulls: Any, read: StateReader) -> Sum:
        try:
            kind, number, began, opener, over, shape, count, total, arrays, peers, seen = row
            found = Sum(
                (kind, number), self._make, began, None if opener is None else PeerId.from_bytes(opener)
            )
            found.closed, found.count, found.total = over, count, total
            found.shape = tuple(int(size) for size in shape)
            found.peers = [PeerId.from_bytes(peer) for peer in peers]
            for peer, marks in seen:
                found.seen[PeerId.from_bytes(peer)] = tuple(marks)
            if arrays is not None:
                size = 1
                for dim in found.shape:
                    size *= dim
                found.combiner = self._make(size)
                found.combiner.restore([read.decode(packed) for packed in arrays])
            found.pulls.restore(pulls[0], found.peers)
            found.pulls.restore_clipped(pulls[1], found.peers)
        except (TypeError, ValueError, IndexError, PeerIdError) as error:
            raise read.error(f"a sum of it is damaged: {error}") from error
        return found


def _row(found: Sum) -> list[object]:
    combiner = found.combiner if found.count else None
    return [
        *found.key,
        found.began,
        None if found.opener is None else found.opener.to_bytes(),
        found.closed,
        list(found.shape),
        found.count,
        found.total,
        None if combiner is None else [pack_array(array) for array in combiner.save()],
        [peer.to_bytes() for peer in found.peers],
        [[peer.to_bytes(), list(marks)] for peer, marks in found.seen.items()],
    ]


def open_in(read: StateReader) -> int:
    """Returns how many sums of a state have contributions and are not closed. ComponentStateError."""
    if read.version == 1:
        return int(read.integer("count") > 0)
    try:
        rows: list[Any] = read.items("sums")
        return sum(1 for _, _, _, _, closed, _, count, *_ in rows if count and not closed)
    except (TypeError, ValueError) as error:
        raise read.error(f"its sums are damaged: {error}") from error
