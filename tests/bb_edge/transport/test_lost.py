"""What a broker's refusals are called."""

from __future__ import annotations

import pytest

from bb_edge.transport.lost import refusal

IN_CHUNKS = "set broker.max_packet_bytes to what the broker takes, and it goes in chunks"


@pytest.mark.parametrize(
    ("reason", "stranger", "words"),
    [
        (
            *(0x87, ""),
            (
                "not authorized (0x87); is this peer in this class in the list of bb-host acl, and federation"
                " (in the topic) the name that its rules are for?"
            ),
        ),
        (0x87, "it is known as x", "not authorized (0x87); it is known as x"),
        (0x97, "", "quota exceeded (0x97)"),
        (
            *(0x95, ""),  # of mosquitto's `message_size_limit`, though no standard lists it for a PUBACK
            f"packet too large (0x95); {IN_CHUNKS}",
        ),
        (0x82, "", "for a reason of its own (0x82)"),
        (0xFE, "", "for a reason of its own (0xfe)"),
    ],
)
def test_a_refused_publish_is_told_in_words(reason: int, stranger: str, words: str) -> None:
    assert refusal(reason, stranger) == words
