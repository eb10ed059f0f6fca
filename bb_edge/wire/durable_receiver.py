"""Durable envelopes on their way in, per source: windows, and the marks that come before them.

Of a source that knows marks one epoch is let in, and only after this run has exchanged marks with it. A
source asks, and from then on nothing of its is taken; what it is told is on disk, so it stays true until the
source opens an epoch in answer. An older runtime's source is judged by its windows alone.

Pure: no I/O, no clock, no randomness of its own. Calls leave effects in `out`; the owner does them, in order.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bb_edge.ir.ids import PeerId
from bb_edge.ir.transitions import Table
from bb_edge.wire import dedup, marks
from bb_edge.wire.bounds import forget_oldest
from bb_edge.wire.dedup import DurableWindow, Verdict
from bb_edge.wire.durable_flows import RolledBack, Say
from bb_edge.wire.envelope_records import Ack
from bb_edge.wire.marks import Ask, Open, Taken, Took

PROMPT_NS: Final = 1_000_000_000
"""A source that sends before it has asked is told so once a second at most."""
PLAIN_EPOCHS: Final = 2
"""Windows of a source without marks, so that a late envelope of an outbox that was replaced is recognised."""


class SourceState(enum.IntEnum):
    """Whether anything of a source is taken."""

    CLOSED = 0
    OPEN = 1
    PLAIN = 2
    """It is of a version without marks."""


class SourceEvent(enum.IntEnum):
    """What happens to a source."""

    ASKED = 0
    """It has a new question: it may give other numbers to what it has not heard to be taken."""
    OPENED = 1
    """It has read the last answer, and begun an epoch."""
    UP = 2
    """Its presence says that it knows marks."""
    UP_PLAIN = 3


_CLOSED, _OPEN, _PLAIN = SourceState.CLOSED, SourceState.OPEN, SourceState.PLAIN

SOURCE: Final = Table(
    "durable source",
    _CLOSED,
    {
        (_CLOSED, SourceEvent.ASKED): _CLOSED,
        (_CLOSED, SourceEvent.OPENED): _OPEN,
        (_CLOSED, SourceEvent.UP): _CLOSED,
        (_CLOSED, SourceEvent.UP_PLAIN): _PLAIN,
        (_OPEN, SourceEvent.ASKED): _CLOSED,
        (_OPEN, SourceEvent.UP): _OPEN,
        (_OPEN, SourceEvent.UP_PLAIN): _PLAIN,
        (_PLAIN, SourceEvent.ASKED): _CLOSED,
        (_PLAIN, SourceEvent.UP): _CLOSED,
        (_PLAIN, SourceEvent.UP_PLAIN): _PLAIN,
    },
)


@dataclass(slots=True, eq=False)
class _Source:
    peer: PeerId
    state: SourceState = SOURCE.start
    windows: dict[int, DurableWindow] = field(default_factory=dict)
    epoch: int = 0  # the one that is let in; its window may not be there yet
    taken: set[int] = field(default_factory=set)  # the epochs of which something is on disk
    asked: int = 0
    answer: int = 0  # the token of the last Took; 0: it is to be drawn anew
    owed: bool = False  # a Took that waits until all that is held is on disk
    prompt_ns: int = 0  # when it may be told again


class DurableReceiver:
    """All sources of a node. `draw` gives random numbers of 63 bits; all times are monotonic nanoseconds."""

    def __init__(self, draw: Callable[[], int], max_sources: int = 1024) -> None:
        """Of `max_sources` sources windows are kept. None is forgotten for another: a newcomer is refused.

        A source of which nothing was taken makes room: it is closed then, as at the start.
        """
        self._draw = draw
        self._max_sources = max_sources
        self._sources: dict[PeerId, _Source] = {}
        self.out: list[Say | RolledBack] = []

    # --- envelopes ---------------------------------------------------------------------------------------

    def receive(self, peer: PeerId, epoch: int, seq: int, base: int) -> Verdict:
        """Judges a durable number, and changes nothing."""
        source = self._sources.get(peer)
        if source is None:
            return Verdict.CLOSED if self._has_room else Verdict.NO_ROOM
        if source.state is _CLOSED or (source.state is _OPEN and epoch != source.epoch):
            return Verdict.CLOSED
        window = source.windows.get(epoch)
        return dedup.first_verdict(seq, base) if window is None else window.verdict(seq, base)

    def refused(self, peer: PeerId, now_ns: int) -> None:
        """A durable envelope was CLOSED: its source is told what it was told last; it asks if that is news.

        It may be under way since before, and then its source opens once more what is open. Or there are two
        machines of one name, and the other one has opened an epoch since this one did.
        """
        source = self._sources.get(peer) or self._new(peer)
        if source is None or source.state is _PLAIN or now_ns < source.prompt_ns:
            return
        source.prompt_ns = now_ns + PROMPT_NS
        self._owe_took(source)

    def hold(self, peer: PeerId, epoch: int, seq: int, base: int) -> None:
        """Takes a number that is NEW; it is acknowledged once it is `journaled`."""
        window = self._window(self._sources[peer], epoch)
        window.mark(seq, base, hold=True)

    def journaled(self, peer: PeerId, epoch: int, seq: int) -> bool:
        """The envelope is on disk: it is delivered, and owed its acknowledgement. False: it was not held."""
        source = self._sources.get(peer)
        window = source.windows.get(epoch) if source is not None else None
        if source is None or window is None or not window.release(seq):
            return False
        window.owe(seq)
        self._on_disk(source, epoch)
        self._answer(source)
        return True

    def not_journaled(self, peer: PeerId, epoch: int, seq: int) -> bool:
        """The envelope could not be written, and counts as never received. False: it was not held."""
        source = self._sources.get(peer)
        window = source.windows.get(epoch) if source is not None else None
        if source is None or window is None or not window.withdraw(seq):
            return False
        if not window.held and epoch not in source.taken:
            del source.windows[epoch]  # else a base that only it had named would count as taken
        self._answer(source)
        return True

    def again(self, peer: PeerId, epoch: int, seq: int) -> None:
        """Owes the acknowledgement of a DUPLICATE once more."""
        window = self._sources[peer].windows.get(epoch)
        if window is not None:
            window.owe(seq)

    def acks(self, peer: PeerId) -> tuple[Ack, ...]:
        """The acknowledgements that are owed to a source, which are no longer owed then."""
        source = self._sources.get(peer)
        windows = source.windows.values() if source is not None else ()
        return tuple([Ack(window.epoch, *window.collect()) for window in windows if window.owed])

    def owes(self, peer: PeerId) -> bool:
        """Whether a source waits for an acknowledgement."""
        source = self._sources.get(peer)
        return source is not None and any([window.owed for window in source.windows.values()])

    def is_open(self, peer: PeerId) -> bool:
        """Whether the peer knows marks, and has begun the epoch that is let in."""
        source = self._sources.get(peer)
        return source is not None and source.state is _OPEN

    def has_taken(self, peer: PeerId) -> bool:
        """Whether anything of the peer was taken."""
        source = self._sources.get(peer)
        return source is not None and bool(source.windows)

    def _window(self, source: _Source, epoch: int) -> DurableWindow:
        window = source.windows.pop(epoch, None)
        if window is None:
            if source.state is not _OPEN:
                forget_oldest(source.windows, PLAIN_EPOCHS)
                source.taken.intersection_update(source.windows)
            window = DurableWindow(epoch)
        source.windows[epoch] = window
        return window

    def _on_disk(self, source: _Source, epoch: int) -> None:
        """Something of an epoch is on disk: if marks began it, the epochs before it are over."""
        source.taken.add(epoch)
        if epoch == source.epoch:
            for older in [known for known in source.windows if known < epoch]:
                del source.windows[older]
            source.taken.intersection_update(source.windows)

    # --- marks -------------------------------------------------------------------------------------------

    def peer_up(self, peer: PeerId, knows_marks: bool) -> None:
        """The presence of a peer says whether it knows marks."""
        source = self._sources.get(peer) or self._new(peer)
        if source is not None:
            source.state = SOURCE.next(source.state, SourceEvent.UP if knows_marks else SourceEvent.UP_PLAIN)

    def asked(self, peer: PeerId, ask: Ask) -> None:
        """A source asks what is taken. From now on nothing is, until it opens an epoch."""
        source = self._sources.get(peer) or self._new(peer)
        if source is None:
            return
        if ask.token != source.asked:
            source.state = SOURCE.next(source.state, SourceEvent.ASKED)
            source.asked, source.answer = ask.token, 0
            windows = [Taken.of(window) for window in source.windows.values()]
            lost = ask.heard.lost(windows)
            if lost:
                first = ask.heard.first_lost(lost, windows)
                self.out.append(RolledBack(peer, True, ask.heard.epoch, lost, first))
        if source.state is _CLOSED:
            self._owe_took(source)

    def opened(self, peer: PeerId, opened: Open) -> bool:
        """A source begins an epoch. False, with no change, where that does not answer the last Took."""
        source = self._sources.get(peer)
        if source is None or source.state is not _CLOSED or not source.answer:
            return False
        if (opened.asked, opened.token) != (source.asked, source.answer):
            return False
        source.state = SOURCE.next(source.state, SourceEvent.OPENED)
        source.epoch = opened.epoch
        if opened.sender_is_old:
            self.out.append(RolledBack(peer, False, opened.epoch))
        return True

    def _owe_took(self, source: _Source) -> None:
        source.owed = True
        self._answer(source)

    def _answer(self, source: _Source) -> None:
        """Tells what is on disk, once all that is held is written or withdrawn."""
        if not source.owed or any(window.held for window in source.windows.values()):
            return
        source.owed = False
        source.answer = source.answer or self._draw()
        windows = tuple([Taken.of(window) for window in source.windows.values()])
        self.out.append(Say(source.peer, marks.encoded(Took(source.asked, source.answer, windows))))

    @property
    def _has_room(self) -> bool:
        return len(self._sources) < self._max_sources or self._empty() is not None

    def _empty(self) -> _Source | None:
        return next((source for source in self._sources.values() if not source.windows), None)

    def _new(self, peer: PeerId) -> _Source | None:
        if len(self._sources) >= self._max_sources:
            empty = self._empty()
            if empty is None:
                return None
            del self._sources[empty.peer]
        source = self._sources[peer] = _Source(peer)
        return source

    # --- snapshots and restarts --------------------------------------------------------------------------

    def replayed(self, peer: PeerId, epoch: int, seq: int, base: int) -> bool:
        """Takes the number of a journal's record. False where a snapshot has it: it was delivered before."""
        source = self._sources.setdefault(peer, _Source(peer))
        window = self._window(source, epoch)
        if window.verdict(seq, base) is not Verdict.NEW:
            return False
        window.mark(seq, base)
        self._on_disk(source, epoch)
        return True

    def save(self) -> list[Any]:
        """Plain values for a snapshot, which holds the envelopes of what is held; `restore` takes them."""
        rows = [
            [source.peer.to_bytes(), [window.snapshot() for window in source.windows.values()]]
            for source in self._sources.values()
        ]
        return [row for row in rows if row[1]]

    def restore(self, rows: Iterable[Sequence[Any]]) -> None:
        """Takes what `save` gave; call it on a new object only. Of a run before nothing is let in.

        What was held is on disk, in the snapshot, and owed its acknowledgement.
        """
        for data, windows in rows:
            peer = PeerId.from_bytes(data)
            source = self._sources[peer] = _Source(peer)
            for row in windows:
                window = source.windows[row[0]] = DurableWindow.restored(row)
                for seq in sorted(window.held):
                    window.release(seq)
                    window.owe(seq)
                source.taken.add(window.epoch)

    @property
    def peers(self) -> tuple[PeerId, ...]:
        """The sources that are known."""
        return tuple(self._sources)

    def inspect(self) -> dict[str, dict[str, Any]]:
        """Every source by its peer, as plain data for people and tests."""
        return {
            str(peer): {
                "state": source.state.name,
                "epoch": source.epoch,
                "marks": (source.asked, source.answer, source.owed),
                "windows": [(*Taken.of(w), sorted(w.held), list(w.owed)) for w in source.windows.values()],
                "taken": sorted(source.taken),
            }
            for peer, source in self._sources.items()
        }
