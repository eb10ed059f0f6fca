"""Clients that answer with poison: what becomes of the model that honest ones train with them."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokers import mosquitto
from node_processes import id_of

from bb_edge.ir.ids import PeerId
from federated_digits import data
from federated_digits.federation import program
from federated_digits.processes import Child, Ended, Events

from .world import PATIENCE_S

HONEST = 4

POISONER = '''"""Loaded by a client: what it sends is changed on its way, and it trains nothing."""

import os

import numpy as np

from bb_edge.components import GraphModel
from bb_edge.extend import Float16Codec, register
from bb_edge.syscalls import wire_ops


@register
class Unused(Float16Codec):  # a file that registers nothing is not loaded
    TYPE_NAME = "evil.Unused"


VECTORS = {{
    "one number": lambda x: x[:1],
    "two dimensions": lambda x: x.reshape(-1, 1),
    "empty": lambda x: x[:0],
    "nan": lambda x: np.full_like(x, np.nan),
    "huge": lambda x: np.full_like(x, 3e38),
    "scaled": lambda x: x * np.float32(-1e4),
}}
SAMPLES = {{"many samples": 2**62, "fewer than none": -5}}
kind = {kind!r}
encode = wire_ops.encode_tensor


def poisoned(array):
    if array.ndim == 1 and kind in VECTORS:
        array = VECTORS[kind](array)
    if array.ndim == 0 and kind in SAMPLES:
        array = np.array(SAMPLES[kind], array.dtype)
    return encode(array)


wire_ops.encode_tensor = poisoned
GraphModel.backward = lambda self, ctx, grad: None  # it is the first to answer
GraphModel.step = lambda self, ctx, grads=None: None
'''

REFUSED = ("one number", "two dimensions", "empty", "nan", "many samples", "fewer than none")
"""Poison that no aggregate takes."""


@dataclass(slots=True)
class Poisoned:
    """What the server said of each round, and in its log."""

    accuracy: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    missing: list[set[str]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)


def poisoned(folder: Path, attackers: Sequence[str], rounds: int) -> Poisoned:
    """A federation of the digits with honest clients and these attackers; ends when the server has ended."""
    from bb_host.edge import compile_edge

    folder.mkdir(parents=True, exist_ok=True)
    everybody = HONEST + len(attackers)
    module, compiler = program("mlp", 3, rounds=rounds, clients=everybody, at_least=everybody)
    compile_edge(module, compiler, folder)
    x, y = data.load_digits()
    test, shards = data.write_shards(folder, x, y, data.split(y, HONEST, seed=3))
    events, broker = Events(), mosquitto(folder)
    children: list[Child] = []

    def start(name: str, target: str, *more: str) -> None:
        command = [
            *(sys.executable, "-m", "bb_edge.cli", "run", folder / f"FederatedDigits.{target}.edge.onnx"),
            *("--peer", name, "--target", target, "--broker", broker.url, "--federation", "poison"),
            *("--budget", "host", *more),
        ]
        children.append(Child(name, command, folder / f"{name}.log", events))

    broker.start()
    try:
        for number, shard in enumerate(shards):
            start(f"honest-{number}", "Client", "--set", f"shard.path={shard}", "--seed", str(number))
        for number, kind in enumerate(attackers):
            evil = folder / f"evil{number}.py"
            evil.write_text(POISONER.format(kind=kind))
            start(name_of(kind), "Client", "--set", f"shard.path={shards[0]}", "--load", str(evil))
        start("server", "Server", "--set", f"test.path={test}", "--until-done")
        return _watched(events, children[-1])
    finally:
        for child in children:
            child.signal(signal.SIGTERM)
        for child in children:
            child.end(within_s=PATIENCE_S)
        broker.kill()


def name_of(attack: str) -> str:
    """The name of the client that makes this attack."""
    return f"evil-{attack.replace(' ', '-')}"


def _watched(events: Events, server: Child) -> Poisoned:
    found, deadline = Poisoned(), time.monotonic() + 2 * PATIENCE_S
    while (event := events.next(deadline)) is not None:
        if isinstance(event, Ended):
            assert event.child is server and event.code == 0, (event.child.name, event.child.tail)
            return found
        if event.child is not server:
            continue
        if event.error:
            found.log.append(event.text)
        elif event.record.get("event") == "round":
            value: Any = event.record["value"]
            if value[3] or value[4]:
                found.accuracy.append(value[2])
                found.samples.append(value[3])
                found.missing.append(set(map(id_of, value[4])))
    raise AssertionError(f"the server has not ended: {server.tail}")


def ids(attackers: Sequence[str]) -> set[str]:
    """The peer ids of these attackers, as texts."""
    return {str(PeerId.from_name(name_of(kind))) for kind in attackers}
