"""What bundles hold, as the host stamps it on ops that receive, and as the device holds bundles against it.

A stamp has one text per payload, joined by `;`. ``-`` is a payload of which nothing is known, or no bundle.
Of a bundle each part is the wire hash of its type in hex (0: any), and behind it the shape of a tensor or
the parts of a bundle within: ``(101[2410];101[?,64];a;302(101[]))``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bb_edge.ir.stamped_shapes import StampedShape, fits, read_shape, shape_text
from bb_edge.ir.values import Composite

__all__ = ["StampedPart", "misfits", "read_parts", "write_parts"]

StampedPart = tuple[int, "StampedShape | None", "tuple[StampedPart, ...] | None"]
"""Wire hash of the type, 0 for any; shape of a tensor; parts of a bundle. None where that is not known."""

_DEEPEST = 8
"""Bundles in bundles that a stamp may have; fewer than that travel."""
_TOKEN = re.compile(r"\(|\)|;|-|[0-9a-f]+|\[[0-9?,]*\]")


def write_parts(payloads: Iterable[Sequence[StampedPart] | None]) -> str:
    """Returns the stamp of these payloads, None for those that are not bundles; empty if nothing is known."""
    texts = ["-" if parts is None else _text(parts) for parts in payloads]
    return ";".join(texts) if any(text != "-" for text in texts) else ""


def _text(parts: Sequence[StampedPart]) -> str:
    texts = []
    for type_hash, shape, inner in parts:
        behind = _text(inner) if inner is not None else shape_text(shape) if shape is not None else ""
        texts.append(f"{type_hash:x}{behind}")
    return f"({';'.join(texts)})"


def read_parts(stamp: str) -> tuple[tuple[StampedPart, ...] | None, ...]:
    """Returns what `write_parts` wrote. ValueError for any other text."""
    if not stamp:
        return ()
    tokens = _TOKEN.findall(stamp)
    if "".join(tokens) != stamp:
        raise _unreadable(stamp)
    rest = iter([*tokens, ""])
    payloads: list[tuple[StampedPart, ...] | None] = []
    while True:
        token = next(rest)
        if token not in ("-", "("):
            raise _unreadable(stamp)
        payloads.append(None if token == "-" else _read(rest, stamp, _DEEPEST))
        token = next(rest)
        if not token:
            return tuple(payloads)
        if token != ";":
            raise _unreadable(stamp)


def _read(rest: Iterator[str], stamp: str, depth: int) -> tuple[StampedPart, ...]:
    """The parts of a bundle, behind its `(`."""
    parts: list[StampedPart] = []
    while True:
        token = next(rest)
        if not depth or not token.isalnum():
            raise _unreadable(stamp)
        type_hash = int(token, 16)
        shape, inner = None, None
        token = next(rest)
        if token[:1] == "[":
            shape, token = read_shape(token), next(rest)
        elif token == "(":
            inner, token = _read(rest, stamp, depth - 1), next(rest)
        parts.append((type_hash, shape, inner))
        if token == ")":
            return tuple(parts)
        if token != ";":
            raise _unreadable(stamp)


def _unreadable(stamp: str) -> ValueError:
    return ValueError(f"{stamp!r} says of no bundle what it holds")


def misfits(bundle: Composite, parts: tuple[StampedPart, ...]) -> tuple[str, bool] | None:
    """Returns what of a bundle is not as stamped, and whether that is a type (else a shape or a number).

    None where all fits. An empty vector stands for nothing, whatever the shape, as where it travels alone.
    """
    children = bundle.children
    if len(children) != len(parts):
        return f"{len(children)} parts, {len(parts)} are expected", False
    for index, ((type_hash, value), (wanted, shape, inner)) in enumerate(zip(children, parts, strict=True)):
        if wanted and type_hash != wanted:
            return f"type hash {type_hash:#x} in part {index}, {wanted:#x} is expected", True
        if shape is not None and isinstance(value, np.ndarray):
            came = value.shape
            if not fits(came, shape) and not (came == (0,) and shape):
                return f"{shape_text(came)} in part {index}, {shape_text(shape)} is expected", False
        elif inner is not None and isinstance(value, Composite):
            misfit = misfits(value, inner)
            if misfit is not None:
                return f"{misfit[0]}, within part {index}", misfit[1]
    return None
