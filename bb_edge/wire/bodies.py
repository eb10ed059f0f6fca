"""Bodies: the fills of an envelope as bytes, which the envelopes to all peers of one fan-out share.

What else an envelope says (its number, its deadline, acknowledgements) stands behind the fills, in some sixty
bytes of its own. So an envelope with large fills is kept and handed on in two parts, `body` and the rest;
together they are its bytes. One with small fills has no body: two parts would cost more than a copy.
"""

from __future__ import annotations

from typing import Final, TypeAlias

Body: TypeAlias = bytes | memoryview
"""A body: bytes, or a view of bytes that somebody keeps elsewhere than in the heap."""

SHARED_FROM: Final = 4096
"""Bytes of payloads from which an envelope has a body: a page, which is copied in less time than a second
piece takes on its way to the socket."""


class HeldBodies:
    """Which bodies are held by how many envelopes: the bytes of each count once."""

    __slots__ = ("_holders",)

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}  # by identity: whoever holds a body keeps it alive

    def adds(self, body: Body) -> int:
        """How many bytes one more envelope with that body adds."""
        return 0 if id(body) in self._holders else len(body)

    def hold(self, body: Body) -> int:
        """Counts one more envelope with that body; returns the bytes that it adds."""
        name = id(body)
        held = self._holders.get(name, 0)
        self._holders[name] = held + 1
        return 0 if held else len(body)

    def drop(self, body: Body) -> int:
        """Counts one less, before it lets go of the body; returns the bytes that are free with it."""
        left = self._holders[id(body)] - 1
        if left:
            self._holders[id(body)] = left
            return 0
        del self._holders[id(body)]
        return len(body)


class BodyName(bytes):
    """The SHA-256 of a body: its name in the outbox on disk."""

    __slots__ = ()


NO_BODY: Final = BodyName()


class Shelved:
    """A body in a row that is written down: rows name it, and a snapshot has it once."""

    __slots__ = ("body",)

    def __init__(self, body: Body) -> None:
        self.body = body


def shelved(body: Body) -> Shelved | int:
    """What a row has for a body; 0 where there is none."""
    return Shelved(body) if body else 0


class Shelf:
    """The bodies of one snapshot, each once; rows have their places, from 1 on."""

    __slots__ = ("_places", "bodies")

    def __init__(self) -> None:
        self.bodies: list[Body] = []
        self._places: dict[int, int] = {}  # by identity

    def place(self, body: Body) -> int:
        """The place of a body."""
        place = self._places.get(id(body))
        if place is None:
            self.bodies.append(body)
            place = self._places[id(body)] = len(self.bodies)
        return place
