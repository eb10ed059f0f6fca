"""Who gets a place in the table of peers, and whose, when there are more peers than places.

Places belong first to the classes that a program asks for: those that it sends to, receives from or selects.
What is merely heard, because a component might call anybody, comes behind them.

1. A newcomer takes the place of peers from which nothing ever came and that are down or do not answer. Who
   is of an asked class and does not answer makes no room for one of a merely heard class, nor, within its
   share, for one of another asked class.
2. It takes the place of those that are down, longest first, while they hold more than half of the places.
3. One of an asked class takes the place of peers of merely heard classes: first of those from which nothing
   ever came, then of those that are down, then of the others, the last seen first.
4. Each asked class has a share, in peers and in bytes; all shares together are half of the table. One whose
   class holds less takes the place of peers whose asked classes hold more than theirs, the last seen first.

So no flood in one class keeps another asked class out, and who was seen first stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId

__all__ = ["PeersFullError", "Places"]


class PeersFullError(BBError):
    """No place for another peer, or none for what it says of itself; the message names the bound."""


class Places:
    """What each peer of the table holds, and who makes room for whom. The table alone writes it."""

    __slots__ = (
        "_asked",
        "_capacity",
        "_counted",
        "_heard",
        "_held",
        "_last_asked",
        "_most_bytes",
        "_share",
        "_spoke",
        "bytes",
        "down",
        "silent",
        "sizes",
    )

    def __init__(
        self, capacity: int, most_bytes: int, spoke: Callable[[PeerId], bool], asked: Iterable[str] | None
    ) -> None:
        """`capacity` peers of `most_bytes` together; `spoke` tells whether anything ever came of one.

        `asked` are the classes that the program asks for; with None all are, and none has a share.
        """
        self._capacity = capacity
        self._most_bytes = most_bytes
        self._spoke = spoke
        self._asked = None if asked is None else frozenset(asked)
        self._last_asked: tuple[tuple[str, ...], tuple[str, ...]] = (), ()  # classes, those asked for
        parts = 2 * max(1, len(self._asked or ()))
        self._share = (max(1, capacity // parts), most_bytes // parts)
        self.sizes: dict[PeerId, int] = {}
        """Bytes of each peer's presence, in the order in which they got their places. To be read only."""
        self.bytes = 0
        self.down: dict[PeerId, None] = {}
        """The peers that are down, longest first; the table keeps it."""
        self.silent: dict[PeerId, None] = {}
        """The peers that do not answer; the table keeps it."""
        self._heard: dict[PeerId, None] = {}  # the peers of merely heard classes, in the order of `sizes`
        self._counted: dict[PeerId, tuple[str, ...]] = {}  # the asked classes of each of the others
        self._held: dict[str, list[int]] = {}  # by asked class: its peers and their bytes

    def clear(self) -> None:
        """Forgets all."""
        self.bytes = 0
        for kept in (self.sizes, self.down, self.silent, self._heard, self._counted, self._held):
            kept.clear()

    def sit(self, peer: PeerId, classes: tuple[str, ...], size: int) -> None:
        """Gives a peer a place, or changes what it holds: its classes and the bytes of its presence."""
        asked = self._asked_of(classes)
        before = self.sizes.get(peer)
        if before == size and self._counted.get(peer, ()) == asked:
            return
        if before is not None:
            self._uncount(peer, before)
        self.sizes[peer] = size
        self.bytes += size
        if not asked and self._asked is not None:
            self._heard[peer] = None
            return
        if before is not None:
            self._heard.pop(peer, None)
        self._counted[peer] = asked
        for name in asked:
            held = self._held.setdefault(name, [0, 0])
            held[0] += 1
            held[1] += size

    def sit_all(self, sizes: Mapping[PeerId, int], classes: tuple[str, ...]) -> bool:
        """Gives places to many that have none, all of these classes; False, where one would find none."""
        size = sum(sizes.values())
        if len(self.sizes) + len(sizes) > self._capacity or self.bytes + size > self._most_bytes:
            return False
        asked = self._asked_of(classes)
        self.sizes.update(sizes)
        self.bytes += size
        if not asked and self._asked is not None:
            self._heard.update(dict.fromkeys(sizes))
            return True
        self._counted.update(dict.fromkeys(sizes, asked))
        for name in asked:
            held = self._held.setdefault(name, [0, 0])
            held[0] += len(sizes)
            held[1] += size
        return True

    def leave(self, peer: PeerId) -> None:
        """Takes a peer's place away."""
        self._uncount(peer, self.sizes.pop(peer))
        for kept in (self._heard, self.down, self.silent):
            kept.pop(peer, None)

    def _uncount(self, peer: PeerId, size: int) -> None:
        self.bytes -= size
        for name in self._counted.pop(peer, ()):
            held = self._held[name]
            held[0] -= 1
            held[1] -= size
            if not held[0]:
                del self._held[name]

    def _asked_of(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        last, found = self._last_asked  # most peers are of the same classes
        if classes != last:
            asked = self._asked
            found = () if asked is None else tuple(name for name in classes if name in asked)
            self._last_asked = classes, found
        return found

    def who_makes_room(self, peer: PeerId, classes: tuple[str, ...], size: int) -> list[PeerId]:
        """Returns who gives up its place to a peer of these classes, or to what it says anew; often nobody.

        Raises PeersFullError where too few do.
        """
        lacking = self._lacking(peer, size)
        return (
            [] if lacking is None else self._found(peer, size, lacking, self._yielding(peer, classes, size))
        )

    def who_makes_room_for_absent(self, peer: PeerId, classes: tuple[str, ...], size: int) -> list[PeerId]:
        """The same for a peer that is first heard of as down: nobody who is here makes room for one who is
        not, nor is one of a merely heard class noted in the place of another.
        """
        lacking = self._lacking(peer, size)
        if lacking is None:
            return []
        asked = self._asked_of(classes)
        idle = (other for other in self._idle(asked, bool(asked)) if asked and other in self._heard)
        return self._found(peer, size, lacking, idle)

    def _lacking(self, peer: PeerId, size: int) -> int | None:
        """The bytes that are missing, 0 or less where only the place is; None where there is room."""
        here = self.sizes.get(peer)
        lacking = self.bytes - (here or 0) + size - self._most_bytes
        full = here is None and len(self.sizes) >= self._capacity
        return lacking if full or lacking > 0 else None

    def _found(self, peer: PeerId, size: int, lacking: int, yielding: Iterable[PeerId]) -> list[PeerId]:
        found: dict[PeerId, None] = {}
        for other in yielding if size <= self._most_bytes else ():
            if other != peer and other not in found:
                found[other] = None
                lacking -= self.sizes[other]
                if lacking <= 0:
                    return list(found)
        raise self._full(peer, size)

    def _yielding(self, peer: PeerId, classes: tuple[str, ...], size: int) -> Iterator[PeerId]:
        """Those who make room, in order; some of them twice."""
        asked = self._asked_of(classes)
        is_asked = bool(asked) or self._asked is None
        yield from self._idle(asked, is_asked)
        gone = len(self.down)
        for other in self.down:
            if gone * 2 <= self._capacity:
                break
            gone -= 1
            yield other
        if is_asked and self._heard:
            yield from (other for other in reversed(self._heard) if not self._spoke(other))
            yield from (other for other in self.down if other in self._heard)
            yield from reversed(self._heard)
        if any(self._is_short(name, peer, size) for name in asked):
            yield from self._beyond(lambda other: not self._spoke(other))
            yield from self._beyond(lambda _: True)

    def _idle(self, asked: tuple[str, ...], is_asked: bool) -> Iterator[PeerId]:
        """Those from which nothing ever came and that are not here, as far as they make room."""
        for other in self.down:
            if not self._spoke(other):
                yield other
        for other in self.silent:
            if not self._spoke(other) and self._gives_way(other, asked, is_asked):
                yield other

    def _gives_way(self, other: PeerId, asked: tuple[str, ...], is_asked: bool) -> bool:
        """Whether one that does not answer makes room: it would be back at its first answer."""
        if other in self._heard:
            return True
        own = self._counted[other]
        return is_asked and (not own or any(name in asked for name in own) or self._is_beyond(own, {}))

    def _is_short(self, name: str, peer: PeerId, size: int) -> bool:
        """Whether a class would hold no more than its share with this peer of that size in it."""
        count, held = self._held.get(name, (0, 0))
        if name in self._counted.get(peer, ()):
            count, held = count - 1, held - self.sizes[peer]
        return count < self._share[0] and held + size <= self._share[1]

    def _is_beyond(self, own: tuple[str, ...], freed: dict[str, list[int]]) -> bool:
        """Whether each of these classes holds more than its share, without what is freed of it."""
        for name in own:
            count, size = self._held[name]
            less = freed.get(name, (0, 0))
            if count - less[0] <= self._share[0] and size - less[1] <= self._share[1]:
                return False
        return True

    def _beyond(self, may: Callable[[PeerId], bool]) -> Iterator[PeerId]:
        """Those whose asked classes hold more than their share, the last seen first."""
        freed: dict[str, list[int]] = {}
        for other in reversed(self.sizes):
            own = self._counted.get(other, ())
            if own and may(other) and self._is_beyond(own, freed):
                for name in own:
                    less = freed.setdefault(name, [0, 0])
                    less[0] += 1
                    less[1] += self.sizes[other]
                yield other

    def _full(self, peer: PeerId, size: int) -> PeersFullError:
        if len(self.sizes) >= self._capacity and peer not in self.sizes:
            return PeersFullError(
                f"{len(self.sizes)} peers are known already",
                f"peer {peer}",
                "raise limits.max_peers (--config; in Python NodeConfig)",
            )
        return PeersFullError(
            f"a presence of {size} bytes, {self._most_bytes - self.bytes} left of {self._most_bytes}",
            f"peer {peer}",
            "raise limits.peer_bytes (--config; in Python NodeConfig)",
        )
