"""Ticks of an interval: after a crash they come again under their numbers; they leave room for others."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from durable_machines import Crash, Machine
from kinds_of_steps import of
from peers import HERE, SELF
from times import MS

from bb_edge import NodeConfig, PeerId, install
from bb_edge.components import PresenceSelector
from bb_edge.engine.steps import AppEvent, SendEnvelope, TicksLeftOut
from bb_edge.extend import Array, ComponentEnv, Ctx, DataSource, register
from bb_edge.wire import envelope
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.codecs import decode_value
from bb_host import Compiler, DataSourceSlot, Graph, Module, PeerSelectorSlot
from bb_host.ir.proto import to_bytes

HUB = PeerId.from_name("hub")


@register
class Rows(DataSource):
    """What a file has: the same rows in the same order, from where the snapshot says."""

    TYPE_NAME = "test.RowsOfTicks"

    def __init__(self) -> None:
        self.row = 0

    @classmethod
    def construct(cls, env: ComponentEnv) -> Rows:
        del env
        return cls()

    def next_batch(self, ctx: Ctx) -> tuple[Array, Array]:
        self.row += 1
        return np.array([self.row], np.int64), np.array([0], np.int64)

    def num_samples(self, ctx: Ctx) -> Array:
        return np.array(1, np.int64)

    def serialize(self) -> bytes:
        return self.row.to_bytes(8, "big")

    def restore(self, state: bytes) -> None:
        self.row = int.from_bytes(state, "big")


@register
class Sensor(Rows):
    """Each reading is another one, whatever the snapshot says."""

    TYPE_NAME = "test.SensorOfTicks"
    read = 0

    def next_batch(self, ctx: Ctx) -> tuple[Array, Array]:
        Sensor.read += 1
        return np.array([Sensor.read], np.int64), np.array([0], np.int64)


class Reports(Module):
    """A row each 10 ms, told durably."""

    name, home = "Reports", "Device"
    hubs = PeerSelectorSlot("hubs", PresenceSelector, peer_class="Hub")
    rows = DataSourceSlot("rows")

    def body(self, g: Graph) -> None:
        row, _ = self.rows.next_batch(g, after=g.interval(10 * MS))
        told = g.net_out("row", self.hubs.sample(g, n=1, after=row), row, durable=True)
        g.app_emit("heard", told)


class World:
    """A machine that reports to a hub which acknowledges nothing; `numbers` of the envelopes by row."""

    def __init__(self, source: type[Rows]) -> None:
        compiled = Compiler().bind_data_source("rows", source).compile_program(Reports())
        self.machine = Machine(to_bytes(compiled), "Device", "a")
        self.numbers: dict[int, set[tuple[int, int]]] = defaultdict(set)
        self.now_ns = self.crashes = 0

    def run(self, until_ns: int) -> None:
        self._hub()
        while self.now_ns < until_ns:
            self.now_ns += MS
            try:
                found = self.machine.poll(self.now_ns)
            except Crash:
                self.crashes += 1
                self.machine.start(self.now_ns)
                self._hub()
                continue
            for step in of(SendEnvelope, found):
                message = envelope.decode(step.payload, EDGE_CAPS)
                if message.fills:
                    (row,) = decode_value(message.fills[0].type_hash, message.fills[0].payload)
                    self.numbers[int(row)].add((message.epoch, message.seq))

    def _hub(self) -> None:
        self.machine.node.peer_presence(HUB, True, (HERE,), epoch=1, classes=("Hub",))


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("taken_ns", [0, 35 * MS, 40 * MS])
def test_rows_that_are_read_again_are_told_under_their_numbers(made: bool, taken_ns: int) -> None:
    for at in range(1, 7):
        world = World(Rows)
        world.run(taken_ns)
        if taken_ns:
            world.machine.take_snapshot(world.now_ns)
            world.machine.disk.writes = 0
        world.machine.disk.crash_at = (at, made)
        world.run(200 * MS)
        assert world.crashes == 1
        assert sorted(world.numbers) == list(range(1, len(world.numbers) + 1)), "each row"
        assert all(len(numbers) == 1 for numbers in world.numbers.values()), "and each once"
        assert world.machine.node.counters.get("outbound.told_anew", 0) == 0


def test_records_of_ticks_that_run_again_outlive_a_snapshot_before_these() -> None:
    world = World(Rows)
    world.run(45 * MS)
    world.machine.start(world.now_ns)  # killed; no snapshot is there
    world.run(50 * MS)
    world.machine.take_snapshot(world.now_ns)
    world.machine.start(world.now_ns)
    world.run(200 * MS)
    assert all(len(numbers) == 1 for numbers in world.numbers.values())
    assert sorted(world.numbers) == list(range(1, len(world.numbers) + 1))


def test_a_sensor_that_reads_anew_is_told_beside_what_it_told_before() -> None:
    world = World(Sensor)
    world.machine.disk.crash_at = (3, True)
    world.run(100 * MS)
    assert world.crashes == 1
    counters = world.machine.node.counters
    assert counters["outbound.told_anew"] == 2, "the first two ticks, whose records were on the disk"
    assert "outbound.reused" not in counters
    assert all(len(numbers) == 1 for numbers in world.numbers.values()), "no reading is told twice"


SLOW = """
program Demo {module=Demo}
function program.Main(x: F32[1]) -> () {entry=1, partition=self}
  t: Timestamp = syscall.Interval<period_ns=100>()
  go: Trigger = syscall.OnTrigger(t)
  late: Trigger = syscall.Sleep<duration_ns=100000>(go)
  u: Timestamp = syscall.GateDispatch(t, late)
  syscall.AppEmit<name="t">(u)
  y: F32[1] = Add(x, x)
  syscall.AppEmit<name="y">(y)
"""


def test_executions_of_ticks_leave_half_of_them_for_others(compile_text) -> None:
    node = install(SELF, (), compile_text(SLOW), ["Main"], NodeConfig(max_executions=4), seed=1)
    told = [step for now_ns in range(0, 2_000, 50) for step in of(TicksLeftOut, node.poll(now_ns))]
    assert [(step.target, step.running) for step in told] == [("Main", 2)], "once"
    assert node.counters["ticks.skipped"] == 19 - 2
    node.invoke("Main", {"x": np.ones(1, np.float32)})
    (event,) = of(AppEvent, node.poll(2_000))
    assert event.topic == "y", "it has a place though all ticks wait"


def test_ticks_come_again_when_earlier_ones_have_ended(compile_text) -> None:
    text, config = SLOW.replace("100000", "450"), NodeConfig(max_executions=4)
    node = install(SELF, (), compile_text(text), ["Main"], config, seed=1)

    def run(begin: int, end: int) -> tuple[list[int], int]:
        found = [step for now_ns in range(begin, end, 10) for step in node.poll(now_ns)]
        return [int(step.value) for step in of(AppEvent, found)], len(of(TicksLeftOut, found))

    assert run(0, 1_000) == ([100, 200], 2)
    kept = node.snapshot(1_000)
    node = install(SELF, (), compile_text(text), ["Main"], config, seed=2, snapshot=kept, now_ns=1_000)
    # Two run on, so that the one of 1,000 is left out; which is said again in a new process.
    assert run(1_000, 2_000) == ([600, 700, 1_100, 1_200], 3)
