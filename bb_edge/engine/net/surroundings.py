"""What every component sees of its node: the `ctx` of its calls, whoever calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bb_edge.engine.errors import OpError
from bb_edge.engine.net.calls import Calls, Done, Replies
from bb_edge.engine.net.outlets import Outlet
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.peer_view import PeerView
from bb_edge.engine.run.components import Components
from bb_edge.engine.run.turns import TOO_LATE
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.counters import is_own
from bb_edge.ir.ids import PeerId
from bb_edge.roles.completion import CompletionHandle, Later
from bb_edge.roles.containment import contained
from bb_edge.roles.errors import ComponentError, RequestDeclined


@dataclass(slots=True, eq=False)
class ComponentTimers:
    """The engine's timers as components see them."""

    _runtime: Runtime
    _ctx: Surroundings

    def after(self, delay_ns: int, callback: Callable[[Any], object]) -> int:
        """Calls `callback(ctx)` once, `delay_ns` from now, at the earliest in the next poll.

        Returns a token for `cancel`. TimersFull at `max_timers`. A timer outlives a restart from a snapshot
        where the callback is a method of the component itself.
        """
        outlet = self._ctx.outlet
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


def _finish(work: Callable[[], object], handle: CompletionHandle) -> bool:
    """Does the work and settles the handle; False where somebody waited for that in vain."""
    try:
        result = work()
    # The border to users' components, on whichever thread: the op fails, nothing else.
    except BaseException as error:  # noqa: BLE001
        return handle.fail(contained(error))
    return handle.complete(result)


def _settle(_now_ns: int, later: Later, result: object) -> None:
    if not later.handle.settled:
        later.complete(result)


class Surroundings:
    """What every `ctx` shows, whoever asks; `outlet` and `target` tell who does."""

    __slots__ = (
        "_calls",
        "_generator",
        "address_book",
        "bus",
        "components",
        "local_addresses",
        "own_classes",
        "own_peer",
        "peers",
        "runtime",
        "scheduler",
    )

    def __init__(self, runtime: Runtime, components: Components, peers: PeerStates, calls: Calls) -> None:
        self._calls = calls
        self.runtime = runtime
        self.components = components
        self.own_peer = runtime.own_peer
        self.local_addresses = runtime.local_addresses  # under which the node is reached, encoded
        self.bus = runtime.bus
        self.own_classes = peers.own_classes  # that the node presents
        self.peers = PeerView(peers)
        self.address_book = peers.address_book
        self.scheduler = ComponentTimers(runtime, self)
        self._generator: np.random.Generator | None = None

    @property
    def outlet(self) -> Outlet:
        """The outlet of the component that asks. OpError where it is not a protocol."""
        raise NotImplementedError

    @property
    def target(self) -> str:
        """The target that the component or op belongs to."""
        raise NotImplementedError

    @property
    def offloads(self) -> str:
        """The name under which the times of offloaded work are kept."""
        raise NotImplementedError

    @property
    def crowded(self) -> bool:
        """Whether somebody else waits for this node, who could be answered in the time of this call."""
        raise NotImplementedError

    @property
    def cohort(self) -> int:
        """See `Ctx.cohort`: timers, hooks and remote ops belong to none."""
        return 0

    @property
    def now_ns(self) -> int:
        """Monotonic time of this poll, nanoseconds."""
        return self.runtime.now_ns

    @property
    def own_class(self) -> str:
        """The peer class of the target."""
        return self.components.class_of_target[self.target]

    def count(self, name: str, n: int = 1) -> None:
        """See `Ctx.count`."""
        counts = isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 0
        if not (isinstance(name, str) and name and counts):
            raise ComponentError(
                f"ctx.count({name!r:.60}, {n!r:.40}): a name and a whole number from 0 are expected",
                hint="a counter only goes up; a value that falls is an event or a record of the program",
            )
        if is_own(name):
            raise ComponentError(
                f"ctx.count: {name!r} begins as the node's own counters do",
                hint=f"put a word of your own in front: 'acme.{name}'",
            )
        self.runtime.count(name, int(n))

    def dependency(self, slot: str) -> Any:
        """The component bound to another slot of the same target."""
        return self.components.of(self.target, slot)

    def send(self, peer: PeerId, op: str, payload: bytes, deadline_ns: int = 0) -> bool:
        """See `ProtocolCtx.send`."""
        return self.outlet.send(peer, op, payload, deadline_ns)

    def request(self, peer: PeerId, op: str, payload: bytes, deadline_ns: int, done: Done) -> None:
        """See `ProtocolCtx.request`."""
        self._calls.ask(self.outlet, peer, op, payload, deadline_ns, done)

    def later(self, deadline_ns: int | None = None) -> Later:
        """See `Ctx.later`."""
        raise NotImplementedError

    def offload(self, work: Callable[[], object], deadline_ns: int | None = None) -> Later:
        """See `Ctx.offload`: on the executor that `install` was given, else here and now."""
        later = self.later(deadline_ns)
        executor = self.runtime.executor
        if executor is None:
            _finish(work, later.handle)
        else:
            executor.submit(self._timed(work, later))
        return later

    def _timed(self, work: Callable[[], object], later: Later) -> Callable[[], object]:
        """The work as a thread does it: not begun where its result would come too late."""
        runtime, handle, left_ns = self.runtime, later.handle, later.deadline_ns
        clock, pace = runtime.paces.clock, runtime.paces.of(self.offloads)
        submitted_ns, crowded = clock(), self.crowded

        def run() -> None:
            if handle.settled:
                return  # its deadline has passed while it stood in the executor's queue
            begun_ns = clock()
            if crowded and left_ns and not pace.fits(left_ns - (begun_ns - submitted_ns), begun_ns):
                handle.fail(RequestDeclined(TOO_LATE))
                return
            in_time = _finish(work, handle)
            ended_ns = clock()
            pace.took(ended_ns - begun_ns, ended_ns, late=not in_time)

        return run

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


class ControlContext(Surroundings):
    """What a component's timers, callbacks and remote ops see: no execution stands behind them."""

    __slots__ = ("_replies", "outlet")

    outlet: Outlet
    exec_id = 0

    def __init__(
        self,
        runtime: Runtime,
        components: Components,
        peers: PeerStates,
        calls: Calls,
        replies: Replies,
        outlet: Outlet,
    ) -> None:
        super().__init__(runtime, components, peers, calls)
        self._replies = replies
        self.outlet = outlet

    @property
    def offloads(self) -> str:
        """The remote op that is called."""
        return f"{self.outlet.name}.{self.outlet.replying.op if self.outlet.replying else ''}"

    @property
    def crowded(self) -> bool:
        """Whether other remote ops are to be answered later, too."""
        return len(self._replies.pending) > 1

    @property
    def target(self) -> str:
        """The component's target."""
        return self.outlet.target

    def later(self, deadline_ns: int | None = None) -> Later:
        """Lets the remote op that runs answer later; OpError in timers, callbacks and hooks, where none does.

        The deadline is the given one, else the node's; never beyond what remains of the request's.
        """
        if self.outlet.replying is None:
            raise OpError(
                "no op to answer later for", f"slot {self.outlet.name!r}", "send the answer instead"
            )
        return self._replies.park(self.outlet.replying, deadline_ns)
