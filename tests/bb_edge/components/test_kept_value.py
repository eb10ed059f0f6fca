"""`bb.KeptValue`: a value that stays on a node between executions, over restarts, and into new programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import f32

from bb_edge.adoption import Former
from bb_edge.components import KeptValue
from bb_edge.components.state import pack_state
from bb_edge.engine import steps
from bb_edge.ir import types
from bb_edge.ir.values import Composite
from bb_edge.roles import ComponentStateError
from bb_edge.roles.errors import KeptValueError

CTX: Any = None
PROGRAM = """program Demo {module=Demo, binding.Main.kept="protocol|bb.KeptValue|1"}
function program.Main(x: F32[N]) -> () {entry=1, partition=self}
  slot kept: protocol
  zeros: F32[N] = Sub(x, x)
  before: F32[N] = "bb.KeptValue"::Read(zeros) {slot=kept}
  sum: F32[N] = Add(before, x)
  cmd: CommandId = "bb.KeptValue"::Write(sum) {slot=kept}
  syscall.AppEmit<name="before">(before)
"""


def bundle(*values: Any) -> Composite:
    kinds = (types.COMPOSITE if isinstance(v, Composite) else types.tensor_type(v.dtype) for v in values)
    return Composite(tuple((kind.wire_hash or 0, v) for kind, v in zip(kinds, values, strict=True)))


def restored(kept: KeptValue) -> KeptValue:
    again = KeptValue()
    again.restore(kept.serialize())
    return again


def test_the_first_value_is_read_until_one_is_written() -> None:
    kept = KeptValue()
    np.testing.assert_array_equal(kept.read(CTX, f32(7, 8)), f32(7, 8))
    kept.write(CTX, f32(1, 2))
    np.testing.assert_array_equal(kept.read(CTX, f32(7, 8)), f32(1, 2))


def test_what_is_kept_is_a_copy_that_nobody_changes() -> None:
    kept, written = KeptValue(), f32(1, 2)
    kept.write(CTX, written)
    written[:] = 9
    read: Any = kept.read(CTX, f32(0, 0))
    np.testing.assert_array_equal(read, f32(1, 2))
    with pytest.raises(ValueError, match="read-only"):
        read[0] = 5
    kept.add(CTX, f32(1, 1))
    np.testing.assert_array_equal(read, f32(1, 2))


@pytest.mark.parametrize("is_bundle", [False, True])
def test_sums(is_bundle: bool) -> None:
    def value(*numbers: float) -> Any:
        return bundle(f32(*numbers), np.array(int(numbers[0]))) if is_bundle else f32(*numbers)

    kept = KeptValue()
    first: Any = kept.add(CTX, value(1, 2))
    second: Any = kept.add(CTX, value(10, 20))
    for found, wanted in ((first, (1, 2)), (second, (11, 22)), (kept.read(CTX, value(0, 0)), (11, 22))):
        numbers, *others = found.values if is_bundle else (found,)
        np.testing.assert_array_equal(numbers, f32(*wanted))
        assert [int(other) for other in others] == ([wanted[0]] if is_bundle else [])


@pytest.mark.parametrize("kind", [np.array, np.asarray(0).dtype.type])
def test_a_number_stays_a_tensor(kind: Any) -> None:
    kept = KeptValue()
    kept.write(CTX, kind(3))
    assert isinstance(kept.read(CTX, kind(0)), np.ndarray)
    total: Any = kept.add(CTX, kind(4))
    assert isinstance(total, np.ndarray) and total.shape == () and int(total) == 7


@pytest.mark.parametrize("op", ["read", "write", "add"])
@pytest.mark.parametrize(
    ("other", "words"),
    [
        (f32(1, 2, 3), r"keeps float32\[2\], and was given float32\[3\]"),
        (np.array([1, 2], np.int64), r"keeps float32\[2\], and was given int64\[2\]"),
        (bundle(f32(1, 2)), r"keeps float32\[2\], and was given \(float32\[2\]\)"),
        ("text", "tensors and bundles of tensors, and was given a str"),
    ],
)
def test_another_kind_of_value_is_refused_with_both(op: str, other: Any, words: str) -> None:
    kept = KeptValue("slot 'kept'")
    kept.write(CTX, f32(1, 2))
    with pytest.raises(KeptValueError, match=words) as caught:
        getattr(kept, op)(CTX, other)
    assert caught.value.where == "slot 'kept'" and caught.value.hint
    np.testing.assert_array_equal(kept.read(CTX, f32(0, 0)), f32(1, 2))


def test_an_aggregate_over_nothing_changes_nothing() -> None:
    kept, nothing = KeptValue(), np.zeros(0, np.float32)
    assert kept.add(CTX, nothing) is nothing
    kept.write(CTX, nothing)
    kept.write(CTX, f32(1, 2))
    kept.write(CTX, nothing)
    for found in (kept.add(CTX, nothing), kept.read(CTX, nothing)):
        np.testing.assert_array_equal(found, f32(1, 2))


@pytest.mark.parametrize(
    "value",
    [f32(1, 2), np.array(5), bundle(f32(1), bundle(f32(2, 3), np.array(4)))],
    ids=["1-D", "0-D", "b"],
)
def test_the_value_is_in_its_state(value: Any) -> None:
    kept = KeptValue()
    assert restored(kept).read(CTX, value) is value
    kept.write(CTX, value)
    again = restored(kept)
    assert again.serialize() == kept.serialize()
    total: Any = again.add(CTX, value)
    assert type(total) is type(value)


@pytest.mark.parametrize("value", [[b"\x00"], [[[1]]], [[["a", b""]]]])
def test_a_damaged_state_is_refused(value: Any) -> None:
    with pytest.raises(ComponentStateError):
        KeptValue().restore(pack_state(KeptValue(), 1, {"value": value, "adopted": False}))


def test_a_new_program_takes_the_value_over_or_begins_anew() -> None:
    old = KeptValue()
    assert KeptValue().adopt(old.serialize()).taken == ()
    old.write(CTX, f32(1, 2))
    same, other = KeptValue(), KeptValue()
    for new in (same, other):
        assert new.adopt(old.serialize()).taken == (
            "the value that it keeps, float32[2] (it begins anew if the program gives it another shape)",
        )
    np.testing.assert_array_equal(same.read(CTX, f32(0, 0)), f32(1, 2))
    with pytest.raises(KeptValueError):
        same.write(CTX, f32(1, 2, 3))
    assert not same.anew
    other = restored(other)  # a restart before the program met it
    np.testing.assert_array_equal(other.read(CTX, f32(7, 8, 9)), f32(7, 8, 9))
    other.write(CTX, f32(1, 2, 3))
    assert other.anew == [("float32[2]", "float32[3]")]
    with pytest.raises(KeptValueError):
        other.write(CTX, f32(1, 2))


def test_a_node_tells_by_name_what_began_anew_and_goes_on(bench: Any) -> None:
    old = bench(PROGRAM)
    old.node.invoke("Main", {"x": f32(1, 2)})
    old.poll()
    former = Former.of(old.node.snapshot(old.now_ns))
    new = bench(PROGRAM.replace("program Demo", "program Other"), adopt=former)
    assert [(row.name, row.why) for row in former.rows if row.name == "kept"] == [("kept", "")]
    for numbers in ((1, 2, 3), (10, 20, 30)):
        new.node.invoke("Main", {"x": f32(*numbers)})
        new.poll()
    assert [value.tolist() for value in new.events("before")] == [[0, 0, 0], [1, 2, 3]]
    assert not new.of(steps.OpFailed)
    assert new.of(steps.ValueBeganAnew) == [steps.ValueBeganAnew("Main", "kept", "float32[2]", "float32[3]")]
    assert new.node.counters["components.kept_anew"] == 1


def test_executions_of_a_node_hand_it_on_and_another_shape_fails_alone(bench: Any) -> None:
    b = bench(PROGRAM)
    for numbers in ((1, 2), (10, 20), (1, 2, 3), (100, 200)):
        b.node.invoke("Main", {"x": f32(*numbers)})
        b.poll()
    before = [value.tolist() for value in b.events("before")]
    assert before == [[0, 0], [1, 2], [11, 22]]
    (failed,) = [step for step in b.said if isinstance(step, steps.OpFailed)]
    assert isinstance(failed.error, KeptValueError) and "slot 'kept'" in str(failed.error)


def test_a_restart_goes_on_with_it(bench: Any) -> None:
    b = bench(PROGRAM)
    b.node.invoke("Main", {"x": f32(1, 2)})
    b.poll()
    again = bench(PROGRAM, snapshot=b.node.snapshot(b.now_ns), now_ns=0)
    again.node.invoke("Main", {"x": f32(10, 20)})
    again.poll()
    assert [value.tolist() for value in again.events("before")] == [[1, 2]]
