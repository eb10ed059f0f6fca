"""Rows that are dealt reach a node's data source: in memory where it is ours, in a file where it is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bb_edge.components import ArrayDataSource, CsvDataSource, FedAvg
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.errors import ComponentError
from bb_host.errors import ScenarioError
from bb_host.simulate.row_files import DealtSource, Hand, RowFile, check_takes_rows, handed_over
from bb_host.simulate.scenario import Member


def read(kind: type[ArrayDataSource], path: Path, **config: object) -> list[bytes]:
    """The first batch of a source that is constructed as a node does it."""
    source = kind.construct(ComponentEnv(slot="shard", config={"path": str(path), **config}, seed=3))
    return [array.tobytes() for array in source.next_batch(None) if array is not None]  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_in_memory_are_those_of_a_file(tmp_path: Path, order: str, scenario) -> None:
    data = tmp_path / "data.npz"
    x = np.arange(60, dtype=np.float64).reshape(20, 3)
    np.savez(data, x=np.asarray(x, order=order), y=np.arange(20), ids=np.arange(20))  # type: ignore[call-overload]
    (dealt,) = scenario(4).dealt
    hand = RowFile(type(dealt)("shard", data, dealt.rule), scenario(4), [1]).hand_of(Member(1, 2))
    path = tmp_path / "client-2.npz"
    with handed_over(ArrayDataSource, str(path), hand):
        assert path.exists()
        found = read(ArrayDataSource, path, batch_size=5)
    with handed_over(DealtSource, str(path), hand):
        assert not path.exists()
        assert read(DealtSource, path, batch_size=5) == found
        with pytest.raises(ComponentError, match=r"holds 512 bytes, max_bytes is 500"):
            read(DealtSource, path, max_bytes=500)
    assert not path.exists() and not DealtSource.given


CONFIGS = (
    {},
    {"batch_size": 4, "remainder": "wrap"},
    {"batch_size": 4, "shuffle": False, "one_hot": 3},
    {"one_hot": 3, "scale": "standard"},
    {"batch_size": 7, "scale": "minmax"},
)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("labels", [True, False])
def test_a_source_that_shares_its_rows_gives_the_batches_of_one_that_has_them(tmp_path, config, labels):
    if config.get("one_hot") and not labels:
        pytest.skip("one-hot rows need labels")
    rng = np.random.default_rng(3)
    arrays = {"x": rng.random((50, 2, 3), np.float32)}
    if labels:
        arrays["y"] = rng.integers(0, 3, 50)
    hand, path = Hand(arrays, np.array([7, 7, 49, 0, 12, 31, 30, 2, 7], np.uint8)), tmp_path / "dealt.npz"
    env = ComponentEnv(slot="shard", config={"path": str(path), **config}, seed=3)
    with handed_over(ArrayDataSource, str(path), hand):
        own = ArrayDataSource.construct(env)
    with handed_over(DealtSource, str(path), hand):
        shares = DealtSource.construct(env)
    held = sum(v.nbytes for v in vars(shares).values() if isinstance(v, np.ndarray))
    assert held <= 8  # no rows: the number of samples alone
    assert [a.tobytes() for a in own.batch_like()] == [a.tobytes() for a in shares.batch_like()]
    for turn in range(6):
        if turn == 4:
            shares.restore(own.serialize())
        batches = [source.next_batch(None) for source in (own, shares)]  # type: ignore[arg-type]
        (x, y), (shared_x, shared_y) = batches
        assert x.dtype == shared_x.dtype and x.shape == shared_x.shape and x.tobytes() == shared_x.tobytes()
        assert (y is None) == (shared_y is None) == (not labels)
        if y is not None and shared_y is not None:
            assert y.dtype == shared_y.dtype and y.tobytes() == shared_y.tobytes()


def test_what_a_source_notes_of_its_rows_names_the_file_that_they_are_of(tmp_path: Path) -> None:
    path = tmp_path / "client-0.npz"
    hand = Hand({"x": np.array([[1.0], [np.nan]], np.float32)}, np.arange(2), "sensors.npz")
    with handed_over(DealtSource, str(path), hand):
        env = ComponentEnv(slot="shard", config={"path": str(path)}, seed=3)
        (note,) = DealtSource.construct(env).notes
    assert "slot 'shard', sensors.npz: 1 of 2 samples" in note and str(path) not in note


def test_rows_that_are_no_numbers_are_refused_as_they_are_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "client-0.npz"
    with (
        handed_over(DealtSource, str(path), Hand({"x": np.zeros(3, "datetime64[s]")}, np.arange(2))),
        pytest.raises(ComponentError, match="not numbers"),
    ):
        read(DealtSource, path)


def test_a_dealt_source_reads_the_files_of_others(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, x=np.ones((4, 2), np.float32))
    assert read(DealtSource, path) == [np.ones((4, 2), np.float32).tobytes()]
    with pytest.raises(ComponentError, match="there is no file"):
        read(DealtSource, tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("kind", "taken"), [(ArrayDataSource, True), (CsvDataSource, False), (FedAvg, False)]
)
def test_rows_are_dealt_to_what_reads_them(kind, taken):
    if taken:
        check_takes_rows(kind, "shard")
    else:
        with pytest.raises(ScenarioError, match=r"slot 'shard' is a bb\.\w+, and rows are dealt as \.npz"):
            check_takes_rows(kind, "shard")
