"""The settings of `bb-edge run`, whether they come from a file or from flags, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bb_edge.engine.config import NodeConfig
from bb_edge.ir.errors import BBError
from bb_edge.state import StoreLimits
from bb_edge.transport.broker import Broker, MqttOptions

OUTBOX_RECORD_BYTES = 256
"""Most bytes that a record of the outbox takes on disk beside its envelope."""

DELIVER_WITHIN_S = 30
"""Seconds without an acknowledgement after which a node whose rounds are over waits no longer for one: a
connection is tried again within 30 s, where it was away for long."""

MAX_PEER_NAME = 256
"""Characters of a node's name, which its presence carries: others read presences of 4,096 bytes."""
MAX_LOGIN = 65_535
"""Bytes of the longest user name and password that MQTT has."""


class ConfigFileError(BBError):
    """A configuration cannot be read or is wrong; the message names the file, the key and the fault."""


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The settings of `bb-edge run`; None, empty or False if a setting is not given.

    `snapshot_interval_s` is 300: a crash costs a node without durable sends five minutes at most, and flash
    some nine thousand snapshots a month. `snapshot_rounds` is 1: a server that is killed loses the round in
    which it was, and those that ended within the last second; nodes without rounds of their own ignore it.
    """

    artifact: Path | None = None
    targets: tuple[str, ...] = ()
    peer: str | None = None
    federation: str = "default"
    broker: str | None = None  # URL
    username: str | None = None
    password: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    mqtt_version: str = "auto"
    mqtt_options: Mapping[str, int] = field(default_factory=dict)
    components: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    bootstrap: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    run_bootstraps: bool = True
    budget: str = "edge"
    limits: Mapping[str, object] = field(default_factory=dict)
    caps: Mapping[str, int] = field(default_factory=dict)
    state: Path | None = None
    adopt: Path | None = None
    adopt_without_outbox: bool = False
    snapshot_interval_s: int = 300
    snapshot_rounds: int = 1
    disk: Mapping[str, int] = field(default_factory=dict)
    save_model: Path | None = None
    save_every: int | None = None
    seed: int | None = None
    load: tuple[str, ...] = ()
    train_when: tuple[str, ...] = ()
    cool_celsius: float | None = None
    idle_load: float | None = None
    until_done: bool = False
    give_up_after: int = 10
    deliver_within_s: int = DELIVER_WITHIN_S
    summary: bool = False
    log_level: str = "info"
    log_json: bool = False
    metrics: str | None = None
    trace: Path | None = None
    file: str = ""  # that was read, and
    by_flag: frozenset[str] = frozenset()  # the settings that flags have given

    def called(self, setting: str) -> str:
        """What the operator has written a setting as: the flag, or the key and its file.

        Of one that is not given, what it can be given by.
        """
        flag = _FLAGS.get(setting) or f"--{setting.replace('_', '-')}"
        if not self.file or setting in self.by_flag:
            return flag
        key, value = f"{setting} in {self.file}", getattr(self, setting)
        if setting == "run_bootstraps":
            key, value = f"bootstrap = false in {self.file}", not value
        return key if value not in (None, False, ()) else f"{flag}, or {key}"

    def node_config(self) -> NodeConfig:
        """The budget with the limits of the file, and an outbox that the disk of a state folder has room for.

        Raises ConfigError, which names the field at fault, and ConfigFileError where the file says more of
        the outbox than its disk holds.
        """
        base = NodeConfig.edge() if self.budget == "edge" else NodeConfig.host()
        caps = replace(base.caps, **dict(self.caps))  # type: ignore[arg-type]
        node = whole = base.with_(**{**self.limits, "caps": caps})
        room = self.disk.get("outbox_bytes")
        if room is None or _outbox_on_disk(node) <= room:
            return node
        # What the disk refuses waits in memory, without bound; what the outbox refuses is told as lost.
        fitting = {"outbox_records": min(node.outbox_records, max(1, room // (2 * OUTBOX_RECORD_BYTES)))}
        records = node.outbox_records if "outbox_records" in self.limits else fitting["outbox_records"]
        fitting["outbox_bytes"] = min(node.outbox_bytes, max(1, room - OUTBOX_RECORD_BYTES * records))
        node = node.with_(**{name: most for name, most in fitting.items() if name not in self.limits})
        given = [f"limits.{name} {self.limits[name]}" for name in fitting if name in self.limits]
        if (needs := _outbox_on_disk(node)) > room and given:
            raise ConfigFileError(
                f"an outbox of {' and '.join(given)} takes up to {needs} bytes,"
                f" disk.outbox_bytes allows {room}",
                "disk.outbox_bytes",
                f"leave it out or raise it to {needs}, or lower the limits (each record takes"
                f" {OUTBOX_RECORD_BYTES} bytes of disk beside its own)",
            )
        return whole if self.state is None else node  # without a folder there is no disk to fill

    def broker_record(self) -> Broker:
        """The broker with its files and credentials. Raises BrokerUrlError and ConfigFileError."""
        if self.broker is None:
            raise ConfigFileError(
                "no broker is named", "run", 'write --broker URL, or "broker" in the configuration'
            )
        broker = Broker.from_url(self.broker, ca_file=self.ca, cert_file=self.cert, key_file=self.key)
        for name in ("username", "password"):
            if getattr(self, name) is not None and getattr(broker, name) is not None:
                raise ConfigFileError(
                    f"the broker's {name} is given in its URL and beside it", "broker", "write one of them"
                )
        if self.username is not None:
            broker = replace(broker, username=self.username)
        if self.password is not None:
            broker = replace(broker, password=self.password)
        _check_login(broker)
        return broker

    def unused(self) -> list[str]:
        """Returns a warning for each setting that has no effect because another one is missing."""
        warnings = []
        changed = {
            "disk": bool(self.disk),
            "snapshot_interval_s": self.snapshot_interval_s != 300,
            "snapshot_rounds": self.snapshot_rounds != 1,
            "deliver_within_s": self.deliver_within_s != DELIVER_WITHIN_S and self.until_done,
        }
        called = self.called
        if self.state is None:
            warnings += [
                f"{called(key)} has no effect without a state folder ({called('state')})"
                for key in changed
                if changed[key]
            ]
        for name, condition in (("cool_celsius", "cool"), ("idle_load", "idle")):
            if getattr(self, name) is not None and condition not in self.train_when:
                warnings.append(f"{called(name)} has no effect: train_when does not name {condition!r}")
        if self.adopt_without_outbox and self.adopt is None:
            without = called("adopt_without_outbox")
            warnings.append(f"{without} has no effect: no state is adopted ({called('adopt')})")
        if self.give_up_after != 10 and not self.until_done:
            warnings.append(
                f"{called('give_up_after')} has no effect: rounds are tried again for ever"
                f" ({called('until_done')} ends them)"
            )
        if self.deliver_within_s != DELIVER_WITHIN_S and not self.until_done:
            warnings.append(
                f"{called('deliver_within_s')} has no effect: the node does not end by itself"
                f" ({called('until_done')} ends it)"
            )
        if self.bootstrap and not self.run_bootstraps:
            warnings.append(f"the inputs of bootstraps have no effect: {called('run_bootstraps')}")
        return warnings

    def store_limits(self, planned_journal: int = 0) -> StoreLimits:
        """The budgets of the state folder, with space for the node's whole outbox. Raises StateError.

        Unless the file says how long, the journal has at least the `planned_journal` bytes of the program.
        """
        base = StoreLimits.edge() if self.budget == "edge" else StoreLimits()
        node = self.node_config()
        outbox_bytes = _outbox_on_disk(node)
        journal_bytes = max(base.journal_bytes, planned_journal)
        limits = {"journal_bytes": journal_bytes, "outbox_bytes": outbox_bytes, **self.disk}
        return replace(base, **limits)

    def transport_options(self, node: NodeConfig) -> MqttOptions:
        """The limits of the connection: those of the node, unless the file sets them."""
        envelope = node.caps.total_bytes
        fitting = {
            "max_envelope_bytes": envelope,
            "chunked_bytes": max(node.ingress_bytes // 2, 2 * envelope),
            "max_waiting": node.outbound_queue,
            "max_waiting_bytes": max(node.ingress_bytes, envelope),
            "receive_maximum": min(64, node.ingress_entries),
        }
        return MqttOptions(**{**fitting, **self.mqtt_options})


def _outbox_on_disk(node: NodeConfig) -> int:
    """The bytes that a full outbox takes on disk, its records' numbers included."""
    return node.outbox_bytes + OUTBOX_RECORD_BYTES * node.outbox_records


