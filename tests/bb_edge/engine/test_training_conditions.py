"""A node that declines to train now: the server hears why at once, and holds it against nobody."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from arrays import f32
from asking import changed
from kinds_of_steps import of
from texts import compiled
from times import S

from bb_edge.engine import steps
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.registry import Registry
from bb_edge.roles import Codec, Model
from bb_edge.transport.in_process import Simulation


class Plain(Codec):
    TYPE_NAME: ClassVar[str] = "test.Moody"

    @classmethod
    def construct(cls, env: Any) -> Plain:
        return cls()

    def compress(self, ctx: Any, t: Any) -> Any:
        return t

    def decompress(self, ctx: Any, code: Any) -> Any:
        return code


class Counting(Model):
    TYPE_NAME: ClassVar[str] = "test.Counting"

    def __init__(self) -> None:
        self.steps = 0

    @classmethod
    def construct(cls, env: Any) -> Counting:
        return cls()

    def forward(self, ctx: Any, input: Any) -> Any:
        return input

    def step(self, ctx: Any, grads: Any = None) -> None:
        self.steps += 1

    def load_parameters(self, ctx: Any, params: Any) -> None: ...

    def params(self, ctx: Any) -> Any:
        return f32(0)


TRAINS = [
    ('binding.Client.codec="codec|test.Moody|1"', 'binding.Client.codec="codec|test.Moody|1", binding.Client.m="model|test.Counting|2"'),
    (
        "  y: Tensor = role.compressor.Compress(x) {slot=codec}",
        "  z: Tensor = role.model.Forward(x) {slot=m}\n  c: CommandId = role.model.Step(z) {slot=m}\n  y: Tensor = role.compressor.Compress(x) {slot=codec}",
    ),
    ("function program.Client() -> () {entry=1, partition=Client}\n", "function program.Client() -> () {entry=1, partition=Client}\n  slot m: model\n"),
]  # fmt: skip


class Fleet:
    """A server and two clients; `why` says why the first of these does not train now."""

    def __init__(self, text: str) -> None:
        self.why, self.sim = "", Simulation(seed=3)
        registry, data = Registry(), compiled(text)
        registry.register(Plain)
        registry.register(Counting)
        self.server, self.first, self.second = (
            install(PeerId.from_name(name), (), data, [target], registry=registry, seed=n, why_not_train=ask)
            for n, (name, target, ask) in enumerate(
                (("server", "Server", None), ("c0", "Client", lambda: self.why), ("c1", "Client", None))
            )
        )
        for node in (self.server, self.first, self.second):
            self.sim.add(node)
        self.sim.run(for_ns=S // 10)

    def ask(self) -> tuple[int, list[tuple[PeerId, str]]]:
        """Asks all; how many ms that took, and who is missing and why."""
        began, before = self.sim.now_ns, len(self.of(steps.RequestClosed))
        self.server.invoke("Server", {"x": f32(1, 2)})
        self.sim.run(until=lambda: len(self.of(steps.RequestClosed)) > before)
        return (self.sim.now_ns - began) // 1_000_000, list(self.of(steps.RequestClosed)[-1].missing)

    def of(self, kind: type) -> list[Any]:
        return of(kind, (seen.step for seen in self.sim.seen))

    @property
    def steps_made(self) -> list[int]:
        return [node.component("m", "Client").steps for node in (self.first, self.second)]  # type: ignore[attr-defined]


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(changed(changes=TRAINS))


def test_a_request_that_trains_is_declined_at_once_and_by_name(fleet: Fleet) -> None:
    fleet.why = "the board has 80 °C, cool is below 65"
    took, missing = fleet.ask()
    assert took < 100  # of a deadline of five seconds
    assert missing == [(fleet.first.peer_id, "declined")]
    (declined,) = fleet.of(steps.RequestDeclined)
    assert (declined.peer, declined.target) == (fleet.server.peer_id, "Client")
    assert "80 °C" in declined.why
    (told,) = fleet.of(steps.RequestFailed)
    assert (told.peer, told.code) == (fleet.first.peer_id, "DECLINED") and "80 °C" in told.detail
    assert fleet.first.counters["requests.declined"] == 1
    assert fleet.steps_made == [0, 1]


def test_it_is_held_against_nobody(fleet: Fleet) -> None:
    fleet.why = "the board runs on its battery"
    for _ in range(20):  # a peer that leaves five of sixteen requests is failing
        assert fleet.ask()[1] == [(fleet.first.peer_id, "declined")]
    assert fleet.of(steps.PeerFailing) == []
    fleet.why = ""
    assert fleet.ask()[1] == []
    assert fleet.steps_made == [1, 21]


def test_what_does_not_train_is_answered_whatever_the_board_says() -> None:
    fleet = Fleet(changed())
    fleet.why = "the board has 80 °C, cool is below 65"
    assert fleet.ask()[1] == []
    assert fleet.first.inspect().training == []


def test_a_node_knows_which_of_its_entries_train(fleet: Fleet) -> None:
    (row,) = fleet.first.inspect().training
    assert row["request"] is True and str(row["op"]).startswith("Client/")
    assert fleet.server.inspect().training == []
