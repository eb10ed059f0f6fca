"""Contributions at the border of an aggregator: what is refused, and whose it was."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from arrays import f32
from kinds_of_steps import of
from peers import A, B

from bb_edge.components import FedAvg
from bb_edge.engine import steps
from bb_edge.installer import install
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.ir.values import TRIGGER
from bb_edge.node import Node
from bb_edge.registry import Registry
from bb_edge.roles import ContributionRefused

PROGRAM = """program Demo {module=Demo, targets="Server", binding.Server.agg="aggregator|bb.FedAvg|1"}
function program.Server(x: F32[?], w: F32[], p: PeerIdVec, go: Trigger) -> () {entry=1, partition=Server}
  c: CommandId = role.aggregator.Contribute(x, w, p) {slot=agg}
  t: Tensor, total: F32[] = role.aggregator.Aggregate(go) {slot=agg, control_inputs=1}
  syscall.AppEmit<name="mean">(t)
"""


def stamped(shape: str) -> str:
    """The program whose contributions have that shape."""
    return PROGRAM.replace(
        "Contribute(x, w, p) {slot=agg", f'Contribute(x, w, p) {{slot=agg, shapes="{shape}"'
    )


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


def test_another_shape_is_told_with_what_may_have_made_it(compile_text: Callable[[str], bytes]) -> None:
    """Peers that run another program do not come so far: a component gave it, of theirs or of this node."""
    node = install(PeerId.from_name("server"), (), compile_text(stamped("[3]")), ["Server"], seed=1)
    (failed,) = contribute(node, (A,), 1, 2)
    assert "it has shape [2], what is asked for has [3] (check what made the contribution: " in failed.text
    assert "model, codec or aggregator of your own" in failed.text


def test_a_refused_contribution_names_its_peer_its_slot_and_why(server):
    (failed,) = contribute(server, (A,), 1, np.nan)
    assert failed.peer == A
    assert isinstance(failed.error, ContributionRefused) and failed.error.peer == A
    assert failed.text.startswith(
        f"slot 'agg' (bb.FedAvg.contribute): the contribution of {A} does not count: "
    )
    assert "inf or nan" in failed.text and "look for NaN in the peer's data" in failed.text


@pytest.mark.parametrize("given", [0, 1])
def test_an_op_that_reads_a_sum_of_nobody_says_so(compile_text, given):
    text = PROGRAM.replace("go: Trigger", "go: Trigger, y: F32[3]") + "  d: Tensor = Sub(y, t)\n"
    node = install(PeerId.from_name("server"), (), compile_text(text), ["Server"], seed=1)
    for _ in range(given):
        node.invoke("Server", {"x": f32(1, 2), "w": np.float32(1), "p": (A,)})
    node.poll(0)
    node.invoke("Server", {"go": TRIGGER, "y": f32(1, 2, 3)})
    (failed,) = of(steps.OpFailed, node.poll(1))
    assert "do not broadcast" in failed.text
    assert ("no contribution counted in slot 'agg'" in failed.text) == (not given)


def test_a_contribution_of_several_peers_is_refused_as_the_programs_fault(server):
    (failed,) = contribute(server, (A, B), 1)
    assert failed.peer is None and not isinstance(failed.error, ContributionRefused)
    assert "peer= is 2 peers, and a contribution is of one" in failed.text


def test_contributions_that_no_aggregate_takes_are_told_with_the_execution(compile_text):
    text = PROGRAM.replace("{slot=agg}", "{slot=agg, cohort=0}").replace(
        "{slot=agg, c", "{slot=agg, cohort=0, c"
    )
    node = install(PeerId.from_name("server"), (), compile_text(text), ["Server"], seed=1)
    node.invoke("Server", {"x": f32(1), "w": np.float32(1), "p": (A,)})
    (lost,) = of(steps.ContributionsGivenUp, node.poll(1))
    assert (lost.target, lost.contributions, lost.peers) == ("Server", 1, (A,))
    assert lost.why.startswith("slot 'agg': the execution that asked for them ended")
    assert node.counters["contributions.given_up"] == 1


BY_ROUND = """program Demo {module=Demo, targets="Server", binding.Server.agg="aggregator|bb.FedAvg|1"}
function program.Server(x: F32[?], p: PeerIdVec, r: I64[], done: I64[]) -> () {entry=1, partition=Server}
  slot agg: aggregator
  c: CommandId = role.aggregator.Contribute(x, "", p, r) {slot=agg, cohort=round}
  t: Tensor, total: F32[] = role.aggregator.Aggregate("", done) {slot=agg, cohort=round}
