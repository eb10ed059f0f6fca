"""One op is recorded within so many calls and files that a reader can follow it."""

from __future__ import annotations

import pytest

from benchmarks.walk import RECORDED, Call, recording

MOST_CALLS = 15
MOST_FILES = {"x + x": 5}
"""Four for all others; an operator of Python's begins in the file of values."""


@pytest.mark.parametrize("call", RECORDED)
def test_recording_an_op_takes_few_calls_and_files(call: str) -> None:
    found = recording(call)
    assert len(found.calls) <= MOST_CALLS, found
    assert found.files <= MOST_FILES.get(call, 4), found
    assert Call("bb_host/dsl/calls.py", "record_call") in found.calls
