"""Somebody who publishes presences of whomever it likes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.wire.presence import Presence, encode_presence


class Forger:
    """Publishes presences in one federation."""

    def __init__(self, client: Client, federation: str) -> None:
        self._client = client
        self._federation = federation

    def says(self, peer_class: str, epoch: int, *peers: PeerId, up: bool = True) -> None:
        """Returns once the broker has taken a retained presence of each."""
        sent = []
        for peer in peers:
            presence = Presence(up, epoch, (), (Address.empty().with_peer(peer).to_bytes(),), session=1)
            topic = f"bb/{self._federation}/presence/{peer_class}/{peer}"
            sent.append(self._client.publish(topic, encode_presence(presence), qos=1, retain=True))
        for info in sent:
            info.wait_for_publish(60)


@contextmanager
def forger(port: int, federation: str = "digits") -> Iterator[Forger]:
    client = Client(CallbackAPIVersion.VERSION2, "mallory", protocol=MQTTv5)
    client.max_queued_messages_set(0)
    client.max_inflight_messages_set(500)
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        yield Forger(client, federation)
    finally:
        client.disconnect()
        client.loop_stop()
