"""What a peer says about itself on the broker: its presence, and the CBOR form of it.

A node says it once per class that it serves, retained, under a topic that names the class. The *will* is what
the broker says in its place once its connection is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from bb_edge.ir.class_names import is_class_name
from bb_edge.ir.errors import BBError
from bb_edge.wire import cbor

MAX_CLASSES = 16
"""Peer classes of one node: a node serves one target per class, and programs have a handful."""
MAX_ADDRESSES = 8
"""Addresses of one node, as many as the address book holds per peer by default."""
MAX_META = 64
"""Entries of `meta`; the runtime itself uses three, the rest is the host's."""
MAX_TEXT = 256
"""Letters of a class name, bytes of an address: as many as an envelope may carry of one address."""
MAX_PRESENCE_BYTES = 4096
"""Bytes of a presence. One of the runtime's own takes some 200; this many times the peers bound a table."""
MAX_SESSION = (1 << 32) - 1
"""Sessions of one epoch, and presences of one session: a connection a second for a century."""
FAR_SESSIONS = 1 << 20
"""A presence so many sessions beyond what is known is a forged one: that is a connection a second for twelve
days. If it counted, one message could use up all sessions of an epoch, and no later one of the peer's would.
"""
PRESENCE_VERSION = 1


class PresenceError(BBError):
    """Bytes that are not a presence, or one beyond the bounds; the fault is the peer's."""


_NO_META: Mapping[str, object] = {}


class Presence(NamedTuple):
    """What a peer publishes about itself.

    `epoch` is a number that the peer draws at each start, None where the transport has no such number.
    `classes` are the peer classes that it serves: a topic says them, never the bytes. `addresses` are the
    ways to reach it, as bytes.

    `session` counts the peer's connections of an epoch from 1, `seq` what it says in one; 0 where the
    transport does not count. `will` is the class under whose topic the broker says that the connection is
    lost; empty where that is this one.
    """

    up: bool
    epoch: int | None = None
    classes: tuple[str, ...] = ()
    addresses: tuple[bytes, ...] = ()
    meta: Mapping[str, object] = _NO_META
    version: int = PRESENCE_VERSION
    session: int = 0
    seq: int = 0
    will: str = ""

    def is_older_than(self, known: Presence) -> bool:
        """Whether this says nothing any more against what is known.

        So it is with a down of another epoch: it may be of the process before. Within an epoch a session that
        is over stays over, one before the last that is known is over, and one far beyond it is nobody's.
        """
        if self.epoch is None or known.epoch is None:
            return False
        if self.epoch != known.epoch:
            return not self.up
        if not (self.session and known.session):
            return False
        if self.session == known.session:
            return self.up and not known.up
        return self.session < known.session or self.session - known.session > FAR_SESSIONS


def encode_presence(presence: Presence) -> bytes:
    """Returns a presence as canonical CBOR `{up, epoch, session, seq, will, addresses, version, meta}`.

    Classes and a will are left out where there are none. Raises CborError for metadata that is not plain.
    """
    fields: dict[str, object] = {
        "up": presence.up,
        "epoch": presence.epoch or 0,
        "session": presence.session,
        "seq": presence.seq,
        "addresses": presence.addresses,
        "version": presence.version,
        "meta": presence.meta,
    }
    if presence.classes:
        fields["classes"] = presence.classes
    if presence.will:
        fields["will"] = presence.will
    return cbor.dumps(fields)


_NAMES_BYTES = sum(
    1 + len(name) for name in ("up", "epoch", "session", "seq", "addresses", "version", "meta")
)


def presence_bytes(presence: Presence, meta_bytes: int) -> int:
    """Returns how long what `encode_presence` returns is, where its metadata take `meta_bytes` as CBOR."""
    _, epoch, classes, addresses, _, version, session, seq, will = presence
    size = 2 + _NAMES_BYTES + meta_bytes  # the head of the map, and `up`
    for number in (epoch or 0, session, seq, version):
        size += 1 if 0 <= number < 24 else cbor.head_bytes(number if number >= 0 else -1 - number)
    size += cbor.head_bytes(len(addresses))
    for address in addresses:
        size += cbor.head_bytes(len(address)) + len(address)
    if classes:
        size += _classes_bytes(classes)
    return size + (1 + len("will") + _text_bytes(will) if will else 0)


@lru_cache(maxsize=64)
def _classes_bytes(classes: tuple[str, ...]) -> int:
    """The bytes of the entry `classes`: few sets of classes are those of many peers."""
    return 1 + len("classes") + cbor.head_bytes(len(classes)) + sum(map(_text_bytes, classes))


def _text_bytes(text: str) -> int:
    length = len(text.encode())
    return cbor.head_bytes(length) + length


def decode_presence(data: bytes | memoryview) -> Presence:
    """Reads a presence of any version; fields that are missing have their defaults.

    Raises PresenceError and nothing else, whatever the bytes are.
    """
    if len(data) > MAX_PRESENCE_BYTES:
        raise PresenceError(f"{len(data)} bytes, {MAX_PRESENCE_BYTES} at most", "presence")
    try:
        # All lists and `meta` at their bounds are below 256 items; values in `meta` may have as many again.
        fields = cbor.loads(data, max_items=512, max_depth=4)
    except cbor.CborError as error:
        raise PresenceError(error.what, "presence") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("up"), bool):
        raise PresenceError("expected a map with a boolean `up`", "presence")
    epoch, version = fields.get("epoch", 0), fields.get("version", PRESENCE_VERSION)
    session, seq, will = fields.get("session", 0), fields.get("seq", 0), fields.get("will", "")
    meta = fields.get("meta", {})
    if any(type(number) is not int for number in (epoch, version, session, seq)) or epoch < 0:
        raise PresenceError("expected unsigned integers as epoch, session, seq and version", "presence")
    if not (0 <= session <= MAX_SESSION and 0 <= seq <= MAX_SESSION):
        raise PresenceError(f"expected session and seq from 0 to {MAX_SESSION}", "presence")
    if will != "" and not is_class_name(will):
        raise PresenceError("expected the name of a class as will", "presence")
    if not isinstance(meta, dict) or len(meta) > MAX_META or not all(isinstance(key, str) for key in meta):
        raise PresenceError(f"expected a map of at most {MAX_META} texts as meta", "presence")
    return Presence(
        fields["up"],
        epoch or None,
        _bounded(fields.get("classes", []), str, MAX_CLASSES, "classes"),
        _bounded(fields.get("addresses", []), bytes, MAX_ADDRESSES, "addresses"),
        meta,
        version,
        session,
        seq,
        will,
    )


def _bounded(value: object, kind: type[str] | type[bytes], count: int, name: str) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) > count:
        raise PresenceError(f"expected a list of at most {count} as {name}", "presence")
    if not all(isinstance(item, kind) and len(item) <= MAX_TEXT for item in value):
        raise PresenceError(
            f"expected {kind.__name__} values of at most {MAX_TEXT} bytes or letters in {name}", "presence"
        )
    return tuple(value)
