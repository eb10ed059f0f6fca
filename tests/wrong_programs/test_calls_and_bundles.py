"""State of ops in modules called twice, bundles of what stays on a device, lines beside constants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bb_edge import install, load
from bb_edge.engine import steps
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.ir.values import TRIGGER
from bb_host import Compiler, Graph, Module, S
from bb_host.build import build_edge
from bb_host.report.symbolize import SourceMap
from tests.aids.refusals import warned

Body = Callable[[Graph], Any]


def go_of(g: Graph) -> Any:
    return g.input("go", "Trigger")


def steps_of(module: Module, *times: int, inputs: dict[str, Any] | None = None) -> list[Any]:
    """What a device says of the module's stripped artifact, polled at these times, in seconds."""
    (artifact,) = build_edge(module).artifacts
    node = install(PeerId.from_name("n"), (), load(artifact.data), ["Main"], seed=1)
    if inputs is not None:
        node.invoke("Main", inputs)
    return [(time, step) for time in times for step in node.poll(time * S)]


# --- calls ------------------------------------------------------------------------------------------------


class Every(Module):
    """Every second arrival."""

    def body(self, g: Graph) -> None:
        g.output("o", g.threshold(2, g.input("t", "Timestamp")))


class Nested(Module):
    def body(self, g: Graph) -> None:
        g.output("o", g.call(Every(), "inner", t=g.input("t", "Timestamp")).output("o"))


@pytest.mark.parametrize("part", [Every, Nested])
def test_each_call_of_a_module_counts_for_itself(module: Any, part: type[Module]) -> None:
    def body(g: Graph) -> None:
        t = g.interval(1 * S)
        for name in ("a", "b"):
            g.app_notify(name, g.call(part(), name, t=t).output("o"))

    found = [
        (time, step.topic)
        for time, step in steps_of(module(body), 0, 1, 2, 3, 4)
        if isinstance(step, steps.AppEvent)
    ]
    first = next(time for time, _ in found)
    assert found == [(time, topic) for time in (first, first + 2) for topic in ("a", "b")]


class Doubles(Module):
    def body(self, g: Graph) -> None:
        g.output("y", g.input("x", "F32", (2,)) * 2.0)


class Records(Module):
    """Has an effect, and stays a function: it records what it is given."""

    def body(self, g: Graph) -> None:
        g.record("ring", g.onnx.relu(g.input("x", "F32", (2,))))


def test_a_call_that_nothing_reads_is_warned_of_once(module: Any) -> None:
    def body(g: Graph) -> None:
        g.app_notify("pulsed", g.pulse())
        g.call(Doubles(), "c", x=g.constant([1.0, 2.0]))  # <-

    warned("unread-result", "Doubles", program=module(body))


def test_a_call_that_nothing_starts_goes_by_its_module(module: Any) -> None:
    def body(g: Graph) -> None:
        g.app_notify("pulsed", g.pulse())
        g.call(Records(), "c", x=g.constant([1.0, 2.0]))  # <-

    warning = warned("never-started", "Records 'c'", program=module(body))
    assert "Hoist" not in warning.render()


# --- bundles ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("timestamp", lambda g, go: g.clock(go)),
        ("token", lambda g, go: g.correlate_tag(go)),
        ("event", lambda g, go: g.input("event", "EventKind")),
    ],
)
def test_what_stays_on_a_device_is_bundled_there(module: Any, name: str, part: Callable[..., Any]) -> None:
    def body(g: Graph) -> None:
        own = part(g, go_of(g))
        back, number = g.unbundle(g.bundle([own, 1.5]))
        g.app_emit("number", number)
        g.app_emit("same", g.as_tensor(back) - g.as_tensor(own))

    inputs = {"go": TRIGGER, "event": 1000} if name == "event" else {"go": TRIGGER}
    found = [step for _, step in steps_of(module(body), 1, inputs=inputs)]
    assert not [step for step in found if isinstance(step, steps.OpFailed)]
    events = {s.topic: float(np.asarray(s.value)) for s in found if isinstance(s, steps.AppEvent)}
    assert events == {"number": 1.5, "same": 0.0}


def test_a_bundle_is_not_unbundled_as_what_it_does_not_hold(module: Any) -> None:
    def body(g: Graph) -> None:
        g.hold_stash("h", g.bundle([g.clock(go_of(g))]), after=())
        (token,) = g.unbundle(g.input("c", "Composite"), ["CorrelationToken"])
        g.app_emit("y", g.as_tensor(token))

    def make(g: Graph) -> None:
        g.app_emit("c", g.bundle([g.clock(go_of(g))]))

    (composite,) = [
        s.value for _, s in steps_of(module(make), 1, inputs={"go": TRIGGER}) if isinstance(s, steps.AppEvent)
    ]
    found = [step for _, step in steps_of(module(body), 1, inputs={"c": composite})]
    (failed,) = [step for step in found if isinstance(step, steps.OpFailed)]
    assert "not that of CorrelationToken" in str(failed.error)
    assert isinstance(failed.error, BBError)


# --- lines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("constants", [("hello",), ("a", b"b"), (1.0,), (1.0, "a", b"b", 2)])
def test_a_failure_beside_constants_leads_to_its_line(module: Any, constants: tuple[Any, ...]) -> None:
    def body(g: Graph) -> None:
        go = go_of(g)
        for number, value in enumerate(constants):
            g.app_emit(f"c{number}", g.gate(g.constant(value), go))
        me = g.peer_list(g.own_peer(after=go))
        g.app_emit("a", g.peer_at(me, 0))
        g.app_emit("b", g.peer_at(me, 5))  # <-

    (artifact,) = build_edge(module(body), Compiler()).artifacts
    found = steps_of(module(body), 1, inputs={"go": TRIGGER})
    (failed,) = [step for _, step in found if isinstance(step, steps.OpFailed)]
    (source,) = SourceMap(artifact.source_map).find(str(failed.error))
    lines = Path(__file__).read_text().splitlines()
    assert lines[int(source.source.rpartition(":")[2]) - 1].endswith("# <-"), source
