"""How `bb-edge run` ends, in real processes: what a service manager and a script can tell by the code."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from bb_edge.cli import main
from bb_edge.cli.endings import Exit

ANOTHER_PROGRAM = """program P {module=P, targets="Main"}
function program.Main() -> () {entry=1, partition=Main}
  t: Trigger = syscall.Interval<period_ns=20000000>()
  syscall.AppEmit<name="tick">(t)
"""


@pytest.mark.broker
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_that_is_asked_to_stop_is_done(number, configured, start):
    node = start("run", "--config", str(configured()))
    node.says("tick")
    assert node.end(number) == Exit.DONE


WAITS = """
import time
from bb_edge.extend import DataSource, register

@register
class Slow(DataSource):
    TYPE_NAME = "test.Slow"
    construct = classmethod(lambda cls, env: cls())
    def next_batch(self, ctx): ...
    def num_samples(self, ctx): ...

def wait():
    print("waiting", flush=True)
    while True:
        time.sleep(60)
"""
SWALLOWS = "try:\n    wait()\nexcept BaseException:\n    pass\n"
STARTS = {
    "while NumPy is imported": (
        "sitecustomize.py",
        """import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy" and "bb_edge.cli" in sys.modules:
            print("waiting", flush=True)
            while True:
                time.sleep(60)
sys.meta_path.insert(0, Slow())
""",
    ),
    "while a module is loaded": ("slow.py", WAITS + "wait()\n"),
    "while a module swallows it": ("slow.py", WAITS + SWALLOWS),
    "before a refusal": ("slow.py", WAITS + SWALLOWS + "1 / 0\n"),
}


@pytest.mark.broker
@pytest.mark.parametrize(("name", "text"), STARTS.values(), ids=STARTS)
def test_a_stop_before_the_node_runs_is_a_stop(
    name, text, configured, start, tmp_path, mosquitto_broker, capsys
):
    (tmp_path / name).write_text(text)
    load = {"load": ["./slow.py"]} if name == "slow.py" else {}
    path = configured(state="state", federation="stopped", **load)
    places = os.pathsep.join((str(tmp_path), *filter(None, sys.path)))
    node = start("run", "--config", str(path), env={"PYTHONPATH": places})
    node.says("waiting")
    assert node.end(signal.SIGTERM) == Exit.DONE, node.lines
    assert any("asked to stop before the node ran" in line for line in node.lines)
    assert not any("Traceback" in line for line in node.lines)
    # Nothing is half-written, and nobody was told that it is here.
    assert not any((tmp_path / "state").glob("*"))
    assert main(["peers", "--broker", mosquitto_broker.url, "--federation", "stopped"]) == 0
    assert "kitchen" not in capsys.readouterr().out


AT_AN_IMPORT = """
import os, signal, sys

def seen(event, details):
    if event == "import" and details[0] == NAME and "bb_edge.cli.start" in sys.modules:
        os.kill(os.getpid(), signal.SIGTERM)

sys.addaudithook(seen)
sys.argv = ["bb-edge", "run", "--config", CONFIG]
from bb_edge.cli.start import main
sys.exit(main())
"""
AT_THE_END = """
import os, signal, sys
class Late:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.SIGTERM):
        kill(process, number)  # when Python has given the handlers up that are functions

late = Late()
sys.argv = ["bb-edge", "run", "--config", CONFIG]
from bb_edge.cli.start import main
sys.exit(main())
"""
IMPORTED = (
    *("argparse", "bb_edge.cli.run_settings", "numpy", "numpy._core._multiarray_umath", "google.protobuf"),
    *("bb_edge.node", "bb_edge.transport.mqtt", "paho.mqtt.client", "bb_edge.cli.service"),
)
"""What a start imports, from its beginning to the moment before the node runs."""


@pytest.mark.parametrize("name", IMPORTED)
def test_a_stop_while_a_module_is_imported_is_a_stop(name, configured):
    lines = f"NAME, CONFIG = {name!r}, {str(configured())!r}\n{AT_AN_IMPORT}"
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), (done.stderr, "was it imported at all?")
    assert done.stderr == "bb-edge: asked to stop before the node ran\n"


@pytest.mark.parametrize("name", IMPORTED)
def test_an_interrupt_while_a_module_is_imported_is_one_line(name, configured):
    lines = f"NAME, CONFIG = {name!r}, {str(configured())!r}\n{AT_AN_IMPORT.replace('SIGTERM', 'SIGINT')}"
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert done.stderr == "bb-edge: interrupted\n"


@pytest.mark.parametrize("words", [["doctor"], ["check", "--config", "CONFIG", "--json"]])
def test_a_stdout_that_nobody_reads_is_no_news(words, configured):
    given = [str(configured()) if word == "CONFIG" else word for word in words]
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "bb_edge.cli", *given]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (Exit.FAILED, "")


BEFORE_THE_HANDLER = """
import os, signal, sys

