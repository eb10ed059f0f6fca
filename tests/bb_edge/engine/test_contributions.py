"""Contributions at the border of an aggregator: what is refused, and whose it was."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from arrays import f32
from kinds_of_steps import of
from peers import A, B

from bb_edge.engine import steps
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.node import Node
from bb_edge.roles import ContributionRefused

PROGRAM = """program Demo {module=Demo, targets="Server", binding.Server.agg="aggregator|bb.FedAvg|1"}
function program.Server(x: F32[?], w: F32[], p: PeerIdVec, go: Trigger) -> () {entry=1, partition=Server}
  c: CommandId = role.aggregator.Contribute(x, w, p) {slot=agg}
  t: Tensor, total: F32[] = role.aggregator.Aggregate(go) {slot=agg, control_inputs=1}
  syscall.AppEmit<name="mean">(t)
"""


@pytest.fixture
def server(compile_text: Callable[[str], bytes]) -> Node:
    node = install(PeerId.from_name("server"), (), compile_text(PROGRAM), ["Server"], seed=1)
    node.poll(0)
    return node


def contribute(
    node: Node, peers: tuple[PeerId, ...], *values: float, weight: float = 1.0
) -> list[steps.OpFailed]:
    node.invoke("Server", {"x": f32(*values), "w": np.float32(weight), "p": peers})
    return of(steps.OpFailed, node.poll(1))


def test_a_refused_contribution_names_its_peer_its_slot_and_why(server):
    (failed,) = contribute(server, (A,), 1, np.nan)
    assert failed.peer == A
    assert isinstance(failed.error, ContributionRefused) and failed.error.peer == A
    assert failed.text.startswith(
        f"slot 'agg' (bb.FedAvg.contribute): the contribution of {A} does not count: "
    )
    assert "inf or nan" in failed.text and "learning rate" in failed.text


def test_a_contribution_of_nobody_in_particular_is_refused_without_a_name(server):
    (failed,) = contribute(server, (A, B), 1)
    assert failed.peer is None and isinstance(failed.error, ContributionRefused)
    assert "one peer, not 2" in failed.text
