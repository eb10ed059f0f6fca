"""Mutations of bytes: blind ones, and such that know protobuf's fields or CBOR's items.

All take a `random.Random`, so that the n-th input of a seed is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from bb_edge.wire import cbor

EDGES = (
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**63 - 1,
    2**63,
)
NUMBERS = (*EDGES, 2**64 - 1)
LONGEST = 8192
"""Blind mutations do not grow an input beyond its seed by more than this."""

Mutate = Callable[[bytes, Sequence[bytes], Random], bytes]


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def blind(data: bytes, seeds: Sequence[bytes], rng: Random) -> bytes:
    """One to four changes without any knowledge of the format."""
    out = bytearray(data)
    for _ in range(1 + (rng.random() < 0.5) + 2 * (rng.random() < 0.1)):
        _change(out, seeds, rng)
    return bytes(out)


def _change(out: bytearray, seeds: Sequence[bytes], rng: Random) -> None:
    size = len(out)
    kind = int(rng.random() * 8)
    at = int(rng.random() * size) if size else 0
    if not size or kind == 0:
        out[at:at] = rng.randbytes(1 + int(rng.random() * 8))
    elif kind == 1:
        out[at] ^= 1 << int(rng.random() * 8)
    elif kind == 2:
        out[at] = int(rng.random() * 256)
    elif kind == 3:
        del out[at : at + 1 + int(rng.random() * 16)]
    elif kind == 4:
        del out[at:]
    elif kind == 5:
        end = at + 1 + int(rng.random() * 32)
        times = 1 + int(rng.random() * 3) if rng.random() < 0.95 else LONGEST // 32
        out[at:at] = out[at:end] * times
    elif kind == 6:
        other = seeds[int(rng.random() * len(seeds))]
        start = int(rng.random() * len(other)) if other else 0
        out[at : at + int(rng.random() * 16)] = other[start : start + 1 + int(rng.random() * 64)]
    else:
        number = NUMBERS[int(rng.random() * len(NUMBERS))]
        wide = varint(number) if rng.random() < 0.5 else number.to_bytes(8, "big")
        out[at : at + len(wide)] = wide


# ---- protobuf


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return -1, at


def fields(data: bytes) -> list[tuple[int, int, int, int]] | None:
    """(tag, start, start of the body, end) of each field; None where it is not a message."""
    found = []
    at, size = 0, len(data)
    while at < size:
        start = at
        tag, at = _varint_at(data, at)
        if tag < 8:
            return None
        body, kind = at, tag & 7
        if kind == 0:
            value, at = _varint_at(data, at)
            if value < 0:
                return None
        elif kind == 2:
            length, body = _varint_at(data, at)
            at = body + length
            if length < 0:
                return None
        elif kind == 1:
            at += 8
        elif kind == 5:
            at += 4
        else:
            return None
        if at > size:
            return None
        found.append((tag, start, body, at))
    return found


def protobuf(data: bytes, seeds: Sequence[bytes], rng: Random) -> bytes:
    """One change of a field somewhere in a message; the lengths around it are made to fit."""
    found = fields(data)
    if not found:
        return blind(data, seeds, rng)
    index = int(rng.random() * len(found))
    tag, start, body, end = found[index]
    kind = int(rng.random() * 12)
    if tag & 7 == 2 and kind < 7 and end > body:
        changed = protobuf(data[body:end], seeds, rng) if kind < 6 else blind(data[body:end], seeds, rng)
        return data[:start] + varint(tag) + varint(len(changed)) + changed + data[end:]
    if tag & 7 == 0 and kind < 7:
        value = NUMBERS[int(rng.random() * len(NUMBERS))] if kind < 4 else int(rng.random() * 32)
        return data[:start] + varint(tag) + varint(value) + data[end:]
    if kind == 7:
        return data[:start] + data[end:]
    if kind == 8:
        times = 2 if rng.random() < 0.9 else 70
        return data[:start] + data[start:end] * times + data[end:]
    if kind == 9:
        other = found[int(rng.random() * len(found))]
        return data[:start] + data[other[1] : other[3]] + data[end:]
    if kind == 10:
        number = 1 + int(rng.random() * 26) if rng.random() < 0.9 else int(rng.random() * 2**29)
        return data[:start] + varint(number << 3 | tag & 7) + data[body:end] + data[end:]
    donor = seeds[int(rng.random() * len(seeds))]
    theirs = fields(donor)
    if not theirs:
        return blind(data, seeds, rng)
    other = theirs[int(rng.random() * len(theirs))]
    return data[:start] + donor[other[1] : other[3]] + data[start:]


# ---- plain data, as CBOR holds it

WORDS: tuple[Any, ...] = (
    None,
    True,
    False,
    b"",
    "",
    [],
    {},
    0.5,
    float("inf"),
    -1,
    -(2**63),
    *NUMBERS,
    b"\xa5\x03",
    "x",
)


def plain(value: Any, rng: Random) -> Any:
    """A copy of plain data with one item changed, dropped, doubled or swapped for another."""
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = int(rng.random() * len(value))
        kind = int(rng.random() * 12)
        if kind == 0:
            return value[:at] + value[at + 1 :]
        if kind == 1:
            return [*value[:at], value[at], *value[at:]]
        if kind == 2:
            other = int(rng.random() * len(value))
            return [*value[:at], value[other], *value[at + 1 :]]
        return [*value[:at], plain(value[at], rng), *value[at + 1 :]]
    if isinstance(value, dict) and value and rng.random() < 0.95:
        keys = list(value)
        key = keys[int(rng.random() * len(keys))]
        kind = int(rng.random() * 12)
        if kind == 0:
            return {k: v for k, v in value.items() if k != key}
        if kind == 1:
            return {**value, key: value[keys[int(rng.random() * len(keys))]]}
        return {**value, key: plain(value[key], rng)}
    if isinstance(value, bytes) and rng.random() < 0.6:
        return blind(value, (value,), rng)
    if type(value) is int and rng.random() < 0.6:
        changed = (value + 1, value - 1, -value, value * 2)[int(rng.random() * 4)]
        return changed if -(2**63) <= changed < 2**64 else 0
    return WORDS[int(rng.random() * len(WORDS))]


def items(data: bytes, seeds: Sequence[bytes], rng: Random) -> bytes:
    """One item of a CBOR value changed, canonical again."""
    return cbor.dumps(plain(cbor.loads(data, max_items=len(data) + 1, max_depth=32), rng))
