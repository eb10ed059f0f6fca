"""What programs are played with: a node at many moments, and what it has said.

Before each poll there is a `Moment`, at which somebody may look at the node, or put another one in its place.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from peers import HERE, SELF
from texts import compiled

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine.plain import dump
from bb_edge.engine.steps import (
    AppEvent,
    BootstrapComplete,
    EngineStep,
    OpFailed,
    SendEnvelope,
)
from bb_edge.node import Node
from bb_edge.registry import Registry
from bb_edge.wire import envelope
from bb_edge.wire.caps import EDGE_CAPS


class Draw(Protocol):
    """Chooses one of several values."""

    def __call__(self, *values: Any) -> Any: ...


class Moment(NamedTuple):
    """A node between two polls; `install(snapshot, now_ns)` makes another one like it."""

    node: Node
    now_ns: int
    install: Callable[[bytes | None, int], Node]


class Play:
    """What one of NODES is played with: the node, what it has said, and who looks at its moments.

    `visit` is called at every moment; where it returns a node, that one plays on.
    """

    node: Node
    install: Callable[..., Node]

    def __init__(self, draw: Draw, visit: Callable[[Moment], Node | None]) -> None:
        self.draw = draw
        self.said: list[tuple[object, ...]] = []
        self.sent: set[tuple[object, ...]] = set()  # best-effort envelopes leave again after a restart
        self._visit = visit

    def begin(self, text: str, *components: type, targets: tuple[str, ...] = ("Main",), **more: Any) -> None:
        """Installs the node; `more` as for `installer`."""
        self.install = installer(text, *components, targets=targets, **more)
        self.node = self.install()

    def greeted(self, *peers: PeerId) -> None:
        """The first poll, after each peer has said that it is there."""
        for peer in peers:
            self.node.peer_presence(peer, True, (HERE,), epoch=1)
        self.poll(1)

    def moment(self, now_ns: int) -> None:
        """Nothing happens: somebody may look."""
        self.node = self._visit(Moment(self.node, now_ns, self.install)) or self.node

    def poll(self, now_ns: int) -> list[EngineStep]:
        """A poll, after a moment."""
        self.moment(now_ns)
        found = self.node.poll(now_ns)
        self.take(found)
        return found

    def take(self, found: Iterable[EngineStep]) -> None:
        """Keeps what the steps say to the host and to peers."""
        for step in found:
            match step:
                case AppEvent():
                    self.said.append((step.topic, str(dump(step.value))))
                case OpFailed():
                    self.said.append(("failed", step.op, str(step.error)))
                case BootstrapComplete():
                    self.said.append(("bootstrapped", step.target, step.slot))
                case SendEnvelope():
                    sent = envelope.decode(step.payload, EDGE_CAPS)
                    fills = tuple(bytes(fill.payload) for fill in sent.fills)
                    self.sent |= {(step.peer, sent.kind, sent.wire_req_id, fills)} if fills else set()

    def until(self, end_ns: int, now_ns: int) -> int:
        """Polls whenever something is due; the time of the last poll."""
        while (due := self.node.next_deadline_ns()) is not None and due <= end_ns:
            now_ns = max(now_ns + 1, due)
            self.poll(now_ns)
        return now_ns


def played(nodes: Callable[[Play], None], seed: int, visit: Callable[[Moment], Node | None]) -> Play:
    """One of NODES, played to its end; a seed draws."""
    chance = random.Random(seed)
    play = Play(lambda *values: chance.choice(values), visit)
    nodes(play)
    return play


def installer(text: str, *components: type, targets: tuple[str, ...] = ("Main",), **more: Any) -> Any:
    """`install` of a `Moment`: `peer`, `durable` and the numbers of NodeConfig may be given."""
    registry = Registry()
    for component in components:
        registry.register(component)
    peer, durable = more.pop("peer", SELF), more.pop("durable", False)
    config = NodeConfig.edge().with_(**more)

    def make(snapshot: bytes | None = None, now_ns: int = 0) -> Node:
        settings: dict[str, Any] = {"seed": 5, "durable": durable, "snapshot": snapshot, "now_ns": now_ns}
        return install(peer, (HERE,), compiled(text), targets, config, registry=registry, **settings)

    return make


def polled(node: Node, end_ns: int, now_ns: int) -> list[tuple[int, EngineStep]]:
    """Polls whenever something is due; when, and what."""
    found: list[tuple[int, EngineStep]] = []
    while (due := node.next_deadline_ns()) is not None and due <= end_ns:
        now_ns = max(now_ns + 1, due)
        found += [(now_ns, step) for step in node.poll(now_ns)]
    return found
