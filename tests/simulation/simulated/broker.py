"""A broker as far as presences go: retained messages, wills, one connection per name, a queue that overflows.

What the nodes say and believe is decided by the runtime's own `Membership`; this carries it, badly.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paho.mqtt.client import topic_matches_sub

from bb_edge.ir.ids import PeerId
from bb_edge.transport.base import DrivenNode
from bb_edge.transport.dialing import RETRY_FIRST_S, RETRY_MAX_S
from bb_edge.transport.membership import Acts, Membership
from bb_edge.transport.rollcall import FEW
from bb_edge.transport.topics import Kind, Topics
from simulated.network import MS, Network

S = 1_000 * MS
QUEUE = FEW + 8
"""Retained messages that the broker hands to a new subscriber; the others are dropped."""
QUICK_NS = 5 * MS
LATE_NS = 2 * S
"""How much later than others a will may come."""


class Shell:
    """A machine that says its presence and runs nothing: it hears nobody."""

    hears = ()

    def __init__(
        self, peer: PeerId, epoch: int, classes: tuple[str, ...], meta: Mapping[str, object]
    ) -> None:
        self.peer_id, self.epoch, self.classes, self.presence_meta = peer, epoch, classes, meta

    def presences_come(self) -> None:
        pass

    def connected(self, up: bool) -> None:
        pass


@dataclass(slots=True)
class Wire:
    """One connection, as the broker sees it; what is on its way in either direction keeps its order."""

    will: tuple[str, bytes]
    filters: set[str]
    to_broker_ns: int = 0
    to_client_ns: int = 0


class Broker:
    """Holds what is retained, and whom it serves."""

    def __init__(self, network: Network, rng: random.Random) -> None:
        self.network = network
        self.rng = rng
        self.retained: dict[str, bytes] = {}
        self.clients: list[Client] = []
        """Of all machines that are there, connected or not."""
        self.tells_takeovers = rng.random() < 0.5
        """Whether it says to the one that loses its connection that another has taken it."""

    @property
    def faults(self) -> Counter[str]:
        return self.network.faults

    def after(self, wait_ns: int, act: Callable[[], None]) -> None:
        self.network.at(self.network.now_ns + wait_ns, act)

    def accepts(self, newcomer: Client) -> None:
        """A name has one connection: who had it before loses it, and its will is published, perhaps late."""
        for client in self.clients:
            if client.name == newcomer.name and client.served is not None:
                wire, client.served = client.served, None
                self._ends(client, wire)
                if client is not newcomer:
                    self.faults["takeovers"] += 1
                    self.after(1, lambda c=client, w=wire: c.lost(w, taken_over=self.tells_takeovers))

    def serves(self, name: str, machine: Client | None) -> bool:
        """Whether nobody but this machine has the connection of its name."""
        return all(
            client is machine or client.served is None for client in self.clients if client.name == name
        )

    def loses(self, client: Client, wire: Wire) -> None:
        """A connection has gone without a goodbye; the broker finds out, now or later."""

        def notices() -> None:
            if client.served is wire:
                client.served = None
                self._ends(client, wire)

        self.after(self._sooner_or_later(), notices)

    def _sooner_or_later(self) -> int:
        return self.rng.randrange(1, LATE_NS if self.rng.random() < 0.5 else QUICK_NS)

    def _ends(self, client: Client, wire: Wire) -> None:
        """The will is published, perhaps when the name is there again."""

        def publishes() -> None:
            again = any(other.served is not None for other in self.clients if other.name == client.name)
            self.faults["late wills"] += again
            self.publish(*wire.will)

        self.after(self._sooner_or_later(), publishes)

    def publish(self, topic: str, payload: bytes, retain: bool = True) -> None:
        """Keeps a message, and hands it to all that listen."""
        if retain and payload:
            self.retained[topic] = payload
        elif retain:
            self.retained.pop(topic, None)
        for client in self.clients:
            wire = client.served
            if wire is not None and any(topic_matches_sub(one, topic) for one in wire.filters):
                self._hand(client, wire, topic, payload)

    def subscribed(self, client: Client, wire: Wire, filters: Sequence[str]) -> None:
        """Hands out what is retained; what the queue does not hold is dropped."""
        wire.filters.update(filters)
        found = [topic for topic in self.retained if any(topic_matches_sub(one, topic) for one in filters)]
        if len(found) > QUEUE:
            self.rng.shuffle(found)
            self.faults["presence dropped"] += len(found) - QUEUE
            client.dropped.update(found[QUEUE:])
            del found[QUEUE:]
        for topic in found:
            self._hand(client, wire, topic, self.retained[topic])

    def _hand(self, client: Client, wire: Wire, topic: str, payload: bytes) -> None:
        now = self.network.now_ns
        when = max(now + self.rng.randrange(1, QUICK_NS), wire.to_client_ns, client.deaf_until_ns)
        wire.to_client_ns = when
        self.network.at(when, lambda: client.takes(wire, topic, payload))

    def restarts(self, keeps: bool) -> None:
        """All connections are lost; what is retained, and wills, are lost too unless it `keeps` them."""
        if not keeps:
            self.retained.clear()
        for client in self.clients:
            wire, client.served = client.served, None
            if wire is not None:
                if keeps:
                    self._ends(client, wire)
                client.lost(wire)


class Client:
    """One machine's membership and its connection, which dials again by itself."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        node: DrivenNode,
        told: Callable[[PeerId, str, bool], None] = lambda *_: None,
        log: Counter[str] | None = None,
        up: Callable[[], None] = lambda: None,
    ) -> None:
        """`told(peer, class, up)` and `up()` are called when the node was told, and is connected."""
        self.broker = broker
        self.name = name
        self.served: Wire | None = None
        """Its connection, as far as the broker knows."""
        self.wire: Wire | None = None
        """The same as far as the machine knows."""
        self.deaf_until_ns = 0
        self.dropped: set[str] = set()
        self._told, self._up = told, up
        self._connected = node.connected
        self._connected(False)
        self._dead = False
        self._contested = False
        self._topics = Topics("simulated", node.peer_id)
        self._log = Counter() if log is None else log

        def logs(_level: str, _message: str, *, kind: str = "", peer: PeerId | None = None) -> None:
            self._log[kind] += 1

        acts = Acts(
            lambda topic, payload: self._send(lambda: broker.publish(topic, payload)),
            self._calls,
            logs,
        )
        self._membership = Membership(
            node,
            self._topics,
            {"name": name},
            "in a simulation",
            self._log,
            acts,
            broker.rng,
            lambda: broker.network.now_ns / S,
        )
        self._membership.link = self
        broker.clients.append(self)

    def connect(self) -> None:
        """Dials; the broker takes it."""
        if self._dead or self.wire is not None:
            return
        self.broker.accepts(self)
        self.wire = self.served = Wire(self._membership.will(), set())
        self._connected(True)
        self.subscribe((*self._membership.filters, *self._membership.called_at))
        self._membership.connected()
        self._up()
        self._tick(self.wire)

    def _tick(self, wire: Wire) -> None:
        if self.wire is wire:
            self._membership.tick(self.broker.network.now_ns / S)
            self.broker.after(S, lambda: self._tick(wire))

    def lose(self) -> None:
        """The connection breaks; the machine notices, and the broker sooner or later."""
        if self.wire is not None:
            self.broker.loses(self, self.wire)
            self.lost(self.wire)

    def lost(self, wire: Wire, taken_over: bool = False) -> None:
        """The machine has noticed that its connection has gone: it dials again."""
        if self.wire is not wire:
            return
        self.wire = None
        self._connected(False)
        self._membership.lost()
        long = taken_over or self._contested
        self._contested = False
        wait_s = (RETRY_MAX_S if long else RETRY_FIRST_S) * (0.5 + self.broker.rng.random())
        self.broker.after(int(wait_s * S), self.connect)

    def dies(self) -> None:
        """The machine's power is gone."""
        self._dead = True
        if self.wire is not None:
            self.broker.loses(self, self.wire)
        self.wire = None

    def forget(self) -> None:
        """The broker hears no more of it: its will is said."""
        if self.served is None:
            self.broker.clients.remove(self)
        else:
            self.broker.after(S, self.forget)

    def _send(self, act: Callable[[], None]) -> None:
        """What the machine says reaches the broker in its order, as long as the broker serves it."""
        wire, broker = self.wire, self.broker
        if wire is None:
            return
        wire.to_broker_ns = max(broker.network.now_ns + broker.rng.randrange(1, QUICK_NS), wire.to_broker_ns)

        def arrives() -> None:
            if self.served is wire:
                act()

        broker.network.at(wire.to_broker_ns, arrives)

    def _calls(self, topic: str, payload: bytes) -> None:
        self._log["roll calls"] += 1
        self._send(lambda: self.broker.publish(topic, payload, retain=False))

    def takes(self, wire: Wire, topic: str, payload: bytes) -> None:
        """A message has come."""
        if self.wire is not wire:
            return
        place = self._topics.read(topic.encode())
        if place.kind is Kind.ROLL_CALL:
            self._membership.called(place.peer_class, payload)
        elif self._membership.take(place.peer, place.peer_class, payload):
            self._told(place.peer, place.peer_class, bool(payload))
            if topic in self.dropped:
                self.dropped.discard(topic)
                self._log["repaired"] += 1
        else:
            self._log["foreign"] += 1

    # --- what the membership asks of its connection ------------------------------------------------------

    def subscribe(self, filters: Sequence[str], qos: int = 1) -> None:
        wire = self.wire
        if wire is not None:
            self._send(lambda: self.broker.subscribed(self, wire, filters))

    def unsubscribe(self, filters: Sequence[str]) -> None:
        wire = self.wire
        if wire is not None:
            self._send(lambda: wire.filters.difference_update(filters))

    def redial(self, reason: str, clean: bool = False) -> None:
        wire = self.wire
        if wire is not None:
            self.broker.loses(self, wire)
            self.wire = None
            self._connected(False)
            self.broker.after(1, self.connect)

    def contested(self) -> None:
        self._contested = True
