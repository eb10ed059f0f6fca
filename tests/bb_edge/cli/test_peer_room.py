"""Whether the peers that a program needs at once find places: `check` reckons as nodes are charged."""

from __future__ import annotations

import re

import pytest

from bb_edge import NodeConfig, PeerId, install
from bb_edge.capacity import Finding, Level, findings, refusals
from bb_edge.cli import main
from bb_edge.components import PresenceSelector
from bb_edge.engine.program.program import Program
from bb_edge.ir.address import peer_address
from bb_edge.loading import load
from bb_edge.peer_room import least_presence
from bb_edge.targets import InstallError
from bb_edge.wire.peers import PeerTable
from bb_edge.wire.presence import Presence
from bb_host import Compiler, Module, PeerSelectorSlot, S
from bb_host.build import build_edge

EDGE = NodeConfig.edge()


class Tower(Module):
    """A server asks gateways, and each gateway asks its clients."""

    home = "Server"
    gateways = PeerSelectorSlot("gateways", PresenceSelector, peer_class="Gateway", at="Server")
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client", at="Gateway")

    def body(self, g):
        with g.rounds(3) as start:
            r = g.request(
                "site", self.gateways.sample(g, n=4, min=1, after=start), start.round, deadline_ns=8 * S
            )
            q = g.request(
                "client", self.clients.sample(g, n=8, min=2, after=r.value), r.value, deadline_ns=5 * S
            )
            q.reply(q.value)
            r.reply(r.value, after=q.closed)
            g.app_emit("answer", r.answer)


@pytest.fixture(scope="module")
def artifacts() -> dict[str, bytes]:
    """The artifact of each class."""
    return {one.target: one.data for one in build_edge(Tower(), Compiler()).artifacts}


@pytest.fixture(scope="module")
def tower(artifacts) -> dict[str, Program]:
    return {name: load(data) for name, data in artifacts.items()}


def found(program: Program, **limits: int) -> list[Finding]:
    return findings(program, tuple(program.targets.values()), EDGE.with_(**limits))


def refused(program: Program, **limits: int) -> str:
    (finding,) = refusals(found(program, **limits))
    (target,) = program.targets
    with pytest.raises(InstallError, match=re.escape(finding.what)):
        install(PeerId.from_name("x"), (), program, [target], EDGE.with_(**limits))
    return str(finding)


@pytest.mark.parametrize(
    ("asker", "peer", "more"), [("Gateway", "Client", 0), ("Client", "Gateway", 32), ("Gateway", "Server", 0)]
)
def test_no_presence_of_the_program_is_smaller(tower, asker, peer, more):
    """It was reckoned with 128 bytes, and had some 290: what had room for two of them took none.

    A gateway says besides what travels between it and the server, which a client's artifact does not know.
    """
    node = install(PeerId.from_name("a"), (), tower[peer], [peer], EDGE)
    meta = {**node.presence_meta, "limits": [1, 1, 1, 1]}
    table, address = PeerTable(), (peer_address(node.peer_id),)
    table.update(node.peer_id, Presence(True, node.epoch, node.classes, address, meta, session=1, seq=1))
    assert table.bytes_held == least_presence(tower[asker], peer) + more


def test_as_many_places_as_the_round_waits_for(tower):
    each = least_presence(tower["Gateway"], "Client")
    told = refused(tower["Gateway"], peer_bytes=2 * each - 1)
    assert "request 'client': it waits for 2 peers" in told and "has room for 1 at most" in told
    assert "raise limits.peer_bytes to 8192" in told


@pytest.mark.parametrize("short", ["max_peers", "peer_bytes"])
def test_a_node_that_is_asked_and_asks_has_places_for_both_sides(tower, short):
    """It passed, and either the one who asks or those who are asked had no place: no round counted."""
    gateway = tower["Gateway"]
    need = 3
    if short == "peer_bytes":
        need = 2 * least_presence(gateway, "Client") + least_presence(gateway, "Server")
    told = refused(gateway, **{short: need - 1})
    assert told.startswith("Gateway: it deals with 2 of class Client and 1 of class Server at the same time")
    assert f"{short} is {need - 1} (raise limits.{short} to {3 if short == 'max_peers' else 3072}" in told
    assert not refusals(found(gateway, **{short: need}))


def test_one_place_is_enough_for_who_deals_with_one_class(tower):
    assert found(tower["Client"], max_peers=1) == []
    (note,) = found(tower["Server"], max_peers=1)
    assert note.level is Level.WARNING and "it asks 4 peers, and max_peers is 1" in str(note)


def test_the_check_of_a_configuration_says_so(artifacts, configured, capsys):
    path = configured(targets=["Gateway"], limits={"max_peers": 2})
    (path.parent / "program.onnx").write_bytes(artifacts["Gateway"])
    assert main(["check", "--config", str(path)]) == 1
    out = capsys.readouterr().out
    assert "refused: Gateway: it deals with 2 of class Client and 1 of class Server" in out
    assert out.count("it deals with") == 1
