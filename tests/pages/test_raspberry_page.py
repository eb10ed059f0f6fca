"""docs/tutorials/raspberry-pi.md as a whole: with its certificates, rules and broker a federation learns."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import free_port
from page_steps import read_page

pytest.importorskip("onnx", reason="the page's program is compiled, which needs the host extra")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "raspberry-pi.md"
MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.broker,
    pytest.mark.timeout(300),
    pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]


class Board:
    """The page's folder, in which all is done on one machine: `hub.local` is `localhost`."""

    def __init__(self, folder: Path, env: dict[str, str], patience: float) -> None:
        self.folder, self.env, self.patience, self.port = folder, env, patience, free_port()
        self.running: list[subprocess.Popen[bytes]] = []

    def call(self, text: str) -> str:
        """What a shell prints. The test fails where it fails."""
        text = text.replace("mqtts://hub.local", f"mqtts://localhost:{self.port}").replace(
            "hub.local", "localhost"
        )
        done = subprocess.run(
            ["bash", "-e", "-c", text],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=100 * self.patience,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *command: str) -> None:
        self.running.append(subprocess.Popen(command, cwd=self.folder, env=self.env))

    def start_broker(self) -> None:
        """With the page's configuration: only its port and the folders are others."""
        text = (self.folder / "broker" / "mosquitto-tls.conf").read_text()
        for place in ("/etc/mosquitto/certs", "/etc/mosquitto", "/var/lib/mosquitto"):
            text = text.replace(place, str(self.folder))
        text = text.replace("listener 8883", f"listener {self.port} localhost")
        (self.folder / "run.conf").write_text(text + ("user root\n" if os.getuid() == 0 else ""))
        self.start(str(MOSQUITTO), "-c", "run.conf")

    def configuration(self, peer: str, target: str, slot: str, data: str) -> str:
        """A file as the page has it for the kitchen; its name."""
        (shown,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
        config = json.loads(
            shown.replace("/etc/bb-edge/", "").replace("kitchen", peer).replace("Client", target)
        )
        config["artifact"] = f"build/{config['artifact']}"
        config["broker"]["url"] = f"mqtts://localhost:{self.port}"
        config["components"] = {slot: {"path": data}}
        (self.folder / f"{peer}.json").write_text(json.dumps(config))
        return f"{peer}.json"

    def stop(self) -> None:
        for process in reversed(self.running):
            process.send_signal(signal.SIGTERM)
            process.wait(30 * self.patience)


@pytest.fixture
def board(tmp_path: Path, tools: dict[str, str], patience: float) -> Iterator[Board]:
    board = Board(tmp_path, tools, patience)
    yield board
    board.stop()


def test_nodes_learn_over_tls_and_the_operator_sees_them(board: Board) -> None:
    board.call("".join(step.text for step in read_page(PAGE).steps if step.kind == "sh"))
    board.start_broker()
    for name, data in (("kitchen", "attic.npz"), ("attic", "cellar.npz")):
        config = board.configuration(name, "Client", "data", data)
        board.start("bb-edge", "run", "--config", config)
    server = board.configuration("server", "Server", "test", "test.npz")
    events = [
        json.loads(line) for line in board.call(f"bb-edge run --config {server} --until-done").splitlines()
    ]
    assert [event["value"][2] for event in events if event["event"] == "round"] == [1600.0] * 20
    (listing,) = re.findall(r"^bb-edge peers .*\n", PAGE.read_text(), re.MULTILINE)
    seen = board.call(listing)
    assert re.search(r"^kitchen +up +Client ", seen, re.M) and re.search(
        r"^attic +up +Client ", seen, re.M
    ), seen
