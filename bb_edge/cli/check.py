"""The verb `bb-edge check`: says whether this device can run an artifact, and if not, why.

Nothing is started and nothing is sent. With --config it is a dry run of `bb-edge run --config`: artifact,
modules, targets, slots, settings, broker and the inputs of bootstraps.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from bb_edge.cli.arguments import file_name
from bb_edge.cli.run_settings import add_bootstrap, merged, parse_set, with_state
from bb_edge.engine.program.program import Program, Target
from bb_edge.ir.suggestions import suggestion
from bb_edge.registry import load_all
from bb_edge.user_modules import add_load

if TYPE_CHECKING:
    from pathlib import Path

    from bb_edge.config_file import RunConfig


@dataclass(slots=True)
class Verdict:
    """What one target needs, and what keeps it from running. Sizes are bytes, None if they are not known."""

    target: str
    peer_class: str
    problems: list[str] = field(default_factory=list)
    arena_bytes: int | None = None
    weight_bytes: int = 0
    model_bytes: int = 0  # of flatbuffers
    interpreter: str = ""  # what runs flatbuffers here, or why nothing does; empty without them
    bootstraps: list[str] = field(default_factory=list)  # the bootstraps that will run, with their inputs

    @property
    def runs(self) -> bool:
        """Whether this device can run the target."""
        return not self.problems


def add_parser(verbs: Any) -> None:
    p: argparse.ArgumentParser = verbs.add_parser("check", help="say whether this device can run an artifact")
    p.add_argument("artifact", type=file_name, nargs="?", help="a compiled .onnx file")
    p.add_argument(
        "--config", type=file_name, metavar="FILE", help="dry-run what `bb-edge run --config FILE` would do"
    )
    p.add_argument("--target", action="append", metavar="NAME", help="partition (repeatable; default: all)")
    p.add_argument("--set", action="append", default=[], metavar="SLOT.KEY=VALUE", help="as for run")
    add_load(p)
    add_bootstrap(p)
    p.add_argument("--budget", choices=("edge", "host"), help="capacities of the node (default: edge)")
    p.add_argument("--json", action="store_true")
    p.set_defaults(run=run, usage_error=p.error)


def verdicts(program: Program, config: RunConfig, whole: bool) -> list[Verdict]:
    """Installs each target for trial and measures its memory; returns one verdict per target.

    With `whole` the configuration is all that a run would get, so what it lacks is a problem. Raises
    UnknownTargetError or BootstrapInputError where it names a slot, target or input that the artifact lacks.
    """
    from bb_edge.cli.bootstraps import read_inputs
    from bb_edge.installer import install
    from bb_edge.ir.errors import BBError
    from bb_edge.ir.ids import PeerId
    from bb_edge.targets import UnknownTargetError, chosen_targets
    from bb_shims import detect

    node_config, settings = config.node_config(), config.components
    available = detect().memory.info().available_bytes
    targets = chosen_targets(program, config.targets or tuple(program.targets))
    slots = list(dict.fromkeys(slot for t in targets for slot in t.bindings))
    for slot in settings:
        if slot not in slots:
            near = suggestion(slot, slots, "slots: ")
            raise UnknownTargetError(f"the artifact has no slot {slot!r}", "components (--set)", near)
    looked_at = []
    for target in targets:
        verdict = Verdict(target.name, target.peer_class)
        looked_at.append(verdict)
        own = {slot: values for slot, values in settings.items() if slot in target.bindings}
        try:
            install(
                PeerId.from_name("check"),
                (),
                program,
                [target.name],
                node_config,
                components=own,
                seed=0,
                durable=not whole or config.state is not None,
            )
            _measure(program, target, verdict)
        except BBError as error:
            verdict.problems.append(str(error))
        _look_at_bootstraps(program, target, verdict)
        needed = (verdict.arena_bytes or 0) + verdict.weight_bytes + verdict.model_bytes
        if needed > available:
            verdict.problems.append(f"it needs {needed} bytes of memory, {available} are available")
    if config.run_bootstraps and (whole or config.bootstrap):
        for verdict, target in zip(looked_at, targets, strict=True):
            own_inputs = {name: v for name, v in config.bootstrap.items() if _names(target, name)}
            try:
                read_inputs(program, [target], own_inputs)
            except BBError as error:
                verdict.problems.append(str(error))
        for name in config.bootstrap:
            if not any(_names(target, name) for target in targets):
                read_inputs(program, targets, {name: config.bootstrap[name]})  # raises, with the name
    return looked_at


def _names(target: Target, name: str) -> bool:
    return name in (target.name, target.name.partition("#")[0])


def _look_at_bootstraps(program: Program, target: Target, verdict: Verdict) -> None:
    from bb_edge.cli.bootstraps import formals_of, own_bootstraps

    verdict.bootstraps += [f"of slot {slot}" for slot in own_bootstraps(target)]
    if target.bootstrap is not None:
        formals = [f"{name}: {declared}" for name, declared in formals_of(program, target).items()]
        verdict.bootstraps.append(f"of the target{', with ' if formals else ''}{', '.join(formals)}")


def problems_of(config: RunConfig) -> list[str]:
    """Everything that keeps a whole configuration from running here; empty if nothing does.

    The modules of the configuration must have been loaded.
    """
    from bb_edge.cli.run import what_nothing_starts
    from bb_edge.cli.saved_models import models_of
    from bb_edge.installer import install
    from bb_edge.ir.errors import BBError
    from bb_edge.ir.ids import PeerId
    from bb_edge.loading import load
    from bb_edge.targets import chosen_targets

    around = _around(config)
    if config.artifact is None:
        return around
    try:
        program = load(config.artifact.read_bytes())
        problems = [p for v in verdicts(program, config, whole=True) for p in v.problems]
        targets = chosen_targets(program, config.targets or tuple(program.targets))
        problems += what_nothing_starts(targets, program, config.artifact)
        # Targets that run alone can still disagree about a slot.
        if not problems and (len(targets) > 1 or config.save_model is not None):
            node = install(
                PeerId.from_name("check"),
                (),
                program,
                [t.name for t in targets],
                config.node_config(),
                components=config.components,
                seed=0,
                durable=config.state is not None,
            )
            if config.save_model is not None:
                models_of(config.save_model, node)
    except BBError as error:
        return [*around, str(error)]
    except OSError as error:
        return [*around, f"artifact: {config.artifact} cannot be read: {error.strerror or error}"]
    return [*around, *problems]


def _around(config: RunConfig) -> list[str]:
    """The problems of a configuration beside its artifact: federation, certificates, addresses, folders."""
    from bb_edge.cli.kept import check_folder
    from bb_edge.config_file import checked_every
    from bb_edge.ir.errors import BBError
    from bb_edge.ir.ids import PeerId
    from bb_edge.observe.metrics import MetricsServer, parse_address
    from bb_edge.transport.topics import Topics

    def metrics(address: str) -> None:
        host, _ = parse_address(address)
        MetricsServer(host, 0, {}).close()  # not the port itself: a running node may use it

    def trace(path: Path) -> None:
        if path.is_dir() or not path.parent.is_dir():
            raise OSError(f"trace: {path} is not a file that can be written")

    looks: list[Callable[[], object]] = [lambda: Topics(config.federation, PeerId.from_name("check"))]
    if config.broker is not None:
        looks.append(lambda: config.broker_record().tls_context())
    if (address := config.metrics) is not None:
        looks.append(lambda: metrics(address))
    if (path := config.trace) is not None:
        looks.append(lambda: trace(path))
    if (state := config.state) is not None:
        looks.append(lambda: check_folder(state, "--state"))
    if (folder := config.save_model) is not None:
        looks.append(lambda: check_folder(folder, "--save-model"))
    looks.append(lambda: checked_every(config.save_every, config.save_model))
    problems = []
    for look in looks:
        try:
            look()
        except (BBError, OSError) as error:
            problems.append(str(error))
    return problems


def _measure(program: Program, target: Target, verdict: Verdict) -> None:
    """Adds up the weights of the target, and plans its arena where all input shapes are known."""
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
            # A plan needs shapes and dtypes only, so one element is broadcast to the shape.
            arrays.append(np.broadcast_to(np.zeros((), dtype), shape))
        if len(arrays) != len(declared):
            continue
        prepared = NumPyBackend().prepare(function)
        plan = prepared.plan_for(arrays) if isinstance(prepared, NumPyProgram) else None
        if isinstance(plan, StaticPlan):
            arenas.append(plan.arena_bytes)
    verdict.arena_bytes = sum(arenas) if arenas else None


def run(arguments: argparse.Namespace) -> int:
    """Prints a verdict per target. Returns 0 if every target runs here, else 1."""
    from bb_edge.cli.run_settings import complete
    from bb_edge.loading import load

    config = settings_of(arguments)
    if config.artifact is None:
        arguments.usage_error("name an artifact, or a configuration with --config")
        raise AssertionError
    whole = arguments.config is not None
    if whole:
        complete(config)
        config.broker_record()
    load_all(config.load)
    artifact = config.artifact
    program = load(artifact.read_bytes())
    looked_at = verdicts(program, config, whole)
    all_run = all(verdict.runs for verdict in looked_at)
    together = problems_of(config) if whole and all_run else []
    fine = all_run and not together
    if arguments.json:
        print(
            json.dumps(
                {
                    "artifact": artifact.name,
                    "runs": fine,
                    "problems": together,
                    "targets": [_record(verdict) for verdict in looked_at],
                }
            )
        )
        return 0 if fine else 1
    for verdict in looked_at:
        word = "runs" if verdict.runs else "does not run"
        print(f"target {verdict.target} (class {verdict.peer_class}): {word}")
        if verdict.weight_bytes:
            print(f"  weights: {verdict.weight_bytes} bytes")
        if verdict.model_bytes:
            print(f"  TFLite models: {verdict.model_bytes} bytes, on {verdict.interpreter}")
        if verdict.arena_bytes is not None:
            print(f"  arena: {verdict.arena_bytes} bytes")
        for bootstrap in verdict.bootstraps:
            print(f"  bootstrap {bootstrap}")
        for problem in verdict.problems:
            print(f"  {problem}")
    for problem in together:
        print(f"does not run: {problem}")
    return 0 if fine else 1


def settings_of(arguments: argparse.Namespace) -> RunConfig:
    """The configuration of --config, if a file is named, with the flags on top."""
    from dataclasses import replace

    from bb_edge.cli.bootstraps import parse_flags
    from bb_edge.config_file import RunConfig, load_config

    config = RunConfig() if arguments.config is None else load_config(arguments.config)
    return replace(
        with_state(config),
        artifact=arguments.artifact or config.artifact,
        targets=tuple(arguments.target or config.targets),
        budget=arguments.budget or config.budget,
        load=(*config.load, *arguments.load),
        components=merged(config.components, parse_set(arguments.set)),
        bootstrap=merged(config.bootstrap, parse_flags(arguments.bootstrap)),
    )


def _record(verdict: Verdict) -> dict[str, object]:
    return {**asdict(verdict), "runs": verdict.runs}
