"""Rows that are dealt reach a node's data source: in memory where it is ours, in a file where it is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bb_edge.components import ArrayDataSource, CsvDataSource, FedAvg
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.errors import ComponentError
from bb_host.errors import ScenarioError
from bb_host.simulate.row_files import DealtSource, RowFile, check_takes_rows, handed_over


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
    rows = RowFile(type(dealt)("shard", data, dealt.rule), scenario(4)).rows_of(2)
    path = tmp_path / "client-2.npz"
    with handed_over(ArrayDataSource, path, rows):
        assert path.exists()
        found = read(ArrayDataSource, path, batch_size=5)
    with handed_over(DealtSource, path, rows):
        assert not path.exists()
        assert read(DealtSource, path, batch_size=5) == found
        with pytest.raises(ComponentError, match=r"holds 512 bytes, max_bytes is 500"):
            read(DealtSource, path, max_bytes=500)
    assert not path.exists() and not DealtSource.given


def test_rows_that_are_no_numbers_are_refused_as_they_are_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "client-0.npz"
    with (
        handed_over(DealtSource, path, {"x": np.zeros(3, "datetime64[s]")}),
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