_FLAGS = {
    "artifact": "an artifact",
    "disk": "disk",  # these by the file alone
    "train_when": "train_when",
    "cool_celsius": "cool_celsius",
    "idle_load": "idle_load",
    "targets": "--target",
    "snapshot_interval_s": "--snapshot-interval",
    "save_every": "--every",
    "deliver_within_s": "--deliver-within",
    "run_bootstraps": "--no-bootstrap",
    "log_json": "--json",
}
"""The settings whose flags have other names."""


def _check_login(broker: Broker) -> None:
    """Raises ConfigFileError for a login that MQTT cannot carry; it would never be let in."""
    if broker.password is not None and broker.username is None:
        raise ConfigFileError(
            "a password is given without a user name",
            "broker",
            "name the user, which is the peer id, as username",
        )
    for name, text in (("user name", broker.username), ("password", broker.password)):
        if text is not None and len(text.encode("utf-8", "surrogatepass")) > MAX_LOGIN:
            raise ConfigFileError(
                f"the {name} is longer than {MAX_LOGIN} bytes", "broker", "is it the right one?"
            )
    if "\0" in (broker.username or ""):
        raise ConfigFileError("the user name holds a NUL", "broker", "write it without control characters")


def checked_snapshot_rounds(rounds: int) -> None:
    """Checks the rounds between snapshots; 0 means none for rounds. Raises ConfigFileError for less."""
    if rounds < 0:
        raise ConfigFileError(f"{rounds} rounds between snapshots", "run", "give 0 or more; the default is 1")


