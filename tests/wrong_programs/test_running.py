"""`bb-edge run` and its configurations as they go wrong: files, flags, values, and what reads stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from bb_edge import PeerId, install
from bb_edge.cli import main
from bb_edge.cli.bootstraps import BootstrapInputError, _numbers
from bb_edge.cli.component_notes import component_notes
from bb_edge.components import GraphModel
from bb_edge.config_file import load_config
from bb_edge.run_config import ConfigFileError, RunConfig
from bb_edge.transport.broker import BrokerUrlError
from bb_host import Compiler, DataSourceSlot, Graph, ModelSlot, Module
from bb_host.diagnostics import ProgramWarning
from bb_host.learn import mlp, trainable

# --- processes ----------------------------------------------------------------------------------------------

DEVICE = '''
import numpy as np

from bb_edge import register
from bb_edge.roles import DataSource


@register
class Chatty(DataSource):
    """Prints."""

    TYPE_NAME = "acme.Chatty"
    CONFIG = {}
    stateless = True

    @classmethod
    def construct(cls, env):
        return cls()

    def next_batch(self, ctx):
        print("next_batch was called")
        return np.zeros(2, np.float32), None

    def num_samples(self, ctx):
        return np.array(2, np.int64)
'''


class Starts(Module):
    """The bootstrap has an input; the rounds have an end."""

    name = "Starts"
    dev = DataSourceSlot("dev")
    model = ModelSlot("model")

    def bootstrap(self, g: Any) -> None:
        self.model.load_parameters(g, g.input("p", "F32", [8]))

    def body(self, g: Any) -> None:
        with g.rounds(3) as start:
            g.output("x", self.dev.next_batch(g, after=start)[0])


@pytest.fixture(scope="module")
def starts() -> bytes:
    compiler = Compiler().bind_data_source("dev", "acme.Chatty")
    compiler = compiler.bind_model("model", "bb.GraphModel", trainable(mlp([3, 2], 1)))
    with pytest.warns(ProgramWarning, match="acme.Chatty"):
        data: bytes = compiler.compile(Starts()).SerializeToString()
    return data


@pytest.fixture
def run(starts: bytes, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run(*flags)`: `bb-edge run` until its rounds are done, without a broker."""
    (tmp_path / "starts.onnx").write_bytes(starts)
    (tmp_path / "device.py").write_text(DEVICE)
    words = ["run", "starts.onnx", "--target", "Starts", "--peer", "k", "--broker", "mqtt://127.0.0.1:1"]
    words += ["--load", "./device.py", "--until-done", "--state", "st"]

    def go(*flags: str, stdout: Any = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "bb_edge.cli", *words, *flags],
            cwd=tmp_path,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )

    return go


ZEROS = "Starts.p=[0,0,0,0,0,0,0,0]"


def test_what_a_component_prints_is_no_event(run) -> None:
    done = run("--bootstrap", ZEROS)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["x"] * 3
    assert done.stderr.count("next_batch was called") == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_stdout(run, tmp_path) -> None:
    with open("/dev/full", "w") as full:
        done = run("--bootstrap", ZEROS, stdout=full)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.count("stdout cannot be written: No space left on device") == 1
    assert "3 lines could not be written to stdout" in done.stderr
    assert "k has stopped" in done.stderr and list((tmp_path / "st").glob("snapshot-*"))


def test_a_reader_of_stdout_that_goes_away(run) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run("--bootstrap", ZEROS, stdout=writer)
    finally:
        os.close(writer)
    assert done.returncode == 0 and "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert done.stderr.count("nobody reads stdout any more") == 1 and "k has stopped" in done.stderr


def test_snapshots_that_never_fit_are_refused_where_that_is_known_and_else_a_failure(run, tmp_path) -> None:
    (tmp_path / "k.json").write_text('{"disk": {"snapshot_bytes": 1}}')
    done = run("--bootstrap", ZEROS, "--config", "k.json")
    assert done.returncode == 3 and "raise disk.snapshot_bytes to" in done.stderr
    (tmp_path / "k.json").write_text('{"disk": {"snapshot_bytes": 600}}')
    done = run("--bootstrap", ZEROS, "--config", "k.json")
    assert done.returncode == 1 and "the last snapshot was not written" in done.stderr


