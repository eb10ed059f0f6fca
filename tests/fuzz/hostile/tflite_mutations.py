"""Mutations that know flatbuffers: a number of four bytes changed where it lies, vectors, slots, options."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

from . import mutations

WORDS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 127, 255, 1 << 16, 1 << 24, 2**31 - 1, -1, -2, -3, -4, -128, -(2**31))
FLOATS = (0.0, -1.0, 1e-38, 1e38, float("inf"), float("nan"), 0.5, 3.0)


def words(data: bytes, seeds: Sequence[bytes], rng: Random) -> bytes:
    """One to three numbers of four bytes, at places that such numbers have."""
    out = bytearray(data)
    if len(out) < 8:
        return mutations.blind(data, seeds, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = 4 * int(rng.random() * (len(out) // 4))
        (old,) = struct.unpack_from("<i", out, at)
        kind = int(rng.random() * 8)
        if kind < 3:
            struct.pack_into("<i", out, at, rng.choice(WORDS))
        elif kind < 5:
            changed = old + rng.choice((-4, -2, -1, 1, 2, 4, 8))
            struct.pack_into("<i", out, at, max(-(1 << 31), min(changed, (1 << 31) - 1)))
        elif kind == 5:
            other = 4 * int(rng.random() * (len(out) // 4 - 1))
            out[at : at + 4] = out[other : other + 4]
        elif kind == 6:
            struct.pack_into("<f", out, at, rng.choice(FLOATS))
        else:
            out[at + int(rng.random() * 4)] = rng.choice((0, 1, 2, 3, 4, 6, 9, 17, 127, 255))
    return bytes(out)


def small(data: bytes, seeds: Sequence[bytes], rng: Random) -> bytes:
    """Numbers that are small already, as indices, dims, axes and strides are, become other small ones."""
    out = bytearray(data)
    if len(out) < 8:
        return mutations.blind(data, seeds, rng)
    places = [at for at in range(0, len(out) - 3, 4) if -8 <= struct.unpack_from("<i", out, at)[0] <= 64]
    for _ in range(rng.choice((1, 1, 2, 3)) if places else 0):
        struct.pack_into("<i", out, rng.choice(places), rng.choice((*range(-3, 12), 64, 1000, 1 << 30)))
    return bytes(out)


def scales(data: bytes, seeds: Sequence[bytes], rng: Random) -> bytes:
    """Numbers that may be scales become very small or large ones, or the scale of something else."""
    out = bytearray(data)
    found = {at: struct.unpack_from("<f", out, at)[0] for at in range(0, len(out) - 3, 4)}
    places = [at for at, number in found.items() if 1e-7 < number < 10]
    for _ in range(rng.choice((1, 2, 3)) if places else 0):
        number = rng.choice((10 ** rng.uniform(-29, 29), 10 ** rng.uniform(-5, 5), found[rng.choice(places)]))
        struct.pack_into("<f", out, rng.choice(places), number)
    return bytes(out)


def forged(data: bytes, seeds: Sequence[bytes], rng: Random) -> bytes:
    change = rng.choice((words, words, small, small, scales, mutations.blind))
    return change(data, seeds, rng)
