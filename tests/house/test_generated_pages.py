"""Pages that tools write say what the sources say."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from datetime import date
from pathlib import Path
from types import ModuleType

from bb_edge import components
from bb_edge.ir import opsets
from bb_host import Graph

ROOT = Path(__file__).resolve().parents[2]
ENGINE_PAGE = ROOT / "docs/design/engine.md"


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


def test_the_page_of_calls_is_up_to_date_and_has_what_an_author_can_call(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    tool = _tool("generate_calls_page")
    page = tool.PAGE.read_text()
    assert page == tool.page(), "run tools/generate_calls_page.py"
    internal = {
        "add",
        "after_values",
        "by_element",
        "copy",
        "describe",
        "error",
        "finish",
        "fresh",
        "function",
    }
    internal |= {"gated", "lent", "onnx_op", "order", "own", "port_name", "put", "received", "subgraph"}
    internal |= {"tensor_constant", "unpacking", "warn", "warn_at"}
    assert {name for name in dir(Graph) if not name.startswith("_") and f"`g.{name}(" not in page} == internal


def test_the_page_of_python_calls_is_up_to_date(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    tool = _tool("generate_python_page")
    page = tool.PAGE.read_text()
    assert page == tool.page(), "run tools/generate_python_page.py"
    assert "`bb_host.build.build_edge(source" in page
    assert "`bb_edge.install(peer_id" in page


def test_the_page_of_errors_is_up_to_date_and_says_what_each_means(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    tool = _tool("generate_errors_page")
    assert tool.PAGE.read_text() == tool.page(), "run tools/generate_errors_page.py"
    known = tool.errors()
    assert len(known) > 200
    assert [name for name, error in known.items() if not error.text] == []


def test_the_page_of_commands_is_up_to_date(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    tool = _tool("generate_commands_page")
    assert tool.PAGE.read_text() == tool.page(), "run tools/generate_commands_page.py"


def test_the_page_of_shipped_components_is_up_to_date_and_has_all(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    tool = _tool("generate_components_page")
    assert tool.PAGE.read_text() == tool.page(), "run tools/generate_components_page.py"
    assert {kind.__name__ for _, kind in tool.shipped()} >= {*components.__all__}


def test_the_page_of_gradients_is_up_to_date(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    tool = _tool("generate_gradients_page")
    assert tool.PAGE.read_text() == tool.page(), "run tools/generate_gradients_page.py"


def test_the_page_of_operators_is_up_to_date(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    tool = _tool("generate_operators_page")
    assert tool.PAGE.read_text() == tool.page(), "run tools/generate_operators_page.py"


def test_no_source_cites_a_document_that_is_not_there() -> None:
    cited = re.compile(r"\b\w+\.txt part \d|docs/[\w/-]+\.md")
    for folder in ("bb_edge", "bb_host", "kernels", "firmware_shims", "examples", "benchmarks", "tools"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for named in cited.findall(path.read_text(encoding="utf-8")):
                assert named.startswith("docs/") and (ROOT / named).exists(), f"{path}: {named}"


def test_the_stubs_of_calls_say_what_the_tables_say() -> None:
    tool = _tool("generate_stubs")
    assert tool.STUBS.read_text() == tool.stubs(), "run tools/generate_stubs.py"


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


def test_what_the_engines_page_names_is_in_the_sources():
    page = re.sub(r"<!-- (\w+).*?<!-- end of \1 -->", "", ENGINE_PAGE.read_text(), flags=re.DOTALL)
    files = re.findall(r"`([\w/]+/[\w/]*(?:\.py)?)`", page)
    members = re.findall(r"`([A-Z]\w+)\.(\w+)(?:\([^`]*)?`", page)
    assert len(files) > 5 and len(members) > 4
    assert [
        name for name in files if not any((ROOT / at / name).exists() for at in ("", "bb_edge/engine"))
    ] == []
    held = _members_of_classes()
    assert [f"{name}.{member}" for name, member in members if member not in held.get(name, ())] == []


def _members_of_classes() -> dict[str, set[str]]:
    """Class -> names that its body or its `__init__` defines, for all classes of the edge."""
    held: dict[str, set[str]] = {}
    for path in (ROOT / "bb_edge").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                names = held.setdefault(node.name, set())
                for inner in ast.walk(node):
                    if isinstance(inner, ast.FunctionDef):
                        names.add(inner.name)
                    elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                        names.add(inner.target.id)
                    elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                        names.add(inner.attr)
    return held


def test_every_op_of_the_catalog_has_a_row():
    text = (ROOT / "docs" / "reference" / "ops.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    tables = [opsets.opset(domain) for domain in ("", *opsets.FRAMEWORK_DOMAINS)]
    assert len(rows) == sum(len(t.ops) for t in tables if t is not None)


def test_every_page_has_its_place_on_the_site() -> None:
    docs = ROOT / "docs"
    files = sorted(docs.rglob("*.md"))
    listed = {
        (file.parent / line).relative_to(docs).as_posix()
        for file in files
        for block in re.findall(r"```{toctree}\n(.*?)```", file.read_text(encoding="utf-8"), re.DOTALL)
        for line in block.split()
    }
    pages = {path.relative_to(docs).with_suffix("").as_posix() for path in files}
    assert pages - listed == {"index"} | {page for page in pages if page.startswith("decisions/")}


def test_the_index_of_decisions_is_up_to_date_and_has_the_day_of_each(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    tool = _tool("generate_decisions_page")
    assert tool.PAGE.read_text() == tool.page(), "run tools/generate_decisions_page.py"
    for day, title, name in tool.records():
        date.fromisoformat(day)
        assert f"*{day}*" in (tool.RECORDS / name).read_text(), f"{name} says its day below its title"
        assert len(title) < 100
