"""A unit: what one firing of one op sends to one peer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, NamedTuple

from bb_edge.engine.plain import Shift, dump, load
from bb_edge.ir.ids import PeerId
from bb_edge.ir.tensors import Pieces
from bb_edge.wire import envelope
from bb_edge.wire.bodies import shelved
from bb_edge.wire.body_bytes import shared_body
from bb_edge.wire.caps import EnvelopeCaps
from bb_edge.wire.envelope import Fill
from bb_edge.wire.envelope_records import Failure
from bb_edge.wire.outbox import Cause

PUT_OFF: Final = "reply.put_off"
"""What timers call whose argument is a unit that waits for its time."""
_TRUSTED = EnvelopeCaps(1 << 40, 1 << 20, 1 << 40, 1 << 20)
"""For bodies that the node itself has encoded."""


@dataclass(slots=True)
class Unit:
    """Fills for one peer from one firing of one op; or for many, `to`, of a request.

    `to` has the peers by request id, in order; who has been asked is taken out. Each is asked with the unit
    that `alone` gives. None: it is for `peer` alone.

    `body` are large fills as bytes, which the units to other peers share (`body_bytes.shared_body`).
    `deadline_ns` is absolute, 0: none. `group` lets plain sends of one burst share an envelope. `wire_id` and
    `cause` (the durable envelope, or the round, that the sending execution came from) tell a durable unit
    from its repetition after a restart. `failure` stands in place of the fills of a reply.
    """

    peer: PeerId
    fills: Sequence[Fill]
    _: KW_ONLY
    body: bytes = b""
    kind: int = envelope.NONE
    wire_req_id: int = 0
    deadline_ns: int = 0
    durable: bool = False
    group: tuple[object, ...] | None = None
    wire_id: int = 0
    cause: Cause | None = None
    failure: Failure | None = None
    to: dict[int, PeerId] | None = None

    def alone(self, number: int, peer: PeerId) -> Unit:
        """The unit for one of the peers that it is for."""
        return Unit(
            peer,
            self.fills,
            body=self.body,
            kind=self.kind,
            wire_req_id=number,
            deadline_ns=self.deadline_ns,
            durable=self.durable,
            wire_id=self.wire_id,
        )

    def asks(self, req_id: int) -> bool:
        """Whether it is a request that asks somebody under that id."""
        return (
            req_id in self.to
            if self.to is not None
            else self.wire_req_id == req_id and self.kind == envelope.REQUEST
        )

    def forget(self, req_id: int) -> bool:
        """Nobody waits for the answer under that id. False where the unit does not ask under it."""
        return self.to is not None and self.to.pop(req_id, None) is not None

    def save(self) -> list[Any]:
        """The unit as plain values; `restored` reads them."""
        fills: object = shelved(self.body)
        if not self.body:
            fills = [[f.dest_suffix, bytes(f.payload), f.trigger_only, f.type_hash] for f in self.fills]
        return [
            dump(self.peer),
            fills,
            self.kind,
            self.wire_req_id,
            self.deadline_ns,
            self.durable,
            dump(self.group),
            self.wire_id,
            dump(self.cause),
            None if self.failure is None else [self.failure.code, self.failure.detail],
            None if self.to is None else [[number, dump(peer)] for number, peer in self.to.items()],
        ]

    @classmethod
    def restored(cls, row: Any, shift: Shift) -> Unit:
        """The unit that `save` wrote, with its deadline moved by `shift`."""
        peer, fills, kind, req_id, deadline_ns, durable, group, wire_id, cause, failure, to = row
        body = shift.body(fills) if isinstance(fills, int) else b""
        read = envelope.decode(body, _TRUSTED).fills if body else [_fill(*fill) for fill in fills]
        return cls(
            load(peer),
            read,
            body=body,
            kind=kind,
            wire_req_id=req_id,
            deadline_ns=shift.time(deadline_ns),
            durable=durable,
            group=load(group),
            wire_id=wire_id,
            cause=load(cause),
            failure=None if failure is None else Failure(*failure),
            to=None if to is None else {number: load(peer) for number, peer in to},
        )


def _fill(suffix: bytes, payload: bytes, trigger_only: bool, type_hash: int) -> Fill:
    """The fill of a saved row. TypeError for what could not be sent."""
    if type(suffix) is not bytes or type(payload) is not bytes or type(type_hash) is not int:
        raise TypeError("a fill of other types")
    return Fill(suffix, payload, trigger_only, type_hash)


class Joined(NamedTuple):
    """Large fills that travel together to several peers, and the two lists that they were."""

    fills: list[Fill]
    body: bytes
    of: tuple[Sequence[Fill], Sequence[Fill]]


def join_large(first: Unit, unit: Unit, known: dict[tuple[int, int], Joined]) -> None:
    """Adds a unit's large fills to the first's; those that go to several peers are joined once.

    `known` has them by the identity of the two lists.
    """
    names = id(first.fills), id(unit.fills)
    both = known.get(names)
    if both is None:
        fills = [*first.fills, *unit.fills]
        payloads: list[Pieces] = [(len(fill.payload), [fill.payload]) for fill in fills]
        both = known[names] = Joined(fills, shared_body(fills, payloads), (first.fills, unit.fills))
    first.fills, first.body = both.fills, both.body
