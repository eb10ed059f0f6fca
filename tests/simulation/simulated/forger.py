"""Somebody who has a name of his own alone, and says under it what others have said, and what nobody did."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bb_edge.engine import steps
from bb_edge.wire import envelope, marks
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.codecs import encode_value
from bb_edge.wire.envelope import Ack, Envelope
from bb_edge.wire.marks import Ask, Heard, Open, Taken, Took
from simulated.letters_plan import FORGER
from simulated.machine import Machine, identity

if TYPE_CHECKING:
    from simulated.letters import LettersWorld

FORGED = 1 << 22
"""Letters from this number on are forged; what comes of them is nobody's loss."""
LISTENS = 40
"""Envelopes of others that are remembered."""


class Forger:
    """Listens to everybody, and speaks under its own name alone: the broker sees to that."""

    def __init__(self, world: LettersWorld, rng: random.Random) -> None:
        self.peer, self.address = identity(FORGER)
        self._world = world
        self._rng = rng
        self._heard: deque[bytes] = deque(maxlen=LISTENS)
        self._told: dict[str, Took] = {}
        """The last Took that each machine has said to this name."""
        self._number = FORGED

    def listens(self, payload: bytes) -> None:
        """What somebody has said to somebody else."""
        self._heard.append(payload)

    def hears(self, source: Machine, step: steps.SendEnvelope) -> None:
        """What is said to this name."""
        for fill in envelope.decode(step.body + step.payload, EDGE_CAPS).fills:
            if fill.dest_suffix == marks.SUFFIX and isinstance(said := marks.decoded(fill.payload), Took):
                self._told[source.name] = said

    def speaks(self) -> None:
        """Says something to somebody who is up."""
        world, rng = self._world, self._rng
        target = rng.choice(world.machines)
        node = target.node
        if node is None:
            return
        world.network.faults["forged"] += 1
        if rng.random() < 0.3:
            meta = dict(node.presence_meta)
            if rng.random() < 0.5:
                meta.pop("features")
            epoch = rng.getrandbits(63) | 1
            node.peer_presence(self.peer, True, (self.address,), meta, epoch=epoch, classes=("Post",))
        else:
            node.deliver_inbound(self._payload(target), self.peer)
        target.due = 0

    def _payload(self, target: Machine) -> bytes:
        rng = self._rng
        if not self._heard or rng.random() < 0.4:
            return marks.encoded(self._marks(target)) + envelope.encode(
                Envelope(src_addresses=(self.address,))
            )
        message = envelope.decode(rng.choice(self._heard), EDGE_CAPS)
        if message.kind == envelope.REQUEST or (
            message.fills and message.fills[0].dest_suffix == marks.SUFFIX
        ):
            message.epoch = message.seq = message.base = 0
            if message.kind == envelope.REQUEST:
                message.fills, message.kind = [], envelope.NONE  # nobody would take the answers
            return envelope.encode(message)
        self._number += 1
        told = encode_value(np.full(1, self._number, np.float32))[1]
        message.fills = [replace(fill, payload=told) for fill in message.fills]
        if message.epoch:
            message.acks = (*message.acks, Ack(message.epoch, rng.randrange(80)))
        return envelope.encode(message)

    def _marks(self, target: Machine) -> Ask | Took | Open:
        rng = self._rng
        epoch = 1 << rng.randrange(64)
        told = self._told.get(target.name)
        if told is not None and rng.random() < 0.5:
            return Open(told.echo, told.token, epoch)
        kind = rng.randrange(3)
        if kind == 0:
            return Ask(rng.getrandbits(8), Heard(epoch, rng.randrange(1, 99), rng.getrandbits(64)))
        if kind == 1:
            return Took(rng.getrandbits(8), rng.getrandbits(8), (Taken(epoch, rng.randrange(99)),))
        return Open(rng.getrandbits(8), rng.getrandbits(8), epoch)
