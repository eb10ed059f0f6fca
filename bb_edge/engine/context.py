"""What an op sees while it runs: one object per engine, set before each call (the roles' `Ctx`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bb_edge.engine.errors import OpError
from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.components import Components
from bb_edge.engine.run.frames import Execution, Frame
from bb_edge.engine.run.waiting import WaitingRoom
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.roles.containment import contained

if TYPE_CHECKING:
    import numpy as np

    from bb_edge.engine.net.control_plane import Outlet, Reply
    from bb_edge.engine.run.scheduler import Scheduler
    from bb_edge.roles.completion import Later
    from bb_edge.roles.context import ProtocolCtx


class ComponentTimers:
    """The engine's timers as components see them; `outlet` is whose they are, None: of the op that runs."""

    __slots__ = ("_engine", "_outlet", "_runtime")

    def __init__(self, engine: Scheduler, outlet: Outlet | None = None) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._outlet = outlet

    def after(self, delay_ns: int, callback: Callable[[Any], object]) -> int:
        """Calls `callback(ctx)` once, `delay_ns` from now, at the earliest in the next poll.

        Returns a token for `cancel`. TimersFull at `max_timers`. A timer outlives a restart from a snapshot
        where the callback is a method of the component itself.
        """
        engine = self._engine
        outlet = self._outlet or engine.control.outlet_of(engine.running.component)
        name = getattr(callback, "__name__", "timer")
        when = self._runtime.now_ns + max(delay_ns, 1)
        if getattr(callback, "__self__", None) is outlet.component:
            return self._runtime.timers.at(when, outlet.fire, name)
        return self._runtime.timers.at(when, outlet.fire_callback, name, callback)

    def cancel(self, token: int) -> None:
        """Forgets a timer of `after`; one that is past is fine."""
        self._runtime.timers.cancel(token)

    def complete_after(self, delay_ns: int, later: Later, result: object = None) -> None:
        """Completes `later` with `result` after `delay_ns` of monotonic time, unless it is settled before."""
        self._runtime.timers.at(self._runtime.now_ns + delay_ns, _settle, later, result)


def _settle(_now_ns: int, later: Later, result: object) -> None:
    if not later.handle.settled:
        later.complete(result)


class _Surroundings:
    """What does not depend on who asks: the node's parts that every `ctx` shows."""

    __slots__ = ("_generator", "engine", "runtime")

    def __init__(self, engine: Scheduler) -> None:
        self.engine = engine
        self.runtime = engine.runtime
        self._generator: np.random.Generator | None = None

    @property
    def own_peer(self) -> PeerId:
        return self.runtime.own_peer

    @property
    def own_classes(self) -> tuple[str, ...]:
        """The peer classes that the node presents."""
        found: tuple[str, ...] = self.engine.neighbours.own_classes
        return found

    @property
    def peers(self) -> Any:
        return self.engine.neighbours.view

    @property
    def address_book(self) -> Any:
        return self.engine.neighbours.address_book

    @property
    def local_addresses(self) -> tuple[bytes, ...]:
        return self.runtime.local_addresses

    @property
    def bus(self) -> Any:
        return self.runtime.bus

    def later(self, deadline_ns: int | None = None) -> Later:
        raise NotImplementedError

    def offload(self, work: Callable[[], object], deadline_ns: int | None = None) -> Later:
        """See `Ctx.offload`: on the executor that `install` was given, else here and now."""
        later = self.later(deadline_ns)
        handle = later.handle

        def run() -> None:
            if handle.settled:
                return  # its deadline has passed while it stood in the executor's queue
            try:
                result = work()
            # The border to users' components, on whichever thread: the op fails, nothing else.
            except BaseException as error:  # noqa: BLE001
                handle.fail(contained(error))
            else:
                handle.complete(result)

        executor = self.runtime.executor
        if executor is None:
            run()
        else:
            executor.submit(run)
        return later

    @property
    def rng(self) -> np.random.Generator:
        """NumPy generator, seeded from the node's seed; made on first use."""
        if self._generator is None:
            from numpy.random import default_rng

            self._generator = default_rng(self.runtime.rng.getrandbits(64))
        return self._generator

    @property
    def generator_state(self) -> Any:
        """The generator's state, for a snapshot; None where it was never used."""
        return None if self._generator is None else self._generator.bit_generator.state

    @generator_state.setter
    def generator_state(self, state: Any) -> None:
        if state is not None:
            from numpy.random import default_rng

            self._generator = default_rng(0)
            self._generator.bit_generator.state = state


