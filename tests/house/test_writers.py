"""docs/reliability.md has every module of a device that writes to disk, with the test that cuts its power."""

from __future__ import annotations

import ast

import pytest

from tests.house.test_spec_coverage import CODE, ROOT, faults, rows

PAGE = ROOT / "docs" / "reliability.md"
PACKAGES = ("bb_edge", "kernels/bb_kernels", "firmware_shims/bb_shims")
FAKES = "firmware_shims/bb_shims/testing/"
WRITING = {"write_atomic", "write_whole", "write_text", "write_bytes", "touch", "mkdir", "makedirs"}
WRITING |= {"rename", "unlink", "rmdir", "truncate", "ftruncate", "savez"}
WITH_OS = {"replace", "remove", "write"}
"""Of these only what is called of `os`: strings are replaced, and lists removed from."""
NO_FILES = {
    "bb_edge/cli/stopping.py",
    "bb_edge/transport/mqtt.py",
    "firmware_shims/bb_shims/watchdog.py",
}
"""What they write goes to a terminal, a pipe, a device."""


def section() -> str:
    text = PAGE.read_text()
    return text.split("### Who writes\n")[1].split("\n## ")[0]


def writes(call: ast.Call) -> bool:
    """Whether the call changes a file or a folder, as far as its name and arguments tell."""
    name, of, mode = "", "", 1
    if isinstance(call.func, ast.Name):
        name = call.func.id
    elif isinstance(call.func, ast.Attribute):
        name, mode = call.func.attr, 0
        of = call.func.value.id if isinstance(call.func.value, ast.Name) else ""
    if name in WRITING:
        return True
    if name in WITH_OS:
        return of == "os"
    if name != "open" or of == "os" or len(call.args) <= mode:
        return False
    given = call.args[mode]
    if isinstance(given, ast.Constant):
        return isinstance(given.value, str) and bool({*given.value} & {*"wax+"}) and len(given.value) <= 3
    return mode == 1  # a mode that nobody knows


def writers() -> set[str]:
    found = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text())
            if any(isinstance(node, ast.Call) and writes(node) for node in ast.walk(tree)):
                found.add(path.relative_to(ROOT).as_posix())
    return {name for name in found if not name.startswith(FAKES)} - NO_FILES


def test_everything_that_the_table_names_exists() -> None:
    table = rows(section())
    assert len(table) > 6
    wrong = {str(row): found for row in table if (found := faults(row))}
    assert wrong == {}


def test_every_module_that_writes_is_there() -> None:
    named = {name for name, _ in CODE.findall(section())}
    assert len(writers()) > 8
    assert writers() <= named, "add a row to docs/reliability.md, and the test that cuts the power"
    assert all((ROOT / name).is_file() for name in named)


@pytest.mark.parametrize(
    ("source", "does"),
    [
        ("storage.write_atomic(name, data)", True),
        ("path.open('wb')", True),
        ("open(path, 'r+')", True),
        ("open(path, mode)", True),
        ("open(path)", False),
        ("open(path, 'rb')", False),
        ("archive.open(info, 'w')", False),
        ("os.replace(a, b)", True),
        ("text.replace('a', 'b')", False),
        ("write_whole(path, data)", True),
    ],
)
def test_the_check_knows_what_writes(source: str, does: bool) -> None:
    (node,) = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    assert writes(node) is does
