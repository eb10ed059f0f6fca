"""Serves `--metrics [HOST:]PORT`: counters at /metrics (Prometheus text format 0.0.4), health at /healthz.

The driver's thread takes a snapshot of the counters a few times a second; threads of the server's write the
last one when they are asked, and touch nothing of the engine. Some clients are served at once, so that one
that sends nothing keeps no probe waiting; where one more comes, the first of them is disconnected. So is one
that sends nothing for five seconds: that is enough for a scraper, and bounds what clients cost.
"""

from __future__ import annotations

import contextlib
import errno
import math
import socket
import threading
import time
from bisect import bisect_left
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bb_edge.ir.errors import BBError
from bb_edge.observe.catalogue import (
    COUNTER,
    CYCLE,
    LONGEST,
    METRICS,
    OF_THE_PROGRAM,
    SPECIAL,
    UP,
    UP_BY_CLASS,
    Metric,
    shown,
)

PUBLISH_EVERY_NS = 250_000_000
"""Nanoseconds between snapshots; scrapers ask once in some seconds, people who look ask oftener."""
UNHEALTHY_AFTER_S = 10.0
"""Seconds without a turn of the driver's loop after which /healthz answers 503; a turn takes a second."""
REQUEST_TIMEOUT_S = 5.0
"""Seconds that a client may send nothing; half of a scraper's usual timeout."""
CLIENTS_AT_ONCE = 8
"""Connections that are open at once, each with a thread: scrapers and probes of a node are two or three."""
CYCLE_BUCKETS_NS = (
    10_000,
    100_000,
    1_000_000,
    5_000_000,
    20_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
)
"""Upper bounds of the histogram of poll durations, in nanoseconds: 10 µs to 10 s."""


class MetricsError(BBError):
    """The text is not an address, or the address cannot be listened on."""


_LISTEN = {
    errno.EADDRINUSE: "another process, such as another node, has this port: give each node one of its own",
    errno.EADDRNOTAVAIL: "this machine has no such address: write PORT alone for loopback, 0.0.0.0:PORT for"
    " all of its addresses",
    errno.EACCES: "name a port from 1024 on: those below are root's",
}


class ListenError(MetricsError):
    """The address cannot be listened on: it is in use, not of this machine now, or not for this user.

    `taken` says that another process has it, `may_pass` that another try may end otherwise.
    """

    def __init__(self, what: str, number: int | None) -> None:
        self.taken = number == errno.EADDRINUSE
        super().__init__(what, "metrics", _LISTEN.get(number or 0, "name an address of this machine"))
        self.may_pass = number not in (errno.EACCES, errno.EPERM)


def parse_address(text: str) -> tuple[str, int]:
    """Parses `[HOST:]PORT`, for IPv6 `[::1]:9100`; without a host it is loopback. Raises MetricsError."""
    host, colon, port = text.rpartition(":")
    host = host.strip("[]") if colon else "127.0.0.1"
    if not host or not port.isdecimal() or not 0 <= int(port) <= 65_535:
        raise MetricsError(f"{text!r} is not an address", "metrics", "write [HOST:]PORT, for example 9100")
    return host, int(port)


class Cycles:
    """A histogram of poll durations, with their sum, count and maximum, in nanoseconds."""

    __slots__ = ("buckets", "count", "longest", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(CYCLE_BUCKETS_NS) + 1)
        self.total = 0
        self.count = 0
        self.longest = 0

    def copy(self) -> Cycles:
        """The same numbers, which change no more."""
        other = Cycles()
        other.buckets = self.buckets.copy()
        other.total, other.count, other.longest = self.total, self.count, self.longest
        return other

    def add(self, duration_ns: int) -> None:
        self.buckets[bisect_left(CYCLE_BUCKETS_NS, duration_ns)] += 1
        self.total += duration_ns
        self.count += 1
        if duration_ns > self.longest:
            self.longest = duration_ns


def render(
    counters: Mapping[str, float],
    cycles: Cycles,
    labels: Mapping[str, str],
    up: Mapping[str, int] | None = None,
    peers_up: int = 0,
) -> str:
    """Writes the Prometheus text: every metric of the catalogue, then the counters that the program makes.

    `counters` are the node's own and the program's by name; those of the catalogue that are absent are 0.
    `peers_up` peers are up now, `up` of them by class.
    """
    text = ",".join(f'{key}="{_escape(value)}"' for key, value in labels.items())
    comma = "," if text else ""
    lines = []
    for name in sorted({*METRICS, *counters}):
        metric = METRICS.get(name) or Metric(COUNTER, OF_THE_PROGRAM)
        spelled = shown(name, metric.kind)
        lines.append(f"{_head(spelled, metric)}{spelled}{{{text}}} {_number(counters.get(name, 0))}\n")
    lines.append(f"{_head(UP)}{UP}{{{text}}} {peers_up}\n{_head(UP_BY_CLASS)}")
    for peer_class, count in sorted((up or {}).items()):
        lines.append(f'{UP_BY_CLASS}{{{text}{comma}class="{_escape(peer_class)}"}} {count}\n')
    running = 0
    lines.append(_head(CYCLE))
    for bound, count in zip((*CYCLE_BUCKETS_NS, "+Inf"), cycles.buckets, strict=True):
        running += count
        lines.append(f'{CYCLE}_bucket{{{text}{comma}le="{bound}"}} {running}\n')
    lines.append(f"{CYCLE}_sum{{{text}}} {cycles.total}\n{CYCLE}_count{{{text}}} {cycles.count}\n")
    lines.append(f"{_head(LONGEST)}{LONGEST}{{{text}}} {cycles.longest}\n")
    return "".join(lines)


