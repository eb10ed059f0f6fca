"""`Places` against its rules written down once more, over plain lists and with nothing counted beforehand."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from bb_edge.ir.ids import PeerId
from bb_edge.wire.places import PeersFullError, Places
from tests.aids.peers import numbered

ASKED = ("A", "B", "C")
CLASSES = (("A",), ("B",), ("C",), ("A", "B"), ("heard",), (), ("A", "heard"))
NUMBERS = range(1, 41)


@dataclass(frozen=True)
class Seat:
    """A peer of the model, with the asked ones among its classes."""

    number: int
    asked: tuple[str, ...]
    size: int


class Model:
    """The rules of `bb_edge/wire/places.py`, in the words of its text."""

    def __init__(
        self, capacity: int, most_bytes: int, spoke: set[int], asked: tuple[str, ...] | None
    ) -> None:
        self.capacity, self.most_bytes, self.spoke, self.asked = capacity, most_bytes, spoke, asked
        shares = 2 * max(1, len(asked or ()))
        self.most_peers_of_a_class = max(1, capacity // shares)
        self.most_bytes_of_a_class = most_bytes // shares
        self.seats: list[Seat] = []
        self.heard: list[int] = []
        self.down: list[int] = []
        self.silent: list[int] = []

    def among_asked(self, classes: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in classes if name in (self.asked or ()))

    def seat_of(self, number: int) -> Seat | None:
        return next((seat for seat in self.seats if seat.number == number), None)

    def sit(self, number: int, classes: Sequence[str], size: int) -> None:
        seat = Seat(number, self.among_asked(classes), size)
        at = next((i for i, old in enumerate(self.seats) if old.number == number), None)
        if at is None:
            self.seats.append(seat)
        else:
            self.seats[at] = seat
        if self.asked is None or seat.asked:
            self.heard = [other for other in self.heard if other != number]
        elif number not in self.heard:
            self.heard.append(number)

    def leave(self, number: int) -> None:
        self.seats = [seat for seat in self.seats if seat.number != number]
        for kept in (self.heard, self.down, self.silent):
            kept[:] = [other for other in kept if other != number]

    def beyond_share(self, name: str, without: Sequence[int]) -> bool:
        """Whether a class holds more than its share, when some peers are gone."""
        held = [s.size for s in self.seats if name in s.asked and s.number not in without]
        return len(held) > self.most_peers_of_a_class or sum(held) > self.most_bytes_of_a_class

    def fits_share(self, name: str, number: int, size: int) -> bool:
        """Whether a class holds no more than its share with the newcomer in it."""
        held = [s.size for s in self.seats if name in s.asked and s.number != number] + [size]
        return len(held) <= self.most_peers_of_a_class and sum(held) <= self.most_bytes_of_a_class

    def idle(self, asked: tuple[str, ...], is_asked: bool) -> Iterator[int]:
        yield from (n for n in self.down if n not in self.spoke)
        for number in self.silent:
            seat = self.seat_of(number)
            assert seat is not None
            own = seat.asked
            same_or_beyond = not own or set(own) & set(asked) or all(self.beyond_share(n, ()) for n in own)
            if number not in self.spoke and (number in self.heard or (is_asked and same_or_beyond)):
                yield number

    def beyond(self, may: Callable[[int], bool]) -> Iterator[int]:
        gone: list[int] = []
        for seat in reversed(self.seats):
            if seat.asked and may(seat.number) and all(self.beyond_share(n, gone) for n in seat.asked):
                gone.append(seat.number)
                yield seat.number

    def yielding(self, number: int, classes: Sequence[str], size: int) -> Iterator[int]:
        asked = self.among_asked(classes)
        is_asked = bool(asked) or self.asked is None
        yield from self.idle(asked, is_asked)
        half = self.capacity // 2
        yield from self.down[: max(0, len(self.down) - half)]
        if is_asked:
            yield from (n for n in reversed(self.heard) if n not in self.spoke)
            yield from (n for n in self.down if n in self.heard)
            yield from reversed(self.heard)
        if any(self.fits_share(name, number, size) for name in asked):
            yield from self.beyond(lambda n: n not in self.spoke)
            yield from self.beyond(lambda _: True)

    def room(self, number: int, size: int, yielding: Iterator[int]) -> list[int] | str:
        """Who makes room, in order; or what the refusal says."""
        here = self.seat_of(number)
        used = sum(seat.size for seat in self.seats)
        lacking = used - (here.size if here else 0) + size - self.most_bytes
        full = here is None and len(self.seats) >= self.capacity
        if not full and lacking <= 0:
            return []
        found: list[int] = []
        if size <= self.most_bytes:
            for other in yielding:
                if other == number or other in found:
                    continue
                found.append(other)
                seat = self.seat_of(other)
                assert seat is not None
                lacking -= seat.size
                if lacking <= 0:
                    return found
        who = f"peer {numbered(number)}"
        if full:
            remedy = "raise limits.max_peers (--config; in Python NodeConfig)"
            return f"{who}: {len(self.seats)} peers are known already ({remedy})"
        left = self.most_bytes - used
        return (
            f"{who}: a presence of {size} bytes, {left} left of {self.most_bytes} "
            "(raise limits.peer_bytes (--config; in Python NodeConfig))"
        )


def told(answer: Callable[[], list[PeerId]]) -> list[int] | str:
    """What the table says, as the model says it."""
    try:
        return [numbers[peer] for peer in answer()]
    except PeersFullError as error:
        return f"{error.where}: {error.what} ({error.hint})"


numbers = {numbered(number): number for number in NUMBERS}


@pytest.mark.parametrize("asked", [None, ASKED[:1], ASKED[:2], ASKED, ()])
@pytest.mark.parametrize("capacity", [1, 2, 5, 6, 8, 12, 24])
def test_it_does_what_its_rules_say(capacity: int, asked: tuple[str, ...] | None) -> None:
    """A thousand changes of random tables; each is asked about every kind of newcomer."""
    refused = made_room = 0
    for seed in range(16):
        rng = random.Random(f"{seed} {capacity} {asked}")
        most_bytes = rng.choice([40, 41, 100, 1000])
        smallest = rng.choice([3, 21])
        # in every second world one or two classes hold all, beyond their shares, and all are here
        likely = CLASSES if seed % 2 else CLASSES[:1] * 9 + CLASSES[1:2] * rng.choice([1, 5]) + CLASSES[2:4]
        leaving = 0.2 if seed % 2 else 0.02
        spoke: set[int] = set()
        model = Model(capacity, most_bytes, spoke, asked)
        places = Places(capacity, most_bytes, lambda peer, s=spoke: numbers[peer] in s, asked)  # type: ignore[misc]
        for _ in range(120):
            number, classes, size = rng.choice(NUMBERS), rng.choice(likely), rng.randint(1, smallest)
            if rng.random() < 0.2:  # several small ones make room for it
                size = rng.randint(smallest, max(smallest, model.most_bytes_of_a_class))
            if rng.random() < 0.02:
                size = most_bytes + rng.randint(0, 1)
            if rng.random() < 0.01:
                places.clear()
                for other in [seat.number for seat in model.seats]:
                    model.leave(other)
            peer = numbered(number)
            expected = model.room(number, size, model.yielding(number, classes, size))
            assert told(lambda: places.who_makes_room(peer, classes, size)) == expected  # noqa: B023
            mine = model.among_asked(classes)
            idle = (n for n in model.idle(mine, bool(mine)) if mine and n in model.heard)
            absent = model.room(number, size, idle)
            assert told(lambda: places.who_makes_room_for_absent(peer, classes, size)) == absent  # noqa: B023
            if isinstance(expected, str):
                refused += 1
                seated = [seat.number for seat in model.seats]
                if seated and rng.random() < 0.3:
                    gone = rng.choice(seated)
                    model.leave(gone)
                    places.leave(numbered(gone))
                continue
            for other in expected:
                made_room += 1
                model.leave(other)
                places.leave(numbered(other))
            model.sit(number, classes, size)
            places.sit(peer, classes, size)
            assert places.bytes == sum(seat.size for seat in model.seats)
            assert places.sizes == {numbered(seat.number): seat.size for seat in model.seats}
            for kept, plain, chance in (
                (places.down, model.down, leaving),
                (places.silent, model.silent, leaving),
            ):
                if rng.random() < chance and number not in plain:
                    plain.append(number)
                    kept[peer] = None
                elif rng.random() < 0.2 and number in plain:
                    plain.remove(number)
                    del kept[peer]
            if rng.random() < 0.5:
                spoke.add(number)
    assert refused and made_room, "the worlds are too small to say anything"


@pytest.mark.parametrize(
    ("of_a", "of_c", "size", "expected"),
    [
        ([1, 5, 5], [12, 12, 12, 13], 10, [3, 7]),  # A holds 11 of its 10 bytes: one seat more than its share
        ([1, 1, 1, 1, 1], [14, 14, 14, 13], 6, [5, 9]),  # A holds 5 of its 4 places
        ([5, 5, 5, 5], [20, 20], 10, [4, 3]),  # A holds 20 bytes, and gives two seats
        ([1, 1, 1, 1, 1, 1], [18, 18, 18], 9, [6, 5, 9]),  # A holds 6 places, gives two, then C one
    ],
)
def test_a_class_gives_no_more_than_what_is_beyond_its_share(
    of_a: list[int], of_c: list[int], size: int, expected: list[int]
) -> None:
    """The share of each of three classes is 4 of 24 places and 10 of 60 bytes; those seen last give first."""
    places = Places(24, 60, lambda _: True, ASKED)
    for at, seat in enumerate(of_a, 1):
        places.sit(numbered(at), ("A",), seat)
    last_of_a = len(of_a)
    for at, seat in enumerate(of_c, last_of_a + 1):
        places.sit(numbered(at), ("C",), seat)
    for at, seat in enumerate(of_a, 1):  # seen anew, behind those of C
        places.leave(numbered(at))
        places.sit(numbered(at), ("A",), seat)
    assert told(lambda: places.who_makes_room(numbered(40), ("B",), size)) == expected
