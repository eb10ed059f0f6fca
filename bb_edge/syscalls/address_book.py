"""The address book's ops, and those that build peers and addresses and take them apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bb_edge.engine.binding import Bind, BindEnv, OpContext, Run, done
from bb_edge.engine.errors import OpError
from bb_edge.engine.run.bound import BoundOp
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.syscalls.peer_lists import element, peer_of


def _insert(op: BoundOp, env: BindEnv) -> Run:
    book, fired = env.peers.address_book, done(op)

    def run(ctx: OpContext, peer: Any, address: Any) -> object:
        _merge(book, peer, _addresses((address,), ctx))
        return fired

    return run


def _insert_many(op: BoundOp, env: BindEnv) -> Run:
    book, fired = env.peers.address_book, done(op)

    def run(ctx: OpContext, peer: Any, addresses: Any) -> object:
        if not addresses:
            raise OpError(
                "the address list is empty", where=ctx.op.spec.name, hint="give at least one address"
            )
        _merge(book, peer, _addresses(addresses, ctx))
        return fired

    return run


def _addresses(values: Iterable[Any], ctx: OpContext) -> tuple[Address, ...]:
    """Returns addresses that came as values of the engine or encoded, as hosts may give them.

    Raises AddressError and OpError.
    """
    addresses = []
    for address in values:
        if isinstance(address, bytes | bytearray | memoryview):
            address = Address.from_bytes(address)
        if not isinstance(address, Address):
            raise OpError(f"expected an Address, got {address!r}", where=ctx.op.spec.name)
        addresses.append(address)
    return tuple(addresses)


def _merge(book: Any, peer: Any, addresses: tuple[Any, ...]) -> None:
    if not isinstance(peer, PeerId):
        raise OpError(f"expected a PeerId, got {peer!r}", "address book")
    if peer not in book:
        book.add_peer(peer, addresses)
    else:
        for address in addresses:
            book.register_address(peer, address)


def _lookup(op: BoundOp, env: BindEnv) -> Run:
    book = env.peers.address_book

    def run(ctx: OpContext, peer: Any) -> object:
        addresses = book.lookup(peer)
        if addresses is None:
            raise OpError(
                f"peer {peer} has no known address",
                ctx.op.spec.name,
                "insert it first: g.address_book_insert",
            )
        return tuple(addresses)

    return run


def _drop(op: BoundOp, env: BindEnv) -> Run:
    book, fired = env.peers.address_book, done(op)

    def run(ctx: OpContext, peer: Any) -> object:
        book.drop_peer(peer_of(peer, ctx))
        return fired

    return run


def _own_peer(op: BoundOp, env: BindEnv) -> Run:
    peer = env.runtime.own_peer
    return lambda ctx, *_: peer


def _own_addresses(op: BoundOp, env: BindEnv) -> Run:
    """Returns the node's addresses; the one that names it where its transport gave it none."""
    runtime = env.runtime

    def run(ctx: OpContext, *_: object) -> tuple[Address, ...]:
        own = tuple(Address.from_bytes(address) for address in runtime.local_addresses)
        return own or (Address.empty().with_peer(runtime.own_peer),)

    return run


def _address_of(op: BoundOp, env: BindEnv) -> Run:
    return lambda ctx, peer: Address.empty().with_peer(peer_of(peer, ctx))


def _address_at(op: BoundOp, env: BindEnv) -> Run:
    return lambda ctx, addresses, index: element(_addresses(addresses, ctx), index, "address", ctx)


def _address_list(op: BoundOp, env: BindEnv) -> Run:
    return lambda ctx, *addresses: _addresses(addresses, ctx)


BINDERS: dict[str, Bind] = {
    "Insert": _insert,
    "InsertMany": _insert_many,
    "Lookup": _lookup,
    "Drop": _drop,
    "OwnPeer": _own_peer,
    "OwnAddresses": _own_addresses,
    "AddressOf": _address_of,
    "AddressAt": _address_at,
    "AddressList": _address_list,
}
