"""What every test may use: a deterministic hypothesis profile, real MQTT brokers, patience for slow machines.

BB_TEST_PATIENCE=20 multiplies every limit of time by 20: pytest's own and those that tests wait with.
BB_TEST_PROGRAMS=DIR takes compiled programs from another machine (tests/aids/compiled_programs.py).

Fixtures:
    patience          that factor, 1 where none is given
    broker            a running broker, once mosquitto and once amqtt (the test runs twice)
    mosquitto_broker  a running mosquitto, for what only MQTT 5 or broker persistence can show
    start_broker      a function that starts further brokers, for instance
                      `start_broker("mosquitto", config=["persistence_location {folder}/"])`
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent / "aids"))

with contextlib.suppress(ImportError):
    from hypothesis import HealthCheck, settings

    # Same examples on every run and every machine, and no failure because a machine was slow or emulated.
    _COMMON = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("fixed", derandomize=True, **_COMMON)
    settings.register_profile("explore", max_examples=2_000, **_COMMON)
    settings.load_profile(os.environ.get("BB_HYPOTHESIS", "fixed"))


PATIENCE = float(os.environ.get("BB_TEST_PATIENCE", "1"))


@pytest.fixture(scope="session")
def patience() -> float:
    """What limits of time are multiplied by on this machine."""
    return PATIENCE


def pytest_runtest_setup() -> None:
    """Subnormal numbers, as hypothesis asks for: a library that was built with -ffast-math, tflite-runtime on
    32-bit ARM for one, takes them from the thread that loads it.
    """
    if sys.float_info.min / 4 == 0.0:
        ctypes.CDLL("libm.so.6").fesetenv(ctypes.c_void_p(-1))  # FE_DFL_ENV


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """pytest-timeout's limits, multiplied."""
    if PATIENCE == 1:
        return
    usual = float(config.getoption("timeout", None) or config.getini("timeout") or 0)
    for item in items:
        marker = item.get_closest_marker("timeout")
        limit = float(marker.args[0]) if marker is not None and marker.args else usual
        item.add_marker(pytest.mark.timeout(limit * PATIENCE), append=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Repeat the checks that failed before the tests where one looks for the result."""
    if failed := os.environ.get("BB_FAILED_CHECKS"):
        terminalreporter.section("checks that failed before the tests")
        terminalreporter.line(failed)


# ---- brokers

START_ATTEMPTS = 5
"""A free port can be taken between finding it and listening on it; the next one rarely is."""

START_SECONDS = 60.0
"""Ceiling for a broker to say that it listens, wide enough for an emulated machine."""

LOG_LINES = 1_000

AMQTT_SCRIPT = """
import asyncio, sys
from amqtt.broker import Broker

async def serve(port):
    broker = Broker({
        "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    })
    await broker.start()
    print("running", flush=True)
    await asyncio.Event().wait()

asyncio.run(serve(int(sys.argv[1])))
"""


@dataclass
class Broker:
    """One broker process on a port of its own; `kill` then `start` is a crash and a restart on that port."""

    kind: str
    command: Callable[[int, Path], list[str]]
    folder: Path
    port: int = 0
    host: str = "127.0.0.1"
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    _process: subprocess.Popen[str] | None = None
    _reader: threading.Thread | None = None

    @property
    def mqtt5(self) -> bool:
        return self.kind == "mosquitto"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the process and return when it listens."""
        fixed = self.port
        for _ in range(START_ATTEMPTS):
            self.port = fixed or _free_port()
            if self._start_once():
                return
        pytest.fail(f"{self.kind} did not start:\n" + "".join(self.log))

    def _start_once(self) -> bool:
        listens = threading.Event()
        process = subprocess.Popen(
            self.command(self.port, self.folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running: list[bool] = []

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                self.log.append(line)
                if not running and line.rstrip().endswith("running"):
                    running.append(True)
                    listens.set()
            listens.set()  # it ended

        self._process, self._reader = process, threading.Thread(target=read, daemon=True)
        self._reader.start()
        listens.wait(START_SECONDS)
        if running:
            return True
        self.kill()
        return False

    def _end(self, number: signal.Signals) -> None:
        if self._process is None or self._reader is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = self._reader = None

    def stop(self) -> None:
        """End it in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _mosquitto_command(config: Sequence[str]) -> Callable[[int, Path], list[str]]:
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("mosquitto is not installed here (Debian: apt install mosquitto)")

    def command(port: int, folder: Path) -> list[str]:
        lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", "set_tcp_nodelay true"]
        if os.geteuid() == 0:
            lines.append("user root")  # otherwise it becomes a user who can't write to the test's folder
        path = folder / "mosquitto.conf"
        lines += ["log_dest stderr", *(line.format(folder=folder) for line in config)]
        path.write_text("\n".join(lines) + "\n")
        return [program, "-c", str(path)]

    return command


def _amqtt_command(config: Sequence[str]) -> Callable[[int, Path], list[str]]:
    if config:
        raise ValueError("config lines are mosquitto's")
    if importlib.util.find_spec("amqtt") is None:
        pytest.skip("amqtt is not installed here (pip install amqtt)")
    return lambda port, _folder: [sys.executable, "-W", "ignore", "-c", AMQTT_SCRIPT, str(port)]


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """`start_broker(kind, config=())` -> a running Broker, ended with the test; `kind` is mosquitto or amqtt.

    `config` holds further lines of mosquitto.conf; `{folder}` in them becomes the broker's own folder.
    """
    started: list[Broker] = []

    def start(kind: str, config: Sequence[str] = ()) -> Broker:
        commands = {"mosquitto": _mosquitto_command, "amqtt": _amqtt_command}
        command = commands[kind](config)
        folder = tmp_path / f"broker-{len(started)}"
        folder.mkdir()
        broker = Broker(kind, command, folder)
        started.append(broker)
        broker.start()
        return broker

    yield start
    for broker in started:
        broker.stop()


@pytest.fixture(params=["mosquitto", "amqtt"])
def broker(request: pytest.FixtureRequest, start_broker: Callable[..., Broker]) -> Broker:
    """A running broker; the test runs once with each kind."""
    return start_broker(request.param)


@pytest.fixture
def mosquitto_broker(start_broker: Callable[..., Broker]) -> Broker:
    """A running mosquitto."""
    return start_broker("mosquitto")
