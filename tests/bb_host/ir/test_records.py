"""Records: what stays itself where nothing changes, and attributes by type."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from bb_edge.ir import keys, opsets
from bb_host.ir.facts import OpFacts
from bb_host.ir.program import Function, Op, OpList, Program, Subgraph, stamping
from bb_host.ir.queries import fires_on_one, is_entry

A, B = Op("Relu", "", ("x",), ("y",)), Op("Tanh", "", ("y",), ("z",))
FUNCTION = Function("f", keys.PROGRAM_DOMAIN, ("x",), ("z",), (A, B))


@pytest.mark.parametrize("ops", [(A, B), [A, B], iter([A, B]), FUNCTION.ops])
def test_a_function_with_its_own_ops_is_itself(ops: Iterable[Op]) -> None:
    assert FUNCTION.with_ops(ops) is FUNCTION


@pytest.mark.parametrize("ops", [(A,), (B, A), (A, B, A), (A, Op("Tanh", "", ("y",), ("z",)))])
def test_a_function_with_other_ops_is_another_one(ops: tuple[Op, ...]) -> None:
    new = FUNCTION.with_ops(ops)
    assert new is not FUNCTION
    assert (new.name, new.inputs, tuple(new.ops)) == ("f", ("x",), ops)


def test_a_program_with_its_own_functions_is_itself() -> None:
    program = Program("P", (FUNCTION,))
    assert program.with_functions([FUNCTION]) is program
    other = FUNCTION.with_ops((A,))
    assert program.with_functions(iter([other])).functions == (other,)
    assert program.with_functions(()).functions == ()


def test_a_stamp_says_what_saying_says_and_changes_no_op_in_place() -> None:
    stamp = stamping(OpFacts(port="b", slot_id=0))
    for facts in (OpFacts(), OpFacts(port="a", slot="model"), OpFacts(slot_id=3)):
        op = Op("Forward", "d", ("x",), ("y",), {"axis": 1}, facts, "name", b"extra")
        new, said = stamp(op), op.saying(OpFacts(port="b", slot_id=0))
        assert vars(new.facts) == vars(said.facts) and list(vars(new.facts)) == list(vars(said.facts))
        assert op.facts is facts and (new.name, new.extra, new.attrs) == ("name", b"extra", {"axis": 1})
        assert (new.op_type, new.domain, new.inputs, new.outputs) == ("Forward", "d", ("x",), ("y",))


def test_an_op_that_says_what_a_stamp_says_is_itself() -> None:
    op = Op("Relu", "", facts=OpFacts(slot="model", deadline_ns=0))
    assert stamping(OpFacts(deadline_ns=0))(op) is op
    assert stamping(OpFacts())(op) is op
    assert stamping(OpFacts(deadline_ns=1))(op) is not op


def test_ops_that_share_a_record_of_facts_share_one_once_they_are_stamped() -> None:
    facts, stamp = OpFacts(slot="model"), stamping(OpFacts(slot_id=1))
    first, second = (stamp(Op(kind, "", facts=facts)) for kind in ("Relu", "Tanh"))
    assert first.facts is second.facts
    alone = stamp(Op("Relu", "", facts=OpFacts(slot="model")))
    assert alone.facts is not first.facts and alone.facts == first.facts


def test_a_stamp_tells_facts_apart_though_the_op_that_it_saw_is_gone() -> None:
    stamp = stamping(OpFacts(slot_id=1))
    for number in range(200):  # each record of facts could have the place in memory of the one before
        assert stamp(Op("Relu", "", facts=OpFacts(port=f"p{number}"))).facts.port == f"p{number}"


def test_a_list_of_ops_has_them_by_slot_those_of_branches_too() -> None:
    inner, first, other = (Op("Forward", "d", facts=OpFacts(slot=slot)) for slot in ("b", "a", "b"))
    branch = Op("If", "", attrs={"then": Subgraph("g", ops=(inner,))})
    assert OpList((first, A, branch, other)).by_slot == {"a": [first], "b": [inner, other]}
    assert OpList((A, B)).by_slot == {}


def test_attributes_are_read_by_type() -> None:
    op = Op("Op", "", attrs={"axis": -1, "alpha": 0.5, "mode": b"edge", "perm": [1, 0], "none": []})
    assert (op.integer("axis"), op.integer("axis", 3), op.integer("other", 3)) == (-1, -1, 3)
    assert (op.number("alpha", 1.0), op.number("axis", 1.0), op.number("other", 2.0)) == (0.5, -1.0, 2.0)
    assert (op.text("mode"), op.text("mode", "wrap"), op.text("other", "wrap")) == ("edge", "edge", "wrap")
    assert (op.integers("perm"), op.integers("none", (7,)), op.integers("other")) == ([1, 0], [7], [])
    assert isinstance(op.number("axis", 1.0), float)


@pytest.mark.parametrize("read", [Op.integer, Op.text])
def test_a_missing_attribute_without_a_default_is_told(read: Callable[[Op, str], object]) -> None:
    with pytest.raises(KeyError, match="axis"):
        read(A, "axis")


@pytest.mark.parametrize(
    ("domain", "names"), [(keys.BACKEND_DOMAIN, True), (keys.COMPONENT_DOMAIN, True), ("", False)]
)
def test_tensor_work_is_what_a_backend_runs(domain: str, names: bool) -> None:
    assert Function("f", domain).is_tensor_work is names


def test_entries_start_executions_and_some_ops_fire_on_one_input() -> None:
    assert is_entry(Op("Pulse", keys.SYSCALL_DOMAIN, (), ("t",)))
    assert not is_entry(Op("PassThrough", keys.SYSCALL_DOMAIN, ("x",), ("y",)))
    assert not is_entry(Op("Pulse", "other", (), ("t",)))
    assert fires_on_one(opsets.lookup(keys.SYSCALL_DOMAIN, "Any"))
    assert not fires_on_one(opsets.lookup(keys.SYSCALL_DOMAIN, "PassThrough"))
    assert not fires_on_one(None)
