"""Executions, requests, parked ops and claims have every field of theirs in the restored node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from envelopes import durable_message
from kinds_of_steps import of
from snapshots import body_of, look, resealed

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine import steps
from bb_edge.engine.plain import dump
from bb_edge.engine.snapshot import SnapshotDamagedError
from bb_edge.engine.steps import AppEvent, Journal, OpFailed, PeerResolveFailed, SendEnvelope
from bb_edge.node import Node
from bb_edge.wire import envelope
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.envelope import REQUEST, RESPONSE

MS, S = 1_000_000, 1_000_000_000
HERE = b"\xe2\x01" + bytes(8)
SELF, A, B, C = (PeerId.from_name(name) for name in ("node", "a", "b", "c"))


def told(found: list[steps.EngineStep]) -> list[tuple[str, object]]:
    return [(s.topic, dump(s.value)) for s in of(AppEvent, found)]


# --- a world that has something of everything -----------------------------------------------------------

SAY = "wire.wire_id=3, wire.site_ids=c1, wire.type_hashes=101"
ASK = "wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101"
REPLY = "wire.wire_id=2, wire.request=1, wire.site_ids=b1, wire.type_hashes=101"
ASK_ALL = "wire.wire_id=5, wire.site_ids=a2, wire.type_hashes=101"
REPLY_ALL = "wire.wire_id=6, wire.request=5, wire.site_ids=b2, wire.type_hashes=101"
MANY = ", ".join(str(float(n)) for n in range(64))
TEXT = f"""
program Demo {{module=Demo}}
function program.Main(x: F32[1], all: PeerIdVec) -> () {{entry=1, partition=Main}}
  many: F32[64] = Constant<value=F32[64]{{{MANY}}}>()
  r: WireReqId = wire.SendReqBatched(x, all, all) {{{ASK}, wire.answer_mode=each, deadline_ns=4000000000}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  y: F32[1], who: PeerIdVec = wire.RecvResp() {{{REPLY}}}
  late: Trigger = syscall.Sleep<duration_ns=10000000>(y)
  v: F32[1] = syscall.GateDispatch(y, late)
  w: F32[1] = module.Twice(v)
  z: F32[1] = Add(w, x)
  syscall.AppEmit<name="z">(z)
  syscall.AppEmit<name="who">(who)
  syscall.AppEmit<name="missing">(missing)
  q: WireReqId = wire.SendReqBatched(x, all, all) {{{ASK_ALL}, wire.answer_mode=batch, deadline_ns=900000000}}
  over: Trigger, out: PeerIdVec, t: F32[n,1] = wire.RecvRespBatched(q) {{{REPLY_ALL}}}
  syscall.AppEmit<name="t">(t)
  sum: F32[64] = Add(many, x)
  syscall.AppEmit<name="sum">(sum)
function program.Hear() -> () {{entry=1, partition=Hear}}
  said: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  late: Trigger = syscall.Sleep<duration_ns=3000000>(said)
  in: Trigger = syscall.Limit.Acquire<name="l", n=1>(late)
  again: Trigger = syscall.After<delay_ns=5000000>(in)
  u: F32[1] = syscall.GateDispatch(said, again)
  syscall.AppEmit<name="said">(u)
  out: Trigger = syscall.Limit.Release<name="l">(u)
function module.Twice(v: F32[1]) -> (w) {{}}
  s: Trigger = syscall.Sleep<duration_ns=1000000>(v)
  u: F32[1] = syscall.GateDispatch(v, s)
  w: F32[1] = Add(u, u)
"""


class World:
    """A node that asks A, B and C and hears them; `when` says before which polls it comes back."""

    def __init__(self, data: bytes, budget: int, when: Any = lambda n: False) -> None:
        self.data = data
        self.config = NodeConfig.edge().with_(cycle_op_budget=budget, max_children=1)
        self.when = when
        self.node = self.install()
        self.polls = self.births = 0
        self.seen: list[tuple[str, object]] = []

    def install(self, snapshot: bytes | None = None, now_ns: int = 0) -> Node:
        more: dict[str, Any] = {"seed": 3, "durable": True, "snapshot": snapshot, "now_ns": now_ns}
        return install(SELF, (HERE,), self.data, ["Main", "Hear"], self.config, **more)

    def poll(self, now_ns: int) -> list[steps.EngineStep]:
        self.polls += 1
        if self.when(self.polls):
            self.births += 1
            data = self.node.snapshot(now_ns)
            before = look(self.node)
            self.node = self.install(data, now_ns)
            assert look(self.node) == before
        found = self.node.poll(now_ns)
        assert not of(OpFailed, found)
        for step in of(Journal, found):
            self.node.persisted(step.token)
        self.seen += told(found)
        return found

    def until(self, end_ns: int, now_ns: int) -> list[steps.EngineStep]:
        found: list[steps.EngineStep] = []
        while (due := self.node.next_deadline_ns()) is not None and due <= end_ns:
            now_ns = max(now_ns + 1, due)
            found += self.poll(now_ns)
        return found


def live(world: World) -> None:
    """Two requests of one execution, answers in bits and pieces, and two durable envelopes of A's."""
    for peer in (A, B, C):
        world.node.peer_presence(peer, True, (HERE,), epoch=1)
    world.until(MS, 0)
    world.node.invoke("Main", {"x": np.full(1, 5, np.float32), "all": (A, B, C)})
    asked: dict[tuple[int, PeerId], int] = {}
    for step in of(SendEnvelope, world.until(2 * MS, MS)):
        sent = envelope.decode(step.payload, EDGE_CAPS)
        if sent.kind == REQUEST:
            asked[sent.fills[0].dest_suffix[-1], step.peer] = sent.wire_req_id
    assert len(asked) == 6
    replies = {0xA1: 0xB1, 0xA2: 0xB2}
    for n, (site, peer) in enumerate([(0xA1, A), (0xA1, B), (0xA2, C), (0xA1, C), (0xA2, A)], 1):
        reply = durable_message(replies[site], n, n, RESPONSE, wire_req_id=asked[site, peer])
        world.node.deliver_inbound(reply, peer)
    world.node.deliver_inbound(durable_message(0xC1, 9, 7, remaining_deadline_ns=3 * S), A)
    world.node.deliver_inbound(durable_message(0xC1, 10, 8), A)
    world.until(8 * MS, 2 * MS)
    world.node.deliver_inbound(durable_message(0xB2, 9, 6, RESPONSE, wire_req_id=asked[0xA2, B]), B)
    world.until(10 * S, 8 * MS)
    assert world.node.counters["executions.active"] == 0 and not world.node.inspect().requests


@pytest.mark.parametrize("budget", [1, 3, 1000])
@pytest.mark.parametrize("when", [lambda n: True, lambda n: n % 3 == 0], ids=["always", "third"])
def test_at_any_poll_all_that_hangs_on_executions_comes_back(compile_text, budget, when):
    data = compile_text(TEXT)
    plain, reborn = World(data, budget), World(data, budget, when)
    live(plain)
    live(reborn)
    assert len(plain.seen) == 11, plain.seen
    assert sorted(map(str, reborn.seen)) == sorted(map(str, plain.seen))
    assert reborn.births > 4


def test_the_world_has_something_of_everything(compile_text):
    """So that what the test above compares is there to be compared."""
    found: set[str] = set()
    world = World(compile_text(TEXT), 1)

    def watch(_: int) -> bool:
        seen = look(world.node)
        for one in seen["executions"]:
            found.update(name for name, value in one.items() if value not in (None, 0, False, "", [], (), {}))
            found.update(f"{why} {count}" for why, count in one["holds"].items())
            for row in one["frames"]:
                found.update(f"frame {name}" for name, value in row.items() if value)
        for one in seen["cohorts"]:
            found.update(f"cohort {name}" for name, value in one.items() if value)
            found.update("no collector yet" for _ in (1,) if one["collector"] is None)
        return False

    world.when = watch
    live(world)
    expected = {
        *("ready", "source", "cause", "deadline_ns", "bytes_held", "child 1", "parent", "request"),
        *("acknowledged", "asked_somebody", "requests_made", "permit 2", "request 2", "requests_over"),
        *("frame parent", "frame children", "frame caller", "frame call", "frame passes_on"),
        "no collector yet",
        *(f"cohort {name}" for name in ("answers", "waiting", "running", "collector", "ask")),
        *(f"cohort {name}" for name in ("settled", "accepted", "numbers", "timer", "reason")),
    }
    assert expected <= found, expected - found


def test_what_stands_in_the_program_is_not_in_the_snapshot(compile_text):
    world = World(compile_text(TEXT), 1000)
    world.node.peer_presence(A, True, (HERE,), epoch=1)
    world.poll(1)
    world.node.invoke("Main", {"x": np.full(1, 5, np.float32), "all": (A,)})
    world.poll(2)
    (row,) = body_of(world.node.snapshot(3))["executions"][2]
    ((_, values, *_),) = row["frames"]
    assert values and all(
        value[:3] != ["a", "<f4", [64]] or value[3][4:8] == np.float32(6).tobytes() for _, value in values
    )


def test_times_of_executions_move_with_the_clock(compile_text):
    world = World(compile_text(TEXT), 1000)
    world.poll(1)
    world.node.deliver_inbound(durable_message(0xC1, 9, 7, remaining_deadline_ns=3 * S), A)
    world.poll(2)
    world.poll(3)
    (one,) = world.node.inspect().executions
    assert (one["source"], one["cause"], one["deadline_ns"]) == (str(A), [str(A), 9, 9], 3 * S + 2)
    later = world.install(world.node.snapshot(4), 4 + 20 * S)
    assert later.inspect().executions == [{**one, "deadline_ns": 23 * S + 2}]


# --- requests that are asked again ------------------------------------------------------------------------


def asking(compile_text) -> tuple[World, bytes]:
    world = World(compile_text(TEXT), 1000)
    for peer in (A, B):
        world.node.peer_presence(peer, True, (HERE,), epoch=1)
    world.poll(1)
    world.node.invoke("Main", {"x": np.full(1, 5, np.float32), "all": (A, B)})
    found = [envelope.decode(s.payload, EDGE_CAPS) for s in of(SendEnvelope, world.poll(2))]
    first = [m.wire_req_id for m in found if m.fills and m.fills[0].dest_suffix[-1] == 0xA1]
    for number, peer in zip(first, (A, B), strict=True):
        world.node.deliver_inbound(durable_message(0xB1, 1, 1, RESPONSE, wire_req_id=number), peer)
    world.poll(3)
    world.poll(4)
    first_request, second = world.node.inspect().requests
    assert first_request["state"] != "open" and second["state"] == "open"
    return world, world.node.snapshot(5)


def test_behind_a_request_that_is_closed_an_open_one_is_asked_again(compile_text):
    world, data = asking(compile_text)
    again = world.install(data, 5)
    units = [(unit["peer"], unit["kind"], unit["durable"]) for unit in again.inspect().outgoing]
    assert units == [(str(A), REQUEST, False), (str(B), REQUEST, False)]
    found = [envelope.decode(s.payload, EDGE_CAPS) for s in of(SendEnvelope, again.poll(6))]
    assert [m.fills[0].dest_suffix[-1] for m in found if m.kind == REQUEST] == [0xA2, 0xA2]


def test_who_cannot_be_asked_again_is_named_with_who_asks(compile_text):
    world, data = asking(compile_text)
    body = body_of(data)
    body["neighbours"]["addresses"] = []
    again = world.install(resealed(body), 5)
    (execution,) = [row["id"] for row in again.inspect().executions if not row["parent"]]
    (op,) = [row["op"].removeprefix("Main/") for row in again.inspect().requests if row["state"] == "open"]
    assert of(PeerResolveFailed, again.poll(6)) == [
        PeerResolveFailed(peer, "Main", execution, op) for peer in (A, B)
    ]


@pytest.mark.parametrize("written", [False, True])
def test_a_flag_that_only_older_versions_had_keeps_its_place(compile_text, written):
    world, data = asking(compile_text)
    body = body_of(data)
    rows = body["executions"][2]
    before = [row["flags"][:] for row in rows]
    for row in rows:
        row["flags"][2] = written
    again = world.install(resealed(body), 5)
    assert [row["flags"] for row in body_of(again.snapshot(5))["executions"][2]] == before
    assert before and all(flags[2] is False and len(flags) == 9 for flags in before)


@pytest.mark.parametrize("change", [lambda rows: rows[:-1], lambda rows: [*rows, rows[-1]]])
def test_a_frame_of_another_graph_is_damage(compile_text, change):
    world, data = asking(compile_text)
    body = body_of(data)
    frame = body["executions"][2][0]["frames"][0]
    frame[2] = change(frame[2])
    with pytest.raises(SnapshotDamagedError, match="a frame of another graph"):
        world.install(resealed(body), 5)
