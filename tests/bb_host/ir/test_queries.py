"""What ops read and which are needed; renaming through bodies; names by content."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from bb_host.ir.hashing import content_digest
from bb_host.ir.program import Function, Op, Subgraph
from bb_host.ir.queries import captured, live, reads, uses, without_dead_constants
from bb_host.ir.rename import fresh_name, rename_op, rename_reads, shortened_op

INNER = Subgraph("inner", (), ("v",), (Op("Add", "", ("x", "u"), ("v",)),))
BODY = Subgraph(
    "body",
    ("i",),
    ("w", "y"),
    (
        Op("Mul", "", ("i", "x"), ("u",)),
        Op("If", "", ("u",), ("w",), {"then_branch": INNER}),
        Op("Add", "", ("w", "z"), ("t",)),
    ),
)
LOOP = Op("Loop", "", ("n", "", "x"), ("a", ""), {"body": BODY})


def test_what_bodies_read_from_around_them_counts_as_read() -> None:
    assert captured(LOOP) == ("x", "z", "y")
    assert reads(LOOP) == ("n", "", "x", "x", "z", "y")
    assert list(uses(LOOP)) == ["n", "x", "x", "x", "z", "y"]
    plain = Op("Add", "", ("a", "b"), ("c",))
    assert reads(plain) is plain.inputs


def test_what_no_output_needs_is_dead() -> None:
    first = Op("Relu", "", ("p",), ("z",))
    dead = Op("Relu", "", ("a",), ("q",))
    assert live((first, LOOP, dead), ("a",)) == (first, LOOP)
    assert live((first, LOOP, dead), ()) == ()
    optional = Op("Split", "", ("", "a"), ("", "s"))
    assert live((LOOP, optional), ("a",)) == (LOOP,)


def test_constants_that_nobody_reads_are_gone() -> None:
    kept, handed, dead = (Op("Constant", "", (), (name,), {"value_int": 1}) for name in ("z", "out", "no"))
    assert without_dead_constants((kept, handed, dead, LOOP), ("out",)) == (kept, handed, LOOP)


def test_renaming_goes_through_bodies_and_leaves_their_own_names() -> None:
    names = {"x": "X", "u": "U", "a": "A"}
    done = rename_op(LOOP, names)
    assert (done.inputs, done.outputs) == (("n", "", "X"), ("A", ""))
    assert captured(done) == ("X", "z", "y")
    body = done.attrs["body"]
    assert isinstance(body, Subgraph)
    assert body.ops[0].outputs == ("u",)
    read = rename_reads(LOOP, names)
    assert (read.inputs, read.outputs) == (("n", "", "X"), ("a", ""))
    assert rename_reads(LOOP, {"u": "U"}) is LOOP


def test_shortened_bodies_read_the_same() -> None:
    done = shortened_op(LOOP, {"x": "a", "z": "b", "y": "c", "n": "d", "a": "e"})
    assert captured(done) == ("a", "b", "c")
    body = done.attrs["body"]
    assert isinstance(body, Subgraph)
    assert body.inputs == ("f",)


def test_fresh_names_are_taken_from_then_on() -> None:
    taken = {"a"}
    assert [fresh_name("a", taken), fresh_name("a", taken), fresh_name("b", taken)] == ["a_1", "a_2", "b"]
    assert fresh_name("b", taken, 2) == "b_2"


def test_equal_functions_have_one_digest() -> None:
    one = Function("", "d", ("x",), ("y",), (Op("Relu", "", ("x",), ("y",)),))
    assert content_digest(one) == content_digest(dataclasses.replace(one))
    assert len(content_digest(one)) == 16
    assert content_digest(one) != content_digest(dataclasses.replace(one, outputs=("x",)))
