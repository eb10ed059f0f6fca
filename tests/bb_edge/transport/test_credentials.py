"""What is said of a broker that does not let a node in, and how often."""

from __future__ import annotations

import ssl

import pytest

from bb_edge.transport.broker import Broker
from bb_edge.transport.credentials import REPEAT_S, Refusals, dial_fault

DENIED = "Not authorized"


def test_a_refusal_is_said_at_once_then_seldom_and_again_when_it_changes() -> None:
    refusals = Refusals(Broker.from_url("mqtt://ann:x@h"))
    assert "refuses the connection: Not authorized (is it the password" in refusals.line(DENIED, 10.0)
    assert [refusals.line(DENIED, 10.0 + wait) for wait in (1, 30, REPEAT_S - 1)] == ["", "", ""]
    assert "(4 times since it was last said)" in refusals.line(DENIED, 10.0 + REPEAT_S)
    assert "Server busy" in refusals.line("Server busy", 11.0 + REPEAT_S)
    assert refusals.line("Server busy", 12.0 + REPEAT_S) == ""
    refusals.over()
    assert "Server busy" in refusals.line("Server busy", 13.0 + REPEAT_S)


@pytest.mark.parametrize(
    ("error", "tls", "told"),
    [
        (ConnectionResetError("reset"), True, True),
        (ssl.SSLError("wrong version number"), True, True),
        (ssl.SSLEOFError("ended"), True, True),
        (ConnectionRefusedError("refused"), True, False),
        (ConnectionResetError("reset"), False, False),
    ],
)
def test_tls_at_a_port_without_it_is_guessed(error: OSError, tls: bool, told: bool) -> None:
    said = dial_fault(error, Broker("h", 1, tls=tls))
    asks = "does the broker run, where a proxy answers for it? is that a port for TLS?"
    assert (said == f"{error} ({asks} without TLS, write mqtt://)") is told
    assert said == str(error) or told


@pytest.mark.parametrize(
    ("broker", "reason", "hint"),
    [
        (Broker("h", 1), DENIED, "(it wants a login: give broker.username"),
        (Broker("h", 1, username="ann"), "Bad user name or password", "(user ann has no password: give"),
        (Broker("h", 1, tls=True, cert_file="nowhere"), DENIED, "(does the broker let the name of the cert"),
        (Broker("h", 1), "Server busy", ""),
    ],
)
def test_what_to_change(broker: Broker, reason: str, hint: str) -> None:
    line = Refusals(broker).line(reason, 0.0)
    assert hint in line
    assert ("(" in line) == bool(hint)
