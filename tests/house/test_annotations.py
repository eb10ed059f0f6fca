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


# --- collaborators ------------------------------------------------------------------------------------

INSIDE = sorted(
    [
        *(ROOT / "bb_edge" / "engine").rglob("*.py"),
        *(ROOT / "bb_edge" / "syscalls").rglob("*.py"),
        *(ROOT / "bb_edge" / f"{name}.py" for name in ("installer", "node", "renewal", "wiring")),
    ]
)


def untyped_collaborators(source: str) -> list[str]:
    """`line: what` for each object that a class is given, holds or shows, or a ctx, whose type is `Any`."""
    places = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    places += [f"{a.lineno}: {ast.unparse(a)}" for a in _untyped(method)]
        elif isinstance(node, ast.FunctionDef):
            given = [a for a in node.args.args if a.arg == "ctx" and _is_any(a.annotation)]
            places += [f"{a.lineno}: {ast.unparse(a)}" for a in given]
    return places


def _untyped(method: ast.FunctionDef) -> Iterator[ast.expr | ast.arg]:
    if method.name == "__init__":
        given = (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs)
        yield from (a for a in given if _is_any(a.annotation))
        for node in ast.walk(method):
            if isinstance(node, ast.AnnAssign) and _is_any(node.annotation):
                yield node.target
    shown = any(ast.unparse(decorator) == "property" for decorator in method.decorator_list)
    if shown and _is_any(method.returns) and method.returns is not None and "state" not in method.name:
        yield method.returns  # a state is plain data


def _is_any(annotation: ast.expr | None) -> bool:
    return annotation is not None and ast.unparse(annotation) == "Any"


def test_no_collaborator_is_typed_any() -> None:
    """Where the type is known, mypy finds what a part asks of another one; a lower floor takes a Protocol."""
    found = {str(path.relative_to(ROOT)): untyped_collaborators(path.read_text()) for path in INSIDE}
    assert {name: places for name, places in found.items() if places} == {}


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def __init__(self, engine: Any): ...",
        "class A:\n    def __init__(self):\n        self.control: Any = None",
        "class A:\n    @property\n    def peers(self) -> Any: ...",
        "def run(ctx: Any, x: object): ...",
    ],
)
def test_an_untyped_collaborator_is_found(source: str) -> None:
    assert untyped_collaborators(source) != []
