"""Whose program does not go with the others', as one who looks from outside can tell."""

from __future__ import annotations

from bb_edge.wire.apart import apart
from bb_edge.wire.programs import ProgramClaim, pair

OLD, NEW = b"\x01" * 32, b"\x02" * 32
BETWEEN = pair("Client", "Server")


def says(peer_class: str, program: bytes, contract: bytes = b"c", accepts: tuple[bytes, ...] = ()):
    claim = ProgramClaim(program, frozenset(accepts), {BETWEEN: contract})
    return (peer_class,), claim.meta()


def test_one_that_is_behind_is_apart_and_its_server_is_not() -> None:
    fleet = {f"c{n}": says("Client", NEW) for n in range(4)} | {"server": says("Server", NEW)}
    assert apart(fleet) == {}
    assert apart({**fleet, "c2": says("Client", OLD)}) == {"c2": 1}
    assert apart({**fleet, "c2": says("Client", OLD, b"d")}) == {"c2": 1}, "what travels differs"


def test_a_server_that_is_updated_first_is_apart_from_all_and_they_from_it() -> None:
    fleet = {f"c{n}": says("Client", OLD) for n in range(4)} | {"server": says("Server", NEW)}
    assert apart(fleet) == {**{f"c{n}": 1 for n in range(4)}, "server": 4}
    taken = {**fleet, "server": says("Server", NEW, accepts=(OLD,))}
    assert apart(taken) == {}, "it lists the program of the others"


def test_who_says_nothing_or_meets_nobody_is_not_apart() -> None:
    assert apart({"server": says("Server", NEW), "c": (("Client",), {})}) == {}
    assert apart({"a": says("Client", NEW), "b": says("Client", OLD)}) == {}, "clients meet no clients"
    assert apart({"a": says("Client", NEW), "b": (("Client",), {"program": 7})}) == {}
    assert apart({}) == {}
