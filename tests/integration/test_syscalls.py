"""Every syscall in programs that `bb-edge run` runs: two processes over a broker, their lines the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bb_edge import load
from bb_edge.engine.bus import KINDS
from bb_edge.ir import keys, opsets
from bb_edge.ir.ids import PeerId
from bb_host import MS, Module, PeerSelectorSlot, S
from bb_host.build import build_edge

pytestmark = [pytest.mark.broker, pytest.mark.slow]

ROUNDS = 3
RECORDS = 300
"""More than the 256 that a telemetry ring keeps, so that the oldest are told."""

SHOWN = {
    # entries
    "Pulse": "pulsed",
    "Interval": "ticked",
    "EventSource": "peer came",
    "LifecyclePhase": "goodbye",
    "Repeat": "round",
    # triggers and time
    "OnTrigger": "triggered",
    "Threshold": "ticked",
    "After": "elapsed",
    "Sleep": "elapsed",
    "DeadlineMatch": "won",
    "Clock": "elapsed",
    "Elapsed": "elapsed",
    "RngU64": "random",
    # flow
    "Any": "first",
    "Gate": "gated",
    "GateDispatch": "gated",
    "GateManyDispatch": "both",
    "PassThrough": "passed",
    "Tee": "copies",
    "Constant": "text",
    # numbers and peers
    "AsTensor": "mean",
    "AsScalar": "scalar",
    "PeerAt": "me",
    "PeerList": "me",
    "PeerCount": "count",
    "MissingReasons": "nobody missing",
    # state
    "Limit.Acquire": "let in",
    "Limit.Release": "let in",
    "Serialize.Enqueue": "taken",
    "Serialize.Dequeue": "taken",
    "Hold.Stash": "held",
    "Hold.Flush": "held",
    "CorrelateTag": "tokens",
    "MintDispatch": "tokens",
    "StopRounds": "again",
    "When": "seldom",
    # control flow
    "Loop": "looped",
    "If": "chosen",
    "BodyEnd": "looped",
    # host; what has no event of its own is told in the log and the summary
    "AppEmit": "round",
    "AppNotify": "pulsed",
    "Record": "Telemetry",
    "IncrMetric": "counted.rounds",
    "DeadlineCheck": "hello",
    # address book
    "Insert": "book",
    "InsertMany": "book",
    "Lookup": "book",
    "Drop": "dropped",
    "OwnPeer": "me",
    "OwnAddresses": "book",
    "AddressOf": "book",
    "AddressAt": "book",
    "AddressList": "book",
}
"""What each op shows in the output of the process that runs it."""


class Syscalls(Module):
    """A client that says hello, and a server that runs the rest."""

    name, home = "Syscalls", "Server"
    servers = PeerSelectorSlot("servers", "bb.PresenceSelector", peer_class="Server", at="Client")
    clients = PeerSelectorSlot("clients", "bb.PresenceSelector", peer_class="Client", at="Server")

    def body(self, g: Any) -> None:
        with g.at("Client"):
            came = g.as_tensor(g.event_source("peer_up"))
            hello = g.net_out("hello", self.servers.sample(g, n=1, after=came), came, deadline_ns=60 * S)
        g.app_emit("hello", hello)
        up = g.as_tensor(g.event_source("peer_up"))
        r = g.request("back", self.clients.sample(g, n=1, after=up), up, deadline_ns=60 * S)
        r.reply(r.value)
        g.app_emit("nobody missing", r.missing_reasons)
        g.app_notify("peer came", g.event_source("peer_up"))
        g.app_notify("pulsed", g.pulse())
        g.app_notify("ticked", g.threshold(3, g.interval(20 * MS)))
        g.app_notify("goodbye", g.lifecycle_phase(1))
        with g.rounds() as again:
            g.app_emit("again", again.round)
            again.stop(again.round > 2)
        with g.rounds(times=RECORDS) as many:
            g.record("ring", many.round)
        with g.rounds(times=ROUNDS, pause_ns=5 * MS) as start:
            x = g.onnx.cast(start.round, to="F32") + g.constant(np.zeros(2, np.float32))
            g.app_emit("round", start.round)
            g.incr_metric("counted.rounds", x, delta=2)
            self.time(g, x)
            self.flow(g, x)
            self.control(g, x)
            self.state(g, x)
            self.peers(g, x)

    def time(self, g: Any, x: Any) -> None:
        t = g.on_trigger(g.threshold(1, x))
        g.app_notify("triggered", t)
        since = g.clock(t)
        late = g.sleep(g.after(t, 2 * MS), 3 * MS)
        g.app_emit("elapsed", g.elapsed(since, g.clock(late)))
        g.app_notify("won", g.deadline_match(g.after(t, 1 * MS), g.sleep(t, 20 * MS)))
        g.app_emit("random", g.rng_u64(t))
        g.app_emit("gated", g.gate(x * 2.0, late))
        g.app_emit("first", g.any(x, g.pass_through(x * 3.0, after=late)))
        tokens = [g.correlate_tag(t), g.syscall.mint_dispatch(t)]
        g.app_emit("tokens", g.bundle([g.as_tensor(token) for token in tokens]))

    def flow(self, g: Any, x: Any) -> None:
        g.app_emit("passed", g.pass_through(x))
        g.app_emit("copies", g.bundle(list(g.tee(x, 2))))
        g.app_emit("both", g.pass_through(x, after=[x * 2.0, x * 3.0]))
        g.app_emit("text", g.pass_through(g.constant("four"), after=x))
        scalar = g.as_scalar(g.onnx.reduce_mean(x, keepdims=0))
        g.app_emit("scalar", scalar)
        g.app_emit("mean", g.as_tensor(scalar) + 0.5)

    def control(self, g: Any, x: Any) -> None:
        with g.loop(3, carry=x) as step:
            g.app_emit("looped", step.index)
            step.next(step.carried + 1.0)
        low = g.onnx.reduce_max(step.result, keepdims=0) < 6.0
        g.app_notify("seldom", g.when(low))
        g.onnx.if_(
            low, lambda b: b.app_emit("chosen", x), lambda b: b.app_notify("another", b.threshold(1, x))
        )

    def state(self, g: Any, x: Any) -> None:
        t = g.threshold(1, x)
        acquired = g.limit_acquire("one", t, 1)
        g.app_notify("let in", acquired, after=g.limit_release("one", acquired))
        stashed = g.hold_stash("held", x)
        g.app_emit("held", g.hold_flush("held", t, after=stashed))
        g.app_emit("taken", g.serialize_dequeue("queue", g.serialize_enqueue("queue", x)))

    def peers(self, g: Any, x: Any) -> None:
        me = g.own_peer(after=x)
        listed = g.peer_list(me, me)
        g.app_emit("count", g.peer_count(listed))
        g.app_emit("me", g.peer_at(listed, -1))
        one = g.address_at(g.own_addresses(after=x), 0)
        known = g.address_book_insert(me, one)
        known = g.address_book_insert_many(me, g.address_list(one, g.address_of(me)), after=known)
        found = g.address_book_lookup(me, after=known)
        g.app_emit("book", found)
        g.app_notify(
            "dropped", g.as_tensor(g.clock(g.threshold(1, x))), after=g.address_book_drop(me, after=found)
        )


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("syscalls")
    found = {}
    for artifact in build_edge(Syscalls()).artifacts:
        found[artifact.target] = folder / f"{artifact.target}.onnx"
        found[artifact.target].write_bytes(artifact.data)
    return found


def test_no_syscall_is_left_out(programs):
    """The programs hold every op of both tables, and each shows itself."""
    tables = [opsets.opset(domain) for domain in (keys.SYSCALL_DOMAIN, keys.ADDRESS_BOOK_DOMAIN)]
    every = {name for table in tables for name in table.ops}
    held = {
        node.op_type
        for path in programs.values()
        for function in load(path.read_bytes()).functions.values()
        for node in function.node
        if node.domain in (keys.SYSCALL_DOMAIN, keys.ADDRESS_BOOK_DOMAIN)
    }
    assert every - held == set()
    assert set(SHOWN) == every


def test_every_syscall_in_processes(mosquitto_broker, federation, programs):
    f = federation(mosquitto_broker)
    server = f.run("server", programs["Server"], "Server", "--log-level", "debug", "--seed", "4")
    f.says(server, "connected")
    client = f.run("client", programs["Client"], "Client")
    every = {topic for topic in SHOWN.values()} - {"Telemetry", "counted.rounds", "goodbye"}

    def heard(topic: str) -> list[Any]:
        records = [e.record for e in f.heard if getattr(e, "child", None) is server and hasattr(e, "record")]
        return [record.get("value") for record in records if record.get("event") == topic]

    def all_heard(_event: Any) -> bool:
        return all(heard(topic) for topic in every) and len(heard("dropped")) == ROUNDS

    f.wait(all_heard, "an event of every syscall", since=0)
    f.says(server, "Telemetry name=ring value=1", since=0)
    assert f.end(client)[0] == 0
    code, summary = f.end(server)
    assert code == 0
    numbers = [[float(n)] * 2 for n in range(1, ROUNDS + 1)]
    assert heard("round") == list(range(1, ROUNDS + 1))
    assert heard("hello") == [KINDS["peer_up"]]
    for topic in ("first", "passed", "both", "held", "taken"):
        assert heard(topic) == numbers, topic
    assert heard("gated") == [[n * 2.0] * 2 for n in range(1, ROUNDS + 1)]
    assert heard("copies") == [[row, row] for row in numbers]
    assert heard("text") == [{"bytes": 4}] * ROUNDS
    assert heard("scalar") == [float(n) for n in range(1, ROUNDS + 1)]
    assert heard("mean") == [n + 0.5 for n in range(1, ROUNDS + 1)]
    assert all(ns >= 5 * MS for ns in heard("elapsed"))
    assert len(set(heard("random"))) == ROUNDS
    assert len({token for pair in heard("tokens") for token in pair}) == 2 * ROUNDS
    assert heard("looped") == [0, 1, 2] * ROUNDS
    assert [len(heard(topic)) for topic in ("chosen", "another", "seldom")] == [2, 1, 2]
    assert heard("again") == [1, 2, 3]
    me = str(PeerId.from_name("server"))
    assert heard("me") == [f"server ({me})"] * ROUNDS
    assert heard("count") == [2] * ROUNDS
    assert heard("book") == [[f"/p2p/{me}"]] * ROUNDS
    for topic in ("triggered", "won", "let in", "dropped"):
        assert len(heard(topic)) == ROUNDS, topic
    assert len(heard("pulsed")) == len(heard("goodbye")) == 1
    assert summary["counters"]["counted.rounds"] == 2 * ROUNDS
    assert "ops.failed" not in summary["counters"]
