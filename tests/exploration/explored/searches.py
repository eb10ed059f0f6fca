"""Searches through the worlds of a plan, to their end or as far as asked; and random walks."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Any

from .plans import Plan
from .worlds import Moves, after, events, first, settle


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
