"""What `bb-edge run` makes before a node runs, step by step.

`run` makes every step and ends at the first refusal. The dry run of `check --config` and `doctor --config`
makes the same steps for trial: it collects every refusal, starts nothing, sends nothing and throws all away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from bb_edge.cli.component_notes import chosen_backends, component_notes
from bb_edge.cli.endings import BoardFailure, MayPass, text_of
from bb_edge.cli.idle_targets import what_nothing_starts
from bb_edge.cli.offloading import Offloading
from bb_edge.cli.peer_names import PeerNames, configured_names
from bb_edge.cli.portable import portable_doubt
from bb_edge.cli.render import Log
from bb_edge.cli.run_settings import require
from bb_edge.cli.tflite_backends import with_tuning
from bb_edge.cli.training_conditions import conditions_of, without_effect
from bb_edge.ir.address import Address
from bb_edge.ir.errors import BBError, SeveralErrors
from bb_edge.ir.ids import PeerId
from bb_edge.registry import load_all

if TYPE_CHECKING:
    from bb_edge.adoption import Former
    from bb_edge.engine.program.program import Program, Target
    from bb_edge.node import Node
    from bb_edge.observe.metrics import MetricsServer
    from bb_edge.observe.trace import Trace
    from bb_edge.run_config import RunConfig
    from bb_edge.state.store import StateStore
    from bb_edge.transport.broker import Broker
    from bb_edge.transport.mqtt import MqttTransport
    from bb_edge.transport.renewal import CertificateWatch
    from bb_edge.wire.durable_rows import OutboxName
    from bb_shims import Board, Conditions

TRIAL_PEER = "check"
"""Who a dry run is where its configuration names nobody."""


class ArtifactUnreadable(BBError):
    """The file of the artifact cannot be read."""


class Step(NamedTuple):
    """One step of a launch; it is made only if the steps in `needs` were made, where they are steps of it."""

    name: str
    make: Callable[[], object]
    needs: tuple[str, ...] = ()


class Launch:
    """Makes a node and everything around it from one configuration. The fields hold the parts.

    What is opened is closed with `stack`. `log` takes warnings, and what was restored. With `trial` nothing
    is created or changed, and a state folder or port that a running node has is left to it.
    """

    def __init__(self, config: RunConfig, log: Log, stack: ExitStack, *, trial: bool = False) -> None:
        self.config = config
        self._log = log
        self._stack = stack
        self._trial = trial
        self.peer = PeerId.from_name(config.peer or TRIAL_PEER)
        self.board: Board
        self.broker: Broker
        self.certificates: CertificateWatch
        self.program: Program
        self.targets: tuple[Target, ...]
        self.node: Node
        self.names: PeerNames
        self.transport: MqttTransport
        self.conditions: Conditions | None = None
        self.store: StateStore | None = None
        self.counted_before: Mapping[str, int] = {}
        self.former: Former | None = None
        self.metrics: MetricsServer | None = None
        self.trace: Trace | None = None
        self.presence_packet_bytes = 0
        """Of the largest packet in which the node says its presence; 0 where it was not made."""

    def steps(self) -> Iterator[Step]:
        """The steps, in the order in which they are made; each raises a BBError where it refuses."""
        config = self.config
        yield Step("board", self._board)
        yield Step("conditions", self._conditions, ("board",))
        yield Step("peer", partial(require, config, "peer"))
        yield Step("federation", self._federation)
        yield Step("broker", self._broker)
        yield Step("settings", self._settings)
        for name in config.load:
            yield Step("modules", partial(load_all, (name,)))
        yield Step("artifact", self._artifact)
        yield Step("targets", self._targets, ("artifact",))
        yield Step("capacity", self._capacity, ("targets", "settings"))
        if config.state is not None:
            yield Step("state", self._state)
        yield Step("node", self._node, ("board", "conditions", "modules", "targets", "state"))
        yield Step("bootstraps", self._bootstraps, ("node",))
        if config.until_done:
            yield Step("end", self._end, ("node",))
        if config.save_model is not None:
            yield Step("save_model", self._save_model, ("node",))
        yield Step("transport", self._transport, ("node", "broker", "federation"))
        if config.trace is not None:
            yield Step("trace", self._trace, ("board",))
        if config.metrics is not None:
            yield Step("metrics", self._metrics)

    def make(self) -> None:
        """Makes all steps. Raises what the first one raises that refuses."""
        for step in self.steps():
            step.make()

    def refusals(self) -> list[Exception]:
        """Makes all steps that can be made, and returns everything that keeps the node from running."""
        from bb_shims import ShimError

        found: list[Exception] = []
        failed: set[str] = set()
        for step in self.steps():
            if failed.intersection(step.needs):
                failed.add(step.name)
                continue
            try:
                step.make()
            except (BBError, ShimError, MemoryError, OSError) as error:  # what ends `bb-edge run`
                found += error.errors if isinstance(error, SeveralErrors) else (error,)
                failed.add(step.name)
        return found

    # --- the steps ------------------------------------------------------------------------------------

    def _board(self) -> None:
        from bb_shims import ShimError, detect

        try:
            self.board = detect()
        except ShimError as error:
            raise BoardFailure(str(error), "board") from error

    def _conditions(self) -> None:
        self.conditions = conditions_of(self.config, self.board)

    def _federation(self) -> None:
        from bb_edge.transport.topics import check_federation

        check_federation(self.config.federation)

    def _broker(self) -> None:
        from bb_edge.transport.credentials import stranger
        from bb_edge.transport.renewal import CertificateWatch

        require(self.config, "broker")
        self.broker = self.config.broker_record()
        self.broker.tls_context()
        if self.config.peer and (doubt := stranger(self.broker, self.peer)):
            self._log("warning", doubt)
        self.certificates = CertificateWatch(self.broker, self._log)

    def _settings(self) -> None:
        from bb_edge.run_config import (
            check_folders,
            checked_every,
            checked_interval,
            checked_snapshot_rounds,
        )

        config = self.config
        check_folders(config)
        checked_interval(config.snapshot_interval_s)
        checked_snapshot_rounds(config.snapshot_rounds)
        checked_every(config.save_every)
        config.transport_options(config.node_config())
        config.store_limits()
        for idle in config.unused():
            self._log("warning", idle)

    def _artifact(self) -> None:
        from bb_edge.loading import load

        require(self.config, "artifact")
        path = self.config.artifact
        assert path is not None
        try:
            self.program = load(path)
        except OSError as error:
            raise ArtifactUnreadable(
                f"{path} cannot be read: {error.strerror or error}",
                "artifact",
                "name the compiled .onnx file",
            ) from error
        if doubt := portable_doubt(self.program, path):
            self._log("warning", doubt)

    def _targets(self) -> None:
        from bb_edge.targets import chosen_targets

        config = self.config
        require(config, "targets")
        assert config.artifact is not None
        self.targets = chosen_targets(self.program, config.targets)
        for idle in what_nothing_starts(self.targets, self.program, config.artifact):
            self._log("warning", idle)
        if config.state is not None and config.snapshot_rounds > 1:
            called = config.called("snapshot_rounds")
            if not self._has_rounds():
                self._log("warning", f"{called} has no effect: this node has no rounds of its own")
            elif self._asks_durably():
                self._log(
                    "warning",
                    f"{called} saves no snapshots here: a durable request leaves behind one of its own",
                )

    def _has_rounds(self) -> bool:
        mains = (self.program.graphs[target.main] for target in self.targets)
        return any(op.op_type == "Repeat" for main in mains for op in main.ops)

    def _asks_durably(self) -> bool:
        from bb_edge.capacity import requests_of

        graphs = ((self.program.graphs[target.main], target.name) for target in self.targets)
        return any(request.durable for graph in graphs for request in requests_of(*graph))

    def _capacity(self) -> None:
        """What never fits on disk or through the connection is refused; what takes turns is told.

        `bb-edge check` tells the latter on its own.
        """
        from bb_edge.capacity import findings, planned_journal, refusals, tell
        from bb_edge.targets import InstallError

        config = self.config
        node = config.node_config()
        disk = config.store_limits(planned_journal(self.program, self.targets)) if config.state else None
        found = findings(self.program, self.targets, node, disk, config.mqtt_options)
        in_memory = refusals(findings(self.program, self.targets, node))  # which `install` refuses
        for finding in refusals(found):
            if finding not in in_memory:
                raise InstallError(finding.what, finding.where, finding.hint)
        if not self._trial:
            tell(found, self._log)

    def _state(self) -> None:
        from bb_edge.cli.kept import check_folder

        assert self.config.state is not None
        check_folder(self.config.state, self.config.called("state"))

    def _node(self) -> None:
        folder = self.config.state
        if folder is None:
            self.node = self._restored(None)
            return
        from bb_edge.capacity import planned_journal
        from bb_edge.cli.kept import in_use, open_kept, warn_of_room
        from bb_edge.engine.snapshot import Identity
        from bb_shims import ShimError

        limits = self.config.store_limits(planned_journal(self.program, self.targets))
        if self._trial and not folder.exists():
            warn_of_room(folder, None, limits, self._log)
            self.node = self._restored(None)
            return
        identity = Identity.of(self.peer, self.program, [target.name for target in self.targets])
        made = self._restored, identity, self._stack, self._adopted, self.config.federation, self._known
        try:
            opened = open_kept(folder, limits, self.board, self._log, *made)
            self.node, self.store, self.counted_before = opened
        except ShimError as error:
            if not in_use(error):
                raise BoardFailure(str(error), "state") from error
            if not self._trial:
                stop = "stop it, or give this node a folder of its own"
                raise BoardFailure("another process has it open", f"state {folder}", stop) from error
            self._log("warning", f"a running node has {folder} open: what it holds is not looked at")
            warn_of_room(folder, None, limits, self._log)
            self.node = self._installed(None)

    def _restored(self, snapshot: bytes | None) -> Node:
        """The node from its own snapshot, or from what it adopts where it has none."""
        folder = self.config.adopt
        if folder is None:
            return self._installed(snapshot)
        from bb_edge.cli.adopt import adopting, check_origin, check_room, former_at

        if snapshot is not None:
            node = self._installed(snapshot)
            check_origin(node, folder, self._log)
            return node
        former = former_at(folder, self.config, self.board.clock.wall_ns(), self._log, self._trial)
        self.former = former
        node = adopting(former, folder, lambda: self._installed(None, former), self._log)
        check_room(former, folder, self.config)
        return node

    def _adopted(self) -> Sequence[tuple[OutboxName, bytes]]:
        """What has to be in the new outbox of what was adopted; a trial writes nothing."""
        return () if self.former is None or self._trial else self.former.outbox

    def _installed(self, snapshot: bytes | None, former: Former | None = None) -> Node:
        from bb_edge.installer import install

        config, board, peer = self.config, self.board, self.peer
        assert config.artifact is not None
        now_ns = board.clock.monotonic_ns()
        offloading = Offloading()
        self._stack.callback(offloading.close)
        return install(
            peer,
            (Address.empty().with_peer(peer).to_bytes(),),
            self.program,
            config.targets,
            config.node_config(),
            components=with_tuning(config.components, self.program, config.targets, config.artifact),
            clock_offset_ns=board.clock.wall_ns() - now_ns,
            seed=board.entropy.bytes(16) if config.seed is None else config.seed,
            # A restart with the same seed is a new incarnation, whose sequence numbers start again.
            incarnation=board.entropy.bytes(16),
            executor=offloading,
            clock=board.clock.monotonic_ns,
            why_not_train=None if self.conditions is None else self.conditions.unmet,
            durable=config.state is not None,
            snapshot=snapshot,
            adopt=former,
            now_ns=now_ns,
        )

    def _bootstraps(self) -> None:
        from bb_edge.cli.bootstraps import inputs_of

        config, node = self.config, self.node
        held = without_effect(config, node) if config.train_when else []
        for text in chosen_backends(node):
            self._log("info", text)
        for note in (*component_notes(node), *held):
            self._log("warning", note)
        if config.run_bootstraps:
            states = node.bootstraps
            node.keep_bootstrapping(
                inputs_of(self.program, self.targets, config.bootstrap, states, self._log)
            )
        elif any(not state.status.over for state in node.bootstraps):
            why = config.called("run_bootstraps")
            self._log("warning", f"bootstraps are not started ({why}); what waits for them does not run")

    @property
    def ends(self) -> bool:
        """Whether the node is to end, and has rounds that do."""
        return self.config.until_done and (self.node.open_rounds > 0 or self.node.rounds_done)

    def _end(self) -> None:
        if not self.ends:
            called = self.config.called("until_done")
            self._log("warning", f"{called} has no effect: no rounds of this node have an end")

    def _save_model(self) -> None:
        from bb_edge.cli.saved_models import check_saved

        assert self.config.save_model is not None
        check_saved(self.config.save_model, self.config.state, self.node)

    def _transport(self) -> None:
        from bb_edge.capacity import largest_arrival
        from bb_edge.transport.mqtt import MqttTransport

        config, node = self.config, self.node
        self.names = PeerNames(node.peer_meta, self._known)
        self.transport = MqttTransport(
            node,
            self.broker,
            config.federation,
            on_log=self.names.log_to(self._log),
            options=config.transport_options(node.config),
            meta=self._facts(),
            version=config.mqtt_version,
            planned=largest_arrival(self.program, self.targets),
        )
        self.presence_packet_bytes = self.transport.presence_packet_bytes
        if self._trial:
            self.transport.stop()

    @property
    def _known(self) -> tuple[str, ...]:
        """Names of peers that the configuration gives, the node's own first."""
        return (self.config.peer or TRIAL_PEER, *configured_names(self.config.components))

    def _facts(self) -> dict[str, object]:
        """What the node's presence says for people: its name, and since when it runs (`bb-edge peers`)."""
        clock = self.board.clock
        since = {"since": clock.wall_ns() // 1_000_000_000} if clock.wall_is_set() else {}
        return {"name": self.config.peer, **since}

    def _trace(self) -> None:
        from bb_edge.observe.trace import Trace, check_trace

        path = self.config.trace
        assert path is not None
        if not self._trial:
            self.trace = Trace(path, self.config.peer or "", self.board.clock.monotonic_ns)
            self._stack.callback(self.trace.close)
            return
        check_trace(path)

    def _metrics(self) -> None:
        from bb_edge.observe.metrics import ListenError, MetricsServer, parse_address

        config = self.config
        host, port = parse_address(config.metrics or "")
        labels = {"node": config.peer or "", "federation": config.federation}
        try:
            self.metrics = MetricsServer(host, port, labels)
        except ListenError as error:
            if not error.may_pass:
                raise
            if not (self._trial and error.taken):
                raise MayPass(error.what, error.where, error.hint) from error
            self._log("warning", f"metrics: {host}:{port} is taken: by a running node?")
            return
        self._stack.callback(self.metrics.close)


def dry_launch(config: RunConfig, log: Log) -> tuple[list[str], Launch]:
    """Everything that keeps `bb-edge run` from running this configuration here, in its words, and what was
    made of it; no text if nothing does.
    """
    with ExitStack() as stack:
        launch = Launch(config, log, stack, trial=True)
        return [text_of(error) for error in launch.refusals()], launch
