"""Arrays that a host gives."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.ir.host_arrays import ArrayMisfitError, is_masked, numbers_as


def test_a_masked_array_is_told_from_others() -> None:
    assert is_masked(np.ma.masked_array([1.0], [True]))
    assert not is_masked(np.ones(1)) and not is_masked(None)


def test_to_look_at_a_subclass_of_arrays_loads_nothing() -> None:
    script = """
import sys
import numpy as np
from bb_edge.ir.host_arrays import host_array, is_masked
class Named(np.ndarray): pass
value = np.ones(2, np.float32).view(Named)
assert not is_masked(value) and host_array(value, None, None).size == 2
assert "numpy.ma" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


FITTING = [
    (3, "int64", 3),
    (3.0, "int64", 3),
    (True, "int64", 1),
    (np.int32(3), "int64", 3),
    (-(2.0**63), "int64", -(2**63)),
    (2**64 - 1, "uint64", 2**64 - 1),
    ([True, 255], "uint8", [1, 255]),
    (1.1, "float32", np.float32(1.1)),
    (16777217, "float32", np.float32(16777216)),
    (10**30, "float32", np.float32(1e30)),
    (np.float64(1.5), "float32", np.float32(1.5)),
    (float("inf"), "float32", np.float32("inf")),
    (65519.0, "float16", np.float16(65504)),
    (1e-60, "float32", np.float32(0)),
    ([0, 1.0, True], "bool", [False, True, True]),
    ([], "int64", []),
    ([[], []], "bool", [[], []]),
]


@pytest.mark.parametrize(("value", "dtype", "expected"), FITTING)
def test_numbers_become_the_dtype(value, dtype, expected) -> None:
    found = numbers_as(value, np.dtype(dtype))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.asarray(expected, dtype))


MISFITS = [
    (3.5, "int64", "3.5"),
    (-0.9, "int64", "-0.9"),
    (float("nan"), "int64", "nan"),
    (float("inf"), "int32", "inf"),
    (2.0**63, "int64", "9.223372036854776e+18"),
    (2**63, "int64", "9223372036854775808"),
    (np.uint64(2**63), "int64", "9223372036854775808"),
    (2**70, "uint64", "1180591620717411303424"),
    (-1, "uint64", "-1"),
    ([1, 300], "uint8", "300"),
    ([1.0, 2.9], "uint8", "2.9"),
    (1e300, "float32", "1e+300"),
    (10**400, "float64", "1000"),
    (65520, "float16", "65520"),
    (2, "bool", "2"),
    ([1, 0.5], "bool", "0.5"),
]


@pytest.mark.parametrize(("value", "dtype", "shown"), MISFITS)
def test_numbers_that_a_dtype_does_not_hold(value, dtype, shown) -> None:
    with pytest.raises(ArrayMisfitError) as misfit:
        numbers_as(value, np.dtype(dtype))
    assert misfit.value.what.startswith(shown)
    assert misfit.value.what.endswith(f"does not fit {dtype}")
    assert misfit.value.hint


@pytest.mark.parametrize("dtype", ["int64", "float32", "bool", None])
@pytest.mark.parametrize("value", ["7", "False", None, b"1", 2j, [1, None], {"a": 1}, np.datetime64("2020")])
def test_what_is_no_number(value, dtype) -> None:
    with pytest.raises(ArrayMisfitError, match="is not a number or a list of numbers"):
        numbers_as(value, None if dtype is None else np.dtype(dtype))


@given(
    st.lists(st.integers(-(2**70), 2**70) | st.floats() | st.booleans(), min_size=1, max_size=3),
    st.sampled_from(["int8", "uint8", "int64", "uint64", "bool"]),
)
def test_what_is_taken_keeps_its_value(values, dtype) -> None:
    try:
        found = numbers_as(values, np.dtype(dtype))
    except ArrayMisfitError:
        return
    assert found.tolist() == values or any(abs(v) > 2**53 for v in values)
