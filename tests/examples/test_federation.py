"""The example's program, and the demo as its user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="compiling needs the host extra")

from bb_host.compiler.driver import Compiler  # noqa: E402
from bb_host.dsl import Graph, Module  # noqa: E402
from federated_digits.federation import FederatedDigits, accuracy, program  # noqa: E402
from federated_digits.report import Outcome, Round, plot, size, table  # noqa: E402

RUN = Path(__file__).resolve().parents[2] / "examples" / "federated_digits" / "run.py"


def demo(*arguments: str, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, RUN, *arguments, "--out", out],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("kind", ["mlp", "softmax"])
def test_one_program_trains_either_model(kind):
    module, compiler = program(kind, rounds=2, local_steps=2)
    assert isinstance(module, FederatedDigits)
    model = compiler.compile(module)
    names = {f.name for f in model.functions}
    assert {"Server", "Client"} <= names
    layers = {"mlp": 4, "softmax": 2}[kind]
    (forward,) = (f for f in model.functions if f.name == "model.forward")
    assert len(forward.input) == 1 + layers


def test_artifacts_and_memory_do_not_grow_with_the_local_steps():
    from bb_host.build import build_edge

    few, many = (
        next(a for a in build_edge(*program(local_steps=steps)).artifacts if a.target == "Client")
        for steps in (1, 1_000_000)
    )
    assert len(few.data) == len(many.data)
    assert few.report.ops_after == many.report.ops_after < 20
    assert few.budget.ram_bytes == many.budget.ram_bytes


class Scores(Module):
    name = "Scores"

    def body(self, g: Graph) -> None:
        logits = g.input("logits", "F32", (None, 3))
        g.output("score", accuracy(g, logits, g.input("one_hot", "F32", (None, 3))))


def test_accuracy_is_the_share_of_hits():
    from bb_edge import NodeConfig, PeerId, install
    from bb_edge.engine.steps import AppEvent

    node = install(
        PeerId.from_name("x"),
        (),
        Compiler().compile(Scores()).SerializeToString(),
        ["Scores"],
        NodeConfig.edge(),
        seed=1,
    )
    logits = np.array([[0, 1, 2], [5, 1, 2], [0, 9, 2], [1, 0, 0]], np.float32)
    node.invoke("Scores", {"logits": logits, "one_hot": np.eye(3, dtype=np.float32)[[2, 0, 0, 0]]})
    (event,) = (step for step in node.poll(1) if isinstance(step, AppEvent))
    assert float(event.value) == pytest.approx(0.75)


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])
def test_the_demo_runs_from_nothing(kind, tmp_path):
    process = demo("--rounds", "4", "--own-broker", kind, "--deadline", "90", out=tmp_path)
    out, err = process.communicate()
    if f"no {kind} on this machine" in err:
        pytest.skip(f"{kind} is not installed here")
    assert process.returncode == 0, err
    lines = out.splitlines()
    assert sum(line.startswith("round ") for line in lines) == 4
    figures = {line.split("  ")[0]: line for line in lines if "  " in line}
    assert figures["rounds"].split()[-1] == "4"
    assert kind in figures["broker"]
    assert "client-3" in figures["peak memory"]
    logs = [path.read_text() for path in (tmp_path / "logs").glob("*.log")]
    assert logs and not any("speak MQTT 5" in log for log in logs), "nodes are told the version"
    assert (tmp_path / "federation.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.broker
def test_the_demo_ends_its_processes_when_it_is_told_to(tmp_path, mosquitto_broker):
    url = f"mqtt://{mosquitto_broker.host}:{mosquitto_broker.port}"
    process = demo("--rounds", "100000", "--broker", url, out=tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("round"):
            break
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert (process.returncode, "SIGTERM" in err) == (130, True), out + err
    assert "killed" not in err


def test_the_demo_says_why_a_process_died(tmp_path):
    process = demo("--rounds", "2", "--clients", "2", "--broker", "nonsense", out=tmp_path)
    _, err = process.communicate()
    assert process.returncode == 1
    assert "ended (exit code 2)" in err and "nonsense" in err
    assert "Traceback" not in err


def test_the_demo_gives_up_at_its_deadline(tmp_path):
    process = demo(
        "--rounds", "2", "--clients", "2", "--broker", "mqtt://127.0.0.1:1", "--deadline", "3", out=tmp_path
    )
    _, err = process.communicate()
    assert process.returncode == 1
    assert "0 of 2 rounds" in err


def test_too_many_clients_are_refused_before_anything_starts(tmp_path):
    process = demo("--clients", "1000", out=tmp_path)
    _, err = process.communicate()
    assert process.returncode == 1
    assert "clients" in err and "Traceback" not in err


@pytest.mark.filterwarnings("ignore:.*deprecated - use:DeprecationWarning")  # pyparsing, of matplotlib 3.7
def test_the_figures(tmp_path):
    rounds = [Round(n, 1.0 / n, n / 4, 100.0, 0, 0.5, 1000 * n) for n in (1, 2, 3)]
    transport = {"sent_bytes": 600, "received_bytes": 300}
    summaries = {
        name: {"peak_rss_bytes": 42_000_000, "protocol": "5", "transport": transport}
        for name in ("server", "client-0")
    }
    outcome = Outcome("mosquitto", 1, rounds, summaries)
    assert outcome.bytes_per_client_and_round == 300
    assert outcome.seconds_per_round == 0.5
    text = table(outcome)
    assert "server 42.0 MB  client-0 42.0 MB" in text
    assert "mosquitto, MQTT 5" in text
    assert plot(rounds, tmp_path / "x.png", "a run")
    assert (tmp_path / "x.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12 B"), (19_300, "19.3 KB"), (1_200_000, "1.2 MB"), (3e9, "3.0 GB")]
)
def test_sizes(count, text):
    assert size(count) == text
