"""Arrays that a host gives."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from bb_edge.ir.host_arrays import is_masked


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
