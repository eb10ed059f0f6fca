"""Syscalls over constants alone: each runs once per invoke, with the only entry, or in its bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from bb_edge import NodeConfig, PeerId, install, open_model
from bb_edge.engine import steps
from bb_edge.engine.entries.bootstrap import BootstrapAll
from bb_edge.inference import InferenceError
from bb_edge.ir.values import TRIGGER
from bb_host import MS, Graph, Module, S
from bb_host.build import compile_edge
from tests.aids.refusals import quiet, refused

Body = Callable[[Graph], Any]
X = np.array([1, -2, 3], np.float32)


def node_of(source: Any, portable: bool = False) -> Any:
    build = compile_edge(source)
    (artifact,) = build.artifacts
    data = build.data if portable else artifact.data
    return install(PeerId.from_name("n"), (), data, [artifact.target], NodeConfig(), seed=1)


def topics(node: Any, *invokes: Mapping[str, Any]) -> list[str]:
    """What the host hears in 10 ms, in order; each invoke gets a poll of its own."""
    heard = []
    for now in range(10):
        if now < len(invokes):
            node.invoke(node.targets[0], invokes[now])
        for step in node.poll(now * MS):
            assert not isinstance(step, steps.OpFailed | steps.ExecutionStarved), step
            if isinstance(step, steps.AppEvent):
                heard.append(step.topic)
    return heard


def says(g: Graph) -> None:
    g.app_emit("c", g.constant(5.0))


def notes(g: Graph) -> None:
    g.app_notify("c", g.constant(5.0))


def counts_to_one(g: Graph) -> None:
    g.app_notify("c", g.threshold(1, g.constant(5.0)))


def counts_to_two(g: Graph) -> None:
    g.app_notify("c", g.threshold(2, g.constant(5.0), g.constant(6.0)))


def goes_on(g: Graph) -> None:
    done = g.app_emit("c", g.constant(5.0))
    g.record("after", g.constant(1), after=done)


EFFECTS = pytest.mark.parametrize("effect", [says, notes, counts_to_one, counts_to_two, goes_on])


@EFFECTS
@pytest.mark.parametrize("portable", [False, True])
def test_alone_it_runs_with_each_invoke(effect: Body, portable: bool, module: Callable[..., Module]) -> None:
    assert topics(node_of(module(effect), portable), {}, {}) == ["c", "c"]


@EFFECTS
def test_beside_an_input_it_runs_with_each_invoke(effect: Body, module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        g.output("y", g.input("x", "F32", (3,)) * 2.0)
        effect(g)

    quiet(module(body))
    assert sorted(topics(node_of(module(body)), {"x": X}, {"x": X})) == ["c", "c", "y", "y"]


@EFFECTS
def test_with_the_only_entry_it_runs_at_each_firing(effect: Body, module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        g.app_notify("tick", g.interval(4 * MS))
        effect(g)

    quiet(module(body))
    heard = topics(node_of(module(body)))
    assert heard.count("c") == heard.count("tick") == 2


@EFFECTS
def test_what_the_host_starts_runs_with_invokes_alone(effect: Body, module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        g.app_notify("pulse", g.pulse())
        with g.on_invoke():
            effect(g)

    quiet(module(body))
    assert topics(node_of(module(body))) == ["pulse"]
    assert sorted(topics(node_of(module(body)), {}, {})) == ["c", "c", "pulse"]


def test_a_counter_and_a_record_of_constants(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        g.incr_metric("calls", g.constant(1))
        g.record("ring", g.constant(2.5))

    node = node_of(module(body))
    topics(node, {}, {})
    assert node.counters["calls"] == 2
    assert [float(v) for v in node.ring("ring")] == [2.5, 2.5]


def test_what_is_kept_of_a_constant(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        g.hold_stash("kept", g.constant(7.0))
        g.output("y", g.hold_flush("kept", g.input("go", "Trigger")))

    node = node_of(module(body))
    assert topics(node, {}, {"go": TRIGGER}) == ["y"]


def test_in_a_called_module_it_runs_with_the_call(module: Callable[..., Module]) -> None:
    def inner(g: Graph) -> None:
        says(g)
        g.output("z", g.input("a", "F32", (3,)) + 1.0)

    def body(g: Graph) -> None:
        g.output("y", g.call(module(inner, name="Inner"), a=g.input("x", "F32", (3,)))["z"])

    assert sorted(topics(node_of(module(body)), {"x": X})) == ["c", "y"]


def test_after_names_the_one_of_several_entries(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        pulse = g.pulse()
        g.app_notify("p", pulse)
        g.app_notify("t", g.interval(S))
        g.app_emit("c", g.constant(5.0), after=pulse)

    quiet(module(body))
    assert sorted(topics(node_of(module(body)))) == ["c", "p"]


@EFFECTS
def test_in_a_bootstrap_it_runs_with_the_bootstrap(effect: Body, module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        g.output("y", g.input("x", "F32", (3,)) * 2.0)

    node = node_of(module(body, bootstrap=effect))
    node.run_bootstrap(BootstrapAll())
    assert topics(node) == ["c"]
    assert open_model(compile_edge(module(body, bootstrap=effect)).artifacts[0].data)(X).tolist() == [
        2,
        -4,
        6,
    ]


def test_a_bootstrap_of_a_source_is_over_when_a_model_is_opened(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        g.output("y", g.input("x", "F32", (3,)) * 2.0)

    def boot(g: Graph) -> None:
        g.app_emit("b", g.own_peer())

    model = open_model(compile_edge(module(body, bootstrap=boot)).artifacts[0].data)
    assert model(X).tolist() == [2, -4, 6]


def test_a_bootstrap_that_waits_for_an_input_names_it(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        g.output("y", g.input("x", "F32", (3,)) * 2.0)

    def boot(g: Graph) -> None:
        g.app_emit("b", g.input("p", "F32", (3,)))

    with refused(InferenceError, "'p'", marked=False):
        open_model(compile_edge(module(body, bootstrap=boot)).artifacts[0].data)
