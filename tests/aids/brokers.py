"""Broker processes for tests: each on a port of its own, which it keeps when it dies and comes back."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from federated_digits import brokers

START_ATTEMPTS = 5
"""A free port can be taken between finding it and listening on it; the next one rarely is."""

START_SECONDS = 60.0
"""Ceiling for a broker to say that it listens, wide enough for an emulated machine."""

LOG_LINES = 1_000

PORTS = range(12_000, 32_000)
"""Below what Linux gives to outgoing connections: while a broker is dead nobody gets its port by chance, and
no client that tries to connect meets itself there."""

Command = Callable[[int, Path], list[str]]


class NoBroker(Exception):
    """This kind is not installed here; the message says how it would be."""


@dataclass
class Broker:
    """One broker process; `kill` then `start` is a crash and a restart on the same port.

    `command(port, folder)` starts it, and it says "running" when it listens.
    """

    kind: str
    command: Command
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
    def url(self) -> str:
        return f"mqtt://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts the process and returns when it listens. AssertionError with its log where it does not."""
        fixed = self.port
        for _ in range(START_ATTEMPTS):
            self.port = fixed or free_port()
            if self._start_once():
                return
        raise AssertionError(f"{self.kind} did not start:\n" + "".join(self.log))

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
        """Ends it in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it as a power cut would."""
        self._end(signal.SIGKILL)


def free_port() -> int:
    """One of `PORTS` that nobody listens on now."""
    while True:
        port = random.SystemRandom().choice(PORTS)  # not what a test seeds: all workers would choose the same
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def mosquitto(folder: Path, config: Sequence[str] = ()) -> Broker:
    """A mosquitto that is still to be started; NoBroker without it. It keeps nothing when it dies.

    `config` holds further lines of its configuration; `{folder}` in them becomes `folder`.
    """
    program = shutil.which("mosquitto")
    if program is None:
        raise NoBroker("mosquitto is not installed here (Debian: apt install mosquitto)")

    def command(port: int, folder: Path) -> list[str]:
        lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", "set_tcp_nodelay true"]
        if os.geteuid() == 0:
            lines.append("user root")  # otherwise it becomes a user who can't write to the test's folder
        path = folder / "mosquitto.conf"
        lines += ["log_dest stderr", *(line.format(folder=folder) for line in config)]
        path.write_text("\n".join(lines) + "\n")
        return [str(program), "-c", str(path)]

    return Broker("mosquitto", command, folder)


def bridge(center: Broker, name: str, federation: str, topics: Sequence[str] = ("# both",)) -> list[str]:
    """The lines of a mosquitto that shares topics of a federation with another one, whose port is known.

    docs/how-to/brokers.md has the same ones; only the wait between two attempts is shorter here.
    """
    return [
        f"connection {name}",
        f"address {center.host}:{center.port}",
        *(f"topic bb/{federation}/{topic} 1" for topic in topics),
        "bridge_protocol_version mqttv50",
        f"remote_clientid bridge-{name}",
        "notifications false",
        "restart_timeout 1",
        "try_private true",
    ]


def start_bridged(
    folder: Path,
    count: int,
    federation: str,
    shared: Callable[[int], Sequence[str]] = lambda _number: ("# both",),
) -> list[Broker]:
    """So many mosquittos, running, all after the first one bridged to it; each has a folder in `folder`.

    `shared` are the topics that the one of a number has in common with the first.
    """
    found: list[Broker] = []
    for number in range(count):
        own = folder / f"broker-{number}"
        own.mkdir()
        lines = bridge(found[0], f"edge-{number}", federation, shared(number)) if number else []
        found.append(mosquitto(own, lines))
        try:
            found[-1].start()
        except AssertionError:
            for broker in found:
                broker.kill()
            raise
    return found


def broker_of(number: int, brokers: Sequence[Broker]) -> Broker:
    """Where a node of this number goes: by turns to all but the first, which is the center's own."""
    others = brokers[1:] or brokers
    return others[number % len(others)]


def amqtt(folder: Path) -> Broker:
    """An amqtt that is still to be started; NoBroker without it."""
    if importlib.util.find_spec("amqtt") is None:
        raise NoBroker("amqtt is not installed here (pip install amqtt)")
    return Broker(
        "amqtt",
        lambda port, _folder: [sys.executable, "-W", "ignore", str(brokers.__file__), str(port)],
        folder,
    )
