"""Compile time: the whole pipeline on a federation of 500 ops, against onnxruntime's session, and by size.

Every figure is the pipeline with all passes and all checks at the seams, on one core. The session is
onnxruntime's over an equal graph: the same ONNX ops in the same order, from bytes, single-threaded, with its
default optimizations.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import onnx
import onnx.helper
import onnxruntime

from bb_host import Compiler, Graph, Module
from bb_host.ir.program import Program
from bb_host.ir.proto import to_proto
from benchmarks.measuring import Row, in_turns, nanoseconds
from federated_digits.federation import BATCH, FederatedDigits, accuracy
from federated_digits.federation import program as digits

OPS = 500
SIZES = (500, 5_000, 50_000)
OPS_OF_A_STEP = 7
"""What one local step adds to the federation's program."""


def count_ops(program: Program) -> int:
    return sum(len(function.ops) for function in program.functions)


class Unrolled(FederatedDigits):
    """The federated digits program with its local steps one by one, and their loss by hand."""

    def body(self, g: Graph) -> None:
        with g.rounds(self.rounds) as start:
            peers = self.clients.sample(g, n=self.asked, after=start)
            params = self.model.params(g, after=start)
            r = g.request("global", peers, params, deadline_ns=self.deadline_ns)

            done = self.model.load_parameters(g, r.value)
            for _ in range(self.local_steps):
                x, y = self.shard.next_batch(g, after=done)
                p = g.onnx.softmax(self.model.forward(g, x), axis=1)
                dz = (p - y) / BATCH
                done = self.model.step(g, after=self.model.backward(g, dz))
            r.reply([self.model.params(g, after=done), self.shard.num_samples(g)])

            weights, n = r.answer
            self.agg.contribute(g, weights, weight=n, peer=r.answer.sender, sent=params)
            new, total = self.agg.aggregate(g, after=r.closed)
            ok = self.model.load_parameters(g, new)
            x, y = self.test.next_batch(g, after=ok)
            loss = self.model.evaluate(g, x, y)
            score = accuracy(g, self.model.forward(g, x), y)
            g.app_emit("round", g.bundle([start.round, loss, score, total, r.missing]))


def federation(ops: int) -> tuple[Program, Compiler]:
    """The federated digits program with as many local steps as give at least `ops` ops."""
    fixed = count_ops(Unrolled(local_steps=0).record())
    steps = -(-(ops - fixed) // OPS_OF_A_STEP)
    return Unrolled(local_steps=steps).record(), digits()[1]


class Layers(Module):
    """ONNX ops only: what both sides can read."""

    def __init__(self, ops: int) -> None:
        super().__init__()
        self.ops = ops

    def body(self, g: Graph) -> None:
        x = first = g.input("x", np.float32, ["n", 64])
        weight = g.constant(np.eye(64, dtype=np.float32))
        for number in range(self.ops - 1):
            kind = number % 5
            if kind == 0:
                x = x @ weight
            elif kind == 1:
                x = x + first
            elif kind == 2:
                x = g.onnx.relu(x)
            elif kind == 3:
                x = x * first
            else:
                x = g.onnx.tanh(x)
        g.output("y", x)


def equal_graph(program: Program) -> bytes:
    """The same ops as one ONNX graph, serialized."""
    function = to_proto(program).functions[0]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        list(function.node),
        "equal",
        [info("x", onnx.TensorProto.FLOAT, ["n", 64])],
        [info(function.output[0], onnx.TensorProto.FLOAT, ["n", 64])],
    )
    for node in graph.node:
        del node.metadata_props[:]
    model = onnx.helper.make_model(graph, opset_imports=list(function.opset_import), ir_version=10)
    data: bytes = model.SerializeToString()
    return data


def _session(data: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def _milliseconds(act: Callable[[], object]) -> Callable[[], float]:
    def sample() -> float:
        gc.collect()
        return nanoseconds(act) / 1e6

    return sample


def run(rounds: int = 30, seconds: float = 40.0) -> list[Row]:
    """The compile rows."""
    program, compiler = federation(OPS)
    layers = Layers(OPS).record()
    data = equal_graph(layers)
    plain = Compiler()
    model = to_proto(layers)
    result = _session(data).run(None, {"x": np.ones((2, 64), np.float32)})[0]
    assert result.shape == (2, 64), "onnxruntime reads the equal graph"
    assert count_ops(layers) == OPS, count_ops(layers)
    assert count_ops(program) >= OPS, count_ops(program)
    found = in_turns(
        {
            "federation": _milliseconds(lambda: compiler.run(program)),
            "layers": _milliseconds(lambda: plain.run(layers)),
            "model": _milliseconds(lambda: plain.compile(model)),
            "onnxruntime": _milliseconds(lambda: _session(data)),
        },
        rounds,
        seconds / 2,
    )
    session = found["onnxruntime"]
    rows = [
        Row(f"federation of {count_ops(program)} ops", {"passes": found["federation"]}, "ms", None, 8.0),
        Row(f"{OPS} ONNX ops, passes", {"passes": found["layers"]}, "ms", None, 1.6),
        Row(
            f"{OPS} ONNX ops, passes against a session",
            {"passes": found["layers"], "session": session},
            "ms",
            found["layers"] / session,
            0.15,
        ),
        Row(
            f"{OPS} ONNX ops, proto to proto",
            {"compile": found["model"], "session": session},
            "ms",
            found["model"] / session,
        ),
    ]
    return rows + _by_size(max(2, rounds // 10), seconds / 2)


def _by_size(rounds: int, seconds: float) -> list[Row]:
    """Microseconds per op by size; the ratio is to the smallest program."""
    programs = [federation(size) for size in SIZES]

    def sample(program: Program, compiler: Compiler) -> Callable[[], float]:
        per_run = _milliseconds(lambda: compiler.run(program))
        ops = count_ops(program)
        repeats = max(1, 5_000 // ops)
        return lambda: sum(per_run() for _ in range(repeats)) / repeats * 1e3 / ops

    sides = {str(size): sample(*pair) for size, pair in zip(SIZES, programs, strict=True)}
    found = in_turns(sides, rounds, seconds)
    smallest = found[str(SIZES[0])]
    return [
        Row(
            f"time per op, {size:,} ops against {SIZES[0]}",
            {"large": found[str(size)], "small": smallest},
            "µs",
            found[str(size)] / smallest,
            1.2,
        )
        for size in SIZES[1:]
    ]
