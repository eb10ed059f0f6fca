"""Passes over programs in the text notation. Every run checks that a pass is pure and idempotent."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from program_text import parse

from bb_host.compiler import Compiler, Options, Stats
from bb_host.ir.program import Program
from bb_host.ir.proto import to_bytes
from bb_host.passes.pipeline import CANONICAL_PASS_NAMES
from tests.aids.passes import pass_named


def _program(text: str | Program) -> Program:
    return text if isinstance(text, Program) else parse(textwrap.dedent(text))


@pytest.fixture
def program() -> Callable[[str], Program]:
    """Parses an indented text."""
    return _program


@pytest.fixture
def run_pass() -> Callable[..., Program]:
    """`run_pass(name, text, stats=…, **options)`: one pass alone; pure and idempotent, or the test fails."""

    def run(name: str, text: str | Program, stats: Stats | None = None, **options: Any) -> Program:
        given = _program(text)
        before = to_bytes(given)
        chosen = Options(**{"module": given.name, **options})
        once = pass_named(name).run(given, chosen, stats if stats is not None else Stats())
        assert to_bytes(given) == before, "the pass changed its input"
        again = pass_named(name).run(once, chosen, Stats())
        assert to_bytes(again) == to_bytes(once), "the pass is not idempotent"
        return once

    return run


@pytest.fixture
def run_until() -> Callable[..., Program]:
    """`run_until(name, text, **options)`: the canonical passes up to and with `name`."""

    def run(name: str, text: str | Program, **options: Any) -> Program:
        done = _program(text)
        chosen = Options(**{"module": done.name, **options})
        for one in CANONICAL_PASS_NAMES[: CANONICAL_PASS_NAMES.index(name) + 1]:
            done = pass_named(one).run(done, chosen, Stats())
        return done

    return run


@pytest.fixture
def compiled() -> Callable[..., Program]:
    """`compiled(text, compiler)`: the whole way."""

    def run(text: str | Program, compiler: Compiler | None = None) -> Program:
        return (compiler or Compiler()).compile_program(_program(text))

    return run
