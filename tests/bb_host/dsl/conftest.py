"""Helpers of the recording tests, as fixtures: one-body modules, and the notation of what they record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest

from bb_host import Graph, Module
from bb_host.ir.program import Program
from bb_host.ir.proto import from_proto, to_proto
from bb_host.ir.text import print_function
from tests.aids.handles import refuse_comparisons_of_ours

_OMITTED = ("source", "scope")


@pytest.fixture(autouse=True)
def _handles_by_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_comparisons_of_ours(monkeypatch)


@pytest.fixture
def module() -> Callable[..., Module]:
    """`module(body)` or `module(body, name=…, home=…, bootstrap=…)`."""

    def make(body: Callable[[Graph], Any], **attributes: Any) -> Module:
        bootstrap = attributes.pop("bootstrap", None)
        members = {"name": "Main", "body": lambda self, g: body(g), **attributes}
        if bootstrap is not None:
            members["bootstrap"] = lambda self, g: bootstrap(g)
        return type("Main", (Module,), members)()

    return make


@pytest.fixture
def record(module: Callable[..., Module]) -> Callable[..., Program]:
    """Records a body, holds it against onnx.checker and the proto round trip, and gives the light form."""

    def run(body: Callable[[Graph], Any] | Module, **attributes: Any) -> Program:
        made = body if isinstance(body, Module) else module(body, **attributes)
        program = made.record()
        model = to_proto(program)
        onnx.checker.check_model(model)
        assert to_proto(from_proto(model)) == model
        return program

    return run


@pytest.fixture
def notation() -> Callable[..., str]:
    """The text of a program's function without source lines and module instances."""

    def text(program: Program, index: int = 0) -> str:
        return print_function(program.functions[index], _OMITTED)

    return text
