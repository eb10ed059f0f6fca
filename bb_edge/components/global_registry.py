"""`bb.GlobalRegistryServer` and `bb.GlobalRegistryClient`: a node knows those that announced themselves.

Both are bound to the slot of the same name, the server in one partition, the client in the others. A client
announces its classes and addresses and gets, in the same handshake, the peers that it asks for with theirs;
then it shows that it is alive three times within its time-to-live. A peer that does not is forgotten.

    client: ──started──► ANNOUNCING ──granted──► KNOWN ──heartbeat granted──► KNOWN
                            ▲  │ refused or silent: again, after a wait that doubles │
                            └──┴────────────── unknown to the server ────────────────┘
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bb_edge.components.peer_lists import (
    MAX_ROWS,
    Descriptor,
    fields_of,
    learn,
    own_addresses,
    peer_of,
    rows,
)
from bb_edge.components.presence_selector import ViewSelector, load_generators
from bb_edge.components.state import StateReader, pack_state
from bb_edge.ir.opsets import Opset, Table
from bb_edge.roles.adoption import Adoption
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.contracts import ProtocolComponent
from bb_edge.roles.errors import ComponentError, ComponentStateError
from bb_edge.roles.settings import Setting
from bb_edge.wire import cbor

if TYPE_CHECKING:
    from bb_edge.ir.ids import PeerId
    from bb_edge.roles.context import Ctx, ProtocolCtx

__all__ = ["GlobalRegistryClient", "GlobalRegistryServer"]

MS = 1_000_000
S = 1_000_000_000
MAX_CLASSES = 16
MAX_CLASS_NAME = 256
"""Bounds of what a member announces; the same as those of its presence."""
LONGEST_WAIT_NS = 60 * S
"""The longest wait between two announcements that were not granted, as for back-off between peers."""
_STATE_VERSION = 1


def _classes(listed: object) -> tuple[str, ...]:
    good = isinstance(listed, list) and len(listed) <= MAX_CLASSES
    if not isinstance(listed, list) or not good:
        raise ComponentError(f"expected a list of at most {MAX_CLASSES} classes", "registry")
    if not all(isinstance(c, str) and len(c) <= MAX_CLASS_NAME for c in listed):
        raise ComponentError(f"expected texts of at most {MAX_CLASS_NAME} letters as classes", "registry")
    return tuple(listed)


def _number(fields: dict[str, object], key: str) -> int:
    value = fields.get(key)
    if type(value) is not int or value < 0:
        raise ComponentError(f"{key} is not a number from 0 on", "registry")
    return value


class _Registry(ViewSelector, ProtocolComponent):
    """The opset that both sides share; a side that does not serve an op refuses it."""

    @classmethod
    def atomic_opset(cls) -> Opset:
        table = Table("bb.GlobalRegistry")
        ask = "sender:PeerId, payload:Bytes"
        table.op(
            "Announce", ask, "reply:Bytes", "", "A peer tells of itself, and asks for others.", remote=True
        )
        table.op("Heartbeat", ask, "reply:Bytes", "", "A peer is still there.", remote=True)
        table.op("Leave", ask, "", "", "A peer goes.", remote=True)
        return table.opset()

    def announce(self, ctx: ProtocolCtx, sender: PeerId, payload: bytes) -> bytes:
        raise ComponentError(f"{self.TYPE_NAME} is not the registry's server", "registry", "ask the server")

    def heartbeat(self, ctx: ProtocolCtx, sender: PeerId, payload: bytes) -> bytes:
        raise ComponentError(f"{self.TYPE_NAME} is not the registry's server", "registry", "ask the server")

    def leave(self, ctx: ProtocolCtx, sender: PeerId, payload: bytes) -> None:
        raise ComponentError(f"{self.TYPE_NAME} is not the registry's server", "registry", "ask the server")


@dataclass(slots=True)
class _Member:
    classes: tuple[str, ...]
    addresses: tuple[bytes, ...]
    ttl_ns: int
    expires_ns: int


class GlobalRegistryServer(_Registry):
    """Knows the peers that announced themselves lately, and tells them to each other.

    Configuration: it knows `max_peers` (512, at most 1024) at once and refuses newcomers beyond; `max_ttl_ns`
    (10 min) bounds the time-to-live that a peer can ask for.

    Its view is the members that list the slot's class. A change of members makes a new `version`; a peer that
    has seen the current version does not get the list again. The server's own node is a member like any
    other, with the classes that it presents: a node that is both is bound to the server in both of its
    partitions. After a restart each member has its whole time again, because none could show that it was
    alive in between.
    """

    TYPE_NAME: ClassVar[str] = "bb.GlobalRegistryServer"
    CONFIG: ClassVar[Mapping[str, Setting]] = {
        "max_peers": Setting.integer(512, 1, MAX_ROWS),
        "max_ttl_ns": Setting.integer(600 * S, 1 * S),
    }

    def __init__(
        self, peer_class: str, max_peers: int = 512, max_ttl_ns: int = 600 * S, own_class: str = ""
    ) -> None:
        self._peer_class = peer_class
        self._same_class = peer_class == own_class  # who gossips does not gossip to itself
        self._own_classes: tuple[str, ...] = ()
        self._max_peers = max_peers
        self._max_ttl_ns = max_ttl_ns
        self._members: dict[PeerId, _Member] = {}
        self._timer = 0
        self._restored = False  # members' times are to be counted anew
        self.version = 1
        self.refused = 0
        self.expired = 0

    @classmethod
    def construct(cls, env: ComponentEnv) -> GlobalRegistryServer:
        read = env.settings(cls)
        load_generators()
        return cls(env.peer_class, read["max_peers"], read["max_ttl_ns"], env.own_class)

    def current_view(self, ctx: Ctx) -> tuple[PeerId, ...]:
        self._count_anew(ctx.now_ns)
        members = self._of_class(self._peer_class, ctx.now_ns)
        if self._peer_class in self._own_classes and not self._same_class:
            members.append(ctx.own_peer)
        return tuple(sorted(members))

    def started(self, ctx: ProtocolCtx) -> None:
        self._own_classes = ctx.own_classes

    def _of_class(self, peer_class: str, now_ns: int) -> list[PeerId]:
        return [p for p, m in self._members.items() if peer_class in m.classes and m.expires_ns > now_ns]

    def announce(self, ctx: ProtocolCtx, sender: PeerId, payload: bytes) -> bytes:
        """Takes {classes, addresses, ttl_ns, wants}; returns {ttl_ns, version, peers}.

        A ttl_ns of 0 means that the registry is full.
        """
        self._count_anew(ctx.now_ns)
        fields = fields_of(payload)
        classes = _classes(fields.get("classes"))
        wants = fields.get("wants")
        (told,) = rows([[sender.to_bytes(), 0, fields.get("addresses")]])
        ttl_ns = min(_number(fields, "ttl_ns"), self._max_ttl_ns)
        known = self._members.get(sender)
        if known is None and len(self._members) >= self._max_peers:
            self.refused += 1
            return cbor.dumps({"ttl_ns": 0, "version": self.version, "peers": None})
        learn(ctx, sender, told.addresses)
        if known is None or (known.classes, known.addresses) != (classes, told.addresses):
            self.version += 1
        self._members[sender] = _Member(classes, told.addresses, ttl_ns, ctx.now_ns + ttl_ns)
        self._watch(ctx)
        return self._granted(ctx, sender, ttl_ns, wants, 0)

    def heartbeat(self, ctx: ProtocolCtx, sender: PeerId, payload: bytes) -> bytes:
        """Takes {version, wants}; returns {ttl_ns, version, peers}.

        A ttl_ns of 0 means that the server does not know the sender (any more).
        """
        self._count_anew(ctx.now_ns)
        fields = fields_of(payload)
        member = self._members.get(sender)
        if member is None:
            return cbor.dumps({"ttl_ns": 0, "version": self.version, "peers": None})
        member.expires_ns = ctx.now_ns + member.ttl_ns
        return self._granted(ctx, sender, member.ttl_ns, fields.get("wants"), _number(fields, "version"))

    def leave(self, ctx: ProtocolCtx, sender: PeerId, payload: bytes) -> None:
        if self._members.pop(sender, None) is not None:
            self.version += 1

    def _granted(self, ctx: ProtocolCtx, sender: PeerId, ttl_ns: int, wants: object, seen: int) -> bytes:
        peers = None
        if seen != self.version and isinstance(wants, str):
            others = sorted(p for p in self._of_class(wants, ctx.now_ns) if p != sender)
            peers = [Descriptor(p, 0, self._members[p].addresses).row() for p in others]
            if wants in self._own_classes and len(peers) < MAX_ROWS:
                peers.append(Descriptor(ctx.own_peer, 0, own_addresses(ctx)).row())
        return cbor.dumps({"ttl_ns": ttl_ns, "version": self.version, "peers": peers})

    def _watch(self, ctx: ProtocolCtx) -> None:
        """Sets one timer, for the time at which the next member would be forgotten."""
        ctx.scheduler.cancel(self._timer)
        self._timer = 0
        if self._members:
            first = min(m.expires_ns for m in self._members.values())
            self._timer = ctx.scheduler.after(first - ctx.now_ns, self._sweep)

    def _sweep(self, ctx: ProtocolCtx) -> None:
        self._count_anew(ctx.now_ns)
        gone = [p for p, m in self._members.items() if m.expires_ns <= ctx.now_ns]
        for peer in gone:
            del self._members[peer]
        if gone:
            self.expired += len(gone)
            self.version += 1
        self._watch(ctx)

    def _count_anew(self, now_ns: int) -> None:
        """Starts members' times anew after a restart: state is read before the node's clock is known."""
        if self._restored:
            self._restored = False
            for member in self._members.values():
                member.expires_ns = now_ns + member.ttl_ns

    def serialize(self) -> bytes:
        members = [
            [*Descriptor(peer, m.ttl_ns, m.addresses).row(), list(m.classes)]
            for peer, m in self._members.items()
        ]
        fields = {
            "members": members,
            "number": self.version,
            "own_classes": list(self._own_classes),
            "timer": self._timer,
            "refused": self.refused,
            "expired": self.expired,
        }
        return pack_state(self, _STATE_VERSION, fields)

    def restore(self, state: bytes) -> None:
        reader = StateReader(self, _STATE_VERSION, state)
        members: dict[PeerId, _Member] = {}
        try:
            for row in reader.items("members"):
                if not isinstance(row, list) or len(row) != 4:
                    raise reader.error("a member is [id, time to live, addresses, classes]")
                (told,) = rows([row[:3]])
                members[told.peer] = _Member(_classes(row[3]), told.addresses, told.number, 0)
            own_classes = _classes(reader.items("own_classes"))
        except ComponentStateError:
            raise
        except ComponentError as error:
            raise reader.error(error.what) from error
        if len(members) > self._max_peers:
            raise reader.error(f"it holds {len(members)} peers, {self._max_peers} at most")
        self.version, self._timer = reader.integer("number"), reader.integer("timer")
        self.refused, self.expired = reader.integer("refused"), reader.integer("expired")
        self._members, self._own_classes, self._restored = members, own_classes, True

    def adopt(self, state: bytes) -> Adoption:
        """Takes the members; their times to live begin anew."""
        self.restore(state)
        count = len(self._members)
        return Adoption((f"{count} member{'s' if count != 1 else ''}",), self.drop_executions())

    def drop_executions(self) -> tuple[str, ...]:
        """Forgets the timer of the node that wrote; the next announcement sets one."""
        self._timer = 0
        return ()


class GlobalRegistryClient(_Registry):
    """Keeps the node in the server's registry, and has the peers that the server named in view.

    Configuration: `server` (base58 id) or `server_name`; `ttl_ns` (30 s), how long the server should remember
    the node without hearing of it. Its view is the server's last answer about the slot's class, also while
    the server is silent.
    """

    TYPE_NAME: ClassVar[str] = "bb.GlobalRegistryClient"
    CONFIG: ClassVar[Mapping[str, Setting]] = {
        "server": Setting.text(None),
        "server_name": Setting.text(None),
        "ttl_ns": Setting.integer(30 * S, 1 * S),
    }

    def __init__(self, server: PeerId, peer_class: str, ttl_ns: int = 30 * S) -> None:
        self._server = server
        self._peer_class = peer_class
        self._asked_ttl_ns = ttl_ns
        self._ttl_ns = 0  # granted; 0 while the server does not know us
        self._version = 0
        self._view: tuple[PeerId, ...] = ()
        self._wait_ns = 0
        self._stopped = False
        self.heartbeats = 0
        self.announcements = 0

    @classmethod
    def construct(cls, env: ComponentEnv) -> GlobalRegistryClient:
        read = env.settings(cls)
        load_generators()
        return cls(peer_of(env, "server", "server_name"), env.peer_class, read["ttl_ns"])

    @property
    def registered(self) -> bool:
        """Whether the server has granted the last announcement or heartbeat."""
        return self._ttl_ns > 0

    def current_view(self, ctx: Ctx) -> tuple[PeerId, ...]:
        return self._view

    def started(self, ctx: ProtocolCtx) -> None:
        learn(ctx, self._server)
        self._speak(ctx)

    def stopping(self, ctx: ProtocolCtx) -> None:
        self._stopped = True  # an answer that is still on its way must not announce the node again
        if self.registered:
            ctx.send(self._server, "Leave", b"\xa0")

    def _speak(self, ctx: ProtocolCtx) -> None:
        """Announces the node, or shows that it is alive."""
        if self._stopped:
            return
        deadline_ns = max(min(self._asked_ttl_ns // 3, 10 * S), 1)
        if self.registered:
            self.heartbeats += 1
            fields: dict[str, object] = {"version": self._version, "wants": self._peer_class}
            ctx.request(self._server, "Heartbeat", cbor.dumps(fields), deadline_ns, self._heard)
            return
        self.announcements += 1
        fields = {
            "classes": list(ctx.own_classes)[:MAX_CLASSES],
            "addresses": list(own_addresses(ctx)),
            "ttl_ns": self._asked_ttl_ns,
            "wants": self._peer_class,
        }
        ctx.request(self._server, "Announce", cbor.dumps(fields), deadline_ns, self._heard)

    def _heard(self, ctx: ProtocolCtx, reply: bytes | None) -> None:
        """Takes the server's answer; speaks again after a third of the time granted, or a longer wait."""
        was_registered = self.registered
        self._ttl_ns = 0
        try:
            if reply is not None:
                self._take(ctx, reply)
        finally:
            if self.registered:
                self._wait_ns = 0
                pause = self._ttl_ns // 3
            elif was_registered and reply is not None:
                pause = 0  # the server forgot the node: announce it at once
            else:
                self._wait_ns = min(self._wait_ns * 2 or 1 * S, LONGEST_WAIT_NS)
                pause = self._wait_ns
            # Nodes that lost their server together should not come back together.
            spread = int(ctx.rng.integers(max(pause // 10, 1)))
            ctx.scheduler.after(pause + (0 if self.registered else spread), self._speak)

    def _take(self, ctx: ProtocolCtx, reply: bytes) -> None:
        fields = fields_of(reply)
        peers = fields.get("peers")
        others = None if peers is None else rows(peers)
        version, ttl_ns = _number(fields, "version"), _number(fields, "ttl_ns")
        if others is not None:
            self._view = tuple(sorted(d.peer for d in others if learn(ctx, d.peer, d.addresses)))
        self._version, self._ttl_ns = version, ttl_ns

    def serialize(self) -> bytes:
        fields = {
            "view": [Descriptor(peer, 0, ()).row() for peer in self._view],
            "number": self._version,
            "ttl_ns": self._ttl_ns,
            "wait_ns": self._wait_ns,
            "heartbeats": self.heartbeats,
            "announcements": self.announcements,
        }
        return pack_state(self, _STATE_VERSION, fields)

    def restore(self, state: bytes) -> None:
        reader = StateReader(self, _STATE_VERSION, state)
        try:
            view = rows(reader.items("view"))
        except ComponentStateError:
            raise
        except ComponentError as error:
            raise reader.error(error.what) from error
        self._version, self._ttl_ns = reader.integer("number"), reader.integer("ttl_ns")
        self._wait_ns, self.heartbeats = reader.integer("wait_ns"), reader.integer("heartbeats")
        self.announcements = reader.integer("announcements")
        self._view = tuple(d.peer for d in view)
