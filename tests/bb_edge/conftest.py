"""Compiled programs in the text notation, installed on real nodes under simulated time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from asking import Federation, changed
from texts import compiled

from bb_edge.adoption import Former
from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.node import Node
from bb_edge.registry import Registry


@dataclass
class Bench:
    """One node and what it said."""

    node: Node
    now_ns: int = 0
    said: list[steps.EngineStep] = field(default_factory=list)

    def poll(self, after_ns: int = 0) -> list[steps.EngineStep]:
        self.now_ns += after_ns
        found = self.node.poll(self.now_ns)
        self.said += found
        return found

    def settle(self, until_ns: int | None = None) -> None:
        """Polls until nothing is due (by `until_ns`, if given), time jumping along."""
        for _ in range(10_000):
            due = self.node.next_deadline_ns()
            if due is None or (until_ns is not None and due > until_ns):
                return
            self.now_ns = max(self.now_ns, due)
            self.poll()
        raise AssertionError("the node never comes to rest")

    def events(self, topic: str) -> list[object]:
        return [s.value for s in self.said if isinstance(s, steps.AppEvent) and s.topic == topic]

    def of(self, kind: type) -> list:
        return [s for s in self.said if isinstance(s, kind)]

    def topics(self) -> list[str]:
        """The topics of what the program emitted, in their order."""
        return [event.topic for event in self.of(steps.AppEvent)]

    def assert_clean(self) -> None:
        """Nothing failed, starved, or is left."""
        assert self.of(steps.OpFailed) == []
        assert self.of(steps.ExecutionStarved) == []
        assert self.node.counters["executions.active"] == 0
        assert self.node.counters["pending_async.count"] == 0


@pytest.fixture
def bench() -> Callable[..., Bench]:
    """`bench(text, targets=…, config=…, components=…, peer=…, registry=…, …)`: an installed node."""

    def make(
        text: str,
        targets: tuple[str, ...] = ("Main",),
        config: NodeConfig | None = None,
        components: Mapping[str, Mapping[str, object]] | None = None,
        peer: str = "node",
        registry: Registry | None = None,
        clock_offset_ns: int = 0,
        adopt: Former | None = None,
        **surroundings: Any,
    ) -> Bench:
        node = install(
            PeerId.from_name(peer),
            (),
            compiled(text),
            targets,
            config,
            components=components,
            registry=registry,
            seed=7,
            clock_offset_ns=clock_offset_ns,
            adopt=adopt,
            **surroundings,
        )
        return Bench(node)

    return make


@pytest.fixture
def compile_text() -> Callable[[str], bytes]:
    return compiled


@pytest.fixture
def askers() -> Callable[..., Federation]:
    """`askers(clients=2, enough=0, config=None, changes=())`: a server and clients of the changed program."""

    def make(
        clients: int = 2,
        enough: int = 0,
        config: NodeConfig | None = None,
        changes: Sequence[tuple[str, str]] = (),
    ) -> Federation:
        return Federation(compiled(changed(enough, changes)), clients, config)

    return make
