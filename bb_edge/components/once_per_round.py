"""`bb.OncePerRound`: a node takes part in each round once, whoever asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bb_edge.components.state import StateReader, pack_state
from bb_edge.components.without_settings import WithoutSettings
from bb_edge.ir.opsets import Effect, Opset, Table
from bb_edge.ir.values import TRIGGER, Trigger
from bb_edge.roles.errors import ComponentError, RequestDeclined

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.context import ProtocolCtx

__all__ = ["OncePerRound"]

_VERSION = 1


class OncePerRound(WithoutSettings):
    """Lets one request of each round through, and declines the others.

    `first(g, round)` takes a number of the round, I64 with one element. Where it is another number than the
    last one let through, it gives a trigger: start the work after it (`after=`). Else the request is declined
    (`RequestDeclined`). So a client that moves to another gateway in mid-round, and is asked by both, counts
    once. The number is in the node's snapshots.

    Give it `start.attempt`, not `start.round`: a round that reached nobody is repeated with its number, and
    a server that begins anew counts from 1; both would be declined by whoever has answered that number last.
    """

    TYPE_NAME: ClassVar[str] = "bb.OncePerRound"

    def __init__(self, where: str = "") -> None:
        super().__init__(where)
        self._last: int | None = None

    @classmethod
    def atomic_opset(cls) -> Opset:
        table = Table(cls.TYPE_NAME)
        table.op(
            "First",
            "round:Tensor<I64>",
            "first:Trigger",
            "",
            "Fires in the first request of a round, and declines the others.",
            effect=Effect.WRITE,
        )
        return table.opset()

    def first(self, ctx: ProtocolCtx, round: Array) -> Trigger:
        """Returns the trigger. RequestDeclined for a second request, ComponentError for an invalid number."""
        if round.size != 1:
            raise ComponentError(f"a round is one number, not int64{list(round.shape)}", self._where)
        number = int(np.asarray(round).item())
        if number == self._last:
            raise RequestDeclined(
                f"round {number} has been answered here",
                self._where,
                "where a round is to be answered again when it is repeated, send start.attempt as its number",
            )
        self._last = number
        return TRIGGER

    def serialize(self) -> bytes:
        return pack_state(self, _VERSION, {"last": self._last})

    def restore(self, state: bytes) -> None:
        """Takes the last round over. ComponentStateError for bytes of another kind."""
        read = StateReader(self, _VERSION, state)
        self._last = read.optional_integer("last")
