"""Messages of topics that a node did not subscribe to: unsubscribed from, then the session is begun anew."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bb_edge.transport import strays as module
from bb_edge.transport.strays import PATIENCE_S, Strays

TOPIC = b"bb/f/server/from/old"
FILTERS = ("bb/f/server/from/+", "bb/f/server/chunk/+", "bb/f/server/from/old")


class Recorded:
    """A link that writes down what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def subscribe(self, filters: Sequence[str], qos: int = 1) -> None:
        self.asked.append(("subscribe", tuple(filters)))

    def unsubscribe(self, filters: Sequence[str]) -> None:
        self.asked.append(("unsubscribe", tuple(filters)))

    def redial(self, reason: str, clean: bool = False) -> None:
        self.asked.append(("redial", clean))

    def contested(self) -> None:
        self.asked.append(("contested",))


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


def strays(link: Recorded) -> Strays:
    return Strays([], {"foreign": 0}, link, lambda *_, **__: None)


def test_messages_that_keep_coming_begin_the_session_anew(clock: Clock) -> None:
    link = Recorded()
    found = strays(link)
    found.take(TOPIC)
    found.take(TOPIC)  # it was on its way
    assert link.asked == [("unsubscribe", FILTERS)]
    clock.now += PATIENCE_S + 1
    found.take(TOPIC)
    assert link.asked[1:] == [("redial", True)]


def test_what_comes_on_the_next_connection_is_unsubscribed_from_first(clock: Clock) -> None:
    """A broker that was killed comes back with what it had on disk, and has forgotten that it was told."""
    link = Recorded()
    found = strays(link)
    found.take(TOPIC)
    clock.now += PATIENCE_S + 1
    found.lost()
    found.take(TOPIC)
    assert link.asked == [("unsubscribe", FILTERS)] * 2
    clock.now += PATIENCE_S + 1
    found.take(TOPIC)
    assert link.asked[2:] == [("redial", True)]
