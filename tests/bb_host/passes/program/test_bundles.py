"""What a receiver is told of bundles that come to it: their layout, followed to the ops that made them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bb_edge.ir import keys, types
from bb_edge.ir.stamped_parts import StampedPart, read_parts
from bb_edge.ir.values import TRIGGER, Composite
from bb_edge.wire.codecs import encode_value
from bb_host import Compiler, Graph, Module, PeerSelectorSlot
from bb_host.errors import CompileError

F32, COMPOSITE, TRIGGER_HASH = 0x101, 0x302, types.TRIGGER.wire_hash
OTHERS = PeerSelectorSlot("others", "bb.PresenceSelector", {}, peer_class="Other")


def stamped(key: str, bundle: Callable[[Graph, Any], Any]) -> list[str]:
    """What is stamped of what `bundle(g, t)` gives under a key; `t` is a trigger."""

    class Sender(Module):
        name = home = "Me"

        def body(self, g: Graph) -> None:
            t = g.pulse()
            with g.at("Me"):
                value = bundle(g, t)
            g.app_emit("got", g.net_out("p", OTHERS.current_view(g, after=t), value))

    model = Compiler().compile(Sender())
    return [p.value for f in model.functions for n in f.node for p in n.metadata_props if p.key == key]


def arriving(bundle: Callable[[Graph, Any], Any]) -> tuple[StampedPart, ...] | None:
    """The layout that is stamped for a receiver."""
    stamps = stamped(keys.PARTS_KEY, bundle)
    return read_parts(stamps[0])[0] if stamps else None


def planned(bundle: Callable[[Graph, Any], Any]) -> int:
    """The largest size on the wire, 0 where it is open; both sides say the same."""
    (size,) = {int(text) for text in stamped(keys.WIRE_MAX_BYTES_KEY, bundle)}
    return size


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


def flags(children: int) -> Composite:
    return Composite(((TRIGGER_HASH, TRIGGER),) * children)


SIZED: dict[str, tuple[Callable[[Graph, Any], Any], Composite]] = {
    "few numbers": (lambda g, t: pair(g, 3), Composite(((F32, np.zeros(3, np.float32)),))),
    "many": (lambda g, t: pair(g, 70_000), Composite(((F32, np.zeros(70_000, np.float32)),))),
    "triggers": (lambda g, t: g.bundle([t] * 40), flags(40)),
    "nested": (lambda g, t: g.bundle([g.bundle([t] * 3)]), Composite(((COMPOSITE, flags(3)),))),
}


@pytest.mark.parametrize("kind", SIZED)
def test_a_bundle_of_which_all_is_known_has_a_largest_size(kind: str) -> None:
    bundle, value = SIZED[kind]
    length = len(encode_value(value)[1])
    assert length <= planned(bundle) <= length + 1024 + 16 * 41


@pytest.mark.parametrize(
    "bundle",
    [
        lambda g, t: g.bundle([t, g.own_addresses(after=t)]),
        lambda g, t: g.bundle([g.bundle([g.onnx.non_zero(g.constant([1.0, 0.0]))])]),
        lambda g, t: g.any(pair(g, 2), pair(g, 3)),
    ],
    ids=["addresses", "data decides", "any of two"],
)
def test_the_size_of_a_bundle_is_open_where_that_of_a_part_is(bundle: Callable[[Graph, Any], Any]) -> None:
    assert planned(bundle) == 0


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
