"""The global registry as a network of nodes under simulated time (no presence unless said)."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

from typing import Any

import pytest
from simulations import advance, failures
from times import MS, S

from bb_edge.components import GlobalRegistryClient, GlobalRegistryServer
from bb_edge.engine import steps
from bb_edge.installer import SlotBindingConflict, install
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.roles import TRIGGER, ComponentEnv, ComponentError, ComponentStateError
from bb_edge.transport.in_process import Simulation
from bb_edge.wire import cbor, envelope
from bb_edge.wire.envelope import Envelope, Fill

REGISTRY = """program Demo {module=Demo, binding.Server.reg="peer_selector|bb.GlobalRegistryServer|4", binding.Client.reg="peer_selector|bb.GlobalRegistryClient|4"}
function program.Server(go: Trigger) -> () {entry=1, partition=Server}
  slot reg: peer_selector peer_class=Client
  view: PeerIdVec = role.peer_selector.CurrentView(go) {slot=reg, control_inputs=1}
  syscall.AppEmit<name="server">(view)
function program.Client(go: Trigger) -> () {entry=1, partition=Client}
  slot reg: peer_selector peer_class=Client
  view: PeerIdVec = role.peer_selector.CurrentView(go) {slot=reg, control_inputs=1}
  syscall.AppEmit<name="client">(view)
