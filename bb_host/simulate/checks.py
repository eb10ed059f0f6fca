"""What a scenario may be: everything that a script gives is looked at before anything runs.

The command line has its own words for what it takes; here a script's author is told, by names of fields.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_edge.ir.suggestions import suggestion
from bb_host.errors import ScenarioError
from bb_host.simulate.conditions import Conditions
from bb_host.simulate.rules import Rule
from bb_host.simulate.scenario import Dealt, Group, Scenario

if TYPE_CHECKING:
    from bb_edge.engine.program.program import Target

MOST_NS = 1 << 62
"""The longest time, in nanoseconds: 146 years."""


def check_scenario(scenario: Scenario) -> None:
    """ScenarioError for what is not a scenario: other types, numbers out of range, names used twice."""
    _check(
        isinstance(scenario, Scenario), f"{scenario!r:.60} is not a Scenario", "simulate", "give a Scenario"
    )
    groups = scenario.groups
    _check(
        isinstance(groups, tuple) and bool(groups) and all(isinstance(each, Group) for each in groups),
        "it has no nodes" if not groups else f"groups are {groups!r:.60}",
        "Scenario.groups",
        "give a tuple of Group, one for each class of the program",
    )
    names: set[str] = set()
    for group in groups:
        _check_group(group)
        ours = group.peer_class.lower()
        _check(
            ours not in names,
            f"two groups are of the class {group.peer_class!r}, whose nodes would have the same names",
            "Scenario.groups",
            "give one Group, with the count of both",
        )
        names.add(ours)
    _whole(scenario.seed, "Scenario.seed", -(1 << 63), (1 << 64) - 1)
    _whole(scenario.latency_ns, "Scenario.latency_ns", 1, MOST_NS)
    _whole(scenario.jitter_ns, "Scenario.jitter_ns", 0, MOST_NS)
    _check_settings(scenario.settings, "Scenario.settings")
    _check(isinstance(scenario.dealt, tuple), f"dealt is {scenario.dealt!r:.60}", "Scenario.dealt", "a tuple")
    slots = set()
    for dealt in scenario.dealt:
        _check_dealt(dealt)
        what = f"slot {dealt.slot!r} is dealt the rows of two files"
        _check(dealt.slot not in slots, what, "Scenario.dealt", "give one Dealt for each slot")
        slots.add(dealt.slot)
    _check_conditions(scenario.conditions)
    _check_trace(scenario)
    load = scenario.load
    _check(
        isinstance(load, tuple) and all(isinstance(each, str) for each in load),
        f"load is {load!r:.60}",
        "Scenario.load",
        'give names of modules or files: ("parts.py",)',
    )


def _check(holds: bool, what: str, where: str, hint: str) -> None:
    if not holds:
        raise ScenarioError(what, where, hint)


def _whole(value: object, where: str, least: int, most: int) -> None:
    _check(
        isinstance(value, int) and not isinstance(value, bool) and least <= value <= most,
        f"{value!r:.40} is not a whole number from {least} to {most}",
        where,
        "give a number of that range",
    )


def _share(value: object, where: str, *, above: bool = False) -> None:
    """A share or chance from 0 to 1; `above`: 0 is none."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    _check(
        number and 0 <= value <= 1 and not (above and value == 0),  # type: ignore[operator]
        f"{value!r:.40} is not a number {'above 0 and up' if above else 'from 0'} to 1",
        where,
        "nobody would ever be there" if above and value == 0 else "give a share, such as 0.1",
    )


def _check_group(group: Group) -> None:
    texts = isinstance(group.peer_class, str) and bool(group.peer_class) and isinstance(group.target, str)
    _check(
        texts, f"{group.peer_class!r} and {group.target!r} are not names", "Group", "give class and target"
    )
    _check(
        isinstance(group.data, bytes) and bool(group.data),
        f"the artifact of {group.peer_class!r} is not bytes",
        "Group.data",
        "give an artifact's bytes: build_edge(…).artifacts[…].data",
    )
    _whole(group.count, f"Group.count of {group.peer_class!r}", 1, 1 << 32)
    _check(
        group.large is None or isinstance(group.large, bool),
        f"large is {group.large!r:.40}",
        "Group.large",
        "give True, False or None",
    )
    _check_settings(group.settings, f"Group.settings of {group.peer_class!r}")


def _check_settings(settings: object, where: str) -> None:
    _check(
        isinstance(settings, Mapping)
        and all(isinstance(slot, str) and isinstance(keys, Mapping) for slot, keys in settings.items()),
        f"settings are {settings!r:.60}",
        where,
        'give the configuration of each slot: {"model": {"learning_rate": 0.1}}',
    )


def _check_dealt(dealt: Dealt) -> None:
    _check(
        isinstance(dealt, Dealt), f"{dealt!r:.60} is not a Dealt", "Scenario.dealt", "give a tuple of Dealt"
    )
    where = f"Dealt of {dealt.slot!r}"
    _check(
        isinstance(dealt.slot, str),
        f"{dealt.slot!r} is not the name of a slot",
        "Dealt.slot",
        "give its name",
    )
    hint = 'give Path("train.npz")'
    _check(isinstance(dealt.path, (str, Path)), f"{dealt.path!r:.60} is not a path", where, hint)
    hint = 'give Rule.parse("iid")'
    _check(isinstance(dealt.rule, Rule), f"{dealt.rule!r:.60} is not a Rule", where, hint)


