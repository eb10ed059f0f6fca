"""A fault of the asker's own aggregator, or of its program, is held against nobody who has answered."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from arrays import f32
from asking import PROGRAM, Moody
from kinds_of_steps import of
from times import S

from bb_edge.components import FedAvg
from bb_edge.engine import steps
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.ir.opsets import Opset, Table
from bb_edge.registry import Registry
from bb_edge.roles import ProtocolComponent
from bb_edge.roles.errors import ComponentError
from bb_edge.transport.in_process import Simulation

SERVER, CLIENT = PeerId.from_name("server"), PeerId.from_name("client")


class Faulty(FedAvg):
    """Writes to what it was given, which is a fault; or refuses it."""

    TYPE_NAME = "test.Faulty"
    error: Exception | None = None

    def contribute(self, ctx: Any, contribution: Any, *more: Any) -> None:
        if self.error is not None:
            raise self.error
        contribution *= 2


def program(peer: str) -> str:
    """The program that asks, whose answers are contributed as those of `peer`."""
    text = PROGRAM.replace(" ENOUGH", "")
    text = text.replace(
        'binding.Server.codec="codec|test.Moody|1"', 'binding.Server.agg="aggregator|test.Faulty|1"'
    )
    text = text.replace("  slot codec: codec\n  all:", "  slot agg: aggregator\n  all:")
    return text.replace(
        '  b: Tensor = role.compressor.Decompress(a) {slot=codec}\n  syscall.AppEmit<name="answer">(b)\n',
        f'  c: CommandId = role.aggregator.Contribute(a, "", {peer}) {{slot=agg, cohort=0}}\n',
    )


class Asked:
    """A server that has asked its clients, once."""

    def __init__(
        self, data: bytes, error: Exception | None = None, clients: tuple[str, ...] = ("client",)
    ) -> None:
        registry = Registry()
        registry.register(Moody)
        registry.register(Faulty)
        self.sim = Simulation(seed=3)
        self.server = install(SERVER, (), data, ["Server"], seed=1, registry=registry)
        self.sim.add(self.server)
        for seed, name in enumerate(clients, 2):
            self.sim.add(install(PeerId.from_name(name), (), data, ["Client"], seed=seed, registry=registry))
        self.sim.run(for_ns=S // 10)
        self.server.component("agg").error = error
        self.server.invoke("Server", {"x": f32(1, 2)})
        self.sim.run(for_ns=S)
        self.failed = self.of(steps.OpFailed)
        (closed,) = self.of(steps.RequestClosed)
        self.missing = closed.missing

    def of(self, kind: type) -> list[Any]:
        return of(kind, (s.step for s in self.sim.seen))


def test_what_a_component_raises_by_mistake_is_held_against_nobody(compile_text):
    asked = Asked(compile_text(program("who")))
    (failed,) = asked.failed
    assert isinstance(failed.error, ValueError) and "read-only" in failed.text
    assert asked.missing == ((CLIENT, "fault here"),)
    assert not asked.of(steps.AnswerRefused) and "requests.refused" not in asked.server.counters


@pytest.mark.parametrize("error", [ComponentError("too old"), ComponentError("too far", hint="retrain")])
def test_what_a_component_refuses_is_told_to_its_peer(compile_text, error):
    asked = Asked(compile_text(program("who")), error)
    assert asked.missing == ((CLIENT, "refused"),)
    (told,) = asked.of(steps.AnswerRefused)
    assert told.reason.endswith(error.what)


def test_a_program_that_does_not_say_whose_a_contribution_is(compile_text):
    asked = Asked(compile_text(program("all")), clients=("client", "another"))
    assert len(asked.failed) == 2
    for failed in asked.failed:
        assert "peer= is 2 peers" in failed.text and "r.answer.sender" in failed.text
    assert [why for _, why in asked.missing] == ["fault here"] * 2
    assert not asked.of(steps.AnswerRefused)


class Writes(ProtocolComponent):
    """Writes to the arrays of a bundle, which is a fault."""

    TYPE_NAME: ClassVar[str] = "test.Writes"

    @classmethod
    def construct(cls, env: Any) -> Writes:
        return cls()

    @classmethod
    def atomic_opset(cls) -> Opset:
        table = Table("test.writes")
        table.op("Write", "n:Composite", "n:Composite")
        return table.opset()

    def write(self, ctx: Any, n: Any) -> Any:
        for array in n.values:
            array *= 2
        return n


def test_what_is_bundled_cannot_be_written_to_either(compile_text: Any) -> None:
    child = '.composite.child_count=1, .composite.child_types="ai.bytesandbrains.tensor.f32"'
    text = f"""program Demo {{module=Demo, binding.Server.e="protocol|test.Writes|1"}}
function program.Server(x: F32[2]) -> () {{entry=1, partition=Server}}
  slot e: protocol
  b: Composite = composite.Bundle<{child}>(x)
  c: Composite = "test.writes"::Write(b) {{slot=e}}
  syscall.AppEmit<name="x">(x)
"""
    registry = Registry()
    registry.register(Writes)
    node = install(SERVER, (), compile_text(text), ["Server"], seed=1, registry=registry)
    given = f32(1, 2)
    node.invoke("Server", {"x": given})
    (failed,) = of(steps.OpFailed, node.poll(0))
    assert isinstance(failed.error, ValueError) and "read-only" in failed.text
    assert given.tolist() == [1, 2]