class ControlContext(_Surroundings):
    """What a component's timers, callbacks and remote ops see: no execution stands behind them."""

    __slots__ = ("_outlet", "replying", "scheduler")

    def __init__(self, engine: Scheduler, outlet: Outlet) -> None:
        super().__init__(engine)
        self._outlet = outlet
        self.scheduler = ComponentTimers(engine, outlet)
        # The remote op that runs and may answer later; None in timers, callbacks and hooks.
        self.replying: Reply | None = None

    @property
    def now_ns(self) -> int:
        return self.runtime.now_ns

    @property
    def exec_id(self) -> int:
        return 0

    @property
    def own_class(self) -> str:
        return self.engine.components.class_of_target[self._outlet.target]

    def dependency(self, slot: str) -> Any:
        """The component bound to another slot of the same target."""
        return self.engine.components.of(self._outlet.target, slot)

    def later(self, deadline_ns: int | None = None) -> Later:
        """Lets the remote op that runs answer later; OpError in timers, callbacks and hooks, where none does.

        The deadline is the given one, else the node's; never beyond what remains of the request's.
        """
        if self.replying is None:
            raise OpError(
                "no op to answer later for", f"slot {self._outlet.name!r}", "send the answer instead"
            )
        return self._outlet.later(self.replying, deadline_ns)

    def send(self, peer: PeerId, op: str, payload: bytes, deadline_ns: int = 0) -> bool:
        """See `ProtocolCtx.send`."""
        return self._outlet.send(peer, op, payload, deadline_ns)

    def request(
        self, peer: PeerId, op: str, payload: bytes, deadline_ns: int, done: Callable[[Any, Any], object]
    ) -> None:
        """See `ProtocolCtx.request`."""
        self._outlet.request(peer, op, payload, deadline_ns, done)


class OpContext(_Surroundings):
    """`execution`, `frame` and `op` are those of the op that runs."""

    __slots__ = ("_timers", "components", "execution", "frame", "later_token", "op", "waiting")

    def __init__(self, runtime: Runtime, components: Components, waiting: WaitingRoom) -> None:
        self.runtime = runtime
        self.components = components
        self.waiting = waiting
        self._generator = None
        self.later_token = 0
        self.execution: Execution
        self.frame: Frame
        self.op: BoundOp

    def tie(self, scheduler: Scheduler) -> None:
        self.engine = scheduler
        self._timers = ComponentTimers(scheduler)

    @property
    def now_ns(self) -> int:
        return self.runtime.now_ns

    @property
    def exec_id(self) -> int:
        return self.execution.id

    @property
    def target(self) -> str:
        return self.op.target

    @property
    def own_class(self) -> str:
        """The peer class of the partition that the op stands in."""
        return self.components.class_of_target[self.op.target]

    @property
    def scheduler(self) -> ComponentTimers:
        return self._timers

    def send(self, peer: PeerId, op: str, payload: bytes, deadline_ns: int = 0) -> bool:
        """See `ProtocolCtx.send`."""
        found: bool = self.engine.control.outlet_of(self.op.component).send(peer, op, payload, deadline_ns)
        return found

    def request(
        self, peer: PeerId, op: str, payload: bytes, deadline_ns: int, done: Callable[[Any, Any], object]
    ) -> None:
        """See `ProtocolCtx.request`."""
        self.engine.control.outlet_of(self.op.component).request(peer, op, payload, deadline_ns, done)

    @property
    def random(self) -> random.Random:
        return self.runtime.rng

    def dependency(self, slot: str) -> Any:
        """The component bound to another slot of the same target."""
        return self.components.of(self.op.target, slot)

    def later(self, deadline_ns: int | None = None) -> Later:
        """Parks the op;

        the handle is fulfilled from any thread. `deadline_ns` is relative, None = the default.
        """
        return self.waiting.later(self, deadline_ns)


if TYPE_CHECKING:
    # Holds the type checker to what components are promised.
    _PROMISED: tuple[type[ProtocolCtx], ...] = (OpContext, ControlContext)