def test_a_disk_that_the_node_s_own_files_may_fill_is_told(run, tmp_path) -> None:
    (tmp_path / "k.json").write_text(json.dumps({"disk": {"snapshot_bytes": 1 << 60}}))
    done = run("--bootstrap", ZEROS, "--config", "k.json")
    assert done.returncode == 0 and "st may come to hold 23058" in done.stderr
    assert "lower outbox_bytes and the bounds under 'disk'" in done.stderr
    assert "may come to hold" not in run("--bootstrap", ZEROS).stderr


def test_inputs_of_a_bootstrap_that_is_done(run) -> None:
    assert run("--bootstrap", ZEROS).returncode == 0
    again = run("--bootstrap", "Starts.p=gone.npy")
    assert again.returncode == 0 and "their inputs are not read" in again.stderr
    assert run().returncode == 0


def test_inputs_of_a_bootstrap_that_is_not_done(run) -> None:
    done = run()
    assert done.returncode == 3 and "--bootstrap Starts.p=VALUE" in done.stderr


# --- command lines and configurations -----------------------------------------------------------------------

COMMAND = ["run", "a.onnx", "--target", "T", "--peer", "k", "--broker", "mqtt://h"]


@pytest.mark.parametrize("flag", ["--state", "--save-model", "--trace", "--config"])
def test_a_file_without_a_name(flag, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*COMMAND, flag, ""])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert flag in said and "not the name of a file" in said


