"""The verb `bb-edge run`: runs one artifact as one node against one broker, until it is stopped."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bb_edge.cli.arguments import file_name
from bb_edge.cli.render import LEVELS, Output, step_record, unix_time
from bb_edge.cli.run_settings import MissingArgument, add_bootstrap, settings
from bb_edge.engine import steps
from bb_edge.ir.address import Address
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.registry import load_all
from bb_edge.user_modules import add_load

if TYPE_CHECKING:
    from bb_edge.config_file import RunConfig
    from bb_edge.engine.program.program import Program, Target
    from bb_edge.node import Node


class NothingStarts(BBError):
    """Nothing would ever start any of the targets: the artifact is for `open_model`, not for `run`."""


class BoardFailure(BBError):
    """The machine lacks what a node needs: a clock, entropy, memory figures or its state folder."""


def add_parser(verbs: Any) -> None:
    p: argparse.ArgumentParser = verbs.add_parser(
        "run",
        help="install an artifact and run it against a broker",
        description="Flags override the file of --config; docs/operations.md lists its keys.",
    )
    p.add_argument("artifact", type=file_name, nargs="?", help="a compiled .onnx file")
    p.add_argument(
        "--config",
        type=file_name,
        metavar="FILE",
        help="a .json or .toml file that holds any of the settings below",
    )
    p.add_argument("--target", action="append", metavar="NAME", help="partition to run (repeatable)")
    p.add_argument("--peer", metavar="NAME", help="this node's name; its peer id is hashed from it")
    p.add_argument("--broker", metavar="URL", help="mqtt://[user:password@]host[:port] or mqtts://…")
    p.add_argument("--federation", metavar="NAME", help="nodes of one federation find each other")
    p.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SLOT.KEY=VALUE",
        help="configure a component, for example shard.path=data.npz (repeatable)",
    )
    add_bootstrap(p)
    p.add_argument(
        "--no-bootstrap", action="store_true", help="start no bootstrap; what waits for one does not run"
    )
    p.add_argument("--budget", choices=("edge", "host"), help="capacities of the node (default: edge)")
    p.add_argument("--seed", type=int, help="seed of the node's generator, for repeatable runs")
    add_load(p)
    p.add_argument("--ca", metavar="FILE", help="certificate authority of an mqtts broker")
    p.add_argument("--cert", metavar="FILE", help="client certificate")
    p.add_argument("--key", metavar="FILE", help="key of the client certificate")
    p.add_argument(
        "--mqtt-version",
        choices=("auto", "5", "3.1.1"),
        help="default: auto (5, or 3.1.1 if the broker does not speak 5)",
    )
    p.add_argument(
        "--state", type=file_name, metavar="FOLDER", help="the node's files; no other node may use it"
    )
    p.add_argument(
        "--snapshot-interval",
        type=int,
        metavar="SECONDS",
        help="time between snapshots (default: 300; 0: only where the program asks for one)",
    )
    p.add_argument(
        "--save-model",
        type=file_name,
        metavar="FOLDER",
        help="write the parameters of each model slot to FOLDER/<slot>.npz, after each round that changed"
        " them and at the end",
    )
    p.add_argument(
        "--every",
        type=int,
        metavar="N",
        help="with --save-model: after each N rounds that changed them (default: 1)",
    )
    p.add_argument("--until-done", action="store_true", help="end once every Repeat has counted its rounds")
    p.add_argument("--summary", action="store_true", help="print counters, bytes and memory at the end")
    p.add_argument("--trace", type=file_name, metavar="FILE", help="write polls and ops for Perfetto")
    p.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        help="serve counters at /metrics (Prometheus); on loopback if no host is named",
    )
    p.add_argument("--json", action="store_true", help="logs as JSON lines")
    p.add_argument("--log-level", choices=LEVELS, help="default: info")
    p.set_defaults(run=run, usage_error=p.error)


def run(arguments: argparse.Namespace) -> int:
    from bb_shims import ShimError

    try:
        config = settings(arguments)
    except MissingArgument as error:
        arguments.usage_error(str(error))  # exits with code 2, as for every wrong command line
        raise
    try:
        return _run(config)
    except ShimError as error:
        raise BoardFailure(str(error), "board") from error


def _run(config: RunConfig) -> int:
    with ExitStack() as stack:
        return _run_within(config, stack)


def _run_within(config: RunConfig, stack: ExitStack) -> int:
    from bb_edge.cli.bootstraps import counts, inputs_of
    from bb_edge.cli.service import Service
    from bb_edge.installer import install
    from bb_edge.loading import load
    from bb_edge.targets import chosen_targets
    from bb_edge.transport.driver import Driver
    from bb_edge.transport.mqtt import MqttTransport
    from bb_shims import detect

    output = Output(config.log_json, config.log_level)
    stack.callback(output.close)
    stack.enter_context(redirect_stdout(sys.stderr))  # what components print is not an event
    broker = config.broker_record()
    load_all(config.load)
    name, artifact = config.peer, config.artifact
    assert name is not None and artifact is not None  # checked by `settings`
    program = load(artifact.read_bytes())
    targets = chosen_targets(program, config.targets)
    for idle in what_nothing_starts(targets, program, artifact):
        output.log("warning", idle)
    for idle in config.unused():
        output.log("warning", idle)
    board = detect()
    peer = PeerId.from_name(name)

    def make(snapshot: bytes | None) -> Node:
        now_ns = board.clock.monotonic_ns()
        return install(
            peer,
            (Address.empty().with_peer(peer).to_bytes(),),
            program,
            config.targets,
            config.node_config(),
            components=with_tuning(config.components, program, config.targets, artifact),
            clock_offset_ns=board.clock.wall_ns() - now_ns,
            seed=board.entropy.bytes(16) if config.seed is None else config.seed,
            # A restart with the same seed is a new incarnation, whose sequence numbers start again.
            incarnation=board.entropy.bytes(16),
            durable=config.state is not None,
            snapshot=snapshot,
            now_ns=now_ns,
        )

    unfinished = 0
    waiting: set[str] = set()  # targets that were logged as waiting for a bootstrap

    def report(step: steps.EngineStep) -> None:
        nonlocal unfinished
        if isinstance(step, steps.AppEvent):
            wire = transport.counters
            record = {"event": step.topic, "time": unix_time(), "node": name, **_without_step(step)}
            if step.omitted_bytes:
                output.log(
                    "warning",
                    f"{step.topic}: the value is left out because it is larger than app_event_bytes",
                    bytes=step.omitted_bytes,
                    app_event_bytes=node.config.app_event_bytes,
                )
            else:
                del record["omitted_bytes"]
            # The traffic so far, so that a host sees what a round costs.
            output.record(record | {key: wire[key] for key in ("sent_bytes", "received_bytes")})
        elif isinstance(step, steps.RoundsCompleted):
            unfinished -= 1
            output.log("info", "rounds completed", target=step.target, rounds=step.rounds)
        elif isinstance(step, steps.BootstrapStarted | steps.BootstrapComplete):
            waiting.clear()
            _log_bootstrap(output, step)
        elif isinstance(step, steps.WaitingOnBootstrap):
            level = "debug" if step.target in waiting else "info"
            waiting.add(step.target)
            output.log(level, "waiting for a bootstrap", target=step.target, op=step.op)
        else:
            level = _LEVEL.get(type(step), "debug")
            output.log(level, type(step).__name__, **_without_step(step))
            if isinstance(step, steps.OpFailed):
                _log_traceback(output, step)

    if config.state is None:
        node, keeper = make(None), None
    else:
        from bb_edge.cli.kept import open_kept

        node, keeper = open_kept(config, config.state, board, output, make, report, stack)
    for note in backend_notes(node):
        output.log("warning", note)
    if config.run_bootstraps:
        node.keep_bootstrapping(inputs_of(program, targets, config.bootstrap, node.bootstraps, output))
    elif any(not state.status.over for state in node.bootstraps):
        output.log("warning", "bootstraps are not started (--no-bootstrap); what waits for them does not run")
    saved = None
    if config.save_model is not None:
        from bb_edge.cli.saved_models import open_saved

        every = 1 if config.save_every is None else config.save_every
        saved = open_saved(config.save_model, every, config.state, node, board, output, stack)
    transport = MqttTransport(
        node,
        broker,
        config.federation,
        on_log=output.log,
        options=config.transport_options(node.config),
        meta={"name": name},
        version=config.mqtt_version,
    )
    unfinished = node.open_rounds
    with Service(config, board, node, transport, output, keeper) as service:
        driver = Driver(
            node,
            transport,
            board.clock,
            report,
            keeper=keeper,
            polled=service.polled,
            beat=service.beat if saved is None else service.beat_and(saved.beat),
            max_wait_s=service.max_wait_s,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: driver.stop())
        output.log("info", f"{name} runs {', '.join(node.targets)} as {peer}", module=program.module)
        ends = config.until_done and (unfinished > 0 or node.rounds_done)
        if config.until_done and not ends:
            output.log("warning", "--until-done has no effect: no rounds of this node have an end")
        driver.run((lambda: unfinished <= 0) if ends else None)
        if saved is not None:
            saved.finish()
    if config.summary:
        memory = board.memory.info()
        output.record(
            {
                "summary": name,
                "peak_rss_bytes": memory.peak_rss_bytes,
                "protocol": transport.protocol,
                "polls": driver.polls,
                "transport": dict(transport.counters),
                "counters": node.counters
                | counts(node.bootstraps)
                | ({} if keeper is None else keeper.counters),
            }
        )
    failed = keeper is not None and keeper.failing
    if failed:
        output.log("error", "the last snapshot was not written: everything since the one before is lost")
    output.log("info", f"{name} has stopped")
    return 1 if failed or output.lost else 0


def backend_notes(node: Node) -> list[str]:
    """The notes of TFLite backends: what runs each model, and why."""
    return [
        note
        for target in node.targets
        for slot, binding in node.program.targets[target].bindings.items()
        if binding.type_name == "bb.TFLiteBackend"
        for note in node.component(slot, target).notes
    ]


def what_nothing_starts(targets: Sequence[Target], program: Program, artifact: Path) -> list[str]:
    """Returns a warning per target that nothing starts; raises NothingStarts if that is all of them.

    Such a target waits for an `invoke` by a host, which `bb-edge run` never makes.
    """
    idle = [target.name for target in targets if not _starts(program, target)]
    what = "nothing ever starts it: it has no round, timer, bootstrap or port that peers send to"
    if len(idle) == len(targets):
        raise NothingStarts(
            what,
            f"{artifact.name}, target {', '.join(idle)}",
            f"run it with `bb-edge bench {artifact}`, or call it in Python: "
            f"bb_edge.open_model({str(artifact)!r})",
        )
    return [f"target {name}: {what}" for name in idle]


def _starts(program: Program, target: Target) -> bool:
    from bb_edge.cli.bootstraps import own_bootstraps
    from bb_edge.ir import keys
    from bb_edge.ir.opsets import OpKind

    return (
        target.bootstrap is not None
        or any(op.kind is OpKind.ENTRY for op in program.graphs[target.main].ops)
        or any(b.role == keys.ROLE_PROTOCOL for b in target.bindings.values())
        or bool(own_bootstraps(target))
    )


def _log_bootstrap(output: Output, step: steps.BootstrapStarted | steps.BootstrapComplete) -> None:
    from bb_edge.engine.entries.bootstrap import seconds

    whose = {"target": step.target} | ({"slot": step.slot} if step.slot else {})
    if isinstance(step, steps.BootstrapStarted):
        output.log("info", "bootstrap started", **whose)
    elif not step.failed:
        output.log("info", "bootstrap done", **whose)
    else:
        again = {"next_try": f"in {seconds(step.wait_ns)}"} if step.wait_ns else {}
        output.log("error", "bootstrap failed", **whose, **again, error=step.reason)


def _log_traceback(output: Output, step: steps.OpFailed) -> None:
    """Logs the traceback of an op that failed in a component's code, at level debug."""
    if step.origin and output.tells("debug") and step.error.__traceback__ is not None:
        import traceback

        lines = "".join(traceback.format_exception(step.error)).rstrip()
        output.log("debug", f"traceback of {step.op}:\n{lines}")


