"""What a receiver is told of bundles that come to it: their layout, followed to the ops that made them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bb_edge.ir import keys
from bb_edge.ir.stamped_parts import StampedPart, read_parts
from bb_host import Compiler, Graph, Module, PeerSelectorSlot
from bb_host.errors import CompileError

F32, COMPOSITE = 0x101, 0x302
OTHERS = PeerSelectorSlot("others", "bb.PresenceSelector", {}, peer_class="Other")


def arriving(bundle: Callable[[Graph, Any], Any]) -> tuple[StampedPart, ...] | None:
    """The layout that is stamped for a receiver of what `bundle(g, t)` gives; `t` is a trigger."""

    class Sender(Module):
        name = home = "Me"

        def body(self, g: Graph) -> None:
            t = g.pulse()
            with g.at("Me"):
                value = bundle(g, t)
            g.app_emit("got", g.net_out("p", OTHERS.current_view(g, after=t), value))

    model = Compiler().compile(Sender())
    stamps = [
        p.value for f in model.functions for n in f.node for p in n.metadata_props if p.key == keys.PARTS_KEY
    ]
    return read_parts(stamps[0])[0] if stamps else None


def pair(g: Graph, *sizes: int) -> Any:
    return g.bundle([g.constant([0.0] * size, "F32") for size in sizes])


FOLLOWED: dict[str, Callable[[Graph, Any], Any]] = {
    "as it is": lambda g, t: pair(g, 2, 3),
    "passed": lambda g, t: g.pass_through(pair(g, 2, 3)),
    "tee": lambda g, t: g.tee(pair(g, 2, 3), 2)[1],
    "gate": lambda g, t: g.gate(pair(g, 2, 3), t),
    "unbundled": lambda g, t: g.unbundle(g.bundle([t, pair(g, 2, 3)]))[1],
    "any of two alike": lambda g, t: g.any(pair(g, 2, 3), g.pass_through(pair(g, 2, 3))),
}


@pytest.mark.parametrize("way", FOLLOWED)
def test_a_bundle_is_followed_through_what_hands_it_on(way: str) -> None:
    assert arriving(FOLLOWED[way]) == ((F32, (2,), None), (F32, (3,), None))


def test_of_two_bundles_of_which_one_comes_holds_what_both_have() -> None:
    assert arriving(lambda g, t: g.any(pair(g, 2, 3), pair(g, 2, 4))) == (
        (F32, (2,), None),
        (F32, (-1,), None),
    )
    assert arriving(lambda g, t: g.any(pair(g, 2), g.bundle([t]))) == ((0, None, None),)
    nested = arriving(lambda g, t: g.any(g.bundle([pair(g, 2, 3)]), g.bundle([pair(g, 5, 3)])))
    assert nested == ((COMPOSITE, None, ((F32, (-1,), None), (F32, (3,), None))),)


def test_of_two_bundles_with_other_numbers_of_parts_nothing_is_said() -> None:
    assert arriving(lambda g, t: g.any(pair(g, 2), pair(g, 2, 3))) is None


@pytest.mark.parametrize(
    "through",
    [
        lambda g, b: g.onnx.identity(b),
        lambda g, b: g.onnx.if_(g.constant([1.0]).equal(2.0), lambda _: b, lambda _: b),
        lambda g, b: g.onnx.loop(2, None, b, body=lambda g, i, go, carried: (go, carried)),
        lambda g, b: g.loop(2, carry=b),
        lambda g, b: g.onnx.where(g.constant([1.0]).equal(2.0), b, b),
    ],
    ids=["Identity", "If", "Loop", "loop", "Where"],
)
def test_what_computes_with_tensors_takes_no_bundle(through: Callable[[Graph, Any], Any]) -> None:
    """So nothing that is sent comes out of it as a bundle that nobody could follow."""
    with pytest.raises(CompileError, match=r"(Tensor, got|single values, not) .*Composite"):
        arriving(lambda g, t: through(g, pair(g, 2, 3)))
