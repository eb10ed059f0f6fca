"""A device that wakes, reports and sleeps, for a week in which its hub is off: each report arrives once."""

from __future__ import annotations

import numpy as np
import pytest
from durable_machines import Net
from durable_program import SAY
from kinds_of_steps import of
from times import S

from bb_edge import PeerId
from bb_edge.engine import steps

HOUR = 3600 * S
PROGRAM = f"""
program Demo {{module=Demo}}
function program.Device(x: F32[1], to: PeerIdVec) -> () {{entry=1, partition=Device}}
  h: Trigger = wire.Send(x, to) {{{SAY}}}
function program.Hub() -> () {{entry=1, partition=Hub}}
  x: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  syscall.AppEmit<name="heard">(x)
"""
AWAKE = 5 * S


class Farm(Net):
    """A device and its hub."""

    def __init__(self, compile_text, knows_marks: bool, **config: int) -> None:
        super().__init__(compile_text(PROGRAM), {"device": "Device", "hub": "Hub"}, knows_marks, **config)
        self.device, self.hub = self.machines["device"], self.machines["hub"]
        self.told = 0
        self.run(AWAKE)

    def off(self, name: str, for_ns: int) -> None:
        """It stops in order, and everybody that is there hears of it."""
        machine = self.machines[name]
        machine.take_snapshot(self.now_ns)
        for other in self.machines.values():
            other.node.peer_presence(machine.node.peer_id, False, epoch=machine.node.epoch)
        self.down[name] = self.now_ns + for_ns

    def wake_and_tell(self, count: int = 1) -> None:
        """The device is started anew, tells so many numbers, and sleeps for six hours."""
        self.now_ns = self.down["device"]
        self.run(self.now_ns + 10_000_000)
        for _ in range(count):
            self.told += 1
            value = np.full(1, self.told, np.float32)
            self.device.node.invoke("Device", {"x": value, "to": (PeerId.from_name("hub"),)})
            self.run(self.now_ns + 10_000_000)
        self.off("device", 6 * HOUR)

    @property
    def heard(self) -> list[float]:
        return [float(np.ravel(v)[0]) for _, v in self.hub.events]


@pytest.mark.parametrize("knows_marks", [True, False], ids=["marks", "plain"])
@pytest.mark.parametrize("met", [True, False], ids=["met before", "never met"])
def test_a_week_of_reports_for_a_hub_that_is_off_arrives_once_in_order(compile_text, knows_marks, met):
    farm = Farm(compile_text, knows_marks)
    if not met:  # folders of nodes that have never spoken
        for machine in (farm.device, farm.hub):
            machine.disk = type(machine.disk)()
            machine.start(farm.now_ns)
    farm.off("hub", 7 * 24 * HOUR)
    farm.off("device", HOUR)
    for _ in range(28):
        farm.wake_and_tell(3)
    assert farm.told == 84 and farm.heard == []
    assert len(farm.device.disk.outbox) >= 84
    farm.now_ns = max(farm.down.values())
    farm.run(farm.now_ns + 20 * S)
    assert farm.heard == list(range(1, 85))
    assert farm.device.node.pending_sends == 0
    assert not of(steps.StateRolledBack, farm.device.said + farm.hub.said)
    # What the device slept with is gone from its outbox with its next snapshot, and comes no more.
    farm.off("device", HOUR)
    farm.wake_and_tell()
    farm.now_ns = farm.down["device"]
    farm.run(farm.now_ns + 20 * S)
    assert farm.heard == list(range(1, 86))
