"""Lists of peers with their addresses, as protocol components exchange them in plain CBOR, bounded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bb_edge.ir.address import Address
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId, PeerIdError
from bb_edge.roles.errors import ComponentError
from bb_edge.wire import cbor

if TYPE_CHECKING:
    from bb_edge.roles.component import ComponentEnv
    from bb_edge.roles.context import ProtocolCtx

__all__ = ["Descriptor", "fields_of", "learn", "own_addresses", "peer_of", "peers_of", "rows"]

MAX_ROWS = 1024
"""Peers in one message: as many as a node's tables about peers hold by default."""
MAX_ADDRESSES = 8
MAX_ADDRESS_BYTES = 256
"""Addresses of one peer, and their bytes: as many as an envelope may carry."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A peer with its addresses and a number that the protocol gives meaning to (an age, say)."""

    peer: PeerId
    number: int
    addresses: tuple[bytes, ...]

    def row(self) -> list[object]:
        """Returns the peer as `rows` reads it."""
        return [self.peer.to_bytes(), self.number, list(self.addresses)]


def rows(listed: object) -> list[Descriptor]:
    """Reads rows of `Descriptor.row`. ComponentError for anything else, or more than the bounds allow."""
    if not isinstance(listed, list) or len(listed) > MAX_ROWS:
        raise ComponentError(f"expected a list of at most {MAX_ROWS} peers", "control plane")
    descriptors = []
    for row in listed:
        good = isinstance(row, list) and len(row) == 3 and isinstance(row[0], bytes) and type(row[1]) is int
        if not good or not isinstance(row[2], list) or len(row[2]) > MAX_ADDRESSES or row[1] < 0:
            raise ComponentError("expected [id, number, addresses] for each peer", "control plane")
        if not all(isinstance(a, bytes) and len(a) <= MAX_ADDRESS_BYTES for a in row[2]):
            raise ComponentError("expected bytes as an address", "control plane")
        try:
            descriptors.append(Descriptor(PeerId.from_bytes(row[0]), row[1], tuple(row[2])))
        except PeerIdError as error:
            raise ComponentError(error.what, "control plane") from error
    return descriptors


def fields_of(payload: bytes) -> dict[str, object]:
    """Returns the map of texts that a payload holds. ComponentError for another payload."""
    try:
        fields = cbor.loads(payload, max_items=16 * MAX_ROWS)
    except cbor.CborError as error:
        raise ComponentError(error.what, "control plane") from error
    if not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
        raise ComponentError("expected a map with texts as keys", "control plane")
    return fields


def own_addresses(ctx: ProtocolCtx) -> tuple[bytes, ...]:
    """Returns the node's addresses; one of its id alone where it has none, which is enough over a broker."""
    return ctx.local_addresses[:MAX_ADDRESSES] or (Address.empty().with_peer(ctx.own_peer).to_bytes(),)


def learn(ctx: ProtocolCtx, peer: PeerId, addresses: Iterable[bytes] = ()) -> bool:
    """Puts a peer's addresses into the node's book, or its id alone where there are none.

    Returns False where the book does not take them.
    """
    claimed = tuple(addresses) or (Address.empty().with_peer(peer).to_bytes(),)
    try:
        ctx.address_book.learn(peer, claimed)
    except BBError:
        return False
    return ctx.address_book.lookup(peer) is not None


def peer_of(env: ComponentEnv, key: str, name_key: str) -> PeerId:
    """Returns the peer that a configuration names, by id or by name.

    Raises ComponentError unless it names exactly one.
    """
    named = [k for k in (key, name_key) if k in env.config]
    if len(named) != 1:
        raise env.error(f"needs {key} or {name_key}", key)
    text = env.text(named[0])
    return _peer(env, named[0], text, by_name=named[0] == name_key)


def peers_of(env: ComponentEnv, key: str, name_key: str) -> tuple[PeerId, ...]:
    """Returns the peers that a configuration lists, by id and by name, each once."""
    peers: dict[PeerId, None] = {}
    for k in (key, name_key):
        listed = env.config.get(k, ())
        if not isinstance(listed, list | tuple) or not all(isinstance(text, str) for text in listed):
            raise env.error("must be a list of texts", k)
        if len(listed) > MAX_ROWS:
            raise env.error(f"more than {MAX_ROWS} peers", k)
        peers.update((_peer(env, k, text, k == name_key), None) for text in listed)
    return tuple(peers)


def _peer(env: ComponentEnv, key: str, text: str, by_name: bool) -> PeerId:
    try:
        return PeerId.from_name(text) if by_name else PeerId.from_text(text)
    except PeerIdError as error:
        raise env.error(f"{text!r} is not a peer id: {error.what}", key) from error
