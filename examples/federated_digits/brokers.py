"""The demo's own broker: mosquitto where it is installed, else amqtt. Loopback only, on a free port.

`python brokers.py PORT` serves amqtt, in a process of its own.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __package__ in (None, ""):
    sys.path.insert(0, str(HERE.parent))

from federated_digits.processes import Child, Ended, Events  # noqa: E402

START_S = 30.0
START_ATTEMPTS = 5
"""A free port can be taken between finding it and listening on it; the next one rarely is."""


class BrokerError(Exception):
    """There is no broker, or it does not start; the message says what to install."""


@dataclass(frozen=True, slots=True)
class OwnBroker:
    """A broker that runs until it is told to end."""

    kind: str
    url: str
    child: Child

    @property
    def mqtt_version(self) -> str:
        """The newest version that this broker speaks: nodes that know it need not find out by waiting."""
        return "5" if self.kind == "mosquitto" else "3.1.1"

    def stop(self) -> None:
        self.child.signal(signal.SIGTERM)
        self.child.end()


def start_broker(folder: Path, events: Events, kind: str = "", config: Sequence[str] = ()) -> OwnBroker:
    """Starts a broker and returns when it listens; `kind` is mosquitto, amqtt, or empty for either.

    `config` holds further lines for mosquitto. No other process may use `events` yet. Raises BrokerError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mosquitto = shutil.which("mosquitto")
    if kind != "amqtt" and mosquitto is not None:
        return _start(
            "mosquitto",
            folder,
            events,
            lambda port: [mosquitto, "-c", _mosquitto_config(folder, port, config)],
        )
    if kind != "mosquitto" and importlib.util.find_spec("amqtt") is not None:
        return _start(
            "amqtt",
            folder,
            events,
            lambda port: [sys.executable, "-W", "ignore", Path(__file__).resolve(), str(port)],
        )
    raise BrokerError(
        f"no {kind or 'MQTT broker'} on this machine: install mosquitto (Debian: apt install mosquitto), "
        "or amqtt (pip install amqtt), or name one that runs elsewhere with --broker mqtt://HOST:PORT"
    )


def _start(kind: str, folder: Path, events: Events, command: Callable[[int], list[str | Path]]) -> OwnBroker:
    tail = ""
    for _ in range(START_ATTEMPTS):
        port = _free_port()
        child = Child(kind, command(port), folder / "broker.log", events)
        deadline = time.monotonic() + START_S
        while (event := events.next(deadline)) is not None and not isinstance(event, Ended):
            if event.text.rstrip().endswith("running"):
                return OwnBroker(kind, f"mqtt://127.0.0.1:{port}", child)
        child.end(within_s=0)
        tail = child.tail
    raise BrokerError(f"{kind} does not start:\n{tail}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _mosquitto_config(folder: Path, port: int, config: Sequence[str]) -> Path:
    lines = [
        f"listener {port} 127.0.0.1",
        "allow_anonymous true",
        "set_tcp_nodelay true",  # without it a round trip takes 40 ms and more
        "max_queued_messages 10000",  # the default, 1000, drops what a burst leaves to a slower reader
        "persistence true",
        f"persistence_location {folder}/",
        "log_dest stderr",
        *config,
    ]
    if os.geteuid() == 0:
        lines.append("user root")  # otherwise it becomes a user who can't write to the folder
    path = folder / "mosquitto.conf"
    path.write_text("\n".join(lines) + "\n")
    return path


async def serve_amqtt(port: int) -> None:
    """amqtt until the process ends. Its defaults would listen on every interface."""
    from amqtt.broker import Broker

    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    print("running", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve_amqtt(int(sys.argv[1])))