def with_tuning(
    components: Mapping[str, Mapping[str, object]], program: Program, targets: Sequence[str], artifact: Path
) -> dict[str, Mapping[str, object]]:
    """Adds the file that `bb-edge bench --tune` wrote beside the artifact to each TFLite backend."""
    from bb_edge.inference import tuning_of

    configured: dict[str, Mapping[str, object]] = dict(components)
    place = tuning_of(artifact)
    for name in targets if place is not None else ():
        target = program.targets.get(name)
        for slot, binding in ({} if target is None else target.bindings).items():
            if binding.type_name == "bb.TFLiteBackend":
                configured[slot] = {"tuning": place, **configured.get(slot, {})}
    return configured


def _without_step(step: steps.EngineStep) -> dict[str, object]:
    record = step_record(step)
    del record["step"]
    return record


_LEVEL = {
    steps.OpFailed: "error",
    steps.WireReceiveFailed: "warning",
    steps.PeerResolveFailed: "warning",
    steps.IngressDropped: "warning",
    steps.OutboundDropped: "warning",
    steps.ExecutionStarved: "warning",
    steps.RoundBackedOff: "info",
    steps.PeerUp: "info",
    steps.PeerDown: "info",
    steps.PeerBlocked: "warning",
    steps.StateForgotten: "warning",
    steps.StorageFailed: "error",
}
