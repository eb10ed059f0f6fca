"""Proof that code decides by its transition table: without any one row, the owner's test fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bb_edge.ir.transitions import Table, TransitionError


@contextmanager
def without_row(table: Table[Any, Any], row: tuple[Any, Any]) -> Iterator[None]:
    """Takes a row out of a table while the block runs, for everything that shares the table."""
    rows, before = table._rows, dict(table._rows)
    del rows[row]
    try:
        yield
    finally:
        rows.clear()
        rows.update(before)


def assert_decides_by(table: Table[Any, Any], walk: Callable[[], object]) -> None:
    """Runs `walk` with the whole table, then once without each row, where it must fail.

    `walk` drives the owner of the table through every row by its public methods, and asserts what follows.
    """
    walk()
    for row in table.rows:
        with without_row(table, row):
            try:
                walk()
            except (AssertionError, TransitionError):
                continue
            pytest.fail(f"the test of {table.name} passes without the row {row}: nothing decides by it")
