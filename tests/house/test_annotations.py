"""What type checkers of every supported NumPy must read alike."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bb_edge", "bb_host", "kernels/bb_kernels", "firmware_shims/bb_shims")
FILES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if not path.name.endswith("_pb2.py")
)
GENERIC = ("np.ndarray", "np.dtype")


def bare_generics(source: str) -> list[str]:
    """`line: np.ndarray` for each annotation that leaves NumPy's type arguments out."""
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for annotation in annotations(ast.parse(source))
        for node in without_arguments(annotation)
    ]


def annotations(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            yield node.returns
        elif isinstance(node, ast.ClassDef):
            yield from node.bases


def without_arguments(annotation: ast.expr) -> Iterator[ast.AST]:
    subscripted = {id(node.value) for node in ast.walk(annotation) if isinstance(node, ast.Subscript)}
    for node in ast.walk(annotation):
        if id(node) not in subscripted and ast.unparse(node) in GENERIC:
            yield node


def test_arrays_are_annotated_with_their_type_arguments() -> None:
    """NumPy's last stubs for Python 3.10 have no defaults for them: mypy refuses there what passes later."""
    found = {str(path.relative_to(ROOT)): bare_generics(path.read_text()) for path in FILES}
    assert {name: places for name, places in found.items() if places} == {}, (
        "write `Array` (bb_edge.ir.tensors, bb_kernels.spec) or np.dtype[Any]"
    )


@pytest.mark.parametrize(
    "source",
    [
        "def f(x: np.ndarray | None): ...",
        "def f() -> list[np.ndarray]: ...",
        "x: np.dtype",
        "class A(np.ndarray): ...",
    ],
)
def test_a_bare_annotation_is_seen(source: str) -> None:
    assert len(bare_generics(source)) == 1


def test_other_uses_are_left_alone() -> None:
    assert bare_generics("x: np.dtype[Any] = f(np.ndarray)\nassert isinstance(x, np.ndarray)") == []
