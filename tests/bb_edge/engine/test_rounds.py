"""Rounds: they wait for the peers that they need, and count only where they reach somebody."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

import pytest
from asking import Moody
from connections import first_connection
from kinds_of_steps import of

from bb_edge.components import PresenceSelector
from bb_edge.engine import steps
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.registry import Registry
from bb_edge.transport.in_process import Simulation

S = 1_000_000_000
MS = 1_000_000

PROGRAM = """
program Demo {module=Demo, targets="Server,Client", binding.Server.peers="peer_selector|bb.PresenceSelector|1", binding.Client.codec="codec|test.Moody|1"}
function program.Server() -> () {entry=1, partition=Server}
  slot peers: peer_selector peer_class=Client
  round: I64[] = syscall.Repeat<times=3, pause_ns=1000000>()
  some: PeerIdVec = role.peer_selector.Sample<n=9, min=MIN>(round) {slot=peers, control_inputs=1}
  x: F32[] = Cast<to=1>(round)
  syscall.AppEmit<name="began">(round)
  SEND
function program.Client() -> () {entry=1, partition=Client}
  slot codec: codec
  ANSWER
"""
ASK = """req: WireReqId = wire.SendReqBatched(x, some, some) {wire.wire_id=1, wire.site_ids=aa, deadline_ns=1000000000, wire.answer_mode=batch, port=ask}
  closed: Trigger, missing: PeerIdVec, all: Tensor = wire.RecvRespBatched(req) {wire.wire_id=2, wire.request=1, wire.site_ids=bb}
  syscall.AppEmit<name="missing">(missing)"""
ANSWER = """x: F32[], sender: PeerIdVec, req: WireReqId = wire.RecvReq() {wire.wire_id=1, wire.site_ids=aa}
  y: Tensor = role.compressor.Compress(x) {slot=codec}
  h: Trigger = wire.SendResp(y, sender, req) {wire.wire_id=2, wire.site_ids=bb, wire.request=1}"""
TELL = "h: Trigger = wire.Send(x, some) {wire.wire_id=1, wire.site_ids=aa, wire.type_hashes=101}"
HEAR = """x: F32[], from: PeerIdVec = wire.Recv() {wire.wire_id=1, wire.site_ids=aa, wire.type_hashes=101}
  y: Tensor = role.compressor.Compress(x) {slot=codec}
  syscall.AppEmit<name="heard">(y)"""


class Blind(PresenceSelector):
    """Samples without looking at its view, which it cannot give."""

    TYPE_NAME = "test.Blind"

    def sample(self, ctx, *, n, min=0):
        return super().current_view(ctx)

    def current_view(self, ctx):
        raise OSError("no eyes")


class Slow(Blind):
    """Would give its view later."""

    TYPE_NAME = "test.Slow"

    def current_view(self, ctx):
        return ctx.later()


class World:
    def __init__(
        self,
        compile_text,
        least: int,
        send: str = ASK,
        answer: str = ANSWER,
        times: int = 3,
        selector: str = "bb.PresenceSelector",
    ) -> None:
        text = (
            PROGRAM.replace("MIN", str(least))
            .replace("times=3", f"times={times}")
            .replace("SEND", send)
            .replace("ANSWER", answer)
            .replace("bb.PresenceSelector", selector)
        )
        self.data = compile_text(text)
        self.sim = Simulation(seed=3)
        self.server = self.add("hub", "Server", 1)
        self.clients = []

    def add(self, name, target, seed):
        registry = Registry()
        registry.register(Moody)
        registry.register(Blind)
        registry.register(Slow)
        now = {"now_ns": self.sim.now_ns}
        node = install(PeerId.from_name(name), (), self.data, [target], seed=seed, registry=registry, **now)
        self.sim.add(node)
        return node

    def join(self, mood="well"):
        number = len(self.clients)
        self.clients.append(self.add(f"c{number}", "Client", 10 + number))
        self.clients[-1].component("codec").mood = mood
        return self.clients[-1]

    def of(self, kind):
        return of(kind, (s.step for s in self.sim.seen if s.peer == self.server.peer_id))

    def began(self):
        return [int(event.value) for event in self.sim.events("began")]


@pytest.mark.parametrize(("send", "answer"), [(ASK, ANSWER), (TELL, HEAR)])
def test_a_round_waits_for_its_peers_without_running(compile_text, send, answer):
    world = World(compile_text, 3, send, answer)
    world.sim.run(for_ns=200 * S)
    assert [s.again for s in world.of(steps.RoundWaits)] == [False, True], "at once, and then as a warning"
    assert {(s.target, s.round, s.peer_class, s.there, s.wanted) for s in world.of(steps.RoundWaits)} == {
        ("Server", 1, "Client", 0, 3)
    }
    for _ in range(2):
        world.join()
        world.sim.run(for_ns=100 * S)
    assert world.began() == [] and not world.of(steps.RequestClosed)
    assert world.server.counters["rounds.waited"] == 1
    assert "rounds.backed_off" not in world.server.counters
    world.join()
    world.sim.run(for_ns=100 * MS)
    assert world.began() == [1, 2, 3], "the third peer starts it at once"
    assert world.of(steps.RoundsCompleted) == [steps.RoundsCompleted("Server", 3)]


def test_a_wait_in_the_middle_is_said_again_and_outlives_a_restart(compile_text):
    world = World(compile_text, 1)
    client = world.join()
    world.sim.run(until=lambda: world.began() == [1])
    world.sim.remove(client.peer_id)
    world.sim.run(for_ns=50 * S)
    said = world.of(steps.RoundWaits)
    assert [s.again for s in said] == [False, False, True], "at the start, before anybody was known, and now"
    kept = world.server.snapshot(world.sim.now_ns)
    again = install(
        world.server.peer_id, (), world.data, ["Server"], seed=9, snapshot=kept, now_ns=world.sim.now_ns
    )
    world.sim.add(again)
    world.sim.run(for_ns=50 * S)
    before = len(world.began())
    world.sim.add(client)
    world.sim.run(for_ns=S)
    assert len(world.began()) > before and again.open_rounds == 0
    assert [s.again for s in world.of(steps.RoundWaits)[3:]] == [True], (
        "and once by the node that was restarted"
    )


def test_who_lacks_later_is_said_again(compile_text):
    world = World(compile_text, 3)
    world.sim.run(for_ns=100 * S)
    world.join()
    world.sim.run(for_ns=200 * S)
    assert [(s.there, s.wanted) for s in world.of(steps.RoundWaits)] == [(0, 3), (0, 3), (1, 3)]


def test_a_round_whose_peers_are_all_missing_is_not_counted(compile_text):
    world = World(compile_text, 1)
    bad = world.join("fails")
    world.sim.run(for_ns=5 * S)
    backed_off = world.of(steps.RoundBackedOff)
    assert [s.in_a_row for s in backed_off] == list(range(1, len(backed_off) + 1))
    assert {(s.round, s.reason) for s in backed_off} == {(1, "no answer counts")}
    assert {s.op.partition("_")[0] for s in backed_off} == {"Repeat"}
    assert set(world.began()) == {1} and "rounds.ended" not in world.server.counters
    bad.component("codec").mood = "well"
    world.sim.run(for_ns=100 * S)
    assert world.began()[-3:] == [1, 2, 3]
    assert world.server.open_rounds == 0


def test_a_round_counts_where_one_of_its_peers_is_heard(compile_text):
    world = World(compile_text, 2)
    world.join("fails")
    world.join()
    world.sim.run(for_ns=S)
    assert world.began() == [1, 2, 3] and world.server.counters["rounds.ended"] == 3


def test_a_failing_peer_counts_towards_min_so_that_nobody_waits_for_it(compile_text):
    world = World(compile_text, 3, times=200)
    world.join("fails")
    world.join()
    world.join()
    world.sim.run(for_ns=3 * S)
    assert [s.failing for s in world.of(steps.PeerFailing)] == [True]
    assert world.began()[-1] == 200 and len(world.of(steps.RoundWaits)) == 1, "before anybody was there"


def test_a_wait_names_the_peers_that_are_there_and_failing(compile_text):
    world = World(compile_text, 3, times=200)
    bad = [world.join("fails") for _ in range(2)]
    good = world.join()
    world.sim.run(for_ns=100 * MS)
    assert len(world.of(steps.PeerFailing)) == 2
    world.sim.remove(good.peer_id)
    world.sim.run(for_ns=20 * S)
    assert world.of(steps.RoundWaits)[-1].failing == tuple(sorted(node.peer_id for node in bad))
    assert world.of(steps.RoundWaits)[-1].next_try_ns == 0, (
        "their trials are due: they lack nobody but the one that went"
    )


def test_a_mute_peer_that_all_are_waited_for_is_named_with_the_time_until_its_next_trial(compile_text):
    """It is tried when that time is over, and the round runs without it."""
    world = World(compile_text, 3, times=0)
    mute = world.join().peer_id
    world.join()
    world.join()
    world.sim.connect(mute, False)
    world.sim.run(for_ns=400 * S)
    waits = [s for s in world.of(steps.RoundWaits) if s.failing]
    assert {s.failing for s in waits} == {(mute,)}
    assert max(s.next_try_ns for s in waits) > 10 * S
    assert all(0 <= s.next_try_ns <= 60 * S for s in waits)
    before = len(world.began())
    world.sim.run(for_ns=130 * S)
    assert len(world.began()) > before, "a wait is bounded"


def test_a_view_that_fails_is_told_and_the_round_runs(compile_text):
    world = World(compile_text, 1, selector="test.Blind")
    world.join()
    world.sim.run(for_ns=50 * S)
    assert world.began()[-3:] == [1, 2, 3]
    told = world.of(steps.OpFailed)
    assert {step.text.partition(", at")[0] for step in told} == {
        "slot 'peers' (test.Blind.current_view): OSError: no eyes"
    }
    assert world.server.counters["components.failed"] == len(told) >= 3


def test_a_selector_that_would_tell_later_how_many_there_are_is_refused_by_name(compile_text):
    """It spoke as the op that had run last, and parked that one."""
    world = World(compile_text, 2, selector="test.Slow")
    world.join()
    world.sim.run(for_ns=S)
    assert world.began()[-3:] == [1, 2, 3]
    told = world.of(steps.OpFailed)
    where = "slot 'peers' (test.Slow.current_view): no op to answer later for"
    assert told and all(step.text.startswith(where) for step in told), told[0].text
    assert world.server.inspect().parked == []


def test_a_peer_that_answers_again_ends_the_back_off(compile_text):
    world = World(compile_text, 1, times=200)
    bad = world.join("fails")
    world.sim.run(until=lambda: any(s.failing for s in world.of(steps.PeerFailing)))
    bad.component("codec").mood = "well"
    world.sim.run(until=lambda: [s.failing for s in world.of(steps.PeerFailing)] == [True, False])
    world.sim.run(for_ns=S)
    assert world.of(steps.RoundBackedOff)[-1].wait_ns > 8 * S
    assert world.began()[-1] > 1, "the rounds go on at once"


def test_a_round_that_tells_nobody_is_not_counted(compile_text):
    world = World(compile_text, 0, TELL, HEAR)
    world.sim.run(for_ns=4 * S)
    assert {(s.round, s.reason) for s in world.of(steps.RoundBackedOff)} == {(1, "nobody told")}
    world.join()
    world.sim.run(for_ns=S)
    assert world.server.open_rounds == 0 and len(world.sim.events("heard")) == 3


def test_a_round_that_neither_asks_nor_tells_counts(compile_text):
    world = World(compile_text, 0, 'syscall.AppEmit<name="x">(x)')
    world.sim.run(for_ns=S)
    assert world.began() == [1, 2, 3] and not world.of(steps.RoundBackedOff)


def test_a_sample_that_may_not_come_holds_nothing_up(compile_text):
    """It waits for an answer of the same round: nobody knows before whether it will be."""
    late = ASK.replace(
        "\n",
        '\n  more: PeerIdVec = role.peer_selector.Sample<n=9, min=5>(closed) {slot=peers, control_inputs=1}\n  syscall.AppEmit<name="more">(more)\n',
        1,
    )
    late = "\n".join(
        [late.splitlines()[0], late.splitlines()[3], *late.splitlines()[1:3], *late.splitlines()[4:]]
    )
    world = World(compile_text, 1, late)
    world.join()
    world.sim.run(for_ns=S)
    assert world.began() == [1, 2, 3]
    assert [event.value for event in world.sim.events("more")] == [(), (), ()]


def test_a_round_waits_for_the_connection_and_for_those_that_are_heard_of_behind_it(compile_text):
    """It began without one, cost the deadline, and the next ones those of peers that had yet to find the broker."""
    world = World(compile_text, 2, times=0)
    first, second = (world.join().peer_id for _ in range(2))
    server = world.server.peer_id
    first_connection(world.sim, server)
    for peer in (server, first, second):
        world.sim.connect(peer, False)
    world.sim.run(for_ns=3 * S)
    before = len(world.began())
    world.sim.run(for_ns=20 * S)
    assert len(world.began()) == before
    waits = [s for s in world.of(steps.RoundWaits) if s.offline]
    assert [(s.there, s.wanted, s.failing, s.again) for s in waits] == [(0, 2, (), False), (0, 2, (), True)]
    world.sim.connect(server, True)
    world.sim.connect(first, True)
    world.sim.run(for_ns=3 * S)
    assert len(world.began()) == before, "there would be two, and it has heard of one"
    world.sim.connect(second, True)
    closed = len(world.of(steps.RequestClosed))
    world.sim.run(for_ns=100 * MS)
    assert len(world.began()) > before + 10, "at once, and not with the next count"
    assert all(not s.missing for s in world.of(steps.RequestClosed)[closed:])


def test_a_round_waits_for_whom_it_hears_nothing_of_no_longer_than_the_others_take_to_dial(compile_text):
    world = World(compile_text, 1, times=0)
    gone = world.join().peer_id
    first_connection(world.sim, world.server.peer_id)
    for peer, up in ((world.server.peer_id, False), (gone, False), (world.server.peer_id, True)):
        world.sim.connect(peer, up)
    before = len(world.began())
    world.sim.run(for_ns=25 * S)
    assert len(world.began()) <= before + 1
    world.sim.run(for_ns=50 * S)
    assert len(world.began()) > before + 1
    assert {why for s in world.of(steps.RequestClosed)[-2:] for _, why in s.missing} == {"deadline"}
