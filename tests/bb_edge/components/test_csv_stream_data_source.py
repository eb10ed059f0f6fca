"""`bb.CsvStreamDataSource`: every row of a file that grows once, over restarts, rotations and truncations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bb_edge.components import CsvStreamDataSource
from bb_edge.components.csv_rows import MAX_LINE, RowError
from bb_edge.components.csv_stream_data_source import NotEnoughRows
from bb_edge.engine import steps
from bb_edge.ir.values import TRIGGER
from bb_edge.roles import ComponentEnv, ComponentError, ComponentStateError

Ctx = Any
MS = 1_000_000


class Log:
    """A CSV file that a logger writes: `n` and `v`, which is 10 n."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "pump.csv"
        self.begin()

    def begin(self, header: str = "n,v\n") -> None:
        self.path.write_text(header)

    def add(self, *numbers: int) -> None:
        self.write("".join(f"{n},{10 * n}\n" for n in numbers))

    def write(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)

    def rotate(self, name: str = "pump.csv.1") -> None:
        self.path.rename(self.path.with_name(name))
        self.begin()

    def source(self, **config: object) -> CsvStreamDataSource:
        settings = {"path": str(self.path), "columns": "v", "label": "n", "wait_ms": 0, **config}
        return CsvStreamDataSource.construct(ComponentEnv("pump", "Client", settings, seed=7))

    def arrivals(self, **config: object) -> CsvStreamDataSource:
        return self.source(**{"order": "arrival", "batch_size": 1, **config})


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def batch(source: CsvStreamDataSource, ctx: Ctx) -> list[int]:
    """The numbers of a batch's rows."""
    x, y = source.next_batch(ctx)  # type: ignore[misc]
    assert x.dtype == np.float32 and y.dtype == np.int64
    assert x.ravel().tolist() == [10 * n for n in y]
    return [int(n) for n in y]


def batches(source: CsvStreamDataSource, ctx: Ctx) -> list[int]:
    """Everything that is there."""
    found: list[int] = []
    try:
        while True:
            found += batch(source, ctx)
    except NotEnoughRows:
        return found


def told(source: CsvStreamDataSource) -> list[str]:
    return [left_out.why for left_out in source.take_left_out()]


# --- orders ---------------------------------------------------------------------------------------


def test_every_row_comes_once_in_the_order_of_the_file(ctx: Ctx, log: Log) -> None:
    source = log.arrivals(batch_size=2)
    log.add(1, 2, 3)
    assert batches(source, ctx) == [1, 2]
    log.add(4, 5, 6, 7)
    assert batches(source, ctx) == [3, 4, 5, 6]
    assert source.num_samples(ctx) == 7


def test_the_newest_rows(ctx: Ctx, log: Log) -> None:
    source = log.source(order="latest", batch_size=3)
    log.add(*range(10))
    assert batch(source, ctx) == batch(source, ctx) == [7, 8, 9]
    log.add(10)
    assert batch(source, ctx) == [8, 9, 10]


def test_random_batches_of_what_is_held_follow_from_the_seed(ctx: Ctx, log: Log) -> None:
    log.add(*range(50))
    source, same, other = log.source(batch_size=20), log.source(batch_size=20), log.source(seed=1)
    first, second = batch(source, ctx), batch(source, ctx)
    assert len(set(first)) == 20 and first != second
    assert [batch(same, ctx), batch(same, ctx)] == [first, second]
    assert batch(other, ctx)[:20] != first


@pytest.mark.parametrize(("keep", "least"), [("newest", 900), ("reservoir", 0)])
def test_what_is_held_is_bounded_in_bytes(ctx: Ctx, log: Log, keep: str, least: int) -> None:
    log.add(*range(1000))
    source = log.source(keep=keep, max_bytes=12 * 100, batch_size=100)
    held = batch(source, ctx)
    assert len(set(held)) == 100 and min(held) >= least
    assert source.num_samples(ctx) == 100
    assert len(source.serialize()) < 3000


# --- a file that somebody else writes -------------------------------------------------------------


