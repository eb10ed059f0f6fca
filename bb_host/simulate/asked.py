"""From the command line of `bb-host simulate` to scenarios: one, or those that are swept."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bb_edge.cli.arguments import given_value
from bb_edge.config_file import load_config
from bb_edge.engine.config import NodeConfig
from bb_edge.ir.suggestions import suggestion
from bb_host.errors import ScenarioError
from bb_host.simulate.conditions import NS, Conditions, read_trace
from bb_host.simulate.rules import Rule
from bb_host.simulate.scenario import MS, Dealt, Group, Scenario

LABELS = "y"
"""The array of labels, where `--labels` names no other."""

MANY = "Client"
"""The class that `--clients` means, where a program has several."""


class CompiledTarget(NamedTuple):
    """One target of a program's file: what its nodes install, and what leads back to its author's lines."""

    peer_class: str
    target: str
    data: bytes
    source_map: bytes


def scenario_of(
    arguments: argparse.Namespace, artifacts: Sequence[CompiledTarget], modules: Sequence[str]
) -> Scenario:
    """The scenario before anything is swept. ScenarioError for what cannot be meant."""
    counts = _counts(arguments, [artifact.peer_class for artifact in artifacts])
    configs = _configs(arguments, list(counts))
    groups = tuple(
        Group(a.peer_class, a.target, a.data, counts[a.peer_class], config=configs.get(a.peer_class))
        for a in artifacts
    )
    settings = _settings(arguments.set, "--set", [group.peer_class for group in groups])
    rules = _rules(arguments)
    labels = LABELS if arguments.labels is None else arguments.labels
    dealt = tuple(
        Dealt(slot, path, rules.get(slot, rules[""]), labels=labels) for slot, path in _files(arguments)
    )
    _check_labels(arguments, dealt)
    unused = rules.keys() - {slot for slot, _ in _files(arguments)} - {""}
    if unused:
        raise ScenarioError(
            f"no data are given for {', '.join(sorted(unused))}", "--deal", "add --data SLOT=FILE.npz"
        )
    return Scenario(
        tuple(dataclasses.replace(g, settings=settings.pop(g.peer_class, {})) for g in groups),
        0 if arguments.seed is None else arguments.seed,
        _ms(arguments.latency, "--latency", above=True),
        _ms(arguments.jitter, "--jitter"),
        settings.get(EVERY, {}),
        dealt,
        _conditions(arguments),
        tuple(dict.fromkeys([*arguments.load, *modules])),
    )


def _check_labels(arguments: argparse.Namespace, dealt: Sequence[Dealt]) -> None:
    """ScenarioError for `--labels` that no rule of the command line reads."""
    swept = [text.removeprefix("deal=").split(",") for text in arguments.sweep if text.startswith("deal=")]
    rules = [one.rule for one in dealt] + [Rule.parse(text) for texts in swept for text in texts]
    if arguments.labels is not None and not any(rule.by_label for rule in rules):
        raise ScenarioError(
            f"nothing is dealt by the labels {arguments.labels!r}",
            "--labels",
            "add --deal dirichlet:0.3 or --deal label:2, or leave --labels out",
        )


def _counts(arguments: argparse.Namespace, classes: Sequence[str]) -> dict[str, int]:
    """How many nodes each class has: one, where nothing else is said."""
    counts, given = dict.fromkeys(classes, 1), set[str]()
    asked = [("--nodes", *text.partition("=")[::2]) for text in arguments.nodes]
    if arguments.clients is not None:
        asked.append(("--clients", classes[0] if len(classes) == 1 else MANY, str(arguments.clients)))
    for flag, name, number in asked:
        if name not in counts:
            near = suggestion(name, classes, "its classes: ")
            example = "" if near.startswith("did you mean") else f"; write --nodes {classes[-1]}=100"
            hint = f"{near}{example}"
            raise ScenarioError(f"the program has no class {name!r}", flag, hint)
        if not number.isdigit() or not int(number):
            example = "--clients 100" if flag == "--clients" else f"--nodes {name}=100"
            raise ScenarioError(f"{number!r} is not a number of nodes, 1 or more", flag, f"write {example}")
        _once(name, given, flag, f"how many nodes {name!r} has")
        counts[name] = int(number)
    return counts


def _configs(arguments: argparse.Namespace, classes: Sequence[str]) -> dict[str, NodeConfig]:
    """The limits of each class that `--config` names. ScenarioError for a class that the program has not, and
    for one whose budget `--large` and `--config` say twice; ConfigFileError and ConfigError for its file.
    """
    asked = [("--large", name, "=", "") for name in arguments.large]
    asked += [("--config", *text.partition("=")) for text in arguments.config]
    given, found = set[str](), dict[str, NodeConfig]()
    for flag, name, equals, path in asked:
        if flag == "--config" and not (equals and path):
            raise ScenarioError(f"{name!r} names no class and file", flag, f"write {flag} CLASS=FILE.toml")
        if name not in classes:
            hint = suggestion(name, classes, "its classes: ")
            raise ScenarioError(f"the program has no class {name!r}", flag, hint)
        _once(name, given, flag, f"the budget of the class {name!r}")
        if path:
            found[name] = load_config(Path(path)).node_config()
    return found


def _once(name: str, given: set[str], flag: str, what: str) -> None:
    """ScenarioError for what is said twice: which of both is meant cannot be known."""
    if name in given:
        raise ScenarioError(f"{what} is given twice", flag, "leave one of them out")
    given.add(name)


def _files(arguments: argparse.Namespace) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    given = set[str]()
    for text in arguments.data:
        slot, equals, path = text.partition("=")
        if not equals or not slot or not path:
            raise ScenarioError(f"{text!r} names no slot and file", "--data", "write --data shard=train.npz")
        _once(slot, given, "--data", f"the file of slot {slot!r}")
        found.append((slot, Path(path)))
    return found


def _rules(arguments: argparse.Namespace) -> dict[str, Rule]:
    rules, given = {"": Rule("iid")}, set[str]()
    for text in arguments.deal:
        slot, equals, rule = text.partition("=")
        slot, rule = (slot, rule) if equals else ("", text)
        _once(slot, given, "--deal", f"how slot {slot!r} is dealt" if slot else "how all slots are dealt")
        rules[slot] = Rule.parse(rule)
    return rules


EVERY = ""
"""Settings of all classes that have the slot."""


def _settings(
    texts: Sequence[str], flag: str, classes: Sequence[str]
) -> dict[str, dict[str, dict[str, object]]]:
    """By class, or for `EVERY` one: slot, key and value of each `[CLASS.]SLOT.KEY=VALUE`."""
    found: dict[str, dict[str, dict[str, object]]] = {}
    given = set[str]()
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ScenarioError(f"{text!r} configures nothing", flag, f"write {flag} SLOT.KEY=VALUE")
        peer_class, slot, key = _place(name, flag, classes)
        _once(name, given, flag, name)
        found.setdefault(peer_class, {}).setdefault(slot, {})[key] = given_value(f"{flag} {name}", value)
    return found


def _place(name: str, flag: str, classes: Sequence[str]) -> tuple[str, str, str]:
    """Class (or `EVERY`), slot and key of `[CLASS.]SLOT.KEY`. ScenarioError for a class that is not there."""
    parts = name.split(".")
    if len(parts) not in (2, 3) or not all(parts):
        hint = f"write {flag} SLOT.KEY=VALUE, or CLASS.SLOT.KEY=VALUE for the nodes of one class"
        raise ScenarioError(f"{name!r} names no slot and key", flag, hint)
    peer_class, slot, key = parts if len(parts) == 3 else (EVERY, *parts)
    if peer_class != EVERY and peer_class not in classes:
        hint = suggestion(peer_class, classes, "its classes: ")
        raise ScenarioError(f"{name}: the program has no class {peer_class!r}", flag, hint)
    return peer_class, slot, key


def _conditions(arguments: argparse.Namespace) -> Conditions:
    found = Conditions()
    if arguments.available is not None:
        if arguments.available.endswith(".csv"):
            found = dataclasses.replace(found, trace=read_trace(Path(arguments.available)))
        else:
            share, period = _pair(arguments.available, "--available", 600.0)
            if share == 0:
                raise ScenarioError("nobody would ever be there", "--available", "give a share above 0")
            found = dataclasses.replace(found, up_share=share, up_period_ns=period)
    if arguments.slow is not None:
        share, more = _pair(arguments.slow, "--slow", None)
        found = dataclasses.replace(found, slow_share=share, slow_by_ns=more)
    if arguments.dropouts is not None:
        chance, gone = _pair(arguments.dropouts, "--dropouts", 30.0)
        found = dataclasses.replace(found, dropout_chance=chance, dropout_ns=gone)
    return found


def _pair(text: str, flag: str, seconds: float | None) -> tuple[float, int]:
    """A share from 0 to 1 and nanoseconds, of `SHARE:SECONDS`."""
    share, colon, rest = text.partition(":")
    with contextlib.suppress(ValueError):
        part, time_s = float(share), float(rest) if colon else seconds
        if 0 <= part <= 1 and time_s is not None and 0 < time_s < 1e9:
            return part, round(time_s * NS)
    default = "" if seconds is None else f"; without a time it is {seconds:g} s"
    raise ScenarioError(f"{text!r} is not a share and a time", flag, f"write {flag} 0.1:20{default}")


def _ms(value: float, flag: str, above: bool = False) -> int:
    """Milliseconds as nanoseconds; ScenarioError for none that a network may have, nor 0 where `above` it."""
    least = 1 / MS if above else 0
    if not least <= value < 1e9:
        range_ = "above 0" if above else "0 or more"
        raise ScenarioError(f"{value:g} ms", flag, f"give milliseconds, {range_} and less than 1e9 (12 days)")
    return round(value * MS)


def swept(base: Scenario, arguments: argparse.Namespace) -> Iterator[tuple[str, Scenario]]:
    """(label, scenario) of each run: the base alone, or one for each combination of swept values."""
    axes: list[list[tuple[str, str]]] = []
    given = {text.partition("=")[0] for text in arguments.set}
    given |= {name for name in ("clients", "seed") if getattr(arguments, name) is not None}
    many = MANY if len(base.groups) > 1 else base.groups[0].peer_class
    if any(text.partition("=")[0] == many for text in arguments.nodes):
        given.add("clients")
    for text in arguments.sweep:
        name, equals, values = text.partition("=")
        if not equals or not name or not all(values.split(",")):
            raise ScenarioError(f"{text!r} names no values", "--sweep", "write --sweep seed=0,1,2")
        _once(name, given, "--sweep", name)
        values_of = set[str]()
        for value in values.split(","):
            _once(value, values_of, "--sweep", f"{name}={value}")
        axes.append([(name, value) for value in values.split(",")])
    for combination in itertools.product(*axes):
        scenario = base
        for name, value in combination:
            scenario = _with(scenario, name, value)
        scenario = _budgeted(scenario, arguments)
        yield ",".join(f"{name}={value}" for name, value in combination).replace("/", "_"), scenario


def _with(scenario: Scenario, name: str, value: str) -> Scenario:
    if name == "deal":
        rule = Rule.parse(value)
        return dataclasses.replace(
            scenario, dealt=tuple(dataclasses.replace(d, rule=rule) for d in scenario.dealt)
        )
    if name in ("seed", "clients"):
        if not value.isdigit():
            raise ScenarioError(
                f"{value!r} is not a number", f"--sweep {name}", f"write --sweep {name}=10,100"
            )
        if name == "seed":
            return dataclasses.replace(scenario, seed=int(value))
        many = [g for g in scenario.groups if g.peer_class == MANY or len(scenario.groups) == 1]
        if not many or not int(value):
            raise ScenarioError(f"clients={value} of no class {MANY}", "--sweep", "give 1 or more")
        groups = tuple(dataclasses.replace(g, count=int(value)) if g in many else g for g in scenario.groups)
        return dataclasses.replace(scenario, groups=groups)
    if "." not in name:
        hint = "write seed=0,1, clients=10,100, deal=iid,draw:64, SLOT.KEY=A,B, or CLASS.SLOT.KEY=A,B"
        raise ScenarioError(f"{name!r} is nothing that can be swept", "--sweep", hint)
    classes = [group.peer_class for group in scenario.groups]
    ((peer_class, more),) = _settings([f"{name}={value}"], "--sweep", classes).items()
    if peer_class == EVERY:
        return dataclasses.replace(scenario, settings=_merged(scenario.settings, more))
    groups = tuple(
        dataclasses.replace(g, settings=_merged(g.settings, more)) if g.peer_class == peer_class else g
        for g in scenario.groups
    )
    return dataclasses.replace(scenario, groups=groups)


def _budgeted(scenario: Scenario, arguments: argparse.Namespace) -> Scenario:
    """Gives a server's budget to the classes that `--large` names; one of one node has it anyway."""
    named = arguments.large
    groups = tuple(dataclasses.replace(g, large=g.peer_class in named or None) for g in scenario.groups)
    return dataclasses.replace(scenario, groups=groups)


def _merged(
    settings: Mapping[str, Mapping[str, object]], more: Mapping[str, Mapping[str, object]]
) -> dict[str, dict[str, object]]:
    return {
        slot: {**settings.get(slot, {}), **more.get(slot, {})} for slot in dict.fromkeys((*settings, *more))
    }
