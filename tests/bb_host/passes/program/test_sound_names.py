"""The seam's short ways say what its full check says."""

from __future__ import annotations

import dataclasses
import random

import pytest

from bb_edge.ir import keys, types
from bb_edge.ir.types import ValueType
from bb_host.ir.facts import NO_FACTS, OpFacts
from bb_host.ir.program import Function, Op, OpList, Subgraph
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.sound_names import Names, all_names, ends_shared, names_after
from bb_host.passes.verify import values_problem

F32 = ValueType(types.TENSOR_F32)


def chain(length: int) -> Function:
    ops = tuple(Op("Relu", "", (f"v{i}",), (f"v{i + 1}",)) for i in range(length))
    kinds = {f"v{i}": F32 for i in range(length + 1)}
    return Function("main", keys.MODULE_DOMAIN, ("v0",), (f"v{length}",), ops, kinds)


def edited(function: Function, dice: random.Random) -> Function:
    """A function after one edit of a kind that passes make; often a wrong one."""
    ops = list(function.ops)
    kinds = dict(function.types)
    at = dice.randrange(len(ops))
    op = ops[at]
    kind = dice.randrange(7)
    if kind == 0:
        ops = [o.saying(OpFacts(feeds=at)) for o in ops]
    elif kind == 1:  # a gate behind an op, under the name that readers see
        name = f"w{dice.randrange(8)}"
        ops[at : at + 1] = [
            dataclasses.replace(op, outputs=(name,)),
            Op("Identity", "", (name,), op.outputs),
        ]
        if dice.random() < 0.7:
            kinds[name] = F32
    elif kind == 2:
        del ops[at]
    elif kind == 3:
        ops[at] = dataclasses.replace(op, inputs=(f"v{dice.randrange(len(ops) + 2)}",))
    elif kind == 4:
        ops[at] = dataclasses.replace(op, outputs=(f"v{dice.randrange(len(ops) + 2)}",))
    elif kind == 5:
        other = dice.randrange(len(ops))
        ops[at], ops[other] = ops[other], ops[at]
    else:
        kinds.pop(f"v{dice.randrange(1, len(ops) + 1)}", None)
    return dataclasses.replace(function, ops=tuple(ops), types=kinds)


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_what_the_short_way_finds_sound_is_sound(seed: int, typed: bool) -> None:
    dice = random.Random(seed)
    taken = sound = 0
    for _ in range(60):
        function = chain(dice.randrange(3, 40))
        names = Names.of(function)
        for _ in range(4):
            old, function = function, edited(function, dice)
            problem = values_problem(function, typed)
            after = names_after(names, old.ops, function, typed)
            sound += not problem
            taken += after is not None
            if after is None:
                if problem:
                    break
                after = Names.of(function)
            assert not problem, problem
            assert after.all == Names.of(function).all
            assert (after.read, after.written) == (Names.of(function).read, Names.of(function).written)
            names = after
    assert 0 < taken <= sound


def test_what_was_found_sound_is_not_looked_at_again_and_holds_for_the_very_same_alone() -> None:
    function = chain(5)
    names = Names.of(function)._replace(types=function.types)
    flow.summary(function.ops).sound = names
    assert names.hold(function) and names.typed(function) is names
    assert values_problem(function, typed=True) == ""
    fewer = dataclasses.replace(function, types={"v0": F32})
    assert "has no type" in values_problem(fewer, typed=True) and values_problem(fewer, typed=False) == ""
    assert "output 'w'" in values_problem(dataclasses.replace(function, outputs=("w",)), typed=False)
    assert "reads 'v0'" in values_problem(dataclasses.replace(function, inputs=("x",)), typed=False)
    swapped = dataclasses.replace(function, ops=function.ops[::-1])
    assert "reads 'v4'" in values_problem(swapped, typed=False)