def test_half_of_a_line_waits_for_the_rest(ctx: Ctx, log: Log) -> None:
    source = log.arrivals()
    log.write("1,10\n2,2")
    assert batches(source, ctx) == [1]
    log.write("0\n3,3")
    assert batches(source, ctx) == [2]
    log.write("0\n")
    assert batches(source, ctx) == [3]
    assert told(source) == []


def test_a_rotated_file_is_read_to_its_end_first(ctx: Ctx, log: Log) -> None:
    source = log.arrivals()
    log.add(1, 2)
    assert batches(source, ctx) == [1, 2]
    log.add(3)
    log.write("4,40")  # the logger was stopped before the line end
    log.rotate("anything")
    log.add(5, 6)
    assert batches(source, ctx) == [3, 4, 5, 6]
    assert told(source) == []


def test_a_rotation_in_the_middle_of_many_lines(ctx: Ctx, log: Log) -> None:
    source = log.arrivals(batch_size=4)
    log.add(*range(10))
    assert batch(source, ctx) == [0, 1, 2, 3]
    log.rotate()
    log.add(*range(10, 20))
    assert batches(source, ctx) == list(range(4, 20))


def test_a_rotated_file_that_is_gone_is_told(ctx: Ctx, log: Log) -> None:
    source = log.arrivals()
    log.add(1)
    assert batches(source, ctx) == [1]
    log.add(2)
    log.rotate()
    (log.path.parent / "pump.csv.1").unlink()
    log.add(3)
    assert batches(source, ctx) == [3]
    (why,) = told(source)
    assert "the former file is gone: what came after its line 2 is lost" in why


def test_a_truncated_file_is_read_from_its_beginning(ctx: Ctx, log: Log) -> None:
    source = log.arrivals()
    log.add(1, 2, 3)
    assert batches(source, ctx) == [1, 2, 3]
    log.begin()
    log.add(4)
    assert batches(source, ctx) == [4]
    (why,) = told(source)
    assert "truncated or written anew" in why


def test_a_truncated_file_that_is_longer_again_is_noticed(ctx: Ctx, log: Log) -> None:
    source = log.arrivals()
    log.add(1, 2, 3)
    assert batches(source, ctx) == [1, 2, 3]
    log.begin()
    log.add(*range(4, 40))
    assert batches(source, ctx) == list(range(4, 40))
    assert len(told(source)) == 1


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("config", [{}, {"bad_rows": "refuse"}])
def test_a_break_before_a_row_that_cannot_be_read_is_told_once(
    ctx: Ctx, log: Log, config: dict[str, str], gone: bool
) -> None:
    source = log.arrivals(**config)
    log.add(1)
    assert batches(source, ctx) == [1]
    if gone:
        log.path.rename(log.path.with_name("old"))
    log.begin("5,50\n")  # a logger that does not write the header again
    log.path.with_name("old").unlink(missing_ok=True)
    for _ in range(3):
        with pytest.raises(ComponentError, match="no column 'n'"):
            batch(source, ctx)
    assert len(told(source)) == 1
    log.begin()
    log.add(6, 7)
    assert batches(source, ctx) == [6, 7]
    assert told(source) == []  # nothing of the file was read, so nothing can be missed


def test_a_file_that_is_away_for_a_moment(ctx: Ctx, log: Log) -> None:
    source = log.arrivals()
    log.add(1)
    log.path.rename(log.path.with_name("old"))
    with pytest.raises(NotEnoughRows):
        batch(source, ctx)
    log.begin()
    log.add(2)
    assert batches(source, ctx) == [1, 2]


def test_a_header_in_mid_file_that_has_the_columns_in_another_order_is_followed(ctx: Ctx, log: Log) -> None:
    """A logger of another version writes on in the same file: rows were read into the wrong columns."""
    log.add(1)
    source = log.arrivals()
    log.write("v,n\n20,2\nt,v,n\n0,30,3\n")
    assert batches(source, ctx) == [1, 2, 3]
    log.write("n,w\n")  # it lacks a column that is read: no header, as before, and rows have two cells again
    assert batches(source, ctx) == [] and "2 cells, the first line has 3" in " ".join(told(source))


