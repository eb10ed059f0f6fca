"""Components, configurations and files that spoil a node's day: it says so, and goes on where it can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from refusals import refused

from bb_edge import PeerId, install
from bb_edge.cli import main
from bb_edge.cli.bootstraps import BootstrapInputError, _numbers
from bb_edge.config_file import ConfigFileError, RunConfig, load_config
from bb_edge.engine import steps
from bb_edge.engine.bootstrap import BootstrapStatus
from bb_edge.engine.config import ConfigError, NodeConfig
from bb_edge.engine.snapshot import SnapshotError
from bb_edge.registry import Registry
from bb_edge.roles import DataSource
from bb_edge.roles.completion import Later
from bb_edge.roles.context import Ctx
from bb_host import Compiler, DataSourceSlot, ModelSlot, Module
from bb_host.diagnostics import ProgramWarning
from bb_host.learn import mlp, trainable

S = 1_000_000_000


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


class Device(DataSource):
    """A data source that has to be woken, and does then what each test says."""

    TYPE_NAME: ClassVar[str] = "acme.Device"
    stateless: ClassVar[bool] = True
    wakes: ClassVar[Callable[[Ctx], Any]] = staticmethod(lambda ctx: None)
    gives: ClassVar[Callable[[Ctx], Any]] = staticmethod(lambda ctx: (f32(1, 2), None))

    def __init__(self) -> None:
        self.ready = False

    @classmethod
    def construct(cls, env: Any) -> Device:
        return cls()

    def bootstrap(self, ctx: Any) -> Any:
        found = type(self).wakes(ctx)
        self.ready = True
        return found

    def next_batch(self, ctx: Any) -> Any:
        assert self.ready, "never woken"
        return type(self).gives(ctx)

    def num_samples(self, ctx: Any) -> Any:
        return np.array(2, np.int64)


class Reads(Module):
    """Three rounds that read it."""

    name = "Reads"
    dev = DataSourceSlot("dev")

    def body(self, g: Any) -> None:
        with g.rounds(3) as start:
            g.output("x", self.dev.next_batch(g, after=start)[0])
            g.output("round", start.round)


@pytest.fixture(scope="module")
def reads() -> bytes:
    data: bytes = Compiler().bind_data_source("dev", Device).compile(Reads()).SerializeToString()
    return data


@pytest.fixture
def registry() -> Registry:
    found = Registry()
    found.register(Device)
    return found


def node_of(data: bytes, registry: Registry, snapshot: bytes | None = None, now_ns: int = 0) -> Any:
    node = install(
        PeerId.from_name("n"),
        (),
        data,
        ["Reads"],
        registry=registry,
        seed=1,
        snapshot=snapshot,
        now_ns=now_ns,
    )
    node.keep_bootstrapping({})
    return node


def polls(node: Any, times: range) -> list[Any]:
    return [step for now in times for step in node.poll(now)]


# --- a component that ends the process --------------------------------------------------------------------


def exits(ctx: Any) -> Any:
    sys.exit(3)


def offloads_an_exit(ctx: Any) -> Any:
    return ctx.offload(lambda: sys.exit(3))


class Gone(BaseException):
    """What no `except Exception` catches."""


def gone(ctx: Any) -> Any:
    raise Gone("away")


@pytest.mark.parametrize(
    ("gives", "said"),
    [(exits, "SystemExit: 3"), (offloads_an_exit, "SystemExit: 3"), (gone, "Gone: away")],
)
def test_a_component_does_not_end_the_node(gives, said, reads, registry, monkeypatch) -> None:
    monkeypatch.setattr(Device, "gives", staticmethod(gives))
    node = node_of(reads, registry)
    found = polls(node, range(0, 20 * S, S))
    failed = [s for s in found if isinstance(s, steps.OpFailed)]
    assert len(failed) == 3 and failed[0].error.hint
    assert all(
        s.text.startswith(f"slot 'dev' (acme.Device.next_batch): {said}: only the host") for s in failed
    )
    assert [s.value for s in found if isinstance(s, steps.AppEvent)] == [1, 2, 3]


def test_ctrl_c_ends_the_process_all_the_same(reads, registry, monkeypatch) -> None:
    def interrupted(ctx: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Device, "gives", staticmethod(interrupted))
    node = node_of(reads, registry)
    with pytest.raises(KeyboardInterrupt):
        polls(node, range(0, 3 * S, S))


def test_a_hosts_signal_handler_may_end_the_process(reads, registry, monkeypatch) -> None:
    import signal

    def stop(number: int, frame: object) -> None:
        sys.exit(7)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        monkeypatch.setattr(Device, "gives", staticmethod(lambda ctx: signal.raise_signal(signal.SIGTERM)))
        node = node_of(reads, registry)
        with pytest.raises(SystemExit):
            polls(node, range(0, 3 * S, S))
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_component_that_cannot_be_written_costs_the_snapshot_alone(reads, registry, monkeypatch) -> None:
    monkeypatch.setattr(Device, "serialize", lambda self: {}["nothing"])
    node = node_of(reads, registry)
    node.poll(1)
    with refused(SnapshotError, "slot 'dev'", "acme.Device.serialize", "KeyError", marked=False):
        node.snapshot(2)


# --- bootstraps of components -----------------------------------------------------------------------------


def rounds_of(found: list[Any]) -> list[int]:
    return [int(s.value) for s in found if isinstance(s, steps.AppEvent) and s.topic == "round"]


@pytest.mark.parametrize("between", [True, False])
def test_what_a_bootstrap_has_done_is_done_again_where_no_state_is_kept(between, reads, registry) -> None:
    """Also where the restart finds a round at work."""
    node = node_of(reads, registry)
    found = polls(node, range(1, 3) if between else range(1, 2))
    assert node.bootstraps[0].status is BootstrapStatus.DONE
    again = node_of(reads, registry, node.snapshot(3), 3)
    assert not again.bootstraps[0].status.over
    found += polls(again, range(4, 20))
    assert not [s for s in found if isinstance(s, steps.OpFailed)]
    assert rounds_of(found) == [1, 2, 3]


def test_a_bootstrap_whose_work_is_kept_is_not_done_again(reads, registry, monkeypatch) -> None:
    def restore(self: Device, state: bytes) -> None:
        self.ready = state == b"ready"

    monkeypatch.setattr(Device, "serialize", lambda self: b"ready" if self.ready else b"")
    monkeypatch.setattr(Device, "restore", restore)
    node = node_of(reads, registry)
    node.poll(1)
    again = node_of(reads, registry, node.snapshot(2), 2)
    assert again.bootstraps[0].status is BootstrapStatus.DONE
    assert not [
        s for s in polls(again, range(3, 20)) if isinstance(s, steps.OpFailed | steps.BootstrapStarted)
    ]


def five_later(ctx: Any) -> Later:
    found = ctx.later()
    found.complete(5)
    return found


@pytest.mark.parametrize(
    ("wakes", "came"), [(lambda ctx: 5, "int 5"), (lambda ctx: False, "bool"), (five_later, "int 5")]
)
def test_a_bootstrap_that_gives_something_has_failed(wakes, came, reads, registry, monkeypatch) -> None:
    monkeypatch.setattr(Device, "wakes", staticmethod(wakes))
    node = node_of(reads, registry)
    polls(node, range(1, 5))
    (state,) = node.bootstraps
    assert state.status is BootstrapStatus.FAILED
    assert f"gave {came}" in state.reason and "return nothing" in state.reason


# --- capacities and files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits",
    [
        {"max_executions": 300_000},
        {"max_executions": 10_000, "max_children": 11},
        {"ingress_bytes": 1 << 61},
        {"resend_ns": 10**30},
    ],
)
def test_capacities_beyond_all_bounds(limits) -> None:
    with refused(ConfigError, *limits, "at most", marked=False):
        NodeConfig(**limits)
    assert NodeConfig(max_executions=10_000, max_children=10)


def test_memory_that_is_not_there_is_one_line(tmp_path, monkeypatch, capsys) -> None:
    def full(path: Path) -> bytes:
        raise MemoryError

    (tmp_path / "net.onnx").write_bytes(b"")
    monkeypatch.setattr(Path, "read_bytes", full)
    assert main(["check", str(tmp_path / "net.onnx")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "may not have so much memory" in line and "limits" in line


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    class Net(Module):
        name = "Net"

        def body(self, g: Any) -> None:
            g.output("y", g.onnx.relu(g.input("x", "F32", [3])))

    path = tmp_path_factory.mktemp("net") / "net.onnx"
    path.write_bytes(Compiler().compile(Net()).SerializeToString())
    return path


@pytest.mark.parametrize("case", ["an .npy", "cut off", "empty", "a text", "pickled"])
def test_inputs_of_a_bench_that_are_none(case, net, tmp_path, capsys) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.zeros(300, np.float32))
    if case == "an .npy":
        path = tmp_path / "x.npy"
        np.save(path, np.zeros(3, np.float32))
    elif case == "pickled":
        np.savez(path, x=np.array([{}]))
    else:
        path.write_bytes({"cut off": path.read_bytes()[:200], "empty": b"", "a text": b"1 2 3"}[case])
    assert main(["bench", str(net), "--inputs", str(path), "--no-cold-start"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line and "np.savez" in line


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


def test_snapshots_that_never_fit_are_a_failure(run, tmp_path) -> None:
    (tmp_path / "k.json").write_text('{"disk": {"snapshot_bytes": 1}}')
    done = run("--bootstrap", ZEROS, "--config", "k.json")
    assert done.returncode == 1 and "the last snapshot was not written" in done.stderr


def test_inputs_of_a_bootstrap_that_is_done(run) -> None:
    assert run("--bootstrap", ZEROS).returncode == 0
    again = run("--bootstrap", "Starts.p=gone.npy")
    assert again.returncode == 0 and "their inputs are not read" in again.stderr
    assert run().returncode == 0


def test_inputs_of_a_bootstrap_that_is_not_done(run) -> None:
    done = run()
    assert done.returncode == 1 and "--bootstrap Starts.p=VALUE" in done.stderr


# --- command lines and configurations -----------------------------------------------------------------------

COMMAND = ["run", "a.onnx", "--target", "T", "--peer", "k", "--broker", "mqtt://h"]


@pytest.mark.parametrize("flag", ["--state", "--save-model", "--trace", "--config"])
def test_a_file_without_a_name(flag, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*COMMAND, flag, ""])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert flag in said and "no file" in said


@pytest.mark.parametrize("key", ["artifact", "state", "save_model", "trace"])
def test_a_file_without_a_name_in_a_configuration(key, tmp_path) -> None:
    (tmp_path / "k.json").write_text(json.dumps({key: ""}))
    with refused(ConfigFileError, key, "no file", marked=False):
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
    assert main([*COMMAND, *flags]) == 1
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


def test_what_means_nothing_is_said() -> None:
    config = RunConfig(disk={"snapshot_bytes": 9}, snapshot_interval_s=5)
    assert [text.partition(" ")[0] for text in config.unused()] == ["disk", "snapshot_interval_s"]
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


def test_the_last_round_is_followed_by_no_back_off(reads, registry, monkeypatch) -> None:
    monkeypatch.setattr(Device, "gives", staticmethod(exits))
    found = polls(node_of(reads, registry), range(0, 20 * S, S))
    assert [s.round for s in found if isinstance(s, steps.RoundBackedOff)] == [1, 2]
    assert [s.rounds for s in found if isinstance(s, steps.RoundsCompleted)] == [3]
