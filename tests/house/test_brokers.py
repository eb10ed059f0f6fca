"""The brokers that other tests stand on: they listen, deliver, and come back on the same port."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as mqtt
import pytest

SECONDS = 30


def round_trip(broker: Any) -> bytes:
    """Publish one message at QoS 1 and return what a subscriber of the same client receives."""
    received: list[bytes] = []
    arrived, subscribed = threading.Event(), threading.Event()
    protocol = mqtt.MQTTv5 if broker.mqtt5 else mqtt.MQTTv311
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=protocol)
    client.on_connect = lambda c, *_: c.subscribe("house/test", qos=1)
    client.on_subscribe = lambda *_: subscribed.set()

    def on_message(_client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        received.append(message.payload)
        arrived.set()

    client.on_message = on_message
    client.connect(broker.host, broker.port)
    client.loop_start()
    try:
        assert subscribed.wait(SECONDS)
        client.publish("house/test", b"hello", qos=1)
        assert arrived.wait(SECONDS)
    finally:
        client.disconnect()
        client.loop_stop()
    return received[0]


@pytest.mark.broker
def test_a_broker_delivers(broker: Any) -> None:
    assert round_trip(broker) == b"hello"


@pytest.mark.broker
def test_a_killed_broker_comes_back_on_its_port(mosquitto_broker: Any) -> None:
    port, pid = mosquitto_broker.port, mosquitto_broker.pid
    mosquitto_broker.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    mosquitto_broker.start()
    assert mosquitto_broker.port == port
    assert round_trip(mosquitto_broker) == b"hello"


@pytest.mark.broker
def test_two_brokers_at_once(start_broker: Callable[..., Any]) -> None:
    first = start_broker("mosquitto")
    second = start_broker("mosquitto", config=("max_queued_messages 10",))
    assert first.port != second.port
    assert round_trip(first) == round_trip(second) == b"hello"
