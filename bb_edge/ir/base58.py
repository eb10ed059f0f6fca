"""base58btc, the text form of peer ids."""

from __future__ import annotations

from bb_edge.ir.errors import BBError

ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUES = {character: value for value, character in enumerate(ALPHABET)}

MAX_TEXT = 128
"""Longest text that is decoded: a peer id of 64 digest bytes has 119 at most, and the work is quadratic."""


class Base58Error(BBError):
    """Not base58btc, or longer than any peer id."""


def encode(data: bytes) -> str:
    """Returns the text of some bytes; each leading zero byte becomes a leading `1`."""
    zeros = len(data) - len(data.lstrip(b"\0"))
    number = int.from_bytes(data, "big")
    digits = []
    while number:
        number, digit = divmod(number, 58)
        digits.append(ALPHABET[digit])
    return ALPHABET[0] * zeros + "".join(reversed(digits))


def decode(text: str) -> bytes:
    """Returns the bytes of a text. Base58Error for other characters and for texts above `MAX_TEXT`."""
    if len(text) > MAX_TEXT:
        raise Base58Error(f"{len(text)} characters, {MAX_TEXT} at most", "base58 text")
    number = 0
    for position, character in enumerate(text):
        value = _VALUES.get(character)
        if value is None:
            raise Base58Error(f"{character!r} at position {position}", "base58 text", "no 0, O, I, l in it")
        number = number * 58 + value
    zeros = len(text) - len(text.lstrip(ALPHABET[0]))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")
