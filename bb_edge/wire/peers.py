"""Which peers are there, by what their presence says and by whether they answer.

Presence comes from the transport, class by class: up or down, with an epoch, a session and addresses. What a
presence says against one that is known already stands in `Presence.is_older_than`.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from bb_edge.ir.ids import BY_BYTES, PeerId
from bb_edge.ir.transitions import Table
from bb_edge.wire.cbor import dumps
from bb_edge.wire.places import PeersFullError, Places
from bb_edge.wire.presence import MAX_CLASSES, Presence, decode_presence, encode_presence, presence_bytes


class PresenceChange(enum.Enum):
    """What a presence changed."""

    NONE = "nothing new"
    UP = "came up"
    NEW_EPOCH = "was started anew while it counted as up"
    NEW_CLASS = "is up in a further class"
    CHANGED = "other addresses or metadata, or a class less"
    DOWN = "went down"
    STALE = "of an epoch or session that is over; ignored"


class PeerState(enum.IntEnum):
    """What a node believes about a peer."""

    UNKNOWN = 0
    UP = 1
    SILENT = 2
    """Its presence says up, and it does not answer."""
    DOWN = 3


class PeerEvent(enum.IntEnum):
    """What changes a node's belief."""

    CAME = 0
    """Its presence says up."""
    WENT = 1
    """Its presence, or a will of its current session, says down."""
    ECHOED = 2
    """A presence comes late: of a session that is over, or of an earlier epoch's end."""
    FELL_SILENT = 3
    ANSWERED = 4
    CLEARED = 5
    """Its presence was removed from the broker, in the last class that it had."""
    DISPLACED = 6
    """Another peer needs its place in the table."""


_UNKNOWN, _UP, _SILENT, _DOWN = PeerState.UNKNOWN, PeerState.UP, PeerState.SILENT, PeerState.DOWN

PRESENCE: Final = Table(
    "peer presence",
    _UNKNOWN,
    {
        (_UNKNOWN, PeerEvent.CAME): _UP,
        (_UNKNOWN, PeerEvent.WENT): _DOWN,  # its class is known: what it sent may still come
        (_UNKNOWN, PeerEvent.FELL_SILENT): _UNKNOWN,
        (_UNKNOWN, PeerEvent.ANSWERED): _UNKNOWN,
        (_UNKNOWN, PeerEvent.CLEARED): _UNKNOWN,
        (_UP, PeerEvent.CAME): _UP,
        (_UP, PeerEvent.WENT): _DOWN,
        (_UP, PeerEvent.ECHOED): _UP,
        (_UP, PeerEvent.FELL_SILENT): _SILENT,
        (_UP, PeerEvent.ANSWERED): _UP,
        (_UP, PeerEvent.CLEARED): _UNKNOWN,
        (
            _UP,
            PeerEvent.DISPLACED,
        ): _UNKNOWN,  # of a class that the program does not ask for, or beyond a share
        (_SILENT, PeerEvent.CAME): _UP,  # a peer that says it is up deserves another try
        (_SILENT, PeerEvent.WENT): _DOWN,
        (_SILENT, PeerEvent.ECHOED): _SILENT,
        (_SILENT, PeerEvent.FELL_SILENT): _SILENT,
        (_SILENT, PeerEvent.ANSWERED): _UP,
        (_SILENT, PeerEvent.CLEARED): _UNKNOWN,
        (_SILENT, PeerEvent.DISPLACED): _UNKNOWN,
        (_DOWN, PeerEvent.CAME): _UP,
        (_DOWN, PeerEvent.WENT): _DOWN,
        (_DOWN, PeerEvent.ECHOED): _DOWN,  # a goodbye is the last word of its session
        (_DOWN, PeerEvent.FELL_SILENT): _DOWN,
        (_DOWN, PeerEvent.ANSWERED): _DOWN,  # only its presence brings it up
        (_DOWN, PeerEvent.CLEARED): _UNKNOWN,
        (_DOWN, PeerEvent.DISPLACED): _UNKNOWN,
    },
)


