"""An interval goes on over a restart: where it stood in its period, and with the tick that was waiting."""

from __future__ import annotations

import pytest

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId

PROGRAM = """
program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=self}
  t: Timestamp = syscall.Interval<period_ns=100>()
  BODY
  syscall.AppEmit<name="t">(u)
"""
AT_ONCE = "u: Timestamp = syscall.PassThrough(t)"
SLOWLY = """go: Trigger = syscall.OnTrigger(t)
  late: Trigger = syscall.Sleep<duration_ns=230>(go)
  u: Timestamp = syscall.GateDispatch(t, late)"""


def ticks(node, *times):
    """Polls at these times; the timestamps that were told, by time."""
    found = {}
    for now_ns in times:
        for _ in range(5):  # what a poll leaves behind
            for step in node.poll(now_ns):
                if isinstance(step, steps.AppEvent):
                    found.setdefault(now_ns, []).append(int(step.value))
    return found


@pytest.fixture
def restarted(compile_text):
    """`restarted(stop_ns, start_ns, body)`: a node that was snapshot at one time, and goes on at another.

    It runs one execution at a time.
    """

    def make(stop_ns, start_ns, body=AT_ONCE):
        data, config = compile_text(PROGRAM.replace("BODY", body)), NodeConfig(max_executions=1)
        node = install(PeerId.from_name("a"), (), data, ["Main"], config, seed=1)
        told = ticks(node, *range(0, stop_ns + 1, 50))
        kept = node.snapshot(stop_ns)
        more = {"snapshot": kept, "now_ns": start_ns}
        return told, install(PeerId.from_name("a"), (), data, ["Main"], config, seed=2, **more)

    return make


@pytest.mark.parametrize("start_ns", [0, 7_000, 5_000_000_000])
def test_what_is_left_of_the_period_is_waited_for(restarted, start_ns):
    """Monotonic time begins anew with each boot of a machine, at whatever it likes."""
    told, again = restarted(250, start_ns)
    assert told == {100: [100], 200: [200]}
    found = ticks(again, *(start_ns + after for after in (0, 49, 50, 149, 150, 249, 250)))
    assert [at - start_ns for at in found] == [50, 150, 250], "once per period, on the grid of before"
    assert all(len(values) == 1 for values in found.values())


def test_what_was_missed_while_the_node_was_behind_is_one_tick(restarted):
    _, again = restarted(250, 0)
    found = ticks(again, 0, 1_020)
    assert list(found) == [1_020] and len(found[1_020]) == 1
    assert list(ticks(again, 1_049, 1_050)) == [1_050]


def test_a_tick_that_waited_comes_once_and_the_interval_goes_on(restarted):
    told, again = restarted(250, 1_000, SLOWLY)
    assert told == {}, "the first tick runs until 330, the second one waits for it"
    found = ticks(again, *range(1_000, 2_000, 10))
    # the one that was due at 1050 is left out: the one of 200 waits
    assert [*found.values()][:3] == [[100], [200], [1_150]]
    assert [*found][:2] == [1_080, 1_310]
    assert again.counters["ticks.skipped"] > 0 and len(found) == 4
