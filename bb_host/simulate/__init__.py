"""Federations of thousands of nodes in simulated time, on one machine or a cluster: `bb-host simulate`.

    from bb_host.simulate import Dealt, Group, Rule, Scenario, simulate

The nodes are those that devices run, from the same artifacts. Network and time are simulated; a seed decides
every bit, for any number of workers.
"""

from __future__ import annotations

from bb_host.errors import ScenarioError, WorkerError
from bb_host.simulate.accounts import Event
from bb_host.simulate.conditions import Conditions, read_trace
from bb_host.simulate.rules import Rule
from bb_host.simulate.run import Outcome, State, simulate
from bb_host.simulate.scenario import Dealt, Group, Member, Scenario

__all__ = [
    "Conditions",
    "Dealt",
    "Event",
    "Group",
    "Member",
    "Outcome",
    "Rule",
    "Scenario",
    "ScenarioError",
    "State",
    "WorkerError",
    "read_trace",
    "simulate",
]
