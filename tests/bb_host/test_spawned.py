"""Spawned processes without a tracker: what they are given, and that nothing else starts or stays."""

from __future__ import annotations

import subprocess
import sys

WORK = """
import os
import sys
from multiprocessing import resource_tracker, shared_memory

def told(connection, text):
    connection.send((text, os.getppid(), sys.argv[1:]))
    connection.recv()
    sys.exit(7)

def shares(connection):
    assert resource_tracker._resource_tracker._fd is None
    block = shared_memory.SharedMemory(create=True, size=8)
    assert resource_tracker._resource_tracker._fd is not None
    block.close()
    block.unlink()
    connection.send("shared")
"""

SCRIPT = """
import os
from multiprocessing import Pipe
from pathlib import Path

import work
from bb_host.apart import apart
from bb_host.spawned import Spawned

def children():
    stats = [p.read_text().rpartition(")")[2].split() for p in Path("/proc").glob("[0-9]*/stat")]
    return sum(int(stat[1]) == os.getpid() for stat in stats)

if os.environ.get("DIES"):  # before it has read what it is given
    os._exit(3)

if __name__ == "__main__":
    before = len(os.listdir("/proc/self/fd"))
    ours, theirs = Pipe()
    process = Spawned(target=work.told, args=(theirs, "of mine"), name="told")
    process.start()
    assert ours.recv() == ("of mine", os.getpid(), ["an", "argument"])
    assert children() == 1, "the process alone"
    assert process.is_alive()
    process.join(0.0)
    assert process.exitcode is None
    ours.send(None)
    process.join()
    assert process.exitcode == 7
    process.close()

    process = Spawned(target=work.shares, args=(theirs,))
    process.start()
    assert ours.recv() == "shared"
    process.join()
    assert process.exitcode == 0
    process.close()

    try:
        Spawned(target=lambda: None).start()
    except Exception as error:
        assert "lambda" in str(error), error
    else:
        raise AssertionError("no lambda can be sent")
    assert apart(abs, -3) == 3

    os.environ["DIES"] = "1"
    process = Spawned(target=work.told, args=(theirs, "more than a pipe holds" * 100_000))
    process.start()
    process.join()
    assert process.exitcode == 3
    process.close()
    ours.close()
    theirs.close()
    assert len(os.listdir("/proc/self/fd")) == before and children() == 0
    print("all of it")
"""


def test_it_is_the_only_process_that_starts_and_is_as_python_spawns_them(tmp_path):
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", "an", "argument"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "all of it\n"), ran.stderr
