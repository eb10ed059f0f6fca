"""The address book's three ops (semantics §7)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bb_edge.engine.binding import Bind, BindEnv, Run
from bb_edge.engine.executions import BoundOp
from bb_edge.engine.parking import OpError
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId


def _insert(op: BoundOp, env: BindEnv) -> Run:
    book = env.engine.address_book

    def run(ctx: Any, peer: Any, address: Any) -> None:
        _merge(book, peer, _addresses((address,), ctx))

    return run


def _insert_many(op: BoundOp, env: BindEnv) -> Run:
    book = env.engine.address_book

    def run(ctx: Any, peer: Any, addresses: Any) -> None:
        if not addresses:
            raise OpError("an empty address list", where=ctx.op.spec.name)
        _merge(book, peer, _addresses(addresses, ctx))

    return run


def _addresses(given: Iterable[Any], ctx: Any) -> tuple[Address, ...]:
    """Addresses, as values of the engine or encoded, as hosts may hand them in. AddressError, OpError."""
    found = []
    for address in given:
        if isinstance(address, bytes | bytearray | memoryview):
            address = Address.from_bytes(address)
        if not isinstance(address, Address):
            raise OpError(f"no address: {address!r}", where=ctx.op.spec.name)
        found.append(address)
    return tuple(found)


def _merge(book: Any, peer: Any, addresses: tuple[Any, ...]) -> None:
    if not isinstance(peer, PeerId):
        raise OpError(f"no peer id: {peer!r}", "address book")
    if peer not in book:
        book.add_peer(peer, addresses)
    else:
        for address in addresses:
            book.register_address(peer, address)


def _lookup(op: BoundOp, env: BindEnv) -> Run:
    book = env.engine.address_book

    def run(ctx: Any, peer: Any) -> object:
        addresses = book.lookup(peer)
        if addresses is None:
            raise OpError(f"peer {peer} has no known address", where=ctx.op.spec.name)
        return tuple(addresses)

    return run


BINDERS: dict[str, Bind] = {"Insert": _insert, "InsertMany": _insert_many, "Lookup": _lookup}
