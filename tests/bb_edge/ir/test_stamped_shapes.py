"""Shapes on ops: what the host writes, and what the device takes for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.ir.stamped_shapes import fits, read_shapes, write_shapes

SHAPES = st.none() | st.lists(st.integers(0, 2**40) | st.just("n") | st.none(), max_size=5)


@given(st.lists(SHAPES, min_size=1, max_size=4))
def test_what_is_written_is_read(shapes: list[list[object] | None]) -> None:
    known = tuple(
        None if shape is None else tuple(size if isinstance(size, int) else -1 for size in shape)
        for shape in shapes
    )
    wanted = known if any(shape is not None for shape in known) else ()
    assert read_shapes(write_shapes(shapes)) == wanted


@given(st.lists(st.integers(0, 9), max_size=4), st.data())
def test_a_shape_fits_itself_and_its_open_forms(shape: list[int], data: st.DataObject) -> None:
    stamped = tuple(-1 if data.draw(st.booleans()) else size for size in shape)
    assert fits(tuple(shape), stamped)
    assert not fits((*shape, 1), stamped)
    for place, size in enumerate(stamped):
        other = list(shape)
        other[place] += 1
        assert fits(tuple(other), stamped) == (size < 0)


@pytest.mark.parametrize("text", ["[", "2410", "[2,]", "[-1]", "[a]", ";", "[2];", "[2] ", "**", "[²]"])
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a shape"):
        read_shapes(text)
