"""Every op of the framework's own opsets has a test beside this file: one that runs it in a real engine.

Tests say which ops they are about with `@pytest.mark.covers(domain, op, …)`; domains without their prefix.
"""

from __future__ import annotations

import ast
from pathlib import Path

from bb_edge.ir import keys
from bb_edge.ir.opsets import FRAMEWORK_DOMAINS, OpKind, opset


def rows() -> set[tuple[str, str]]:
    """(domain, op) of every row that an engine must serve; ONNX's are the backends'."""
    tables = [opset(domain) for domain in FRAMEWORK_DOMAINS]
    return {(table.domain, name) for table in tables if table is not None for name in table.ops}


def covered() -> set[tuple[str, str]]:
    """What the tests beside this file say they are about."""
    found = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.covers":
                    domain, *ops = (ast.literal_eval(argument) for argument in mark.args)
                    found |= {(f"{keys.PREFIX}.{domain}", op) for op in ops}
    return found


def test_every_op_of_the_catalog_has_a_test():
    assert rows() - covered() == set()


def test_no_test_is_about_an_op_that_is_not_there():
    assert covered() - rows() == set()


def test_entries_are_written_from_outside():
    for domain, name in rows():
        table = opset(domain)
        assert table is not None
        row = table.ops[name]
        if row.kind is not OpKind.PLAIN:
            assert not row.inputs, f"{name} starts by itself"
