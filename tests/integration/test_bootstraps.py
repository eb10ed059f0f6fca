"""Bootstraps of processes over a broker: with inputs, of components, failing, killed and started again."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from times import S

from bb_edge.registry import default_registry
from bb_host import Compiler, IndexSlot, ModelSlot, Module, PeerSelectorSlot
from bb_host.build import build_edge
from bb_host.learn import mlp, trainable

pytestmark = [pytest.mark.broker, pytest.mark.slow]

CAMERA = '''
import pathlib
import threading

import numpy as np

from bb_edge import register
from bb_edge.roles import Index, Setting


@register
class Camera(Index):
    """Writes down each try of its bootstrap; the first two fail where the folder says so."""

    TYPE_NAME = "acme.Camera"
    CONFIG = {"folder": Setting(str, default=".")}

    def __init__(self, folder):
        self.folder, self.tries = folder, 0

    @classmethod
    def construct(cls, env):
        return cls(pathlib.Path(env.text("folder", ".")))

    def bootstrap(self, ctx):
        log = self.folder / "tries"
        log.write_text((log.read_text() if log.exists() else "") + "x")
        self.tries = len(log.read_text())
        if (self.folder / "broken").exists() and self.tries <= 2:
            raise OSError("camera unplugged")
        if (self.folder / "go").exists():
            later = ctx.later(60_000_000_000)
            threading.Thread(target=self.wait, args=(later,), daemon=True).start()
            return later

    def wait(self, later):
        (self.folder / "go").read_text()  # a pipe: until the test writes to it
        later.complete()

    def add(self, ctx, vec):
        return None

    def search(self, ctx, query, *, k):
        return np.zeros(k, np.int64), np.full(k, self.tries, np.float32)

    def serialize(self):
        return bytes([self.tries])

    def restore(self, state):
        self.tries = state[0]
'''


class Booted(Module):
    """A server whose parameters come from its bootstrap; clients whose camera has a bootstrap of its own."""

    name, home = "Booted", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    model = ModelSlot("model", at="Server")
    cam = IndexSlot("cam", at="Client")

    def bootstrap(self, g: Any) -> None:
        self.model.load_parameters(g, g.input("p", "F32", [8]))

    def body(self, g: Any) -> None:
        with g.rounds(times=3) as start:
            peers = self.clients.sample(g, n=1, after=start)
            params = self.model.params(g, after=start)
            r = g.request("ask", peers, params, deadline_ns=S)
            _, distances = self.cam.search(g, r.value, k=1)
            r.reply(distances)
            g.app_emit("round", g.bundle([start.round, params, r.responses]))


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both artifacts, the camera's file and the parameters."""
    folder = tmp_path_factory.mktemp("booted")
    (folder / "camera.py").write_text(CAMERA)
    np.save(folder / "init.npy", np.arange(8, dtype=np.float32))
    registry = default_registry()
    registry.load_module(str(folder / "camera.py"))
    camera = registry.lookup("acme.Camera", "test")
    compiler = (
        Compiler()
        .bind_peer_selector("clients", "bb.PresenceSelector")
        .bind_model("model", "bb.GraphModel", trainable(mlp([3, 2], 1)))
        .bind_index("cam", camera)
    )
    for artifact in build_edge(Booted(), compiler).artifacts:
        (folder / f"{artifact.target}.onnx").write_bytes(artifact.data)
    return folder


def client(f: Any, booted: Path, place: Path, *more: str) -> Any:
    cam = ("--load", str(booted / "camera.py"), "--set", f"cam.folder={place}")
    return f.run("camera", booted / "Client.onnx", "Client", *cam, *more)


def server(f: Any, booted: Path, *more: str) -> Any:
    given = ("--bootstrap", f"Server.p={booted / 'init.npy'}", "--until-done")
    return f.run("server", booted / "Server.onnx", "Server", *given, *more)