def checked_interval(seconds: int) -> int:
    """Returns the seconds between snapshots; 0 means only those that the program asks for.

    Raises ConfigFileError for less.
    """
    if seconds < 0:
        raise ConfigFileError(
            f"{seconds} seconds between snapshots", "run", "give 0 or more; the default is 300"
        )
    return seconds


def misfit_of_peer(name: str) -> tuple[str, str] | None:
    """What is wrong with a node's name, and what to write instead; None where it is one."""
    if len(name) > MAX_PEER_NAME:
        return f"a name of {len(name)} characters", f"write {MAX_PEER_NAME} at most: its presence carries it"
    if not name.isprintable():
        return f"{name!r} is not a name", "write it without control characters"
    if name != name.strip():
        return f"{name!r} has a blank at an end", f"write {name.strip()!r}, as the others know it"
    return None


def checked_every(rounds: int | None) -> None:
    """Checks the rounds between two saved models. Raises ConfigFileError below 1."""
    if rounds is not None and rounds < 1:
        raise ConfigFileError(
            f"a model is saved every {rounds} rounds", "run", "give 1 or more; the default is 1"
        )


def checked_give_up(rounds: int) -> None:
    """Checks after how many rounds a run gives up. Raises ConfigFileError below 0."""
    if rounds < 0:
        raise ConfigFileError(f"giving up after {rounds} rounds", "run", "give 1 or more, or 0 for never")


def checked_deliver_within(seconds: int) -> None:
    """Checks how long a node waits for its last acknowledgements. Raises ConfigFileError below 0."""
    if seconds < 0:
        raise ConfigFileError(
            f"waiting {seconds} seconds for acknowledgements",
            "run",
            f"give 1 or more, or 0 to end at once; the default is {DELIVER_WITHIN_S}",
        )


def checked_seed(seed: int | None) -> None:
    """Checks a seed. Raises ConfigFileError below 0, which would give the numbers of another one."""
    if seed is not None and seed < 0:
        raise ConfigFileError(f"the seed {seed}", "run", "give a whole number of 0 or more")


def check_folders(config: RunConfig) -> None:
    """Checks the settings that need another one. Raises ConfigFileError, which names both."""
    called = config.called
    if config.save_every is not None and config.save_model is None:
        raise ConfigFileError(
            "no folder is named for the models", called("save_every"), f"name one: {called('save_model')}"
        )
    if config.adopt is None:
        return
    if config.state is None:
        what = "state is adopted into no folder"
        raise ConfigFileError(what, called("adopt"), f"name the new program's own: {called('state')}")
    if config.adopt.resolve() == config.state.resolve():
        raise ConfigFileError(
            f"{config.adopt} is to be adopted into itself",
            called("adopt"),
            f"give the new program a folder of its own ({called('state')}); the old one stays as it is",
        )
