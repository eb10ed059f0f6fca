"""Places belong to the classes that a program asks for, in shares, and then to those who were seen first."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from bb_edge.ir.ids import PeerId
from bb_edge.wire.peers import PeerTable, PresenceChange
from bb_edge.wire.places import PeersFullError
from bb_edge.wire.presence import Presence, encode_presence
from tests.aids.peers import numbered

CAPACITY = 8


def size_of(presence: Presence) -> int:
    """What a presence is charged with: the bytes of its CBOR form."""
    return len(encode_presence(presence))


def up(*classes: str, meta: dict[str, object] | None = None, session: int = 0) -> Presence:
    return Presence(True, 1, classes, meta=meta or {}, session=session)


def down(*classes: str) -> Presence:
    return Presence(False, 1, classes)


def peers(first: int, count: int) -> list[PeerId]:
    return [numbered(number) for number in range(first, first + count)]


class Lost:
    """Who lost a place, and whether it was up; and who has spoken."""

    def __init__(self) -> None:
        self.told: list[tuple[PeerId, bool]] = []
        self.spoke: set[PeerId] = set()

    def table(self, asked: Iterable[str] | None, most_bytes: int = 1 << 20) -> PeerTable:
        def displaced(peer: PeerId, was_up: bool) -> None:
            self.told.append((peer, was_up))

        return PeerTable(CAPACITY, most_bytes, self.spoke.__contains__, displaced, asked)


@pytest.fixture
def lost() -> Lost:
    return Lost()


def fill(table: PeerTable, peer_class: str, found: Iterable[PeerId]) -> None:
    for peer in found:
        table.update(peer, up(peer_class))


def refused(table: PeerTable, *classes: str, peer: int = 999) -> bool:
    before = table.snapshot()
    try:
        table.update(numbered(peer), up(*classes))
    except PeersFullError:
        assert table.snapshot() == before, "a refusal changes nothing"
        return True
    return False


def test_an_asked_class_finds_a_place_among_those_merely_heard(lost: Lost) -> None:
    table, clients = lost.table(["Server"]), peers(1, CAPACITY)
    fill(table, "Client", clients)
    lost.spoke.update(clients[:-1])
    servers = peers(100, CAPACITY)
    fill(table, "Server", servers[:2])
    # first who never spoke, then who was seen last
    assert lost.told == [(clients[-1], True), (clients[-2], True)]
    assert table.up_peers("Server") == tuple(servers[:2])
    fill(table, "Server", servers[2:])
    assert table.up_peers("Client") == () and table.up_peers("Server") == tuple(servers)
    assert refused(table, "Server") and refused(table, "Client")


def test_who_is_down_makes_room_before_who_is_here_and_has_spoken(lost: Lost) -> None:
    table, clients = lost.table(["Server"]), peers(1, CAPACITY)
    fill(table, "Client", clients)
    lost.spoke.update(clients)
    table.update(clients[3], Presence(False, 1))
    fill(table, "Server", peers(100, 1))
    assert lost.told == [(clients[3], False)]


def test_a_merely_heard_class_takes_no_place_of_an_asked_one(lost: Lost) -> None:
    table, servers = lost.table(["Server"]), peers(1, CAPACITY)
    fill(table, "Server", servers)
    lost.spoke.add(servers[0])
    table.set_reachable(servers[0], False)
    table.set_reachable(servers[2], False)
    assert refused(table, "Client"), "a server that does not answer may answer yet"
    table.update(servers[1], Presence(False, 1))
    assert not refused(table, "Client"), "its presence alone brings the other one up again, with its rank"
    assert lost.told == [(servers[1], False)]
    table.set_reachable(servers[2], True)
    assert table.update(servers[1], up("Server", session=1)) is PresenceChange.UP
    assert lost.told[-1] == (numbered(999), True)


def test_no_asked_class_starves_another(lost: Lost) -> None:
    table, relays = lost.table(["Relay", "Server"]), peers(1, CAPACITY)
    fill(table, "Relay", relays)
    lost.spoke.update(relays[5:])
    servers = peers(100, 3)
    fill(table, "Server", servers[:2])  # the share: an eighth of the places, twice
    assert lost.told == [(relays[4], True), (relays[3], True)]
    assert refused(table, "Server"), "beyond its share a class waits as any other"
    table.set_reachable(servers[0], False)
    assert refused(table, "Relay"), "nor does it lose what is within its share"
    table.set_reachable(relays[0], False)
    assert not refused(table, "Relay"), "as it does not answer, and its class holds more than its share"


def test_bytes_have_shares_too(lost: Lost) -> None:
    much = up("Relay", meta={"much": "x" * 200})
    table = lost.table(["Relay", "Server"], 4 * size_of(much))
    relays = peers(1, 4)
    for relay in relays:
        table.update(relay, much)
    server, larger = numbered(100), up("Server", meta={"much": "y" * 150}, session=1)
    assert table.update(server, up("Server")) is PresenceChange.UP
    assert lost.told == [(relays[3], True)]
    fill(table, "Relay", peers(200, 1))
    told = len(lost.told)
    assert table.update(server, larger) is PresenceChange.CHANGED, "what it says anew finds room, too"
    assert lost.told[told:] and table.get(server) == larger
    assert server in table and table.bytes_held <= 4 * size_of(much)
    with pytest.raises(PeersFullError, match="peer_bytes"):
        table.update(numbered(101), up("Server", meta={"much": "z" * 2000}))


def test_one_newcomer_takes_several_places_where_bytes_are_short(lost: Lost) -> None:
    table, clients = lost.table(["Server"], 8 * size_of(up("Client"))), peers(1, CAPACITY)
    fill(table, "Client", clients)
    server = up("Server", meta={"facts": "x" * (2 * size_of(up("Client")))})
    table.update(numbered(100), server)
    assert [peer for peer, _ in lost.told] == clients[: -len(lost.told) - 1 : -1] and len(lost.told) > 1
    assert table.bytes_held <= 8 * size_of(up("Client"))


def test_a_further_class_changes_the_rank(lost: Lost) -> None:
    table, clients = lost.table(["Server"]), peers(1, CAPACITY)
    fill(table, "Client", clients)
    assert table.update(clients[-1], up("Server")) is PresenceChange.NEW_CLASS
    fill(table, "Server", peers(100, 1))
    assert lost.told == [(clients[-2], True)]
    assert table.clear(clients[-1], "Server") is PresenceChange.CHANGED
    fill(table, "Server", peers(101, 1))
    assert lost.told[1:] == [(clients[-1], True)]


def test_who_is_first_heard_of_as_down_takes_no_place_of_who_is_here(lost: Lost) -> None:
    table, clients, server = lost.table(["Server"]), peers(1, CAPACITY), numbered(100)
    fill(table, "Client", clients)
    table.update(server, down("Server"))
    assert server not in table
    table.set_reachable(clients[0], False)
    table.update(numbered(101), down("Client"))
    assert len(table) == CAPACITY and not lost.told
    table.update(server, down("Server"))
    assert table.is_down(server) and lost.told == [(clients[0], False)]
    table.set_reachable(clients[1], False)
    table.update(numbered(102), Presence(False, 1, ("Server",), meta={"much": "x" * (1 << 20)}))
    assert lost.told == [(clients[0], False)]


def test_a_table_that_shrank_keeps_the_asked_and_those_seen_first(lost: Lost) -> None:
    table = PeerTable(100, asked=["Server"])
    clients, servers = peers(1, 20), peers(100, 3)
    fill(table, "Client", clients)
    fill(table, "Server", servers)
    smaller = lost.table(["Server"])
    smaller.restore(table.snapshot())
    assert smaller.up_peers("Server") == tuple(servers)
    assert smaller.up_peers("Client") == tuple(sorted(clients[: CAPACITY - 3]))
    assert not lost.told and smaller.forgotten == 20 - (CAPACITY - 3)
    fill(smaller, "Server", peers(200, 1))
    assert lost.told == [(clients[CAPACITY - 4], True)]


def test_where_every_class_is_asked_for_nobody_who_is_here_makes_room(lost: Lost) -> None:
    table, clients = lost.table(None), peers(1, CAPACITY)
    fill(table, "Client", clients)
    assert refused(table, "Server")
    table.set_reachable(clients[0], False)
    assert not refused(table, "Server") and lost.told == [(clients[0], False)]


def test_who_is_of_no_class_is_merely_heard(lost: Lost) -> None:
    """A will's topic alone tells of a life before its classes do."""
    table, others = lost.table(["Server"]), peers(1, CAPACITY)
    for peer in others:
        table.update(peer, up())
    fill(table, "Server", peers(100, 1))
    assert lost.told == [(others[-1], True)]
