"""What no committed file may hold: names out of place, package indexes, paths of a machine."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bb_host.ir.program import Function, Op, Program, Subgraph

# Put together from parts, so that this file passes its own checks.
DOMAIN = ".".join(["ai", "bytesandbrains"])
INDEX_HOSTS = re.compile("|".join([r"pypi\.(?:org|python|io)", "python" + "hosted", r"piwheels\.org"]))
MACHINE_PATHS = re.compile(
    r"(?<![\w.:/}>-])/(?:" + "|".join(["work", "root", "tmp", r"home/\w+"]) + r")/[\w.]"
)


def literals(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every string or bytes literal that isn't a docstring or a bare string statement."""
    tree = ast.parse(source)
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in bare:
            if isinstance(node.value, str):
                yield node.lineno, node.value
            elif isinstance(node.value, bytes):
                yield node.lineno, node.value.decode("latin-1")


def test_literals_are_found_where_they_hide() -> None:
    source = '"""x.y in a docstring"""\na = "x.y"\nb = f"x.y.{a}"\nc = b"x.y"\ndef f(d="x.y"):\n    "x.y"\n'
    assert sorted(line for line, text in literals(source) if "x.y" in text) == [2, 3, 4, 5]


def test_domain_names_live_in_the_ir_only(root: Path, tracked_files: list[Path]) -> None:
    """Architecture, rule 5. Tests may spell a name out: they are the second opinion."""
    found = []
    for path in tracked_files:
        place = path.relative_to(root)
        if path.suffix != ".py" or place.parts[0] == "tests" or place.parts[:2] == ("bb_edge", "ir"):
            continue
        found += [f"{place}:{line}: {text!r}" for line, text in literals(path.read_text()) if DOMAIN in text]
    assert found == []


SPELLERS = (
    *("ir/proto/reader.py", "ir/proto/writer.py", "ir/spelling.py"),
    *("ir/text/parser.py", "ir/text/printer.py"),
)
"""The files of bb_host in which facts are texts."""
NO_METADATA = ("HOIST_PREFIX", "ROLE_PREFIX", "SEND_SENTINEL_PREFIX", "DEST_SUFFIX_ATTR_PREFIX")


def metadata_keys(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of every metadata key that a source takes from `keys`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "keys":
            name = node.attr
            if name.endswith(("_KEY", "_PREFIX")) and name not in NO_METADATA:
                yield node.lineno, name


def test_facts_are_texts_where_files_are_read_and_written_and_nowhere_else(root: Path) -> None:
    """Between passes facts are typed (docs/decisions.md, "What ops say is typed")."""
    found = {
        path.relative_to(root / "bb_host").as_posix(): [
            f"{path.relative_to(root)}:{line}: keys.{name}" for line, name in metadata_keys(text)
        ]
        for path in (root / "bb_host").rglob("*.py")
        if "keys." in (text := path.read_text())
    }
    assert [use for name, uses in found.items() if name not in SPELLERS for use in uses] == []
    assert len(found["ir/spelling.py"]) > 50, "they are found where they are"
    for record in (Op, Function, Program, Subgraph):
        assert "meta" not in {field.name for field in dataclasses.fields(record)}


@pytest.mark.parametrize(
    "pattern", [INDEX_HOSTS, MACHINE_PATHS], ids=["hosts of package indexes", "paths of a machine"]
)
def test_no_file_knows_where_it_was_written(
    root: Path, tracked_files: list[Path], pattern: re.Pattern[str]
) -> None:
    found = []
    for path in tracked_files:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # compressed data and the like
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()[:100]}")
    assert found == []


@pytest.mark.parametrize(
    ("line", "caught"),
    [
        ("cd /{}/main".format("work"), True),
        ("'/{}/x'".format("tmp"), True),
        ("/{}/somebody/x".format("home"), True),
        ("https://example.org/{}/x".format("home/somebody"), False),
        ("/sys/class/{}/x".format("work"), False),
        ("path = tmp_path / 'tmp/x'", False),
    ],
)
def test_machine_paths_are_told_from_others(line: str, caught: bool) -> None:
    assert bool(MACHINE_PATHS.search(line)) is caught


def test_files_stay_readable(root: Path, package_folders: dict[str, Path]) -> None:
    """Some four hundred lines are what one reads in one go; tables and generated code aside."""
    long = {}
    for folder in package_folders.values():
        for path in folder.rglob("*.py"):
            lines = len(path.read_text().splitlines())
            if lines > 500 and not path.stem.endswith("_pb2"):
                long[str(path.relative_to(root))] = lines
    assert long == {}
