"""Worlds: some nodes, a network that keeps every message for ever, and all that can happen next.

A message that is sent stays in the network: it may arrive never, once, or many times, in any order. What a
plan allows (crashes, restores, snapshots, …) happens so many times at most.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bb_edge.wire import envelope, marks
from bb_edge.wire.caps import UNBOUNDED_CAPS as CAPS
from bb_edge.wire.envelope_records import Ack, Envelope

from .nodes import Disk, Message, Node, Report

STEP_NS = 100_000_000_000
"""Between two events: beyond all that is limited in time."""


class Broken(AssertionError):
    """A world in which a promise is broken; the message has the way to it."""

    def __init__(self, what: str, way: tuple[Any, ...]) -> None:
        steps = "\n".join(f"  {_told(*event)}" for event in way[-60:])
        super().__init__(f"{what}, after {len(way)} events:\n{steps}")


def _told(what: str, *more: Any) -> str:
    if what != "hear":
        return " ".join([what, *map(str, more)])
    message: Message = more[0]
    arrived = envelope.decode(message.data, CAPS)
    if message.kind == "marks":
        told: object = marks.decoded(arrived.fills[0].payload)
    else:
        told = (arrived.epoch, arrived.seq, arrived.base, *arrived.acks)
    return f"hear {message.src} to {message.dst}: {told}"


class Flow(NamedTuple):
    """What one node sends to another, in order."""

    src: int
    dst: int
    contents: tuple[bytes, ...]


@dataclass(frozen=True)
class Plan:
    """What a world has, and how often what may happen."""

    name: str
    flows: tuple[Flow, ...]
    nodes: int = 2
    crashes: tuple[int, ...] = (0, 0)
    restores: tuple[int, ...] = (0, 0)
    snapshots: tuple[int, ...] = (0, 0)
    drops: int = 0
    plain: tuple[int, ...] = ()
    """Nodes whose presence says that they do not know marks."""
    forger: int | None = None
    """A node that says to all others what it likes, under its own name."""

    def restores_of(self, place: int) -> int:
        """How often the state of a node may be put back."""
        return self.restores[place] if place < len(self.restores) else 0


class Budget(NamedTuple):
    """What may still happen."""

    sends: tuple[int, ...]
    crashes: tuple[int, ...]
    restores: tuple[int, ...]
    snapshots: tuple[int, ...]
    drops: int


@dataclass(slots=True)
class World:
    """Nodes, network and what was reported; `way` is how it came about."""

    nodes: tuple[Node, ...]
    budget: Budget
    network: frozenset[Message] = frozenset()
    history: tuple[tuple[Disk, ...], ...] = ()
    lost: frozenset[tuple[int, int, bytes]] = frozenset()
    twice: frozenset[tuple[int, int, bytes]] = frozenset()
    way: tuple[Any, ...] = ()

    @property
    def quiet_key(self) -> Any:
        """Equal for worlds that cannot be told apart once the network has lost everything."""
        return tuple([node.id for node in self.nodes]), self.lost, self.twice

    @property
    def key(self) -> Any:
        """Equal for worlds that cannot be told apart."""
        return self.quiet_key, self.budget, self.network, self.history


class Moves:
    """What becomes of a node by an event: the same whatever the world is like around it."""

    def __init__(self) -> None:
        self._nodes: dict[Any, Node] = {}
        self._after: dict[Any, tuple[Node, list[Message], list[Report]]] = {}

    def known(self, node: Node) -> Node:
        """The one node of those that are like this one."""
        known = self._nodes.setdefault(node.key, node)
        if known is node:
            node.id = len(self._nodes)
        return known

    def after(self, node: Node, event: tuple[Any, ...]) -> tuple[Node, list[Message], list[Report]]:
        """The node after an event of its own, what it says, and what it reports."""
        key = (node.id, event)
        if key not in self._after:
            then = node.copy()
            then.now_ns += STEP_NS
            getattr(then, event[0])(*event[1:])
            sent, reports, then.sent, then.reports = then.sent, then.reports, [], []
            self._after[key] = self.known(then), sent, reports
        return self._after[key]


def first(plan: Plan, moves: Moves) -> World:
    """The world before anything has happened."""
    nodes = tuple(moves.known(Node(place, place in plan.plain)) for place in range(plan.nodes))
    none = (0,) * plan.nodes
    budget = Budget(
        tuple(len(flow.contents) for flow in plan.flows),
        (plan.crashes + none)[: plan.nodes],
        (plan.restores + none)[: plan.nodes],
        (plan.snapshots + none)[: plan.nodes],
        plan.drops,
    )
    world = World(nodes, budget, history=tuple((Disk(),) for _ in nodes))
    if plan.forger is not None:
        world.network = frozenset(_forged(plan.forger, plan.nodes))
    return world


def _forged(src: int, nodes: int) -> Iterator[Message]:
    """Acks and marks of somebody who has no other name than his own, about numbers and epochs of others."""
    epochs = [1 << count for count in range(6)]
    said: list[marks.Ask | marks.Took | marks.Open] = [
        marks.Ask(1, marks.Heard(1 << 40, 3, 7)),
        *(marks.Took(epoch, 5, (marks.Taken(1 << 30, 9),)) for epoch in epochs[:3]),
        *(marks.Open(epoch, epoch, 1 << 31) for epoch in epochs[:2]),
    ]
    acks = envelope.encode(Envelope(acks=tuple(Ack(epoch, 9) for epoch in epochs)))
    for dst in range(nodes):
        if dst != src:
            yield Message(src, dst, "acks", acks)
            yield from (Message(src, dst, "marks", marks.encoded(each)) for each in said)


def events(world: World, plan: Plan) -> Iterator[tuple[Any, ...]]:
    """Names all that may happen next."""
    budget = world.budget
    for place in range(len(plan.flows)):
        if budget.sends[place]:
            yield "send", place
    for place, node in enumerate(world.nodes):
        for index in range(len(node.pending)):
            yield "persist", place, index
        if budget.crashes[place]:
            for landed in range(1 << len(node.pending)):
                yield "crash", place, landed
        if budget.restores[place]:
            for age in range(len(world.history[place]) - 1):
                yield "restore", place, age
        if budget.snapshots[place]:
            yield "snapshot", place
        yield from _unseen(world, plan, place)
        if budget.drops:
            for flow in plan.flows:
                if flow.src == place:
                    unsettled = node.unsettled(flow.dst)
                    for number, content in node.contents.items():
                        if content[0] == flow.dst and content[1] in unsettled:
                            yield "drop", place, number
    for message in sorted(world.network):
        yield "hear", message


def after(world: World, plan: Plan, moves: Moves, event: tuple[Any, ...]) -> World:
    """The world after an event. Broken where it breaks what holds at any time."""
    what, place, *more = event
    budget, history = world.budget, world.history
    own: tuple[Any, ...] = (what, *more)
    if what == "hear":
        place, own = event[1].dst, event
    elif what == "send":
        flow = plan.flows[place]
        own = ("send", flow.dst, flow.contents[-budget.sends[place]])
        budget = budget._replace(sends=_less(budget.sends, place))
        place = flow.src
    elif what == "crash":
        budget = budget._replace(crashes=_less(budget.crashes, place))
    elif what == "restore":
        own = ("start", history[place][more[0]])
        history = (*history[:place], history[place][: more[0] + 1], *history[place + 1 :])
        budget = budget._replace(restores=_less(budget.restores, place))
    elif what == "snapshot":
        budget = budget._replace(snapshots=_less(budget.snapshots, place))
    elif what == "see":
        other = more[0]
        own = ("see", other, world.nodes[other].run, other not in plan.plain)
    elif what == "drop":
        budget = budget._replace(drops=budget.drops - 1)
    node, sent, reports = moves.after(world.nodes[place], own)
    if not budget.restores[place]:
        history = (*history[:place], (), *history[place + 1 :])
    elif node.disk != history[place][-1]:
        history = (*history[:place], (*history[place], node.disk), *history[place + 1 :])
    nodes = (*world.nodes[:place], node, *world.nodes[place + 1 :])
    network = world.network.union(sent) if sent else world.network
    then = World(nodes, budget, network, history, world.lost, world.twice, (*world.way, event))
    _excuse(then, plan, node, reports)
    _check(then, plan)
    return then


def _less(counts: tuple[int, ...], place: int) -> tuple[int, ...]:
    return (*counts[:place], counts[place] - 1, *counts[place + 1 :])


def _excuse(world: World, plan: Plan, node: Node, reports: list[Report]) -> None:
    """Takes note of what reports cover: nothing but what is lost or may come twice at that moment.

    Broken where a state is called old that was never put back.
    """
    for report in reports:
        old = report.peer if report.kind == "receiver" else node.place
        if world.budget.restores[old] == plan.restores_of(old):
            raise Broken(f"node {old} is said to be old, and is not", world.way)
        there = {content for src, content in world.nodes[report.peer].applied if src == node.place}
        unsettled = node.unsettled(report.peer)
        if report.kind == "receiver":
            gone = {content for dst, content in node.disk.promised if dst == report.peer}
            gone -= unsettled | there
            world.lost |= {(node.place, report.peer, content) for content in gone}
        else:
            world.twice |= {(node.place, report.peer, content) for content in unsettled & there}


def _check(world: World, plan: Plan) -> None:
    """Nothing is delivered twice, unless the report of an old sender said so before."""
    for flow in plan.flows:
        there = [content for src, content in world.nodes[flow.dst].applied if src == flow.src]
        for content in set(there):
            if there.count(content) > 1 and (flow.src, flow.dst, content) not in world.twice:
                raise Broken(f"{content!r} is delivered twice", world.way)


def settle(world: World, plan: Plan, moves: Moves, ended: set[Any]) -> None:
    """Lets nothing fail any more; what is on its way is lost, and everything new arrives once, in order.

    Broken where it does not come to an end, or something that was promised is neither delivered nor reported.
    `ended` has worlds of which all this is known, and gets those that are gone through.
    """
    world, passed = replace(world, network=frozenset()), list[Any]()
    for _ in range(12):
        if world.quiet_key in ended:
            break
        passed.append(world.quiet_key)
        for place in range(plan.nodes):
            for event in [*_unseen(world, plan, place), ("due", place), ("again", place)]:
                world = _heard_out(after(world, plan, moves, event), plan, moves)
        if not any(world.nodes[flow.src].unsettled(flow.dst) for flow in plan.flows):
            _check_all(world, plan)
            break
    else:
        raise Broken("it is never settled", world.way)
    ended.update(passed)


def _check_all(world: World, plan: Plan) -> None:
    """What was promised is delivered, reported or dropped."""
    for flow in plan.flows:
        node = world.nodes[flow.src]
        there = {content for src, content in world.nodes[flow.dst].applied if src == flow.src}
        for dst, content in node.disk.promised:
            excused = (flow.src, dst, content) in world.lost or (dst, content) in node.dropped
            if dst == flow.dst and content not in there and not excused:
                raise Broken(f"{content!r} is lost", world.way)


def _unseen(world: World, plan: Plan, place: int) -> Iterator[tuple[Any, ...]]:
    """The presences that a node has not heard yet."""
    for other, there in enumerate(world.nodes):
        if other != place and world.nodes[place].knows.get(other) != (there.run, other not in plan.plain):
            yield "see", place, other


def _heard_out(world: World, plan: Plan, moves: Moves) -> World:
    """Everything that is asked of disks and network is done, in order."""
    waiting: deque[Message] = deque(sorted(world.network))
    for _ in range(1000):
        world.network = frozenset()
        place = next((place for place, node in enumerate(world.nodes) if node.pending), None)
        if place is not None:
            event: tuple[Any, ...] = ("persist", place, 0)
        elif waiting:
            event = ("hear", waiting.popleft())
        else:
            return world
        world = after(world, plan, moves, event)
        waiting.extend(sorted(world.network))
    raise Broken("messages without end", world.way)


@dataclass
class Found:
    """What a search has seen."""

    worlds: int = 0
    events: int = 0
    settled: int = 0
    whole: bool = True
    """Whether all worlds of the plan were seen."""


def explore(plan: Plan, limit: int) -> Found:
    """Goes through `limit` worlds of a plan at most, breadth first. Broken at the first fault."""
    moves = Moves()
    start = first(plan, moves)
    seen, ended, found = {start.key}, set[Any](), Found()
    todo = deque([start])
    while todo:
        world = todo.popleft()
        found.worlds += 1
        if found.worlds > limit:
            found.whole = False
            break
        settle(world, plan, moves, ended)
        for event in events(world, plan):
            then = after(world, plan, moves, event)
            found.events += 1
            key = then.key
            if key not in seen:
                seen.add(key)
                todo.append(then)
    found.settled = len(ended)
    return found


LIKELY = {"hear": 8.0, "persist": 6.0, "see": 4.0, "send": 2.0}
"""How likely kinds of events are on a walk; others have 1.2: so that most walks get somewhere."""


def wander(plan: Plan, walks: int, seed: int = 1, events_each: int = 40) -> Found:
    """Goes `walks` random ways through the worlds of a plan, which get further than a search does."""
    moves, ended, chance, found = Moves(), set[Any](), random.Random(seed), Found(whole=False)
    for _ in range(walks):
        world = first(plan, moves)
        for _ in range(events_each):
            kinds: dict[str, list[tuple[Any, ...]]] = {}
            for event in events(world, plan):
                kinds.setdefault(event[0], []).append(event)
            if not kinds:
                break
            kind = chance.choices(list(kinds), [LIKELY.get(name, 1.2) for name in kinds])[0]
            world = after(world, plan, moves, chance.choice(kinds[kind]))
            found.worlds += 1
            settle(world, plan, moves, ended)
    found.events, found.settled = found.worlds, len(ended)
    return found
