"""The pumps: what their sensors write, how alerts are judged, and the example as its user starts it."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="compiling needs the host extra")

from anomaly_detection import sensors  # noqa: E402
from anomaly_detection.report import Quality, Watch, plot, quality, table  # noqa: E402

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "anomaly_detection"


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, FOLDER / script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
    )


def test_the_same_seed_gives_the_same_readings() -> None:
    one, same, other = (sensors.record(0, seed, 200, first=100, faults=2) for seed in (1, 1, 2))
    assert one.lines() == same.lines() != other.lines()
    assert one.faults == same.faults
    assert one.lines()[0].startswith(f"{sensors.START_S + 100 * sensors.STEP_S},")


def test_faults_are_injected_where_it_is_said() -> None:
    faulty = sensors.record(0, 1, 400, faults=4)
    wrong = np.array([bool(kind) for kind in faulty.faults])
    assert wrong.sum() == 4 * sensors.FAULT_ROWS
    # The rest follows the load: what a healthy pump shows stays within some of what the devices scale by.
    scaled = np.abs((faulty.readings - sensors.OFFSET) / sensors.DIVISOR)
    assert scaled[~wrong].max() < 2.5 < scaled[wrong].max(axis=1).mean()


def test_the_script_writes_files_that_a_spreadsheet_reads(tmp_path: Path) -> None:
    done = run("sensors.py", tmp_path, "--pumps", 1, "--history", 50, "--live", 160)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "pump-0" / "live.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 160 and set(rows[0]) == {"time", *sensors.COLUMNS}
    assert len((tmp_path / "pump-0" / "history.csv").read_text().splitlines()) == 51
    assert len((tmp_path / "pump-0" / "faults.csv").read_text().splitlines()) == 1 + 2 * sensors.FAULT_ROWS


def test_alerts_are_judged_row_by_row_and_fault_by_fault(tmp_path: Path) -> None:
    watch = Watch(sensors.record(0, 1, 200, faults=2))
    wrong = [int(t) for t, kind in zip(watch.recording.times, watch.recording.faults, strict=True) if kind]
    assert quality({"p": watch}) == Quality(1.0, 0.0, 2, 0)
    well = next(int(t) for t in watch.recording.times if int(t) not in wrong)
    watch.alerts = {well: 1.0, **dict.fromkeys(wrong[:3], 2.0)}
    found = quality({"p": watch})
    assert found == Quality(0.75, 3 / (2 * sensors.FAULT_ROWS), 2, 1)
    text = table(found, {1: 0.5, 2: 0.25}, 200)
    assert "loss 0.500 → 0.250" in text and "1 of 2" in text
    assert plot({"p": watch}, {1: 0.5, 2: 0.25}, tmp_path / "picture.png", "a title")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_only_what_the_server_asks_for_trains(tmp_path: Path) -> None:
    """So `train_when` holds back the rounds, and no pump stops to watch itself."""
    from anomaly_detection.federation import program
    from bb_edge import PeerId, install
    from bb_host.build import compile_edge

    compile_edge(*program(), tmp_path)
    rows = {"path": str(sensors.write(tmp_path, sensors.record(0, 1, 600), "rows.csv"))}
    node = install(
        PeerId.from_name("pump"),
        (),
        (tmp_path / "AnomalyDetection.Pump.edge.onnx").read_bytes(),
        ["Pump"],
        components=dict.fromkeys(("history", "normal", "live"), rows),
        seed=1,
    )
    (training,) = node.inspect().training
    assert training["request"] is True


@pytest.mark.broker
@pytest.mark.slow
def test_the_pumps_find_the_faults_that_were_injected(tmp_path: Path) -> None:
    done = run("run.py", "--rounds", 7, "--pumps", 2, "--deadline", 100, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"ALERT pump-\d at 2026-01-03 \d\d:\d\d: error", done.stdout)
    figures = dict(re.findall(r"^(precision|recall) +([\d.]+)", done.stdout, re.MULTILINE))
    assert float(figures["precision"]) > 0.8 and float(figures["recall"]) > 0.8
    assert (tmp_path / "anomalies.png").read_bytes().startswith(b"\x89PNG")
    for log in (tmp_path / "logs").glob("*.log"):
        assert "error" not in log.read_text()


def test_what_cannot_run_is_refused(tmp_path: Path) -> None:
    done = run("run.py", "--rounds", 3, "--out", tmp_path)
    assert done.returncode == 1 and "at least 4 rounds" in done.stderr
