"""Steps are immutable, compared by value, and name their fields, whichever way they are made."""

from __future__ import annotations

import numpy as np
import pytest

from bb_edge.engine import peer_steps, steps
from bb_edge.ir.ids import PeerId

PEER = PeerId.from_name("other")
EVERY = [
    kind
    for kind in vars(steps).values()
    if isinstance(kind, type) and issubclass(kind, steps.EngineStep) and kind is not steps.EngineStep
]
SOME = [
    lambda: steps.AppEvent("Main", 1, "y", 3),
    lambda: steps.ExecutionEnded("Main", 1, False),
    lambda: steps.PeerUp(PEER, ("Server",)),
]


def test_hosts_find_every_step_in_one_module() -> None:
    of_peers = {
        kind.__name__: kind
        for kind in vars(peer_steps).values()
        if isinstance(kind, type) and issubclass(kind, steps.EngineStep)
    }
    assert len(of_peers) > 1 and of_peers.items() <= vars(steps).items()


@pytest.mark.parametrize("make", SOME)
def test_a_step_cannot_be_changed(make) -> None:
    step = make()
    for name in (*step.__match_args__, "another"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(step, name, 7)
    with pytest.raises((AttributeError, TypeError)):
        del step.__match_args__
    assert step == make()


@pytest.mark.parametrize("make", SOME)
def test_steps_are_equal_where_they_say_the_same(make) -> None:
    assert make() == make() and hash(make()) == hash(make()) and repr(make()) == repr(make())
    assert steps.AppEvent("Main", 1, "y", 3) != steps.AppEvent("Main", 1, "y", 4)
    assert steps.ExecutionEnded("Main", 1, False) != steps.ExecutionEnded("Main", 1, True)


@pytest.mark.parametrize("kind", EVERY)
def test_every_step_names_its_fields(kind: type[steps.EngineStep]) -> None:
    assert kind.__match_args__ and all(hasattr(kind, name) for name in kind.__match_args__)
    assert "__dict__" not in dir(kind)


def test_a_copied_event_has_a_value_of_its_own() -> None:
    event = steps.AppEvent("Main", 1, "y", np.ones(2, np.float32))
    copied = event.copy()
    assert isinstance(event.value, np.ndarray) and isinstance(copied.value, np.ndarray)
    event.value[:] = 7
    np.testing.assert_array_equal(copied.value, 1)
    assert copied[:3] == event[:3] and type(copied) is steps.AppEvent
