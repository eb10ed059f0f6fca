"""Both ends of a durable flow by themselves: their machines, records to send, and what comes out of them."""

from __future__ import annotations

from itertools import count
from typing import Any

from peers import A

from bb_edge import PeerId
from bb_edge.wire import envelope, marks
from bb_edge.wire.bodies import BodyName
from bb_edge.wire.caps import UNBOUNDED_CAPS
from bb_edge.wire.durable_flows import Say, Write
from bb_edge.wire.durable_receiver import DurableReceiver
from bb_edge.wire.durable_sender import DurableSender
from bb_edge.wire.envelope import Envelope, Fill
from bb_edge.wire.marks import Ask, Taken, Took
from bb_edge.wire.outbox import OutboxRecord, name_of
from bb_edge.wire.outbox_room import OutboxRoom
from bb_edge.wire.resend import EnvelopeKey


def sender(max_bytes: int = 1 << 20) -> DurableSender:
    numbers = count(1)
    return DurableSender(lambda: next(numbers), OutboxRoom(max_bytes=max_bytes))


def receiver(max_sources: int = 10) -> DurableReceiver:
    numbers = count(101)
    return DurableReceiver(lambda: next(numbers), max_sources)


def record(peer: PeerId = A, content: bytes = b"x", body: bytes = b"") -> OutboxRecord:
    data = envelope.encode(Envelope([Fill(b"", content)]))
    return OutboxRecord(
        EnvelopeKey(peer, 0, 0), data, body=body, body_name=name_of(body) if body else BodyName()
    )


def emptied(machine: Any, kind: type | None = None) -> list[Any]:
    effects = [effect for effect in machine.out if kind is None or isinstance(effect, kind)]
    machine.out.clear()
    return effects


def write_all(machine: DurableSender) -> list[Any]:
    """Has all rows written, and gives what came of it."""
    effects = []
    while machine.out:
        effect = machine.out.pop(0)
        effects.append(effect)
        if isinstance(effect, Write):
            machine.persisted(effect.token)
    return effects


def asked_by(machine: DurableSender) -> Ask:
    ask = marks.decoded(marks_in(emptied(machine, Say)[-1].payload))
    assert isinstance(ask, Ask)
    return ask


def marks_in(data: bytes) -> bytes:
    return bytes(envelope.decode(data, UNBOUNDED_CAPS).fills[0].payload)


def opened(
    machine: DurableSender, peer: PeerId = A, *windows: Taken, now_ns: int = 0, run: int = 1
) -> list[Any]:
    """Takes a sender through an exchange; what comes of it."""
    effects = write_all(machine)
    machine.peer_up(peer, run, True, now_ns)
    machine.took(peer, Took(asked_by(machine).token, 7, windows), now_ns)
    return effects + write_all(machine)


def state(machine: Any, peer: PeerId = A) -> str:
    name: str = machine.inspect()[str(peer)]["state"]
    return name


def rows_of(effects: list[Any]) -> list[bytes]:
    return [effect.row for effect in effects if isinstance(effect, Write)]


def asked_by_writing(machine: DurableSender, rows: list[bytes]) -> Ask:
    said = next(effect for effect in machine.out if isinstance(effect, Say))
    ask = marks.decoded(marks_in(said.payload))
    written(machine, rows)
    assert isinstance(ask, Ask)
    return ask


def written(machine: DurableSender, rows: list[bytes], but: int = 0) -> Any:
    """Has rows written, but the one that gives this number first; gives that."""
    late = None
    while machine.out:
        effect = machine.out.pop(0)
        if isinstance(effect, Write) and getattr(effect.name, "first", -1) == but:
            late = effect
        elif isinstance(effect, Write):
            rows.append(effect.row)
            machine.persisted(effect.token)
    return late


def took_by(hub: DurableReceiver) -> Took:
    took = marks.decoded(marks_in(emptied(hub, Say)[-1].payload))
    assert isinstance(took, Took)
    return took