"""


def test_a_round_that_is_given_up_is_told_by_its_name(compile_text):
    program, settings = compile_text(BY_ROUND), {"agg": {"remembered_rounds": 2}}
    node = install(PeerId.from_name("server"), (), program, ["Server"], seed=1, components=settings)
    found = []
    for number in (1, 2, 3, 4):
        node.invoke("Server", {"x": f32(1), "p": (A,) if number == 1 else (B,), "r": np.int64(number)})
        found += node.poll(number)
        if number > 1:
            node.invoke("Server", {"done": np.int64(number)})
            found += node.poll(number)
    assert not of(steps.OpFailed, found)
    (lost,) = of(steps.ContributionsGivenUp, found)
    assert (lost.contributions, lost.peers) == (1, (A,)) and "round 1 was never aggregated" in lost.why


def test_that_the_first_contribution_decides_the_layout_is_told_once(server):
    found = []
    for peer, values in ((A, (1, 2)), (B, (3, 4)), (B, (5, 6))):
        server.invoke("Server", {"x": f32(*values), "w": np.float32(1), "p": (peer,)})
        found += server.poll(1)
    (told,) = of(steps.LayoutUndeclared, found)
    assert (told.peer, told.target, told.slot, told.shape) == (A, "Server", "agg", (2,))
    assert "sent=" in told.remedy


def test_a_declared_layout_is_not_told(compile_text):
    text = stamped("[2]")
    node = install(PeerId.from_name("server"), (), compile_text(text), ["Server"], seed=1)
    node.invoke("Server", {"x": f32(1, 2), "w": np.float32(1), "p": (A,)})
    assert not of(steps.LayoutUndeclared, node.poll(1)) and not contribute(node, (B,), 1, 2)


def test_memory_for_contributions_of_a_known_size_is_taken_at_the_start(compile_text):
    size = 1_000_000
    found = []
    for shape in (f"[{size}]", "[?]"):
        artifact = compile_text(stamped(shape))
        tracemalloc.start()
        try:
            node = install(PeerId.from_name("server"), (), artifact, ["Server"], seed=1)
            found.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        node.poll(0)
    assert 12 * size < found[0] - found[1] < 13 * size, "a sum of 8 bytes per number, and a mean of 4"


def test_a_device_without_memory_for_the_contributions_refuses_the_program(compile_text):
    artifact = compile_text(stamped("[1000000000,1000000000]"))
    with pytest.raises(BBError, match="no memory to join contributions of 1,000,000,000,000,000,000 numbers"):
        install(PeerId.from_name("server"), (), artifact, ["Server"], seed=1)


class Careless(FedAvg):
    """Cannot take its memory."""

    TYPE_NAME = "test.Careless"

    def reserve(self, size: int) -> None:
        raise KeyError(size)


def test_a_component_that_fails_when_it_takes_its_memory_is_named(compile_text):
    text = stamped("[7]").replace("bb.FedAvg", Careless.TYPE_NAME)
    registry = Registry()
    registry.register(Careless)
    with pytest.raises(BBError, match=r"test\.Careless\.reserve fails: KeyError: 7"):
        install(PeerId.from_name("server"), (), compile_text(text), ["Server"], registry=registry, seed=1)
