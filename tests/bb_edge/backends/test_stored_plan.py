"""Memory plans that come with an artifact: read, refused by name, held against the kernels, used."""

from __future__ import annotations

import random
import threading
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.backends import NumPyBackend
from bb_edge.backends.arena import Arena
from bb_edge.backends.fitting import fit
from bb_edge.backends.plan import Placing
from bb_edge.backends.plan_memory import Lifetime, live_bytes, plan_memory
from bb_edge.backends.program import NumPyProgram
from bb_edge.backends.stored_plan import (
    BASIS,
    MAX_PLAN_TEXT,
    MemoryPlanError,
    StoredEntry,
    StoredPlan,
    decode,
    encode,
)
from bb_edge.ir import keys, onnx_pb2
from bb_kernels import TensorSpec

Make = Callable[..., onnx_pb2.FunctionProto]
F32 = Callable[..., np.ndarray]
NODES = [("MatMul", "x x", "t"), ("Relu", "t", "u"), ("MatMul", "u t", "v"), ("Softmax", "v", "y")]


def entry_of(function: onnx_pb2.FunctionProto, *specs: TensorSpec) -> StoredEntry:
    """What a compiler would store."""
    program = NumPyBackend().prepare(function)
    assert isinstance(program, NumPyProgram)
    fitted = fit(program.graph, specs, {})
    placing = Placing(fitted, program.graph.outputs)
    layout = plan_memory(placing.lives)
    return StoredEntry(
        specs,
        len(function.output),
        len(fitted.steps),
        layout.total,
        live_bytes(placing.lives),
        tuple(placing.lives),
        layout.offsets,
    )


def with_plan(function: onnx_pb2.FunctionProto, text: str) -> onnx_pb2.FunctionProto:
    planned = onnx_pb2.FunctionProto()
    planned.CopyFrom(function)
    planned.metadata_props.add(key=keys.MEMORY_PLAN_KEY, value=text)
    return planned


def sealed(body: str, basis: str = BASIS, version: str = "v1") -> str:
    """A text with the right checksum, whatever it says."""
    return f"{version}|{basis}|{zlib.crc32(f'{basis}|{body}'.encode()):08x}|{body}"


@pytest.fixture
def chain(make: Make) -> onnx_pb2.FunctionProto:
    return make("x", "y", NODES)


SQUARE = TensorSpec(np.dtype(np.float32), (16, 16))


# --- the text -------------------------------------------------------------------------------------


@given(
    raw=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 9), st.integers(0, 5)), max_size=12),
    shape=st.lists(st.integers(0, 99), max_size=4),
)
def test_what_was_written_is_read(raw: list[tuple[int, int, int]], shape: list[int]) -> None:
    lives = tuple(Lifetime(size, first, first + length) for size, first, length in raw)
    layout = plan_memory(lives)
    entry = StoredEntry(
        (TensorSpec(np.dtype(np.int8), tuple(shape)), SQUARE),
        2,
        14,
        layout.total,
        live_bytes(lives),
        lives,
        layout.offsets,
    )
    plan = StoredPlan((entry, entry._replace(inputs=())))
    assert decode(encode(plan)) == plan


GOOD = "float32[16x16] 1 4 128 128 0:64:0:1,64:64:1:4"


def test_the_sample_that_the_refusals_change_is_good() -> None:
    assert decode(sealed(GOOD)).entries[0].offsets == (0, 64)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (GOOD.replace(",64:", ",32:"), "not at a multiple of 64"),
        (GOOD.replace(",64:", ",0:"), "buffers 0 and 1 of its memory plan are alive together and overlap"),
        (GOOD.replace("0:64:0:1", "0:65:0:1"), "overlap"),
        (GOOD.replace(" 128 128 ", " 64 128 "), "beyond the arena of 64"),
        (GOOD.replace(" 128 128 ", " 128 64 "), "alive at once"),
        (GOOD.replace(":1:4", ":1:5"), "lives from step 1 to 5 of 4"),
        (GOOD.replace(":1:4", ":4:1"), "lives from step 4 to 1"),
        (GOOD.replace(":1:4", ":-1:4"), "not a number"),
        (GOOD.replace(":1:4", ":1:4:9"), "5 numbers"),
        (GOOD.replace(" 1 4 ", " 1 04 "), "not a number"),
        (GOOD.replace("0:64", "999999999999999:64"), "not a number|not at a multiple|beyond"),
        (GOOD.replace("float32", "float99"), "not a dtype and shape"),
        (GOOD.replace("16x16", "16x"), "not a dtype and shape"),
        (GOOD.replace(" 1 4 ", " 1 "), "5 fields"),
        ("|".join([GOOD] * 9), "9 shapes"),
        ("", "1 fields"),
    ],
)
def test_what_is_wrong_is_named(body: str, why: str) -> None:
    with pytest.raises(MemoryPlanError, match=why) as caught:
        decode(sealed(body), "graph 'f'")
    assert caught.value.where == "graph 'f'"


