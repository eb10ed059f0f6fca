"""The comparison with other simulators: what it reads of a side's output, and whose memory it counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from benchmarks.simulators import ROOT, _family, _halted, _next_round, _processor_seconds, _pss, rows, run


@pytest.fixture
def found(monkeypatch):
    """Sides find this project."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(str(ROOT / part) for part in ("", "kernels", "examples"))
    )
    monkeypatch.chdir(ROOT)


@pytest.mark.usefixtures("found")
def test_our_side_tells_every_round(tmp_path):
    path = rows("mlp", tmp_path)
    cost = run((sys.executable, "-m", "benchmarks.simulators_ours", "mlp", "3", "3", str(path), "1"), 3)
    assert cost.start > 0 and cost.seconds > 0 and 0 < cost.accuracy < 1
    assert cost.peak > 20 << 20 and cost.processor >= 0


def test_a_side_that_fails_is_no_result():
    with pytest.raises(AssertionError, match=r"1 of 2 rounds.*no such model"):
        run((sys.executable, "-c", "print([1, 0.5, 0.1]); raise SystemExit('no such model')"), 2)


def test_what_a_side_has_started_counts_and_what_is_gone_does_not():
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"1\n"
        family = _family(process.pid)
        assert len(family) == 2 and family[0] == process.pid and all(_pss(pid) > 1 << 20 for pid in family)
        process.stdin.write(b"\n")
        process.stdin.flush()
    assert all(_pss(pid) == 0 for pid in family)


def test_what_a_worker_used_still_counts_when_it_has_ended():
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    waiting = f"""import subprocess, sys
with subprocess.Popen([sys.executable, '-c', {busy!r}]) as worker: pass
print('ended', flush=True)
input()"""
    with subprocess.Popen(
        [sys.executable, "-c", waiting], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        before = _processor_seconds(process.pid)
        assert process.stdout.readline() == b"ended\n"
        assert _processor_seconds(process.pid) - before >= 0.25 and _family(process.pid) == [process.pid]
        process.stdin.write(b"\n")
        process.stdin.flush()


@pytest.mark.usefixtures("found")
def test_a_side_is_halted_between_its_rounds(tmp_path):
    path = rows("mlp", tmp_path)
    command = (sys.executable, "-u", "-m", "benchmarks.simulators_ours", "mlp", "3", "5", str(path), "1")
    with _halted(command, max(os.sched_getaffinity(0))) as side:
        for _ in range(2):
            os.waitid(os.P_PID, side.pid, os.WSTOPPED)
            os.killpg(side.pid, signal.SIGCONT)
            _next_round(side)
            os.killpg(side.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, side.pid, os.WSTOPPED)
    assert side.returncode == -signal.SIGKILL
