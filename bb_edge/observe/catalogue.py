"""The metrics that a node serves by itself: one table, from which the text and the documentation are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bb_edge.ir.counters import spelling

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


class Metric(NamedTuple):
    """What one metric is: its kind, and what it tells, for `# HELP`."""

    kind: str
    help: str


def shown(name: str, kind: str) -> str:
    """The name of a counter in the text: `ops.failed` becomes `bb_ops_failed_total`."""
    return f"bb_{spelling(name)}{'_total' if kind == COUNTER else ''}"


def _counters(**texts: str) -> dict[str, Metric]:
    return {name.replace("__", ".", 1): Metric(COUNTER, text) for name, text in texts.items()}


def _gauges(**texts: str) -> dict[str, Metric]:
    return {name.replace("__", ".", 1): Metric(GAUGE, text) for name, text in texts.items()}


METRICS: Mapping[str, Metric] = {
    # --- the program ---
    **_counters(
        ops__failed="ops of the program that failed",
        executions__ended="executions that have ended",
        executions__starved="executions that ended with ops that had only some of their inputs",
        rounds__ended="rounds that have ended",
        rounds__backed_off="rounds that failed or reached nobody, so that the next one waited",
        rounds__failed="rounds in which an op has failed; they are counted as rounds",
        rounds__waited="times that a round began to wait for the peers that it needs",
        ticks__skipped="ticks of an interval that were left out because the one before had not begun, or"
        " because earlier ones that had not ended held their share of the executions (`TicksLeftOut`)",
        deadlines__expired="deadlines that have passed: of executions, questions, and what waits to be sent",
        components__failed="calls of components outside of any op that failed",
        activations__dropped="activations that were dropped for newer ones before any backward pass",
        components__kept_anew="values of slots that began anew: an adopted one had another shape",
        completions__late="answers of components that nobody waited for any more",
        completions__expired="ops that a component did not complete before their deadline",
        cycles__over_budget="polls that ended early because cycle_op_budget ops had run",
        cycles__over_time="polls that ended early because cycle_time_ns had passed",
        app_events__omitted="values of events that were left out, larger than app_event_bytes",
        frames__grown="frames made after install: the program needs more memory than was planned",
        bus__dropped="events on the bus that nobody fetched in time",
        counters__refused="counts that found no place: metric_names counters are there already",
    ),
    **_gauges(
        executions__active="executions that run now",
        executions__peak="most executions that ran at once",
        pending_async__count="ops that are parked: timers, questions, work elsewhere",
        frontier__depth_peak="most ops that were ready at once",
        requests__open="requests that wait for answers",
        bootstraps__pending="bootstraps that have not begun",
        bootstraps__running="bootstraps that run",
        bootstraps__failed="bootstraps that failed and are tried again",
        bootstraps__done="bootstraps that are done",
    ),
    # --- peers and requests ---
    **_counters(
        peers__restarted="times that a peer came up in another epoch: started anew, or another machine",
        peers__rolled_back="times that marks told that a peer's state is older than what it did before",
        peers__began_anew="peers that had acknowledged durable envelopes and know of none any more",
        peers__stale="presences of connections that were over",
        peers__up="times that a peer came up",
        peers__down="times that a peer went down",
        peers__greeted="greetings to peers of which nothing ever came, before they are asked",
        peers__failing="times that a peer had left so many requests unanswered that it is only tried",
        peers__other_program="peers whose program does not go with this node's, by their presence",
        peers__asking_by_turns="times that a peer asked by turns with another one of its class, once each",
        peers__refused="presences of peers that found no place: max_peers, peer_bytes",
        peers__displaced="peers that were up and lost their place to one of an asked class",
        peers__blocked="peers that the program has blocked",
        requests__opened="requests that were made",
        requests__repeated="requests that were sent once more to peers that had started anew",
        requests__answers="answers to requests that were accepted",
        requests__failed="peers that answered a request with a failure",
        requests__failures_sent="failures that this node answered, because it had no reply",
        requests__refused="answers that do not count: they cannot be read, or their execution failed",
        requests__declined="requests declined: by train_when, by an op, or because there was no time left",
        data__breaks="times that a data source may have missed samples: a file was truncated, or is gone",
        data__left_out="samples that data sources left out: rows that cannot be read, or have values missing",
        contributions__clipped="contributions that were shortened to the clip_norm of their aggregator",
        contributions__dominant="contributions that counted a hundred times as much as is usual in theirs",
        contributions__given_up="contributions that counted, and whose sum was never aggregated",
        requests__answers_refused="times that a peer told that it refuses answers of this node",
        requests__replied_twice="replies that were left out, because the request had one already",
        requests__unanswered="peers that left a request unanswered until its end",
        requests__not_sent="peers that were not asked before the deadline: no room, connection or record",
        requests__offline="peers without an answer in requests during which this node lost its connection,"
        " or before they were heard of behind it",
        control__sent="messages of components to their counterparts",
        control__received="messages of components from their counterparts",
        control__unanswered="calls of components that their counterparts did not answer",
        addresses__refused="addresses of peers that cannot be, or found no place",
        rtt__forgotten="round-trip times that made room for others",
    ),
    **_gauges(peers__up_other_program="peers that are up now and whose program does not go with this node's"),
    # --- what comes in ---
    **_counters(
        wire__received="envelopes that came in",
        wire__received_bytes="bytes of envelopes that came in",
        wire__malformed="bytes that are not an envelope",
        wire__receive_errors="fills of envelopes that could not be taken",
        ingress__dropped="what was refused with a step: no place, forged, of a blocked peer, too early",
        ingress__put_off="durable envelopes that found no place yet: they come again, nothing is lost",
        ingress__turned_away="times that an envelope found no space; its transport may offer it again",
        ingress__full="invokes and envelopes that were refused because the queue of entries was full",
        ingress__spoofed="envelopes that name another sender than their topic",
        ingress__blocked="envelopes of peers that the program has blocked",
        ingress__duplicates="envelopes that were here before",
        ingress__disk="durable envelopes that came while the disk refused what has run already",
        ingress__below_window="envelopes too old to tell whether they were here before",
        ingress__beyond_window="envelopes too far ahead of the last one",
        ingress__no_room="envelopes for which there was no space",
        ingress__closed="durable envelopes under numbers that their senders have yet to tell this run of",
        ingress__bootstrapping="envelopes for a target whose bootstrap is not done",
        ingress__late_answers="answers to requests that were over",
        ingress__trial_answers="answers of failing peers to requests that did not wait for them",
        ingress__other_program="envelopes of such peers",
        ingress__class_untold="entries of peers that were not known in their class yet; they come again",
        ingress__class_mismatch="entries of peers that are not of the class that sends them",
        ingress__unroutable="fills for sites that no target of this node has",
        ingress__journaled="durable envelopes that were written to the journal",
        journal__known="envelopes of the journal that the snapshot knew",
        journal__replayed="envelopes of the journal that were delivered after a restart",
        gates__replaced="values that a gate let go for newer ones",
        backpressure__notices="times that a peer was asked to be patient",
        backpressure__heeded="times that a peer asked this node to be patient",
    ),
    "gates.peer_health_rx.dropped": Metric(COUNTER, "envelopes that a gate kept out, of peers that are down"),
    "gates.backoff_rx.dropped": Metric(COUNTER, "envelopes that a gate kept out, of peers in back-off"),
    **_gauges(
        ingress__bytes="bytes of envelopes in hand",
        journal__waiting="records of the journal that have yet to run again after a restart",
    ),
    # --- what goes out ---
    **_counters(
        wire__sent="envelopes that were sent",
        wire__sent_bytes="bytes of envelopes that were sent",
        wire__resent="envelopes that were sent once more",
        wire__acks_alone="acknowledgements that went without an envelope",
        wire__acks_forgotten="acknowledgements that made room for others; what they are of comes again",
        wire__foreign_acks="acknowledgements of envelopes that this run did not send",
        wire__links_forgotten="peers whose numbers made room for others: what they repeat is new",
        wire__unresolved="envelopes to peers that the address book does not know",
        outbound__dropped="envelopes that never left: too large for the peer, or not sent in time",
        outbound__too_large="envelopes larger than the peer takes; dropped, too",
        outbound__to_nobody="durable sends that had nobody to go to, so that nothing was kept",
        outbound__missing="durable envelopes that a restart did not find in its outbox, or not whole",
        outbound__expired="envelopes whose deadline passed before they were acknowledged",
        outbound__put_off="envelopes that waited for room",
        outbound__persisting="durable envelopes that were handed to the disk",
        outbound__waiting="requests, replies and durable envelopes that had to wait for room",
        outbound__reused="durable envelopes that left before a restart, and are not sent twice",
        outbound__told_anew="durable envelopes of rounds that ran again after a restart with other values",
        marks__rolled_back="times that marks told that this node's state is older than what it did before",
        marks__sent="messages about what was taken of durable envelopes, before the first of a run",
        marks__received="the same, of peers",
        storage__failed="records of the outbox or journal that could not be written",
    ),
    **_gauges(
        outbound__bytes="bytes that wait for acknowledgement; what goes to many peers counts once",
        outbound__unwritten="durable envelopes that are not on disk yet, and end with the process",
    ),
    "gates.peer_health_tx.dropped": Metric(COUNTER, "sends that a gate held back, to peers that are down"),
    "gates.backoff_tx.dropped": Metric(COUNTER, "sends that a gate held back, to peers that are backed off"),
    # --- the connection ---
    **_counters(
        mqtt__connects="connections to the broker",
        mqtt__disconnects="connections that were lost",
        mqtt__sent="envelopes that were published",
        mqtt__sent_bytes="bytes of packets that carry envelopes, topics included, sent",
        mqtt__received="envelopes that the broker delivered",
        mqtt__received_bytes="bytes of packets that carry envelopes, topics included, received",
        mqtt__dropped="envelopes that found no space on their way out; each an original",
        mqtt__turned_away="envelopes that came and found no space twice; their senders repeat them",
        mqtt__repeats_left_out="repetitions that were left out: their originals may still wait here",
        mqtt__expired="envelopes whose deadline passed before they could be published",
        mqtt__refused="connections, subscriptions and publishes that the broker refused",
        mqtt__unheard="publishes that nobody subscribes to",
        mqtt__malformed="topics, presences and packets that are malformed",
        mqtt__foreign="messages of topics that another life of this client subscribed to",
        mqtt__presences="presences that came, the node's own among them",
        mqtt__roll_calls="calls that asked the peers of a class to say their presence again",
        mqtt__twins="what others said in this node's name",
        mqtt__oversize="packets above the size that is taken in",
        mqtt__too_large="presences and envelopes that fit the broker's limit not even in chunks; dropped",
        mqtt__cut="envelopes that were sent in chunks",
        mqtt__joined="envelopes that came in chunks",
        mqtt__chunks_sent="chunks that were sent",
        mqtt__chunks_received="chunks that came in",
        mqtt__chunks_refused="chunks that fit no envelope",
        mqtt__chunks_expired="envelopes in chunks that made no progress",
        mqtt__held="envelopes that waited for a node that was behind; the broker waits with them",
    ),
    **_gauges(
        mqtt__connected="1 while the broker is connected, else 0",
        mqtt__waiting="envelopes that wait for the broker",
        mqtt__deaf="ways by which nothing comes to this node: envelopes, chunks (the broker's access rules)",
        certificate__seconds_left="seconds until broker.cert ends; below 0 once it has; +Inf without one",
        certificate__ca_seconds_left="seconds until the last certificate of broker.ca ends; +Inf without one",
    ),
    # --- the state folder; all 0 without one ---
    **_counters(
        state__bytes_written="bytes written to the state folder since the process began",
        state__syncs="synced writes since the process began: what flash wears out by",
        state__failed_writes="writes that the disk refused",
        state__snapshots="snapshots that were written",
        state__failures="snapshots and records that could not be written",
    ),
    **_gauges(
        state__generation="number of the last snapshot",
        state__journal_bytes="bytes of the journal",
        state__outbox_bytes="bytes of the outbox",
        state__losses="files of the state folder that had lost something when the process began",
        state__discarded="durable envelopes that bb-edge outbox had dropped when the process began",
        state__outbox_records="durable envelopes that are not acknowledged",
    ),
    # --- the process ---
    **_counters(log_lines__omitted="lines of the log that were left out: there were many of their kind"),
    **_gauges(
        process__rss_bytes="memory of the process",
        process__peak_rss_bytes="most memory that the process had",
    ),
}
"""Metrics by the name of their counter. All are served from the start, with 0."""

UP = "bb_peers_up"
UP_BY_CLASS = "bb_peers_up_by_class"
CYCLE = "bb_cycle_duration_ns"
LONGEST = f"{CYCLE}_longest"

SPECIAL: Mapping[str, Metric] = {
    UP: Metric(GAUGE, "peers that are up now and whose program goes with this node's"),
    UP_BY_CLASS: Metric(GAUGE, "the same, by their class"),
    CYCLE: Metric(HISTOGRAM, "how long a poll takes, in nanoseconds"),
    LONGEST: Metric(GAUGE, "the longest poll, in nanoseconds"),
}
"""Metrics that are not counters of the node, by their names in the text."""

OF_THE_PROGRAM = "a counter of the program"


def rows() -> list[tuple[str, Metric]]:
    """All metrics by their names in the text, sorted; for the documentation."""
    return sorted(
        [(shown(name, metric.kind), metric) for name, metric in METRICS.items()] + [*SPECIAL.items()]
    )
