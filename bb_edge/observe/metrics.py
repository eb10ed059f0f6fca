"""`--metrics [HOST:]PORT`: a node's counters in Prometheus' text format 0.0.4, at /metrics; its health at
/healthz.

The driver's thread publishes a snapshot, at most a few times a second; the server's thread renders the last
one. Nothing of the engine is touched from the server's thread. One request is served at a time, and one that
says nothing for five seconds is hung up on: a scraper needs no more, and nobody can make the node keep more.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from bb_edge.ir.counters import spelling
from bb_edge.ir.errors import BBError

PUBLISH_EVERY_NS = 250_000_000
UNHEALTHY_AFTER_S = 10.0
"""A driver's loop comes round every second; one that has not for so long hangs."""
REQUEST_TIMEOUT_S = 5.0
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
"""Upper bounds of the poll durations' histogram: 10 µs to 10 s."""

GAUGES = frozenset(
    {
        "pending_async.count",
        "frontier.depth_peak",
        "executions.active",
        "executions.peak",
        "ingress.bytes",
        "requests.open",
        "mqtt.connected",
        "mqtt.waiting",
        "process.rss_bytes",
        "process.peak_rss_bytes",
        "peers.up.now",
        "bootstraps.pending",
        "bootstraps.running",
        "bootstraps.failed",
        "bootstraps.done",
        "state.generation",
        "state.journal_bytes",
        "state.outbox_bytes",
        "state.outbox_records",
    }
)
"""What may fall again; everything else counts up."""


class MetricsError(BBError):
    """An address that cannot be listened on, or is none."""


def parse_address(text: str) -> tuple[str, int]:
    """`[HOST:]PORT`, loopback where no host is named; `[::1]:9100` for IPv6. MetricsError otherwise."""
    host, colon, port = text.rpartition(":")
    host = host.strip("[]") if colon else "127.0.0.1"
    if not host or not port.isdecimal() or not 0 <= int(port) <= 65_535:
        raise MetricsError(f"{text!r} is no address", "metrics", "write [HOST:]PORT, for example 9100")
    return host, int(port)


class Cycles:
    """Durations of polls: a histogram with a sum, a count and the longest. Nanoseconds."""

    __slots__ = ("buckets", "count", "longest", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(CYCLE_BUCKETS_NS) + 1)
        self.total = 0
        self.count = 0
        self.longest = 0

    def add(self, duration_ns: int) -> None:
        self.buckets[bisect_left(CYCLE_BUCKETS_NS, duration_ns)] += 1
        self.total += duration_ns
        self.count += 1
        if duration_ns > self.longest:
            self.longest = duration_ns


def render(counters: Mapping[str, int], cycles: Cycles, labels: Mapping[str, str]) -> str:
    """Prometheus' text: every counter as `bb_<name>`, dots as underscores, with the labels."""
    text = ",".join(f'{key}="{_escape(value)}"' for key, value in labels.items())
    found = []
    for name, value in sorted(counters.items()):
        gauge = name in GAUGES
        metric = f"bb_{spelling(name)}"
        if not gauge:
            metric += "_total"
        found.append(f"# TYPE {metric} {'gauge' if gauge else 'counter'}\n{metric}{{{text}}} {value}\n")
    name, running = "bb_cycle_duration_ns", 0
    found.append(f"# TYPE {name} histogram\n")
    comma = "," if text else ""
    for bound, count in zip((*CYCLE_BUCKETS_NS, "+Inf"), cycles.buckets, strict=True):
        running += count
        found.append(f'{name}_bucket{{{text}{comma}le="{bound}"}} {running}\n')
    found.append(f"{name}_sum{{{text}}} {cycles.total}\n{name}_count{{{text}}} {cycles.count}\n")
    found.append(f"# TYPE {name}_longest gauge\n{name}_longest{{{text}}} {cycles.longest}\n")
    return "".join(found)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class MetricsServer:
    """Serves the last snapshot, from a thread of its own."""

    def __init__(self, host: str, port: int, labels: Mapping[str, str]) -> None:
        """Listens at once. MetricsError where the address is taken or is not this machine's."""
        self._labels = dict(labels)
        self._text = b""
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
                """Scrapes are no news."""

        class Server(HTTPServer):
            address_family = HTTPServer.address_family if ":" not in host else _inet6()

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A scraper that hung up is its own business."""

        try:
            self._server = Server((host, port), Handler)
        except OSError as error:
            raise MetricsError(f"{host}:{port}: {error.strerror or error}", "metrics") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="bb-metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port, also where 0 asked for any."""
        return int(self._server.server_address[1])

    def due(self, now_ns: int) -> bool:
        """Whether it is time for a snapshot; asked by the driver's thread."""
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + PUBLISH_EVERY_NS
        return True

    def publish(self, counters: Mapping[str, int]) -> None:
        """Takes a snapshot; on the driver's thread."""
        self._text = render(counters, self.cycles, self._labels).encode()
        self._published_s = time.monotonic()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        status, kind, body = 404, "text/plain; charset=utf-8", b"/metrics, /healthz\n"
        if request.path.partition("?")[0] == "/metrics":
            status, kind, body = 200, "text/plain; version=0.0.4; charset=utf-8", self._text
        elif request.path == "/healthz":
            age = time.monotonic() - self._published_s
            status = 200 if age < UNHEALTHY_AFTER_S else 503
            body = f"last turn of the loop {age:.1f} s ago\n".encode()
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(REQUEST_TIMEOUT_S + 1)


def _inet6() -> Any:
    import socket

    return socket.AF_INET6
