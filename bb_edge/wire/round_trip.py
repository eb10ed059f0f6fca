"""How long an acknowledgement of one peer takes, and when an envelope to it goes again because none came.

Source: RFC 6298. Its clock granularity is left out: the least interval is far above that of any clock.

Rule W14 of the specification.
"""

from __future__ import annotations

from typing import Final

LONGEST_NS: Final = 64_000_000_000
"""What takes longer says that one of both was asleep, and not how long the next one takes."""


class RoundTrip:
    """The smoothed round trip of one peer and its variation, from what was sent once and acknowledged.

    Of what was repeated nobody knows which copy was acknowledged, so it is not measured (Karn); the interval
    that repeating it came to holds until something is measured. An envelope that is repeated though a later
    one was measured is lost, not late, and says nothing of how long others should wait. All times in
    nanoseconds.
    """

    __slots__ = ("given_ns", "measured_ns", "srtt_ns", "variation_ns", "wanted_ns")

    def __init__(self) -> None:
        self.wanted_ns = 0
        """How long what is sent now should wait before it goes again; 0 as long as nothing is known."""
        self.srtt_ns = 0
        """0 as long as nothing was measured."""
        self.variation_ns = 0
        self.given_ns = 0
        """The longest interval that was given since `has_fallen` said so."""
        self.measured_ns = -1
        """When what was measured last was sent; -1 as long as nothing was."""

    def measured(self, took_ns: int, sent_ns: int = 0) -> None:
        """Takes one round trip: what is sent from now on waits for the mean and four variations."""
        took_ns = min(took_ns, LONGEST_NS)
        self.measured_ns = max(self.measured_ns, sent_ns)
        if self.srtt_ns:
            self.variation_ns += (abs(self.srtt_ns - took_ns) - self.variation_ns) // 4
            self.srtt_ns += (took_ns - self.srtt_ns) // 8
        else:
            self.srtt_ns, self.variation_ns = max(1, took_ns), took_ns // 2
        self.wanted_ns = self.srtt_ns + 4 * self.variation_ns

    def repeated(self, interval_ns: int, now_ns: int) -> None:
        """Notes that an envelope goes again now, and waits `interval_ns`, twice as long as it did."""
        if now_ns - interval_ns // 2 > self.measured_ns:
            self.wanted_ns = max(self.wanted_ns, interval_ns)

    def interval_ns(self, least_ns: int, longest_ns: int, remaining_ns: int = 0) -> int:
        """Returns how long an envelope that is sent now waits before it goes again.

        At most a quarter of what remains until its deadline (0: it has none), so that whoever is slow to
        acknowledge still gets a second copy in time, and a third; but `least_ns` in any case.
        """
        interval = min(self.wanted_ns, longest_ns)
        interval = max(least_ns, min(interval, remaining_ns // 4) if remaining_ns else interval)
        self.given_ns = max(self.given_ns, interval)
        return interval

    def has_fallen(self, least_ns: int) -> bool:
        """Whether what is sent now waits half as long as something that was sent, or less; said once."""
        now = max(least_ns, self.wanted_ns)
        if self.given_ns < 2 * now:
            return False
        self.given_ns = now
        return True
