"""What a broker's refusals are called."""

from __future__ import annotations

import pytest

from bb_edge.transport.lost import refusal


@pytest.mark.parametrize(
    ("reason", "stranger", "words"),
    [
        (0x87, "", "not authorized (0x87); is this peer in this class in the list of bb-host acl?"),
        (0x87, "it is known as x", "not authorized (0x87); it is known as x"),
        (0x97, "", "quota exceeded (0x97)"),
        (0xFE, "", "for a reason of its own (0xfe)"),
    ],
)
def test_a_refused_publish_is_told_in_words(reason: int, stranger: str, words: str) -> None:
    assert refusal(reason, stranger) == words
