"""Work in a process of its own: what comes back, what is raised, and what does not stay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bb_host.apart import apart

ROOT = Path(__file__).parents[2]

JOBS = """
import os
from bb_edge.ir.errors import AuthoringError, BBError

class Strange(BBError):
    def __init__(self, number):
        super().__init__(f"number {number}", "here", "take another")
        self.table = "a table"

def twice(number):
    import onnx
    return 2 * number, os.getpid()

def refuse(path):
    raise AuthoringError("it is wrong", hint="mend it", file=path, line=7)

def strange():
    raise Strange(4)

def missing():
    open("/no/such/file")

def bug(log):
    with open(log, "a") as file:
        file.write("once ")
    raise ZeroDivisionError("in the author's code")

def unsendable():
    class Inner(Exception):
        pass
    raise Inner("of a class in a function")

def die(log):
    with open(log, "a") as file:
        file.write("x")
    if os.path.getsize(log) == 1:
        os._exit(9)
    return "done here"
"""

SCRIPT = """
import os, sys
import jobs
from bb_host.apart import apart
from bb_edge.ir.errors import AuthoringError, BBError

def caught(kind, function, *arguments):
    try:
        apart(function, *arguments)
    except kind as error:
        return error
    raise AssertionError("nothing was raised")

if __name__ == "__main__":
    number, where = apart(jobs.twice, 21)
    assert number == 42 and where != os.getpid()
    assert "onnx" not in sys.modules
    error = caught(AuthoringError, jobs.refuse, "program.py")
    assert (error.where, error.line, error.hint) == ("program.py:7", 7, "mend it")
    error = caught(BBError, jobs.strange)
    assert (str(error), error.table) == ("here: number 4 (take another)", "a table")
    assert caught(OSError, jobs.missing).filename == "/no/such/file"
    error = caught(ZeroDivisionError, jobs.bug, "bug.log")
    assert open("bug.log").read() == "once " and str(error) == "in the author's code"
    assert "jobs.py" in str(error.__cause__) and "in bug" in str(error.__cause__)
    error = caught(RuntimeError, jobs.unsendable)
    assert str(error) == "Inner: of a class in a function" and "in unsendable" in str(error.__cause__)
    assert apart(jobs.die, "die.log") == "done here"
    print("all of it")
"""


def test_a_result_or_an_error_comes_back_and_the_compiler_does_not(tmp_path):
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "script.py").write_text(SCRIPT)
    ran = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "all of it\n"), ran.stderr


def test_who_has_imported_onnx_computes_it_itself():
    import onnx  # noqa: F401

    seen = []
    assert apart(lambda number: seen.append(number) or number, 3) == 3  # no lambda could be sent
    assert seen == [3]


@pytest.fixture
def with_package(tmp_path):
    """A program whose component is in a package beside it, which only `sys.path` tells of."""
    package = tmp_path / "beside" / "ownparts"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "means.py").write_text(
        "from bb_edge.components import FedAvg\n"
        "from bb_edge.registry import register\n\n"
        "@register\nclass OwnMean(FedAvg):\n    TYPE_NAME = 'own.Mean'\n"
    )
    program = tmp_path / "beside" / "sums.py"
    program.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'tests/bb_host/simulate')!r})\n"
        "from ownparts.means import OwnMean\n"
        "from conftest import ArrayDataSource, Compiler, PresenceSelector, Sums\n\n"
        "def program():\n"
        "    compiler = Compiler().bind_peer_selector('clients', PresenceSelector)\n"
        "    compiler = compiler.bind_aggregator('agg', OwnMean)\n"
        "    compiler = compiler.bind_data_source('shard', ArrayDataSource, {'batch_size': 4})\n"
        "    return Sums(3, 4), compiler\n"
    )
    return program


RUN = """
import sys
from bb_host.cli import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    assert "onnx" not in sys.modules, "the compiler stays"
    sys.exit(code)
"""


def test_the_process_that_simulates_never_imports_the_compiler(with_package, tmp_path):
    import numpy as np

    np.savez(tmp_path / "rows.npz", x=np.arange(60, dtype=np.float32).reshape(30, 2))
    (tmp_path / "run.py").write_text(RUN)
    command = [sys.executable, "run.py", "simulate", str(with_package), "--clients", "6", "--quiet"]
    command += ["--data", "shard=rows.npz", "--deal", "draw:8"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("server") == 3


def test_an_author_s_mistake_is_told_once_and_at_its_line(tmp_path):
    (tmp_path / "run.py").write_text(RUN)
    (tmp_path / "wrong.py").write_text("print('read')\n\ndef program():\n    raise ValueError('no')\n")
    command = [sys.executable, "run.py", "simulate", "wrong.py", "--clients", "6"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (1, "read\n")
    (line,) = ran.stderr.splitlines()
    assert line.endswith("wrong.py:4: error: ValueError: no")
