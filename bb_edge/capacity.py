"""Whether what a program plans to ask of its peers fits what the node may hold, with numbers.

The compiler has written down the largest payload of each wire, and how many peers are asked. What can never
be is refused; what goes on in turns, or leaves somebody out, is said, with the key to raise.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from bb_edge.engine.config import NodeConfig
from bb_edge.engine.net import verdicts
from bb_edge.engine.net.durable import RECORD_BYTES
from bb_edge.engine.program.program import GraphSlot, OpSpec, Program, Target
from bb_edge.ir import keys
from bb_edge.ir.address import PEER_ADDRESS_BYTES
from bb_edge.ir.opsets.wire import RECV_FLAVORED
from bb_edge.peer_room import Asked, lacking, least_presence, needed, others, usual_bytes
from bb_edge.wire.bodies import SHARED_FROM

ANSWERS_IN_JOURNAL = 32
"""Durable answers of the largest size between two snapshots that a journal asks for.

Such a snapshot has some five times that size (the parameters, the request and the answers' sum), so that it
adds a sixth to what is written."""
LARGEST_PLANNED_JOURNAL = 32 << 20
"""Bytes of the longest journal that nobody has configured: a start reads it into memory."""

LEAST_ENVELOPE = 48
"""Bytes of an envelope with nothing but its head and one empty payload, about."""
LEAST_FILL = 16
"""Bytes of a payload whose size nobody knows: a tensor's head with one axis has 6, two numbers 8."""
LEAST_SNAPSHOT = 512
"""Bytes of a snapshot of a node that has done nothing, and no model: no program has fewer."""
LEAST_LOG = 1024
"""Bytes of a journal or outbox that take any record: a file's head has some 120, a small record some 300."""


class Level(enum.Enum):
    """What follows from a finding: it is refused, somebody is left out, or it takes turns."""

    REFUSED = "refused"
    WARNING = "warning"
    NOTE = "note"


class Finding(NamedTuple):
    """One thing that does not fit at once; `hint` names the key and the number to give it."""

    level: Level
    what: str
    where: str
    hint: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({self.hint})"


class DiskLimits(Protocol):
    """What a state folder may hold, in bytes (`bb_edge.state.StoreLimits`)."""

    @property
    def journal_bytes(self) -> int: ...
    @property
    def outbox_bytes(self) -> int: ...
    @property
    def snapshot_bytes(self) -> int: ...


class Request(NamedTuple):
    """What one op of a target asks; sizes are the planned payloads in bytes, 0 where nobody knows.

    `asked` peers at most, and no fewer than `least`; 0 where the program decides while it runs.
    """

    where: str
    asked: int
    least: int
    sent: int
    answer: int
    kept: bool
    """Whether all answers are kept until the request closes (`r.responses`)."""
    durable: bool
    slot: str = ""
    """Whose selector gives the peers; empty where another op does."""


def findings(
    program: Program,
    targets: Sequence[Target],
    config: NodeConfig,
    disk: DiskLimits | None = None,
    broker: Mapping[str, int] | None = None,
) -> list[Finding]:
    """What the targets plan that does not fit `config`, nor, where they are given, `disk` and `broker`.

    `broker` are the limits of the connection (`MqttOptions`) that somebody has set, by name; others follow
    from the plan.
    """
    asked = {t.name: tuple(requests_of(program.graphs[t.main], t.name)) for t in targets}
    found = [*_of_places(program, targets, asked, config)]
    for target in targets:
        graph = program.graphs[target.main]
        arrivals = [*arrivals_of(graph, target.name)]
        if arrivals:
            found += _of_heads(target.name, config)
        for arrival in arrivals:
            found += _of_arrival(arrival, config, broker or {})
        trained = sum(
            len(tensor.raw_data) for state in target.states.values() for tensor in state.g.initializer
        )
        asks = asked[target.name]
        if disk is not None:
            found += _of_logs(target.name, config, disk)
            if not any(request.durable for request in asks):
                found += _of_snapshots(target.name, disk, trained)
        for request in asks:
            found += _of_answers(request, config)
            if not request.durable:
                found += _of_requests(request, config)
            else:
                found += _of_records(request, config)
                if disk is not None:
                    found += _of_disk(request, disk, trained)
    return found


def of_unknown_size(program: Program, targets: Sequence[Target], config: NodeConfig) -> list[Finding]:
    """What the targets receive without a planned size: the usual bound of a payload holds for it."""
    most = config.caps.fill_bytes
    what = f"the size of a value here is not known before it comes: one of more than {most} bytes is refused"
    hint = (
        "give its shape and element type where it is made (g.onnx.reshape, g.onnx.cast), or raise"
        " limits.caps.fill_bytes on both sides"
    )
    return [
        Finding(Level.NOTE, what, arrival.where, hint)
        for target in targets
        for arrival in arrivals_of(program.graphs[target.main], target.name)
        if arrival.open
    ]


def planned_journal(program: Program, targets: Sequence[Target]) -> int:
    """How many bytes of journal the targets' durable answers should have before a snapshot; 0 without any.

    Those of one round, of which a snapshot is taken anyway, or `ANSWERS_IN_JOURNAL` of them.
    """
    wanted = 0
    for target in targets:
        for request in requests_of(program.graphs[target.main], target.name):
            if request.durable and request.answer:
                answers = min(request.asked or ANSWERS_IN_JOURNAL, ANSWERS_IN_JOURNAL)
                wanted = max(wanted, (answers + 1) * (request.answer + RECORD_BYTES))
    return min(wanted, LARGEST_PLANNED_JOURNAL)


# --- what a program asks ------------------------------------------------------------------------------------


class Arrival(NamedTuple):
    """What an op of a target receives in one envelope; a planned size is 0 where nobody knows it."""

    where: str
    sizes: tuple[int, ...]
    open: bool
    """Whether the size of a value is not known."""

    @property
    def planned(self) -> int:
        """The bytes of all its payloads, as far as they are known."""
        return sum(self.sizes)


def arrivals_of(graph: GraphSlot, target: str) -> Iterator[Arrival]:
    """What a graph receives, op by op."""
    for op in graph.ops:
        if op.domain == keys.WIRE_DOMAIN and op.op_type in RECV_FLAVORED and keys.SITE_IDS_KEY in op.meta:
            named = op.meta.get(keys.PORT_KEY, op.name)
            kind = "what answers" if keys.WIRE_REQUEST_KEY in op.meta else "what arrives at"
            triggers = op.meta.get(keys.WIRE_TRANSPORT_KEY) == keys.WIRE_TRANSPORT_TRIGGER_ONLY
            sizes = _sizes(op)
            yield Arrival(f"{target}, {kind} {named!r}", sizes, not triggers and 0 in sizes)


def largest_arrival(program: Program, targets: Sequence[Target]) -> int:
    """Payload bytes of the largest planned envelope that the targets receive."""
    graphs = ((program.graphs[target.main], target.name) for target in targets)
    return max((a.planned for graph, name in graphs for a in arrivals_of(graph, name)), default=0)


def requests_of(graph: GraphSlot, target: str) -> Iterator[Request]:
    """The requests of a graph to peers."""
    makers = {site: op for op in graph.ops for site in op.outputs if site >= 0}
    for op in graph.ops:
        if op.domain != keys.WIRE_DOMAIN or op.op_type != "SendReqBatched":
            continue
        wire = op.meta.get(keys.WIRE_ID_KEY)
        answers = [
            _size(other)
            for other in graph.ops
            if other.domain == keys.WIRE_DOMAIN and other.meta.get(keys.WIRE_REQUEST_KEY) == wire
        ]
        sample = _selection(op, makers)
        mode = op.meta.get(keys.ANSWER_MODE_KEY, keys.ANSWER_BATCH)
        yield Request(
            f"{target}, request {op.meta.get(keys.PORT_KEY, op.name)!r}",
            _count(sample, "n"),
            max(1, _count(sample, "min")),
            _size(op),
            0 if mode == keys.ANSWER_NONE else max(answers, default=0),
            mode == keys.ANSWER_BATCH,
            op.meta.get(keys.DURABLE_KEY) == "1",
            "" if sample is None else sample.meta.get(keys.SLOT_KEY, ""),
        )


def _size(op: OpSpec) -> int:
    """The planned bytes of what one envelope of the op carries."""
    return sum(_sizes(op))


def _sizes(op: OpSpec) -> tuple[int, ...]:
    """The planned bytes of each payload of the op."""
    sizes = op.meta.get(keys.WIRE_MAX_BYTES_KEY, "")
    return tuple(int(size) for size in sizes.split(",") if size.isdecimal())


def _selection(op: OpSpec, makers: dict[int, OpSpec]) -> OpSpec | None:
    """The selector's op that gave the peers; None where another op did."""
    maker = makers.get(op.inputs[-1]) if op.inputs else None
    for _ in range(len(makers)):
        if maker is None or maker.domain == keys.ROLE_PEER_SELECTOR_DOMAIN:
            return maker
        if maker.domain != keys.GATE_DOMAIN or not maker.inputs:
            return None
        maker = makers.get(maker.inputs[0])
    return None


def _count(op: OpSpec | None, name: str) -> int:
    value = None if op is None else op.attrs.get(name)
    return value if isinstance(value, int) and value > 0 else 0


# --- what fits ----------------------------------------------------------------------------------------------


def _of_heads(where: str, config: NodeConfig) -> Iterator[Finding]:
    """What stands around payloads: without it no envelope says where it goes, or how to answer it."""
    caps = config.caps
    needed = {
        "suffix_bytes": (len(verdicts.SUFFIX), "payloads name their site, and notices of peers their op,"),
        "address_bytes": (PEER_ADDRESS_BYTES, "a peer's first envelope has its address"),
    }
    for key, (least, why) in needed.items():
        given = getattr(caps, key)
        if given < least:
            what = f"{why} in {least} bytes, and caps.{key} is {given}: it is never taken"
            hint = f"raise limits.caps.{key} to {least} at least, or leave it out"
            yield Finding(Level.REFUSED, what, where, hint)


def _of_arrival(arrival: Arrival, config: NodeConfig, broker: Mapping[str, int]) -> Iterator[Finding]:
    """What can never come in, though it is planned."""
    planned, where, caps = arrival.planned, arrival.where, config.caps
    largest = max(arrival.sizes, default=0)
    if len(arrival.sizes) > caps.fills:
        what = f"{len(arrival.sizes)} payloads in one envelope, and caps.fills is {caps.fills}"
        yield Finding(Level.REFUSED, what, where, f"raise limits.caps.fills to {len(arrival.sizes)}")
    if planned > caps.ceiling_bytes:
        part = f" (the largest payload has {largest})" if largest < planned else ""
        what = f"an envelope of {planned} bytes{part} is never taken: caps.ceiling_bytes is"
        hint = f"raise limits.caps.ceiling_bytes to {2 * planned}"
        yield Finding(Level.REFUSED, f"{what} {caps.ceiling_bytes}", where, hint)
    if arrival.open and caps.fill_bytes < LEAST_FILL:
        what = f"no value of open size fits: caps.fill_bytes is {caps.fill_bytes}"
        hint = f"raise limits.caps.fill_bytes to {LEAST_FILL} at least, or leave it out"
        yield Finding(Level.REFUSED, what, where, hint)
    least = max(planned, LEAST_ENVELOPE)
    if least > config.ingress_bytes:
        what = f"an envelope of {least} bytes is never taken: ingress_bytes is {config.ingress_bytes}"
        hint = f"raise limits.ingress_bytes to {2 * least}: room for the next while one is worked on"
        yield Finding(Level.REFUSED, what, where, hint)
    most = broker.get("max_envelope_bytes", planned)
    if planned > most:
        what = f"an envelope of {planned} bytes is never taken: broker.max_envelope_bytes is {most}"
        hint = f"raise broker.max_envelope_bytes to {planned + RECORD_BYTES}, or leave it out"
        yield Finding(Level.REFUSED, what, where, hint)
    most = broker.get("chunked_bytes", planned)
    if planned > most:
        what = f"an envelope of {planned} bytes in chunks is never taken: broker.chunked_bytes is {most}"
        hint = f"raise broker.chunked_bytes to {2 * planned}; a broker without a limit sends it whole"
        yield Finding(Level.WARNING, what, where, hint)


def _of_places(
    program: Program, targets: Sequence[Target], asks: Mapping[str, Sequence[Request]], config: NodeConfig
) -> Iterator[Finding]:
    """Whoever finds no place is neither asked nor heard: its class is not known. `asks` are by target."""
    where, room = ", ".join(target.name for target in targets), config.peer_bytes
    if not any(op.domain == keys.WIRE_DOMAIN for t in targets for op in program.graphs[t.main].ops):
        return
    heard = {name for target in targets for name in target.asks or ("",)}
    least = min(least_presence(program, name) for name in heard)
    if room < least:
        what = f"no peer ever finds a place: one takes {least} bytes at least, and peer_bytes is {room}"
        hint = f"raise limits.peer_bytes to {usual_bytes(1, least)} for each peer, or leave it out"
        yield Finding(Level.REFUSED, what, where, hint)
        return
    asked, alone = [], False
    for target in targets:
        for request in asks[target.name]:
            one = Asked(target, target.peer_classes.get(request.slot, ""), request.least)
            asked.append(one)
            for finding in _of_peers(request, config, others(one, targets), program, one.peer_class):
                alone = alone or finding.level is Level.REFUSED
                yield finding
    if not alone:  # else it is said of one request
        for what, hint in lacking(needed(program, targets, asked), config, least):
            yield Finding(Level.REFUSED, what, where, hint)


def _of_peers(
    request: Request, config: NodeConfig, least: int, program: Program, peer_class: str
) -> Iterator[Finding]:
    """Of one request, which waits for `least` other nodes."""
    known, where = config.max_peers, request.where
    each = least_presence(program, peer_class)
    most = config.peer_bytes // each
    if request.asked > most and known > most:
        refused = least > most
        what = f"it waits for {least} peers" if refused else f"it asks {request.asked} peers"
        what += f", and peer_bytes, which is {config.peer_bytes}, has room for {most} at most"
        wanted = usual_bytes(request.asked, each)
        level = Level.REFUSED if refused else Level.WARNING
        yield Finding(level, what, where, f"raise limits.peer_bytes to {wanted}, or leave it out")
    if least > known:
        what = f"it waits for {least} peers, and max_peers is {known}: it never asks"
        yield Finding(Level.REFUSED, what, where, f"raise limits.max_peers to {least}")
    elif request.asked > known:
        what = f"it asks {request.asked} peers, and max_peers is {known}: the others are not known"
        yield Finding(Level.WARNING, what, where, f"raise limits.max_peers to {request.asked}")


def _of_answers(request: Request, config: NodeConfig) -> Iterator[Finding]:
    """One answer above `ingress_bytes` is refused by `install`, as whatever else it receives."""
    size, room, where = request.answer, config.ingress_bytes, request.where
    if not size or size > room:
        return
    at_once = room // (size + RECORD_BYTES) or 1
    whole = f"raise limits.ingress_bytes to {request.asked * (size + RECORD_BYTES)}"
    if request.kept and request.least > at_once:
        what = (
            f"it keeps {request.least} answers of {size} bytes until it closes, and ingress_bytes is {room}"
        )
        needed = request.least * (size + RECORD_BYTES)
        hint = f"raise limits.ingress_bytes to {needed}, or take the answers one by one (r.answer)"
        yield Finding(Level.REFUSED, what, where, hint)
    elif request.kept and request.asked > at_once:
        what = f"of {request.asked} answers of {size} bytes it can keep {at_once}: the others are missing"
        yield Finding(Level.WARNING, what, where, f"{whole}, or take them one by one (r.answer)")
    elif request.asked > at_once:
        what = f"{request.asked} answers of {size} bytes come in {at_once} at a time (ingress_bytes {room})"
        yield Finding(
            Level.NOTE, what, where, "the broker keeps the others; raise limits.ingress_bytes for more"
        )


def _turns(asked: int, size: int, room: int, places: int) -> tuple[int, int]:
    """(How many envelopes with that payload are held at once, how many bytes all of them need).

    Large payloads are held once, whoever gets them; each envelope has some bytes of its own.
    """
    shared = size if size >= SHARED_FROM else 0
    each = RECORD_BYTES + size - shared
    return max(0, min(places, (room - shared) // each)), shared + asked * each


def _of_requests(request: Request, config: NodeConfig) -> Iterator[Finding]:
    """Best effort: one envelope may be larger than the room, and so may those that share its payload."""
    room, places = config.ingress_bytes, config.outbound_queue
    at_once, needed = _turns(request.asked, request.sent, room, places)
    if request.sent >= SHARED_FROM:
        at_once = places
    if request.asked > at_once:
        short = at_once == places
        key = f"limits.outbound_queue to {request.asked}" if short else f"limits.ingress_bytes to {needed}"
        what = f"it asks {request.asked} peers {max(1, at_once)} at a time"
        yield Finding(Level.NOTE, what, request.where, f"raise {key} to ask all at once")


def _of_records(request: Request, config: NodeConfig) -> Iterator[Finding]:
    """Durable requests are in the outbox until they are acknowledged and a snapshot is taken."""
    room, places, where = config.outbox_bytes, config.outbox_records, request.where
    at_once, needed = _turns(request.asked, request.sent, room, places)
    if not at_once:
        what = f"a durable request of {request.sent} bytes never finds room: outbox_bytes is {room}"
        hint = f"raise limits.outbox_bytes to {2 * (request.sent + RECORD_BYTES)}"
        yield Finding(Level.REFUSED, what, where, hint)
    elif request.asked > at_once:
        key = f"limits.outbox_records to {request.asked}"
        if at_once < places:
            key = f"limits.outbox_bytes to {needed}"
        what = f"it asks {request.asked} peers durably {at_once} at a time, with a snapshot after each"
        yield Finding(Level.NOTE, what, where, f"raise {key} to ask all at once")


def _of_logs(where: str, config: NodeConfig, disk: DiskLimits) -> Iterator[Finding]:
    """A journal without room wants a snapshot in each poll, and an outbox without room sends nothing."""
    for name, room in (("journal_bytes", disk.journal_bytes), ("outbox_bytes", disk.outbox_bytes)):
        if room < LEAST_LOG:
            what = f"no record is ever written down: disk.{name} is {room}"
            yield Finding(Level.REFUSED, what, where, f"raise disk.{name} to {LEAST_LOG} at least")
    if config.outbox_bytes < LEAST_LOG:
        what = f"no durable send ever finds room: limits.outbox_bytes is {config.outbox_bytes}"
        yield Finding(Level.REFUSED, what, where, f"raise limits.outbox_bytes to {LEAST_LOG} at least")


def _of_snapshots(where: str, disk: DiskLimits, trained: int) -> Iterator[Finding]:
    """A node with a folder that can write none keeps what comes in until its journal is full."""
    least, room = trained + LEAST_SNAPSHOT, disk.snapshot_bytes
    if least > room:
        what = (
            f"no snapshot is ever written: it has {least} bytes at least, and disk.snapshot_bytes is {room}"
        )
        yield Finding(Level.REFUSED, what, where, f"raise disk.snapshot_bytes to {2 * least}")


def _of_disk(request: Request, disk: DiskLimits, trained: int) -> Iterator[Finding]:
    """A durable request leaves once a snapshot holds who asks; its answers are in the journal until the next.

    What it sends is in the outbox by then, and in no snapshot.
    """
    where = request.where
    # Besides the models: an aggregator's sum of 8 bytes for each 4, its result, and who was asked.
    usual = trained + 3 * request.answer + (request.asked or request.least) * 2 * RECORD_BYTES
    room, journal = disk.snapshot_bytes, disk.journal_bytes
    hint = f"raise disk.snapshot_bytes to {usual}"
    if trained > room:
        what = (
            f"no durable request ever leaves: the snapshot that it waits for has the {trained} bytes of the"
            f" models, and {room} may be"
        )
        yield Finding(Level.REFUSED, what, where, hint)
    elif usual > room:
        what = f"a snapshot takes some {usual} bytes while it asks, and disk.snapshot_bytes is {room}"
        yield Finding(Level.WARNING, what, where, hint)
    if request.answer > 2 * journal:
        what = f"no durable answer of {request.answer} bytes is ever taken: disk.journal_bytes is {journal}"
        yield Finding(Level.REFUSED, what, where, f"raise disk.journal_bytes to {2 * request.answer}")
    elif request.asked * request.answer > journal:
        often = max(1, journal // (request.answer or 1))
        what = f"a snapshot of some {usual} bytes is written every {often} of {request.asked} answers"
        hint = f"raise disk.journal_bytes ({journal}) to {request.asked * request.answer} for one a round"
        yield Finding(Level.NOTE, what, where, hint)


def refusals(found: Sequence[Finding]) -> list[Finding]:
    """Those that keep a node from running."""
    return [finding for finding in found if finding.level is Level.REFUSED]


def tell(found: Sequence[Finding], log: Callable[[str, str], None]) -> None:
    """Logs the others: `log(level, message)`."""
    for finding in found:
        if finding.level is not Level.REFUSED:
            log("warning" if finding.level is Level.WARNING else "info", str(finding))
