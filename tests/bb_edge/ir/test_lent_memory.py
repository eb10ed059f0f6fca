"""Memory that is handed out as views: it is used again only once nobody looks at it."""

from __future__ import annotations

import numpy as np
import pytest

from bb_edge.ir.lent_memory import resize


@pytest.mark.parametrize("size", [2, 999, 1000, 1001, 5000])
def test_free_memory_takes_any_size(size: int) -> None:
    memory = bytearray(1000)
    assert resize(memory, size)
    assert len(memory) == size


@pytest.mark.parametrize("size", [999, 1000, 1001])
def test_memory_that_is_looked_at_stays_as_it_is(size: int) -> None:
    memory = bytearray(range(250)) * 4
    before = bytes(memory)
    part = np.frombuffer(memory, np.uint8)[3:700].reshape(17, 41)[2:]
    assert not resize(memory, size)
    assert bytes(memory) == before
    seen = memoryview(part)
    del part
    assert not resize(memory, size)
    assert seen[0, 0] == before[3 + 2 * 41]
    seen.release()
    assert resize(memory, size)