"""

TTL = 9 * S


class Net:
    """One registry and 24 clients that know its name only."""

    def __init__(self, compile_text: Any, clients: int = 24, server: dict[str, object] | None = None) -> None:
        self.sim = Simulation(seed=2, presence=False)
        self.data = compile_text(REGISTRY)
        self.config = server or {}
        self.server = self.serve()
        self.clients = [self.client(n) for n in range(clients)]

    def serve(self, seed: int = 1) -> Any:
        node = install(
            PeerId.from_name("hub"), (), self.data, ["Server"], components={"reg": self.config}, seed=seed
        )
        self.sim.add(node)
        return node

    def client(self, n: int) -> Any:
        address = Address.empty().with_peer(PeerId.from_name(f"c{n}"))
        node = install(
            PeerId.from_name(f"c{n}"), (address.to_bytes(),), self.data, ["Client"],
            components={"reg": {"server_name": "hub", "ttl_ns": TTL}}, seed=50 + n,
        )  # fmt: skip
        self.sim.add(node)
        return node

    def view(self, node: Any) -> set[PeerId]:
        class Now:
            now_ns = self.sim.now_ns
            own_peer = node.peer_id

        return set(node.component("reg").current_view(Now))


@pytest.fixture
def net(compile_text):
    return Net(compile_text)


def ids(nodes: Any) -> set[PeerId]:
    return {node.peer_id for node in nodes}


def test_everybody_is_known_after_a_heartbeat(net):
    advance(net.sim, TTL)
    assert net.view(net.server) == ids(net.clients)
    for client in net.clients:
        assert net.view(client) == ids(net.clients) - {client.peer_id}
        assert client.component("reg").announcements == 1
    net.server.invoke("Server", {"go": TRIGGER})
    net.clients[0].invoke("Client", {"go": TRIGGER})
    advance(net.sim, S)
    assert set(net.sim.events("server")[0].value) == ids(net.clients)
    assert len(net.sim.events("client")[0].value) == len(net.clients) - 1
    assert failures(net.sim) == []


def test_a_node_that_is_server_and_client_is_a_member_too(net, compile_text):
    net.sim.remove(net.server.peer_id)
    both = compile_text(REGISTRY.replace("bb.GlobalRegistryClient", "bb.GlobalRegistryServer"))
    hub = install(PeerId.from_name("hub"), (), both, ["Server", "Client"], seed=9)
    net.sim.add(hub)
    advance(net.sim, 10 * TTL)
    assert net.view(hub) == ids(net.clients) | {hub.peer_id}
    for client in net.clients:
        assert net.view(client) == ids([*net.clients, hub]) - {client.peer_id}
        assert client.inspect().peers[str(hub.peer_id)]["addresses"]
    hub.invoke("Client", {"go": TRIGGER})
    advance(net.sim, S)
    assert set(net.sim.events("client")[-1].value) == ids(net.clients) | {hub.peer_id}
    with pytest.raises(SlotBindingConflict, match="GlobalRegistryClient"):
        install(PeerId.from_name("odd"), (), net.data, ["Server", "Client"], seed=9)


def reborn(net: Net, node: Any, target: str, config: dict[str, object], down_ns: int = 0) -> Any:
    """The node goes, and comes back from its snapshot."""
    data = node.snapshot(net.sim.now_ns)
    net.sim.remove(node.peer_id)
    advance(net.sim, down_ns)
    addresses = (Address.empty().with_peer(node.peer_id).to_bytes(),) if target == "Client" else ()
    again = install(
        node.peer_id,
        addresses,
        net.data,
        [target],
        components={"reg": config},
        seed=77,
        snapshot=data,
        now_ns=net.sim.now_ns,
    )
    net.sim.add(again)
    return again


def test_a_registry_that_comes_back_knows_its_members_and_forgets_who_went_meanwhile(net):
    advance(net.sim, 5 * TTL)
    version = net.server.component("reg").version
    gone = net.clients.pop()
    net.sim.remove(gone.peer_id)
    hub = reborn(net, net.server, "Server", net.config, down_ns=TTL)
    assert net.view(hub) == ids(net.clients) | {gone.peer_id}, "who has gone had its time again"
    assert hub.component("reg").version == version
    advance(net.sim, 5 * TTL)
    assert net.view(hub) == ids(net.clients)
    assert hub.component("reg").expired == 1
    for client in net.clients:
        assert net.view(client) == ids(net.clients) - {client.peer_id}


def test_a_client_that_comes_back_is_registered_and_has_its_view(net):
    advance(net.sim, 5 * TTL)
    client = net.clients[3]
    view, beats = net.view(client), client.component("reg").heartbeats
    again = reborn(net, client, "Client", {"server_name": "hub", "ttl_ns": TTL})
    component = again.component("reg")
    assert net.view(again) == view == ids(net.clients) - {client.peer_id}
    assert component.registered and component.heartbeats == beats > 3
    advance(net.sim, 5 * TTL)
    assert component.heartbeats > beats + 3 and component.announcements == 1
    assert net.view(net.server) == ids(net.clients)


@pytest.mark.parametrize("changed", ["members", "own_classes", "view", "number", "timer"])
def test_damaged_states_of_the_registry_are_refused(net, changed):
    advance(net.sim, TTL)
    for node in (net.server, net.clients[0]):
        component = node.component("reg")
        state = cbor.loads(component.serialize(), max_items=10_000)
        assert isinstance(state, dict)
        component.restore(cbor.dumps(state))
        if changed not in state:
            continue
        for wrong in (None, "x", [[b"x", 1, []]], [[b"x", 1, [], []]], [7], [[7, 7, 7, 7]]):
            with pytest.raises(ComponentStateError, match=component.TYPE_NAME):
                component.restore(cbor.dumps({**state, changed: wrong}))
    with pytest.raises(ComponentStateError, match="24 peers, 3 at most"):
        small = GlobalRegistryServer("Client", max_peers=3)
        small.restore(net.server.component("reg").serialize())


def test_the_handshake_brings_addresses(net):
    advance(net.sim, TTL)
    one, other = net.clients[:2]
    addresses = one.inspect().peers[str(other.peer_id)]["addresses"]
    assert addresses == [str(Address.empty().with_peer(other.peer_id))]
    assert net.server.inspect().peers[str(one.peer_id)]["addresses"]


def test_nothing_is_said_twice_while_nothing_changes(net):
    advance(net.sim, 2 * TTL)
    version = net.server.component("reg").version
    sent = net.server.counters["wire.sent_bytes"]
    advance(net.sim, 2 * TTL)
    assert net.server.component("reg").version == version
    beats = 24 * 6
    assert net.server.counters["wire.sent_bytes"] - sent < beats * 150, "a heartbeat's answer is small"


def test_who_is_silent_is_forgotten_by_all(net):
    advance(net.sim, TTL)
    gone = net.clients.pop()
    net.sim.remove(gone.peer_id)
    advance(net.sim, TTL // 2)
    assert gone.peer_id in net.view(net.server)
    advance(net.sim, TTL)
    assert net.view(net.server) == ids(net.clients) and net.server.component("reg").expired == 1
    advance(net.sim, TTL // 2)
    assert all(gone.peer_id not in net.view(client) for client in net.clients)


def test_who_says_goodbye_is_forgotten_at_once(net):
    advance(net.sim, TTL)
    leaver = net.clients.pop()
    leaver.fire_lifecycle(steps.Phase.SHUTDOWN)
    advance(net.sim, S // 10)
    assert net.view(net.server) == ids(net.clients)


def test_a_server_that_comes_back_empty_is_told_anew(net):
    advance(net.sim, TTL)
    net.sim.remove(net.server.peer_id)
    advance(net.sim, 2 * TTL)
    assert not any(client.component("reg").registered for client in net.clients)
    assert len(net.view(net.clients[0])) == len(net.clients) - 1, "the last view stays"
    net.server = net.serve(seed=9)
    advance(net.sim, 30 * S)
    assert net.view(net.server) == ids(net.clients)
    assert all(client.component("reg").registered for client in net.clients)


def test_a_server_that_forgot_its_clients_is_told_at_once(net):
    advance(net.sim, TTL)
    net.server.component("reg").restore(GlobalRegistryServer("Client").serialize())
    advance(net.sim, TTL // 3 + S)
    assert net.view(net.server) == ids(net.clients)


def test_a_newcomer_beyond_the_bound_waits_for_a_place(compile_text):
    net = Net(compile_text, clients=5, server={"max_peers": 4})
    advance(net.sim, TTL)
    inside = [c for c in net.clients if c.component("reg").registered]
    (outside,) = [c for c in net.clients if not c.component("reg").registered]
    assert len(net.view(net.server)) == 4 and net.server.component("reg").refused > 0
    inside[0].fire_lifecycle(steps.Phase.SHUTDOWN)
    advance(net.sim, MS * 10)
    net.sim.remove(inside[0].peer_id)
    advance(net.sim, 60 * S)
    assert outside.component("reg").registered


@pytest.mark.parametrize("op", ["Announce", "Heartbeat", "Leave"])
@pytest.mark.parametrize("payload", [b"", b"\xff", cbor.dumps([]), cbor.dumps({"classes": 3, "ttl_ns": "x"})])
def test_hostile_announcements_change_nothing(compile_text, op, payload):
    net = Net(compile_text, clients=1)
    advance(net.sim, S)
    suffix = Address.empty().with_component(4, op).to_bytes()
    for node in (net.server, net.clients[0]):
        bad = Envelope(fills=[Fill(suffix, payload, False, 0x0B)], kind=envelope.REQUEST, wire_req_id=5)
        node.deliver_inbound(envelope.encode(bad), PeerId.from_name("x"))
    advance(net.sim, S // 10)
    assert net.view(net.server) == ids(net.clients)
    assert net.clients[0].counters["components.failed"] == 1


@pytest.mark.parametrize(
    ("kind", "config", "says"),
    [
        (GlobalRegistryClient, {}, "server"),
        (GlobalRegistryClient, {"server_name": "a", "server": "b"}, "server"),
        (GlobalRegistryClient, {"server": "0OIl"}, "peer id"),
        (GlobalRegistryClient, {"server_name": "a", "ttl_ns": 5}, "ttl_ns"),
        (GlobalRegistryServer, {"max_peers": 5000}, "max_peers"),
    ],
)
def test_the_registrys_configuration_is_checked(kind, config, says):
    with pytest.raises(ComponentError, match=says):
        kind.construct(ComponentEnv("reg", config=config))
