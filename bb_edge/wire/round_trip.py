"""How long an acknowledgement of one peer takes, and when an envelope to it goes again because none came.

Source: RFC 6298. Its clock granularity is left out: the least interval is far above that of any clock.
"""

from __future__ import annotations


class RoundTrip:
    """The smoothed round trip of one peer and its variation, from what was sent once and acknowledged.

    Of what was repeated nobody knows which copy was acknowledged, so it is not measured (Karn); the interval
    that repeating it came to holds until something is measured. All times in nanoseconds.
    """

    __slots__ = ("srtt_ns", "variation_ns", "wanted_ns")

    def __init__(self) -> None:
        self.wanted_ns = 0
        """How long what is sent now should wait before it goes again; 0 as long as nothing is known."""
        self.srtt_ns = 0
        """0 as long as nothing was measured."""
        self.variation_ns = 0

    def measured(self, took_ns: int) -> None:
        """Takes one round trip: what is sent from now on waits for the mean and four variations."""
        if self.srtt_ns:
            self.variation_ns += (abs(self.srtt_ns - took_ns) - self.variation_ns) // 4
            self.srtt_ns += (took_ns - self.srtt_ns) // 8
        else:
            self.srtt_ns, self.variation_ns = max(1, took_ns), took_ns // 2
        self.wanted_ns = self.srtt_ns + 4 * self.variation_ns

    def repeated(self, interval_ns: int) -> None:
        """Notes that an envelope was repeated, and waits `interval_ns` now."""
        self.wanted_ns = max(self.wanted_ns, interval_ns)

    def interval_ns(self, least_ns: int, longest_ns: int, remaining_ns: int = 0) -> int:
        """Returns how long an envelope that is sent now waits before it goes again.

        At most a quarter of what remains until its deadline (0: it has none), so that whoever is slow to
        acknowledge still gets a second copy in time, and a third; but `least_ns` in any case.
        """
        interval = min(self.wanted_ns, longest_ns)
        return max(least_ns, min(interval, remaining_ns // 4) if remaining_ns else interval)
