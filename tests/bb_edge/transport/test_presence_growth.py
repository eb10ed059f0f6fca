"""How many messages it costs that many clients and one server come up, counted at the broker."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("clients", [10, 20, 40])
def test_messages_at_the_start_grow_with_the_clients(start_broker, loop, doors, url, clients) -> None:
    """A client hears servers, the server hears clients, and each hears itself: no client hears another."""
    broker = start_broker("mosquitto", config=["log_dest file {folder}/log", "log_type all"])
    nodes = [doors(f"client-{number}") for number in range(clients)]
    server = doors("server")
    server.classes = ("Server",)
    for node in nodes:
        node.hears = ("Server",)
    transports = [loop.join(node, url(broker)) for node in (*nodes, server)]

    def told() -> bool:
        counts = [transport.counters["presences"] for transport in transports]
        return counts == [2] * clients + [clients + 1]

    loop.until(told, 60)
    log = (broker.folder / "log").read_text()
    assert log.count("Received PUBLISH") == clients + 1
    assert log.count("Sending PUBLISH") == 3 * clients + 1
