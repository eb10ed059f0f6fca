"""The nodes of one worker: real nodes where somebody has work for them, records where nobody has.

A class whose nodes begin nothing by themselves (no rounds, intervals or bootstraps of their own) sleeps: each
of them is a record until the first envelope comes to it. Which classes sleep is found out from a node of the
class, so it depends on the program alone, and not on memory or on who shares the worker.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bb_edge.cli.render import plain
from bb_edge.engine import steps
from bb_edge.engine.program.program import Program
from bb_edge.install_plan import InstallPlan
from bb_edge.installer import install
from bb_edge.ir.bb_core_pb2 import WireEnvelope
from bb_edge.ir.errors import BBError, SeveralErrors
from bb_edge.ir.ids import PeerId
from bb_edge.ir.once import Kept
from bb_edge.ir.suggestions import suggestion
from bb_edge.loading import load
from bb_edge.node import Node
from bb_edge.registry import Registry, default_registry
from bb_edge.roles.contracts import DataSource, Model
from bb_edge.transport.in_process import Arrival, Presence, Seen, SimulationError
from bb_edge.user_modules import import_user_module
from bb_edge.wire.bodies import Body
from bb_host.errors import ScenarioError
from bb_host.simulate.accounts import Accounts, Event, Progress, Trouble, peak_rss_bytes
from bb_host.simulate.busy import Busy, Told, nobody, still_busy
from bb_host.simulate.checks import check_models, check_settings, check_targets, remedy_for_rows
from bb_host.simulate.network import Network
from bb_host.simulate.pooled import PoolingRegistry
from bb_host.simulate.resting import Resting
from bb_host.simulate.room import check_room, limits_of
from bb_host.simulate.row_files import RowFile, check_takes_rows, handed_over
from bb_host.simulate.scenario import Dealt, Member, Scenario
from bb_host.simulate.troubles import at_fault, left_out, told

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

TROUBLE = (
    *(steps.OpFailed, steps.WireReceiveFailed, steps.IngressDropped, steps.OutboundDropped),
    *(steps.RequestFailed, steps.AnswerRefused, steps.ExecutionStarved, steps.SentToNobody),
    *(steps.ContributionsGivenUp, steps.ContributionsDominate, steps.ContributionsClipped),
    *(steps.PeerRefused, steps.ProgramMismatch, steps.ClassMismatch, steps.RoundBackedOff),
)
"""Steps that a user has to hear of: they are counted by kind, and the first of each kind is told."""

GIVE_UP_AFTER = 10
"""Rounds in a row that reach nobody, or failures of a node's bootstraps, after which a run without a time of
its own ends."""

_ID = r"Qm[1-9A-HJ-NP-Za-km-z]{44}"
_PEERS = re.compile(rf"PeerId\((?P<id>{_ID})\)|\b(?P<text>{_ID})\b")
"""How texts name peers."""

_TOLD = -(1 << 62)
"""The number of what a node is told of another: before what that one sends at the same time."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What all nodes of a group have in common, as one of them says."""

    classes: tuple[str, ...]
    hears: tuple[str, ...] | None
    meta: Mapping[str, object]
    sleeps: bool
    members: Sequence[tuple[PeerId, int, int]]
    """The id and epoch of each, and 1, its first session."""

    def heard_by(self, listener: _Kind) -> tuple[str, ...]:
        """Those of the classes that nodes of another kind hear."""
        hears = listener.hears
        return self.classes if hears is None else tuple(name for name in self.classes if name in hears)


