"""`bb.ArrayDataSource`: whole batches, every sample once per epoch, the same again with the same seed."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bb_edge.components import ArrayDataSource
from bb_edge.components.stored_samples import hot
from bb_edge.extend import pack_state
from bb_edge.ir.values import TRIGGER
from bb_edge.roles import ComponentEnv, ComponentError, ComponentStateError

Ctx = Any


def shard(n: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Samples whose first number is their index."""
    return np.arange(n * 2, dtype=np.float32).reshape(n, 2), np.arange(n) % 3


def labels(source: ArrayDataSource, ctx: Ctx, batches: int) -> list[list[int]]:
    """The sample numbers of some batches."""
    found = []
    for _ in range(batches):
        x, y = source.next_batch(ctx)
        assert y is not None
        numbers = (x[:, 0] / 2).astype(int)
        np.testing.assert_array_equal(y, numbers % 3)
        found.append(numbers.tolist())
    return found


def test_all_samples_at_once_without_a_copy(ctx: Ctx) -> None:
    x, y = shard()
    source = ArrayDataSource(x, y)
    a, b = source.next_batch(ctx), source.next_batch(ctx)
    np.testing.assert_array_equal(a[0], x)
    assert a[0] is b[0] and not a[0].flags.writeable
    assert source.num_samples(ctx) == 10
    assert source.num_samples(ctx).dtype == np.int64 and source.num_samples(ctx).shape == ()


def test_an_epoch_has_every_sample_once_in_whole_batches(ctx: Ctx) -> None:
    source = ArrayDataSource(*shard(), batch_size=5, seed=3)
    for _ in range(4):
        epoch = labels(source, ctx, 2)
        assert sorted([*chain.from_iterable(epoch)]) == list(range(10))


