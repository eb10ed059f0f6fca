"""A value is let go as soon as its last reader has run."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np

LENGTH = 60_000  # 240 KB: an invoke takes 256 KiB
ARRAY_BYTES = 4 * LENGTH
TEXT = f"""
program Demo {{module=Demo}}
function program.Main(x: F32[{LENGTH}]) -> () {{entry=1, partition=self}}
  a: F32[{LENGTH}] = Neg(x)
  c: F32[{LENGTH}] = Neg(a)
  t: Trigger = syscall.OnTrigger(c)
  slept: Trigger = syscall.Sleep<duration_ns=100>(t)
  late: Trigger = syscall.GateDispatch(slept, c)
  syscall.AppNotify<name="late">(late)
"""


def test_values_are_released_after_their_last_reader(bench):
    b = bench(TEXT)

    def run() -> tuple[int, int]:
        """Bytes that are held while a second reader of c waits, and after it."""
        b.node.invoke("Main", {"x": np.ones(LENGTH, np.float32)})
        b.poll()
        (execution,) = b.node.inspect().executions
        assert [name for name in "xac" if name in execution["frames"][0]["values"]] == ["c"]
        gc.collect()
        while_waiting = tracemalloc.get_traced_memory()[0]
        b.settle()
        gc.collect()
        return while_waiting, tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        _, before = run()  # the backend keeps what it needs for this shape
        while_waiting, after = run()
    finally:
        tracemalloc.stop()
    assert len(b.events("late")) == 2
    assert ARRAY_BYTES <= while_waiting - before < 2 * ARRAY_BYTES
    assert after - before < ARRAY_BYTES