def _counts(name: str) -> bool:
    metric = METRICS.get(name)
    return metric is None or metric.kind == COUNTER


def _head(name: str, metric: Metric | None = None) -> str:
    metric = metric or SPECIAL[name]
    text = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {text}\n# TYPE {name} {metric.kind}\n"


def _number(value: float) -> str:
    """A number as the text format writes it: NaN, +Inf and -Inf by these names."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(value)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


Taken = tuple[Mapping[str, float], Cycles, Mapping[str, int], int]
"""A snapshot: counters, polls, peers up by class and in all."""


class _Server(ThreadingHTTPServer):
    """Serves each client on a thread of its own, and not more than `CLIENTS_AT_ONCE`."""

    daemon_threads = True
    request_queue_size = 4 * CLIENTS_AT_ONCE

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._served: dict[Any, None] = {}  # the sockets of clients, the first to come first
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begins to serve a client; disconnects the one that has been there for longest where there are many.

        An answer takes milliseconds: who has been there for longest asks nothing.
        """
        with self._lock:
            if len(self._served) >= CLIENTS_AT_ONCE:
                oldest = next(iter(self._served))
                del self._served[oldest]
                with contextlib.suppress(OSError):  # it is gone already
                    oldest.shutdown(socket.SHUT_RDWR)
            self._served[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """A client has been served, or refused."""
        with self._lock:
            self._served.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores scrapers that hang up early."""


class MetricsServer:
    """Serves the last snapshot of the counters, from a thread of its own."""

    def __init__(self, host: str, port: int, labels: Mapping[str, str]) -> None:
        """Starts to listen. Raises ListenError where the address is in use or not of this machine."""
        self._host = host
        self._labels = dict(labels)
        self._taken: Taken = ({}, Cycles(), {}, 0)
        self.before: Mapping[str, float] = {}
        """What the node's counters began with, from its snapshot. A scraper takes counters to begin with the
        process: after a kill those of a snapshot would step back, and it would count all of them again."""
        self._published_s = time.monotonic()
        self.cycles = Cycles()
        self._next_ns = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_TIMEOUT_S
            server_version = "bb-edge"
            sys_version = ""

            def do_GET(self) -> None:
                outer._answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Logs nothing: a scraper asks every few seconds."""

        class Server(_Server):
            address_family = socket.AF_INET if ":" not in host else socket.AF_INET6

        try:
            self._server = Server((host, port), Handler)
        except OSError as error:
            raise ListenError(f"{host}:{port}: {error.strerror or error}", error.errno) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="bb-metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that is listened on; the system chose it if 0 was asked for."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Where the counters are."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/metrics"

    def due(self, now_ns: int) -> bool:
        """Returns whether it is time for a snapshot; for the driver's thread."""
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + PUBLISH_EVERY_NS
        return True

    def publish(self, counters: Mapping[str, float], up: Mapping[str, int], peers_up: int) -> None:
        """Takes a snapshot of the counters, and of the peers that are up; for the driver's thread."""
        counted = {name: count for name, count in self.before.items() if _counts(name)}
        since = {name: value - counted.get(name, 0) for name, value in counters.items()}
        self._taken = (since, self.cycles.copy(), up, peers_up)
        self._published_s = time.monotonic()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        status, kind, body = 404, "text/plain; charset=utf-8", b"/metrics, /healthz\n"
        if request.path.partition("?")[0] == "/metrics":
            status, kind, body = 200, "text/plain; version=0.0.4; charset=utf-8", self._text()
        elif request.path == "/healthz":
            age = time.monotonic() - self._published_s
            status = 200 if age < UNHEALTHY_AFTER_S else 503
            body = f"last turn of the loop {age:.1f} s ago\n".encode()
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _text(self) -> bytes:
        counters, cycles, up, peers_up = self._taken
        return render(counters, cycles, self._labels, up, peers_up).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(REQUEST_TIMEOUT_S + 1)