class Shard:
    """Runs some members of a scenario. ScenarioError, and what `install` raises, for what cannot run."""

    def __init__(
        self, scenario: Scenario, members: Sequence[Member], folder: str | None = None, busy: Told = nobody
    ) -> None:
        """What it writes is in a folder of its own: in `folder`, or where temporary files are.

        `busy` gets a line about each node that computes for long.
        """
        self.scenario = scenario
        self._busy = Busy(busy, self._name)
        self.outgoing: list[Arrival] = []
        self.slow: dict[PeerId, int] = {}
        for name in scenario.load:
            import_user_module(name)
        self._registry: Registry = PoolingRegistry(default_registry(), self._room)
        self._programs: list[Program] = [load(group.data) for group in scenario.groups]
        self._check_names()
        self._plans = [
            InstallPlan(program, (group.target,), limits_of(group), Kept())
            for group, program in zip(scenario.groups, self._programs, strict=True)
        ]
        self._dealers = {dealt.slot: self._row_file(dealt) for dealt in scenario.dealt}
        self._everybody = {member: scenario.peer_of(member) for member in scenario.members()}
        self._member_of = {peer: member for member, peer in self._everybody.items()}
        self._records = {self._everybody[member]: member for member in members}
        self._nodes: dict[PeerId, Node] = {}
        self._up: dict[PeerId, bool] = {}
        self._sessions: Counter[PeerId] = Counter()
        self._requests: Counter[PeerId] = Counter()
        self._failures: Counter[str] = Counter()  # of bootstraps, by node
        self._events: list[Event] = []
        self._trouble: dict[str, Trouble] = {}
        self._stuck = self._waited = ""
        self._kinds: list[_Kind] = []
        self._folder = tempfile.TemporaryDirectory(prefix="bb-simulate-", dir=folder)
        self._rows_in = str(Path(self._folder.name))
        self.resting = Resting(Path(self._folder.name) / "aside", shares=folder is not None)
        self.network = Network(
            scenario, self, self._nodes, self.slow, self.outgoing.append, self.resting, self._busy
        )
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _room(self, size: int) -> Array:
        """Memory for the parameters of the node that is being made."""
        return self.resting.room(size)

    def _begin(self) -> None:
        self._kinds += [self._kind(group) for group in range(len(self.scenario.groups))]
        self._take_stock()
        for peer, member in list(self._records.items()):
            if not self._kinds[member.group].sleeps:
                self._add(peer, self.scenario.latency_ns)

    def _row_file(self, dealt: Dealt) -> RowFile:
        groups = zip(self.scenario.groups, self._programs, strict=True)
        slots = [program.targets[group.target].bindings for group, program in groups]
        return RowFile(dealt, self.scenario, [n for n, bound in enumerate(slots) if dealt.slot in bound])

    def _check_names(self) -> None:
        """ScenarioError where a configured slot, or a slot with data, is nobody's."""
        groups = list(zip(self.scenario.groups, self._programs, strict=True))
        for group, program in groups:
            check_targets(group, {name: target.peer_class for name, target in program.targets.items()})
        known = {slot for group, program in groups for slot in program.targets[group.target].bindings}
        for dealt in self.scenario.dealt:
            if dealt.slot not in known:
                hint = suggestion(dealt.slot, sorted(known), "slots: ")
                raise ScenarioError(f"no node has a slot {dealt.slot!r}", "--data", hint)
        targets = [program.targets[group.target] for group, program in groups]
        check_settings(self.scenario, targets)
        check_models(self.scenario, targets)
        for group, program in groups:
            check_room(group, program)
        for dealt in self.scenario.dealt:
            for _, program in groups:
                for target in program.targets.values():
                    if binding := target.bindings.get(dealt.slot):
                        check_takes_rows(self._registry.lookup(binding.type_name), dealt.slot)

    # --- who is there ---------------------------------------------------------------------------------

    def _kind(self, group: int) -> _Kind:
        node, program = self._install(Member(group, 0)), self._programs[group]
        target = program.targets[self.scenario.groups[group].target]
        for slot in filter(target.bindings.__contains__, self._dealers):
            self._dealers[slot].check_labels(slot, node, program, target)
        node.poll(0)
        sleeps = self.scenario.groups[group].count > 1 and node.next_deadline_ns() is None
        sleeps = sleeps and not (node.bootstraps or node.open_rounds)
        epoch_of = self.scenario.epoch_of
        members = [(m, peer) for m, peer in self._everybody.items() if m.group == group]
        return _Kind(
            node.classes, node.hears, node.presence_meta, sleeps, [(p, epoch_of(m), 1) for m, p in members]
        )

    def _install(self, member: Member) -> Node:
        scenario = self.scenario
        group, program = scenario.groups[member.group], self._programs[member.group]
        plan = self._plans[member.group]
        target = program.targets[group.target]
        asked = scenario.settings_of(group)
        components = {slot: keys for slot, keys in asked.items() if slot in target.bindings}
        dealt = {slot: file for slot, file in self._dealers.items() if slot in target.bindings}
        given: dict[str, str] = {}  # by the path of its rows, the author's file
        with contextlib.ExitStack() as files:
            for slot, file in dealt.items():
                path = os.path.join(self._rows_in, f"{group.name(member.number)}.{slot}.npz")
                components.setdefault(slot, {})[file.key] = path
                given[path] = file.path
                kind = self._registry.lookup(target.bindings[slot].type_name)
                files.enter_context(handed_over(kind, path, file.hand_of(member)))
            try:
                return install(
                    self._everybody[member],
                    (),
                    program,
                    *plan.asked,
                    plan=plan,
                    components=components,
                    registry=self._registry,
                    seed=scenario.seed_of(member),
                    epoch=scenario.epoch_of(member),
                )
            except BBError as error:
                refused = error.errors if isinstance(error, SeveralErrors) else (error,)
                more = remedy_for_rows(refused, dealt, components)
                what, where = f"{group.name(member.number)}: {error.what}", error.where
                for rows, own in given.items():
                    what, where = what.replace(rows, own), where.replace(rows, own)
                raise ScenarioError(what, where, error.hint + more) from error

    def _take_stock(self) -> None:
        """Plans who comes and goes, as far as nodes of this shard are concerned by it."""
        scenario, conditions = self.scenario, self.scenario.conditions
        if conditions.alike:
            self._up = dict.fromkeys(self._member_of, True)
            self._sessions.update(dict.fromkeys(self._member_of, 1))
            return
        for member, peer in self._everybody.items():
            several = scenario.groups[member.group].count > 1
            changes = scenario.changes_of(member)
            self._up[peer] = next(changes)[1]
            self._sessions[peer] += self._up[peer]
            self._change_later(peer, changes)
            if several and peer in self._records and conditions.is_slow(scenario.seed, member.number):
                self.slow[peer] = conditions.slow_by_ns

    def _change_later(self, peer: PeerId, changes: Iterator[tuple[int, bool]]) -> None:
        following = next(changes, None)
        if following is not None:
            at_ns, up = following

            def change() -> None:
                self._change(peer, up)
                self._change_later(peer, changes)

            self.network.at(at_ns, change, polled=False)

    def _change(self, peer: PeerId, up: bool) -> None:
        """Somebody comes or goes: its connection is cut or joined, and nodes that hear its class are told."""
        if self._up[peer] == up:
            return
        self._up[peer] = up
        self._sessions[peer] += up
        if peer in self._nodes:
            self.network.connect(peer, up)
            if up:
                self._tell_all(peer, self.scenario.latency_ns)
        for listener in self._nodes:
            self._tell_later(listener, peer)

    def _tell_later(self, listener: PeerId, about: PeerId) -> None:
        """In a latency's time the listener knows whether the other is there, if it hears its class."""
        member, session, up = self._member_of[about], self._sessions[about], self._up[about]
        kind = self._kinds[member.group]
        classes = kind.heard_by(self._kinds[self._member_of[listener].group])
        if self._up[listener] and classes and session and about is not listener:
            content = Presence(up, self.scenario.epoch_of(member), session, classes, kind.meta)
            at_ns, number = self.network.now_ns + self.scenario.latency_ns, _TOLD + 2 * session + (not up)
            self.network.arrive([Arrival(at_ns, listener, about, number, content)])

    def _take_notes(self, member: Member, node: Node) -> None:
        """What data sources found odd about their data: `bb-edge run` logs it when it starts."""
        group = self.scenario.groups[member.group]
        name = group.name(member.number)
        for slot in self._programs[member.group].targets[group.target].bindings:
            component = node.component(slot)
            for note in component.notes if isinstance(component, DataSource) else ():
                text = note.replace(f"{self._folder.name}{os.sep}", "")  # a file that the run has dealt
                self._count_trouble("DataNotes", self.network.now_ns, name, text, (name,))

    def _tell_all(self, listener: PeerId, after_ns: int) -> None:
        """In so long the listener knows of all who are up now, in classes that it hears."""
        come, own = self._nodes[listener].crowd.come, self._kinds[self._member_of[listener].group]
        for kind in self._kinds:
            if classes := kind.heard_by(own):
                tell = partial(come, self._present(kind, listener), classes, kind.meta)
                if after_ns:
                    self.network.at(self.network.now_ns + after_ns, tell, polled=False)
                else:
                    tell()

    def _present(self, kind: _Kind, listener: PeerId) -> Sequence[tuple[PeerId, int, int]]:
        """Who of a kind is up, but the listener: the id, epoch and session of each."""
        up, sessions, peers = self._up, self._sessions, kind.members
        if not self.scenario.conditions.alike:
            return [(p, epoch, sessions[p]) for p, epoch, _ in peers if up[p] and p is not listener]
        own = self._kinds[self._member_of[listener].group] is kind
        return [one for one in peers if one[0] is not listener] if own else peers

    def _add(self, peer: PeerId, after_ns: int) -> None:
        """Makes a node of a record; it knows in so long who is there."""
        member = self._records.pop(peer)
        sleeps = self._kinds[member.group].sleeps
        with self.resting.placing(sleeps) as placed:
            node = self._nodes[peer] = self._install(member)
        self._take_notes(member, node)
        if sleeps:
            target = self.scenario.groups[member.group].target
            slots = self._programs[member.group].targets[target].bindings
            models = [m for slot in slots if isinstance(m := node.component(slot), Model)]
            self.resting.add(node, models, placed)
        node.presences_come()
        self._bootstrap(member, node)
        self.network.add(node)
        if not self._up[peer]:
            self.network.connect(peer, False)
            return
        self._tell_all(peer, after_ns)

    def _bootstrap(self, member: Member, node: Node) -> None:
        """Starts a node's bootstraps, as `bb-edge run` does. ScenarioError for one that has inputs."""
        try:
            node.keep_bootstrapping()
        except BBError as error:
            what = f"{self.scenario.groups[member.group].name(member.number)}: {error.what}"
            hint = "a simulation gives bootstraps no inputs: let them read a slot with data, or constants"
            raise ScenarioError(what, error.where, hint) from error

    def runs(self, peer: PeerId) -> bool:
        """Whether it is a member of this shard, or of none, so that what is sent to it is lost here."""
        return peer in self._nodes or peer in self._records or peer not in self._member_of

    def wake(self, arrival: Arrival) -> bool:
        """An envelope comes to somebody who is not a node yet; whether there is one now.

        It knows then who is there, as one knows who has been up for a while.
        """
        peer = arrival.target
        if peer not in self._records or not self._up[peer]:
            return False
        self._add(peer, 0)
        return True

    def drops_out(self, arrival: Arrival) -> bool:
        """Whether somebody loses its connection instead of taking this request, by the conditions."""
        conditions, peer = self.scenario.conditions, arrival.target
        member = self._member_of[peer]
        if self.scenario.groups[member.group].count == 1:
            return False
        if isinstance(arrival.content, Presence) or not _asks(arrival.content):
            return False
        self._requests[peer] += 1
        if not self._up[peer] or not conditions.drops_out(
            self.scenario.seed, member.number, self._requests[peer]
        ):
            return False
        if peer in self._records:  # it is a node from now on: without a connection to lose it is asked again
            self._add(peer, 0)
        self.network.connect(peer, False)
        back_ns = self.network.now_ns + conditions.dropout_ns
        self.network.at(back_ns, lambda: self._back(peer), polled=False)
        return True

    def _back(self, peer: PeerId) -> None:
        if self._up[peer]:
            self.network.connect(peer, True)

    # --- time -----------------------------------------------------------------------------------------

    def step(self, end_ns: int, arrivals: Sequence[Arrival]) -> Progress:
        """Takes what comes from other shards, and runs all that is due before `end_ns`."""
        self._busy.begins()
        self.network.arrive(self.resting.taken(arrivals))
        try:
            self.network.run_window(end_ns)
        except SimulationError as error:
            error.what += still_busy(self._nodes.values(), self._name)
            raise
        return self.progress()

    def progress(self) -> Progress:
        """What has come of it since the last call."""
        network, events = self.network, self._events
        outgoing = list(map(self.resting.handed_on, self.outgoing))
        self.outgoing.clear()
        self._events = []
        return Progress(
            network.next_ns,
            outgoing,
            events,
            len(self._nodes),
            sum(node.open_rounds for node in self._nodes.values()),
            sum(node.rounds_ended for node in self._nodes.values()),
            network.delivered,
            network.lost,
            self._stuck,
            self._waited,
        )

    def take(self, seen: Seen) -> None:
        """Takes a step that a node has returned."""
        step = seen.step
        if type(step) is steps.PeerUp:  # a server's first ones are as many as there are clients
            return
        if isinstance(step, steps.AppEvent):
            name = self._name(seen.peer)
            self._events.append(Event(seen.at_ns, name, step.topic, plain(step.value, self._name)))
            if step.omitted_bytes:
                self._count_trouble("ValueLeftOut", seen.at_ns, name, left_out(step), (name,))
            return
        if isinstance(step, steps.RoundWaits):
            self._waits(step, seen.peer)
        failed = isinstance(step, steps.BootstrapComplete) and step.failed
        if failed or isinstance(step, TROUBLE):
            kind = "BootstrapFailed" if failed else type(step).__name__
            if isinstance(step, steps.RoundBackedOff) and step.reached_nobody >= GIVE_UP_AFTER:
                there = ", ".join(f"{group.peer_class} {group.count:,}" for group in self.scenario.groups)
                self._stuck = (
                    f"{step.reached_nobody} rounds in a row went in vain: {step.reason} (there are {there})"
                )
            node = self._name(seen.peer)
            if isinstance(step, steps.BootstrapComplete):
                self._failures[node] += 1
                if self._failures[node] >= GIVE_UP_AFTER:
                    self._stuck = f"bootstraps of {node} failed {GIVE_UP_AFTER} times, last: {step.reason}"
            text = _PEERS.sub(self._named, told(step, self._name))
            self._count_trouble(kind, seen.at_ns, node, text, map(self._name, at_fault(step, seen.peer)))

    def _count_trouble(self, kind: str, at_ns: int, node: str, text: str, at_fault: Iterable[str]) -> None:
        found = self._trouble.setdefault(kind, Trouble(0, at_ns, node, "", {}))
        if not found.count or (at_ns, node) < (found.at_ns, found.node):
            found.at_ns, found.node, found.text = at_ns, node, text
        for name in at_fault:
            found.nodes[name] = found.nodes.get(name, 0) + 1
        found.count += 1

    def _waits(self, step: steps.RoundWaits, waits: PeerId) -> None:
        """A round waits for more nodes of a class than the scenario has: it would wait for ever."""
        classes = zip(self.scenario.groups, self._kinds, strict=True)
        there = sum(group.count for group, kind in classes if step.peer_class in kind.classes)
        there -= step.peer_class in self._kinds[self._member_of[waits].group].classes  # itself
        nodes = f"{step.wanted} node{'s' * (step.wanted != 1)} of the class {step.peer_class!r}"
        self._waited = f"round {step.round} waits for {nodes}"
        if there < step.wanted:
            self._stuck = f"{self._waited}, and there are {there}"

    def _named(self, found: re.Match[str]) -> str:
        """The name of a peer in place of its id in a text."""
        try:
            return self._name(PeerId.from_text(found["id"] or found["text"]))
        except BBError:
            return found[0]

    def _name(self, peer: PeerId) -> str:
        member = self._member_of.get(peer)
        return str(peer) if member is None else self.scenario.groups[member.group].name(member.number)

    def accounts(self) -> Accounts:
        """What is left to tell at the end."""
        counters: Counter[str] = Counter()
        for node in self._nodes.values():
            counters.update(node.counters)
        models = dict(self._models())
        trace, sent = self.network.trace_digests(), self.network.sent_bytes
        return Accounts(trace, counters, self._trouble, sent, peak_rss_bytes(), models)

    def _models(self) -> Iterator[tuple[tuple[str, str], dict[str, Array]]]:
        """The parameters of the models that the scenario asks for, where their node is here."""
        for member, peer in self._everybody.items():
            group = self.scenario.groups[member.group]
            for peer_class, slot in self.scenario.models if peer in self._nodes else ():
                if peer_class == group.peer_class:
                    component = self._nodes[peer].component(slot)
                    named = component.named_parameters() if isinstance(component, Model) else None
                    if untrained := component.personal_untrained if isinstance(component, Model) else ():
                        text = f"{', '.join(untrained)}: personal, and never trained on this node"
                        self._count_trouble("SavedModel", self.network.now_ns, group.name(0), text, ())
                    yield (peer_class, slot), {name: array.copy() for name, array in (named or {}).items()}

    def close(self) -> None:
        """Removes what it has written."""
        self.resting.close()
        self._folder.cleanup()


def _asks(content: tuple[Body, bytes]) -> bool:
    """Whether an envelope carries values, and not only acknowledgements."""
    return bool(WireEnvelope.FromString(b"".join(content)).fills)
