"""Bootstraps: armed by the host, checked before anything is staged, gating what they touch."""

from __future__ import annotations

import numpy as np
import pytest

from bb_edge.engine import steps
from bb_edge.engine.entries.bootstrap import (
    AlreadyTransitivelyQueued,
    BootstrapAll,
    BootstrapRequest,
    BootstrapStatus,
    MissingInput,
    ModuleNames,
    ModuleRequests,
    UnknownInput,
    UnknownTarget,
)
from tests.aids.bootstraps import bootstrap_status

STORE = """
program Demo {module=Demo, binding.Main.index="index|bb.FlatIndex|1"}
function program.Main(query: F32[2]) -> (ids, distances) {entry=1, partition=self}
  slot index: index
  ids: I64, distances: F32 = role.index.Search<k=1>(query) {slot=index}
function program.Main__bootstrap(corpus: F32[2,2]) -> () {module_phase=bootstrap}
  slot index: index
  cmd: CommandId = role.index.Add(corpus) {slot=index}
  waited: CommandId = syscall.GateDispatch(cmd, cmd)
"""


def corpus():
    return np.array([[0, 0], [5, 5]], dtype=np.float32)


def test_a_bootstrap_runs_when_the_host_says_so(bench):
    b = bench(STORE)
    assert bootstrap_status(b.node, "Main") is BootstrapStatus.READY
    b.node.run_bootstrap(ModuleRequests((BootstrapRequest("Main", {"corpus": corpus()}),)))
    assert bootstrap_status(b.node, "Main") is BootstrapStatus.QUEUED
    b.settle()
    assert b.of(steps.BootstrapComplete) == [steps.BootstrapComplete("Main", False)]
    assert bootstrap_status(b.node, "Main") is BootstrapStatus.DONE
    b.node.invoke("Main", {"query": np.array([4, 4], np.float32)})
    b.settle()
    assert b.events("ids")[0].ravel().tolist() == [1]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (ModuleNames(("Nobody",)), UnknownTarget),
        (ModuleNames(("Main",)), MissingInput),
        (BootstrapAll(), MissingInput),
        (ModuleRequests((BootstrapRequest("Main", {"corpus": 1, "more": 2}),)), UnknownInput),
        (
            ModuleRequests(
                (BootstrapRequest("Main", {"corpus": None}), BootstrapRequest("Main", {"corpus": None}))
            ),
            AlreadyTransitivelyQueued,
        ),
    ],
)
def test_requests_are_checked_before_anything_is_staged(bench, request_, error):
    b = bench(STORE)
    if error is AlreadyTransitivelyQueued:
        values = {"corpus": corpus()}
        request_ = ModuleRequests((BootstrapRequest("Main", values), BootstrapRequest("Main", values)))
    with pytest.raises(error):
        b.node.run_bootstrap(request_)
    assert bootstrap_status(b.node, "Main") is BootstrapStatus.READY
    b.settle()
    assert b.of(steps.BootstrapComplete) == []


def test_a_target_without_bootstrap_counts_as_done(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=self}
  p: Trigger = syscall.Pulse()
  syscall.AppNotify<name="p">(p)
"""
    )
    assert b.node.bootstraps == ()
