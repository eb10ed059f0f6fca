"""docs/spec-coverage.md names code and tests: whatever it names is there, and no op or pass is left out."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from bb_edge.ir import keys, opsets

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "spec-coverage.md"
CODE = re.compile(r"`([\w./-]+\.(?:py|proto|toml|svg|md))(?::((?:\"[^\"]+\")|[\w.]+))?`")
TEST = re.compile(r"`([\w./-]+\.py)::(\w+)`")
CASE = re.compile(r"`([\w./-]+\.txt)::([^`]+)`")
PLANNED = re.compile(r"planned: \S.{8,}")


@dataclass(frozen=True)
class Row:
    """One line of a table on the page."""

    section: str
    what: str
    built: str
    held: str

    def __str__(self) -> str:
        return f"{self.section}: {self.what}"


def rows(text: str = "") -> list[Row]:
    found, section = [], ""
    for line in (text or PAGE.read_text()).splitlines():
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or cells[0] in ("row", "") or set(cells[0]) <= {"-"}:
            continue
        assert len(cells) == 3, line
        found.append(Row(section, *cells))
    return found


@cache
def names_in(path: Path) -> frozenset[str]:
    """Functions, classes, methods (`Class.method`), assigned names, and string literals (`"text"`)."""
    found: set[str] = set()

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    walk(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    found.update(prefix + n.id for n in ast.walk(target) if isinstance(n, ast.Name))

    tree = ast.parse(path.read_text())
    walk(tree.body, "")
    found.update(
        f'"{n.value}"' for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    )
    return frozenset(found)


def faults(row: Row) -> list[str]:
    """What the row says that is not so."""
    found = []
    built = CODE.findall(row.built)
    if not built and not PLANNED.search(row.built):
        found.append("names neither code nor a plan")
    for name, symbol in built:
        path = ROOT / name
        if not path.is_file():
            found.append(f"no file {name}")
        elif symbol and symbol not in names_in(path):
            found.append(f"no {symbol} in {name}")
    held = TEST.findall(row.held)
    cases = CASE.findall(row.held)
    if built and not held and not cases and not PLANNED.search(row.held):
        found.append("names neither a test nor a plan for one")
    for name, test in held:
        path = ROOT / name
        if not path.is_file():
            found.append(f"no file {name}")
        elif test not in {n.rpartition(".")[2] for n in names_in(path)}:
            found.append(f"no {test} in {name}")
    for name, title in cases:
        path = ROOT / name
        if not path.is_file() or f"=== {title}\n" not in path.read_text():
            found.append(f"no case {title!r} in {name}")
    return found


def test_everything_that_the_page_names_exists() -> None:
    wrong = {str(row): found for row in rows() if (found := faults(row))}
    assert wrong == {}


def test_every_section_has_rows() -> None:
    sections = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    assert {row.section for row in rows()} == set(sections)
    assert len(rows()) > 300


def test_no_row_stands_twice() -> None:
    seen = [str(row) for row in rows()]
    assert [row for row in seen if seen.count(row) > 1] == []


def described(section: str) -> set[str]:
    return {name for row in rows() if row.section == section for name in re.findall(r"`([^`]+)`", row.what)}


@pytest.mark.parametrize("domain", [*opsets.FRAMEWORK_DOMAINS, keys.ONNX_DOMAIN])
def test_every_op_of_the_catalog_is_described(domain: str) -> None:
    table = opsets.opset(domain)
    assert table is not None
    section = f"Ops: {domain.removeprefix(keys.PREFIX + '.') or keys.ONNX_DOMAIN_ALIAS}"
    assert set(table.ops) - described(section) == set()


def test_every_pass_is_described() -> None:
    pipeline = pytest.importorskip("bb_host.passes.pipeline", exc_type=ImportError)
    assert set(pipeline.CANONICAL_PASS_NAMES) - described("Passes") == set()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("| `x` | `bb_edge/nothing.py:f` | `tests/house/test_dev.py::test_usage` |", "no file"),
        ("| `x` | `bb_edge/node.py:Nobody` | `tests/house/test_dev.py::test_usage` |", "no Nobody"),
        (
            "| `x` | `bb_edge/node.py:Node.poll` | `tests/house/test_dev.py::test_nothing` |",
            "no test_nothing",
        ),
        ("| `x` | `bb_edge/node.py:Node.poll` | – |", "neither a test"),
        ("| `x` | soon | – |", "neither code"),
    ],
)
def test_a_false_row_is_found(line: str, says: str) -> None:
    row = Row("", *(cell.strip() for cell in line.strip("|").split("|")))
    assert any(says in fault for fault in faults(row))


def test_a_true_row_passes() -> None:
    node = Row("", "`x`", "`bb_edge/node.py:Node.poll`", "`tests/house/test_dev.py::test_usage`")
    op = Row("", "`y`", '`bb_edge/ir/opsets/syscall.py:"Pulse"`', "planned: once the clock can be stopped")
    plan = Row("", "`z`", "planned: needs the outbox first", "–")
    assert faults(node) == faults(op) == faults(plan) == []