def test_columns_that_nobody_has_named_keep_their_order(ctx: Ctx, log: Log) -> None:
    log.begin("a,b\n")
    log.write("1,2\nb,a\n4,3\n")
    source = log.arrivals(columns=None, label=None)
    assert [source.next_batch(ctx)[0].tolist() for _ in range(2)] == [[[1, 2]], [[3, 4]]]  # type: ignore[index]
    state = source.serialize()
    log.rotate()
    log.begin("b,a\n")
    log.write("6,5\n")
    again = log.arrivals(columns=None, label=None)
    again.restore(state)
    assert again.next_batch(ctx)[0].tolist() == [[5, 6]]  # type: ignore[index]


def test_a_logger_that_begins_again_repeats_the_header(ctx: Ctx, log: Log) -> None:
    source = log.arrivals()
    log.add(1)
    log.write("n,v\n")
    log.add(2)
    assert batches(source, ctx) == [1, 2]
    assert told(source) == []


def test_a_new_file_may_have_other_columns_if_those_that_are_named_are_there(ctx: Ctx, log: Log) -> None:
    source = log.arrivals()
    log.add(1)
    log.path.rename(log.path.with_name("old"))
    log.begin("extra,v,n\n")
    log.write("0,20,2\n")
    assert batches(source, ctx) == [1, 2]
    log.path.rename(log.path.with_name("older"))
    log.begin("n,volume\n")
    log.write("3,30\n")
    for _ in range(2):  # it stays before the header until somebody mends it
        with pytest.raises(ComponentError, match="no column 'v'"):
            batch(source, ctx)


# --- wrong rows -----------------------------------------------------------------------------------


def test_wrong_rows_are_skipped_counted_and_told(ctx: Ctx, log: Log) -> None:
    source = log.arrivals()
    log.write("1,10\nx,1\n2\n2,20\n")
    assert batches(source, ctx) == [1, 2]
    left_out = source.take_left_out()
    assert sum(one.samples for one in left_out) == 2
    assert f"the first: {log.path}:3: column 'n' is not a whole number" in left_out[0].why


def test_a_wrong_row_can_stop_it_until_it_is_mended(ctx: Ctx, log: Log) -> None:
    source = log.source(order="random", batch_size=1, bad_rows="refuse")
    log.write("1,10\nx,1\n2,20\n")
    for _ in range(2):
        with pytest.raises(RowError, match="not a whole number") as caught:
            batch(source, ctx)
        assert caught.value.where == f"{log.path}:3"
    log.path.write_text("n,v\n1,10\n5,50\n2,20\n")
    source.next_batch(ctx)
    assert source.num_samples(ctx) == 3  # what came before it was not read twice


def test_a_line_without_end_is_one_wrong_row(ctx: Ctx, log: Log) -> None:
    source = log.arrivals(label=None)
    log.write("1," + "7" * (2 * MAX_LINE) + "\n")
    log.write("2,20\n")
    x, y = source.next_batch(ctx)  # type: ignore[misc]
    assert (x.tolist(), y) == ([[20]], None)
    assert {"more than" in why for why in told(source)} == {True}


# --- at the start ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"columns": "w"}, "has no column 'w'"),
        ({"keep": "reservoir", "order": "latest"}, "leave one of the two out"),
        ({"max_bytes": 12}, "max_bytes holds 1 rows, batch_size is 32"),
        ({"max_bytes": 1}, "one sample takes 12 bytes"),
        ({"order": "any"}, "one of random, arrival, latest"),
        ({"scale": "fixed"}, "no numbers are given"),
    ],
)
def test_a_bad_configuration_says_what_is_wrong(log: Log, config: dict[str, object], says: str) -> None:
    with pytest.raises(ComponentError, match=says):
        log.source(**config)


def test_a_file_without_a_first_line_is_refused(log: Log) -> None:
    for text in ("", "n,v"):
        log.path.write_text(text)
        with pytest.raises(ComponentError, match="start the logger first"):
            log.source()
    log.path.unlink()
    with pytest.raises(ComponentError, match="there is no file"):
        log.source()


