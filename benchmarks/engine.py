"""What the engine adds to an op: a chain of additions against a bare Python loop over the same calls.

Both do the same chain, x ← x + b; by hand over preallocated arrays. The engine's side goes through all of
it: invoke with named inputs, poll, and the result as an app event. Unfused, every addition is an op of
the engine; fused, the chain is one backend subgraph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine.steps import AppEvent
from bb_edge.ir import keys
from bb_host.ir.proto import to_proto
from benchmarks.measuring import Row, in_turns, nanoseconds
from tests.aids.program_text import parse

OPS = 256
GOALS = {64: (1.8, 0.9), 4096: (1.25, 0.65)}
"""By floats: unfused, fused."""
SIZES = tuple(GOALS)
REPEATS = 40
"""Invokes per sample."""


def chain(ops: int, floats: int, fused: bool) -> bytes:
    """An artifact that adds `b` to `x` so often."""
    names = ["x", *(f"v{i}" for i in range(1, ops)), "y"]
    body = "\n".join(f"  {b}: F32[{floats}] = Add({a}, b)" for a, b in itertools.pairwise(names))
    signature = f"(x: F32[{floats}], b: F32[{floats}]) -> (y)"
    if fused:
        main = f"  y: F32[{floats}] = backend.subgraph_chain(x, b)"
        rest = f"function backend.subgraph_chain{signature} {{backend_slot=backend}}\n{body}\n"
    else:
        main, rest = body, ""
    head = f"program Chain {{module=Chain}}\nfunction program.Main{signature} {{entry=1, partition=self}}"
    text = f"{head}\n{main}\n{rest}"
    model = to_proto(parse(text))
    model.metadata_props.add(key=keys.COMPILED_KEY, value=keys.COMPILED_VERSION)
    model.metadata_props.add(key=f"{keys.BINDING_PREFIX}Main.backend", value="backend|bb.NumPyBackend|1")
    data: bytes = model.SerializeToString()
    return data


def engine_side(floats: int, fused: bool) -> tuple[Callable[[], float], Callable[[], np.ndarray]]:
    """(nanoseconds per op, one result) of a node that runs the chain."""
    node = install(
        PeerId.from_name("bench"), (), chain(OPS, floats, fused), ["Main"], NodeConfig.host(), seed=1
    )
    inputs = {"x": np.zeros(floats, np.float32), "b": np.ones(floats, np.float32)}
    clock = [0]

    def once() -> np.ndarray:
        node.invoke("Main", inputs)
        clock[0] += 1
        for step in node.poll(clock[0]):
            if isinstance(step, AppEvent):
                value = step.value
                assert isinstance(value, np.ndarray)
                return value
        raise AssertionError("the chain gave no result")

    def sample() -> float:
        def several() -> None:
            for _ in range(REPEATS):
                once()

        return nanoseconds(several) / REPEATS / OPS

    return sample, once


def bare_side(floats: int) -> tuple[Callable[[], float], Callable[[], np.ndarray]]:
    """The same, as one would write it by hand."""
    x, b = np.zeros(floats, np.float32), np.ones(floats, np.float32)
    arrays = [x, *(np.empty(floats, np.float32) for _ in range(OPS))]
    calls = list(itertools.pairwise(arrays))
    add = np.add

    def once() -> np.ndarray:
        for a, out in calls:
            add(a, b, out=out)
        return arrays[-1]

    def sample() -> float:
        def several() -> None:
            for _ in range(REPEATS):
                once()

        return nanoseconds(several) / REPEATS / OPS

    return sample, once


def run(rounds: int = 15, seconds: float = 20.0) -> list[Row]:
    """One row per size and form; raises AssertionError where the sides disagree."""
    rows = []
    for floats in SIZES:
        bare, bare_once = bare_side(floats)
        unfused, unfused_once = engine_side(floats, fused=False)
        fused, fused_once = engine_side(floats, fused=True)
        expected = bare_once()
        for once in (unfused_once, fused_once):
            np.testing.assert_array_equal(once(), expected)
        found = in_turns({"bare": bare, "unfused": unfused, "fused": fused}, rounds, seconds / len(SIZES))
        for form, goal in zip(("unfused", "fused"), GOALS[floats], strict=True):
            rows.append(
                Row(
                    f"{form} op, {floats} floats",
                    {"engine": found[form], "bare": found["bare"]},
                    "ns",
                    found[form] / found["bare"],
                    goal,
                )
            )
    return rows
