"""Pages that tools write say what the sources say."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from bb_edge.ir import opsets

ROOT = Path(__file__).resolve().parents[2]


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_ops_is_up_to_date(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # the tool puts the checkout in front
    tool = _tool("generate_ops_page")
    assert tool.PAGE.read_text() == tool.page(), "run tools/generate_ops_page.py"


def test_drawings_of_transition_tables_are_up_to_date(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    tool = _tool("generate_drawings")
    for page in tool.pages():
        assert page.read_text() == tool.drawn(page.read_text()), f"run tools/generate_drawings.py: {page}"


def test_every_transition_table_is_drawn(monkeypatch):
    """Tables of the edge are constants of a module; each is shown by one page."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    tool = _tool("generate_drawings")
    shown = [name for page in tool.pages() for name in tool.tables(page.read_text())]
    defined = [
        f"{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}:{name}"
        for path in sorted((ROOT / "bb_edge").rglob("*.py"))
        for name in re.findall(r"^([A-Z_]+)(?:: [^=]+)? = Table\(", path.read_text(), re.MULTILINE)
    ]
    assert sorted(shown) == sorted(defined)


def test_every_op_of_the_catalog_has_a_row():
    text = (ROOT / "docs" / "ops.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    tables = [opsets.opset(domain) for domain in ("", *opsets.FRAMEWORK_DOMAINS)]
    assert len(rows) == sum(len(t.ops) for t in tables if t is not None)