# --- restarts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["random", "arrival", "latest"])
def test_a_restart_goes_on_where_it_stopped(ctx: Ctx, log: Log, order: str) -> None:
    log.add(*range(20))
    config = {"order": order, "batch_size": 3, "scale": "standard"}
    source, other = log.source(**config), log.source(**config)
    for _ in range(2):
        source.next_batch(ctx)
    other.restore(source.serialize())
    log.add(*range(20, 30))
    log.rotate()
    log.add(*range(30, 40))
    for _ in range(3):
        (x, y), (same_x, same_y) = source.next_batch(ctx), other.next_batch(ctx)  # type: ignore[misc]
        np.testing.assert_array_equal(x, same_x)
        np.testing.assert_array_equal(y, same_y)


def test_a_rotation_while_the_node_was_away(ctx: Ctx, log: Log) -> None:
    source = log.arrivals()
    log.add(1, 2)
    assert batch(source, ctx) == [1]
    state = source.serialize()
    log.rotate()
    log.add(3)
    again = log.arrivals()
    again.restore(state)
    assert batches(again, ctx) == [2, 3]


def test_another_batch_size_after_a_restart(ctx: Ctx, log: Log) -> None:
    source = log.arrivals(batch_size=2)
    log.add(*range(9))
    assert batch(source, ctx) == [0, 1]
    again = log.arrivals(batch_size=3)
    again.restore(source.serialize())
    assert batch(again, ctx) == [2, 3, 4]


def test_a_state_of_other_columns_is_refused(ctx: Ctx, log: Log) -> None:
    log.add(1)
    source = log.arrivals()
    batch(source, ctx)
    for config in ({"columns": ["v", "n"], "label": None}, {"label_type": "number"}):
        with pytest.raises(ComponentStateError):
            log.arrivals(**config).restore(source.serialize())


def test_a_scaling_that_is_configured_anew_has_the_statistics_of_the_rows_that_are_there(
    ctx: Ctx, log: Log
) -> None:
    source = log.source(order="latest", batch_size=2)
    log.add(2, 4)
    batch(source, ctx)
    again = log.source(order="latest", batch_size=2, scale="minmax")
    again.restore(source.serialize())
    assert again.next_batch(ctx)[0].tolist() == [[0], [1]]  # type: ignore[index]
    log.add(6)
    assert again.next_batch(ctx)[0].tolist() == [[0.5], [1]]  # type: ignore[index]


def test_statistics_follow_the_rows(ctx: Ctx, log: Log) -> None:
    source = log.source(order="latest", batch_size=2, scale="minmax", scale_rows=3)
    log.add(0, 2)
    assert source.next_batch(ctx)[0].tolist() == [[0], [1]]  # type: ignore[index]
    log.add(4, 100)
    assert source.next_batch(ctx)[0].tolist() == [[1], [25]]  # type: ignore[index]


# --- in a node ------------------------------------------------------------------------------------

PROGRAM = """program Demo {module=Demo, binding.Main.d="data_source|bb.CsvStreamDataSource|1"}
function program.Main(go: Trigger) -> () {entry=1, partition=self}
  slot d: data_source
  x: F32[2,1], y: I64[2] = role.data_loader.NextBatch(go) {slot=d, control_inputs=1}
  syscall.AppEmit<name="y">(y)
"""


@pytest.fixture
def node(bench: Callable[..., Any], log: Log) -> Callable[..., Any]:
    def make(**config: object) -> Any:
        settings = {"path": str(log.path), "columns": "v", "label": "n", "batch_size": 2, "order": "arrival"}
        return bench(PROGRAM, components={"d": {**settings, **config}})

    return make


def test_a_batch_waits_for_its_rows(node: Callable[..., Any], log: Log) -> None:
    b = node(poll_ms=100)
    log.add(1)
    b.node.invoke("Main", {"go": TRIGGER})
    b.poll()
    b.poll(5_000 * MS)
    assert b.events("y") == []
    log.add(2)
    b.poll(100 * MS)
    b.poll()
    assert [y.tolist() for y in b.events("y")] == [[1, 2]]
    b.settle()
    b.assert_clean()