@pytest.mark.parametrize("key", ["artifact", "state", "save_model", "trace"])
def test_a_file_without_a_name_in_a_configuration(key, tmp_path) -> None:
    (tmp_path / "k.json").write_text(json.dumps({key: ""}))
    with refused(ConfigFileError, key, "not the name of a file", marked=False):
        load_config(tmp_path / "k.json")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--no-bootstrap", "--bootstrap", "T.x=1"], ("--no-bootstrap", "leave one")),
        (["--bootstrap", "T.x=1", "--bootstrap", "T.x=2"], ("T.x", "twice")),
        (["--peer", "a\nb"], ("--peer", "control characters")),
    ],
)
def test_flags_that_would_be_ignored(flags, words, capsys) -> None:
    given = COMMAND if "--peer" not in flags else [*COMMAND[:4], *COMMAND[6:]]
    assert main([*given, *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in words)


@pytest.mark.parametrize(
    ("url", "beside"),
    [("mqtt://u:p@h", {"username": "x"}), ("mqtt://u:p@h", {"password": "x"})],
)
def test_credentials_that_are_said_twice(url, beside) -> None:
    with refused(ConfigFileError, *beside, "URL", marked=False):
        RunConfig(broker=url, **beside).broker_record()
    assert RunConfig(broker="mqtt://u@h", password="x").broker_record().password == "x"


@pytest.mark.parametrize(
    ("url", "files", "words"),
    [
        ("127.0.0.1", {}, ("'127.0.0.1'", "write mqtt://127.0.0.1")),
        ("u:secret@h", {}, ("write mqtt://h",)),
        ("mqtt://h", {"ca": "x", "key": "y"}, ("ca, key given", "not encrypted", "mqtts://")),
        ("mqtts://h", {"key": "y"}, ("a key without a cert", "certificate")),
    ],
)
def test_brokers_that_cannot_be(url, files, words) -> None:
    with refused(BrokerUrlError, *words, marked=False):
        RunConfig(broker=url, **files).broker_record()
    with pytest.raises(BrokerUrlError) as caught:
        RunConfig(broker=url, **files).broker_record()
    assert "secret" not in str(caught.value) and "_file" not in str(caught.value)


def test_what_means_nothing_is_said() -> None:
    config = RunConfig(disk={"snapshot_bytes": 9}, snapshot_interval_s=5, snapshot_rounds=2)
    words = [text.partition(" ")[0] for text in config.unused()]
    assert words == ["disk", "--snapshot-interval", "--snapshot-rounds"]
    assert not RunConfig(state=Path("st"), disk={"snapshot_bytes": 9}).unused()


WRONG_NUMBERS = {
    "beyond F32": ("1e39", np.float32, "does not fit float32"),
    "one of several": ("[1e50,1,1]", np.float32, "does not fit float32"),
    "true for a number": ("true", np.float32, "does not fit float32"),
    "true among numbers": ("[1.5,true]", np.float32, "does not fit float32"),
    "true for a whole number": ("true", np.int64, "does not fit int64"),
    "beyond I64": ("99999999999999999999999", np.int64, "does not fit int64"),
    "beyond F16": ("70000", np.float16, "does not fit float16"),
}


@pytest.mark.parametrize("case", WRONG_NUMBERS)
def test_a_number_that_does_not_fit(case) -> None:
    text, dtype, said = WRONG_NUMBERS[case]
    with refused(BootstrapInputError, said, marked=False):
        _numbers(json.loads(text), np.dtype(dtype), "bootstrap.T.x")


def test_large_numbers_that_fit() -> None:
    assert _numbers(10**23, np.dtype(np.float32), "") == np.float32(1e23)
    assert np.isinf(_numbers(float("inf"), np.dtype(np.float32), ""))
    assert _numbers([True], np.dtype(bool), "").tolist() == [True]


# --- dry runs -----------------------------------------------------------------------------------------------

MAY_PASS = {"metrics: no host of ours"}
"""Refusals that can be gone at the next try: `run` ends with 1, and is started again."""

WRONG_SURROUNDINGS: dict[str, tuple[dict[str, object], str]] = {
    "metrics: a word": ({"metrics": "x"}, "'x' is not an address"),
    "metrics: nothing": ({"metrics": ":"}, "':' is not an address"),
    "metrics: too large": ({"metrics": "70000"}, "'70000' is not an address"),
    "metrics: below zero": ({"metrics": "-1"}, "'-1' is not an address"),
    "metrics: no host of ours": ({"metrics": "1.2.3.4.5:80"}, "1.2.3.4.5"),
    "federation: empty": ({"federation": ""}, "federation ''"),
    "federation: a slash": ({"federation": "a/b"}, "federation 'a/b'"),
    "federation: a wildcard": ({"federation": "a#"}, "federation 'a#'"),
    "trace: no folder": ({"trace": "nodir/x.json"}, "nodir/x.json"),
    "ca: no file": ({"broker": {"url": "mqtts://h", "ca": "nofile"}}, "nofile"),
    "cert: no file": ({"broker": {"url": "mqtts://h", "cert": "nofile"}}, "nofile"),
    "save_every alone": ({"save_every": 2}, "--save-model"),
    "save_model: no model": ({"save_model": "m", "targets": ["Quiet"], "artifact": "quiet.onnx"}, "no model"),
    "save_model: a file": ({"save_model": "quiet.onnx"}, "not a folder"),
    "state: a file": ({"state": "quiet.onnx"}, "not a folder"),
}


@pytest.fixture(scope="module")
def artifacts() -> dict[str, bytes]:
    class Quiet(Module):
        name = "Quiet"

        def body(self, g: Any) -> None:
            g.app_notify("t", g.pulse())

    class Tells(Module):
        name = "Tells"
        model = ModelSlot("model")

        def body(self, g: Any) -> None:
            with g.rounds(1) as start:
                g.output("p", self.model.params(g, after=start))

    compiler = Compiler().bind_model("model", "bb.GraphModel", trainable(mlp([3, 2], 1)))
    return {
        "tells.onnx": compiler.compile(Tells()).SerializeToString(),
        "quiet.onnx": Compiler().compile(Quiet()).SerializeToString(),
    }


@pytest.fixture
def configured(artifacts: dict[str, bytes], tmp_path: Path) -> Callable[..., list[str]]:
    for name, data in artifacts.items():
        (tmp_path / name).write_bytes(data)

    def make(**changes: object) -> list[str]:
        values: dict[str, object] = {
            "artifact": "tells.onnx",
            "targets": ["Tells"],
            "peer": "k",
            "broker": "mqtt://127.0.0.1:1",
            "until_done": True,
            **changes,
        }
        (tmp_path / "k.json").write_text(json.dumps(values))
        return ["--config", str(tmp_path / "k.json")]

    return make


@pytest.mark.parametrize("verb", ["check", "run"])
@pytest.mark.parametrize("case", WRONG_SURROUNDINGS)
def test_what_run_refuses_a_dry_run_refuses(case, verb, configured, capsys) -> None:
    changes, words = WRONG_SURROUNDINGS[case]
    assert main([verb, *configured(**changes)]) == (3 if verb == "run" and case not in MAY_PASS else 1)
    said = "".join(capsys.readouterr())
    assert words in said and "Traceback" not in said


def test_a_dry_run_of_what_is_right(configured, capsys) -> None:
    assert main(["check", *configured(metrics="127.0.0.1:9100", save_model="m", trace="t.json")]) == 0
    assert "Tells (class Tells): runs" in capsys.readouterr().out


# --- what is said while it runs -----------------------------------------------------------------------------


class Ticks(Module):
    """It has no rounds at all."""

    name = "Ticks"

    def body(self, g: Any) -> None:
        g.app_notify("t", g.interval(20_000_000))


def test_until_done_without_an_end_is_said(tmp_path) -> None:
    (tmp_path / "ticks.onnx").write_bytes(Compiler().compile(Ticks()).SerializeToString())
    words = ["run", "ticks.onnx", "--target", "Ticks", "--peer", "k", "--broker", "mqtt://127.0.0.1:1"]
    with subprocess.Popen(
        [sys.executable, "-m", "bb_edge.cli", *words, "--until-done"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as node:
        assert node.stdout is not None and node.stderr is not None
        assert json.loads(node.stdout.readline())["event"] == "t"
        node.terminate()
        assert "--until-done has no effect: no rounds of this node have an end" in node.stderr.read()
        node.stdout.read()
    assert node.returncode == 0


def test_a_tuning_file_that_is_left_aside_is_said(tmp_path) -> None:
    (tmp_path / "net.tune.json").write_text("{")
    bound = Compiler().bind_backend(
        "backend", "bb.TFLiteBackend", {"tuning": str(tmp_path / "net.tune.json")}
    )
    node = install(PeerId.from_name("k"), (), bound.compile(Ticks()).SerializeToString(), ["Ticks"], seed=1)
    (note,) = component_notes(node)
    assert "net.tune.json" in note and "tuning ignored" in note and "tune again" in note


def test_a_setting_of_the_device_that_another_one_turns_off_is_said(tmp_path, capsys) -> None:
    class Net(Module):
        model = ModelSlot("model", GraphModel, trainable(mlp([4, 2]), optimizer="adam"))

        def body(self, g: Graph) -> None:
            g.output("y", self.model.forward(g, g.input("x", "F32", (1, 4))))

    artifact = Compiler().compile(Net()).SerializeToString()
    settings = {"model": {"momentum": 0.9}}
    node = install(PeerId.from_name("k"), (), artifact, ["Net"], components=settings, seed=1)
    (note,) = component_notes(node)
    assert note == "slot 'model' of 'Net', key 'momentum' has no effect: sgd reads it, and optimizer is adam"
    (tmp_path / "net.onnx").write_bytes(artifact)
    assert main(["check", str(tmp_path / "net.onnx"), "--set", "model.momentum=0.9"]) == 0
    assert f"  note: {note}\n" in capsys.readouterr().out
