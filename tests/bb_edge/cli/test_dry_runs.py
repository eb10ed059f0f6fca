"""`check --config` and `doctor --config` say what `run` would say: one broken configuration per case."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from certificates import OPENSSL, Authority
from texts import compiled

from bb_edge.cli import main
from bb_edge.cli.endings import Exit
from bb_shims import open_folder

PROGRAM = """program P {module=P, targets="Main"}
function program.Main() -> () {entry=1, partition=Main}
  t: Trigger = syscall.Interval<period_ns=20000000>()
  syscall.AppEmit<name="tick">(t)
"""
LONG = "n" * 300
U = "mqtt://127.0.0.1:9"
S = "mqtts://127.0.0.1:9"

# What is changed, and a word of what `run` and the dry runs say.
BROKEN: dict[str, tuple[dict[str, object], str]] = {
    "state-file": ({"state": "afile"}, "not a folder"),
    "state-fifo": ({"state": "pipe"}, "not a folder"),
    "state-below-file": ({"state": "afile/x"}, "Not a directory"),
    "state-nowhere": ({"state": "/proc/bb-state/x"}, "cannot be made"),
    "state-long": ({"state": LONG}, "name too long"),
    "state-link": ({"state": "dangling"}, "leads nowhere"),
    "state-loop": ({"state": "loop"}, "leads nowhere"),
    "state-empty": ({"state": ""}, "not the name of a file"),
    "model-every": ({"save_every": 0}, "0 rounds"),
    "model-every-without": ({"save_every": 2}, "--save-model"),
    "model-none": ({"save_model": "models"}, "no model"),
    "model-file": ({"save_model": "afile"}, "not a folder"),
    "model-nowhere": ({"save_model": "/proc/bb-models"}, "cannot be made"),
    "model-is-state": ({"save_model": "folder", "state": "folder"}, "state folder"),
    "trace-folder": ({"trace": "folder"}, "Is a directory"),
    "trace-nowhere": ({"trace": "nowhere/t"}, "No such file"),
    "trace-below-file": ({"trace": "afile/t"}, "Not a directory"),
    "trace-long": ({"trace": LONG}, "name too long"),
    "trace-fifo": ({"trace": "pipe"}, "FIFO"),
    "trace-proc": ({"trace": "/proc/bb-trace"}, "No such file"),
    "metrics-word": ({"metrics": "x"}, "not an address"),
    "metrics-port": ({"metrics": "99999"}, "not an address"),
    "metrics-elsewhere": ({"metrics": "192.0.2.1:9100"}, "192.0.2.1:9100: Cannot assign"),
    "federation": ({"federation": "a/b"}, "a/b"),
    "federation-blank": ({"federation": " home"}, "write 'home'"),
    "peer-blank": ({"peer": "attic "}, "write 'attic'"),
    "federation-empty": ({"federation": ""}, "cannot be part of a topic"),
    "peer-control": ({"peer": "a\nb"}, "not a name"),
    "peer-long": ({"peer": "é" * 70_000}, "a name of 70000 characters"),
    "train-when": ({"train_when": ["cold"]}, "no condition 'cold'"),
    "train-when-text": (
        {"train_when": "idle"},
        'expected a list of texts, got \'idle\' (write "train_when": ["idle"])',
    ),
    "targets-text": (
        {"targets": "Main"},
        'expected a list of texts, got \'Main\' (write "targets": ["Main"])',
    ),
    "cool-celsius": ({"train_when": ["mains"], "cool_celsius": "hot"}, "cool_celsius: it must be a number"),
    "target": ({"targets": ["Mian"]}, "did you mean 'Main'?"),
    "target-twice": ({"targets": ["Main", "Main"]}, "named twice"),
    "artifact-nowhere": ({"artifact": "nowhere"}, "No such file"),
    "artifact-folder": ({"artifact": "folder"}, "a folder"),
    "artifact-fifo": ({"artifact": "pipe"}, "FIFO"),
    "artifact-json": ({"artifact": "kitchen.json"}, "not a serialized"),
    "artifact-empty": ({"artifact": "empty"}, "empty"),
    "broker-http": ({"broker": "http://h"}, "not a broker URL"),
    "broker-port": ({"broker": "mqtt://h:99999"}, "out of range"),
    "broker-two-passwords": ({"broker": {"url": "mqtt://u:p@h", "password": "x"}}, "beside it"),
    "broker-no-user": ({"broker": {"url": U, "password": "x"}}, "without a user name"),
    "broker-no-user-url": ({"broker": "mqtt://:secret@h"}, "without a user name"),
    "broker-long-user": ({"broker": {"url": U, "username": "u" * 70_000}}, "65535"),
    "broker-nul-user": ({"broker": {"url": U, "username": "a\0b"}}, "NUL"),
    "broker-ca-plain": ({"broker": {"url": U, "ca": "afile"}}, "not encrypted"),
    "broker-ca": ({"broker": {"url": S, "ca": "afile"}}, "afile"),
    "broker-ca-fifo": ({"broker": {"url": S, "ca": "pipe"}}, "FIFO"),
    "broker-ca-folder": ({"broker": {"url": S, "ca": "folder"}}, "directory"),
    "broker-key": ({"broker": {"url": S, "key": "afile"}}, "without a certificate"),
    "broker-cert": ({"broker": {"url": S, "cert": "empty"}}, "empty"),
    "password-nowhere": ({"broker": {"url": U, "password_file": "nowhere"}}, "No such file"),
    "password-bytes": ({"broker": {"url": U, "password_file": "program.onnx"}}, "decode"),
    "version": ({"broker": {"url": U, "mqtt_version": "4"}}, "auto, 5, 3.1.1"),
    "keepalive": ({"broker": {"url": U, "keepalive_s": 0}}, "keepalive_s"),
    "slot": ({"components": {"nobody": {"a": 1}}}, "nobody"),
    "components": ({"components": []}, "a table"),
    "bootstrap-input": ({"bootstrap": {"Main": {"x": 1}}}, "no bootstrap"),
    "bootstrap-target": ({"bootstrap": {"Nobody": {"x": 1}}}, "Nobody"),
    "budget": ({"budget": "small"}, "edge, host"),
    "limit": ({"limits": {"max_executions": -1}}, "max_executions"),
    "limit-name": ({"limits": {"nonsense": 1}}, "nonsense"),
    "caps": ({"limits": {"caps": {"total_bytes": -4}}}, "total_bytes"),
    "disk": ({"disk": {"journal_bytes": -1}, "state": "s"}, "below 1 byte"),
    "interval": ({"snapshot_interval_s": -1}, "-1 seconds"),
    "give-up": ({"give_up_after": -1}, "-1 rounds"),
    "deliver": ({"deliver_within_s": -1}, "-1 seconds for acknowledgements"),
    "seed": ({"seed": -1}, "the seed -1"),
    "log": ({"log": {"level": "loud"}}, "loud"),
    "load": ({"load": ["nowhere"]}, "no module 'nowhere'"),
    "load-fault": ({"load": ["./fault.py"]}, "ZeroDivisionError"),
    "load-fifo": ({"load": ["./pipe.py"]}, "FIFO"),
    "load-folder": ({"load": ["./folder"]}, "a folder"),
}

WRONG_FLAGS = [
    ("--peer", "a\nb"),
    ("--federation", "a/b"),
    ("--broker", "http://x"),
    ("--seed", "-1"),
    ("--set", "nonsense"),
    ("--set", "a.b=1", "--set", "a.b=2"),
    ("--bootstrap", "Main"),
    ("--bootstrap", "Main.x=1", "--bootstrap", "Main.x=2"),
    ("--budget", "small"),
]
OF_RUN = [
    ("--give-up-after", "-1"),
    ("--deliver-within", "-1"),
    ("--snapshot-interval", "-1"),
    ("--every", "0"),
    ("--every", "3"),
    ("--metrics", "x"),
]


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., str]:
    """`config(state=…, …)`: the path of a configuration, beside files that are not what they should be."""
    (tmp_path / "program.onnx").write_bytes(compiled(PROGRAM))
    (tmp_path / "afile").write_text("x")
    (tmp_path / "empty").write_text("")
    (tmp_path / "fault.py").write_text("1 / 0\n")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "pipe.py"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "dangling").symlink_to("nowhere/deep")
    (tmp_path / "loop").symlink_to("loop")
    sound = {"artifact": "program.onnx", "targets": ["Main"], "peer": "kitchen", "broker": U}

    def write(**changes: object) -> str:
        path = tmp_path / "kitchen.json"
        path.write_text(json.dumps({**sound, **changes}))
        return str(path)

    return write


def files_of(folder: Path) -> list[tuple[str, int]]:
    """All but what Python keeps of the modules that it has compiled."""
    found = (file for file in folder.rglob("*") if "__pycache__" not in file.parts)
    return sorted((str(file), file.lstat().st_size) for file in found if file != folder)


def errors(text: str) -> list[str]:
    return [line.partition("error: ")[2] for line in text.splitlines() if line.startswith("bb-edge: error: ")]


@pytest.mark.parametrize(("changes", "word"), BROKEN.values(), ids=BROKEN)
def test_what_run_refuses_the_dry_runs_refuse_in_the_same_words(changes, word, config, tmp_path, capsys):
    path = config(**changes)
    before = files_of(tmp_path)
    may_pass = "Cannot assign" in word  # an address that the machine may get
    assert main(["run", "--config", path]) == (Exit.FAILED if may_pass else Exit.REFUSED)
    said = errors(capsys.readouterr().err)
    assert said and all(word in line for line in said), said
    assert main(["check", "--json", "--config", path]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert set(said) <= set(problems)
    assert main(["doctor", "--json", "--config", path]) == 1
    findings = [c for c in json.loads(capsys.readouterr().out)["checks"] if c["check"] == "configuration"]
    told = [c["detail"].replace(f"{path}: ", "") for c in findings if c["status"] == "failed"]
    assert {line.replace(f"{path}: ", "") for line in problems} == set(told)
    # Nothing is left behind, by none of the three.
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("name", ["outbox_bytes", "journal_bytes", "snapshot_bytes"])
def test_bounds_of_a_disk_are_warned_of_without_a_state_folder_and_refused_with_one(
    name: str, config: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bounds = {name: 10}
    assert main(["check", "--config", config(disk=bounds)]) == 0
    said = capsys.readouterr()
    assert "runs" in said.out and "disk" in said.err and "has no effect without a state folder" in said.err
    path = config(disk=bounds, state="folder")
    for verb, code in (("check", 1), ("run", Exit.REFUSED)):
        assert main([verb, "--config", path]) == code
        said = capsys.readouterr()
        assert f"disk.{name} is 10" in said.out + said.err


@pytest.mark.parametrize("flags", WRONG_FLAGS, ids=" ".join)
@pytest.mark.parametrize("verb", ["run", "check"])
def test_a_wrong_flag_is_usage_for_both(verb, flags, config, capsys):
    try:
        code = main([verb, "--config", config(), *flags])
    except SystemExit as ended:  # argparse's
        code = ended.code
    assert code == Exit.USAGE
    assert flags[0] in capsys.readouterr().err


@pytest.mark.parametrize("flags", OF_RUN, ids=" ".join)
def test_a_wrong_flag_of_run_is_usage_and_in_the_file_it_is_refused(flags, config, capsys):
    assert main(["run", "--config", config(), *flags]) == Exit.USAGE
    assert flags[0] in capsys.readouterr().err


def test_check_takes_the_name_and_the_broker_that_run_takes(config, tmp_path, capsys):
    """A configuration that devices share names neither."""
    shared = config()
    (tmp_path / "kitchen.json").write_text(json.dumps({"artifact": "program.onnx", "targets": ["Main"]}))
    both = ["--peer", "kitchen", "--broker", U]
    for given, missing in (([], "--peer is missing"), (both[:2], "--broker is missing"), (both, "")):
        assert main(["check", "--config", shared, *given]) == (1 if missing else 0)
        assert missing in capsys.readouterr().out
    program = [str(tmp_path / "program.onnx"), "--target", "Main"]
    assert main(["check", *program, *both]) == 0
    assert main(["check", *program, *both[:2]]) == 1
    said = capsys.readouterr()
    assert "refused: --broker is missing" in said.out
    assert "--peer: this is a dry run of `bb-edge run`, which needs --target, --peer and --broker" in said.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--broker", S, "--ca", "empty"], "empty"),
        (["--broker", S, "--cert", "nowhere"], "nowhere"),
        (["--broker", S, "--key", "afile"], "a key without a certificate"),
        (["--broker", U, "--state", "afile"], "not a folder"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_check_takes_the_files_of_a_node_that_run_takes(flags, said, config, tmp_path, monkeypatch, capsys):
    config()
    monkeypatch.chdir(tmp_path)
    given = ["program.onnx", "--target", "Main", "--peer", "kitchen", *flags]
    before = files_of(tmp_path)
    assert main(["run", *given]) == Exit.REFUSED
    (refused,) = errors(capsys.readouterr().err)
    assert said in refused
    assert main(["check", *given]) == 1
    assert f"refused: {refused}" in capsys.readouterr().out
    assert files_of(tmp_path) == before


@pytest.mark.skipif(OPENSSL is None, reason="no openssl on this machine")
def test_a_certificate_that_ends_soon_is_a_warning(config, tmp_path, capsys):
    certificate, key = map(str, Authority(tmp_path)("kitchen"))  # it ends in two days
    path = config(broker={"url": S, "cert": certificate, "key": key})
    assert main(["check", "--json", "--config", path]) == 0
    warned = json.loads(capsys.readouterr().out)["warnings"]
    assert any(f"{certificate} (broker.cert) ends on 20" in line for line in warned), warned


@pytest.mark.skipif(OPENSSL is None, reason="no openssl on this machine")
def test_the_doctor_looks_at_the_certificates_that_flags_name(tmp_path, capsys):
    """It did so with a configuration alone; where the login is not tried, nothing else tells."""
    certificate, key = map(str, Authority(tmp_path)("kitchen"))  # it ends in two days
    main(["doctor", "--json", "--broker", S, "--cert", certificate, "--key", key])
    checks = json.loads(capsys.readouterr().out)["checks"]
    (found,) = [one for one in checks if one["check"] == "certificate"]
    assert found["status"] == "warning" and f"{certificate} (broker.cert) ends on 20" in found["detail"]


@pytest.mark.parametrize("flag", ["--ca", "--cert", "--key", "--state"])
def test_each_flag_of_a_node_makes_a_dry_run(flag, config, tmp_path, capsys):
    config()
    assert main(["check", str(tmp_path / "program.onnx"), flag, str(tmp_path / "folder")]) == 1
    assert "refused: --peer is missing" in capsys.readouterr().out


def test_a_state_folder_that_is_missing_is_only_tried(config, tmp_path, capsys):
    path = config(state="deep/er/state", trace="trace.json")
    before = files_of(tmp_path)
    assert main(["check", "--config", path]) == 0
    assert main(["doctor", "--json", "--config", path]) == 1  # the broker is not there
    checks = {c["check"]: c["status"] for c in json.loads(capsys.readouterr().out.splitlines()[-1])["checks"]}
    assert (checks["storage"], checks["broker"]) == ("ok", "failed")
    assert files_of(tmp_path) == before
    # A file that is there keeps what it holds.
    (tmp_path / "trace.json").write_text("of the last run")
    assert main(["check", "--config", path]) == 0
    assert (tmp_path / "trace.json").read_text() == "of the last run"


def test_processes_end_with_the_codes(config, start):
    for changes, code in (
        ({"state": "afile/x"}, Exit.REFUSED),
        ({"state": "/proc/bb-state"}, Exit.REFUSED),
        ({"broker": {"url": U, "password": "x"}}, Exit.REFUSED),
    ):
        assert start("run", "--config", config(**changes)).process.wait(60) == code
    for verb, flags in (("check", ["--set", "nonsense"]), ("run", ["--give-up-after", "-1"])):
        assert start(verb, "--config", config(), *flags).process.wait(60) == Exit.USAGE


@pytest.mark.parametrize("there", ["not yet", "there", "in use"])
def test_a_disk_that_the_nodes_files_may_fill_is_told_before_it_runs(config, tmp_path, capsys, there) -> None:
    """`run` warns of it; a folder that is not there, or that a node has open, is not opened to find out."""
    path = config(state=str(tmp_path / "deep" / "state"), disk={"snapshot_bytes": 1 << 60})
    with ExitStack() as stack:
        if there != "not yet":
            (tmp_path / "deep" / "state").mkdir(parents=True)
        if there == "in use":
            stack.enter_context(open_folder(tmp_path / "deep" / "state"))
        assert main(["check", "--json", "--config", path]) == 0
        warnings = json.loads(capsys.readouterr().out)["warnings"]
        assert [warning for warning in warnings if "state may come to hold 23058" in warning]
    assert (tmp_path / "deep").exists() is (there != "not yet")