MARKED = """program Demo {module=Demo, binding.Main.d="data_source|bb.CsvStreamDataSource|1"}
function program.Main(mark: I64) -> () {entry=1, partition=self}
  slot d: data_source
  x: F32[1,1], y: I64[1] = role.data_loader.NextBatch(mark) {slot=d, control_inputs=1}
  z: I64[1] = Add(y, mark)
  syscall.AppEmit<name="y">(z)
"""


def test_of_several_that_wait_the_first_comes_first(bench: Callable[..., Any], log: Log) -> None:
    settings = {"path": str(log.path), "columns": "v", "label": "n", "batch_size": 1, "order": "arrival"}
    b = bench(MARKED, components={"d": {**settings, "poll_ms": 100}})
    for mark in (100, 200, 300):
        b.node.invoke("Main", {"mark": np.array([mark])})
        b.poll(10 * MS)
    log.add(1, 2, 3, 4)
    b.poll(100 * MS)
    b.poll()
    assert [z.tolist() for z in b.events("y")] == [[101], [202], [303]]
    b.node.invoke("Main", {"mark": np.array([400])})
    b.poll()
    assert [z.tolist() for z in b.events("y")][3:] == [[404]]
    b.settle()
    b.assert_clean()


def test_a_batch_does_not_overtake_those_that_wait(bench: Callable[..., Any], log: Log) -> None:
    settings = {"path": str(log.path), "columns": "v", "label": "n", "batch_size": 1, "order": "arrival"}
    b = bench(MARKED, components={"d": {**settings, "poll_ms": 100}})
    b.node.invoke("Main", {"mark": np.array([100])})
    b.poll(10 * MS)
    log.add(1, 2)
    b.node.invoke("Main", {"mark": np.array([200])})
    b.poll(10 * MS)
    b.poll(100 * MS)
    b.poll()
    assert [z.tolist() for z in b.events("y")] == [[101], [202]]


def test_a_batch_that_waits_too_long_says_how_many_rows_there_are(node: Callable[..., Any], log: Log) -> None:
    b = node(wait_ms=500)
    log.add(1)
    b.node.invoke("Main", {"go": TRIGGER})
    b.settle()
    (failed,) = b.of(steps.OpFailed)
    assert isinstance(failed.error, NotEnoughRows)
    assert "has 1 rows for a batch of 2, after 500 ms" in failed.text
    log.add(2)
    b.node.invoke("Main", {"go": TRIGGER})
    b.settle()
    assert [y.tolist() for y in b.events("y")] == [[1, 2]]


def test_the_node_tells_and_counts_what_is_left_out(node: Callable[..., Any], log: Log) -> None:
    b = node()
    log.write("1,10\nrubbish\n2,20\n")
    b.node.invoke("Main", {"go": TRIGGER})
    b.settle()
    (step,) = b.of(steps.DataLeftOut)
    assert (step.target, step.slot, step.samples) == ("Main", "d", 1)
    assert b.node.counters["data.left_out"] == 1
    assert "data.breaks" not in b.node.counters
    log.begin()
    log.add(3, 4)
    for _ in range(2):
        b.node.invoke("Main", {"go": TRIGGER})
        b.settle()
    (_, step) = b.of(steps.DataLeftOut)
    assert "truncated" in step.why and step.samples == 0
    assert (b.node.counters["data.left_out"], b.node.counters["data.breaks"]) == (1, 1)
    assert [y.tolist() for y in b.events("y")] == [[1, 2], [3, 4]]


def test_digits_that_are_rounded_are_told_once_and_are_no_break(node: Callable[..., Any], log: Log) -> None:
    b = node()
    log.write("1,16777217\n2,16777219\n")
    for _ in range(2):
        b.node.invoke("Main", {"go": TRIGGER})
        b.settle()
    (step,) = b.of(steps.DataNoted)
    assert (step.target, step.slot) == ("Main", "d")
    assert "16777217.0 is 16777216.0 as float32" in step.note
    assert not b.of(steps.DataLeftOut)
    assert not {"data.left_out", "data.breaks"} & b.node.counters.keys()


def test_columns_that_the_program_was_not_compiled_for_are_refused_at_install(
    node: Callable[..., Any], log: Log
) -> None:
    with pytest.raises(ComponentError, match="no column 'w'"):
        node(columns="w")
