"""Ops that only pass, copy, mint or look up, each on a real node."""

from __future__ import annotations

import numpy as np
import pytest
from times import MS

from bb_edge.engine import steps
from bb_edge.ir import types
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.ir.values import TRIGGER

ONE = np.array([1.0], np.float32)


def program(signature: str, *lines: str) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    head = f"program Demo {{module=Demo}}\nfunction program.Main{signature} {{entry=1, partition=self}}"
    return f"{head}\n{body}\n"


def test_pass_through_hands_on_what_it_gets(bench):
    b = bench(program("(a: F32) -> (b)", "b: F32 = syscall.PassThrough(a)"))
    b.node.invoke("Main", {"a": ONE})
    b.settle()
    np.testing.assert_array_equal(b.events("b")[0], ONE)


def test_a_tee_gives_every_output_the_same(bench):
    b = bench(program("(a: F32) -> (x, y, z)", "x: F32, y: F32, z: F32 = syscall.Tee<fanout=3>(a)"))
    b.node.invoke("Main", {"a": ONE})
    b.settle()
    for port in "xyz":
        np.testing.assert_array_equal(b.events(port)[0], ONE)


@pytest.mark.parametrize("op", ["Gate", "GateDispatch"])
def test_a_gate_holds_the_value_until_its_trigger(bench, op):
    b = bench(
        program(
            "(a: F32, t: Trigger) -> (b)",
            "late: Trigger = syscall.After<delay_ns=5000000>(t)",
            f"b: F32 = syscall.{op}(a, late)",
        )
    )
    b.node.invoke("Main", {"a": ONE, "t": TRIGGER})
    b.settle(until_ns=4 * MS)
    assert b.events("b") == []
    b.settle()
    assert len(b.events("b")) == 1
    assert b.now_ns >= 5 * MS


def test_a_gate_of_many_waits_for_all(bench):
    b = bench(
        program(
            "(a: F32, t: Trigger) -> (b)",
            "soon: Trigger = syscall.After<delay_ns=1000000>(t)",
            "late: Trigger = syscall.After<delay_ns=7000000>(t)",
            "b: F32 = syscall.GateManyDispatch(a, soon, late)",
        )
    )
    b.node.invoke("Main", {"a": ONE, "t": TRIGGER})
    b.settle(until_ns=6 * MS)
    assert b.events("b") == []
    b.settle()
    assert len(b.events("b")) == 1


def test_on_trigger_fires_on_each_arrival(bench):
    b = bench(program("(t: Trigger) -> (u)", "u: Trigger = syscall.OnTrigger(t)"))
    for _ in range(3):
        b.node.invoke("Main", {"t": TRIGGER})
    b.settle()
    assert b.events("u") == [TRIGGER] * 3


def test_sleep_takes_its_time(bench):
    b = bench(program("(t: Trigger) -> (u)", "u: Trigger = syscall.Sleep<duration_ns=3000000>(t)"))
    b.node.invoke("Main", {"t": TRIGGER})
    b.settle(until_ns=2 * MS)
    assert b.events("u") == []
    b.settle()
    assert b.events("u") == [TRIGGER]


@pytest.mark.parametrize(("then_ns", "winner_ns"), [(2 * MS, 2 * MS), (9 * MS, 5 * MS)])
def test_a_deadline_match_is_won_by_the_first(bench, then_ns, winner_ns):
    b = bench(
        program(
            "(t: Trigger) -> (w)",
            f"then: Trigger = syscall.After<delay_ns={then_ns}>(t)",
            f"timeout: Trigger = syscall.After<delay_ns={5 * MS}>(t)",
            "w: Trigger = syscall.DeadlineMatch(then, timeout)",
        )
    )
    b.node.invoke("Main", {"t": TRIGGER})
    b.settle(until_ns=winner_ns - 1)
    assert b.events("w") == []
    b.settle(until_ns=winner_ns)
    assert len(b.events("w")) == 1
    b.settle()
    assert len(b.events("w")) == 1  # the other came later, and is dropped


@pytest.mark.parametrize("op", ["CorrelateTag", "MintDispatch"])
def test_tokens_are_fresh_and_seeded(bench, op):
    text = program("(t: Trigger) -> (token)", f"token: CorrelationToken = syscall.{op}(t)")
    runs = []
    for _ in range(2):
        b = bench(text)
        for _ in range(4):
            b.node.invoke("Main", {"t": TRIGGER})
        b.settle()
        runs.append(b.events("token"))
    assert len(set(runs[0])) == 4
    assert runs[0] == runs[1]
    assert all(isinstance(token, int) and 0 <= token < 2**64 for token in runs[0])


def bundled(unpacked: str) -> str:
    packed = f"{types.TENSOR_F32.denotation},{types.TRIGGER.denotation}"
    count, kinds = ".composite.child_count=2", ".composite.child_types"
    lines = [
        f'c: Composite = composite.Bundle<{count}, {kinds}="{packed}">(a, t)',
        f'x: F32, u: Trigger = composite.Unbundle<{count}, {kinds}="{unpacked}">(c)',
    ]
    return program("(a: F32, t: Trigger) -> (x, u)", *lines)


def test_a_bundle_is_unpacked_to_what_was_packed(bench):
    b = bench(bundled(f"{types.TENSOR_F32.denotation},{types.TRIGGER.denotation}"))
    b.node.invoke("Main", {"a": ONE, "t": TRIGGER})
    b.settle()
    assert b.events("x")[0] is ONE
    assert b.events("u") == [TRIGGER]


def test_a_bundle_of_other_types_is_refused(bench):
    b = bench(bundled(f"{types.TENSOR_I64.denotation},{types.TRIGGER.denotation}"))
    b.node.invoke("Main", {"a": ONE, "t": TRIGGER})
    b.settle()
    (failed,) = b.of(steps.OpFailed)
    assert "child 0" in str(failed.error)
    assert b.events("x") == []


PEER = PeerId.from_name("somebody")
FIRST, SECOND = (Address(PEER, n).to_bytes() for n in (1, 2))


def test_the_address_book_is_open_to_programs(bench):
    b = bench(
        program(
            "(p: PeerId, one: Multiaddress, more: AddressVec, asked: PeerId) -> (found)",
            "address_book.Insert(p, one)",
            "address_book.InsertMany(p, more)",
            "found: AddressVec = address_book.Lookup(asked)",
        )
    )
    b.node.invoke("Main", {"p": PEER, "one": FIRST})
    b.settle()
    b.node.invoke("Main", {"p": PEER, "more": (FIRST, SECOND)})
    b.settle()
    b.node.invoke("Main", {"asked": PEER})
    b.settle()
    assert b.events("found") == [(Address.from_bytes(FIRST), Address.from_bytes(SECOND))]


@pytest.mark.parametrize(
    ("lines", "inputs", "says"),
    [
        ("found: AddressVec = address_book.Lookup(p)", {"p": PEER}, "no known address"),
        ("address_book.InsertMany(p, more)", {"p": PEER, "more": ()}, "address list is empty"),
    ],
)
def test_what_the_address_book_cannot_do_fails_the_op(bench, lines, inputs, says):
    b = bench(program("(p: PeerId, more: AddressVec) -> ()", lines))
    b.node.invoke("Main", inputs)
    b.settle()
    (failed,) = b.of(steps.OpFailed)
    assert says in str(failed.error)
