"""What bundles hold: what the host writes, and what the device takes for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.ir.stamped_parts import misfits, read_parts, write_parts
from bb_edge.roles import Composite
from bb_edge.wire.codecs import wire_type_hash

SHAPES = st.none() | st.lists(st.integers(-1, 2**40), max_size=4).map(tuple)
LEAVES = st.tuples(st.integers(0, 2**64 - 1), SHAPES, st.none())
PARTS = st.recursive(
    st.lists(LEAVES, min_size=1, max_size=4).map(tuple),
    lambda inner: st.lists(LEAVES | st.tuples(st.just(0x302), st.none(), inner), min_size=1, max_size=3).map(
        tuple
    ),
    max_leaves=6,
)


@given(st.lists(st.none() | PARTS, min_size=1, max_size=4))
def test_what_is_written_is_read(payloads: list[Any]) -> None:
    known = tuple(payloads) if any(payloads) else ()
    assert read_parts(write_parts(payloads)) == known


UNREADABLE = "( () (101 (101[2] 101[2] (101[2])(101) (101;) ; -; (x) (101[2,]) (-) (101[2](101)) -101 (101))"


@pytest.mark.parametrize("text", [*UNREADABLE.split(), "(101 )", "(" + "302(" * 40 + "101" + ")" * 41])
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a shape|says of no bundle"):
        read_parts(text)


def bundle(*parts: Any) -> Composite:
    return Composite(tuple((wire_type_hash(part), part) for part in parts))


def f32(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


(STAMP,) = read_parts("(101[2];101[?,3];0;302(101[];7))")
GOOD = (f32(2), f32(9, 3), b"any")
WRONG: dict[str, tuple[Composite, str]] = {
    "fewer": (bundle(f32(2)), "1 parts, 4 are expected"),
    "longer": (bundle(f32(3), *GOOD[1:], bundle(f32(), 1)), "[3] in part 0, [2] is expected"),
    "a rank": (bundle(f32(2), f32(3), b"", bundle(f32(), 1)), "[3] in part 1, [?,3] is expected"),
    "a type": (bundle(np.zeros(2), *GOOD[1:], b""), "type hash 0x102 in part 0, 0x101 is expected"),
    "within": (bundle(*GOOD, bundle(f32(1), 1)), "[1] in part 0, [] is expected, within part 3"),
    "no bundle": (bundle(*GOOD, b""), "type hash 0xb in part 3, 0x302 is expected"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_named(what: str) -> None:
    value, text = WRONG[what]
    assert STAMP is not None
    assert misfits(value, STAMP) == (text, text.startswith("type"))


def test_what_fits_and_empty_vectors_are_taken() -> None:
    (parts,) = read_parts("(101[2];101[?,3];0;302(101[];0))")
    assert parts is not None
    assert misfits(bundle(*GOOD, bundle(f32(), 1)), parts) is None
    assert misfits(bundle(f32(0), f32(0), 7, bundle(f32(), b"")), parts) is None
    number = misfits(bundle(*GOOD, bundle(f32(0), 1)), parts)
    assert number == ("[0] in part 0, [] is expected, within part 3", False)
