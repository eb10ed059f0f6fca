"""The verb `bb-edge run`: runs one artifact as one node against one broker, until it is stopped."""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import ExitStack, redirect_stdout
from typing import TYPE_CHECKING, Any

from bb_edge.cli.arguments import LEVELS, ArgumentError, file_name
from bb_edge.cli.endings import BoardFailure, Exit, exit_of_refusal, tell
from bb_edge.cli.run_settings import MissingArgument, add_adopt, add_bootstrap, add_certificates, settings
from bb_edge.cli.stopping import StopAtStart
from bb_edge.ir.errors import BBError
from bb_edge.user_modules import add_load

# The engine, and what writes its steps, are imported once a node runs: other verbs do without them.
if TYPE_CHECKING:
    from collections.abc import Sequence

    from bb_edge.cli.last_delivery import LastDelivery
    from bb_edge.cli.launch import Launch
    from bb_edge.cli.render import Log, Output
    from bb_edge.cli.step_log import StepLog
    from bb_edge.state.keeper import Keeper


def add_parser(verbs: Any) -> None:
    p: argparse.ArgumentParser = verbs.add_parser(
        "run",
        help="install an artifact and run it against a broker",
        description="Flags override the file of --config; docs/reference/configuration.md lists its keys.",
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
    add_certificates(p)
    p.add_argument(
        "--mqtt-version",
        choices=("auto", "5", "3.1.1"),
        help="default: auto (5, or 3.1.1 if the broker does not speak 5)",
    )
    p.add_argument(
        "--state", type=file_name, metavar="FOLDER", help="the node's files; no other node may use it"
    )
    add_adopt(p)
    p.add_argument(
        "--snapshot-interval",
        type=int,
        metavar="SECONDS",
        help="time between snapshots (default: 300; 0: only where the program asks for one)",
    )
    p.add_argument(
        "--snapshot-rounds",
        type=int,
        metavar="N",
        help="own rounds between snapshots, one a second at most (default: 1; 0: none for rounds)",
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
    p.add_argument(
        "--until-done",
        action="store_true",
        help="end once every Repeat has counted its rounds and all durable sends are acknowledged",
    )
    p.add_argument(
        "--give-up-after",
        type=int,
        metavar="N",
        help="with --until-done: end with exit code 4 after N rounds in a row that reached nobody"
        " (default: 10; 0: never)",
    )
    p.add_argument(
        "--deliver-within",
        type=int,
        metavar="SECONDS",
        help="with --until-done and --state: wait so long for each acknowledgement of a durable send, then"
        " end with exit code 5 (default: 30; 0: end at once)",
    )
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
    """Runs the node until it is stopped or done. Returns one of `Exit`."""
    from bb_edge.cli.launch import Launch
    from bb_edge.cli.render import Output
    from bb_shims import ShimError

    try:
        config = settings(arguments)
    except MissingArgument as error:
        arguments.usage_error(str(error))  # exits with code 2, as for every wrong command line
        raise
    except BBError as error:
        tell(error)
        return Exit.USAGE if isinstance(error, ArgumentError) else Exit.REFUSED
    with ExitStack() as stack:
        output = Output(config.log_json, config.log_level)
        stack.callback(output.close)
        stack.enter_context(redirect_stdout(sys.stderr))  # what components print is not an event
        hangups = Hangups()
        launch = Launch(config, output.log, stack)
        try:
            launch.make()
        except (BBError, MemoryError) as error:
            if arguments.stop is not None:
                arguments.stop.check()
            tell(error, debug=config.log_level == "debug")
            return exit_of_refusal(error)
        except ShimError as error:
            raise BoardFailure(str(error), "board") from error
        try:
            return _run(launch, output, hangups, stack, arguments.stop)
        except ShimError as error:
            raise BoardFailure(str(error), "board") from error


class Hangups:
    """Counts SIGHUP, which does not end a node: nothing is read again, and its log needs no reopening.

    A node that was started with SIGHUP ignored (nohup) goes on ignoring it.
    """

    def __init__(self) -> None:
        self.untold = 0
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._hangup)

    def _hangup(self, _number: int, _frame: object) -> None:
        # A line is written by the loop: the handler may have interrupted one that is being written.
        self.untold += 1

    def tell(self, log: Log) -> None:
        """Logs the signals since the last call."""
        self.untold = 0
        log("warning", "SIGHUP is ignored: restart the node to have it read its configuration again")


def _run(launch: Launch, output: Output, hangups: Hangups, stack: ExitStack, stop: StopAtStart | None) -> int:
    from bb_edge.cli.service import Service
    from bb_edge.cli.step_log import StepLog
    from bb_edge.transport.driver import Driver

    config, board, node, transport = launch.config, launch.board, launch.node, launch.transport
    name = config.peer or ""
    report = StepLog(name, node, transport, output, launch.names, transport.tell)
    keeper = None
    if launch.store is not None:
        from bb_edge.cli.kept import keeper_of

        keeper = keeper_of(node, launch.store, config, report, transport.wake)
    saved, unsaved = None, list[str]()
    if config.save_model is not None:
        from bb_edge.cli.saved_models import open_saved

        every = 1 if config.save_every is None else config.save_every
        saved = open_saved(config.save_model, every, config.state, node, board, output, stack)
    with Service(
        board,
        node,
        transport,
        output,
        keeper,
        launch.certificates,
        trace=launch.trace,
        metrics=launch.metrics,
        counted_before=launch.counted_before,
    ) as service:

        def beat(now_ns: int) -> None:
            service.beat(now_ns)
            output.beat(now_ns)
            if hangups.untold:
                hangups.tell(output.log)
            if saved is not None:
                saved.beat(now_ns)

        driver = Driver(
            node,
            transport,
            board.clock,
            report,
            keeper=keeper,
            polled=service.polled,
            beat=beat,
            max_wait_s=service.max_wait_s,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: driver.stop())
        if stop is not None:
            stop.check()
        output.log(
            "info", f"{name} runs {', '.join(node.targets)} as {launch.peer}", module=launch.program.module
        )

        delivery = _last_delivery(launch, output)

        def over() -> bool:
            return delivery.over() if report.unfinished <= 0 else _gives_up(launch, report)

        driver.run(over if launch.ends else None)
        if saved is not None:
            unsaved = saved.finish()
    if config.summary:
        _summarize(launch, output, driver.polls, keeper)
    return _outcome(launch, output, report, keeper, unsaved, delivery.gave_up)


def _summarize(launch: Launch, output: Output, polls: int, keeper: Keeper | None) -> None:
    """Writes the record of `--summary`."""
    from bb_edge.cli.bootstraps import counts

    node, transport = launch.node, launch.transport
    output.record(
        {
            "summary": launch.config.peer or "",
            "peak_rss_bytes": launch.board.memory.info().peak_rss_bytes,
            "protocol": transport.protocol,
            "polls": polls,
            "log_lines_omitted": output.omitted,
            "transport": dict(transport.counters),
            "counters": node.counters | counts(node.bootstraps) | ({} if keeper is None else keeper.counters),
        }
    )


def _outcome(
    launch: Launch,
    output: Output,
    report: StepLog,
    keeper: Keeper | None,
    unsaved: Sequence[str],
    undelivered: bool,
) -> int:
    """Logs what a run that is over leaves undone; returns the exit code. `unsaved` are slots of models.

    `undelivered` says that durable sends were not acknowledged in time.
    """
    config, node = launch.config, launch.node
    failed, waiting = False, ""
    if keeper is not None:
        from bb_edge.cli.kept import still_waiting, tell_lost

        assert launch.store is not None and config.state is not None
        failed = tell_lost(output.log, config.state, node, launch.store, keeper, launch.names)
        at_once = launch.ends and report.unfinished <= 0 and not config.deliver_within_s
        how = f" without {config.called('until_done')}" if at_once else ""
        waiting = "" if failed else still_waiting(node, launch.names, how)
    if unsaved:
        output.log(
            "error",
            f"what changed since was not saved (slot {', '.join(unsaved)}): the file of --save-model is older"
            " than the model",
        )
    gave_up = launch.ends and report.unfinished > 0 and _gives_up(launch, report)
    if gave_up:
        from bb_edge.short_deadlines import short_deadlines

        why = "; ".join((report.in_vain_text(config.give_up_after), *short_deadlines(launch.program)))
        output.log("error", f"given up ({config.called('give_up_after')}): {why}")
    rounds = node.counters.get("rounds.ended", 0)
    in_vain = launch.ends and report.unfinished <= 0 and 0 < rounds == node.counters.get("rounds.failed", 0)
    if in_vain:
        output.log(
            "error", f"an op has failed in each of {rounds} rounds: OpFailed above says which, and why"
        )
    if undelivered:
        output.log(
            "warning",
            f"nobody has acknowledged what waits within {config.deliver_within_s} s"
            f" ({config.called('deliver_within_s')}): start this node again once they are there, or without"
            f" {config.called('until_done')} to have it wait for them",
        )
    output.log("info", f"{config.peer or ''} has stopped{waiting}")
    if failed or unsaved or output.lost:
        return Exit.FAILED
    if gave_up or in_vain:
        return Exit.NO_RESULT
    return Exit.UNDELIVERED if undelivered else Exit.DONE


def _last_delivery(launch: Launch, output: Output) -> LastDelivery:
    """What the node waits for once its rounds are over; without a state folder nothing durable is kept."""
    from bb_edge.cli.last_delivery import LastDelivery

    config = launch.config
    patience_s = 0 if config.state is None else config.deliver_within_s
    called = config.called("deliver_within_s")

    def tell(waiting: int) -> None:
        output.log(
            "info",
            f"the rounds are over: waits for the acknowledgements of durable sends, {patience_s} s at most"
            f" for each ({called})",
            envelopes=waiting,
        )

    return LastDelivery(launch.node.outbox, launch.board.clock.monotonic_ns, patience_s * 1_000_000_000, tell)


def _gives_up(launch: Launch, report: StepLog) -> bool:
    """Whether as many rounds in a row as `--give-up-after` allows have had no result."""
    return 0 < launch.config.give_up_after <= report.in_vain
