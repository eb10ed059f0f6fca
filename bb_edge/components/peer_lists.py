"""Lists of peers with their addresses, as protocol components exchange them: plain CBOR, bounded."""

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
MAX_ADDRESSES = 8
MAX_ADDRESS_BYTES = 256


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A peer, a number that the protocol gives meaning to (an age, say), and where the peer is reached."""

    peer: PeerId
    number: int
    addresses: tuple[bytes, ...]

    def row(self) -> list[object]:
        return [self.peer.to_bytes(), self.number, list(self.addresses)]


def rows(found: object) -> list[Descriptor]:
    """Reads rows of `Descriptor.row`. ComponentError for anything else, or more than the bounds allow."""
    if not isinstance(found, list) or len(found) > MAX_ROWS:
        raise ComponentError(f"no list of at most {MAX_ROWS} peers", "control plane")
    made = []
    for row in found:
        good = isinstance(row, list) and len(row) == 3 and isinstance(row[0], bytes) and type(row[1]) is int
        if not good or not isinstance(row[2], list) or len(row[2]) > MAX_ADDRESSES or row[1] < 0:
            raise ComponentError("a peer is [id, number, addresses]", "control plane")
        if not all(isinstance(a, bytes) and len(a) <= MAX_ADDRESS_BYTES for a in row[2]):
            raise ComponentError("an address is some bytes", "control plane")
        try:
            made.append(Descriptor(PeerId.from_bytes(row[0]), row[1], tuple(row[2])))
        except PeerIdError as error:
            raise ComponentError(error.what, "control plane") from error
    return made


def fields_of(payload: bytes, max_items: int = 16 * MAX_ROWS) -> dict[str, object]:
    """The map of texts that a payload is. ComponentError where it is none."""
    try:
        found = cbor.loads(payload, max_items=max_items)
    except cbor.CborError as error:
        raise ComponentError(error.what, "control plane") from error
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ComponentError("no map of names", "control plane")
    return found


def own_addresses(ctx: ProtocolCtx) -> tuple[bytes, ...]:
    """Where the node says that it is reached; by its id alone where it says nothing, which suits a broker."""
    return ctx.local_addresses[:MAX_ADDRESSES] or (Address.empty().with_peer(ctx.own_peer).to_bytes(),)


def learn(ctx: ProtocolCtx, peer: PeerId, addresses: Iterable[bytes] = ()) -> bool:
    """Puts a peer's addresses into the node's book, its id alone where there are none.

    False where the book takes them not.
    """
    claimed = tuple(addresses) or (Address.empty().with_peer(peer).to_bytes(),)
    try:
        ctx.address_book.learn(peer, claimed)
    except BBError:
        return False
    return ctx.address_book.lookup(peer) is not None


def peer_of(env: ComponentEnv, key: str, name_key: str) -> PeerId:
    """The one peer that a configuration names, by id or by name; ComponentError unless it is one."""
    given = [k for k in (key, name_key) if k in env.config]
    if len(given) != 1:
        raise env.error(f"needs {key} or {name_key}", key)
    text = env.text(given[0])
    return _peer(env, given[0], text, by_name=given[0] == name_key)


def peers_of(env: ComponentEnv, key: str, name_key: str, limit: int = MAX_ROWS) -> tuple[PeerId, ...]:
    """The peers that a configuration lists, by id and by name, each once."""
    found: dict[PeerId, None] = {}
    for k in (key, name_key):
        listed = env.config.get(k, ())
        if not isinstance(listed, list | tuple) or not all(isinstance(text, str) for text in listed):
            raise env.error("must be a list of texts", k)
        if len(listed) > limit:
            raise env.error(f"more than {limit} peers", k)
        found.update((_peer(env, k, text, k == name_key), None) for text in listed)
    return tuple(found)


def _peer(env: ComponentEnv, key: str, text: str, by_name: bool) -> PeerId:
    try:
        return PeerId.from_name(text) if by_name else PeerId.from_text(text)
    except PeerIdError as error:
        raise env.error(f"{text!r} is no peer id: {error.what}", key) from error
