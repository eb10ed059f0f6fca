"""Certificates that end or are renewed while a node runs: it runs for months, and reads them again."""

from __future__ import annotations

import math
import os
import ssl
import time
from collections.abc import Callable

from bb_edge.input_files import FileRefused
from bb_edge.transport.base import Log
from bb_edge.transport.broker import Broker, BrokerFileError
from bb_edge.transport.certificate import Certificate
from bb_edge.transport.credentials import expiry

LOOK_S = 60.0
"""Seconds between two looks at the files' times and at the clock: a stat of three files costs nothing."""
REPEAT_S = 86400.0
"""Seconds between two lines about the same end: once a day, for a month."""

Files = tuple[tuple[int, int, int] | None, ...]
"""Of each file what changes when it is written anew: inode, size and time; None where it is not there."""


def _files(broker: Broker) -> Files:
    return tuple(_stamp(path) for path in (broker.ca_file, broker.cert_file, broker.key_file))


def _stamp(path: str | None) -> tuple[int, int, int] | None:
    try:
        status = None if path is None else os.stat(path)
    except OSError:
        return None
    return None if status is None else (status.st_ino, status.st_size, status.st_mtime_ns)


class TlsContext:
    """The TLS context for the next dial: it is made anew where its files were renewed."""

    def __init__(self, broker: Broker, log: Log) -> None:
        """Raises BrokerFileError and FileRefused where a file cannot be used."""
        self._broker, self._log = broker, log
        self._files = _files(broker)
        self._context = broker.tls_context()

    def current(self) -> ssl.SSLContext | None:
        """The context; where renewed files cannot be used, the one before, and the log says why.

        Such files are read again at the next dial: somebody may be in the middle of writing them.
        """
        if self._context is None or (files := _files(self._broker)) == self._files:
            return self._context
        try:
            self._context = self._broker.tls_context()
        except (BrokerFileError, FileRefused) as error:
            self._log(
                "warning", f"the node connects with the certificates that it has: {error}", kind="certificate"
            )
        else:
            self._files = files
        return self._context


class CertificateWatch:
    """Says when a certificate ends soon or has ended: at once, and then once a day until it is renewed."""

    def __init__(
        self,
        broker: Broker,
        log: Log,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Looks for the first time. `clock` gives monotonic seconds, `wall` those since 1970."""
        self._broker, self._log, self._clock, self._wall = broker, log, clock, wall
        self._files: Files | None = None
        self._client = self._authority = Certificate()
        self._said: dict[str, float] = {}  # lines, and when each is said again
        self._next = -math.inf
        self.beat()

    def beat(self) -> None:
        """Looks again where it is time to; to be called once per turn of the driver's loop."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + LOOK_S
        self._read()
        before, self._said = self._said, {}
        for line in expiry(self._broker, self._client, self._authority, self._wall()):
            again_at = before.get(line, now)
            if now >= again_at:
                again_at = now + REPEAT_S
                self._log("warning", line, kind="certificate")
            self._said[line] = again_at
        if before and not self._said:
            self._log("info", "the certificates in the files are in force", kind="certificate")

    @property
    def counters(self) -> dict[str, float]:
        """Seconds until the end of the node's certificate and of the authority; infinite without one."""
        now = self._wall()
        return {
            "certificate.seconds_left": _left(self._client, now),
            "certificate.ca_seconds_left": _left(self._authority, now),
        }

    def _read(self) -> None:
        """Reads the files that have changed; what cannot be read is as it was, and read again."""
        broker = self._broker
        if (files := _files(broker)) == self._files:
            return
        client, authority = Certificate(), Certificate()
        if broker.cert_file is not None:
            client = Certificate.of(broker.cert_file)
        if broker.ca_file is not None:
            authority = Certificate.last_of(broker.ca_file)
        if client.ends_s is not None or broker.cert_file is None:
            self._client = client
        else:
            files = ()
        if authority.ends_s is not None or broker.ca_file is None:
            self._authority = authority
        else:
            files = ()
        self._files = files


def _left(certificate: Certificate, now_s: float) -> float:
    ends_s = certificate.ends_s
    return math.inf if ends_s is None else math.floor(ends_s - now_s)
