"""What an op sees while it runs: one object per engine, set before each call (the roles' `Ctx`)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from bb_edge.engine.executions import BoundOp, Execution, Frame
from bb_edge.ir.ids import PeerId

if TYPE_CHECKING:
    import numpy as np

    from bb_edge.engine.core import Engine
    from bb_edge.roles.completion import Later


class Scheduler:
    """The engine's timers as components see them."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def complete_after(self, delay_ns: int, later: Later, result: object = None) -> None:
        """Completes `later` with `result` after `delay_ns` of monotonic time, unless it is settled before."""
        engine = self._engine
        engine.timers.at(engine.now_ns + delay_ns, lambda _now_ns: _settle(later, result))


def _settle(later: Later, result: object) -> None:
    if not later.handle.settled:
        later.complete(result)


class OpContext:
    """`execution`, `frame`, `op` and `now_ns` are those of the op that runs."""

    __slots__ = ("_generator", "engine", "execution", "frame", "later_token", "now_ns", "op")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.now_ns = 0
        self.later_token = 0
        self._generator: np.random.Generator | None = None
        self.execution: Execution
        self.frame: Frame
        self.op: BoundOp

    @property
    def exec_id(self) -> int:
        return self.execution.id

    @property
    def target(self) -> str:
        return self.op.target

    @property
    def own_peer(self) -> PeerId:
        return self.engine.own_peer

    @property
    def own_class(self) -> str:
        """The peer class of the partition that the op stands in."""
        return self.engine.class_of_target[self.op.target]

    @property
    def peers(self) -> Any:
        return self.engine.peers

    @property
    def address_book(self) -> Any:
        return self.engine.address_book

    @property
    def local_addresses(self) -> tuple[bytes, ...]:
        return self.engine.local_addresses

    @property
    def bus(self) -> Any:
        return self.engine.bus

    @property
    def scheduler(self) -> Scheduler:
        return self.engine.scheduler

    @property
    def rng(self) -> np.random.Generator:
        """NumPy generator, seeded from the node's seed; made on first use."""
        if self._generator is None:
            from numpy.random import default_rng

            self._generator = default_rng(self.engine.rng.getrandbits(64))
        return self._generator

    @property
    def random(self) -> random.Random:
        return self.engine.rng

    def dependency(self, slot: str) -> Any:
        """The component bound to another slot of the same target."""
        return self.engine.component_of(self.op.target, slot)

    def later(self, deadline_ns: int | None = None) -> Later:
        """Parks the op;

        the handle is fulfilled from any thread. `deadline_ns` is relative, None = the default.
        """
        return self.engine.parking.later(self, deadline_ns)
