"""Editors and type checkers know the calls that are made of tables: mypy takes a right program and refuses a
wrong one, line by line.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bb_edge.ir import keys, opsets
from bb_host import Graph
from bb_host.dsl import call_tables
from bb_host.dsl.names import snake

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("typed_calls.py")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mypy_takes_what_the_tables_have_and_refuses_the_rest() -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = dict.fromkeys(re.findall(rf"{PROGRAM.name}:(\d+): error: .*\[([\w-]+)\]", done.stdout))
    lines = PROGRAM.read_text().splitlines()
    marked = [(str(number), re.search(r"# error: ([\w-]+)$", line)) for number, line in enumerate(lines, 1)]
    assert list(found) == [(number, mark[1]) for number, mark in marked if mark], done.stdout + done.stderr


def test_each_natural_name_is_a_call_of_a_graph_and_hides_none() -> None:
    own = {name for cls in Graph.__mro__ if cls.__name__ != "_Named" for name in vars(cls)}
    assert own.isdisjoint(call_tables.NATURAL_NAMES)
    assert all(callable(getattr(Graph, name)) for name in call_tables.NATURAL_NAMES)


def test_each_operator_of_the_table_is_one_of_the_catalog() -> None:
    table = opsets.opset(keys.ONNX_DOMAIN)
    assert table is not None
    spelt = {call.partition("(")[0] for call in call_tables.OPERATORS.values()}
    assert spelt - set(table.ops) == {"ScatterElements"}
    assert {snake(op) for op in spelt} - set(call_tables.OPERATORS) == {"mat_mul", "scatter_elements"}
