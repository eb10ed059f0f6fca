"""What is on its way: everything for ever, or lines that keep their order, with faults that are counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .nodes import Message


class Everything(NamedTuple):
    """Every message that was ever sent: it may arrive never, once or often, in any order."""

    messages: frozenset[Message] = frozenset()

    def plus(self, sent: Iterable[Message]) -> Everything:
        """The network after something was said."""
        return Everything(self.messages.union(sent))

    def events(self) -> Iterator[tuple[Any, ...]]:
        """What may become of messages."""
        for message in sorted(self.messages):
            yield "hear", message

    def after(self, event: tuple[Any, ...]) -> Everything:
        """The network after one of these."""
        return self

    def cut(self, place: int) -> Everything:
        """What is on its way to a node is lost."""
        return self


class Lines(NamedTuple):
    """What one node says to another arrives in order. A fault takes a message out of its line, or copies it.

    Such a message arrives at any later time, once, or never: so losses, repetitions and late ones are counted
    together, by `faults`. So does what a forger says: each of `forged` may arrive at any time.
    """

    messages: tuple[Message, ...] = ()  # by line, then in order
    astray: tuple[Message, ...] = ()
    faults: int = 0
    forged: tuple[Message, ...] = ()

    def plus(self, sent: Iterable[Message]) -> Lines:
        """The network after something was said."""
        messages = sorted([*self.messages, *sent], key=lambda message: message[:2])
        return self._replace(messages=tuple(messages))

    def events(self) -> Iterator[tuple[Any, ...]]:
        """What may become of messages."""
        before = None
        for message in self.messages:
            if message[:2] != before:
                before = message[:2]
                yield "hear", message
                if self.faults:
                    yield "stray", message
                    yield "repeat", message
        for message in dict.fromkeys(self.astray):
            yield "late", message
        if self.faults:
            for message in self.forged:
                yield "forge", message

    def after(self, event: tuple[Any, ...]) -> Lines:
        """The network after one of these."""
        what, message = event
        if what == "forge":
            return self._replace(faults=self.faults - 1)
        if what == "late":
            place = self.astray.index(message)
            return self._replace(astray=self.astray[:place] + self.astray[place + 1 :])
        place = self.messages.index(message)
        left = self._replace(messages=self.messages[:place] + self.messages[place + 1 :])
        if what == "hear":
            return left
        return left._replace(astray=tuple(sorted([*self.astray, message])), faults=self.faults - 1)

    def cut(self, place: int) -> Lines:
        """What is on its way to a node is lost."""
        return self._replace(messages=tuple([message for message in self.messages if message.dst != place]))
