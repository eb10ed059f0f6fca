"""The address book's three ops (semantics §7)."""

from __future__ import annotations

from typing import Any

from bb_edge.engine.binding import Bind, BindEnv, Run
from bb_edge.engine.executions import BoundOp
from bb_edge.engine.parking import OpError


def _insert(op: BoundOp, env: BindEnv) -> Run:
    book = env.engine.address_book

    def run(ctx: Any, peer: Any, address: Any) -> None:
        _merge(book, peer, (address,))

    return run


def _insert_many(op: BoundOp, env: BindEnv) -> Run:
    book = env.engine.address_book

    def run(ctx: Any, peer: Any, addresses: Any) -> None:
        if not addresses:
            raise OpError("an empty address list", where=ctx.op.spec.name)
        _merge(book, peer, tuple(addresses))

    return run


def _merge(book: Any, peer: Any, addresses: tuple[Any, ...]) -> None:
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
