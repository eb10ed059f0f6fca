"""Shapes as the host stamps them on ops, and as the device holds values against them.

A stamp has one shape per value, joined by `;`: ``[2410]``, ``[?,64]`` with sizes that are not known, ``[]``
for one number, and ``*`` where not even the number of dimensions is known. In memory an unknown size is -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["StampedShape", "fits", "read_shape", "read_shapes", "shape_text", "write_shapes"]

StampedShape = tuple[int, ...]


def write_shapes(shapes: Iterable[Sequence[object] | None]) -> str:
    """Returns the stamp of these shapes, empty where nothing is known; sizes that are not ints are open."""
    texts = ["*" if shape is None else shape_text(shape) for shape in shapes]
    return ";".join(texts) if any(text != "*" for text in texts) else ""


def shape_text(shape: Sequence[object]) -> str:
    """Returns a shape as people read it: ``[?,64]``."""
    sizes = [str(size) if isinstance(size, int) and size >= 0 else "?" for size in shape]
    return f"[{','.join(sizes)}]"


def read_shapes(stamp: str) -> tuple[StampedShape | None, ...]:
    """Returns what `write_shapes` wrote. ValueError for any other text."""
    return tuple(None if text == "*" else read_shape(text) for text in stamp.split(";")) if stamp else ()


def read_shape(text: str) -> StampedShape:
    """Returns the shape that `shape_text` wrote. ValueError for any other text."""
    if text[:1] != "[" or text[-1:] != "]" or len(text) < 2:
        raise ValueError(f"{text!r} is not a shape")
    sizes = text[1:-1].split(",") if len(text) > 2 else []
    if not all(size == "?" or size.isdecimal() for size in sizes):
        raise ValueError(f"{text!r} is not a shape")
    return tuple(-1 if size == "?" else int(size) for size in sizes)


def fits(shape: tuple[int, ...], stamped: StampedShape) -> bool:
    """Returns whether an array's shape is what was stamped."""
    return shape == stamped or (
        len(shape) == len(stamped)
        and all(size == wanted or wanted < 0 for size, wanted in zip(shape, stamped, strict=True))
    )
