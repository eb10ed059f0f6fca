"""Clients that answer with poison: what becomes of the model that honest ones train with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx

from bb_edge.components import FedAvg
from bb_host import S
from bb_host.build import compile_edge
from federated_digits.federation import program

from .digits import HONEST, Digits, Heard, ids

POISONER = '''"""Loaded by a client: what it sends is changed on its way, and it trains nothing."""

import time

import numpy as np

from bb_edge.components import GraphModel
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.extend import Float16Codec, register
from bb_edge.syscalls import wire_ops
from bb_edge.wire import envelope


@register
class Unused(Float16Codec):  # a file that registers nothing is not loaded
    TYPE_NAME = "evil.Unused"


VECTORS = {{
    "one number": lambda x: x[:1],
    "two dimensions": lambda x: x.reshape(-1, 1),
    "empty": lambda x: x[:0],
    "nan": lambda x: np.full_like(x, np.nan),
    "huge": lambda x: np.full_like(x, 3e38),
    "oversize": lambda x: np.zeros(6_000_000, np.float32),
    "scaled": lambda x: x * np.float32(-1e4),
}}
SAMPLES = {{"many samples": 2**62, "fewer than none": -5}}
kind = {kind!r}
encode = wire_ops.tensor_pieces


def poisoned(array):
    if array.ndim == 1 and kind in VECTORS:
        array = VECTORS[kind](array)
    if array.ndim == 0 and kind in SAMPLES:
        array = np.array(SAMPLES[kind], array.dtype)
    return encode(array)


def late(self, ctx, *rest):
    time.sleep({late_s})
    return load_parameters(self, ctx, *rest)


def raises(self, ctx, *rest):
    raise RuntimeError("no more memory")


def mute(self, unit, *rest):
    if unit.kind != envelope.RESPONSE:
        add(self, unit, *rest)


wire_ops.tensor_pieces = poisoned
load_parameters, add = GraphModel.load_parameters, Outgoing.add
if kind == "late":
    GraphModel.load_parameters = late
if kind == "raises":
    GraphModel.load_parameters = raises
if kind == "mute":
    Outgoing.add = mute
GraphModel.backward = lambda self, ctx, grad: None  # it is the first to answer
GraphModel.step = lambda self, ctx, grads=None: None
'''

REFUSED = ("one number", "two dimensions", "empty", "nan", "many samples", "fewer than none")
"""Poison that no aggregate takes."""
BEHAVIOUR = ("late", "mute", "raises", "oversize")
"""No poison, but no answer that counts either."""
LATE_S = 0.5
"""How late the answers of one are that is late."""


def poisoned(
    folder: Path,
    attackers: Sequence[str],
    rounds: int,
    seed: int = 0,
    look: Callable[[Digits], None] = lambda _: None,
) -> Heard:
    """A federation of the digits with honest clients and these attackers; ends when the server has ended.

    The honest ones draw their batches by `seed`. `look` is called when the server alone has ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    everybody = HONEST + len(attackers)
    compile_edge(*program("mlp", 3, rounds=rounds, clients=everybody, at_least=everybody), folder)
    with _running(folder) as digits:
        for number in range(HONEST):
            digits.honest(number, seed=number + HONEST * seed)
        for kind in attackers:
            attack(digits, kind)
        digits.serve()
        heard = digits.done()
        look(digits)
        return heard


def spoiled(folder: Path, rounds: int, deadline_s: float) -> Heard:
    """Honest clients, one of which runs an older program that the server's lists, beside those of BEHAVIOUR
    and one that runs a program which nobody lists. All are up when the server begins.
    """
    old, other = folder / "old", folder / "other"
    clients = HONEST + len(BEHAVIOUR) + 1
    options = {"rounds": rounds, "clients": clients, "at_least": HONEST, "deadline_ns": round(deadline_s * S)}
    module, compiler = program("mlp", 3, **options)
    compile_edge(
        module, compiler.without_binding("agg").bind_aggregator("agg", FedAvg, {"clip_norm": 2.9}), old
    )
    compile_edge(*program("softmax", 3, **options), other)
    compile_edge(*program("mlp", 3, **options), folder, accepts=[onnx.load(old / "FederatedDigits.onnx")])
    with _running(folder) as digits:
        for number in range(HONEST):
            digits.honest(number, artifacts=old if number == HONEST - 1 else None)
        for kind in BEHAVIOUR:
            attack(digits, kind, deadline_s + LATE_S)
        shard = ("--set", f"shard.path={digits.shards[0]}")
        digits.start("evil-program", "Client", *shard, artifacts=other)
        digits.connected()
        digits.serve("--log-level", "debug")
        return digits.done()


def attack(digits: Digits, kind: str, late_s: float = 0.0) -> None:
    """Starts a client that makes this attack."""
    evil = digits.folder / f"{name_of(kind)}.py".replace("-", "_")
    evil.write_text(POISONER.format(kind=kind, late_s=late_s))
    digits.start(name_of(kind), "Client", "--set", f"shard.path={digits.shards[0]}", "--load", evil)


@contextmanager
def _running(folder: Path) -> Iterator[Digits]:
    digits = Digits(folder)
    try:
        yield digits
    finally:
        digits.close()


def name_of(attack: str) -> str:
    """The name of the client that makes this attack."""
    return f"evil-{attack.replace(' ', '-')}"


def ids_of(attackers: Sequence[str]) -> set[str]:
    """The peer ids of these attackers, as texts."""
    return ids(*map(name_of, attackers))
