"""Pass 2."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bb_edge.ir import keys
from bb_host import errors
from bb_host.compiler import Options, Stats
from bb_host.compiler.pipeline import pass_named
from bb_host.program import Program

SENDS = """
    program P {module=P}

    function program.P(x: F32, p: PeerIdVec) -> ()
      a, s = wire.Send<deadline_ns=70>(x, p) {wire.wire_id=1, source=a.py:1}
      b, t = wire.Send(x, p) {wire.wire_id=2, chain_depth=3, source=a.py:2}
      c, u = wire.Send(x, p) {wire.wire_id=3}
      d, v = wire.SendResp(x, s, r) {wire.wire_id=4, wire.request=9}
      y = Relu(x)
      r: WireReqId = Identity(q)
      q: WireReqId = Identity(q0)
      q0: WireReqId = Identity(q1)
    """


def _deadlines(done: Program) -> list[str | None]:
    return [op.meta.get(keys.DEADLINE_NS_KEY) for op in done.functions[0].ops[:5]]


def test_the_authors_deadline_else_none(run_pass: Callable[..., Program]) -> None:
    stats = Stats()
    assert _deadlines(run_pass("derive_wire_deadlines", SENDS, stats)) == ["70", "0", "0", "0", None]
    assert stats.counters["deadlines_stamped"] == 4


def test_a_budget_gives_sends_their_deadline_by_depth(run_pass: Callable[..., Program]) -> None:
    done = run_pass("derive_wire_deadlines", SENDS, per_hop_budget_ns=50)
    assert _deadlines(done) == ["70", "150", "50", "0", None]


def test_a_deadline_below_the_budget_is_refused(program: Callable[[str], Program]) -> None:
    with pytest.raises(errors.InfeasibleDeadline) as caught:
        pass_named("derive_wire_deadlines").run(program(SENDS), Options(per_hop_budget_ns=71), Stats())
    assert caught.value.where == "a.py:1"


def test_a_request_needs_a_deadline(
    run_pass: Callable[..., Program], program: Callable[[str], Program]
) -> None:
    text = """
        program P {module=P}

        function program.P(x: F32, p: PeerIdVec) -> ()
          r, a, s = wire.SendReqBatched(x, p, p) {wire.wire_id=1, source=a.py:5}
        """
    with pytest.raises(errors.MissingDeadline) as caught:
        pass_named("derive_wire_deadlines").run(program(text), Options(), Stats())
    assert caught.value.where == "a.py:5"
    done = run_pass("derive_wire_deadlines", text, per_hop_budget_ns=9)
    assert done.functions[0].ops[0].meta[keys.DEADLINE_NS_KEY] == "9"


@pytest.mark.parametrize(
    "op",
    [
        "wire.Send(x, p) {chain_depth=deep}",
        "wire.Send<deadline_ns=-1>(x, p)",
        'wire.Send(x, p) {deadline_ns="1 s"}',
    ],
)
def test_stamps_that_are_no_durations_are_refused(op: str, program: Callable[[str], Program]) -> None:
    text = f"program P {{module=P}}\n\nfunction program.P(x: F32, p: PeerIdVec) -> ()\n  a, s = {op}"
    with pytest.raises(errors.MalformedWireOp):
        pass_named("derive_wire_deadlines").run(program(text), Options(), Stats())


def test_without_wire_ops_nothing_happens(program: Callable[[str], Program]) -> None:
    given = program("program P {module=P}\n\nfunction program.P(x: F32) -> (y)\n  y = Relu(x)")
    assert pass_named("derive_wire_deadlines").run(given, Options(per_hop_budget_ns=5), Stats()) is given
