"""A node with --until-done whose rounds are over delivers its durable sends before it ends, or names them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from durable_machines import Net
from durable_program import SAY
from node_processes import PATIENCE_S, NodeProcess
from times import S

from bb_edge import PeerId
from bb_edge.cli.endings import Exit
from bb_edge.cli.last_delivery import LastDelivery

TELLS = f"""program Demo {{module=Demo}}
function program.Device(x: F32[1], to: PeerIdVec) -> () {{entry=1, partition=Device}}
  h: Trigger = wire.Send(x, to) {{{SAY}}}
function program.Hub() -> () {{entry=1, partition=Hub}}
  x: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  syscall.AppEmit<name="heard">(x)
"""


class Ending:
    """A device that has told its hub something, and is asked whether it may end."""

    def __init__(self, data: bytes, patience_ns: int = 30 * S, **config: int) -> None:
        self.net = Net(data, {"device": "Device", "hub": "Hub"}, **config)
        self.net.run(S)
        self.told: list[int] = []
        self.outbox = self.net.machines["device"].node.outbox
        self.delivery = LastDelivery(self.outbox, lambda: self.net.now_ns, patience_ns, self.told.append)

    def tell(self, count: int = 1, deliver: bool = True) -> None:
        for number in range(count):
            inputs = {"x": np.full(1, number, np.float32), "to": (PeerId.from_name("hub"),)}
            self.net.machines["device"].node.invoke("Device", inputs)
            self.run(0.1, deliver)

    def run(self, seconds: float, deliver: bool = True) -> None:
        self.net.run(self.net.now_ns + int(seconds * S), deliver)


@pytest.fixture
def ending(compile_text):
    return lambda *more, **config: Ending(compile_text(TELLS), *more, **config)


def test_who_has_nothing_to_send_ends_at_once(ending) -> None:
    device = ending()
    assert device.delivery.over() and not device.told and not device.delivery.gave_up


def test_it_waits_until_all_is_acknowledged(ending) -> None:
    device = ending()
    device.tell(3, deliver=False)
    assert not device.delivery.over() and not device.delivery.over() and device.told == [3]
    device.run(20)
    assert device.delivery.over() and not device.delivery.gave_up
    assert len(device.net.machines["hub"].events) == 3


def test_its_patience_ends(ending) -> None:
    device = ending(5 * S)
    device.tell(deliver=False)
    assert not device.delivery.over()
    device.run(4.9, deliver=False)
    assert not device.delivery.over() and not device.delivery.gave_up
    device.run(0.1, deliver=False)
    assert device.delivery.over() and device.delivery.gave_up


def test_without_patience_it_waits_for_nothing(ending) -> None:
    device = ending(0)
    device.tell(deliver=False)
    assert device.delivery.over() and not device.delivery.gave_up and not device.told


def test_each_acknowledgement_gives_it_its_patience_anew(ending) -> None:
    device = ending(5 * S, outbox_records=1)
    device.tell(2, deliver=False)  # the second has no room in the outbox
    assert not device.delivery.over() and device.told == [2]
    device.run(4, deliver=False)
    while device.outbox.unplaced:
        device.run(0.001)
    assert not device.delivery.over()
    device.run(4, deliver=False)
    assert not device.delivery.over(), "one was acknowledged four seconds ago"
    device.run(1, deliver=False)
    assert device.delivery.over() and device.delivery.gave_up


def test_what_other_entries_send_meanwhile_keeps_it_from_no_end(ending) -> None:
    device = ending()
    device.tell(deliver=False)
    assert not device.delivery.over()
    device.run(20)
    device.tell(deliver=False)
    assert device.delivery.over() and not device.delivery.gave_up


SELECTOR = 'binding.Device.hubs="peer_selector|bb.PresenceSelector|1"'
ROUNDS = f"""program Demo {{module=Demo, targets="Device,Hub", {SELECTOR}}}
function program.Device() -> () {{entry=1, partition=Device}}
  slot hubs: peer_selector peer_class=Hub
  round: I64[] = syscall.Repeat<times=3, pause_ns=1000000>()
  some: PeerIdVec = role.peer_selector.Sample<n=1, min=1>(round) {{slot=hubs, control_inputs=1}}
  x: F32[] = Cast<to=1>(round)
  h: Trigger = wire.Send(x, some) {{{SAY}}}
function program.Hub() -> () {{entry=1, partition=Hub}}
  x: F32[], s: PeerIdVec = wire.Recv() {{{SAY}}}
  syscall.AppEmit<name="heard">(x)
"""


@pytest.fixture
def farm(tmp_path: Path, compile_text, mosquitto_broker, start):
    """`farm(target, name, …)`: a node; devices tell their hub something in three rounds."""
    path = tmp_path / "farm.onnx"
    path.write_bytes(compile_text(ROUNDS))
    where = ("--broker", f"mqtt://{mosquitto_broker.host}:{mosquitto_broker.port}", "--federation", "farm")

    def run(target: str, name: str, *more: str):
        state = ("--state", str(tmp_path / name))
        return start("run", str(path), "--target", target, "--peer", name, *where, *state, *more)

    return run


@pytest.mark.broker
@pytest.mark.slow
def test_a_device_whose_rounds_are_over_delivers_when_it_is_started_again(farm) -> None:
    hub, first = farm("Hub", "hub"), farm("Device", "first", "--until-done")
    assert first.process.wait(PATIENCE_S) == Exit.DONE, first.lines
    first.says(r"first has stopped$")
    assert heard(hub, 3) == [1.0, 2.0, 3.0]
    hub.process.send_signal(signal.SIGSTOP)  # its presence stays
    device = farm("Device", "shed", "--until-done", "--deliver-within", "1")
    device.says("the rounds are over: waits for the acknowledgements of durable sends, .* envelopes=3")
    said = device.says("nobody has acknowledged what waits within 1 s .--deliver-within.")
    assert "or without --until-done" in said
    device.says(r"3 durable envelopes wait on disk for .*: they leave when this node runs again$")
    assert device.process.wait(PATIENCE_S) == Exit.UNDELIVERED
    device = farm("Device", "shed", "--until-done", "--deliver-within", "0")
    device.says(r"3 durable envelopes wait .*: they leave when this node runs again without --until-done$")
    assert device.process.wait(PATIENCE_S) == Exit.DONE
    hub.process.send_signal(signal.SIGCONT)
    device = farm("Device", "shed", "--until-done")
    assert device.process.wait(PATIENCE_S) == Exit.DONE, device.lines
    device.says(r"shed has stopped$")
    assert heard(hub, 6) == 2 * [1.0, 2.0, 3.0]


def heard(hub: NodeProcess, count: int) -> list[float]:
    """The numbers that the hub has heard, once there are so many."""

    def lines() -> list[str]:
        return [line for line in hub.lines if '"heard"' in line]

    hub.says_one(lambda _: len(lines()) >= count)
    return [json.loads(line)["value"] for line in lines()]
