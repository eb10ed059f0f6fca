"""`bb-edge run`: one artifact, one node, one broker, until told to stop."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Any

from bb_edge.cli.render import LEVELS, Output, step_record
from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.ir.address import Address
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId


class ArgumentError(BBError):
    """A value on the command line that cannot be."""


def add_parser(verbs: Any) -> None:
    p: argparse.ArgumentParser = verbs.add_parser(
        "run", help="install an artifact and run it against a broker"
    )
    p.add_argument("artifact", type=Path, help="a compiled .onnx file")
    p.add_argument(
        "--target", action="append", required=True, metavar="NAME", help="partition to run (repeatable)"
    )
    p.add_argument(
        "--peer", required=True, metavar="NAME", help="this node's name; its peer id is hashed from it"
    )
    p.add_argument(
        "--broker", required=True, metavar="URL", help="mqtt://[user:password@]host[:port] or mqtts://…"
    )
    p.add_argument(
        "--federation", default="default", metavar="NAME", help="nodes of one federation find each other"
    )
    p.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SLOT.KEY=VALUE",
        help="configure a component, for example shard.path=data.npz (repeatable)",
    )
    p.add_argument("--budget", choices=("edge", "host"), default="edge", help="capacities of the node")
    p.add_argument("--seed", type=int, help="seed of the node's generator, for repeatable runs")
    p.add_argument(
        "--load", action="append", default=[], metavar="MODULE", help="import a module with components"
    )
    p.add_argument("--ca", metavar="FILE", help="certificate authority of an mqtts broker")
    p.add_argument("--cert", metavar="FILE", help="client certificate")
    p.add_argument("--key", metavar="FILE", help="key of the client certificate")
    p.add_argument("--until-done", action="store_true", help="end once every Repeat has counted its rounds")
    p.add_argument("--summary", action="store_true", help="print counters, bytes and memory at the end")
    p.add_argument("--json", action="store_true", help="logs as JSON lines")
    p.add_argument("--log-level", choices=LEVELS, default="info")
    p.set_defaults(run=run)


def parse_set(texts: list[str]) -> dict[str, dict[str, object]]:
    """`slot.key=value` per component.

    Values are JSON where they parse as JSON, else texts. ArgumentError otherwise.
    """
    import json

    found: dict[str, dict[str, object]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        slot, dot, key = name.partition(".")
        if not equals or not dot or not slot or not key:
            raise ArgumentError(f"--set {text!r}", hint="write --set SLOT.KEY=VALUE")
        try:
            parsed: object = json.loads(value)
        except ValueError:
            parsed = value
        found.setdefault(slot, {})[key] = parsed
    return found


def run(arguments: argparse.Namespace) -> int:
    from bb_edge.installer import install
    from bb_edge.loading import load
    from bb_edge.registry import default_registry
    from bb_edge.transport.driver import Driver
    from bb_edge.transport.mqtt import Broker, MqttTransport
    from bb_shims import detect

    output = Output(arguments.json, arguments.log_level)
    broker = Broker.from_url(
        arguments.broker, ca_file=arguments.ca, cert_file=arguments.cert, key_file=arguments.key
    )
    for module in arguments.load:
        default_registry().load_module(module)
    program = load(arguments.artifact.read_bytes())
    board = detect()
    peer = PeerId.from_name(arguments.peer)
    config = NodeConfig.edge() if arguments.budget == "edge" else NodeConfig.host()
    now_ns = board.clock.monotonic_ns()
    node = install(
        peer,
        (Address.empty().with_peer(peer).to_bytes(),),
        program,
        arguments.target,
        config,
        components=parse_set(arguments.set),
        clock_offset_ns=board.clock.wall_ns() - now_ns,
        seed=board.entropy.bytes(16) if arguments.seed is None else arguments.seed,
    )
    transport = MqttTransport(
        node, broker, arguments.federation, on_log=output.log, meta={"name": arguments.peer}
    )
    unfinished = node.open_rounds

    def report(step: steps.EngineStep) -> None:
        nonlocal unfinished
        if isinstance(step, steps.AppEvent):
            wire = transport.counters
            record = {"event": step.topic, **_without_step(step)}
            # What the node has moved so far, so that a host sees what a round costs.
            output.record(record | {key: wire[key] for key in ("sent_bytes", "received_bytes")})
        elif isinstance(step, steps.RoundsCompleted):
            unfinished -= 1
            output.log("info", "rounds completed", target=step.target, rounds=step.rounds)
        else:
            level = _LEVEL.get(type(step), "debug")
            output.log(level, type(step).__name__, **_without_step(step))

    driver = Driver(node, transport, board.clock, report)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: driver.stop())
    output.log("info", f"{arguments.peer} runs {', '.join(node.targets)} as {peer}", module=program.module)
    done = arguments.until_done and unfinished > 0
    driver.run((lambda: unfinished <= 0) if done else None)
    if arguments.summary:
        memory = board.memory.info()
        output.record(
            {
                "summary": arguments.peer,
                "peak_rss_bytes": memory.peak_rss_bytes,
                "protocol": transport.protocol,
                "polls": driver.polls,
                "transport": dict(transport.counters),
                "counters": node.counters,
            }
        )
    output.log("info", f"{arguments.peer} has stopped")
    return 0


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
}
