"""`When`, and rounds that a value ends."""

from __future__ import annotations

import numpy as np
import pytest
from times import S

from bb_edge.engine import steps

CHOICE = """
program Demo {module=Demo}
function program.Main(p: BOOL, x: I64) -> () {entry=1, partition=self}
  t: Trigger = syscall.When(p)
  syscall.AppNotify<name="then">(t)
  v: I64 = syscall.Gate(x, t)
  syscall.AppEmit<name="let">(v)
"""


@pytest.mark.covers("syscall", "When")
def test_what_hangs_on_it_runs_or_does_not_and_nobody_starves(bench):
    b = bench(CHOICE)
    for p in (True, False):
        b.node.invoke("Main", {"p": np.array(p), "x": np.array(int(p))})
    b.settle()
    b.assert_clean()
    assert (len(b.events("then")), b.events("let")) == (1, [1])
    assert [e.failed for e in b.of(steps.ExecutionEnded)] == [False, False]


ROUNDS = """
program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=self}
  r: I64[] = syscall.Repeat<times=TIMES, pause_ns=5>()
  syscall.AppEmit<name="r">(r)
  three: I64[] = Constant<value=I64[]{3}>()
  enough: BOOL[] = GreaterOrEqual(r, three)
  syscall.StopRounds(enough)
"""


@pytest.mark.covers("syscall", "StopRounds")
@pytest.mark.parametrize(("times", "ran"), [(0, 3), (7, 3), (2, 2)])
def test_rounds_end_by_a_value_or_by_their_number(bench, times, ran):
    b = bench(ROUNDS.replace("TIMES", str(times)))
    assert b.node.open_rounds == 1, "they have an end, number or not"
    b.settle(until_ns=S)
    b.assert_clean()
    assert b.events("r") == list(range(1, ran + 1))
    assert [s.rounds for s in b.of(steps.RoundsCompleted)] == [ran]
    assert b.node.rounds_done


def test_what_no_round_has_started_ends_none(bench):
    text = ROUNDS.replace("TIMES", "2").replace("Main() ->", "Main(p: BOOL) ->")
    b = bench(text + "  syscall.StopRounds(p)\n")
    b.node.invoke("Main", {"p": np.array(True)})
    b.settle(until_ns=S)
    (failed,) = b.of(steps.OpFailed)
    assert "no round started this execution" in str(failed.error)
    assert b.events("r") == [1, 2]


WAITS = ROUNDS.replace(
    "  syscall.StopRounds(enough)\n",
    "  ended: Trigger = syscall.StopRounds(enough)\n"
    "  late: Trigger = syscall.Sleep<duration_ns=1000>(ended)\n"
    '  syscall.AppNotify<name="late">(late)\n',
)


def test_a_round_that_has_ended_them_is_the_last_one_after_a_restart_too():
    from plays import installer

    make = installer(WAITS.replace("TIMES", "0"))
    node, said, now = make(), [], 0
    while len([s for s in said if isinstance(s, steps.AppEvent) and s.topic == "r"]) < 3:
        now += 100
        said += node.poll(now)
    node = make(node.snapshot(now), now)  # in the third round, which sleeps
    for _ in range(50):
        now += 100
        said += node.poll(now)
    assert [int(s.value) for s in said if isinstance(s, steps.AppEvent) and s.topic == "r"] == [1, 2, 3]
    assert [s.rounds for s in said if isinstance(s, steps.RoundsCompleted)] == [3]
    assert node.rounds_done
