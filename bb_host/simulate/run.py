"""Runs a scenario over its workers, window by window, until it is done."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bb_edge.ir.ids import PeerId
from bb_edge.transport.in_process import Arrival
from bb_edge.transport.trace import combined_trace
from bb_host.errors import RoundsInVain, ScenarioError
from bb_host.simulate.accounts import Accounts, Event, Progress, Trouble
from bb_host.simulate.busy import nobody
from bb_host.simulate.checks import check_scenario
from bb_host.simulate.conditions import NS
from bb_host.simulate.scenario import Scenario, placed
from bb_host.simulate.workers import Here, Processes, Workers
from bb_host.whole_numbers import whole

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array


@dataclass(frozen=True, slots=True)
class State:
    """How far a simulation has come. `awake` of `nodes` are real nodes, the others records."""

    now_ns: int
    nodes: int
    awake: int
    open_rounds: int
    delivered: int
    events: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a simulation.

    `events` are ordered by time and node. `trace` is a hash over every envelope that was sent: the same for
    any number of workers. `simulated_ns` is the time that was asked for, or when the last thing happened.
    `trouble` has what went wrong, by kind of step.
    `peak_rss` is the most memory of each worker, in bytes.
    """

    events: tuple[Event, ...]
    trace: str
    simulated_ns: int
    awake: int
    delivered: int
    lost: int
    sent_bytes: int
    trouble: dict[str, Trouble] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    waits: str = ""
    """Why rounds were not going on when the time was over; "" where they were."""
    peak_rss: tuple[int, ...] = ()
    models: dict[tuple[str, str], Mapping[str, Array]] = field(default_factory=dict)
    """By class and slot the parameters, by name, of the models that the scenario names."""


DAY_NS = 86_400 * NS

_MORE = "more clients, or for longer, or a smaller min; --for SECONDS runs it all the same"


def make_workers(on: str) -> Workers:
    """`processes`, `ray`, or `here`. ScenarioError for another word, or without Ray."""
    if on == "processes":
        return Processes()
    if on == "here":
        return Here()
    if on == "ray":
        from bb_host.simulate.on_ray import RayWorkers

        return RayWorkers()
    raise ScenarioError(f"{on!r} is nowhere to run workers", "--on", "write processes or ray")


