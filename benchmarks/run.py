"""Runs the benchmarks and prints their tables: run.py [--only NAME] [--quick] [--page].

Each in a process of its own: none finds another's heap, caches or threads.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for _folder in ("examples", "firmware_shims", "kernels", "."):
    sys.path.insert(0, str(ROOT / _folder))

# Before NumPy is loaded: on shared cores, BLAS threads measure each other.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from benchmarks.measuring import Row, machine, table  # noqa: E402
from benchmarks.page import update  # noqa: E402

NAMES = {
    "engine": "engine cost per op",
    "loops": "an iteration against the same ops unrolled",
    "inference": "inference against onnxruntime",
    "tflite": "inference on TFLite against bare LiteRT and onnxruntime",
    "training": "a training step against PyTorch",
    "memory": "memory plans, predicted RSS, install size",
    "compile": "compile time against onnxruntime's session",
    "wire": "envelopes over mosquitto against raw paho",
    "federated_round": "a federated round against bare paho",
}


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 1 where a benchmark could not run. A missed goal is shown, and no failure."""
    p = argparse.ArgumentParser(
        prog="./dev bench", description="Benchmarks; both sides of a ratio in one run."
    )
    p.add_argument("--only", action="append", choices=sorted(NAMES), help="repeatable; default: all")
    p.add_argument("--quick", action="store_true", help="few rounds: shows that it runs, not how fast")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    p.add_argument("--page", action="store_true", help="put the tables into docs/benchmarks.md")
    arguments = p.parse_args(argv)
    rows: dict[str, list[Row]] = {}
    code = 0
    for name, title in NAMES.items():
        if arguments.only and name not in arguments.only:
            continue
        print(f"\n{title}", flush=True)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
            found = alone.submit(_measure, name, arguments.quick).result()
        if isinstance(found, str):
            print(f"  not measured: {found}", file=sys.stderr)
            code = 1
            continue
        rows[name] = found
        print(table(found), flush=True)
    if arguments.json:
        result = {
            "machine": machine(),
            "rows": {name: [row.as_json() for row in several] for name, several in rows.items()},
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.page:
        update(ROOT / "docs" / "benchmarks.md", rows, machine())
    print("\n" + ", ".join(f"{key} {value}" for key, value in machine().items()))
    return code


def _measure(name: str, quick: bool) -> list[Row] | str:
    """The rows, or why there are none."""
    module = importlib.import_module(f"benchmarks.{name}")
    try:
        rows: list[Row] = module.run(**({"rounds": 2, "seconds": 2.0} if quick else {}))
    except module_errors() as error:
        return str(error)
    return rows


def module_errors() -> tuple[type[Exception], ...]:
    """What a benchmark may fail with: no broker, a process that ended, a result that is wrong."""
    from federated_digits.brokers import BrokerError
    from federated_digits.processes import ChildError

    return (BrokerError, ChildError, AssertionError)


if __name__ == "__main__":
    sys.exit(main())
