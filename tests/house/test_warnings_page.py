"""docs/reference/warnings.md names every code and its meaning, and each of its programs gives its warning."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the page's programs are compiled, which needs the host extra")

import bb_edge.components
import bb_edge.roles
import bb_host
import bb_host.learn
from bb_host.diagnostics import CODES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "warnings.md").read_text()
SECTION = re.compile(r"^### `([a-z-]+)`\n\n(.*?)(?=^##|\Z)", re.M | re.S)
SECTIONS = {code: text for code, text in SECTION.findall(PAGE)}
PROGRAMS = {
    code: program.group(1)
    for code, text in SECTIONS.items()
    if (program := re.search(r"```python\n(.*?)```", text, re.S)) is not None
}
WITHOUT_PROGRAM = {
    "component",
    "parameter-without-gradient",
    "constant-not-learned",
    "frozen-statistics",
    "other-codec-accepted",
    "probabilities-as-output",
    "shared-parameter",
    "too-few-rows",
    "weights-in-loop",
}
"""They depend on the model, on code of others, or on another artifact."""


def test_every_code_has_a_section_and_no_other():
    assert sorted(SECTIONS) == sorted(CODES)
    assert set(CODES) - set(PROGRAMS) == WITHOUT_PROGRAM


@pytest.mark.parametrize("code", sorted(PROGRAMS))
def test_the_programs_of_the_page_give_their_warnings(code):
    names = {"np": np}
    for package in (bb_edge.components, bb_edge.roles, bb_host, bb_host.learn):
        names.update((name, getattr(package, name)) for name in package.__all__)
    exec(compile(PROGRAMS[code], f"{code}.py", "exec"), names)
    compiler = names.get("compiler", bb_host.Compiler())
    assert [w.code for w in compiler.run(names["Example"]()).warnings] == [code]