def test_epochs_come_in_orders_of_their_own(ctx: Ctx) -> None:
    source = ArrayDataSource(*shard(100), batch_size=100 // 2, seed=3)
    epochs = [[*chain.from_iterable(labels(source, ctx, 2))] for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_same_seed_gives_the_same_batches(ctx: Ctx) -> None:
    one, same, other = (ArrayDataSource(*shard(50), batch_size=7, seed=s) for s in (1, 1, 2))
    found = labels(one, ctx, 20)
    assert labels(same, ctx, 20) == found
    assert labels(other, ctx, 20) != found


def test_unshuffled_batches_come_in_order(ctx: Ctx) -> None:
    source = ArrayDataSource(*shard(), batch_size=4, shuffle=False)
    assert labels(source, ctx, 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]


def test_wrap_fills_the_last_batch_from_the_next_epoch(ctx: Ctx) -> None:
    source = ArrayDataSource(*shard(), batch_size=4, shuffle=False, remainder="wrap")
    assert labels(source, ctx, 4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1], [2, 3, 4, 5]]
    shuffled = ArrayDataSource(*shard(), batch_size=4, remainder="wrap", seed=9)
    everything = [*chain.from_iterable(labels(shuffled, ctx, 10))]
    for epoch in range(4):
        assert sorted(everything[epoch * 10 : (epoch + 1) * 10]) == list(range(10))


def test_reset_starts_over(ctx: Ctx) -> None:
    source = ArrayDataSource(*shard(), batch_size=4, seed=1)
    first = labels(source, ctx, 5)
    assert source.reset(ctx, TRIGGER) is TRIGGER
    assert labels(source, ctx, 5) == first
    assert source.on_data_loaded(ctx) is TRIGGER


def test_samples_that_hold_no_finite_numbers_are_told() -> None:
    x, y = shard()
    assert ArrayDataSource(x, y).notes == []
    x[3, 1], x[7] = np.nan, (np.inf, -np.inf)
    (note,) = ArrayDataSource(x, y, where="slot 'shard'").notes
    assert note == (
        "slot 'shard': 2 of 10 samples of x hold NaN or infinities in columns 0, 1, the first is sample 3;"
        " training spreads them to all parameters: repair them, or leave them out"
    )
    (note,) = ArrayDataSource(shard()[0], np.full(10, np.nan), where="slot 'shard'").notes
    assert "10 of 10 samples of y" in note


def test_one_hot_labels(ctx: Ctx) -> None:
    source = ArrayDataSource(*shard(), one_hot=4)
    _, y = source.next_batch(ctx)
    assert y is not None and y.dtype == np.float32
    np.testing.assert_array_equal(y, np.eye(4, dtype=np.float32)[np.arange(10) % 3])


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.uint64])
@pytest.mark.parametrize("classes", [1, 64, 65, 1000])
def test_one_hot_rows_of_labels_of_any_width(classes: int, dtype: type) -> None:
    y = np.array([0, min(classes // 3, 200), min(classes - 1, 255)], dtype)
    rows = hot(y, classes)
    assert rows.dtype == np.float32 and rows.flags.writeable and rows.shape == (3, classes)
    assert np.flatnonzero(rows).tolist() == [row * classes + int(label) for row, label in enumerate(y)]
    rows[:] = 7.0  # what was returned is the caller's
    assert hot(y, classes).sum() == 3.0


def test_without_labels(ctx: Ctx) -> None:
    source = ArrayDataSource(shard()[0], batch_size=4)
    assert source.next_batch(ctx)[1] is None
    assert ArrayDataSource(shard()[0]).next_batch(ctx)[1] is None


@pytest.mark.parametrize("remainder", ["drop", "wrap"])
@pytest.mark.parametrize("before", range(6))
def test_a_snapshot_goes_on_where_it_stopped(ctx: Ctx, before: int, remainder: str) -> None:
    one, other = (ArrayDataSource(*shard(), batch_size=4, seed=5, remainder=remainder) for _ in range(2))
    labels(one, ctx, before)
    other.restore(one.serialize())
    assert labels(other, ctx, 7) == labels(one, ctx, 7)


def test_another_shard_begins_a_new_epoch_and_says_so(ctx: Ctx) -> None:
    before = ArrayDataSource(*shard(11), batch_size=4)
    labels(before, ctx, 2)
    source = ArrayDataSource(*shard(10), batch_size=5, seed=3)
    source.restore(before.serialize())
    (note,) = source.take_notes()
    assert "10 samples, and had 11" in note and not source.take_notes()
    assert sorted(chain(*labels(source, ctx, 2))) == list(range(10)), "each sample once"
    assert labels(source, ctx, 2) != labels(ArrayDataSource(*shard(10), batch_size=5, seed=3), ctx, 2)


@pytest.mark.parametrize(("epoch", "position"), [(0, 12), (0, -1), (-1, 0)])
def test_a_state_that_cannot_be_is_refused(epoch: int, position: int) -> None:
    source = ArrayDataSource(*shard(11), batch_size=4)
    fields = {"epoch": epoch, "position": position, "samples": 11, "scaling": None}
    with pytest.raises(ComponentStateError, match=f"stands at sample {position} of 11, in epoch {epoch}"):
        source.restore(pack_state(source, 2, fields))


# --- from a file ----------------------------------------------------------------------------------


def construct(**config: object) -> ArrayDataSource:
    return ArrayDataSource.construct(ComponentEnv("shard", "Client", config, seed=7))


def test_a_file(ctx: Ctx, tmp_path: Path) -> None:
    x, y = shard()
    path = tmp_path / "shard.npz"
    np.savez_compressed(path, x=x, y=y)
    source = construct(path=str(path), batch_size=5)
    assert sorted([*chain.from_iterable(labels(source, ctx, 2))]) == list(range(10))
    np.savez(path, x=x)
    assert construct(path=str(path)).next_batch(ctx)[1] is None


def test_the_file_of_samples_that_are_not_finite_is_named(tmp_path: Path) -> None:
    x, y = shard()
    x[4, 1] = np.nan
    path = tmp_path / "shard.npz"
    np.savez(path, x=x, y=y)
    (note,) = construct(path=str(path)).notes
    assert note.startswith(f"slot 'shard', {path}: 1 of 10 samples of x hold NaN or infinities in column 1,")


def test_one_hot_without_labels_says_what_to_do() -> None:
    with pytest.raises(ComponentError, match=r"there are no labels.*or leave one_hot out"):
        ArrayDataSource(shard()[0], one_hot=3)
    with pytest.raises(ComponentError, match=r"the labels are float64 \[10\].*y.astype"):
        ArrayDataSource(shard()[0], np.zeros(10), one_hot=3)


def test_arrays_of_the_construction_state(ctx: Ctx) -> None:
    x, y = shard()
    source = ArrayDataSource.construct(ComponentEnv("shard", tensors={"x": x, "y": y}))
    np.testing.assert_array_equal(source.next_batch(ctx)[0], x)


def test_a_damaged_file_is_a_typed_error_wherever_it_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "shard.npz"
    np.savez_compressed(path, x=shard(40)[0], y=shard(40)[1])
    whole = path.read_bytes()
    for cut in range(0, len(whole), 11):
        path.write_bytes(whole[:cut])
        with pytest.raises(ComponentError, match="slot 'shard'"):
            construct(path=str(path))
    for at in range(0, len(whole), 11):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            construct(path=str(path))  # a flipped bit in a name or a time changes nothing that is read
        except ComponentError as error:
            assert "shard.npz" in str(error)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "no data"),
        ({"path": "{}/none.npz"}, "there is no file"),
        ({"path": "{}"}, "cannot be read"),
        ({"path": "{}/y.npz"}, "no array 'x'"),
        ({"path": "{}/object.npz"}, "cannot be read"),
        ({"path": "{}/rows.csv"}, "cannot be read.*bind CsvDataSource"),
        ({"path": "{}/good.npz", "batch_size": 11}, "lower batch_size"),
        ({"path": "{}/good.npz", "batch_size": -1}, "must lie in"),
        ({"path": "{}/good.npz", "one_hot": 2}, "2 classes"),
        ({"path": "{}/good.npz", "remainder": "keep"}, "one of drop, wrap"),
        ({"path": "{}/good.npz", "max_bytes": 100}, "max_bytes is 100"),
        ({"path": "{}/good.npz", "batchsize": 2}, "unknown configuration key"),
        (
            {"path": "{}/short.npz"},
            r"'x' of .*short.npz holds 10 samples, and 'y'.* \[9\] \(save one label per",
        ),
        (
            {"path": "{}/texts.npz"},
            r"'y' of .*texts.npz holds text \(<U3\), not numbers \(number the classes",
        ),
        (
            {"path": "{}/complex.npz"},
            r"'x' of .*complex.npz holds complex64, which no tensor has \(save real",
        ),
        ({"path": "{}/wide.npz", "one_hot": 3}, "sample 1 is the first beyond them .*np.unique"),
        ({"path": "{}/words.npz"}, r"'x' of .*words.npz holds text .* \(save what the model is given"),
        ({"path": "{}/empty.npz"}, "no samples"),
    ],
)
def test_a_bad_configuration_says_what_is_wrong(
    tmp_path: Path, config: dict[str, object], message: str
) -> None:
    x, y = shard()
    np.savez(tmp_path / "good.npz", x=x, y=y)
    np.savez(tmp_path / "y.npz", y=y)
    np.savez(tmp_path / "short.npz", x=x, y=y[:-1])
    np.savez(tmp_path / "texts.npz", x=x, y=np.array(["cat", "dog"] * 5))
    np.savez(tmp_path / "words.npz", x=np.array(["a", "b"]), y=y[:2])
    np.savez(tmp_path / "empty.npz", x=x[:0])
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    np.savez(tmp_path / "complex.npz", x=x.astype(np.complex64), y=y)
    np.savez(tmp_path / "wide.npz", x=x, y=np.array([0, 2**62] * 5))
    np.savez(tmp_path / "object.npz", x=np.array([{}], dtype=object))
    filled = {k: v.format(tmp_path) if isinstance(v, str) else v for k, v in config.items()}
    with pytest.raises(ComponentError, match=message) as caught:
        construct(**filled)
    assert "slot 'shard'" in str(caught.value)
