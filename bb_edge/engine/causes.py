"""What may still send: after a restart, the causes of which the outbox on disk has the sends already.

A node goes back to its snapshot and does again what it did since: it takes the journal, its rounds come, the
executions go on. Until a cause has come by again, its records in the outbox are the only memory of what it
sent (docs/design/durability.md "Causes").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from bb_edge.engine.net.routing import cause_of
from bb_edge.ir.errors import BBError
from bb_edge.wire import envelope
from bb_edge.wire.envelope import Envelope
from bb_edge.wire.outbox import Cause

if TYPE_CHECKING:
    from bb_edge.engine.engine import Engine


def may_run(cycle: Engine) -> Callable[[Cause], bool]:
    """Tells of a cause whether something of it is still to come; for use before the next poll."""
    rounds = {rounds.own_number: rounds for rounds in cycle.sources.rounds}
    present = set(_present(cycle))

    def still(cause: Cause) -> bool:
        one = rounds.get(cause.epoch) if cause.peer == cycle.engine.runtime.own_peer else None
        return one.may_run(cause.seq) if one is not None else cause in present

    return still


def _present(cycle: Engine) -> Iterator[Cause | None]:
    """The causes of all that has begun or waits to begin."""
    for execution in cycle.engine.pool.active.values():
        yield execution.cause
    for cohort in cycle.requests.cohorts.values():
        for _, _, cause in cohort.waiting:
            yield cause
    for entry in cycle.ingress.entries:
        if len(entry.args) > 1 and isinstance(entry.args[1], Envelope):
            yield cause_of(entry.args[0], entry.args[1])
    for unit in (*cycle.outgoing.units, *cycle.outgoing.durable.waiting):
        yield unit.cause
    received = [(raw.peer, raw.data) for raw in cycle.ingress.envelopes]
    journal = cycle.admission.journal
    for arrival in (*journal.accepted, *journal.held.values()):
        yield cause_of(arrival.raw.peer, arrival.message)
    received += [(record.peer, record.data) for record in journal.replaying]
    for peer, data in received:
        try:
            yield cause_of(peer, envelope.decode(data, cycle.engine.runtime.config.caps))
        except BBError:  # the poll that takes it will say so
            continue
