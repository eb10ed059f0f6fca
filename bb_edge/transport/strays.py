"""Messages of topics that a node did not subscribe to: what to do about them. No IO.

The broker keeps a client's subscriptions for as long as its session. One that another life of this client
made, with another program or by another runtime, is unsubscribed from; if its messages come all the same, the
session is begun anew.
"""

from __future__ import annotations

import time
from collections.abc import MutableMapping, Sequence

from bb_edge.transport.base import Link, Log
from bb_edge.transport.seldom import Seldom
from bb_edge.transport.topics import Topics

MOST = 16
"""Subscriptions that are unsubscribed from one by one; beyond, the session is begun anew."""
PATIENCE_S = 5.0
"""Seconds in which messages that were on their way may still come."""


class Strays:
    """The subscriptions of a session that are not this node's."""

    def __init__(
        self,
        own: Sequence[str],
        counters: MutableMapping[str, int],
        link: Link,
        log: Log,
    ) -> None:
        """`own` are the filters that stay."""
        self._own = frozenset(own)
        self._counters = counters
        self._link = link
        self._log = log
        self._left: dict[str, float] = {}  # filters that were unsubscribed from, and when
        self._renewals = Seldom()

    def lost(self) -> None:
        """The connection has ended. Of what comes on the next one the broker is told again, before anything
        more is done: it may not have had the time to forget, or be another process that came back.
        """
        self._left.clear()

    def take(self, topic: bytes) -> None:
        """Drops a message of a topic that the node did not subscribe to."""
        self._counters["foreign"] += 1
        now = time.monotonic()
        filters = tuple(f for f in Topics.filters_of(topic) if f not in self._own)
        since = self._left.get(filters[0])
        if since is None and len(self._left) < MOST:
            self._left[filters[0]] = now
            self._link.unsubscribe(filters)
            self._log(
                "warning",
                f"topic {topic[:120].decode('utf-8', 'replace')!r}: the broker keeps a subscription of"
                f" another life of this client; unsubscribing from {filters[0]}",
                kind="foreign subscription",
            )
        elif (since is None or now - since > PATIENCE_S) and self._renewals.passes(now):
            self._left.clear()
            what = f"messages of {filters[0]} keep coming, which this node has not subscribed to"
            self._link.redial(what, clean=True)
