"""Columns of times in CSV files, and numbers of more digits than float32 has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bb_edge.components import CsvDataSource, CsvStreamDataSource
from bb_edge.components.cell_times import seconds
from bb_edge.components.csv_rows import RowError
from bb_edge.roles import ComponentEnv, ComponentError

MAY = 1714564800  # 2024-05-01 12:00 UTC


def source(folder: Path, text: str, kind: Any = CsvDataSource, **config: object) -> Any:
    path = folder / "log.csv"
    path.write_text(text)
    return kind.construct(ComponentEnv("log", "Client", {"path": str(path), **config}, seed=1))


def rows(found: Any, ctx: Any) -> tuple[list[Any], Any]:
    x, y = found.next_batch(ctx)
    return x.tolist(), None if y is None else y.tolist()


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("2024-05-01", MAY - 12 * 3600),
        ("2024-05-01T12:00", MAY),
        ("2024-05-01 12:00:00", MAY),
        ("2024-05-01T12:00:00Z", MAY),
        ("2024-05-01T12:00:00z", MAY),
        ("2024-05-01T14:00:00+02:00", MAY),
        ("2024-05-01T08:30:00-0330", MAY),
        ("2024-05-01T14:00:00 +02", MAY),
        ("2024-05-01T12:00:00.5", MAY + 0.5),
        ("2024-05-01T12:00:00,123456789Z", MAY + 0.123456789),
        ("1969-12-31T23:59:58.5", -1.5),
        (str(MAY), MAY),
        (f"{MAY}.25", MAY + 0.25),
    ],
)
def test_times_that_are_read(cell: str, expected: float) -> None:
    assert seconds(cell) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("cell", ["", "noon", "2024-13-01", "2024-05-01T25:00", "01.05.2024", "12:00"])
def test_what_is_no_time(cell: str) -> None:
    with pytest.raises(ValueError):
        seconds(cell)


LOG = "time,temp\n2024-05-01T12:00:00Z,20\n2024-05-01T12:00:01.75Z,21\n"


def test_a_time_is_a_label_in_whole_seconds(tmp_path: Path, ctx: Any) -> None:
    found = source(tmp_path, LOG, label="time", times="time", shuffle=False)
    assert rows(found, ctx) == ([[20], [21]], [MAY, MAY + 1])
    assert found.notes == []


def test_a_time_is_a_feature_in_seconds_since_another(tmp_path: Path, ctx: Any) -> None:
    for origin in ("2024-05-01T12:00:00Z", MAY, float(MAY)):
        found = source(tmp_path, LOG, times=["time"], times_from=origin, shuffle=False)
        assert rows(found, ctx)[0] == [[0, 20], [1.75, 21]]


def test_a_stream_reads_times_too(tmp_path: Path, ctx: Any) -> None:
    config = {"order": "arrival", "batch_size": 2, "wait_ms": 0, "times": "time"}
    found = source(tmp_path, LOG, CsvStreamDataSource, label="time", **config)
    assert rows(found, ctx) == ([[20], [21]], [MAY, MAY + 1])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"times": "time"}, "column 'time' is a time, and f32 does not hold seconds since 1970.*times_from"),
        ({"times": "tine", "times_from": 0}, "no column 'tine'.*did you mean 'time'"),
        ({"times_from": 0}, "no column is named in times"),
        ({"times": "time", "times_from": "noon"}, "'noon' is not a time.*2026-01-01"),
        ({"times": "time", "times_from": True}, "True is not a time"),
        ({"times": "temp", "times_from": 0}, "column 'time' is not a number.*name the column in times"),
        ({"label": "time"}, "column 'time' is not a whole number.*name the column in times"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, config: dict[str, object], words: str) -> None:
    with pytest.raises(ComponentError, match=words):
        source(tmp_path, LOG, **config)


def test_a_cell_that_is_no_time_names_its_line(tmp_path: Path) -> None:
    text = "time,temp\nyesterday,20\n"
    with pytest.raises(RowError, match=r"log.csv:2: column 'time' is not a time: 'yesterday'"):
        source(tmp_path, text, label="time", times="time")
    with pytest.raises(RowError, match=r"log.csv:2: column 'time' is not a time: 'yesterday'"):
        source(tmp_path, text, times="time", times_from=0)


def test_a_time_without_value_is_a_missing_cell(tmp_path: Path, ctx: Any) -> None:
    text = "time,temp\n2024-05-01,20\n,21\n"
    found = source(tmp_path, text, times="time", times_from="2024-05-01", missing="skip", batch_size=0)
    assert rows(found, ctx)[0] == [[0, 20]]


def test_digits_that_float32_has_not_are_told_once_per_column(tmp_path: Path, ctx: Any) -> None:
    text = f"time,temp\n{MAY + 1},20\n{MAY + 2},16777216\n{MAY + 3},33554432\n"
    found = source(tmp_path, text, batch_size=3)
    (note,) = found.notes
    assert "digits of column 'time': 1714564801.0 is 1714564864.0 as float32" in note
    assert "make it an integer label, or name it in times" in note
    stream = source(tmp_path, text, CsvStreamDataSource, batch_size=2, wait_ms=0)
    stream.next_batch(ctx)
    assert not stream.take_left_out()  # no sample is lost
    (told,) = stream.take_notes()
    assert "digits of column 'time'" in told
    stream.next_batch(ctx)
    assert not stream.take_notes()
    as_label = source(tmp_path, text, label="time", batch_size=3)
    assert as_label.notes == [] and as_label.next_batch(ctx)[1].dtype == np.int64
    assert len(source(tmp_path, text, label="time", label_type="number").notes) == 1


@pytest.mark.parametrize("config", [{"label": "time"}, {"times_from": "2024-05-01"}])
@pytest.mark.parametrize("cell", [str(MAY * 1000), str(MAY * 1_000_000), "-200000000000"])
def test_milliseconds_are_not_taken_for_seconds(tmp_path: Path, cell: str, config: dict[str, object]) -> None:
    text = f"time,temp\n{cell},20\n"
    with pytest.raises(
        RowError, match=r"log.csv:2: column 'time' is milliseconds.*divide the column by 1000"
    ):
        source(tmp_path, text, times="time", **config)
    with pytest.raises(ComponentError, match="is not a time"):
        source(tmp_path, LOG, times="time", times_from=MAY * 1000)
