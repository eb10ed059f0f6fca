"""Worlds: some nodes, a network, and all that can happen next.

What a plan allows (crashes, restores, snapshots, faults of the network, …) happens so many times at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from bb_edge.wire import envelope, marks
from bb_edge.wire.caps import UNBOUNDED_CAPS as CAPS
from bb_edge.wire.envelope_records import Ack, Envelope

from .network import Everything, Lines
from .nodes import Disk, Message, Node, Report
from .plans import Plan

HEARING = ("hear", "late", "repeat", "forge", "stray")
"""What happens to messages; of one that goes astray nobody hears yet."""
STEP_NS = 100_000_000_000
"""Between two events: beyond all that is limited in time."""


class Broken(AssertionError):
    """A world in which a promise is broken; the message has the way to it."""

    def __init__(self, what: str, way: tuple[Any, ...]) -> None:
        events = list[tuple[Any, ...]]()
        while way:
            way, event = way
            events.append(event)
        steps = "\n".join(f"  {_told(*event)}" for event in events[59::-1])
        super().__init__(f"{what}, after {len(events)} events:\n{steps}")


def _told(what: str, *more: Any) -> str:
    if what not in HEARING:
        return " ".join([what, *map(str, more)])
    message: Message = more[0]
    arrived = envelope.decode(message.data, CAPS)
    if message.kind == "marks":
        told: object = marks.decoded(arrived.fills[0].payload)
    else:
        told = (arrived.epoch, arrived.seq, arrived.base, *arrived.acks)
    return f"{what} {message.src} to {message.dst}: {told}"


class Budget(NamedTuple):
    """What may still happen."""

    sends: tuple[int, ...]
    crashes: tuple[int, ...]
    restores: tuple[int, ...]
    snapshots: tuple[int, ...]
    drops: int
    repeats: int
    failures: int


@dataclass(slots=True)
class World:
    """Nodes, network and what was reported; `way` is how it came about."""

    nodes: tuple[Node, ...]
    budget: Budget
    network: Everything | Lines = field(default_factory=Everything)
    history: tuple[tuple[Disk, ...], ...] = ()
    lost: frozenset[tuple[int, int, bytes]] = frozenset()
    twice: frozenset[tuple[int, int, bytes]] = frozenset()
    way: tuple[Any, ...] = ()
    """What happened last, behind the way until then."""

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
    nodes = tuple(
        moves.known(Node(place, place in plan.plain, plan.falling, place in plan.learns))
        for place in range(plan.nodes)
    )
    none = (0,) * plan.nodes
    budget = Budget(
        tuple(len(flow.contents) for flow in plan.flows),
        (plan.crashes + none)[: plan.nodes],
        (plan.restores + none)[: plan.nodes],
        (plan.snapshots + none)[: plan.nodes],
        plan.drops,
        plan.repeats,
        plan.failures,
    )
    world = World(nodes, budget)
    if plan.settled:
        assert plan.faults is not None
        world = _settled(world, plan, moves)
    forged = () if plan.forger is None else tuple(sorted(_forged(plan.forger, plan.nodes)))
    if plan.faults is None:
        world.network = Everything(frozenset(forged))
        world.history = tuple([(node.disk,) for node in world.nodes])
    else:
        world.network = Lines(faults=plan.faults, forged=forged)
        world.history = tuple([(Disk(),) if place in plan.kept else () for place in range(plan.nodes)])
    return world


def _settled(world: World, plan: Plan, moves: Moves) -> World:
    """A world in which something was delivered and acknowledged, and every node has a snapshot of that."""
    world.history = tuple([() for _ in world.nodes])
    for place in range(len(plan.flows)):
        for _ in range(plan.settled):
            world = after(world, plan, moves, ("send", place))
    world = _heard_out(world, plan, moves)
    for _ in range(3):
        world = _all_repeated(world, plan, moves)
    budget = world.budget._replace(repeats=plan.repeats)
    for place in range(plan.nodes if plan.written else 0):
        world = after(world, plan, moves, ("snapshot", place))
    return replace(world, budget=budget, way=())


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
                if plan.faults is not None:
                    yield "cut", place, landed
        if budget.failures:
            for index, write in enumerate(node.pending):
                if write[0] == "journal":
                    yield "fail", place, index
        if budget.repeats:
            yield "due", place
            yield "again", place
        if budget.restores[place]:
            yield from _restores(world, plan, place)
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
    yield from world.network.events()


def _restores(world: World, plan: Plan, place: int) -> Iterator[tuple[Any, ...]]:
    """With every message for ever, back to any state of the disk; else to the one that was kept before."""
    history = world.history[place]
    if plan.faults is None:
        yield from (("restore", place, age) for age in range(len(history) - 1))
    elif not history:
        yield "keep", place
    elif history[0] != world.nodes[place].disk:
        yield "restore", place, 0


def after(world: World, plan: Plan, moves: Moves, event: tuple[Any, ...]) -> World:
    """The world after an event. Broken where it breaks what holds at any time."""
    what, place, *more = event
    budget, history, network = world.budget, world.history, world.network
    if what in ("stray", "keep"):
        if what == "keep":
            history = _with(history, place, (world.nodes[place].disk,))
        else:
            network = network.after(event)
        return replace(world, network=network, history=history, way=(world.way, event))
    own: tuple[Any, ...] = (what, *more)
    if what in HEARING:
        network = network.after(event)
        place, own = event[1].dst, ("hear", event[1])
    elif what == "send":
        flow = plan.flows[place]
        own = ("send", flow.dst, flow.contents[-budget.sends[place]])
        budget = budget._replace(sends=_less(budget.sends, place))
        place = flow.src
    elif what in ("crash", "cut"):
        own = ("crash", *more)
        network = network.cut(place) if what == "cut" else network
        budget = budget._replace(crashes=_less(budget.crashes, place))
    elif what == "restore":
        own = ("start", history[place][more[0]])
        history = _with(history, place, history[place][: more[0] + 1])
        budget = budget._replace(restores=_less(budget.restores, place))
    elif what == "snapshot":
        budget = budget._replace(snapshots=_less(budget.snapshots, place))
    elif what == "see":
        other = more[0]
        own = ("see", other, world.nodes[other].run, not world.nodes[other].older)
    elif what == "drop":
        budget = budget._replace(drops=budget.drops - 1)
    elif what == "fail":
        budget = budget._replace(failures=budget.failures - 1)
    elif what in ("due", "again"):
        budget = budget._replace(repeats=budget.repeats - 1)
    node, sent, reports = moves.after(world.nodes[place], own)
    if not budget.restores[place]:
        history = _with(history, place, ())
    elif plan.faults is None and node.disk != history[place][-1]:
        history = _with(history, place, (*history[place], node.disk))
    nodes = _with(world.nodes, place, node)
    network = network.plus(sent) if sent else network
    then = World(nodes, budget, network, history, world.lost, world.twice, (world.way, event))
    _excuse(then, plan, node, reports)
    _check(then, plan)
    return then


def _with(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])


def _less(counts: tuple[int, ...], place: int) -> tuple[int, ...]:
    return _with(counts, place, counts[place] - 1)


def _excuse(world: World, plan: Plan, node: Node, reports: list[Report]) -> None:
    """Takes note of what reports cover: nothing but what is lost or may come twice at that moment.

    Broken where a state is called old that was never put back.
    """
    for report in reports:
        old = {"receiver": [report.peer], "sender": [node.place]}.get(report.kind, [report.peer, node.place])
        if all(world.budget.restores[place] == plan.restores_of(place) for place in old):
            raise Broken(f"node {old} is said to be old, and is not", world.way)
        there = {content for src, content in world.nodes[report.peer].applied if src == node.place}
        if report.kind == "receiver":
            gone = {content for dst, content in node.disk.promised if dst == report.peer}
            gone -= node.unsettled(report.peer) | there
            world.lost |= {(node.place, report.peer, content) for content in gone}
        else:
            world.twice |= {(node.place, report.peer, content) for content in report.again & there}


def _check(world: World, plan: Plan) -> None:
    """Nothing is delivered twice, unless the report of an old sender named it before."""
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
    world, passed = replace(world, network=Everything()), list[Any]()
    for _ in range(12):
        if world.quiet_key in ended:
            break
        passed.append(world.quiet_key)
        world = _all_repeated(world, plan, moves)
        if not any(world.nodes[flow.src].unsettled(flow.dst) for flow in plan.flows):
            _check_all(world, plan)
            break
    else:
        raise Broken("it is never settled", world.way)
    ended.update(passed)


def _all_repeated(world: World, plan: Plan, moves: Moves) -> World:
    """Every node sees who is up, and repeats what it waits for; all of that is done to its end."""
    for place in range(plan.nodes):
        for event in [*_unseen(world, plan, place), ("due", place), ("again", place)]:
            world = _heard_out(after(world, plan, moves, event), plan, moves)
    return world


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
        if other != place and world.nodes[place].knows.get(other) != (there.run, not there.older):
            yield "see", place, other


def _heard_out(world: World, plan: Plan, moves: Moves) -> World:
    """Everything that is asked of disks and network is done, in order."""
    waiting: deque[Message] = deque(sorted(world.network.messages))
    for _ in range(1000):
        world.network = Everything()
        place = next((place for place, node in enumerate(world.nodes) if node.pending), None)
        if place is not None:
            event: tuple[Any, ...] = ("persist", place, 0)
        elif waiting:
            event = ("hear", waiting.popleft())
        else:
            return world
        world = after(world, plan, moves, event)
        waiting.extend(sorted(world.network.messages))
    raise Broken("messages without end", world.way)
