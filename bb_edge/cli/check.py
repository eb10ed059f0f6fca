"""`bb-edge check`: can this device run an artifact, and if not, why not. Nothing is started, nothing sent."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bb_edge.cli.own_components import add_load, load_all
from bb_edge.cli.run import parse_set
from bb_edge.engine.program import Program, Target


@dataclass(slots=True)
class Verdict:
    """What one target needs and what stands against it. Sizes are bytes; None where they cannot be told."""

    target: str
    peer_class: str
    problems: list[str] = field(default_factory=list)
    arena_bytes: int | None = None
    weight_bytes: int = 0
    model_bytes: int = 0  # of flatbuffers
    interpreter: str = ""  # what runs them here, or why nothing does; empty where there are none

    @property
    def runs(self) -> bool:
        return not self.problems


def add_parser(verbs: Any) -> None:
    p: argparse.ArgumentParser = verbs.add_parser("check", help="say whether this device can run an artifact")
    p.add_argument("artifact", type=Path, help="a compiled .onnx file")
    p.add_argument("--target", action="append", metavar="NAME", help="partition (repeatable; default: all)")
    p.add_argument("--set", action="append", default=[], metavar="SLOT.KEY=VALUE", help="as for run")
    add_load(p)
    p.add_argument("--budget", choices=("edge", "host"), default="edge", help="capacities of the node")
    p.add_argument("--json", action="store_true")
    p.set_defaults(run=run)


def verdicts(program: Program, arguments: argparse.Namespace) -> list[Verdict]:
    """One verdict per target: a trial installation, and the memory that its graphs take."""
    from bb_edge.engine.config import NodeConfig
    from bb_edge.installer import UnknownTargetError, install
    from bb_edge.ir.errors import BBError
    from bb_edge.ir.ids import PeerId
    from bb_shims import detect

    config = NodeConfig.edge() if arguments.budget == "edge" else NodeConfig.host()
    settings = parse_set(arguments.set)
    available = detect().memory.info().available_bytes
    found = []
    names = arguments.target or list(program.targets)
    for name in names:
        if name not in program.targets:
            raise UnknownTargetError(
                f"no target {name!r}", "check", f"the program has: {', '.join(program.targets)}"
            )
        target = program.targets[name]
        verdict = Verdict(name, target.peer_class)
        found.append(verdict)
        own = {slot: config for slot, config in settings.items() if slot in target.bindings}
        try:
            install(PeerId.from_name("check"), (), program, [name], config, components=own, seed=0)
            _measure(program, target, verdict)
        except BBError as error:
            verdict.problems.append(str(error))
        needed = (verdict.arena_bytes or 0) + verdict.weight_bytes + verdict.model_bytes
        if needed > available:
            verdict.problems.append(f"needs {needed} bytes, {available} are available")
    unknown = [slot for slot in settings if not any(slot in t.bindings for t in program.targets.values())]
    if unknown:
        raise UnknownTargetError(f"no slot {unknown[0]!r}", "--set")
    return found


def _measure(program: Program, target: Target, verdict: Verdict) -> None:
    """The weights in the target's backend functions, and the arena where all input shapes are known."""
    import numpy as np

    from bb_edge.backends.numpy_backend import NumPyBackend
    from bb_edge.backends.plan import StaticPlan
    from bb_edge.backends.program import NumPyProgram
    from bb_edge.ir import keys
    from bb_edge.ir.types import dtype_of_elem

    main = program.functions[target.main]
    graph = program.graphs[target.main]
    arenas = []
    for node in main.node:
        function = program.functions.get((node.domain, node.op_type))
        if node.domain != keys.BACKEND_DOMAIN or function is None:
            continue
        verdict.weight_bytes += sum(
            len(a.t.raw_data) for n in function.node if n.op_type == "Constant" for a in n.attribute
        )
        models = [n for n in function.node if n.domain == keys.TFLITE_DOMAIN]
        if models:
            from bb_edge.backends.tflite.probe import interpreter

            verdict.model_bytes += sum(len(a.s) for n in models for a in n.attribute if a.name == "model")
            verdict.interpreter = str(interpreter())
            continue  # an interpreter plans its own memory
        declared = [graph.input_types.get(name) for name in node.input]
        arrays = []
        for value in declared:
            dtype = dtype_of_elem(value.node.elem_type or 0) if value is not None else None
            if value is None or dtype is None or value.shape is None:
                break
            shape = [d for d in value.shape if isinstance(d, int)]
            if len(shape) != len(value.shape):
                break
            # A plan looks at shapes and dtypes alone: one element stands for all.
            arrays.append(np.broadcast_to(np.zeros((), dtype), shape))
        if len(arrays) != len(declared):
            continue
        prepared = NumPyBackend().prepare(function)
        plan = prepared.plan_for(arrays) if isinstance(prepared, NumPyProgram) else None
        if isinstance(plan, StaticPlan):
            arenas.append(plan.arena_bytes)
    verdict.arena_bytes = sum(arenas) if arenas else None


def run(arguments: argparse.Namespace) -> int:
    """0 where every target runs here, else 1."""
    from bb_edge.loading import load

    load_all(arguments.load)
    program = load(arguments.artifact.read_bytes())
    found = verdicts(program, arguments)
    fine = all(verdict.runs for verdict in found)
    if arguments.json:
        print(
            json.dumps(
                {"artifact": arguments.artifact.name, "runs": fine, "targets": [_record(v) for v in found]}
            )
        )
        return 0 if fine else 1
    for verdict in found:
        word = "runs" if verdict.runs else "does not run"
        print(f"target {verdict.target} (class {verdict.peer_class}): {word}")
        if verdict.weight_bytes:
            print(f"  weights: {verdict.weight_bytes} bytes")
        if verdict.model_bytes:
            print(f"  TFLite models: {verdict.model_bytes} bytes, on {verdict.interpreter}")
        if verdict.arena_bytes is not None:
            print(f"  arena: {verdict.arena_bytes} bytes")
        for problem in verdict.problems:
            print(f"  {problem}")
    return 0 if fine else 1


def _record(verdict: Verdict) -> dict[str, object]:
    return {**asdict(verdict), "runs": verdict.runs}