def test_the_names_of_a_function_are_its_own_whatever_was_found_of_its_ops_with_other_inputs() -> None:
    function = chain(2)
    assert all_names(function) == {"", "v0", "v1", "v2"}
    flow.summary(function.ops).sound = Names.of(function)
    assert all_names(function) == {"", "v0", "v1", "v2"}
    assert all_names(dataclasses.replace(function, inputs=("v0", "x"))) == {"", "v0", "v1", "v2", "x"}


@pytest.mark.parametrize("seed", range(20))
def test_how_much_of_its_ends_a_list_shares_is_what_a_walk_from_either_end_counts(seed: int) -> None:
    dice = random.Random(seed)

    def walked(ops: tuple[Op, ...], old: tuple[Op, ...]) -> int:
        pairs = enumerate(zip(ops, old, strict=False))
        return next((i for i, (a, b) in pairs if a is not b), min(len(ops), len(old)))

    for _ in range(100):
        old = tuple(Op("Relu", "") for _ in range(dice.randrange(20)))
        new = list(old)
        for _ in range(dice.randrange(3)):
            at = dice.randrange(len(new) + 1)
            new[at : at + dice.randrange(3)] = [Op("Relu", "") for _ in range(dice.randrange(3))]
        ops = tuple(new)
        first = walked(ops, old)
        last = min(walked(ops[::-1], old[::-1]), min(len(ops), len(old)) - first)
        assert ends_shared(ops, old) == (first, last)


ANSWERS = ("kinds", "domains", "said", "has_subgraphs", "wire")


def answers(summary: OpList) -> dict[str, object]:
    return {name: getattr(summary, name) for name in ANSWERS}


@pytest.mark.parametrize("seed", range(20))
def test_the_summary_of_a_list_with_other_ops_in_places_is_that_of_a_walk(seed: int) -> None:
    dice = random.Random(seed)

    def op(number: int) -> Op:
        wire = dice.random() < 0.2
        domain, kind = (keys.WIRE_DOMAIN, "Send") if wire else ("", dice.choice(("Add", "Relu")))
        return Op(
            kind,
            domain,
            (),
            (f"v{number}",),
            {},
            OpFacts(**{dice.choice(("slot", "port", "at")): "x"}) if dice.random() < 0.2 else NO_FACTS,
        )

    def branch() -> Op:
        return Op("If", "", (), ("y",), {"then_branch": Subgraph(ops=(op(0),))})

    old = OpList(op(i) for i in range(dice.randrange(1, 60)))
    for _ in range(20):
        places = dice.sample(range(len(old)), dice.randrange(min(4, len(old)) + 1))
        pieces = {at: [op(100 + i) for i in range(dice.randrange(4))] for at in places}
        if places and dice.random() < 0.1:
            pieces[places[0]].append(branch())
        for name in dice.sample(ANSWERS, dice.randrange(len(ANSWERS))):
            getattr(old, name)
        new = flow.spliced(old, pieces)
        assert list(new) == [each for at, stays in enumerate(old) for each in pieces.get(at, [stays])]
        assert answers(new) == answers(OpList(new))
        old = new or old
        assert answers(flow.chosen(old[::2], old)) == answers(OpList(old[::2]))


@pytest.mark.parametrize("asked", [(), ("said",), ANSWERS], ids=["nothing", "facts", "all"])
def test_the_summary_of_stamped_ops_is_that_of_a_walk(asked: tuple[str, ...]) -> None:
    send = Op("Send", keys.WIRE_DOMAIN, (), ("sent",), {}, OpFacts(slot="a"))
    old = OpList(
        (send, Op("If", "", (), ("y",), {"then_branch": Subgraph(ops=(send,))}), Op("Add", "", (), ("z",)))
    )
    for name in asked:
        getattr(flow.summary(old), name)
    new = flow.stamped((old[0], old[1].saying(OpFacts(port="b")), old[2]), old, {"port"})
    assert answers(flow.summary(new)) == answers(OpList(new))
    assert flow.summary(new).domains == {keys.WIRE_DOMAIN, ""}
    assert flow.summary(new).said == {"slot", "port"}