def test_a_bootstrap_with_inputs_runs_before_the_rounds(mosquitto_broker, federation, booted, tmp_path):
    f = federation(mosquitto_broker)
    asked = client(f, booted, tmp_path)
    f.says(asked, "bootstrap done")
    f.says(asked, "connected")
    asker = server(f, booted)
    answered = f.round(lambda v: v[2] != [] and v[2] != [[]], "a round with an answer")
    assert answered[1] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert np.ravel(answered[2]).tolist() == [1]
    assert f.ended(asker) == 0
    for line in ("bootstrap started target=Server", "bootstrap done target=Server"):
        assert line in asker.tail
    code, summary = f.end(asked)
    assert (code, summary["counters"]["bootstraps.done"]) == (0, 1)


def test_a_bootstrap_fails_twice_then_the_rounds_begin(mosquitto_broker, federation, booted, tmp_path):
    f = federation(mosquitto_broker)
    (tmp_path / "broken").touch()
    asked = client(f, booted, tmp_path, "--log-level", "debug")
    f.says(asked, "next_try=in 1 s")
    failed = f.says(asked, "next_try=in 2 s")
    assert "slot=cam" in failed
    assert "slot 'cam' (acme.Camera.bootstrap): OSError: camera unplugged" in failed
    assert "traceback of cam.bootstrap" in asked.tail and 'raise OSError("camera unplugged")' in asked.tail
    f.says(asked, "bootstrap done")
    asker = server(f, booted)
    assert np.ravel(f.round(lambda v: v[2] not in ([], [[]]), "an answer")[2]).tolist() == [3]
    assert f.ended(asker) == 0
    assert (tmp_path / "tries").read_text() == "xxx"


def test_a_finished_bootstrap_does_not_run_again_after_a_kill(mosquitto_broker, federation, booted, tmp_path):
    f = federation(mosquitto_broker)
    asked = client(f, booted, tmp_path, *f.state("camera"))
    f.says(asked, "bootstrap done")
    f.says(asked, "connected")
    asked.signal(signal.SIGKILL)
    assert f.ended(asked) == -signal.SIGKILL
    before = len(f.heard)
    asked = client(f, booted, tmp_path, *f.state("camera"))
    f.says(asked, "restored", since=before)
    f.says(asked, "connected", since=before)
    asker = server(f, booted)
    assert np.ravel(f.round(lambda v: v[2] not in ([], [[]]), "an answer")[2]).tolist() == [1]
    assert f.ended(asker) == 0
    assert (tmp_path / "tries").read_text() == "x"


def test_ops_wait_for_a_bootstrap_that_runs_and_the_log_says_so_once(
    mosquitto_broker, federation, booted, tmp_path
):
    f = federation(mosquitto_broker)
    os.mkfifo(tmp_path / "go")
    asked = client(f, booted, tmp_path)
    f.says(asked, "bootstrap started")
    f.says(asked, "connected")
    server(f, booted)
    f.says(asked, "waiting for a bootstrap target=Client op=")
    f.round(lambda v: np.size(v[2]) == 0, "a round without an answer")
    (tmp_path / "go").write_text("now")
    f.says(asked, "bootstrap done")
    assert f.end(asked)[0] == 0
    assert asked.tail.count("waiting for a bootstrap") == 1


def test_without_its_input_the_server_does_not_start(federation, booted):
    f = federation("mqtt://127.0.0.1:1")
    child = f.run("server", booted / "Server.onnx", "Server")
    assert f.ended(child) == 3
    (line,) = child.tail.splitlines()
    assert line.startswith("bb-edge: error: ") and "--bootstrap Server.p=VALUE" in line


def test_no_bootstrap_leaves_it_to_the_host(mosquitto_broker, federation, booted):
    f = federation(mosquitto_broker)
    child = f.run("server", booted / "Server.onnx", "Server", "--no-bootstrap")
    f.says(child, "bootstraps are not started")
    f.says(child, "connected")
    code, summary = f.end(child)
    assert (code, summary["counters"]["bootstraps.pending"]) == (0, 1)
    assert "rounds.backed_off" not in summary["counters"]
