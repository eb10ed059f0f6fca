"""Every capacity of a node, fixed at install: its unit, its range, what zero means, and why that number.

Rule M1 of the specification.
"""

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
"""Bound of `max_executions` × `max_children`: all frames are made at install."""
MOST = 1 << 60
"""Bound of every other capacity and time: 36 years in nanoseconds, and a number that a snapshot can hold."""
SHORTEST_NS = MS
"""No time of a node is shorter: a poll may take as long. Less is most likely a number of seconds."""


class ConfigError(BBError):
    """A capacity that cannot be: names the field and its range."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Capacities and times of one node. Counts are entries, sizes bytes, times nanoseconds.

    Every count and size is at least 1, a time 1 ms; 0 is possible where the comment says what that means.
    ConfigError beyond a bound. The numbers here are a small board's.

    `edge()` is the default of `bb-edge`, `host()` has the wider budget of a gateway or server.
    """

    # Executions at once that entries started; 10 000 at most, because all frames are made at install. 16 are
    # more than a board with 4 cores can make use of.
    max_executions: int = 16
    # Child executions at once of one execution that asks; further answers wait. Times `max_executions` at
    # most 100 000. 4, because children share their components: more of them would wait for each other.
    max_children: int = 4
    # Entries (envelopes, invokes, events, ticks) that wait for an execution; newcomers are refused beyond it.
    # 256 is 16 per execution: a burst of a few seconds at what a small board computes.
    ingress_entries: int = 256
    # Bytes of inbound envelopes, from arrival until the execution that they feed has ended. 8 MiB is what a
    # board of 256 MB can spare beside a model.
    ingress_bytes: int = 8 * MIB
    # Answers, acknowledgements, completions and notices wait in a queue of their own, never behind entries.
    # Twice the entries, because an answer closes something and must find a place.
    answer_entries: int = 512
    # Bytes of one AppEvent's value. A larger one is left out, and the event tells its size. 64 KiB is the cap
    # of a fill: what one envelope brings in, one event can show.
    app_event_bytes: int = 64 * KIB
    # One invoke: how many inputs, and their bytes together. 256 KiB holds an image of 256 × 256 RGB.
    invoke_inputs: int = 16
    invoke_bytes: int = 256 * KIB
    # Bytes that a backend may allocate in one run for shapes that depend on data (a number of a peer becomes
    # a shape) or that nobody declared; 0: by the artifact, the larger of 64 MiB and twice what its memory
    # plans take. 64 MiB is what a board of 256 MB can lose for a moment.
    tensor_bytes: int = 0
    # Bytes of the result of one completed `Later`; as for an event.
    completion_bytes: int = 64 * KIB
    # Ops that are parked at once (timers, Laters, permits, answers). A bound against
    # programs that park without end, far above what a program needs.
    pending_async: int = 10_000
    # Units that wait to be sent. As `pending_async`.
    outbound_queue: int = 10_000
    # Ops of one poll; the rest goes on in the next. 1 000 small ops take some milliseconds.
    cycle_op_budget: int = 1_000
    # How long one poll runs ops where the node has a clock; the op that runs then is the last one. So a node
    # that trains for minutes still looks at its broker, and what it has to say leaves.
    cycle_time_ns: int = 50 * MS
    # Open requests at once. 4 per execution.
    max_requests: int = 64
    # Requests of components to their counterparts that wait for an answer.
    max_component_calls: int = 256
    # Values that wait in one op with state (Threshold, Hold, Serialize, Limit). The newcomer fails beyond it.
    op_state_entries: int = 64
    # Peers known at once: presence, links, health. A federation behind one server. Tables grow as peers come.
    max_peers: int = 1024
    # Bytes of what these peers say of themselves: presences of some 300 bytes each, three times over.
    peer_bytes: int = 1 * MIB
    # Addresses kept of one peer: some networks and some relays.
    peer_addresses: int = 8
    # Timers at once, those of components included. As `pending_async`.
    max_timers: int = 10_000
    # Values kept by one `Record` ring; the oldest goes out as Telemetry.
    record_entries: int = 256
    # Names of counters and rings. The engine's own are some 60.
    metric_names: int = 256
    # Durable envelopes in the outbox between two snapshots, acknowledged or not, and their bytes. A gradient
    # of 1 MB for 64 rounds, or a day of readings every 25 s.
    outbox_records: int = 4096
    outbox_bytes: int = 64 * MIB
    # Deadline of a `Later` that names none; 0: it waits for ever. Longer than any inference on a board.
    later_deadline_ns: int = 30 * S
    # How long a lone acknowledgement waits for company; 0: not at all. Below `resend_ns`, and long enough for
    # the reply to a request to carry it.
    ack_delay_ns: int = 20 * MS
    # Earliest first repetition of a request, reply or durable envelope that nobody acknowledged; later where
    # round trips to its peer take longer; doubles. One through an idle broker takes 1 to 300 ms.
    resend_ns: int = 1 * S
    # Back-off of rounds that failed or asked nobody: first wait and longest, no shorter one. 60 s is what a
    # fleet that comes back after a power cut may cost a server.
    round_backoff_ns: int = 1 * S
    round_backoff_max_ns: int = 60 * S
    # Failures in a row after which a peer counts as down. One lost answer is weather, five are a dead peer.
    health_threshold: int = 5
    # How many of the latest 3 n + 1 requests to a peer without an answer that counts make it failing:
    # it is up, and is asked only on trial.
    failing_threshold: int = 5
    # What a decoder accepts from the wire.
    caps: EnvelopeCaps = field(default=EDGE_CAPS)
    # Emit the verbose steps (`OpCompleted` and the like). Turns off every short way.
    trace: bool = False

    def __post_init__(self) -> None:
        may_be_zero = {"later_deadline_ns", "ack_delay_ns", "tensor_bytes"}
        for spec in fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, bool) or not isinstance(value, int):
                continue
            least = SHORTEST_NS if spec.name.endswith("_ns") else 1
            most = MAX_EXECUTIONS if spec.name == "max_executions" else MOST
            if least <= value <= most or (value == 0 and spec.name in may_be_zero):
                continue
            bounds = f"{least} at least, {most} at most" + (", or 0" if spec.name in may_be_zero else "")
            if spec.name.endswith("_ns"):
                bounds += f"; in nanoseconds: 1 s is {S}"
            raise ConfigError(f"{spec.name} = {value}", "NodeConfig", bounds)
        self._check_pairs()

    def _check_pairs(self) -> None:
        for lower, upper in (("ack_delay_ns", "resend_ns"), ("round_backoff_ns", "round_backoff_max_ns")):
            less, more = getattr(self, lower), getattr(self, upper)
            if less > more:
                raise ConfigError(f"{lower} = {less}", "NodeConfig", f"at most {upper}, which is {more}")
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
            tensor_bytes=1024 * MIB,
            invoke_inputs=100,
            invoke_bytes=10 * MIB,
            completion_bytes=4 * MIB,
            max_peers=100_000,  # a server for a region's devices; what is allocated is what is there
            peer_bytes=64 * MIB,
            caps=HOST_CAPS,
        )

    def with_(self, **changes: object) -> NodeConfig:
        """A copy with some fields changed; checked again."""
        return replace(self, **changes)  # type: ignore[arg-type]
