"""What kernels say of themselves is what they are registered as."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import bb_kernels
from bb_kernels import NEWEST_OPSET, supported_ops
from bb_kernels.registry import Kernel, find

REGISTRATIONS = [(op, since) for op, ranges in supported_ops().items() for since, _ in ranges]
SOURCES = sorted(Path(bb_kernels.__file__).parent.glob("*.py"))


def opsets(kernel: Kernel) -> str:
    """The opset versions of a registration as docstrings write them."""
    if kernel.until == NEWEST_OPSET:
        return f"opset {kernel.since}+"
    if kernel.since == kernel.until:
        return f"opset {kernel.since}"
    return f"opsets {kernel.since} to {kernel.until}"


@pytest.mark.parametrize(("op", "since"), REGISTRATIONS)
def test_a_kernel_documents_its_opsets_shapes_and_allocation(op: str, since: int) -> None:
    kernel = find(op, since)
    assert kernel is not None
    text = " ".join((inspect.getdoc(kernel.build) or "").split())
    assert re.search(rf"\b{op}\b", text), "names the operator"
    assert re.search(re.escape(opsets(kernel)) + r"(?!\d)", text), f"says {opsets(kernel)}"
    assert "→" in text, "says shapes in → shapes out"
    assert re.search(r"\brun allocates\b", text, re.IGNORECASE), "says what a run allocates"
    assert not kernel.half or "float16 via float32" in text, "says that float16 is widened"


def definitions(path: Path) -> list[tuple[str, str | None]]:
    """Names and docstrings of a file's functions, classes and methods; nested functions are left out."""
    texts: list[tuple[str, str | None]] = []

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                texts.append((prefix + node.name, ast.get_docstring(node)))
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{node.name}.")

    visit(ast.parse(path.read_text()).body, "")
    return texts


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_definition_has_a_summary_on_a_line_of_its_own(path: Path) -> None:
    """Private ones too: a kernel is a private function, and tensor code needs its shapes said."""
    lacking = []
    for name, text in definitions(path):
        first, _, rest = (text or "").partition("\n")
        if not first.endswith(".") or (rest and not rest.startswith("\n")):
            lacking.append(name)
    assert lacking == []
