"""Limits that wait for themselves, and selectors of classes that the program does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bb_host import Compiler, Graph, Module, PeerSelectorSlot, S
from bb_host.errors import MalformedOp
from tests.aids.refusals import quiet, refused, warned

Body = Callable[[Graph], Any]


# --- limits -----------------------------------------------------------------------------------------------


def one_behind_the_other(g: Graph) -> None:
    first = g.limit_acquire("x", g.pulse(), 1)
    g.app_notify("both", g.limit_acquire("x", first, 1))  # <-


def ordered_by_after(g: Graph) -> None:
    go = g.input("go", "Trigger")
    first = g.limit_acquire("x", go, 1)
    g.app_notify("both", g.limit_acquire("x", go, 1, after=first))  # <-


def three_of_two(g: Graph) -> None:
    first = g.limit_acquire("x", g.pulse(), 2)
    second = g.limit_acquire("x", g.pass_through(first), 2)
    g.app_notify("all", g.limit_acquire("x", second, 2))  # <-


def released_too_late(g: Graph) -> None:
    first = g.limit_acquire("x", g.pulse(), 1)
    second = g.limit_acquire("x", first, 1)  # <-
    g.limit_release("x", second)


def both_ways_hold_it(g: Graph) -> None:
    first = g.limit_acquire("x", g.pulse(), 1)
    either = g.any(g.after(first, 1 * S), g.after(first, 2 * S))
    g.app_notify("both", g.limit_acquire("x", either, 1))  # <-


@pytest.mark.parametrize(
    "body", [one_behind_the_other, ordered_by_after, released_too_late, both_ways_hold_it]
)
def test_a_limit_that_waits_for_itself_is_refused(module: Any, body: Body) -> None:
    with refused(MalformedOp, "limit 'x' (1 permit)", "for ever", "g.limit_release"):
        Compiler().compile(module(body))


def test_all_permits_count(module: Any) -> None:
    with refused(MalformedOp, "limit 'x' (2 permits)"):
        Compiler().compile(module(three_of_two))


class Guard(Module):
    """Takes a permit and gives it back at the execution's end."""

    def body(self, g: Graph) -> None:
        g.output("taken", g.limit_acquire("x", g.input("go", "Trigger"), 1))


def test_calls_of_a_module_that_acquires_are_seen(module: Any) -> None:
    def body(g: Graph) -> None:
        first = g.call(Guard(), "a", go=g.pulse()).output("taken")
        g.app_notify("both", g.call(Guard(), "b", go=first).output("taken"))  # <-

    with refused(MalformedOp, "limit 'x' (1 permit)"):
        Compiler().compile(module(body))


def two_of_two(g: Graph) -> None:
    first = g.limit_acquire("x", g.pulse(), 2)
    g.app_notify("both", g.limit_acquire("x", first, 2))  # <-


def test_a_limit_within_itself_is_warned_of(module: Any) -> None:
    warned("nested-limit", "limit 'x' (2 permits)", "wait for each other", program=module(two_of_two))


def released_between(g: Graph) -> None:
    first = g.limit_acquire("x", g.pulse(), 1)
    done = g.limit_release("x", first)
    g.app_notify("both", g.limit_acquire("x", first, 1, after=done))


def released_beside(g: Graph) -> None:
    first = g.limit_acquire("x", g.pulse(), 1)
    g.app_notify("both", g.limit_acquire("x", first, 1))
    g.limit_release("x", g.after(first, 1 * S))


def side_by_side(g: Graph) -> None:
    go = g.pulse()
    g.app_notify("a", g.limit_acquire("x", go, 1))
    g.app_notify("b", g.limit_acquire("y", go, 1))


def of_two_names(g: Graph) -> None:
    first = g.limit_acquire("x", g.pulse(), 1)
    g.app_notify("both", g.limit_acquire("y", first, 1))


def perhaps_without(g: Graph) -> None:
    go = g.pulse()
    first = g.limit_acquire("x", go, 1)
    g.app_notify("both", g.limit_acquire("x", g.any(first, g.after(go, 1 * S)), 1))


@pytest.mark.parametrize(
    "body", [released_between, released_beside, side_by_side, of_two_names, perhaps_without]
)
def test_limits_that_are_granted_are_left_alone(module: Any, body: Body) -> None:
    quiet(module(body))


# --- classes ----------------------------------------------------------------------------------------------


class Sees(Module):
    """A server that shows who is there."""

    home = "Server"
    peers: PeerSelectorSlot

    def body(self, g: Graph) -> None:
        with g.at("Client"):
            g.app_notify("up", g.pulse())
        g.app_emit("there", self.peers.current_view(g, after=g.pulse()))


def test_a_misspelt_class_of_peers_is_warned_of() -> None:
    class Misspelt(Sees):
        peers = PeerSelectorSlot("peers", "bb.PresenceSelector", peer_class="Clinet", at="Server")  # <-

    warned("unknown-class", "'Clinet'", "did you mean 'Client'?", program=Misspelt())


@pytest.mark.parametrize("peer_class", ["Client", "Server", "Gateway"])
def test_classes_of_the_program_and_of_others_are_left_alone(peer_class: str) -> None:
    class Right(Sees):
        peers = PeerSelectorSlot("peers", "bb.PresenceSelector", peer_class=peer_class, at="Server")

    quiet(Right())
