"""Every capacity of a node, fixed at install (architecture rule 4, semantics §6 "Budgets")."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from bb_edge.ir.errors import BBError
from bb_edge.wire.caps import EDGE_CAPS, HOST_CAPS, EnvelopeCaps

KIB = 1024
MIB = 1024 * KIB
MS = 1_000_000
S = 1_000_000_000


MAX_EXECUTIONS = 10_000
MAX_FRAMES = 100_000
"""Of executions that answers start: `max_executions` × `max_children`. All frames are made at install."""
MOST = 1 << 60
"""Of every other capacity and time: 36 years in nanoseconds, and numbers that a snapshot can hold."""


class ConfigError(BBError):
    """A capacity that cannot be: names the field and its range."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Capacities and times of one node. Counts are entries, sizes bytes, times nanoseconds.

    Every count and size is at least 1; a time of 0 means what its comment says. ConfigError beyond a bound.
    `edge()` is the default of `bb-edge`, `host()` has the wider budget of a gateway or server.
    """

    # Concurrent executions that entries started, 10 000 at most. Each holds one preallocated frame per entry
    # graph.
    max_executions: int = 16
    # Child executions that run at once for one asking execution; further answers wait (semantics §3). Times
    # `max_executions` 100 000 at most.
    max_children: int = 4
    # Entries (envelopes, invokes, events, ticks) that wait for an execution; beyond it newcomers are refused.
    ingress_entries: int = 256
    # Bytes of inbound envelopes from arrival until the execution they feed has ended.
    ingress_bytes: int = 8 * MIB
    # Answers, acknowledgements, completions and notices: their own queue, they never wait behind entries.
    answer_entries: int = 512
    # One AppEvent's value; a larger one is left out, and the event says its size.
    app_event_bytes: int = 64 * KIB
    # One invoke: how many inputs, and their bytes together.
    invoke_inputs: int = 16
    invoke_bytes: int = 256 * KIB
    # The result of one completed `Later`.
    completion_bytes: int = 64 * KIB
    # Ops that are parked at once (timers, Laters, permits, open requests).
    pending_async: int = 10_000
    # Envelopes between the engine and its driver, and fills between an op and phase 8.
    outbound_queue: int = 10_000
    # Ops of one poll; the rest goes on in the next one.
    cycle_op_budget: int = 1_000
    # Open requests at once.
    max_requests: int = 64
    # Requests that components have made of their counterparts and that wait for an answer.
    max_component_calls: int = 256
    # Values that wait in one stateful op (Threshold, Hold, Serialize, Limit); at the bound the newcomer
    # fails.
    op_state_entries: int = 64
    # Peers known at once (presence, links, health).
    max_peers: int = 1024
    # Addresses kept of one peer.
    peer_addresses: int = 8
    # Timers at once.
    max_timers: int = 10_000
    # Values kept by one `Record` ring.
    record_entries: int = 256
    # Names of counters and rings.
    metric_names: int = 256
    # Durable envelopes in the outbox, acknowledged or not, between two snapshots, and their bytes.
    outbox_records: int = 4096
    outbox_bytes: int = 64 * MIB
    # Deadline of a `Later` that names none.
    later_deadline_ns: int = 30 * S
    # A lone acknowledgement waits this long for company.
    ack_delay_ns: int = 20 * MS
    # First repetition of an unacknowledged request, reply or durable envelope; doubles.
    resend_ns: int = 1 * S
    # Back-off of rounds that failed or asked nobody: first wait and longest.
    round_backoff_ns: int = 1 * S
    round_backoff_max_ns: int = 60 * S
    # Failures in a row after which a peer counts as down.
    health_threshold: int = 5
    # What a decoder accepts from the wire.
    caps: EnvelopeCaps = field(default=EDGE_CAPS)
    # Emit the verbose steps.
    trace: bool = False

    def __post_init__(self) -> None:
        may_be_zero = {"later_deadline_ns", "ack_delay_ns"}
        for spec in fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, bool) or not isinstance(value, int):
                continue
            if value < (0 if spec.name in may_be_zero else 1):
                raise ConfigError(
                    f"{spec.name} = {value}",
                    where="NodeConfig",
                    hint="capacities and times are at least 1"
                    if spec.name not in may_be_zero
                    else "at least 0",
                )
            most = MAX_EXECUTIONS if spec.name == "max_executions" else MOST
            if value > most:
                raise ConfigError(f"{spec.name} = {value}", "NodeConfig", f"{most} at most")
        if self.max_executions * self.max_children > MAX_FRAMES:
            raise ConfigError(
                f"max_executions × max_children = {self.max_executions} × {self.max_children}",
                "NodeConfig",
                f"{MAX_FRAMES} at most: room for all of them is made at the start",
            )

    @classmethod
    def edge(cls) -> NodeConfig:
        """The device's budget: 8 MiB of envelopes in flight, 64 KiB a fill."""
        return cls()

    @classmethod
    def host(cls) -> NodeConfig:
        """The gateway's and server's budget: 256 MiB in flight, 4 MiB a fill."""
        return cls(
            max_executions=64,
            max_children=4,
            ingress_entries=10_000,
            ingress_bytes=256 * MIB,
            answer_entries=10_000,
            app_event_bytes=1 * MIB,
            invoke_inputs=100,
            invoke_bytes=10 * MIB,
            completion_bytes=4 * MIB,
            caps=HOST_CAPS,
        )

    def with_(self, **changes: object) -> NodeConfig:
        """A copy with some fields changed; checked again."""
        return replace(self, **changes)  # type: ignore[arg-type]
