"""What is said of a broker that is away for a day: some thirty lines, and at its end how long it was."""

from __future__ import annotations

import random

import pytest

from bb_edge.transport.dialing import RETRY_MAX_S, Dialing
from bb_edge.transport.outage import AT_ONCE, MOST_REASONS, Outage, duration

GONE = "broker mqtt://b is not reachable: [Errno 111] Connection refused"


def dials(hours: float) -> list[float]:
    """When a node dials a broker that is away for so long."""
    dialing, now, found = Dialing(random.Random(3), lambda: None), 0.0, list[float]()
    while now < hours * 3600:
        found.append(now)
        now += dialing.put_off()
    return found


def test_a_day_is_some_thirty_lines_and_the_end_says_how_long_it_was() -> None:
    outage, tries = Outage(), dials(24)
    assert len(tries) > 24 * 3600 / (2 * RETRY_MAX_S)
    lines = {at: line for at in tries if (line := outage.line(GONE, at)) is not None}
    told = list(lines)
    assert told[:AT_ONCE] == tries[:AT_ONCE], "the first seconds are told one by one"
    assert 20 <= len(lines) <= 40
    gaps = [after - before for before, after in zip(told[AT_ONCE:], told[AT_ONCE + 1 :], strict=False)]
    assert max(gaps) < 3600 + 2 * RETRY_MAX_S
    last = list(lines.values())[-1]
    assert last.startswith(f"{GONE} (") and "of them without a line)" in last
    assert outage.connected(24 * 3600.0) == f", after 1 d 0 h and {len(tries):,} tries"


def test_another_reason_is_told_at_once() -> None:
    outage, tries = Outage(), dials(1)
    for at in tries:
        outage.line(GONE, at)
    assert outage.line("Temporary failure in name resolution", tries[-1] + 1) is not None
    assert outage.line("Temporary failure in name resolution", tries[-1] + 2) is None
    found = [outage.line(f"reason {n}", tries[-1] + 3) for n in range(2 * MOST_REASONS)]
    assert len([line for line in found if line is not None]) == MOST_REASONS - 2, "and they are bounded"


def test_a_connection_that_lasts_ends_the_outage_and_one_that_breaks_off_does_not() -> None:
    outage = Outage()
    assert outage.connected(0.0) == "", "the first one, without a try that has failed"
    outage.lost(60.0)
    assert outage.line("lost", 60.0) == "lost"
    assert outage.connected(60.5) == "", "a broker that restarts is back at once"
    outage.lost(0.5)
    assert outage.line("lost", 61.0) == "lost"
    assert outage.connected(62.0) == ", after 2 s and 2 tries"
    lines, connected = 0, 0
    for second in range(63, 3663):
        outage.lost(0.5)
        lines += outage.line("lost", float(second)) is not None
        connected += outage.connected(second + 0.5) is not None
    assert lines < 20 and connected < 20, "one that flaps for an hour"
    outage.lost(60.0)
    assert outage.line("lost", 4000.0) == "lost"


def test_tries_that_are_told_elsewhere_count() -> None:
    outage = Outage()
    outage.tried(0.0)
    outage.tried(600.0)
    assert outage.connected(1200.0) == ", after 20 min and 2 tries"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (3599, "59 min"), (3600, "1 h 0 min"), (90_000, "1 d 1 h")],
)
def test_a_time_has_two_units_at_most(seconds: float, said: str) -> None:
    assert duration(seconds) == said
