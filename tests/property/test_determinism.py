"""The same program gives the same bytes in every process, whatever its hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import hashlib, importlib.util, sys
spec = importlib.util.spec_from_file_location("programs", sys.argv[1])
programs = importlib.util.module_from_spec(spec)
sys.modules["programs"] = programs
spec.loader.exec_module(programs)
from bb_host import Compiler
from bb_host.build import compile_edge
from bb_host.ir.proto import to_bytes
from federated_digits.federation import program

def digest(data):
    return hashlib.sha256(data).hexdigest()

module, compiler = program(local_steps=2)
print("recorded", digest(to_bytes(module.record())))
build = compile_edge(module, compiler)
for name, data in sorted(build.files.items()):
    print(name, digest(data))
for seed in range(12):
    recorded = programs.RandomModule(seed, 24).record()
    print(seed, digest(to_bytes(recorded)), digest(to_bytes(Compiler().compile_program(recorded))))
"""


def _digests(hash_seed: str) -> str:
    folders = (ROOT, ROOT / "examples", ROOT / "kernels", ROOT / "firmware_shims")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(Path(__file__).with_name("conftest.py"))],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hash_seeds_do_not_show():
    first = _digests("1")
    assert len(first.splitlines()) == 1 + 5 + 12
    assert _digests("2") == first
    assert _digests("4242") == first
