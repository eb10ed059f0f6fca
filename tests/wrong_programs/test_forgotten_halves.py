"""What does nothing until its other half is written, and names that nothing reads: said at the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bb_host import Graph, Module
from bb_host.errors import ModuleError
from tests.aids.refusals import quiet, refused, warned


class Sub(Module):
    def body(self, g: Graph) -> None:
        g.output("y", g.input("a", "F32", (4,)) * 2.0)


REFUSED: list[tuple[str, Callable[..., Any]]] = [
    ("with g.at('Client'):", lambda g, x: g.at("Client")),  # <-
    ("with g.on_invoke():", lambda g, x: g.on_invoke()),  # <-
    ("with g.with_module('cell'):", lambda g, x: g.with_module("cell")),  # <-
    ("with g.rounds(…) as start:", lambda g, x: g.rounds(3)),  # <-
    (".build(g)", lambda g, x: Sub().call().input("a", x)),  # <-
    (".build(g)", lambda g, x: Sub().bootstrap_call()),  # <-
    (".build(g)", lambda g, x: Sub().call("first").input("a", x)),  # <-
]


@pytest.mark.parametrize(("words", "use"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_a_forgotten_half_is_refused(record: Callable[..., Any], words: str, use: Callable[..., Any]) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", (4,))
        use(g, x)
        g.output("y", x + 1.0)

    with refused(ModuleError, words):
        record(body)


def test_calls_that_are_recorded_have_both_halves(record: Callable[..., Any]) -> None:
    waiting = Sub().call()  # before recording: no program waits for it

    def body(g: Graph) -> None:
        x = g.input("x", "F32", (4,))
        g.output("y", Sub().call().input("a", x).build(g).output("y"))
        with g.on_invoke(), g.with_module("cell"):
            g.output("z", x + 1.0)

    assert record(body).functions
    assert waiting is not None


def test_a_misspelt_hook_is_warned_of() -> None:
    class Starts(Sub):  # <-
        def boostrap(self, g: Graph) -> None:
            g.app_notify("up", g.pulse())

    warned("misspelt-name", "'boostrap'", "did you mean 'bootstrap'?", program=Starts())


def test_a_misspelt_home_is_warned_of() -> None:
    class Placed(Sub):  # <-
        hoem = "Server"

    warned("misspelt-name", "'hoem'", "did you mean 'home'?", program=Placed())


def test_names_of_ones_own_are_not_misspelt() -> None:
    class Own(Sub):
        mode, game, names, label = "train", "chess", ("a", "b"), "digits"

        def half(self, g: Graph) -> None:
            """A part of the body."""

        def bodies(self) -> None:
            """Something else."""

    quiet(Own())
