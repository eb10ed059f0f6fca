"""The pre-pass over bootstraps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bb_host import errors
from bb_host.compiler import Options, Stats
from bb_host.ir.program import Program
from tests.aids.passes import pass_named

BOOT = """
    program P {{module=P}}

    function program.P() -> ()

    function program.P__bootstrap() -> () {{module_phase=bootstrap}}
      {first}

    function program.A__bootstrap() -> () {{module_phase=bootstrap}}
      {second}

    function program.Pure() -> ()
      {third}
    """


def _run(program: Callable[[str], Program], first: str = "", second: str = "", third: str = "") -> Program:
    given = program(BOOT.format(first=first, second=second, third=third))
    assert pass_named("validate_bootstrap_composition").run(given, Options(), Stats()) is given
    return given


def test_sound_compositions_pass(program: Callable[[str], Program]) -> None:
    _run(program, "program.A__bootstrap()\n      program.A__bootstrap()", "program.Pure()")


def test_a_missing_bootstrap(program: Callable[[str], Program]) -> None:
    with pytest.raises(errors.BootstrapCompositionGap) as caught:
        _run(program, "program.B__bootstrap() {source=b.py:2}")
    assert caught.value.where == "b.py:2"
    assert "'B__bootstrap'" in caught.value.what


def test_a_circle(program: Callable[[str], Program]) -> None:
    with pytest.raises(errors.BootstrapCompositionCycle, match="P__bootstrap → A__bootstrap → P__bootstrap"):
        _run(program, "program.A__bootstrap()", "program.P__bootstrap()")


@pytest.mark.parametrize("place", ["first", "second", "third"])
def test_wire_ops_do_not_run_in_bootstraps(place: str, program: Callable[[str], Program]) -> None:
    lines = {"first": "program.A__bootstrap()", "second": "program.Pure()", "third": ""}
    lines[place] = "a, s = wire.Recv() {wire.wire_id=1, source=b.py:7}"
    with pytest.raises(errors.WireInBootstrap) as caught:
        _run(program, **lines)
    assert caught.value.where == "b.py:7"
