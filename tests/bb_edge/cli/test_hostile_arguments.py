"""Whatever an operator writes, `bb-edge` answers with one line that says what, where and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from program_text import parse

from bb_edge.cli import main
from bb_edge.ir import keys
from bb_edge.ir.onnx_pb2 import ModelProto
from bb_edge.transport.broker import Broker, BrokerUrlError
from bb_host.ir.proto import to_bytes

TICKS = """program P {module=P, targets="Main"}
function program.Main() -> () {entry=1, partition=Main}
  t: Trigger = syscall.Interval<period_ns=20000000>()
  syscall.AppEmit<name="tick">(t)
"""


@pytest.fixture
def ticks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An artifact that `run` starts, in a folder with a FIFO, which is the working directory."""
    model = ModelProto.FromString(to_bytes(parse(TICKS)))
    model.metadata_props.add(key=keys.COMPILED_KEY, value=keys.COMPILED_VERSION)
    model.metadata_props.add(key=f"{keys.BINDING_PREFIX}Main.backend", value="backend|bb.NumPyBackend|1")
    path = tmp_path / "ticks.onnx"
    path.write_bytes(model.SerializeToString())
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    return path


def one_line(capsys: pytest.CaptureFixture[str], *words: str) -> None:
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("bb-edge: error: ")
    assert len(lines[0]) < 500
    for word in words:
        assert word in lines[0], lines[0]


VERBS: dict[str, Callable[[str], list[str]]] = {
    "check": lambda file: ["check", file],
    "inspect": lambda file: ["inspect", file],
    "bench": lambda file: ["bench", file],
    "run": lambda file: ["run", file, "--target", "Main", "--peer", "p", "--broker", "mqtt://127.0.0.1:1"],
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("file", "kind"), [("pipe", "FIFO"), ("/dev/zero", "device"), (".", "folder")])
def test_an_artifact_that_is_no_file(
    verb: str, file: str, kind: str, ticks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(VERBS[verb](file)) != 0
    one_line(capsys, file, kind)


RUN = ["--target", "Main", "--peer", "p"]
FLAGS = {
    "a FIFO as the trace": (["--broker", "mqtt://127.0.0.1:1", "--trace", "pipe"], "FIFO"),
    "a FIFO as the authority": (["--broker", "mqtts://127.0.0.1:1", "--ca", "pipe"], "FIFO"),
    "a device as the authority": (["--broker", "mqtts://127.0.0.1:1", "--ca", "/dev/zero"], "device"),
    "a FIFO as the certificate": (["--broker", "mqtts://127.0.0.1:1", "--cert", "pipe"], "FIFO"),
    "a FIFO as the configuration": (["--config", "pipe"], "FIFO"),
    "half an IPv6 address": (["--broker", "mqtt://user:secret@[::1"], "not well formed"),
    "a deep value": (["--broker", "mqtt://h", "--set", "backend.arena_limit=" + "[" * 100_000], "nested"),
    "a closed deep value": (["--broker", "mqtt://h", "--set", f"a.b={'[' * 900}{']' * 900}"], "nested"),
    "a deep input": (["--broker", "mqtt://h", "--bootstrap", "Main.x=" + "[" * 100_000], "nested"),
    "a long number": (["--broker", "mqtt://h", "--set", "backend.arena_limit=" + "9" * 5_000], "integer"),
    "a module that exits": (["--broker", "mqtt://h", "--load", "./ends.py"], "ends.py:2"),
    "a module that raises": (["--broker", "mqtt://h", "--load", "./boom.py"], "boom.py:2"),
    "a module that raises on": (["--broker", "mqtt://h", "--load", "./base.py"], "base.py:1"),
}


@pytest.mark.parametrize(("flags", "word"), FLAGS.values(), ids=FLAGS)
def test_a_flag_that_cannot_be(
    flags: list[str], word: str, ticks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("ends.py").write_text("import sys\nsys.exit(3)\n")
    Path("boom.py").write_text("numbers = []\nnumbers[0]\n")
    Path("base.py").write_text("raise BaseException('stop')\n")
    assert main(["run", str(ticks), *RUN, *flags]) != 0
    one_line(capsys, word)


@pytest.mark.parametrize("name", ["../x", ".x", "", "a..b", "a b", "/dev/zero"])
@pytest.mark.parametrize("verb", ["check", "bench", "run"])
def test_a_module_name_that_cannot_be(
    name: str, verb: str, ticks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*VERBS[verb](str(ticks)), "--load", name]) != 0
    one_line(capsys, name)


DEEP = '{"components": {"a": {"b": ' + "[" * 3_000 + "]" * 3_000 + "}}}"
DEEP_TOML = "[components.a]\nb = " + "[" * 3_000 + "]" * 3_000


@pytest.mark.parametrize("verb", ["check", "run"])
@pytest.mark.parametrize(("name", "text"), [("deep.json", DEEP), ("deep.toml", DEEP_TOML)])
def test_a_deep_configuration(
    verb: str, name: str, text: str, ticks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name.endswith(".toml"):
        pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    Path(name).write_text(text)
    assert main([verb, str(ticks), "--config", name]) != 0
    if verb == "check":
        out = capsys.readouterr().out
        assert out.startswith(f"refused: {name}") and "nested deeper than 64 levels" in out
    else:
        one_line(capsys, name, "nested deeper than 64 levels")


@pytest.mark.parametrize(
    "url",
    [
        "mqtt://[::1",
        "mqtt://[zz]:1",
        "mqtt://[v1.a]:1",
        "mqtt://[::1\x00]:1",
        "mqtt://[1.2.3.4]:1",
        "mqtt://h:0",
        "mqtt://a\x00b",
        "mqtt://u:pw@[::1",
        "mqtt://a..b:1",
        "mqtt://" + "a" * 300,
        "mqtt://" + "a." * 130 + "b",
        "mqtt://host:1?x=1",
        "mqtt://host:1#x",
        "mqtt://u:p?pw@host",
        "mqtt://u:#pw@host",
        "mqtt://127.0.0.1 :1",
        "mqtt://ho st",
        "mqtt://h%41",
        "mqtt://us%zz:pw@host",
        "mqtt://us:pw%@host",
        "mqtt://us:pw%ff@host",
    ],
)
def test_a_broker_url_that_cannot_be(url: str) -> None:
    with pytest.raises(BrokerUrlError) as caught:
        Broker.from_url(url)
    assert caught.value.hint
    assert "pw" not in str(caught.value)


def test_doctor_says_what_is_wrong_with_the_broker_and_its_files(
    ticks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, word in (
        (["mqtt://[::1"], "not well formed"),
        (["mqtts://127.0.0.1:1", "--ca", "pipe"], "FIFO"),
    ):
        assert main(["doctor", "--broker", *flags]) != 0
        said = capsys.readouterr()
        assert word in said.out + said.err


def test_a_process_that_is_given_a_fifo_ends(ticks: Path) -> None:
    """A test of its own: a process that waits for the FIFO would wait for ever."""
    config = {"artifact": "pipe", "targets": ["Main"], "peer": "p", "broker": "mqtt://127.0.0.1:1"}
    Path("c.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "bb_edge.cli", "run", "--config", "c.json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "FIFO" in done.stderr


def test_help_loads_no_engine():
    lines = """
import sys
from bb_edge.cli import main
try:
    main(["--help"])
except SystemExit:
    print(*(name for name in sys.modules if name.startswith("bb_edge.engine.")), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("usage: ")
    assert done.stderr.strip() == ""
