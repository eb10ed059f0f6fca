"""Lists of peers as protocol components exchange them."""

from __future__ import annotations

from typing import Any

from bb_edge.components.peer_lists import MAX_ADDRESSES, own_addresses
from bb_edge.ir.address import Address


def test_a_node_tells_its_first_addresses_as_it_was_given_them(ctx: Any) -> None:
    ctx.local_addresses = tuple(Address(site=n).to_bytes() for n in range(MAX_ADDRESSES + 1))
    assert own_addresses(ctx) == ctx.local_addresses[:MAX_ADDRESSES]


def test_a_node_without_addresses_is_reached_by_its_id(ctx: Any) -> None:
    assert own_addresses(ctx) == (Address.empty().with_peer(ctx.own_peer).to_bytes(),)
