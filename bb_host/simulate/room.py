"""The limits of a simulation's nodes, and whether what they plan fits."""

from __future__ import annotations

from bb_edge.capacity import findings, refusals
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.program.program import Program
from bb_host.errors import ScenarioError
from bb_host.simulate.scenario import Group


def limits_of(group: Group) -> NodeConfig:
    """The limits of the group's nodes."""
    return NodeConfig.host() if group.large else NodeConfig.edge()


def check_room(group: Group, program: Program) -> None:
    """ScenarioError where what the target of a group plans does not fit the limits of the group's nodes.

    Installing would refuse it, too, with keys of a device's configuration, which a simulation has not.
    """
    targets = [program.targets[group.target]]
    for finding in refusals(findings(program, targets, limits_of(group))):
        if refusals(findings(program, targets, NodeConfig.host())):
            remedy = "no budget of a simulation has room: send less in one message, or ask fewer peers"
        else:
            remedy = (
                f"give these nodes a server's budget: --large {group.peer_class},"
                " from Python Group(…, large=True)"
            )
        raise ScenarioError(finding.what, finding.where, f"{remedy}; on devices, {finding.hint}")
