"""The limits of a simulation's nodes, and whether what they plan fits."""

from __future__ import annotations

from bb_edge.capacity import findings, of_unknown_size, refusals
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.program.program import Program
from bb_host.errors import ScenarioError
from bb_host.simulate.scenario import Group


def limits_of(group: Group) -> NodeConfig:
    """The limits of the group's nodes. ScenarioError for a `config` that is not a NodeConfig."""
    given: object = group.config  # a script's author may have written anything
    if given is None:
        large = group.count == 1 if group.large is None else group.large
        return NodeConfig.host() if large else NodeConfig.edge()
    if isinstance(given, NodeConfig):
        return given
    where = f"Group.config of {group.peer_class!r}"
    raise ScenarioError(f"{given!r:.40} is not a NodeConfig", where, "give a NodeConfig, or None")


def check_room(group: Group, program: Program) -> None:
    """ScenarioError where what the target of a group plans does not fit the limits of the group's nodes.

    Installing would refuse it, too, and name neither the class's flags nor all of its limits.
    """
    targets, limits = [program.targets[group.target]], limits_of(group)
    found = refusals(findings(program, targets, limits))
    if not found:
        return
    remedy = (
        f"{'; '.join(dict.fromkeys(each.hint for each in found))}: in a configuration of these nodes,"
        f" --config {group.peer_class}=FILE.toml, from Python Group(…, config=NodeConfig(…))"
    )
    if group.config is None and not refusals(findings(program, targets, NodeConfig.host())):
        remedy = (
            f"give these nodes a server's budget: --large {group.peer_class}, from Python"
            f" Group(…, large=True); or {remedy}"
        )
    raise ScenarioError(found[0].what, found[0].where, remedy)


def open_sizes(group: Group, program: Program) -> list[str]:
    """What the group's target receives without a planned size, and the limit that holds for it."""
    notes = of_unknown_size(program, [program.targets[group.target]], limits_of(group))
    return [f"{group.peer_class}: {note}" for note in notes]
