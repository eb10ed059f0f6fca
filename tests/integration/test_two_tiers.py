"""Two tiers as processes over mosquitto: a mute leaf, a slow one, and relays that ask the same leaves.

What the server averages is what the leaves that were heard have said, each once per relay.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from components import forgotten_components
from node_processes import NodeProcess

from bb_edge.components import FedAvg
from bb_edge.ir.missing import MissingReason
from bb_edge.registry import load_all
from bb_host import AggregatorSlot, CodecSlot, Compiler, Module, PeerSelectorSlot, S
from bb_host.build import build_edge

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SAYS = '''
from bb_edge.extend import Codec, Setting, register

@register
class Says(Codec):
    """What a leaf answers: the question times its number; one that is slow never does."""

    TYPE_NAME = "test.TierSays"
    CONFIG = {"number": Setting.number(1.0), "slow": Setting.flag(False)}

    def __init__(self, number, slow):
        self.number, self.slow = number, slow

    @classmethod
    def construct(cls, env):
        read = env.settings(cls)
        return cls(read["number"], read["slow"])

    @classmethod
    def port_types(cls, config, tensors):
        return {"Compress.t": "Tensor<F32>", "Compress.code": "Tensor<F32>"}

    def compress(self, ctx, t):
        return ctx.later(600_000_000_000) if self.slow else t * t.dtype.type(self.number)

    def decompress(self, ctx, code):
        return code
'''
ROUNDS = 2
LEAVES = {"one": "1", "two": "2", "three": "3", "slow": "100", "mute": "100"}
HEARD = 3
"""The leaves that answer; their numbers have the mean 2."""


class Tiers(Module):
    """Both relays ask all leaves at once; the server weighs what they say by how many each has heard."""

    name, home = "Tiers", "Server"
    relays = PeerSelectorSlot("relays", peer_class="Relay", at="Server")
    leaves = PeerSelectorSlot("leaves", peer_class="Leaf", at="Relay")
    top, middle = AggregatorSlot("top", at="Server"), AggregatorSlot("middle", at="Relay")
    says = CodecSlot("says", at="Leaf")

    def body(self, g: Any) -> None:
        with g.rounds(ROUNDS, pause_ns=S // 10) as start:
            peers = self.relays.sample(g, n=2, min=2, after=start)
            x = g.constant([1.0, 10.0], "F32")
            r = g.request("outer", peers, x, deadline_ns=20 * S)
            q = g.request("inner", self.leaves.current_view(g, after=r.value), r.value, deadline_ns=5 * S)
            q.reply(self.says.compress(g, q.value))
            self.middle.contribute(g, q.answer, peer=q.answer.sender)
            g.app_emit("below", g.bundle([q.missing, q.missing_reasons]))
            mean, heard = self.middle.aggregate(g, after=q.closed)
            r.reply([mean, heard])
            part, weight = r.answer
            self.top.contribute(g, part, weight, peer=r.answer.sender)
            mean, total = self.top.aggregate(g, after=r.closed)
            g.app_emit("round", g.bundle([start.round, mean, total, r.missing]))


@pytest.fixture
def run(tmp_path: Path, start_broker: Any) -> Iterator[Any]:
    """`run(name, target, *more)`: a process of the federation."""
    source = tmp_path / "says.py"
    source.write_text(SAYS)
    with forgotten_components():
        load_all((str(source),))
        compiler = Compiler().bind_aggregator("top", FedAvg).bind_aggregator("middle", FedAvg)
        compiler = compiler.bind_peer_selector("relays", "bb.PresenceSelector")
        compiler = compiler.bind_peer_selector("leaves", "bb.PresenceSelector")
        for artifact in build_edge(Tiers(), compiler.bind_codec("says", "test.TierSays")).artifacts:
            (tmp_path / f"{artifact.target}.onnx").write_bytes(artifact.data)
    broker = start_broker("mosquitto")
    started: list[NodeProcess] = []

    def make(name: str, target: str, *more: str) -> NodeProcess:
        words = ("run", str(tmp_path / f"{target}.onnx"), "--target", target, "--peer", name)
        where = ("--broker", f"mqtt://{broker.host}:{broker.port}", "--load", str(source))
        started.append(NodeProcess(*words, *where, *more))
        return started[-1]

    yield make
    for process in started:
        assert process.process.stdout is not None
        if not process.process.stdout.closed:
            process.end(signal.SIGKILL)


def events(process: NodeProcess, name: str) -> list[Any]:
    found = [json.loads(line) for line in process.lines if line.startswith("{")]
    return [event["value"] for event in found if event.get("event") == name]


def test_the_server_averages_what_was_heard_of_leaves_that_two_relays_ask_at_once(run: Any) -> None:
    leaves = {
        name: run(
            name,
            "Leaf",
            "--set",
            f"says.number={number}",
            "--set",
            f"says.slow={str(name == 'slow').lower()}",
        )
        for name, number in LEAVES.items()
    }
    relays = [run(name, "Relay") for name in ("left", "right")]
    for relay in relays:
        for name in LEAVES:
            relay.says(f"PeerUp peer={name} ")
    leaves["mute"].process.send_signal(signal.SIGSTOP)  # it is up, for all that anybody knows
    server = run("server", "Server", "--until-done")
    server.says('"round".*"value": \\[2,')
    assert server.end() == 0
    told = events(server, "round")
    assert [(number, mean, total, missing) for number, mean, total, missing in told] == [
        (number, [2.0, 20.0], 2.0 * HEARD, []) for number in range(1, ROUNDS + 1)
    ], server.lines
    for relay in relays:
        below = events(relay, "below")
        assert len(below) == ROUNDS
        for missing, reasons in below:
            why = {str(peer).partition(" ")[0]: reason for peer, reason in zip(missing, reasons, strict=True)}
            assert why.keys() == {"slow", "mute"} and why["slow"] == MissingReason.OUT_OF_TIME
            assert why["mute"] in (MissingReason.DEADLINE, MissingReason.DOWN)
