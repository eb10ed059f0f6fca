"""Simulated time: who is polled, in which order things come, and what a trace depends on."""

from __future__ import annotations

from typing import Any

import pytest
from arrays import f32
from asking import Federation, changed, registry
from times import MS, S

from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.transport.in_process import Arrival, Simulation, keyed_number


@pytest.fixture
def federation(compile_text):
    return lambda clients: Federation(compile_text(changed()), clients)


def counted(node: Any) -> list[int]:
    """The times of the node's polls from now on."""
    times: list[int] = []
    poll = node.poll

    def polled(now_ns: int) -> Any:
        times.append(now_ns)
        return poll(now_ns)

    node.poll = polled
    return times


def test_who_has_nothing_to_do_is_not_polled(federation):
    f = federation(6)
    polls = [counted(client) for client in f.clients]
    f.sim.run(for_ns=10 * S)
    quiet = [len(times) for times in polls]
    f.server.invoke("Server", {"x": f32(1, 2)})
    f.sim.run(for_ns=100 * MS)
    assert all(len(times) > before for times, before in zip(polls, quiet, strict=True))
    assert sum(quiet) <= 6, "a deadline of its own, no more"


def test_what_comes_at_one_time_is_ordered_by_sender_and_number_and_not_by_arrival(compile_text):
    server = install(
        PeerId.from_name("s"), (), compile_text(changed()), ["Server"], seed=1, registry=registry()
    )
    seen: list[tuple[PeerId, bytes]] = []
    server.deliver_inbound = lambda data, peer, observed=None: seen.append((peer, bytes(data)))
    sim = Simulation(presence=False)
    sim.add(server)
    senders = sorted(PeerId.from_name(name) for name in ("a", "b", "c"))
    wanted = [(peer, bytes([number])) for peer in senders for number in (1, 2)]
    for peer, data in reversed(wanted):
        sim.arrive([Arrival(5 * MS, server.peer_id, peer, data[0], (b"", data))])
    sim.run(for_ns=S)
    assert seen == wanted


def test_a_delay_is_a_function_of_the_pair_and_the_number(federation):
    a, b = PeerId.from_name("a"), PeerId.from_name("b")
    sim = Simulation(seed=4, latency_ns=MS, jitter_ns=10 * MS)
    drawn = [sim.delay_ns(a, b, number) for number in range(200)]
    assert drawn == [Simulation(4, MS, 10 * MS).delay_ns(a, b, number) for number in range(200)]
    assert drawn != [sim.delay_ns(b, a, number) for number in range(200)]
    assert drawn != [Simulation(5, MS, 10 * MS).delay_ns(a, b, number) for number in range(200)]
    assert MS <= min(drawn) < 2 * MS and 10 * MS < max(drawn) < 11 * MS


def test_keyed_numbers_tell_their_keys_apart():
    found = {
        keyed_number(seed, what, *key)
        for seed in (0, 1)
        for what in ("a", "b")
        for key in ((1,), (1, 2), (b"1",))
    }
    assert len(found) == 12


def test_keyed_numbers_are_those_of_every_version():
    for _ in range(2):  # what is kept of the first draw changes no other one
        assert keyed_number(0, "a", 1) == 18418009523991351580
        assert keyed_number(7, "delay", b"x", -3) == 1696487063794265698


def test_a_trace_does_not_depend_on_who_was_added_first(compile_text):
    found = []
    for order in (("Server", "Client"), ("Client", "Server")):
        sim = Simulation(seed=2, jitter_ns=3 * MS)
        nodes = {}
        for target in order:
            peer = PeerId.from_name(target)
            nodes[target] = install(
                peer, (), compile_text(changed()), [target], seed=len(target), registry=registry()
            )
            sim.add(nodes[target])
        sim.run(for_ns=S)
        nodes["Server"].invoke("Server", {"x": f32(1, 2)})
        sim.run(for_ns=S)
        found.append((sim.trace_hash(), sim.delivered))
    assert found[0] == found[1] and found[0][1] >= 2


def test_what_nobody_here_takes_is_handed_on_or_wakes_somebody(compile_text):
    data = compile_text(changed())
    server = install(PeerId.from_name("s"), (), data, ["Server"], seed=1, registry=registry())
    client = install(PeerId.from_name("c"), (), data, ["Client"], seed=2, registry=registry())
    outside: list[Arrival] = []
    sim = Simulation(elsewhere=outside.append)
    for node in (server, client):
        sim.add(node)
    sim.run(for_ns=S)
    sim.remove(client.peer_id)
    server.invoke("Server", {"x": f32(1, 2)})
    sim.run(for_ns=10 * MS)
    (question,) = outside
    assert question.target == client.peer_id and sim.lost == 0
    woken: list[PeerId] = []

    def wake(arrival: Arrival) -> bool:
        woken.append(arrival.target)
        if arrival.target == client.peer_id:
            sim2.add(client)
        return arrival.target == client.peer_id

    sim2 = Simulation(wake=wake)
    sim2.arrive([question])
    sim2.run(for_ns=S)
    assert woken == [client.peer_id, server.peer_id], "the client, and then whom it answers"
    assert sim2.delivered == 1 and sim2.lost == 1


@pytest.mark.parametrize("epoch", [1, 2**56 - 1])
def test_a_node_has_the_epoch_that_others_were_told_of_before_it_was_installed(compile_text, epoch):
    node = install(
        PeerId.from_name("s"),
        (),
        compile_text(changed()),
        ["Server"],
        seed=1,
        epoch=epoch,
        registry=registry(),
    )
    assert node.epoch == epoch