def simulate(
    scenario: Scenario,
    workers: int = 1,
    on: str = "processes",
    *,
    for_ns: int | None = None,
    event: Callable[[Event], None] | None = None,
    watch: Callable[[State], None] | None = None,
    busy: Callable[[str], None] | None = None,
) -> Outcome:
    """Runs a scenario until its rounds are done, nothing is due any more, or `for_ns` of simulated time.

    Bits are the same for any number of `workers`, and wherever they run. `event` gets each app event when it
    is known, ordered within a window; `watch` is called after each window. `busy` gets a line
    about each node that computes for more than ten seconds at one instant, with the loop that it is in (not
    from Ray). Raises ScenarioError for what
    cannot run, WorkerError where a worker is lost, and what `install` raises.
    """
    check_scenario(scenario)
    count = whole(workers)
    if count is None or count < 1:
        raise ScenarioError(f"{workers!r} workers", "workers", "give a whole number, 1 or more")
    if for_ns is not None:
        given, for_ns = for_ns, whole(for_ns)
        if for_ns is None or for_ns < 1:
            raise ScenarioError(f"{given!r} nanoseconds", "for_ns", "give a whole number, 1 or more")
    members = scenario.members()
    lists = placed(members, min(count, len(members)))
    where: dict[PeerId, int] = {}  # found out where the first envelope goes from one worker to another
    with _closing(make_workers(on)) as crew:
        crew.busy = busy or nobody
        told = crew.start(scenario, lists)
        had_rounds = any(progress.open_rounds for progress in told)
        if not had_rounds and for_ns is None:
            raise ScenarioError(
                "the program has no rounds that end, so it would run for ever",
                "simulate",
                "say for how long: --for SECONDS, of simulated time; or end its rounds: g.rounds(20)",
            )
        heard: list[Event] = []
        underway: list[list[Arrival]] = [[] for _ in lists]
        now_ns = moved_ns = 0
        moved = moved_then = (0, 0)
        waits = ""  # what a round has last waited for, and how far all was when it began to
        while True:
            fresh = sorted((e for p in told for e in p.events), key=lambda e: (e.at_ns, e.node))
            heard += fresh
            for one in fresh if event is not None else ():
                assert event is not None
                event(one)
            if not where and any(progress.outgoing for progress in told):
                places = ((member, number) for number, mine in enumerate(lists) for member in mine)
                where = {scenario.peer_of(member): number for member, number in places}
            for progress in told:
                for arrival in progress.outgoing:
                    underway[where[arrival.target]].append(arrival)
            if watch is not None:
                watch(_state(now_ns, len(members), told, len(heard)))
            if moved != (moves := (len(heard), sum(progress.rounds_ended for progress in told))):
                moved, moved_ns = moves, now_ns
            if waits != (waits := next((progress.waits for progress in told if progress.waits), "")):
                moved_then = moves
            stuck = next((progress.stuck for progress in told if progress.stuck), "")
            if stuck and for_ns is None:
                raise RoundsInVain(stuck, "simulate", _why(crew.accounts()))
            if for_ns is None and now_ns - moved_ns > _patience_ns(scenario, moved == moved_then):
                last = f"{(now_ns - moved_ns) / 1e9:,.0f} s"
                what = f"nothing has come of the last {last}: {waits or 'no round has ended'}"
                raise ScenarioError(what, "simulate", _why(crew.accounts()))
            start_ns = _least(told, underway)
            done = had_rounds and not any(progress.open_rounds for progress in told)
            if start_ns is None or done or (for_ns is not None and start_ns > for_ns):
                break
            now_ns = start_ns
            sent, underway = underway, [[] for _ in lists]
            told = crew.step(now_ns + scenario.latency_ns, sent)
        accounts = crew.accounts()
    counters: Counter[str] = Counter()
    for account in accounts:
        counters.update(account.counters)
    return Outcome(
        tuple(heard),
        combined_trace({pair: digest for account in accounts for pair, digest in account.digests.items()}),
        now_ns if for_ns is None or done else for_ns,
        sum(progress.awake for progress in told),
        sum(progress.delivered for progress in told),
        sum(progress.lost for progress in told),
        sum(account.sent_bytes for account in accounts),
        _trouble(accounts),
        dict(counters),
        "" if done else stuck or (waits if moved == moved_then else ""),
        tuple(account.peak_rss for account in accounts),
        {place: arrays for account in accounts for place, arrays in account.models.items()},
    )


def _trouble(accounts: Sequence[Accounts]) -> dict[str, Trouble]:
    """What went wrong anywhere, by kind, in the order of its first."""
    found: dict[str, Trouble] = {}
    for account in accounts:
        for kind, each in account.trouble.items():
            found[kind] = found[kind].with_more(each) if kind in found else each
    return dict(sorted(found.items(), key=lambda item: (item[1].at_ns, item[1].node, item[0])))


def _why(accounts: Sequence[Accounts]) -> str:
    """What has gone wrong before, the first of each kind."""
    found = [f"{kind}, first {each.first}" for kind, each in _trouble(accounts).items()][:3]
    if any(each.counters.get("outbound.too_large") for each in accounts):
        found.append("give the classes that send and receive it larger limits: --config CLASS=FILE.toml")
    return "; ".join(found) or _MORE


def _patience_ns(scenario: Scenario, waiting: bool) -> float:
    """How long nothing may come: of clients that come and go, a hundred times that they do so.

    Of others only where a round has been `waiting` for peers all that time: a day behind the last that comes,
    goes or is late. Whoever is not there by then never is, as where it does not fit a node's limits.
    """
    conditions = scenario.conditions
    if conditions.up_share < 1:
        return 100 * conditions.up_period_ns
    last = max((end for spans in conditions.trace.values() for _, end in spans), default=0)
    return last + conditions.dropout_ns + conditions.slow_by_ns + DAY_NS if waiting else math.inf


def _least(told: Sequence[Progress], underway: Sequence[Sequence[Arrival]]) -> int | None:
    """When the next thing happens anywhere; None where nothing does."""
    due = [progress.next_ns for progress in told if progress.next_ns is not None]
    due += [arrival.at_ns for arrivals in underway for arrival in arrivals]
    return min(due, default=None)


def _state(now_ns: int, nodes: int, told: Sequence[Progress], events: int) -> State:
    return State(
        now_ns,
        nodes,
        sum(progress.awake for progress in told),
        sum(progress.open_rounds for progress in told),
        sum(progress.delivered for progress in told),
        events,
    )


@contextlib.contextmanager
def _closing(workers: Workers) -> Iterator[Workers]:
    try:
        yield workers
    finally:
        workers.close()
