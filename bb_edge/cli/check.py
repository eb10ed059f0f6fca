"""The verb `bb-edge check`: says whether this device can run an artifact, and if not, why.

Nothing is started and nothing is sent. With --config, or a flag of a node, it is a dry run of `bb-edge run`:
artifact, modules, targets, slots, settings, broker and the inputs of bootstraps.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from bb_edge.cli.arguments import file_name
from bb_edge.cli.portable import portable_doubt
from bb_edge.cli.run_settings import (
    add_adopt,
    add_bootstrap,
    add_certificates,
    check_names,
    merged,
    parse_set,
    with_state,
)
from bb_edge.ir.errors import BBError, SeveralErrors
from bb_edge.ir.suggestions import suggestion
from bb_edge.registry import load_all
from bb_edge.user_modules import add_load

if TYPE_CHECKING:
    from bb_edge.adoption import Former
    from bb_edge.engine.program.program import Program, Target
    from bb_edge.run_config import RunConfig


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
    notes: list[str] = field(default_factory=list)  # what is done in turns, or leaves somebody out

    @property
    def runs(self) -> bool:
        """Whether this device can run the target."""
        return not self.problems


OF_A_NODE = ("config", "peer", "broker", "ca", "cert", "key", "state")
"""Flags of which each one makes a dry run of `bb-edge run`: an artifact has none of these."""


def add_parser(verbs: Any) -> None:
    p: argparse.ArgumentParser = verbs.add_parser("check", help="say whether this device can run an artifact")
    p.add_argument("artifact", type=file_name, nargs="?", help="a compiled .onnx file")
    p.add_argument(
        "--config", type=file_name, metavar="FILE", help="dry-run what `bb-edge run --config FILE` would do"
    )
    p.add_argument("--target", action="append", metavar="NAME", help="partition (repeatable; default: all)")
    p.add_argument("--peer", metavar="NAME", help="this node's name; as --config, dry-runs `bb-edge run`")
    p.add_argument("--broker", metavar="URL", help="its broker, which is not asked; dry-runs, too")
    add_certificates(p)
    p.add_argument(
        "--state", type=file_name, metavar="FOLDER", help="the node's files, which are read; dry-runs, too"
    )
    p.add_argument("--set", action="append", default=[], metavar="SLOT.KEY=VALUE", help="as for run")
    add_load(p)
    add_bootstrap(p)
    add_adopt(p)
    p.add_argument("--federation", metavar="NAME", help="with --adopt: the one that the node is to join")
    p.add_argument("--budget", choices=("edge", "host"), help="capacities of the node (default: edge)")
    p.add_argument("--json", action="store_true")
    p.set_defaults(run=run, usage_error=p.error)


def verdicts(program: Program, config: RunConfig) -> list[Verdict]:
    """Installs each target of an artifact for trial; returns one verdict per target.

    Raises UnknownTargetError or BootstrapInputError where the flags name a slot, target or input that the
    artifact lacks.
    """
    from bb_edge.cli.bootstraps import read_inputs
    from bb_edge.cli.component_notes import component_notes
    from bb_edge.installer import install
    from bb_edge.ir.ids import PeerId
    from bb_edge.targets import UnknownTargetError, chosen_targets

    settings = config.components
    targets = chosen_targets(program, config.targets or tuple(program.targets))
    slots = list(dict.fromkeys(slot for t in targets for slot in t.bindings))
    for slot in settings:
        if slot not in slots:
            near = suggestion(slot, slots, "slots: ")
            raise UnknownTargetError(f"the artifact has no slot {slot!r}", "components (--set)", near)
    for name in config.bootstrap:
        if not any(_names(target, name) for target in targets):
            read_inputs(program, targets, {name: config.bootstrap[name]})  # raises, with the name
    looked_at = []
    for target in targets:
        problems: list[str] = []
        own = {slot: values for slot, values in settings.items() if slot in target.bindings}
        inputs = {name: values for name, values in config.bootstrap.items() if _names(target, name)}
        notes: list[str] = []
        try:
            node = install(
                PeerId.from_name("check"),
                (),
                program,
                [target.name],
                config.node_config(),
                components=own,
                seed=0,
                durable=True,
            )
            notes = component_notes(node, backends=False)  # what is lowered is told with its bytes
            if config.bootstrap:
                read_inputs(program, [target], inputs)
        except SeveralErrors as error:
            problems += map(str, error.errors)
        except BBError as error:
            problems.append(str(error))
        looked_at.append(_needs(program, target, problems, config, stateless=None))
        looked_at[-1].notes[:0] = notes
    return looked_at


def _needs(
    program: Program, target: Target, problems: list[str], config: RunConfig, *, stateless: bool | None
) -> Verdict:
    """What a target needs, unless something refuses it; a problem where that is more memory than there is.

    A `stateless` node has no state folder, and so no bounds of its disk; None where nobody says.
    """
    from bb_shims import detect

    verdict = Verdict(target.name, target.peer_class, problems)
    try:
        if not problems:
            _measure(program, target, verdict)
    except BBError as error:
        problems.append(str(error))
    _look_at_bootstraps(program, target, verdict)
    _look_at_room(program, target, verdict, config, stateless)
    needed = (verdict.arena_bytes or 0) + verdict.weight_bytes + verdict.model_bytes
    available = detect().memory.info().available_bytes
    if needed > available:
        problems.append(f"it needs {needed} bytes of memory, {available} are available")
    return verdict


def _look_at_room(
    program: Program, target: Target, verdict: Verdict, config: RunConfig, stateless: bool | None
) -> None:
    """Looks at the limits. Where nobody says that there is a folder, its bounds refuse what needs one."""
    from bb_edge.capacity import Level, findings, of_unknown_size, planned_journal, requests_of

    main = program.graphs[target.main]
    try:
        disk = None if stateless else config.store_limits(planned_journal(program, [target]))
        found = findings(program, [target], config.node_config(), disk, config.mqtt_options)
        in_memory = findings(program, [target], config.node_config(), None, config.mqtt_options)
    except BBError:
        return  # limits that cannot be are refused elsewhere
    if stateless is None and not any(asked.durable for asked in requests_of(main, target.name)):
        verdict.notes += [f"with a state folder: {finding}" for finding in found if finding not in in_memory]
        found = in_memory
    for finding in (*found, *of_unknown_size(program, [target], config.node_config())):
        refused = finding.level is Level.REFUSED
        if not (refused and any(finding.what in problem for problem in verdict.problems)):
            (verdict.problems if refused else verdict.notes).append(str(finding))


def _names(target: Target, name: str) -> bool:
    return name in (target.name, target.name.partition("#")[0])


def _look_at_bootstraps(program: Program, target: Target, verdict: Verdict) -> None:
    from bb_edge.cli.bootstraps import formals_of, own_bootstraps

    verdict.bootstraps += [f"of slot {slot}" for slot in own_bootstraps(target)]
    if target.bootstrap is not None:
        formals = [f"{name}: {declared}" for name, declared in formals_of(program, target).items()]
        verdict.bootstraps.append(f"of the target{', with ' if formals else ''}{', '.join(formals)}")


def _measure(program: Program, target: Target, verdict: Verdict) -> None:
    """Adds up the weights of the target, and plans its arena where all input shapes are known."""
    import numpy as np

    from bb_edge.backends.numpy_backend import NumPyBackend
    from bb_edge.backends.plan import StaticPlan
    from bb_edge.backends.program import NumPyProgram
    from bb_edge.ir import keys
    from bb_edge.ir.types import dtype_of_elem
    from bb_edge.roles.errors import BackendRunError

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
            try:
                arrays.append(np.broadcast_to(np.zeros((), dtype), shape))
            except ValueError as error:
                raise BackendRunError(
                    f"no array has shape {shape}: {error}", f"target {target.name}"
                ) from error
        if len(arrays) != len(declared):
            continue
        prepared = NumPyBackend().prepare(function)
        plan = prepared.plan_for(arrays) if isinstance(prepared, NumPyProgram) else None
        if isinstance(plan, StaticPlan):
            arenas.append(plan.arena_bytes)
    verdict.arena_bytes = sum(arenas) if arenas else None


def run(arguments: argparse.Namespace) -> int:
    """Prints a verdict per target, and what keeps a whole configuration from running, on a line each.

    Returns 0 if everything runs here, else 1.
    """
    from bb_edge.loading import load
    from bb_edge.run_config import ConfigFileError, RunConfig

    config = RunConfig()
    refused: list[str] = []
    looked_at: list[Verdict] = []
    former: Former | None = None
    told = Told()
    try:
        config = settings_of(arguments)
    except ConfigFileError as error:
        refused = [str(error)]
    else:
        if any(getattr(arguments, name) is not None for name in OF_A_NODE):
            from bb_edge.cli.launch import dry_launch

            refused, launch = dry_launch(config, told)
            former = launch.former
            if arguments.config is None and not (config.peer and config.broker and config.targets):
                given = ", ".join(f"--{name}" for name in OF_A_NODE if getattr(arguments, name) is not None)
                told(
                    "warning",
                    f"{given}: this is a dry run of `bb-edge run`, which needs --target, --peer and --broker;"
                    " without these flags of a node, check looks at the artifact alone",
                )
            looked_at = _sizes_of_targets(config)
            for verdict in looked_at:
                verdict.problems = [problem for problem in verdict.problems if problem not in refused]
        elif config.artifact is None:
            arguments.usage_error("name an artifact, or a configuration with --config")
        else:
            load_all(config.load)
            program = load(config.artifact)
            if doubt := portable_doubt(program, config.artifact):
                told("warning", doubt)
            looked_at = verdicts(program, config)
            if config.adopt is not None:
                former, refused = adopted(program, config, told)
    if former is not None:
        from bb_edge.cli.adopt import as_record, table

        listed, recorded = table(former.rows), {"adopts": as_record(former)}
    else:
        listed, recorded = [], {}
    fine = not refused and all(verdict.runs for verdict in looked_at)
    if arguments.json:
        record = {
            "artifact": None if config.artifact is None else config.artifact.name,
            "runs": fine,
            "problems": refused,
            "warnings": told.warnings,
            "errors": told.errors,
            "targets": [{**asdict(verdict), "runs": verdict.runs and not refused} for verdict in looked_at],
            **recorded,
        }
        print(json.dumps(record))
        return 0 if fine else 1
    for verdict in looked_at:
        word = "runs" if verdict.runs and not refused else "does not run"
        print(f"target {verdict.target} (class {verdict.peer_class}): {word}")
        if verdict.weight_bytes:
            print(f"  weights: {verdict.weight_bytes} bytes")
        if verdict.model_bytes:
            print(f"  TFLite models: {verdict.model_bytes} bytes, on {verdict.interpreter}")
        if verdict.arena_bytes is not None:
            print(f"  arena: {verdict.arena_bytes} bytes")
        for bootstrap in verdict.bootstraps:
            print(f"  bootstrap {bootstrap}")
        for note in verdict.notes:
            print(f"  note: {note}")
        for problem in verdict.problems:
            print(f"  {problem}")
    for line in listed:
        print(line)
    for problem in refused:
        print(f"refused: {problem}")
    return 0 if fine else 1


def adopted(program: Program, config: RunConfig, told: Told) -> tuple[Former | None, list[str]]:
    """What the targets of an artifact would adopt, and what refuses that.

    Without targets in `config` they are those of the artifact that the old node ran.
    """
    import time

    from bb_edge.cli.adopt import check_room, former_at
    from bb_edge.installer import install
    from bb_edge.targets import chosen_targets

    assert config.adopt is not None
    try:
        former = former_at(config.adopt, config, time.time_ns(), told, trial=True)
        names = config.targets or [name for name in former.identity.targets if name in program.targets]
        targets = chosen_targets(program, names)
        install(
            former.peer,
            (),
            program,
            [target.name for target in targets],
            config.node_config(),
            components=config.components,
            seed=0,
            durable=True,
            adopt=former,
        )
        check_room(former, config.adopt, config)
    except BBError as error:
        return None, [str(error)]
    return former, []


class Told:
    """What `run` would log as a warning or an error and go on: printed, and kept by level.

    A state folder that has lost something is an error, and refuses nothing.
    """

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.errors: list[str] = []

    def __call__(self, level: str, message: str, *, kind: str = "", **more: object) -> None:
        if level in ("warning", "error"):
            about = ", ".join(f"{name} {value}" for name, value in more.items())
            text = f"{message}: {about}" if about else message
            (self.errors if level == "error" else self.warnings).append(text)
            print(f"bb-edge: {level}: {text}", file=sys.stderr)


def _sizes_of_targets(config: RunConfig) -> list[Verdict]:
    """What the targets of a configuration need; empty where its artifact or targets are refused."""
    from bb_edge.loading import load
    from bb_edge.targets import chosen_targets

    if config.artifact is None or not config.targets:
        return []
    try:
        program = load(config.artifact)
        targets = chosen_targets(program, config.targets)
    except (BBError, OSError):
        return []
    stateless = config.state is None
    return [_needs(program, target, [], config, stateless=stateless) for target in targets]


def settings_of(arguments: argparse.Namespace) -> RunConfig:
    """The configuration of --config, if a file is named, with the flags on top."""
    from dataclasses import replace

    from bb_edge.cli.bootstraps import parse_flags
    from bb_edge.config_file import load_config
    from bb_edge.run_config import RunConfig

    check_names(arguments)
    config = RunConfig() if arguments.config is None else load_config(arguments.config)
    return replace(
        with_state(config),
        artifact=arguments.artifact or config.artifact,
        targets=tuple(arguments.target or config.targets),
        budget=arguments.budget or config.budget,
        federation=arguments.federation or config.federation,
        peer=arguments.peer or config.peer,
        broker=arguments.broker or config.broker,
        ca=arguments.ca or config.ca,
        cert=arguments.cert or config.cert,
        key=arguments.key or config.key,
        state=arguments.state or config.state,
        load=(*config.load, *arguments.load),
        components=merged(config.components, parse_set(arguments.set)),
        bootstrap=merged(config.bootstrap, parse_flags(arguments.bootstrap)),
        adopt=arguments.adopt or config.adopt,
        adopt_without_outbox=arguments.adopt_without_outbox or config.adopt_without_outbox,
    )
