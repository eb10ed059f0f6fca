"""What a node that goes back to its snapshot does again, and which sends of it are on disk already.

It takes the journal, its rounds come, the executions go on. Until a cause has come by again, its records in
the outbox are the only memory of what it sent (docs/design/durability.md, "Causes").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bb_edge.engine.net.routing import cause_of
from bb_edge.engine.parts import Parts
from bb_edge.ir.errors import BBError
from bb_edge.wire import envelope
from bb_edge.wire.envelope import Envelope
from bb_edge.wire.outbox import Cause


def may_run(parts: Parts) -> Callable[[Cause], bool]:
    """Tells of a cause whether something of it is still to come; for use before the next poll."""
    rounds = {rounds.own_number: rounds for rounds in parts.sources.rounds}
    present = set(_present(parts))

    def still(cause: Cause) -> bool:
        source = rounds.get(cause.epoch) if cause.peer == parts.runtime.own_peer else None
        return source.may_run(cause.seq) if source is not None else cause in present

    return still


def _present(parts: Parts) -> Iterator[Cause | None]:
    """The causes of all that has begun or waits to begin."""
    for execution in parts.scheduler.pool.active.values():
        yield execution.cause
    for cohort in parts.requests.cohorts.values():
        for answer in cohort.waiting:
            yield answer.cause
    for entry in parts.ingress.entries:
        if len(entry.args) > 1 and isinstance(entry.args[1], Envelope):
            yield cause_of(entry.args[0], entry.args[1])
    for unit in (*parts.outgoing.units, *parts.outgoing.durable.waiting):
        yield unit.cause
    received = [(raw.peer, raw.data) for raw in parts.ingress.envelopes]
    journal = parts.admission.journal
    for arrival in (*journal.accepted, *journal.held.values()):
        yield cause_of(arrival.raw.peer, arrival.message)
    received += [(record.peer, record.data) for record in journal.replaying]
    for peer, data in received:
        try:
            yield cause_of(peer, envelope.decode(data, parts.runtime.config.caps))
        except BBError:  # the poll that takes it will say so
            continue
