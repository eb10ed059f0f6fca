"""A model is trained in a federation of processes, comes out as an ONNX file, and goes in again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")
pytest.importorskip("onnxruntime", reason="another runtime opens what comes out")

import onnx
import onnxruntime

from bb_host.learn import mlp
from federated_digits.data import read_shard

pytestmark = [pytest.mark.broker, pytest.mark.slow]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
AGAIN = f"""
import sys

sys.path.insert(0, {str(EXAMPLES)!r})
from federated_digits.federation import program as digits

def program():
    return digits("mlp", 0, rounds=1, clients=3, local_steps=0, at_least=3)
"""


def verb(command: str, *words: object) -> str:
    """A verb of `bb-host` or `bb-edge`, as a process; what it says."""
    module = {"bb-host": "bb_host.cli", "bb-edge": "bb_edge.cli"}[command]
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def scores(path: Path, test: Path) -> tuple[float, float]:
    """Loss and accuracy of an ONNX file on the server's data, by onnxruntime."""
    x, y = read_shard(test)
    (z,) = onnxruntime.InferenceSession(str(path)).run(None, {"x": x})
    z = z.astype(np.float64)
    likelihood = z - np.log(np.exp(z - z.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
    likelihood -= z.max(axis=1, keepdims=True)
    return float(-likelihood[np.arange(len(y)), y].mean()), float((z.argmax(axis=1) == y).mean())


def test_a_model_comes_out_of_a_federation_and_goes_in_again(mosquitto_broker, federation, tmp_path):
    f = federation(mosquitto_broker, rounds=3, at_least=3)
    clients = [f.client(number, "--save-model", str(tmp_path / f"client-{number}")) for number in range(3)]
    saved, state = tmp_path / "saved", tmp_path / "state" / "server"
    server = f.server("--until-done", "--save-model", str(saved), "--state", str(state))
    rounds = [f.full_round() for _ in range(3)]
    assert f.ended(server) == 0
    for client in clients:
        assert f.end(client)[0] == 0
    _, loss, accuracy, *_ = rounds[-1]
    assert loss < rounds[0][1]

    # Out: the file that the server wrote while it ran, and its state folder say the same.
    verb("bb-edge", "export", "--state", state, "-o", tmp_path / "exported.npz")
    with np.load(saved / "model.npz") as ours, np.load(tmp_path / "exported.npz") as theirs:
        for name in ("w1", "b1", "w2", "b2"):
            np.testing.assert_array_equal(ours[name], theirs[name])
        assert json.loads(str(theirs["__parameters__"]))["rounds"] == 3
        trained = {name: ours[name] for name in ("w1", "b1", "w2", "b2")}
    with np.load(tmp_path / "client-0" / "model.npz") as own:  # a client has its own, of its last steps
        assert not np.array_equal(own["w1"], trained["w1"])

    # Into the ONNX file, which onnxruntime opens.
    original = tmp_path / "net.onnx"
    onnx.save(mlp([64, 32, 10], seed=0), original)
    verb("bb-host", "export", "--params", saved / "model.npz", original, "-o", tmp_path / "trained.onnx")
    found = scores(tmp_path / "trained.onnx", f.artifacts.test)
    np.testing.assert_allclose(found, (loss, accuracy), rtol=1e-6)
    assert scores(original, f.artifacts.test)[0] > found[0] + 0.1
    x, _ = read_shard(f.artifacts.test)
    by_hand = np.maximum(x @ trained["w1"] + trained["b1"], 0) @ trained["w2"] + trained["b2"]
    session = onnxruntime.InferenceSession(str(tmp_path / "trained.onnx"))
    (z,) = session.run(None, {"x": x})
    np.testing.assert_allclose(z, by_hand, rtol=0, atol=1e-6 * np.abs(z).max())

    # And in again: a federation that trains nothing evaluates what the last one left.
    (tmp_path / "again.py").write_text(AGAIN)
    build = tmp_path / "build"
    verb("bb-host", "compile", tmp_path / "again.py", "--params", saved / "model.npz", "-o", build)
    f.server_artifact = build / "FederatedDigits.Server.edge.onnx"
    f.client_artifact = build / "FederatedDigits.Client.edge.onnx"
    for number in range(3):
        f.client(number)
    server = f.server("--until-done")
    first = f.full_round()
    np.testing.assert_allclose(first[1:3], (loss, accuracy), rtol=1e-6)
    assert f.ended(server) == 0


def test_a_model_is_saved_through_a_kill(mosquitto_broker, federation, tmp_path):
    f = federation(mosquitto_broker, rounds=0, at_least=3)
    for number in range(3):
        f.client(number)
    saved = tmp_path / "saved"
    server = f.server("--save-model", str(saved))
    last = f.full_round()
    f.round(lambda v: v[0] >= last[0] + 2, "two rounds more")
    server.signal(9)
    assert f.ended(server) == -9
    with np.load(saved / "model.npz") as found:
        assert json.loads(str(found["__parameters__"]))["rounds"] >= last[0]
        assert np.isfinite(found["w1"]).all()
    assert f.server("--save-model", str(saved), "--every", "1000") is not None  # the folder is free again
    f.full_round()