def test_another_version_is_refused() -> None:
    with pytest.raises(MemoryPlanError, match=r"'v2', this runtime takes 'v1'.*matching bb-host"):
        decode(sealed(GOOD, version="v2"))


def test_a_wrong_checksum_and_a_cut_are_refused() -> None:
    with pytest.raises(MemoryPlanError, match="checksum"):
        decode(sealed(GOOD).replace("128 128", "192 128"))
    with pytest.raises(MemoryPlanError, match="cut off"):
        decode("v1|1-64")
    with pytest.raises(MemoryPlanError, match="characters"):
        decode("v" * (MAX_PLAN_TEXT + 1))


# --- in a program ---------------------------------------------------------------------------------


def test_a_stored_plan_is_used_and_gives_the_same_results(chain: onnx_pb2.FunctionProto, f32: F32) -> None:
    """The stored offsets are not the planner's own: everything lies 4,096 bytes further up."""
    own = entry_of(chain, SQUARE)
    moved = own._replace(arena=own.arena + 4096, offsets=tuple(offset + 4096 for offset in own.offsets))
    program = NumPyBackend().prepare(with_plan(chain, encode(StoredPlan((moved,)))))
    x = f32(16, 16)
    np.testing.assert_array_equal(program.run((x,))[0], NumPyBackend().prepare(chain).run((x,))[0])
    assert isinstance(program, NumPyProgram)
    assert program.plan_for((x,)).arena_bytes == own.arena + 4096  # type: ignore[union-attr]
    assert (program.plans_made, program.plans_stale) == (1, 0)


def test_other_shapes_are_planned_on_the_device(chain: onnx_pb2.FunctionProto, f32: F32) -> None:
    program = NumPyBackend().prepare(with_plan(chain, encode(StoredPlan((entry_of(chain, SQUARE),)))))
    small, square = f32(8, 8), f32(16, 16)
    for x in (small, square, small):
        np.testing.assert_array_equal(program.run((x,))[0], NumPyBackend().prepare(chain).run((x,))[0])