def _check_conditions(found: Conditions) -> None:
    where = "Scenario.conditions"
    _check(isinstance(found, Conditions), f"{found!r:.60} is not Conditions", where, "give Conditions(…)")
    _share(found.up_share, f"{where}.up_share", above=True)
    _share(found.slow_share, f"{where}.slow_share")
    _share(found.dropout_chance, f"{where}.dropout_chance")
    _whole(found.up_period_ns, f"{where}.up_period_ns", 1, MOST_NS)
    _whole(found.slow_by_ns, f"{where}.slow_by_ns", 0, MOST_NS)
    _whole(found.dropout_ns, f"{where}.dropout_ns", 0, MOST_NS)
    for client, spans in found.trace.items():
        if not isinstance(client, str):
            _whole(client, f"{where}.trace", 0, 1 << 32)
        at = -1
        for begin, end in spans:
            _whole(begin, f"{where}.trace[{client}]", 0, MOST_NS)
            _whole(end, f"{where}.trace[{client}]", begin + 1, MOST_NS)
            who = client if isinstance(client, str) else f"client {client}"
            what = f"{who} is up from {begin} ns on before its last span has ended"
            _check(begin >= at, what, f"{where}.trace", "give its spans in their order, without overlaps")
            at = end


def _check_trace(scenario: Scenario) -> None:
    """ScenarioError where a trace names what is nobody's, or one node twice."""
    clients = scenario.clients()
    several = {group.peer_class.lower(): group for group in scenario.groups if group.count > 1}
    named: set[str] = set()
    for node in scenario.conditions.trace:
        if isinstance(node, int):
            what = f"the trace names client {node}, and of which class that is, is not clear"
            names = [f"{name}-{node}" for name in several]
            by_name = f"name the node: {' or '.join(names)}" if names else "no class has several nodes"
            _check(clients is not None, what, "--available", by_name)
            group, number = clients or scenario.groups[0], node
        else:
            name, _, digits = node.rpartition("-")
            what = f"the trace names {node!r}, and no class of several nodes is called so"
            known = suggestion(name, sorted(several), "their names begin with: ")
            _check(name in several and digits.isdecimal(), what, "--available", known)
            group, number = several[name], int(digits)
        kind = "client" if group is clients else group.peer_class.lower()
        what = f"the trace names {kind} {number}, and there are {group.count}, from 0 on"
        _check(number < group.count, what, "--available", "leave its lines out, or simulate more clients")
        name = group.name(number)
        _check(name not in named, f"the trace names {name} twice", "--available", "leave one of them out")
        named.add(name)


def check_settings(scenario: Scenario, targets: Sequence[Target]) -> None:
    """ScenarioError for settings of slots that no node has, and for those that have no effect.

    `targets` are those of the groups, in their order.
    """
    groups = list(zip(scenario.groups, targets, strict=True))
    known = sorted({slot for target in targets for slot in target.bindings})
    for slot, given in scenario.settings.items():
        having = [group for group, target in groups if slot in target.bindings]
        _check(bool(having), f"no node has a slot {slot!r}", "--set", suggestion(slot, known, "slots: "))
        for key in given:
            _check(
                not all(key in group.settings.get(slot, {}) for group in having),
                f"{slot}.{key} is set for each class that has the slot, and for all of them",
                "--set",
                f"leave out --set {slot}.{key}",
            )
    for group, target in groups:
        for slot in group.settings:
            what = f"the class {group.peer_class!r} has no slot {slot!r}"
            hint = suggestion(slot, sorted(target.bindings), "slots: ")
            _check(slot in target.bindings, what, "--set", hint)
        asked = scenario.settings_of(group)
        for dealt in scenario.dealt:
            _check(
                dealt.slot not in target.bindings or dealt.key not in asked.get(dealt.slot, {}),
                f"slot {dealt.slot!r} is dealt rows, and its {dealt.key!r} is set besides",
                "--set",
                f"leave out --set {dealt.slot}.{dealt.key}, or --data {dealt.slot}",
            )


def check_models(scenario: Scenario, targets: Sequence[Target]) -> None:
    """ScenarioError for models that the outcome shall have, and that no class of one node has."""
    single = {g.peer_class: t for g, t in zip(scenario.groups, targets, strict=True) if g.count == 1}
    for place in scenario.models:
        peer_class, slot = place if isinstance(place, tuple) and len(place) == 2 else ("", "")
        binding = single[peer_class].bindings.get(slot) if peer_class in single else None
        _check(
            binding is not None and binding.role == keys.ROLE_MODEL,
            f"{place!r:.60} is not a class of one node with a slot that holds a model",
            "Scenario.models",
            'give a tuple of classes and slots: (("Server", "model"),)',
        )


def check_targets(group: Group, targets: Mapping[str, str]) -> None:
    """ScenarioError where the artifact of a group does not hold its target, or has it for another class.

    `targets` are the classes of the artifact's targets by name.
    """
    if group.target not in targets:
        what = f"the artifact of {group.peer_class!r} holds no target {group.target!r}"
        raise ScenarioError(what, "Group.target", suggestion(group.target, sorted(targets), "it holds: "))
    if targets[group.target] != group.peer_class:
        what = f"the target {group.target!r} is of the class {targets[group.target]!r}"
        raise ScenarioError(what, f"Group.peer_class {group.peer_class!r}", "name the artifact's own class")


def remedy_for_rows(
    refused: Sequence[BBError], dealt: Container[str], given: Mapping[str, Mapping[str, object]]
) -> str:
    """What to add to the hint of refused slots: how their rows are dealt, or that they can be."""
    if any(error.slot in dealt for error in refused):
        return "; its rows are dealt: see --deal"
    for error in refused:
        if error.where.endswith(", key 'path'") and "path" not in given.get(error.slot, {}):
            return f"; or deal the rows of one among these nodes: --data {error.slot}=FILE"
    return ""
