"""Dials one after another, each on a thread of its own, and how long to wait before the next.

A dial (name lookup, TCP and TLS set-up) blocks; the waits between dials double, with jitter.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

CONNECT_TIMEOUT_S = 5.0
"""Seconds that a TCP connect may take; a lost SYN is sent again after 1 s and after 3 s."""

PATIENCE_MOST = 8
"""Up to so many times longer than at first a handshake is waited for, of TLS and of MQTT: twice as long after
each that took too long. Over a satellite or a crowded cell an answer may take seconds; a node that waited
no longer the next time would never connect.
"""

RETRY_FIRST_S, RETRY_MAX_S = 0.25, 30.0
"""Seconds before the next dial: the first wait, doubled after each failure up to the largest.

A broker that restarts is back within a second or so, hence the short first wait; half a minute keeps a fleet
from storming a broker that stays away, and is short for people who repair it.
"""

STABLE_S = 5.0
"""Seconds that a connection must have lasted to reset the wait before the next dial.

Two processes with the same name take the session from each other: with a reset at each connect they would
do so at full speed (not every broker sends 0x8E), and a broker that accepts and dies would be dialed so.
"""

RETRY_KNOWN_S = 2.0
"""Seconds that the wait may be after a connection that was lost sooner, while nobody contests the name.

A broker that is restarted several times in a row is one that lets this node in: waits that add up over its
outages would keep nodes away for longer than a round takes.
"""


class Dialing:
    """The dials of one connection. All methods belong to the driver's thread."""

    __slots__ = ("_jitter", "_next_at", "_thread", "_wait_s", "_wake", "error", "patience")

    def __init__(self, jitter: random.Random, wake: Callable[[], None]) -> None:
        """`wake()` is called from the thread of a dial, once that has ended."""
        self._jitter = jitter
        self._wake = wake
        self._thread: threading.Thread | None = None
        self._wait_s = RETRY_FIRST_S
        self._next_at = 0.0
        self.error: OSError | ValueError | None = None
        """Why the last dial has failed; None if it has not."""
        self.patience = 1
        """How many times longer than at first a handshake is waited for: what the link has needed so far."""

    # --- a dial ---------------------------------------------------------------------------------------

    def begin(self, connect: Callable[[], object]) -> None:
        """Calls `connect()` on a thread; an OSError or ValueError of it is kept as `error`."""
        self.error = None

        def run() -> None:
            try:
                connect()
            except (OSError, ValueError) as error:
                self.error = error
            finally:
                self._wake()

        self._thread = threading.Thread(target=run, name="bb-mqtt-dial", daemon=True)
        self._thread.start()

    def take_end(self, has_socket: Callable[[], bool]) -> bool:
        """Whether the dial has ended since the last call: it has failed, or there is a socket."""
        thread = self._thread
        if thread is None or (thread.is_alive() and not has_socket() and self.error is None):
            return False
        thread.join()
        self._thread = None
        return True

    def join(self) -> None:
        """Waits for a dial that goes on, which takes little longer than `CONNECT_TIMEOUT_S`."""
        if self._thread is not None:
            self._thread.join(CONNECT_TIMEOUT_S + 1)

    def took_too_long(self) -> None:
        """A handshake did not end in time: the next one is given twice as long."""
        self.patience = min(2 * self.patience, PATIENCE_MOST)

    # --- the wait before the next ---------------------------------------------------------------------

    @property
    def left_s(self) -> float:
        """Seconds until the next dial; 0 or less: it is time."""
        return self._next_at - time.monotonic()

    def at_once(self) -> None:
        """The next dial comes without a wait."""
        self._next_at = time.monotonic()

    def put_off(self) -> float:
        """Sets the time of the next dial: after a wait, in seconds, that doubles each time, with jitter."""
        wait_s = self._wait_s * (0.5 + self._jitter.random())
        self._wait_s = min(self._wait_s * 2, RETRY_MAX_S)
        self._next_at = time.monotonic() + wait_s
        return wait_s

    def lost(self, lasted_s: float) -> None:
        """A connection has ended that lasted so long; after a stable one the waits begin anew."""
        self._wait_s = RETRY_FIRST_S if lasted_s >= STABLE_S else min(self._wait_s, RETRY_KNOWN_S)

    def wait_long(self) -> None:
        """The next wait is the longest: somebody else uses the name."""
        self._wait_s = RETRY_MAX_S