def test_a_plan_for_other_buffers_is_refused_when_the_program_is_made(chain: onnx_pb2.FunctionProto) -> None:
    own = entry_of(chain, SQUARE)
    smaller = [life._replace(nbytes=life.nbytes // 2) for life in own.lives]
    forged = own._replace(lives=tuple(smaller), live=live_bytes(smaller))
    with pytest.raises(MemoryPlanError, match=r"buffer 0 .* 512 bytes .* need 1024"):
        NumPyBackend().prepare(with_plan(chain, encode(StoredPlan((forged,)))))
    fewer = own._replace(lives=(), offsets=(), live=0)
    with pytest.raises(MemoryPlanError, match=r"0 buffers in \d steps, the kernels here need"):
        NumPyBackend().prepare(with_plan(chain, encode(StoredPlan((fewer,)))))


def test_a_plan_made_for_other_kernels_is_replaced_and_counted(
    chain: onnx_pb2.FunctionProto, f32: F32
) -> None:
    own = entry_of(chain, SQUARE)
    smaller = [life._replace(nbytes=life.nbytes // 2) for life in own.lives]
    older = own._replace(lives=tuple(smaller), live=live_bytes(smaller))
    program = NumPyBackend().prepare(with_plan(chain, encode(StoredPlan((older,), "0-16"))))
    x = f32(16, 16)
    np.testing.assert_array_equal(program.run((x,))[0], NumPyBackend().prepare(chain).run((x,))[0])
    assert program.plans_stale == 1  # type: ignore[attr-defined]


def test_shapes_that_do_not_fit_the_graph_are_refused(chain: onnx_pb2.FunctionProto) -> None:
    own = entry_of(chain, SQUARE)
    wrong = own._replace(inputs=(TensorSpec(np.dtype(np.float32), (16, 3)),))
    with pytest.raises(MemoryPlanError, match="shapes that do not fit"):
        NumPyBackend().prepare(with_plan(chain, encode(StoredPlan((wrong,)))))


def test_a_plan_for_shapes_that_depend_on_data_is_refused(make: Make, chain: onnx_pb2.FunctionProto) -> None:
    dynamic = make("x", "y", [("NonZero", "x", "y")])
    text = encode(StoredPlan((entry_of(chain, SQUARE),)))
    with pytest.raises(MemoryPlanError, match="depends on data"):
        NumPyBackend().prepare(with_plan(dynamic, text))


def test_a_call_of_one_function_has_its_plan(make: Make, chain: onnx_pb2.FunctionProto, f32: F32) -> None:
    text = encode(StoredPlan((entry_of(chain, SQUARE),)))
    caller = make("p", "q", [("d::f", "p", "q")])
    program = NumPyBackend().prepare(caller, {("d", "f"): with_plan(chain, text)})
    program.run((f32(16, 16),))
    with pytest.raises(MemoryPlanError):
        NumPyBackend().prepare(caller, {("d", "f"): with_plan(chain, text + " ")})


def test_mutated_plans_are_refused_or_harmless(chain: onnx_pb2.FunctionProto, f32: F32) -> None:
    """Thousands of texts, half of them with a checksum that is right: an error by name, or right results."""
    text = encode(StoredPlan((entry_of(chain, SQUARE),)))
    basis, _, body = text.split("|", 3)[1:]
    x = f32(16, 16)
    want = NumPyBackend().prepare(chain).run((x,))[0]
    rng = random.Random(5)
    refused = 0
    for number in range(3000):
        target = list(text if number % 2 else body)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            at = rng.randrange(len(target))
            kind = rng.randrange(3)
            if kind == 0:
                target[at] = rng.choice("0123456789:,|x[] -")
            elif kind == 1:
                target.insert(at, rng.choice("0123456789:,"))
            elif len(target) > 1:
                del target[at]
        mutated = "".join(target)
        if not number % 2:
            mutated = sealed(mutated, rng.choice((basis, "0-8")))
        try:
            program = NumPyBackend().prepare(with_plan(chain, mutated))
        except MemoryPlanError:
            refused += 1
            continue
        np.testing.assert_array_equal(program.run((x,))[0], want)
    assert refused > 2000


def test_a_plan_for_inputs_of_any_size_takes_no_memory_before_it_runs(chain: onnx_pb2.FunctionProto) -> None:
    own = entry_of(chain, SQUARE)
    huge = own._replace(inputs=(TensorSpec(np.dtype(np.float32), (1 << 20, 1 << 20)),))
    program = NumPyBackend().prepare(with_plan(chain, encode(StoredPlan((huge,)))))
    assert program.arena.nbytes == 0  # type: ignore[attr-defined]


# --- the arena ------------------------------------------------------------------------------------


def test_an_arena_is_as_large_as_what_was_announced() -> None:
    arena = Arena()
    arena.reserve(1000)
    first = arena.take(100)
    assert arena.nbytes == 1000
    assert first.ctypes.data % 64 == 0
    assert np.shares_memory(first, arena.take(1000))
    larger = arena.take(2000)
    assert not np.shares_memory(first, larger)
    assert np.shares_memory(larger, arena.take(5))


def test_programs_of_one_backend_share_an_arena_and_disturb_each_other_in_nothing(
    make: Make, chain: onnx_pb2.FunctionProto, f32: F32
) -> None:
    other = make("x w", "y", [("Conv", "x w", "t"), ("Sigmoid", "t", "u"), ("MaxPool", "u", "y", POOL)])
    together = NumPyBackend(shared_arena=True)
    first, second = together.prepare(chain), together.prepare(other)
    x, image, w = f32(16, 16), f32(1, 2, 9, 9), f32(3, 2, 3, 3)
    want = NumPyBackend().prepare(chain).run((x,))[0], NumPyBackend().prepare(other).run((image, w))[0]
    assert together.arena is not None
    for _ in range(3):
        np.testing.assert_array_equal(first.run((x,))[0], want[0])
        np.testing.assert_array_equal(second.run((image, w))[0], want[1])
        together.arena.take(together.arena.nbytes).fill(0xFF)  # what is left behind means nothing


def test_threads_take_turns_in_a_shared_arena(make: Make, f32: F32) -> None:
    together = NumPyBackend(shared_arena=True)
    function = make("x", "y", [("MatMul", "x x", "t"), ("Relu", "t", "u"), ("MatMul", "u t", "y")])
    inputs = [f32(64, 64) for _ in range(3)]
    wants = [NumPyBackend().prepare(function).run((x,))[0] for x in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        program = together.prepare(function)
        for _ in range(500):
            if not np.array_equal(program.run((inputs[number],))[0], wants[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


POOL = {"kernel_shape": [2, 2]}
