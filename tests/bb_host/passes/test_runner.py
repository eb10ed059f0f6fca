"""What runs passes: in order, checked, shown and counted."""

from __future__ import annotations

import gc
from typing import Any

import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from bb_host import Compiler, Module
from bb_host.build import build_edge
from bb_host.errors import SeamError
from bb_host.ir.program import Op, OpList, Program
from bb_host.passes.one_pass import Pass, PassReport, Promise, Stats, summed
from bb_host.passes.runner import run_passes
from tests.aids.passes import unmet


def _adds(number: int) -> Pass[int, int]:
    def run(unit: int, times: int, stats: Stats) -> int:
        stats.count("added", number * times)
        stats.warn("empty-body", f"{number}")
        return unit + number * times

    return Pass(f"add_{number}", run)


def _unchecked(one: Pass[int, int], before: int, after: int) -> None:
    pass


def test_passes_run_in_order_and_are_shown_with_what_they_got_and_gave() -> None:
    seen: list[tuple[str, int, int]] = []
    unit, reports, warnings = run_passes(
        (_adds(1), _adds(2)), 10, 3, _unchecked, lambda *shown: seen.append(shown)
    )
    assert unit == 19
    assert seen == [("add_1", 10, 13), ("add_2", 13, 19)]
    assert [(r.name, r.counters) for r in reports] == [("add_1", {"added": 3}), ("add_2", {"added": 6})]
    assert [w.what for w in warnings] == ["1", "2"]


def test_nothing_runs_behind_a_pass_that_the_check_refuses() -> None:
    def refuses(one: Pass[int, int], before: int, after: int) -> None:
        if after > 12:
            raise SeamError(f"too large after {one.name}")

    seen: list[str] = []
    with pytest.raises(SeamError, match="too large after add_3"):
        run_passes((_adds(2), _adds(3), _adds(4)), 10, 1, refuses, lambda name, *_: seen.append(name))
    assert seen == ["add_2"]


def test_what_a_pass_needs_is_given_before_it() -> None:
    gives: Pass[int, int] = Pass("gives", _adds(1).run, gives=(Promise.TYPED,))
    needs: Pass[int, int] = Pass("needs", _adds(1).run, needs=(Promise.TYPED,))
    assert unmet((gives, needs)) == unmet((needs,), (Promise.TYPED,)) == {}
    assert unmet((needs, gives)) == {"needs": {Promise.TYPED}}


def test_reports_of_one_pass_are_summed() -> None:
    reports = (
        PassReport("a", 1, 10, {"n": 1}),
        PassReport("b", 5, 5),
        PassReport("a", 2, 20, {"n": 2, "m": 4}),
    )
    assert summed(reports) == (PassReport("a", 3, 30, {"n": 3, "m": 4}), PassReport("b", 5, 5))


class Two(Module):
    home = "Server"

    def body(self, g: Any) -> None:
        x = g.input("x", "F32", [2])
        g.app_emit("said", g.net_out("hello", g.input("Client", "PeerIdVec"), x + x))


def test_what_passes_made_on_the_way_goes_without_the_collector() -> None:
    """Records refer to each other in no circle, so a large program does not lie there once per pass."""
    recorded = Two().record()
    gc.collect()
    gc.disable()
    try:
        before = {id(kept) for kept in gc.get_objects()}
        compiled = Compiler().compile_program(recorded)
        made = [kept for kept in gc.get_objects() if type(kept) in (Op, OpList) and id(kept) not in before]
    finally:
        gc.enable()
    held = {id(kept) for function in compiled.functions for kept in (function.ops, *function.ops)}
    assert [kept for kept in made if id(kept) not in held] == []


def test_a_build_reports_every_pass_once_and_shows_it_once_per_target() -> None:
    seen: list[str] = []
    build = build_edge(Two(), Compiler(), observe=lambda name, before, after: seen.append(name))
    names = [report.name for report in build.passes]
    assert len(set(names)) == len(names)
    assert dict.fromkeys(seen) == dict.fromkeys(names)
    assert len(build.artifacts) == seen.count("strip") == 2
    assert seen.count("collapse") == seen.count("validate") == 1
    assert isinstance(build.program, Program)
