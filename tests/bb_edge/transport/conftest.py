"""A node's doors that keep what comes, and several real transports that are waited for in turn."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from bb_edge.engine.ledger import IngressFull
from bb_edge.ir.ids import PeerId
from bb_edge.transport.mqtt import Broker, MqttOptions, MqttTransport


class Doors:
    """A node's doors that keep what comes; the transport under test is the real one."""

    def __init__(self, name: str, epoch: int = 1, full: int = 0) -> None:
        self.peer_id = PeerId.from_name(name)
        self.epoch = epoch
        self.classes: tuple[str, ...] = ("Client",)
        self.hears: tuple[str, ...] | None = ("Client",)
        self.presence_meta: dict[str, object] = {}
        self.got: list[tuple[bytes, PeerId]] = []
        self.presence: dict[PeerId, tuple[bool, int]] = {}
        self.in_classes: dict[PeerId, tuple[str, ...]] = {}
        self.failed: list[PeerId] = []
        self.uplink: list[bool] = []
        self.full = full

    def deliver_inbound(self, data, src_peer, observed_address=None):
        if self.full:
            self.full -= 1
            raise IngressFull("full", "ingress")
        self.got.append((data, src_peer))

    def presences_come(self):
        pass

    def peer_presence(self, peer, up, addresses=(), meta=None, *, epoch=0, classes=(), session=0, seq=0):
        self.presence[peer] = (up, epoch)
        self.in_classes[peer] = (*self.in_classes.get(peer, ()), *classes)

    def presence_cleared(self, peer, peer_class=None):
        self.in_classes[peer] = tuple(c for c in self.in_classes.get(peer, ()) if c != peer_class)

    def connected(self, up):
        self.uplink.append(up)

    def peer_failed(self, peer):
        self.failed.append(peer)


class Loop:
    """Several transports, waited for in turn until a condition holds."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.transports: list[MqttTransport] = []
        self.logs: list[str] = []

    def join(
        self,
        doors: Doors,
        url: str | Broker,
        federation: str = "test",
        options: MqttOptions | None = None,
        version: str = "auto",
        planned: int = 0,
    ) -> MqttTransport:
        transport = MqttTransport(
            doors,
            url if isinstance(url, Broker) else Broker.from_url(url),
            federation,
            on_log=lambda _, m, **_more: self.logs.append(m),
            options=options,
            version=version,
            planned=planned,
        )
        transport.start()
        self.transports.append(transport)
        return transport

    def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds * self.patience
        while not condition():
            assert time.monotonic() < end, f"did not come about; logs: {self.logs}"
            for transport in self.transports:
                transport.wait(0.01)

    def close(self) -> None:
        for transport in self.transports:
            transport.stop()


@pytest.fixture
def doors() -> type[Doors]:
    """`doors(name, epoch=1, full=0)`; `full` is how many envelopes it refuses."""
    return Doors


@pytest.fixture
def loop(patience):
    found = Loop(patience)
    yield found
    found.close()


@pytest.fixture
def dialed(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """The sockets that transports of this process have connected, in order; closing one cuts its wire."""
    sockets: list[socket.socket] = []
    create = socket.create_connection

    def recording(*args: Any, **named: Any) -> socket.socket:
        sockets.append(create(*args, **named))
        return sockets[-1]

    monkeypatch.setattr(socket, "create_connection", recording)
    return sockets


@pytest.fixture
def url() -> Callable[..., str]:
    return lambda broker: f"mqtt://{broker.host}:{broker.port}"