def imported_before(number, handler):
    print(*sorted(set(sys.modules) - there))

signal.signal = imported_before
sys.argv = ["bb-edge", "run"]
there = set(sys.modules)
import bb_edge.cli.start
"""


def test_next_to_nothing_is_imported_before_a_stop_is_handled():
    """A signal that comes before that kills the process; `typing` alone would double the time."""
    places = os.pathsep.join(place or os.curdir for place in sys.path)
    done = subprocess.run(
        [sys.executable, "-S", "-c", BEFORE_THE_HANDLER],
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    few = {"__future__", "bb_edge", "bb_edge.cli", "bb_edge.cli.start", "bb_edge.cli.stopping"}
    few |= {"bb_edge.ir", "bb_edge.ir.lazy_exports", "bb_edge.ir.version"}
    assert "bb_edge.cli.start" in done.stdout.split()
    assert set(done.stdout.split()) <= few


@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGINT"])
def test_a_stop_when_the_node_has_ended_leaves_its_code(configured, signal_name):
    """A second Ctrl-C was the end of the process, and its code that of a kill."""
    ending = AT_THE_END.replace("SIGTERM", signal_name)
    lines = f"CONFIG = {str(configured(artifact='gone.onnx'))!r}\n{ending}"
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60)
    assert done.returncode == Exit.REFUSED, done.stderr


@pytest.mark.broker
def test_a_hangup_is_logged_and_ends_nothing(configured, start):
    node = start("run", "--config", str(configured()))
    node.says("tick")
    node.process.send_signal(signal.SIGHUP)
    node.says("warning SIGHUP is ignored: restart the node")
    assert node.process.poll() is None
    assert node.end() == Exit.DONE


@pytest.mark.broker
@pytest.mark.parametrize(
    ("changes", "flags", "code", "says"),
    [
        ({}, ["--nonsense"], Exit.USAGE, "unrecognized arguments"),
        ({"peer": None}, [], Exit.USAGE, "--peer is missing"),
        ({}, ["--set", "nonsense"], Exit.USAGE, "SLOT.KEY=VALUE"),
        ({"brokr": 1}, [], Exit.REFUSED, "brokr"),
        ({"artifact": "nowhere.onnx"}, [], Exit.REFUSED, "nowhere.onnx cannot be read: No such file"),
        ({"artifact": "kitchen.json"}, [], Exit.REFUSED, "not a serialized ONNX model"),
        ({"targets": ["Mian"]}, [], Exit.REFUSED, "did you mean 'Main'?"),
        ({"load": ["nowhere"]}, [], Exit.REFUSED, "there is no module 'nowhere'"),
        ({"state": "program.onnx"}, [], Exit.REFUSED, "it is not a folder"),
        ({"broker": {"url": "mqtts://h", "ca": "nowhere.crt"}}, [], Exit.REFUSED, "nowhere.crt"),
    ],
)
def test_what_ends_in_the_same_way_again_has_codes_of_its_own(changes, flags, code, says, configured, start):
    node = start("run", "--config", str(configured(**changes)), *flags)
    assert node.process.wait(60) == code
    node.says(says)


def test_the_source_of_a_program_in_place_of_its_artifact(tmp_path, capsys):
    (tmp_path / "plants.py").write_text("def program():\n    return None, None\n" * 9)
    for verb in ("run", "check", "inspect"):
        flags = (
            ["--target", "Plant", "--peer", "p", "--broker", "mqtt://127.0.0.1:1"] if verb == "run" else []
        )
        assert main([verb, str(tmp_path / "plants.py"), *flags]) != 0
        assert f"a program's source: bb-host compile {tmp_path / 'plants.py'}" in capsys.readouterr().err


@pytest.mark.broker
def test_a_port_that_another_process_has_may_be_free_at_the_next_try(configured, start):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        path = configured(metrics=str(taken.getsockname()[1]))
        node = start("run", "--config", str(path))
        assert node.process.wait(60) == Exit.FAILED
        node.says("in use")
        assert main(["check", "--config", str(path)]) == 0  # it may be the running node


@pytest.mark.broker
def test_a_folder_that_a_running_node_has_open(configured, start, capsys):
    path = configured(state="state")
    first = start("run", "--config", str(path))
    first.says("tick")
    second = start("run", "--config", str(path))
    assert second.process.wait(60) == Exit.FAILED
    second.says("error: state .*: another process has it open .stop it, or give")
    assert main(["check", "--config", str(path)]) == 0
    assert "a running node has" in capsys.readouterr().err
    assert first.end() == Exit.DONE


@pytest.mark.broker
def test_a_dry_run_tells_what_the_state_has_lost_as_run_does(configured, start, capsys):
    path = configured(state="state")
    first = start("run", "--config", str(path))
    first.says("tick")
    assert first.end() == Exit.DONE
    outbox = max((path.parent / "state").glob("journal-*"), key=lambda file: int(file.name.split("-")[1]))
    outbox.unlink()
    assert main(["check", "--config", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    (lost,) = json.loads(out)["errors"]
    assert f"{outbox.name} is missing" in lost and f"bb-edge: error: {lost}" in err
    main(["doctor", "--config", str(path), "--json"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert [c["status"] for c in checks if lost in c["detail"]] == ["warning"]
    again = start("run", "--config", str(path))
    again.says(rf" error +{outbox.name} is missing")
    assert again.end() == Exit.DONE


@pytest.mark.broker
def test_the_state_of_another_program_is_refused_and_a_dry_run_says_so(
    configured, start, compile_text, capsys
):
    path = configured(state="state")
    first = start("run", "--config", str(path))
    first.says("tick")
    assert first.end() == Exit.DONE
    files = sorted((path.parent / "state").iterdir())
    assert main(["check", "--config", str(path)]) == 0
    (path.parent / "program.onnx").write_bytes(compile_text(ANOTHER_PROGRAM))
    assert main(["check", "--config", str(path)]) == 1
    assert "state/snapshot-2: it is of another artifact, or of other targets" in capsys.readouterr().out
    assert sorted((path.parent / "state").iterdir()) == files
    second = start("run", "--config", str(path))
    assert second.process.wait(60) == Exit.REFUSED
    second.says("state/snapshot-2: it is of another artifact")


@pytest.mark.broker
def test_a_dry_run_names_everything_that_it_refuses(configured, capsys):
    wrong = {
        "load": ["nowhere", "nowhere_else"],
        "targets": ["Mian"],
        "federation": "a/b",
        "metrics": "nonsense",
        "trace": "nowhere/trace.json",
        "state": "program.onnx",
        "broker": {"url": "http://h"},
    }
    path = str(configured(**wrong))
    assert main(["check", "--config", path]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("refused: ")]
    for word in (
        "'nowhere'",
        "'nowhere_else'",
        "Mian",
        "a/b",
        "nonsense",
        "trace.json",
        "not a folder",
        "http",
    ):
        assert sum(word in line for line in lines) == 1, (word, lines)
    assert main(["check", "--json", "--config", path]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], len(found["problems"])) == (False, len(lines))
    assert main(["doctor", "--json", "--config", path]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    failed = [c for c in checks if (c["check"], c["status"]) == ("configuration", "failed")]
    assert len(failed) == len(lines)


@pytest.mark.broker
def test_snapshots_by_rounds_of_a_node_without_rounds_are_told_to_be_none(configured, capsys):
    for rounds, told in ((5, True), (1, False), (0, False)):
        path = str(configured(state="state", snapshot_rounds=rounds))
        assert main(["check", "--config", path]) == 0
        assert (f"snapshot_rounds in {path} has no effect" in capsys.readouterr().err) is told


@pytest.mark.broker
def test_a_number_of_rounds_that_nothing_waits_for_is_told_to_be_none(configured, capsys):
    for settings, told in (({"give_up_after": 3}, True), ({"give_up_after": 3, "until_done": True}, False)):
        path = str(configured(**settings))
        assert main(["check", "--config", path]) == 0
        said = capsys.readouterr().err
        assert ("has no effect: rounds are tried again for ever" in said) is told
        assert (f"until_done in {path} has no effect: no rounds of this node have an end" in said) is not told


@pytest.mark.broker
def test_a_patience_for_acknowledgements_that_nothing_waits_for_is_told_to_be_none(configured, capsys):
    for settings, told in (
        ({"deliver_within_s": 3}, "the node does not end by itself"),
        ({"deliver_within_s": 3, "until_done": True}, "without a state folder"),
        ({"deliver_within_s": 3, "until_done": True, "state": "state"}, None),
        ({"deliver_within_s": 30}, None),
    ):
        path = str(configured(**settings))
        assert main(["check", "--config", path]) == 0
        said = [line for line in capsys.readouterr().err.splitlines() if "deliver_within_s" in line]
        assert [f"deliver_within_s in {path} has no effect" in line for line in said] == (
            [True] if told else []
        )
        assert told is None or told in said[0]
