"""What forward passes leave for backward passes: by execution, and under keys, within bounds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bb_edge.components.kept_activations import Kept, KeptActivations, UnknownKey, key_of
from bb_edge.components.state import StateReader, pack_state
from bb_edge.ir.values import Composite
from bb_edge.roles import Component, ComponentError, ComponentStateError
from tests.aids.peers import numbered

PEER = numbered(7)


def kept(value: float, count: int = 4) -> Kept:
    return Kept((np.full(count, value, np.float32),), (1, 2), np.dtype(np.float32))


def value_of(found: Kept) -> float:
    return float(found.arrays[0][0])


@pytest.mark.parametrize(
    "same",
    [
        (3, np.int64(3), np.array(3, np.int32), np.array([3], np.int64)),
        (b"abc", b"abc"),
        (PEER, numbered(7)),
        ((np.array(3), PEER), Composite(((0, 3), (0, numbered(7))))),
    ],
)
def test_equal_keys(same: tuple[object, ...]) -> None:
    assert len({key_of(value) for value in same}) == 1


def test_different_keys() -> None:
    different = [
        3,
        -3,
        33,
        b"3",
        b"i3",
        (3,),
        (3, 3),
        ((3,), 3),
        (b"3", 3),
        PEER,
        (33,),
        (b"a", b"b"),
        (b"a,b",),
    ]
    assert len({key_of(value) for value in different}) == len(different)


@pytest.mark.parametrize(
    "value",
    [np.float32(1), np.array([1, 2]), np.array(1.0), True, "three", None, (), (1, 0.5), np.array(True)],
)
def test_what_is_no_key(value: object) -> None:
    with pytest.raises(ComponentError, match="a key of activations is one integer") as found:
        key_of(value, "slot 'half'")
    assert found.value.where == "slot 'half'" and "key=r.round" in found.value.hint


def test_keys_and_executions_do_not_meet() -> None:
    table = KeptActivations(1, 1, 1000)
    table.keep(1, kept(1))
    table.keep_under(1, kept(2))
    assert value_of(table.find(1)) == 1 and value_of(table.find(0, 1)) == 2
    table.forget(1)
    assert value_of(table.find(0, 1)) == 2 and table.dropped == 0


def test_a_key_serves_one_backward() -> None:
    table = KeptActivations(1, 2, 1000)
    table.keep_under(1, kept(1))
    assert value_of(table.find(0, 1)) == 1  # looked at, and still there
    table.use(1)
    with pytest.raises(UnknownKey, match=r"under this key \(1\)"):
        table.find(0, 1)
    assert table.held_bytes == 0 and table.dropped == 0


def test_the_oldest_key_goes_for_a_newer_one() -> None:
    table = KeptActivations(1, 2, 1000, "slot 'half'")
    for number in (1, 2, 3):
        table.keep_under(number, kept(number))
    assert [value_of(table.find(0, n)) for n in (2, 3)] == [2, 3] and table.dropped == 1
    with pytest.raises(
        UnknownKey, match="kept; 2 of at most 2 are there, 32 of 1,000 bytes, and 1 were dropped"
    ) as found:
        table.find(0, 1)
    assert found.value.where == "slot 'half'" and "raise kept_keys or kept_key_bytes" in found.value.hint


def test_bytes_are_bounded() -> None:
    table = KeptActivations(1, 10, 40)
    table.keep_under(1, kept(1))
    table.keep_under(2, kept(2))
    table.keep_under(3, kept(3, count=6))  # 24 bytes: the first has to go, the second may stay
    assert table.held_bytes == 40 and table.dropped == 1
    assert value_of(table.find(0, 2)) == 2
    with pytest.raises(ComponentError, match="its activations take 44 bytes, kept_key_bytes is 40"):
        table.keep_under(4, kept(4, count=11))
    assert table.held_bytes == 40 and value_of(table.find(0, 3)) == 3


def test_the_same_key_again_takes_its_place() -> None:
    table = KeptActivations(1, 2, 1000)
    for value in (1.0, 2.0, 3.0):
        table.keep_under(1, kept(value))
    assert value_of(table.find(0, 1)) == 3 and table.held_bytes == 16 and table.dropped == 0


class Holder(Component):
    TYPE_NAME = "test.Holder"


def loaded(state: bytes, **bounds: int) -> KeptActivations:
    found = KeptActivations(bounds.get("executions", 4), bounds.get("keys", 4), bounds.get("key_bytes", 1000))
    found.restore(KeptActivations.read(StateReader(Holder(), 1, state)))
    return found


def saved(change: Callable[[dict[str, list[object]]], None] = lambda fields: None) -> bytes:
    table = KeptActivations(4, 4, 1000)
    table.keep(9, kept(9))
    table.keep_under(1, kept(1))
    table.keep_under(2, kept(2))
    fields = table.save()
    change(fields)
    return pack_state(Holder(), 1, dict(fields))


def test_a_snapshot_has_both() -> None:
    table = loaded(saved())
    assert value_of(table.find(9)) == 9 and value_of(table.find(0, 1)) == 1 and table.held_bytes == 32
    assert table.save() == loaded(saved()).save()


def test_a_snapshot_for_smaller_bounds_keeps_the_newest() -> None:
    table = loaded(saved(), keys=1)
    assert value_of(table.find(0, 2)) == 2
    with pytest.raises(UnknownKey):
        table.find(0, 1)


def test_a_snapshot_of_before_there_were_keys() -> None:
    table = loaded(saved(lambda fields: fields.pop("keyed_activations") and None))
    assert value_of(table.find(9)) == 9 and table.held_bytes == 0


@pytest.mark.parametrize("name", ["activations", "keyed_activations"])
@pytest.mark.parametrize(
    "row", [[], [1, 2], ["x", [1], "<f4", []], [1, ["a"], "<f4", []], [1.5, [1], "what", []]]
)
def test_a_damaged_snapshot(name: str, row: list[object]) -> None:
    with pytest.raises(ComponentStateError, match="activations are damaged"):
        loaded(saved(lambda fields: fields.update({name: [row]})))