class PeerTable:
    """What is believed about each peer, and the peers that are up by class.

    Bounded in peers and in bytes, and as large as what it holds. Where it is full, `Places` says who makes
    room for whom: classes that the program asks for come first, and within a class who was seen first.
    """

    __slots__ = (
        "_by_class",
        "_displaced",
        "_known",
        "_measured",
        "_peers",
        "_places",
        "_restored",
        "_states",
        "_tuples",
        "_written",
        "forgotten",
    )

    def __init__(
        self,
        capacity: int = 1024,
        most_bytes: int = 1 << 20,
        spoke: Callable[[PeerId], bool] = lambda _peer: False,
        displaced: Callable[[PeerId, bool], object] = lambda _peer, _was_up: None,
        asked: Iterable[str] | None = None,
    ) -> None:
        """`capacity` peers whose presences have `most_bytes`; `spoke` tells whether anything came of one.

        `displaced` is told who has lost its place to another, and whether it was up. `asked` are the classes
        that the program asks for, None for every class.

        The defaults are a federation that one broker on a small board carries.
        """
        self._displaced = displaced
        self._places = Places(capacity, most_bytes, spoke, asked)
        self._peers: dict[PeerId, Presence] = {}
        self._states: dict[PeerId, PeerState] = {}  # of the same peers; only `_turn` and `restore` write it
        self._by_class: dict[str, list[PeerId]] = {}  # the peers in state UP, sorted
        self._tuples: dict[str, tuple[PeerId, ...]] = {}  # the same as they were handed out last
        self._known: dict[str, tuple[PeerId, ...]] = {}  # in any state, as they were handed out last
        self._written: dict[PeerId, tuple[Presence, bytes]] = {}  # as the last snapshot has them
        self._restored: set[PeerId] = set()  # of whose presence nothing was heard since `restore`
        self._measured: tuple[Mapping[str, object], int] = {}, 1  # the last metadata, and its bytes
        self.forgotten = 0  # peers that made room for others

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._peers)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._peers

    @property
    def bytes_held(self) -> int:
        """Bytes of all presences that are kept."""
        return self._places.bytes

    def get(self, peer: PeerId) -> Presence | None:
        """Returns the peer's last presence, with all its classes; None for a peer without one."""
        return self._peers.get(peer)

    def epoch(self, peer: PeerId) -> int | None:
        """Returns the epoch that the peer was last present in."""
        presence = self._peers.get(peer)
        return None if presence is None else presence.epoch

    def is_up(self, peer: PeerId) -> bool:
        """Returns whether the peer is present, and not known to leave requests without answer."""
        return self._states.get(peer) is _UP

    def is_present(self, peer: PeerId) -> bool:
        """Returns whether the peer's presence says that it is there, be it that it answers or not."""
        return self._states.get(peer) in (_UP, _SILENT)

    def is_restored(self, peer: PeerId) -> bool:
        """Returns whether the peer's presence is that of a run before: it may have another version since."""
        return peer in self._restored

    def is_down(self, peer: PeerId) -> bool:
        """Returns whether the peer's presence, or its will, says that it has gone."""
        return self._states.get(peer) is _DOWN

    def up_peers(self, peer_class: str) -> tuple[PeerId, ...]:
        """Returns the peers that are up and serve `peer_class`, sorted."""
        peers = self._tuples.get(peer_class)
        if peers is None:
            up = self._by_class.get(peer_class)
            if up is None:
                return ()
            peers = self._tuples[peer_class] = tuple(up)
        return peers

    def known_peers(self, peer_class: str) -> tuple[PeerId, ...]:
        """Returns all peers of `peer_class` that are remembered, up or not, sorted."""
        peers = self._known.get(peer_class)
        if peers is None:
            found = sorted(peer for peer, known in self._peers.items() if peer_class in known.classes)
            peers = self._known[peer_class] = tuple(found)
        return peers

    def up_counts(self) -> tuple[dict[str, int], int]:
        """Returns how many peers are up: by class, and in all."""
        by_class = {name: len(up) for name, up in self._by_class.items()}
        return by_class, len(self._peers) - len(self._places.down) - len(self._places.silent)

    def present(self) -> list[PeerId]:
        """Returns the peers whose presence says up, whether they answer or not; first heard of first."""
        return [peer for peer, state in self._states.items() if state is not _DOWN]

    def unreachable(self, peer_class: str) -> list[PeerId]:
        """Returns the peers of the class that are present and do not answer, in no particular order."""
        return [p for p in self._places.silent if peer_class in self._peers[p].classes]

    def update(self, peer: PeerId, presence: Presence) -> PresenceChange:
        """Takes over what a presence says in its classes, and returns what it changed.

        Within an epoch classes add up; a new epoch begins with those of its first presence that names any.
        Raises PeersFullError, changing nothing, where a new peer finds no place.
        """
        before = self._peers.get(peer)
        if before is not None and presence.is_older_than(before):
            self._turn(peer, PeerEvent.ECHOED)
            return PresenceChange.STALE
        self._restored.discard(peer)
        if not presence.up:
            return self._went_down(peer, before, presence)
        if before is None:
            now, size = presence, self._size_of(presence)
            if room := self._places.who_makes_room(peer, now.classes, size):
                self._displace(room)
        else:
            now, size = _merged(before, presence), None
            if now is before and self._states[peer] is _UP:
                return PresenceChange.NONE
            if (now.addresses, now.meta) != (before.addresses, before.meta):
                size = self._size_of(now)
                self._displace(self._places.who_makes_room(peer, now.classes, size))
        if self._turn(peer, PeerEvent.CAME, now, size) is not _UP or before is None:
            return PresenceChange.UP
        if before.epoch != now.epoch:
            return PresenceChange.NEW_EPOCH
        if before.classes != now.classes:
            return PresenceChange.NEW_CLASS
        same = (before.addresses, before.meta) == (now.addresses, now.meta)
        return PresenceChange.NONE if same else PresenceChange.CHANGED

    def take_newcomers(self, said: Mapping[PeerId, Presence], classes: tuple[str, ...]) -> bool:
        """Takes presences of many who are up, all in these classes, as `update` would one after the other.

        Returns False, changing nothing, where one of them is known, or they do not all find a place.
        """
        if not self._peers.keys().isdisjoint(said):
            return False
        if not self._places.sit_all({peer: self._size_of(one) for peer, one in said.items()}, classes):
            return False
        self._peers.update(said)
        self._states.update(dict.fromkeys(said, PRESENCE.rows[_UNKNOWN, PeerEvent.CAME]))
        self._known.clear()
        for name in classes:
            up = self._by_class.setdefault(name, [])
            up.extend(said)
            up.sort(key=BY_BYTES)
            self._tuples.pop(name, None)
        return True

    def _went_down(self, peer: PeerId, before: Presence | None, presence: Presence) -> PresenceChange:
        if before is None:
            self._remember(peer, presence)
            return PresenceChange.NONE
        now = before._replace(up=False, session=max(before.session, presence.session))
        state = self._turn(peer, PeerEvent.WENT, now)
        # Who fell silent before has been told of as down.
        return PresenceChange.DOWN if state is _UP else PresenceChange.NONE

    def _remember(self, peer: PeerId, presence: Presence) -> None:
        """Notes a peer that is first heard of as down, in a class and where nobody who is here makes room."""
        if not presence.classes:
            return
        size = self._size_of(presence)
        try:
            room = self._places.who_makes_room_for_absent(peer, presence.classes, size)
        except PeersFullError:
            return
        self._displace(room)
        self._turn(peer, PeerEvent.WENT, presence, size)

    def clear(self, peer: PeerId, peer_class: str | None) -> PresenceChange:
        """Forgets that the peer serves a class, or any at all (None): its presence was removed there."""
        before = self._peers.get(peer)
        left = () if before is None else tuple(c for c in before.classes if c != peer_class)
        if before is None or peer_class is None or not left:
            state = self._turn(peer, PeerEvent.CLEARED)
            return PresenceChange.DOWN if state is _UP else PresenceChange.NONE
        if left == before.classes:
            return PresenceChange.NONE
        self._put(peer, before._replace(classes=left), self._states[peer])
        return PresenceChange.CHANGED

    def set_reachable(self, peer: PeerId, reachable: bool) -> None:
        """Takes over what the health table found out; a present peer that does not answer is not up."""
        self._turn(peer, PeerEvent.ANSWERED if reachable else PeerEvent.FELL_SILENT)

    def _turn(
        self, peer: PeerId, event: PeerEvent, presence: Presence | None = None, size: int | None = None
    ) -> PeerState:
        """Moves a peer to the state that the table gives, with a presence where there is a new one.

        `size` is what it is charged with from now on. Returns the state before.
        """
        before = self._states.get(peer, _UNKNOWN)
        after = PRESENCE.rows[before, event]
        if after is not _UNKNOWN:
            if after is not before or presence is not None:
                self._put(peer, presence or self._peers[peer], after, size)
        elif before is not _UNKNOWN:
            self._list(peer, self._peers[peer].classes if before is _UP else (), ())
            self._restored.discard(peer)
            del self._states[peer], self._peers[peer]
            self._known.clear()
            self._places.leave(peer)
        return before

    def _put(self, peer: PeerId, presence: Presence, state: PeerState, size: int | None = None) -> None:
        """Writes a peer's row, and the lists that it stands in."""
        before, known, places = self._states.get(peer), self._peers.get(peer), self._places
        self._list(
            peer,
            known.classes if known is not None and before is _UP else (),
            presence.classes if state is _UP else (),
        )
        self._peers[peer] = presence
        if known is None or known.classes != presence.classes:
            self._known.clear()
        places.sit(peer, presence.classes, places.sizes[peer] if size is None else size)
        if state is not before:
            self._states[peer] = state
            if before is not None:
                places.down.pop(peer, None)
                places.silent.pop(peer, None)
            if state is _DOWN:
                places.down[peer] = None
            elif state is _SILENT:
                places.silent[peer] = None

    def _list(self, peer: PeerId, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        """Keeps the sorted lists of those that are up."""
        if before == after:
            return
        for name in before:
            if name not in after:
                up = self._by_class[name]
                del up[bisect_left(up, peer.to_bytes(), key=BY_BYTES)]
                if not up:
                    del self._by_class[name]
                self._tuples.pop(name, None)
        for name in after:
            if name not in before:
                up = self._by_class.setdefault(name, [])
                insort(up, peer, key=BY_BYTES)
                self._tuples.pop(name, None)

    def _size_of(self, presence: Presence) -> int:
        """The bytes that a presence is charged with: those of its CBOR form."""
        meta, size = self._measured
        if presence.meta is not meta:  # a simulation tells the same of all peers of a class
            size = len(dumps(presence.meta))
            self._measured = presence.meta, size
        return presence_bytes(presence, size)

    def _displace(self, peers: Iterable[PeerId]) -> None:
        for peer in peers:
            was_up = self._turn(peer, PeerEvent.DISPLACED) is _UP
            self.forgotten += 1
            self._displaced(peer, was_up)

    def snapshot(self) -> list[list[Any]]:
        """Returns [peer, presence as CBOR, whether it answers] rows."""
        written, self._written = self._written, {}
        rows: list[list[Any]] = []
        for peer, presence in self._peers.items():
            known = written.get(peer)
            if known is None or known[0] is not presence:
                known = presence, encode_presence(presence)
            self._written[peer] = known
            rows.append([peer.to_bytes(), known[1], self._states[peer] is not _SILENT])
        return rows

    def restore(self, data: Sequence[Sequence[Any]]) -> None:
        """Replaces the table by what `snapshot` returned.

        Where the bounds or the asked classes are others now, each row is a newcomer: those without a place
        are forgotten, and nobody is told.
        """
        self._peers, self._states, self._restored = {}, {}, set()
        self._by_class.clear()
        self._tuples.clear()
        self._known.clear()
        self._places.clear()
        for raw, encoded, reachable in data:
            self.recall(PeerId.from_bytes(raw), decode_presence(encoded), reachable)

    def recall(self, peer: PeerId, presence: Presence, reachable: bool = True) -> None:
        """Takes what an earlier run knew of a peer, who may have gone since; as a newcomer, and nobody is
        told. Of one that is here already, only classes are taken.
        """
        before = self._peers.get(peer)
        if before is not None:
            self._put(peer, _in_classes(before, presence.classes), self._states[peer])
            return
        size = self._size_of(presence)
        try:
            room = self._places.who_makes_room(peer, presence.classes, size)
        except PeersFullError:
            self.forgotten += 1
            return
        for other in room:
            self._turn(other, PeerEvent.DISPLACED)
        self.forgotten += len(room)
        self._put(peer, presence, _DOWN if not presence.up else _UP if reachable else _SILENT, size)
        self._restored.add(peer)


def _merged(before: Presence, news: Presence) -> Presence:
    """What is believed of a peer after an up: the later facts, and within an epoch all classes.

    A topic that is read for its will alone names no class: then the classes that were known stay.
    """
    if before.epoch != news.epoch:
        return news if news.classes else news._replace(classes=before.classes)
    both = _in_classes(before, news.classes)
    if before.up and news.session == before.session and news.seq < before.seq:
        return both
    now = news._replace(classes=both.classes)
    return before if now == before else now


def _in_classes(presence: Presence, classes: Iterable[str]) -> Presence:
    """The presence with these classes added; the same one where it has them all."""
    added = tuple(name for name in classes if name not in presence.classes)
    return presence._replace(classes=(*presence.classes, *added)[:MAX_CLASSES]) if added else presence
