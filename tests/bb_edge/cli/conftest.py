"""Nodes as processes, and configurations for them."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_processes import NodeProcess

PROGRAM = """program P {module=P, targets="Main"}
function program.Main() -> () {entry=1, partition=Main}
  t: Trigger = syscall.Interval<period_ns=20000000>()
  syscall.AppEmit<name="tick">(t)
  down: Trigger = syscall.LifecyclePhase<phase=1>()
  syscall.AppNotify<name="down">(down)
  snapshot: Trigger = syscall.LifecyclePhase<phase=2>()
  syscall.AppNotify<name="saved">(snapshot)
"""


@pytest.fixture
def start() -> Iterator:
    started: list[NodeProcess] = []

    def make(*words: str, env: dict[str, str] | None = None) -> NodeProcess:
        started.append(NodeProcess(*words, env=env))
        return started[-1]

    yield make
    for process in started:
        assert process.process.stdout is not None
        if not process.process.stdout.closed:
            process.end(signal.SIGKILL)


@pytest.fixture
def configured(tmp_path, compile_text, mosquitto_broker):
    """`configured(**changes)`: the path of a configuration whose node ticks."""

    def make(**changes: object) -> Path:
        (tmp_path / "program.onnx").write_bytes(compile_text(PROGRAM))
        values = {
            "artifact": "program.onnx",
            "targets": ["Main"],
            "peer": "kitchen",
            "broker": f"mqtt://{mosquitto_broker.host}:{mosquitto_broker.port}",
            **changes,
        }
        path = tmp_path / "kitchen.json"
        path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
        return path

    return make
