"""What every part of a node may hold: clock, timers, counters, steps, randomness. It knows no part."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any, Protocol

from numpy import ndarray

from bb_edge.engine import steps
from bb_edge.engine.bus import Bus
from bb_edge.engine.callbacks import Callbacks
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.plain import payload_bytes
from bb_edge.engine.timers import Timers
from bb_edge.ir.ids import PeerId


class Executor(Protocol):
    """Takes work that may leave the thread, such as `concurrent.futures.Executor`."""

    def submit(self, work: Callable[[], object], /) -> object:
        """Runs `work()` some time, on some thread."""


class Runtime:
    """The services of one node, shared by all of its parts.

    `ids` gives epochs, request ids and tokens: what no two incarnations may share. `ids_go_on` says whether
    a snapshot holds its state, as it does for nodes that were installed without an incarnation. `executor`
    is None where offloaded work runs at once, on the poller's thread.
    """

    __slots__ = (
        "bus",
        "callbacks",
        "clock_offset_ns",
        "config",
        "counters",
        "emit",
        "executor",
        "ids",
        "ids_go_on",
        "local_addresses",
        "now_ns",
        "own_peer",
        "rng",
        "steps",
        "timers",
    )

    def __init__(
        self,
        config: NodeConfig,
        own_peer: PeerId,
        rng: random.Random,
        ids: random.Random,
        *,
        ids_go_on: bool = False,
        clock_offset_ns: int = 0,
        local_addresses: tuple[bytes, ...] = (),
        executor: Executor | None = None,
    ) -> None:
        self.config = config
        self.own_peer = own_peer
        self.rng = rng
        self.ids = ids
        self.ids_go_on = ids_go_on
        self.clock_offset_ns = clock_offset_ns
        self.local_addresses = local_addresses
        self.executor = executor
        self.now_ns = 0
        self.timers = Timers(config.max_timers)
        self.callbacks = Callbacks()
        self.bus = Bus()
        self.counters: dict[str, int] = {}
        self.steps: list[steps.EngineStep] = []
        self.emit: Callable[[steps.EngineStep], None] = self.steps.append
        """Adds a step to what the poll returns."""

    def advance(self, now_ns: int) -> None:
        """Sets the time; only a poll, a snapshot and a restore do that."""
        self.now_ns = now_ns

    def count(self, name: str, n: int = 1) -> None:
        """Adds to a counter; names come from code and programs, so their number is bounded."""
        counters = self.counters
        if name in counters:
            counters[name] += n
        elif len(counters) < self.config.metric_names:
            counters[name] = n
        else:
            counters["counters.refused"] = counters.get("counters.refused", 0) + n

    def emit_value(self, target: str, execution: int, topic: str, value: object) -> None:
        """Adds an app event; a value that is larger than the node lets it be is left out, counted."""
        size = value.nbytes if type(value) is ndarray else payload_bytes(value)
        if size <= self.config.app_event_bytes:
            self.steps.append(steps.AppEvent(target, execution, topic, value))
        else:
            self.count("app_events.omitted")
            self.steps.append(steps.AppEvent(target, execution, topic, None, size))

    def take_steps(self) -> list[steps.EngineStep]:
        """All steps since the last call; for the end of a poll."""
        out = self.steps.copy()
        self.steps.clear()
        return out

    def component_failed(self, target: str, where: str, origin: str, error: BaseException) -> None:
        """Reports that a component's code failed outside of any op; the node goes on."""
        self.count("components.failed")
        self.emit(steps.OpFailed(target, 0, where, error, origin))
        self.bus.publish(Bus.OP_FAILURE)

    # --- snapshot -------------------------------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Counters, generators and events on the bus, as plain values."""
        return {
            "counters": dict(self.counters),
            "rng": _state_of(self.rng),
            "ids": _state_of(self.ids) if self.ids_go_on else None,
            "bus": [self.bus.dropped, list(self.bus.events)],
        }

    def restore(self, plain: Any) -> None:
        """Takes what `save` gave."""
        self.counters = {str(name): int(value) for name, value in plain["counters"].items()}
        _set_state(self.rng, plain["rng"])
        # Those of a real node come from fresh entropy at each start, and are in no snapshot.
        if self.ids_go_on and plain.get("ids") is not None:
            _set_state(self.ids, plain["ids"])
        self.bus.dropped = plain["bus"][0]
        self.bus.events.extend(plain["bus"][1])


def _state_of(generator: random.Random) -> list[Any]:
    version, words, gauss = generator.getstate()
    return [version, struct.pack(f">{len(words)}I", *words), gauss]


def _set_state(generator: random.Random, plain: Any) -> None:
    version, words, gauss = plain
    generator.setstate((version, struct.unpack(f">{len(words) // 4}I", words), gauss))
