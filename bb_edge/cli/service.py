"""Connects a running node with the service manager, a trace and metrics.

The driver's loop calls all of them. The watchdog is petted by the same thread that does the work, so a node
that hangs is restarted, and a node that merely waits is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from bb_edge.cli.bootstraps import counts, summary
from bb_edge.cli.render import Output
from bb_edge.cli.replay_progress import ReplayProgress
from bb_edge.engine.steps import EngineStep
from bb_edge.transport.driver import MAX_WAIT_S, Polled

if TYPE_CHECKING:
    from bb_edge.node import Node
    from bb_edge.observe.metrics import MetricsServer
    from bb_edge.observe.trace import Trace
    from bb_edge.state.keeper import Keeper
    from bb_edge.transport.mqtt import MqttTransport
    from bb_edge.transport.renewal import CertificateWatch
    from bb_shims import Board

PETS_PER_TIMEOUT = 3
"""Pets per timeout of the watchdog; systemd recommends two, the third covers a slow poll."""


class Service:
    """A context around `Driver.run`: opens everything at its start, and closes it at its end."""

    def __init__(
        self,
        board: Board,
        node: Node,
        transport: MqttTransport,
        output: Output,
        keeper: Keeper | None,
        certificates: CertificateWatch,
        trace: Trace | None,
        metrics: MetricsServer | None,
        counted_before: Mapping[str, int],
    ) -> None:
        self._board = board
        self._node = node
        self._transport = transport
        self._output = output
        self._keeper = keeper
        self._certificates = certificates
        self._stack = ExitStack()
        self._trace = trace
        self._metrics = metrics
        self._counted_before = counted_before
        self._pet_every_ns = 0
        self._next_pet_ns = 0
        self._replay = ReplayProgress(lambda: node.counters["journal.waiting"], output.log)
        self._last_status = ""  # as the service manager has it
        self.polled: Polled | None = None
        self.max_wait_s = MAX_WAIT_S

    def __enter__(self) -> Service:
        with self._stack:
            self._open()
            self._stack = self._stack.pop_all()  # everything is open, and stays so until __exit__
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _open(self) -> None:
        board, output, trace = self._board, self._output, self._trace
        if trace is not None:
            self._stack.callback(self._end_trace, trace)
            self._node.observe_ops(trace.wrap)
        if self._metrics is not None:
            self._metrics.before = self._counted_before
            self._publish()
            output.log("info", f"metrics at {self._metrics.url}")
        if trace is not None or self._metrics is not None:
            self.polled = self._polled
        if not board.clock.wall_is_set():
            output.log("warning", "the wall clock is not set: timestamps of this node are wrong until it is")
        watchdog, notifier = board.watchdog, board.notifier
        if watchdog is not None:
            self._pet_every_ns = max(1, watchdog.timeout_ns // PETS_PER_TIMEOUT)
            self.max_wait_s = min(MAX_WAIT_S, self._pet_every_ns / 1e9)
        if notifier is not None:
            self._stack.callback(self._tell, notifier.stopping)
            self._tell(notifier.ready)

    # --- the driver's loop ----------------------------------------------------------------------------

    def beat(self, now_ns: int) -> None:
        """Pets the watchdog, watches certificates, tells counters and status; once per turn of the loop."""
        if self._pet_every_ns and now_ns >= self._next_pet_ns and self._board.watchdog is not None:
            self._next_pet_ns = now_ns + self._pet_every_ns
            self._tell(self._board.watchdog.pet)
        self._certificates.beat()
        self._replay.beat(now_ns)
        if self._metrics is not None and self._metrics.due(now_ns):
            self._publish()
        notifier = self._board.notifier
        if notifier is not None:
            status = self._status(now_ns)
            if status != self._last_status:
                self._last_status = status
                self._tell(lambda: notifier.status(status))
        trace = self._trace
        if trace is not None and trace.error:
            self._output.log("error", f"the trace has ended: {trace.error}")
            self._trace = None

    def _status(self, now_ns: int) -> str:
        """One line such as `Client: connected; bootstrap: failed (next try in 4 s)`."""
        where = "connected" if self._transport.connected else "waiting for the broker"
        parts = (f"{', '.join(self._node.targets)}: {where}", summary(self._node.bootstraps, now_ns))
        return "; ".join(part for part in parts if part)

    def _polled(self, began_ns: int, ended_ns: int, polled: Sequence[EngineStep]) -> None:
        if self._metrics is not None:
            self._metrics.cycles.add(ended_ns - began_ns)
        if self._trace is not None:
            self._trace.polled(began_ns, ended_ns, polled)

    def _publish(self) -> None:
        if self._metrics is None:
            return
        memory = self._board.memory.info()
        transport = self._transport
        up_by_class, up, up_apart = self._node.peers_up_now
        self._metrics.publish(
            {
                **self._node.counters,
                **counts(self._node.bootstraps),
                **({} if self._keeper is None else self._keeper.counters),
                **{f"mqtt.{name}": value for name, value in transport.counters.items()},
                **self._certificates.counters,
                "peers.up_other_program": up_apart,
                "mqtt.connected": int(transport.connected),
                "mqtt.waiting": transport.waiting,
                "mqtt.deaf": transport.deaf,
                "process.rss_bytes": memory.rss_bytes,
                "process.peak_rss_bytes": memory.peak_rss_bytes,
                "log_lines.omitted": self._output.omitted,
            },
            up_by_class,
            up,
        )

    def _tell(self, say: Callable[[], None]) -> None:
        """Calls the service manager; an error is only logged, because the node can do without."""
        from bb_shims import WatchdogError

        try:
            say()
        except WatchdogError as error:
            self._output.log("warning", str(error))

    def _end_trace(self, trace: Trace) -> None:
        trace.close()
        if trace.error:
            self._output.log("error", f"the trace has ended: {trace.error}")
