"""What is written on stdout and stderr: JSON that every parser takes, and lines with a date."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pytest

from bb_edge.cli.render import Output, plain, step_record
from bb_edge.engine import steps
from bb_edge.ir.values import Composite
from bb_edge.roles import ComponentError, ContributionRefused

NAN, INF = float("nan"), float("inf")


def strict(text: str) -> object:
    """As RFC 8259 has it: no NaN, no Infinity."""

    def refuse(word: str) -> object:
        raise AssertionError(f"{word} in {text}")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (NAN, "NaN"),
        (-INF, "-Infinity"),
        (np.float32(INF), "Infinity"),
        (np.array(NAN), "NaN"),
        (np.array([[1.0, NAN], [INF, -INF]]), [[1.0, "NaN"], ["Infinity", "-Infinity"]]),
        (Composite(((1, np.array([NAN])), (2, (NAN, 1)))), [["NaN"], ["NaN", 1]]),
        (np.float64(1.5), 1.5),
        (True, True),
    ],
)
def test_numbers_that_json_has_no_word_for_are_texts(value, expected):
    out = io.StringIO()
    Output(False, "info", out, io.StringIO()).record({"value": plain(value)})
    found = strict(out.getvalue())
    assert found == {"value": expected}
    if isinstance(expected, str):
        assert np.array_equal(float(expected), float(np.asarray(value)), equal_nan=True)


def test_a_log_line_has_a_date_and_json_logs_are_strict():
    err = io.StringIO()
    Output(False, "info", io.StringIO(), err).log("info", "hello", loss=NAN)
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d info    hello", err.getvalue())
    err = io.StringIO()
    Output(True, "info", io.StringIO(), err).log("info", "hello", loss=NAN)
    assert strict(err.getvalue())["loss"] == "NaN"  # type: ignore[index]


def test_a_failure_is_told_with_its_origin_once():
    origin = "slot 'cam' (acme.Camera.next_batch)"
    plain_one = steps.OpFailed("T", 1, "op", OSError("camera\nunplugged"), origin)
    assert step_record(plain_one)["error"] == f"{origin}: OSError: camera unplugged"
    typed = ComponentError("no frame", "slot 'cam'", "plug it in")
    assert steps.OpFailed("T", 1, "op", typed, origin).text == f"{origin}: no frame (plug it in)"
    assert steps.OpFailed("T", 1, "op", KeyError("x")).text == "KeyError: 'x'"
    assert "source" not in step_record(plain_one)
    assert step_record(plain_one)["error_class"] == "OSError"
    assert step_record(steps.OpFailed("T", 1, "op", typed, "", "a.py:3"))["source"] == "a.py:3"


def test_what_peers_say_cannot_write_lines_of_a_log_or_steer_a_terminal():
    err = io.StringIO()
    said = "gone\n2026-01-01 00:00:00 info    all is well\x1b[2J\u202e\udcff ü"
    Output(False, "info", io.StringIO(), err).log("warning", said, why="a\rb")
    (line, rest) = err.getvalue().split("\n")
    assert rest == "" and line.endswith(
        r"gone\n2026-01-01 00:00:00 info    all is well\x1b[2J\u202e\udcff ü why=a\rb"
    )


class TooFar(ComponentError):
    """A refusal of a component's own."""


def test_the_class_of_what_a_component_raised_is_told_also_where_a_refusal_of_ours_holds_it():
    refusal = ContributionRefused("it does not count: too far")
    refusal.__cause__ = TooFar("too far")
    assert step_record(steps.OpFailed("T", 1, "op", refusal))["error_class"] == "TooFar"
    assert step_record(steps.OpFailed("T", 1, "op", TooFar("x")))["error_class"] == "TooFar"
    assert step_record(steps.OpFailed("T", 1, "op", ContributionRefused("x")))["error_class"] == (
        "ContributionRefused"
    )
