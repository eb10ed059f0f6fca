"""Wrong programs as users write them: each computes what it says, is refused at its line, or is warned of.

They are compiled, so the host's packages have to be there; boards without them run the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the host needs the onnx package, which is not installed here")

from bb_edge import open_model
from bb_host import Compiler, Graph, Module
from bb_host.build import compile_edge
from bb_host.ir.program import Program
from tests.aids.handles import refuse_comparisons_of_ours

Body = Callable[[Graph], Any]


@pytest.fixture(autouse=True)
def _handles_by_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_comparisons_of_ours(monkeypatch)


@pytest.fixture
def module() -> Callable[..., Module]:
    """`module(body)`, or `module(body, name=…, home=…, bootstrap=…, slot=…)`: a class with that body."""

    def make(body: Body, **attributes: Any) -> Module:
        bootstrap = attributes.pop("bootstrap", None)
        members = {"name": "Main", "body": lambda self, g: body(g), **attributes}
        if bootstrap is not None:
            members["bootstrap"] = lambda self, g: bootstrap(g)
        return type("Main", (Module,), members)()

    return make


@pytest.fixture
def record(module: Callable[..., Module]) -> Callable[..., Program]:
    """Records a body: the light form."""
    return lambda body, **attributes: module(body, **attributes).record()


@pytest.fixture
def compute(module: Callable[..., Module]) -> Callable[..., dict[str, Any]]:
    """What a device computes of a body: outputs by name, alike in the portable and in the stripped form."""

    def run(body: Body, inputs: Mapping[str, Any]) -> dict[str, Any]:
        portable = Compiler().compile(module(body))
        build = compile_edge(module(body))
        (artifact,) = build.artifacts
        found = [open_model(data).run(inputs) for data in (portable.SerializeToString(), artifact.data)]
        assert list(found[0]) == list(found[1])
        for name, value in found[0].items():
            np.testing.assert_array_equal(value, found[1][name], err_msg=name)
        return found[1]

    return run


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling a file puts its folder on the path: a `copy.py` of one test is not that of the next."""
    monkeypatch.setattr(sys, "path", list(sys.path))
