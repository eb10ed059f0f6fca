"""Values that never meet in one execution."""

from __future__ import annotations

import pytest
from program_text import parse_function

from bb_host import errors
from bb_host.passes.analysis.joins import check_joins

RECVS = (
    "a, s = wire.Recv() {wire.wire_id=1, source=a.py:1}",
    "b, t = wire.Recv() {wire.wire_id=2, source=a.py:2}",
)
REQUESTS = (
    "tick = syscall.Interval<period_ns=5>() {source=a.py:1}",
    "r1 = wire.SendReqBatched(tick, p, p) {wire.wire_id=1}",
    "w1, s1 = wire.RecvResp() {wire.wire_id=2, wire.request=1, source=a.py:2}",
    "c1, m1 = wire.RecvRespBatched(r1) {wire.wire_id=2, wire.request=1, source=a.py:3}",
    "r2 = wire.SendReqBatched(tick, p, p) {wire.wire_id=3}",
    "w2, s2 = wire.RecvResp() {wire.wire_id=4, wire.request=3, source=a.py:4}",
    "c2, m2 = wire.RecvRespBatched(r2) {wire.wire_id=4, wire.request=3}",
    "p = role.peer_selector.Sample<n=1>() {slot=s}",
)
HEAD = "function program.M(%s) -> ()\n"


def check(*lines: str, inputs: str = "") -> None:
    ordered = sorted(lines, key=lambda line: "Sample" not in line)
    check_joins(parse_function(HEAD % inputs + "\n".join("  " + line for line in ordered)))


@pytest.mark.parametrize(
    "lines",
    [
        (*RECVS, "y = Relu(a)", "z = Relu(b)"),
        (*RECVS, "y = syscall.Any(a, b)", "z = Relu(y)"),
        (*RECVS, "y = syscall.Threshold<n=2>(a, b)", "z = syscall.Gate(a, y)"),
        (*RECVS, "y = syscall.Any(a, b)", "z = Add(y, a)"),
        (*RECVS, 'syscall.Hold.Stash<slot="k">(a)', "y = syscall.Hold.Flush(b)", "z = Add(y, b)"),
        (*RECVS, "k = Constant<value=F32[]{1}>()", "y = Add(a, k)", "z = Add(b, k)"),
        (*RECVS, "n = role.data_loader.NumSamples() {slot=d}", "y = Add(a, n)", "z = Add(b, n)"),
        (*RECVS, "y = Add(a, s)"),
        (*REQUESTS, "y = Add(w1, tick)"),
        (*REQUESTS, "y = Add(c1, tick)", "z = Add(c1, c2)", "u = Add(m1, m2)"),
        (*REQUESTS, "y = Add(w1, c2)"),
        (
            *REQUESTS,
            "r3 = wire.SendReqBatched(w1, p, p) {wire.wire_id=5}",
            "w3, s3 = wire.RecvResp() {wire.wire_id=6, wire.request=5}",
            "y = Add(w3, w1)",
            "z = Add(w3, tick)",
        ),
    ],
)
def test_what_meets(lines: tuple[str, ...]) -> None:
    check(*lines)


@pytest.mark.parametrize(
    ("lines", "inputs", "error", "names"),
    [
        ((*RECVS, "y = Add(a, b) {source=a.py:9}"), "", errors.JoinAcrossSends, ("a.py:1", "a.py:2")),
        (
            (*RECVS, "c = Relu(a) {source=a.py:3}", "y = Add(c, t) {source=a.py:9}"),
            "",
            errors.JoinAcrossSends,
            ("'c' of Relu → c (a.py:3)", "'t' of Recv → b (a.py:2)"),
        ),
        (
            (RECVS[0], "t = syscall.Pulse() {source=a.py:5}", "y = syscall.Gate(a, t) {source=a.py:9}"),
            "",
            errors.CrossExecutionJoin,
            ("a.py:1", "a.py:5"),
        ),
        (
            (RECVS[0], "y = Add(a, x) {source=a.py:9}"),
            "x: F32",
            errors.CrossExecutionJoin,
            ("the program's inputs", "a.py:1"),
        ),
        ((*REQUESTS, "y = Add(w1, w2) {source=a.py:9}"), "", errors.CrossExecutionJoin, ("a.py:2", "a.py:4")),
        ((*REQUESTS, "y = Add(w1, c1) {source=a.py:9}"), "", errors.CrossExecutionJoin, ("a.py:2", "a.py:3")),
        ((*REQUESTS, "y = Add(w1, m1) {source=a.py:9}"), "", errors.CrossExecutionJoin, ("a.py:2",)),
        (
            (
                *REQUESTS,
                "r3 = wire.SendReqBatched(w1, p, p) {wire.wire_id=5}",
                "w3, s3 = wire.RecvResp() {wire.wire_id=6, wire.request=5}",
                "y = Add(w3, c1) {source=a.py:9}",
            ),
            "",
            errors.CrossExecutionJoin,
            (),
        ),
        (
            (
                *RECVS,
                "k = syscall.Pulse()",
                "y = syscall.Any(a, b)",
                "z = Add(y, k) {source=a.py:9}",
            ),
            "",
            errors.CrossExecutionJoin,
            (),
        ),
    ],
)
def test_what_never_meets(
    lines: tuple[str, ...], inputs: str, error: type[errors.PassError], names: tuple[str, ...]
) -> None:
    with pytest.raises(error) as caught:
        check(*lines, inputs=inputs)
    assert type(caught.value) is error
    assert caught.value.where == "a.py:9"
    for name in names:
        assert name in caught.value.what
