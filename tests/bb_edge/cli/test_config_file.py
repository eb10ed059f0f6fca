"""The configuration: every key, refusals by name, flags over the file, and what becomes of it."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

import bb_shims
from bb_edge.cli import main, parser
from bb_edge.cli.run_settings import ArgumentError, settings
from bb_edge.config_file import CAPS, LIMITS, MAX_BYTES, OPTIONS, load_config
from bb_edge.engine.config import NodeConfig
from bb_edge.ir.ids import PeerId
from bb_edge.run_config import MAX_PEER_NAME, ConfigFileError, RunConfig, check_folders
from bb_edge.state import StoreLimits
from bb_edge.wire.outbox import Cause, OutboxRecord
from bb_edge.wire.presence import Presence, decode_presence, encode_presence
from bb_edge.wire.resend import EnvelopeKey

FULL = {
    "artifact": "program.onnx",
    "targets": ["Client", "Gossip"],
    "peer": "kitchen",
    "federation": "home",
    "broker": {
        "url": "mqtts://broker:8883",
        "ca": "ca.crt",
        "cert": "kitchen.crt",
        "key": "kitchen.key",
        "username": "kitchen",
        "password_file": "secret",
        "mqtt_version": "5",
        "keepalive_s": 120,
        "session_expiry_s": 86400,
        "max_packet_bytes": 131072,
    },
    "components": {"shard": {"path": "data.npz", "batch_size": 32}},
    "budget": "host",
    "limits": {"max_executions": 8, "resend_ns": 2_000_000_000, "caps": {"fills": 20}},
    "state": "state",
    "snapshot_interval_s": 60,
    "snapshot_rounds": 5,
    "disk": {"journal_bytes": 1048576},
    "seed": 7,
    "load": ["mine.components"],
    "until_done": True,
    "deliver_within_s": 5,
    "summary": True,
    "log": {"level": "warning", "json": True},
    "metrics": "127.0.0.1:9100",
    "trace": "trace.json",
}


@pytest.fixture
def write(tmp_path):
    """`write(value, name)`: a configuration in a folder of its own."""

    def make(value: object, name: str = "kitchen.json") -> Path:
        path = tmp_path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        (tmp_path / "secret").write_text("pass word\n")
        return path

    return make


def test_every_key_arrives(write, tmp_path):
    config = load_config(write(FULL))
    assert config.artifact == tmp_path / "program.onnx"
    assert config.targets == ("Client", "Gossip")
    assert (config.peer, config.federation, config.seed) == ("kitchen", "home", 7)
    assert config.components == {"shard": {"path": "data.npz", "batch_size": 32}}
    assert (config.state, config.trace) == (tmp_path / "state", tmp_path / "trace.json")
    assert config.deliver_within_s == 5
    assert (config.until_done, config.summary, config.log_json, config.log_level) == (
        True,
        True,
        True,
        "warning",
    )
    assert (config.metrics, config.load, config.mqtt_version) == ("127.0.0.1:9100", ("mine.components",), "5")
    broker = config.broker_record()
    assert (broker.username, broker.password) == ("kitchen", "pass word")
    assert broker.cert_file == str(tmp_path / "kitchen.crt")
    peer = PeerId.from_name("kitchen")
    biggest = (1 << 63) - 1
    cause = Cause(peer, biggest, biggest)
    record = OutboxRecord(EnvelopeKey(peer, biggest, biggest), b"", biggest, cause, biggest)
    node = config.node_config()
    assert (node.max_executions, node.resend_ns, node.caps.fills) == (8, 2_000_000_000, 20)
    assert node.ingress_bytes == NodeConfig.host().ingress_bytes
    options = config.transport_options(node)
    assert (options.keepalive_s, options.max_packet_bytes) == (120, 131_072)
    assert options.max_envelope_bytes == node.caps.total_bytes
    assert (config.snapshot_interval_s, config.snapshot_rounds) == (60, 5)
    limits = config.store_limits()
    assert (limits.journal_bytes, limits.snapshot_bytes) == (1048576, StoreLimits().snapshot_bytes)
    assert limits.outbox_bytes >= node.outbox_bytes + node.outbox_records * (len(record.to_bytes()) + 70)


def test_a_board_s_budget_is_for_its_disk_too(write):
    assert load_config(write({"disk": {"outbox_bytes": 1000}})).store_limits() == replace(
        StoreLimits.edge(), outbox_bytes=1000
    )


@pytest.mark.parametrize("room", [1000, 150_000, 1_500_000])
def test_an_outbox_is_no_larger_than_its_disk(write, room):
    """What a full disk refuses would wait in memory; what a full outbox refuses is told."""
    here: dict[str, object] = {"state": "s", "disk": {"outbox_bytes": room}}
    node = load_config(write(here)).node_config()
    assert room - 256 < node.outbox_bytes + 256 * node.outbox_records <= room
    assert node.outbox_records == min(4096, room // 512)
    few = load_config(write({**here, "limits": {"outbox_records": 2}})).node_config()
    assert (few.outbox_records, few.outbox_bytes) == (2, room - 512)
    short = load_config(write({**here, "limits": {"outbox_bytes": 200}})).node_config()
    assert short.outbox_bytes == 200 and 256 * short.outbox_records + 200 <= room
    stateless = load_config(write({"disk": {"outbox_bytes": room}})).node_config()
    assert stateless == load_config(write({})).node_config()


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"outbox_records": 600}, "limits.outbox_records 600 takes up to 153601 bytes"),
        ({"outbox_bytes": 150_000}, "limits.outbox_bytes 150000 takes up to 224752 bytes"),
    ],
)
def test_an_outbox_that_its_disk_cannot_hold_is_refused(write, limits, text):
    with pytest.raises(ConfigFileError, match=f"{text}, disk.outbox_bytes allows 150000.*leave it out or"):
        load_config(write({"disk": {"outbox_bytes": 150_000}, "limits": limits}))


def test_a_name_is_as_long_as_a_presence_carries_it(write):
    assert load_config(write({"peer": "é" * MAX_PEER_NAME})).peer == "é" * MAX_PEER_NAME
    carried = Presence(True, 1, addresses=(bytes(256),) * 8, meta={"name": "\U0001f600" * MAX_PEER_NAME})
    assert decode_presence(encode_presence(carried)).meta == carried.meta
    with pytest.raises(ConfigFileError, match=f"peer: a name of {MAX_PEER_NAME + 1} characters"):
        load_config(write({"peer": "é" * (MAX_PEER_NAME + 1)}))


def test_an_empty_file_is_the_defaults(write):
    path = write({})
    assert load_config(path) == RunConfig(file=str(path))


def test_a_mark_at_the_beginning_is_no_part_of_the_text(tmp_path):
    path = tmp_path / "kitchen.json"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"peer": "kitchen"}')
    assert load_config(path).peer == "kitchen"


def test_a_port_alone_is_no_address_and_the_error_has_what_to_write(write):
    with pytest.raises(
        ConfigFileError, match=r'metrics: expected host and port, got 9100 .write "127.0.0.1:9100"'
    ):
        load_config(write({"metrics": 9100}))


def test_a_setting_is_called_as_it_was_written(write):
    path = write({"save_every": 2, "targets": ["Main"], "bootstrap": False})
    config = load_config(path)
    assert config.called("save_every") == f"save_every in {path}"
    assert config.called("run_bootstraps") == f"bootstrap = false in {path}"
    assert config.called("state") == f"--state, or state in {path}"
    assert RunConfig(save_every=2).called("save_every") == "--every"
    assert replace(config, by_flag=frozenset(["targets"])).called("targets") == "--target"
    with pytest.raises(ConfigFileError) as caught:
        check_folders(config)
    where, hint = f"save_every in {path}", f"name one: --save-model, or save_model in {path}"
    assert (caught.value.where, caught.value.hint) == (where, hint)


def test_an_option_of_the_connection_that_is_out_of_range_is_the_brokers(write):
    with pytest.raises(ConfigFileError, match=r"broker: keepalive_s = 0 is out of range"):
        load_config(write({"broker": {"url": "mqtt://h", "keepalive_s": 0}}))


def test_every_capacity_of_a_node_can_be_said():
    assert set(LIMITS) | {"caps", "trace"} == {spec.name for spec in fields(NodeConfig)}
    assert "total_bytes" in CAPS
    assert "receive_maximum" in OPTIONS


def test_toml_says_the_same(write):
    pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = """
        artifact = "program.onnx"
        targets = ["Client"]
        peer = "kitchen"
        broker = "mqtt://localhost"
        [components.shard]
        batch_size = 32
        [limits.caps]
        fills = 20
    """
    config = load_config(write(text, "kitchen.toml"))
    assert config.components == {"shard": {"batch_size": 32}}
    assert config.caps == {"fills": 20}
    assert config.broker == "mqtt://localhost"


def test_without_a_toml_reader_it_says_what_is_missing(write, monkeypatch):
    real = importlib.import_module

    def without(name):
        if name in ("tomllib", "tomli"):
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(ConfigFileError, match="tomli"):
        load_config(write("", "kitchen.toml"))


@pytest.mark.parametrize(
    "value, said",
    [
        ({"brokr": "x"}, r"brokr: unknown key .*'broker'"),
        ({"broker": {"urll": "x"}}, r"broker\.urll: unknown key .*'url'"),
        ({"log": {"levle": "info"}}, r"log\.levle: unknown key"),
        ({"limits": {"max_execution": 3}}, r"limits\.max_execution: unknown key .*'max_executions'"),
        ({"limits": {"trace": 1}}, r"limits\.trace: unknown key .*it belongs before all tables"),
        ({"limits": {"fill_bytes": 9}}, r"limits\.fill_bytes: unknown key .*belongs in \[limits\.caps\]"),
        ({"password": "x"}, r"password: unknown key .*it belongs in \[broker\]"),
        ({"disk": {"level": "x"}}, r"disk\.level: unknown key .*it belongs in \[log\]"),
        (
            {"pear": "y", "fills": 1},
            r"unknown keys: pear \(.*'peer'\?\), fills \(it belongs in \[limits\.caps",
        ),
        ({"brokr": "x", "pear": "y"}, r"unknown keys: brokr \(did you mean 'broker'\?\), pear \(.*'peer'"),
        ({"snapshot_interval_s": 10**4000}, r"snapshot_interval_s: .* below 2\*\*63, got 1(0){19}…$"),
        ({"limits": {"tensor_bytes": 10**4000}}, r"tensor_bytes: .* 2\*\*63, got 1(0){19}…$"),
        ({"limits": {"caps": {"fils": 3}}}, r"limits\.caps\.fils: unknown key"),
        ({"limits": {"max_executions": "3"}}, r"limits\.max_executions: expected a whole number"),
        ({"limits": {"max_executions": True}}, r"limits\.max_executions: expected a whole number"),
        ({"limits": {"max_executions": 0}}, r"max_executions = 0"),
        ({"limits": {"caps": {"fills": 0}}}, r"fills = 0"),
        ({"snapshot_interval_s": -1}, r"-1 seconds between snapshots"),
        ({"snapshot_rounds": -1}, r"-1 rounds between snapshots"),
        ({"snapshot_rounds": 0.5}, r"snapshot_rounds: expected a whole number of rounds"),
        ({"snapshot_interval_s": "60"}, r"snapshot_interval_s: expected a whole number of seconds"),
        ({"disk": {"journal_bytes": 0}}, r"disk: journal_bytes: a limit below 1 byte"),
        ({"disk": {"journal": 1}}, r"disk\.journal: unknown key .*'journal_bytes'"),
        ({"broker": {"url": "mqtt://h", "receive_maximum": 0}}, r"receive_maximum = 0"),
        ({"peer": 7}, r"peer: expected a text"),
        ({"targets": "Client"}, r"targets: expected a list"),
        ({"targets": [1]}, r"targets: expected a list"),
        ({"seed": 1.5}, r"seed: expected a whole number"),
        ({"summary": "yes"}, r"summary: expected true or false"),
        ({"budget": "huge"}, r"budget: unknown value 'huge' .*edge, host"),
        ({"components": {"shard": 3}}, r"components\.shard: expected a table"),
        ({"components": []}, r"components: expected a table"),
        ({"broker": {"password": "a", "password_file": "secret"}}, r"write one of them"),
        ({"broker": {"password_file": "nowhere"}}, r"password_file: .*nowhere"),
        ({"train_when": ["idle"], "idle_load": 0}, r"idle_load: it must be finite and above 0\.0"),
        ({"train_when": ["idle"], "idle_load": -1}, r"idle_load: it must be finite and above 0\.0"),
        ([], r"expected a table"),
        ("{", r"does not parse"),
        ('{"peer": "a", "peer": "b"}', r"key 'peer' is written twice"),
        ("[" * 100_000, r"does not parse"),
    ],
)
def test_what_cannot_be_is_refused_by_name(write, value, said):
    path = write(value)
    with pytest.raises(ConfigFileError, match=said) as caught:
        load_config(path)
    assert str(path) in str(caught.value)


def test_foreign_files_are_refused(tmp_path, write):
    with pytest.raises(ConfigFileError, match="cannot be read"):
        load_config(tmp_path / "absent.json")
    with pytest.raises(ConfigFileError, match=r"write \.json or \.toml"):
        load_config(write("a: b", "kitchen.yaml"))
    with pytest.raises(ConfigFileError, match="right file"):
        load_config(write(" " * (MAX_BYTES + 1)))
    (tmp_path / "bin.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ConfigFileError, match="does not parse"):
        load_config(tmp_path / "bin.json")


def flags(*texts: str):
    return parser().parse_args(["run", *texts])


def test_flags_override_the_file(write, tmp_path):
    path = write({**FULL, "state": "state"})
    given = ("other.onnx", "--target", "Server", "--peer", "p", "--broker", "mqtts://b", "--federation", "f")
    more = ("--set", "shard.batch_size=1", "--set", "test.path=t", "--budget", "edge", "--log-level", "error")
    config = settings(flags("--config", str(path), *given, *more, "--load", "m"), {})
    assert config.artifact == Path("other.onnx")
    assert (config.targets, config.peer, config.federation) == (("Server",), "p", "f")
    assert config.components == {"shard": {"path": "data.npz", "batch_size": 1}, "test": {"path": "t"}}
    assert (config.budget, config.log_level, config.broker) == ("edge", "error", "mqtts://b")
    assert config.load == ("mine.components", "m")
    assert config.ca == str(tmp_path / "ca.crt")


def test_the_service_manager_s_folder_is_the_state_where_none_is_named(write):
    needed = ("a.onnx", "--target", "T", "--peer", "p", "--broker", "mqtt://b")
    assert settings(flags(*needed), {"STATE_DIRECTORY": "/var/lib/x:/y"}).state == Path("/var/lib/x")
    assert settings(flags(*needed), {}).state is None
    named = settings(flags(*needed, "--state", "mine"), {"STATE_DIRECTORY": "/var/lib/x"})
    assert named.state == Path("mine")


@pytest.mark.parametrize("left_out", range(4))
def test_what_is_said_nowhere_is_a_wrong_command_line(left_out, capsys):
    given = [["a.onnx"], ["--target", "T"], ["--peer", "p"], ["--broker", "mqtt://b"]]
    texts = [text for number, several in enumerate(given) if number != left_out for text in several]
    with pytest.raises(ArgumentError, match="is missing"):
        settings(flags(*texts), {})
    with pytest.raises(SystemExit) as caught:
        main(["run", *texts])
    assert caught.value.code == 2
    assert "is missing" in capsys.readouterr().err


def test_the_service_unit_s_command_is_one_of_ours():
    unit = Path(bb_shims.__file__).parent / "files" / "service" / "bb-edge@.service"
    [line] = [text for text in unit.read_text().splitlines() if text.startswith("ExecStart=")]
    words = line.split(" bb-edge ")[1].replace("%E", "/etc").replace("%i", "kitchen").split()
    assert parser().parse_args(words).config == Path("/etc/bb-edge/kitchen.json")
