"""`bb.CsvDataSource`: columns and labels, wrong rows by file and line, bounded memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bb_edge.components import CsvDataSource
from bb_edge.components.csv_rows import MAX_LINE, RowError
from bb_edge.roles import ComponentEnv, ComponentError

Ctx = Any

PUMP = "time,temp,vibration,state\n1,20.5,0.1,ok\n2,21.0,0.2,ok\n3,90.0,7.5,fault\n4,21.5,0.1,ok\n"


def construct(path: Path, text: str | bytes | None = PUMP, **config: object) -> CsvDataSource:
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    settings = {"path": str(path), "shuffle": False, **config}
    return CsvDataSource.construct(ComponentEnv("pump", "Client", settings, seed=7))


def everything(source: CsvDataSource, ctx: Ctx) -> tuple[list[list[float]], list[Any]]:
    x, y = source.next_batch(ctx)
    assert x.dtype == np.float32
    return x.tolist(), [] if y is None else y.tolist()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pump.csv"


# --- columns and labels ---------------------------------------------------------------------------


def test_features_and_class_labels_by_name(ctx: Ctx, path: Path) -> None:
    source = construct(path, columns=["vibration", "temp"], label="state", classes=["ok", "fault"])
    x, y = source.next_batch(ctx)
    np.testing.assert_array_equal(x, np.array([[0.1, 20.5], [0.2, 21], [7.5, 90], [0.1, 21.5]], np.float32))
    assert y is not None and (y.dtype, y.tolist()) == (np.int64, [0, 0, 1, 0])
    assert source.num_samples(ctx) == 4


def test_columns_by_index_without_a_header(ctx: Ctx, path: Path) -> None:
    source = construct(path, "1;2;3\n4;5;6\n", header=False, delimiter=";", label=2, label_type="number")
    x, y = source.next_batch(ctx)
    assert x.tolist() == [[1, 2], [4, 5]]
    assert y is not None and (y.dtype, y.tolist()) == (np.float32, [3, 6])


def test_several_labels_are_rows(ctx: Ctx, path: Path) -> None:
    assert everything(construct(path, "a,b,c\n1,2,3\n", label=["c", "a"]), ctx) == ([[2]], [[3, 1]])


def test_large_whole_labels_keep_all_their_digits(ctx: Ctx, path: Path) -> None:
    x, y = everything(construct(path, f"t,v\n{2**62 + 1},0.5\n3.0,1\n", label="t"), ctx)
    assert (x, y) == ([[0.5], [1]], [2**62 + 1, 3])


def test_one_hot_labels(ctx: Ctx, path: Path) -> None:
    source = construct(path, columns="temp", label="state", classes=["ok", "fault"], one_hot=2)
    assert everything(source, ctx)[1] == [[1, 0], [1, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize(
    "text",
    ["\ufeffa,b\r\n1,2\r\n\r\n3,4", 'a,"b"\n"1",2\n3,"4"\n\n', " a , b\n 1 ,2\n3,4  \n"],
    ids=["byte order mark, CRLF, no last line end", "quotes", "blanks"],
)
def test_the_dialects_of_spreadsheets(ctx: Ctx, path: Path, text: str) -> None:
    assert everything(construct(path, text, columns=["b", "a"]), ctx)[0] == [[2, 1], [4, 3]]


def test_batches_come_as_those_of_arrays(ctx: Ctx, path: Path) -> None:
    text = "v\n" + "".join(f"{n}\n" for n in range(10))
    one = construct(path, text, batch_size=4, shuffle=True, remainder="wrap")
    other = construct(path, text, batch_size=4, shuffle=True, remainder="wrap")
    first = [one.next_batch(ctx)[0].ravel().tolist() for _ in range(3)]
    other.restore(one.serialize())
    assert sorted((first[0] + first[1] + first[2])[:10]) == list(range(10))
    assert one.next_batch(ctx)[0].tolist() == other.next_batch(ctx)[0].tolist()
    assert [a.shape for a in one.batch_like()] == [(4, 1)]


def test_the_compiler_knows_the_kinds() -> None:
    ports = CsvDataSource.port_types
    assert ports({"columns": ["a", "b"], "label": "c"}, {}) == {
        "NextBatch.batch": "F32[?,2]",
        "NextBatch.labels": "I64[?]",
    }
    assert ports({"label": ["c", "d"], "label_type": "number"}, {})["NextBatch.labels"] == "F32[?,2]"
    assert ports({"label": "c", "one_hot": 3}, {})["NextBatch.labels"] == "F32[?,3]"
    assert ports({}, {}) == {"NextBatch.batch": "F32[?,?]"}


# --- missing values and wrong rows ----------------------------------------------------------------

GAPS = "a,b\n1,2\n,3\n#N/A,4\n5,nan\n6,7\n"


def test_missing_values_are_refused_by_line_and_column(path: Path) -> None:
    with pytest.raises(RowError, match="column 'a' has no value") as caught:
        construct(path, GAPS)
    assert caught.value.where == f"{path}:3" and "fill" in caught.value.hint


def test_missing_values_as_configured(ctx: Ctx, path: Path) -> None:
    skipping = construct(path, GAPS, missing="skip")
    assert everything(skipping, ctx)[0] == [[1, 2], [6, 7]]
    assert skipping.notes == [
        f"slot 'pump': 3 rows are skipped; the first: {path}:3: column 'a' has no value"
    ]
    assert everything(construct(path, GAPS, missing="fill"), ctx)[0][1] == [0, 3]
    filled = everything(construct(path, GAPS, missing="fill", fill=[-1, -2]), ctx)[0]
    assert filled == [[1, 2], [-1, 3], [-1, 4], [5, -2], [6, 7]]
    assert everything(construct(path, GAPS, missing="last"), ctx)[0] == [
        [1, 2],
        [1, 3],
        [1, 4],
        [5, 4],
        [6, 7],
    ]


def test_there_is_no_last_value_at_first(ctx: Ctx, path: Path) -> None:
    with pytest.raises(ComponentError, match="holds no rows, 1 are skipped"):
        construct(path, "a\nNA\n", missing="last")
    source = construct(path, "a,b\n1,\n,3\n4,5\n,6\n", missing="last")  # none before the first whole row
    assert source.notes == [f"slot 'pump': 2 rows are skipped; the first: {path}:2: column 'b' has no value"]
    assert everything(source, ctx)[0] == [[4, 5], [4, 6]]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("1,2,3", "3 cells, the first line has 2"),
        ("1", "1 cells"),
        ("one,2", "column 'a' is not a number: 'one'"),
        ("inf,2", "column 'a' is beyond float32"),
        ("1e39,2", "beyond float32"),
        ('"1,2', "a quote is not closed in its line .close it"),
        ('"1"0,2', "text stands beside the quotes of a cell .write a quote inside"),
        (
            "1_000,2",
            "column 'a' is not a number: '1_000' .write numbers without separators between thousands.",
        ),
        (
            '"1,000",2',
            "is not a number: '1,000' .write numbers without separators .*, and with decimal points",
        ),
        ('"1,000.5",2', "is not a number: '1,000.5' .write numbers without separators between thousands."),
        (
            '"1,000,000",2',
            "is not a number: '1,000,000' .write numbers without separators between thousands.",
        ),
        ("1,1_000", "column 'b' is not a whole number: '1_000' .write numbers without separators"),
        ("1,2.5", "column 'b' is not a whole number: '2.5'"),
        ("1,", "column 'b' has no value, and is a label .give each row a label"),
        ("1,#N/A", "column 'b' has no value, and is a label"),
        (
            "1,99999999999999999999",
            "'b' is beyond 64 bits: '9+' .an integer label is one of -9223372036854775808",
        ),
        ("1,-1e30", "column 'b' is not a whole number"),
        ("1,inf", "not a whole number"),
        ("1,\x00", "not a whole number"),
    ],
)
def test_a_wrong_row_names_file_and_line_or_is_skipped(ctx: Ctx, path: Path, line: str, says: str) -> None:
    text = f"a,b\n1,2\n{line}\n3,4\n"
    with pytest.raises(RowError, match=says) as caught:
        construct(path, text, label="b")
    assert caught.value.where == f"{path}:3"
    source = construct(path, text, label="b", bad_rows="skip")
    assert everything(source, ctx) == ([[1], [3]], [2, 4])
    (note,) = source.notes
    assert f"1 rows are skipped; the first: {path}:3" in note


def test_bytes_that_are_no_text_are_a_wrong_row(ctx: Ctx, path: Path) -> None:
    with pytest.raises(RowError, match="save it as UTF-8"):
        construct(path, b"a\n1\n\xff\xfe\n")
    assert everything(construct(path, b"a\n1\n\xff\xfe\n2\n", bad_rows="skip"), ctx)[0] == [[1], [2]]


def test_a_line_without_end_is_a_wrong_row_within_bounded_memory(ctx: Ctx, path: Path) -> None:
    text = b"a\n1\n" + b"7" * (3 * MAX_LINE) + b"\n2\n"
    with pytest.raises(RowError, match=f"more than {MAX_LINE} bytes"):
        construct(path, text)
    assert everything(construct(path, text, bad_rows="skip"), ctx)[0] == [[1], [2]]


# --- what is refused at the start -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"columns": ["tmp"]}, "has no column 'tmp'.*did you mean 'temp'"),
        ({"columns": [9]}, "has no column 9"),
        ({"columns": ["temp", "temp"]}, "one twice"),
        ({"columns": []}, "names none"),
        ({"columns": {"temp": 1}}, "is not a column"),
        ({"columns": [True]}, "is not a column"),
        ({"label": "staet"}, "has no column 'staet'"),
        ({"label": "state"}, "not a whole number: 'ok'.*classes"),
        ({"label": "state", "classes": ["ok"]}, "is not a class: 'fault'"),
        ({"classes": ["ok"]}, "one label column"),
        ({"label": "state", "classes": ["ok", "ok"]}, "named twice"),
        ({"label": "state", "classes": "ok"}, "list of texts"),
        ({"delimiter": ""}, "not one character"),
        (
            {"delimiter": ";", "columns": "temp"},
            "has no column 'temp' .';' divides no line: set delimiter = ','",
        ),
        ({"delimiter": ";", "columns": [1]}, "has no column 1 .';' divides no line: set delimiter = ','"),
        ({"delimiter": ";"}, "is not a number: .*';' divides no line: set delimiter = ','"),
        ({"fill": 0}, "missing is not 'fill'"),
        ({"missing": "fill", "fill": [0, 0], "columns": "temp"}, "2 numbers for 1 features"),
        ({"missing": "fill", "fill": "0", "columns": "temp"}, "must be a number"),
        ({"header": False, "columns": "temp"}, "give its index"),
        ({"batch_size": 5, "columns": "temp"}, "lower batch_size"),
        ({"max_bytes": 8, "columns": "temp"}, "take more than 8 bytes.*reservoir"),
        ({"colums": ["temp"]}, "unknown configuration key"),
    ],
)
def test_a_bad_configuration_says_what_is_wrong(path: Path, config: dict[str, object], says: str) -> None:
    with pytest.raises(ComponentError, match=says) as caught:
        construct(path, **config)
    assert "slot 'pump'" in caught.value.where or isinstance(caught.value, RowError)


@pytest.mark.parametrize("text", ["", "a,b\n", "\n\n"])
def test_a_file_without_rows_is_refused(path: Path, text: str) -> None:
    with pytest.raises(ComponentError, match="holds no rows"):
        construct(path, text)


def test_names_that_stand_twice_are_told_apart_by_index(ctx: Ctx, path: Path) -> None:
    with pytest.raises(ComponentError, match="several columns 'a'"):
        construct(path, "a,a\n1,2\n", columns="a")
    assert everything(construct(path, None, columns=1), ctx)[0] == [[2]]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, says in (("none.csv", "there is no file"), ("", "a folder"), ("fifo", "a FIFO")):
        with pytest.raises(ComponentError, match=says):
            construct(tmp_path / name, None)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ComponentError, match="cannot be read"):
        construct(tmp_path / "loop", None)


def test_a_path_is_required() -> None:
    with pytest.raises(ComponentError, match="missing configuration key"):
        CsvDataSource.construct(ComponentEnv("pump"))


# --- bounded memory -------------------------------------------------------------------------------


def test_a_file_larger_than_the_bound_gives_its_newest_rows_or_a_sample_of_all(ctx: Ctx, path: Path) -> None:
    path.write_text("v,n\n" + "".join(f"{n},{n}\n" for n in range(5000)))
    bound = {"max_bytes": 12 * 100, "label": "n"}
    x, y = everything(construct(path, None, keep="newest", **bound), ctx)
    assert y == list(range(4900, 5000)) and [v for (v,) in x] == y
    x, y = everything(construct(path, None, keep="reservoir", **bound), ctx)
    assert len(set(y)) == 100 and [v for (v,) in x] == y
    assert 1900 < np.mean(y) < 3100  # of all of the file
    assert everything(construct(path, None, keep="reservoir", **bound), ctx)[1] == y
    assert everything(construct(path, None, keep="reservoir", seed=8, **bound), ctx)[1] != y


def test_a_longer_file_begins_a_new_epoch_and_says_so(path: Path) -> None:
    state = construct(path, "a\n1\n2\n").serialize()
    source = construct(path, "a\n1\n2\n3\n")
    source.restore(state)
    (note,) = source.take_notes()
    assert "has 3 samples, and had 2" in note


# --- remedies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "config", "words"),
    [
        ("a,b\nred,1\n", {}, "column 'a' is not a number: 'red' .leave a column of texts out"),
        ("a,b\n1,1\nred,1\n", {}, "csv:3: column 'a' is not a number: 'red' .repair it, or set bad_rows"),
        ("a;b\n1,5;2\n", {"delimiter": ";"}, "'1,5' .these look like decimal commas"),
        (
            "sep=;\na;b\n1;2\n",
            {},
            "is 'sep=;', a note to a spreadsheet .delete that line, and set delimiter = ';'",
        ),
        (
            "a,b\n1,ok\n2,\n",
            {"label": "b", "classes": ["ok"]},
            "csv:3: column 'b' has no value, and is a label",
        ),
        ("a,b\n1,5,2,5\n", {}, "4 cells, the first line has 2 .these look like decimal commas"),
        (
            "a,b\n1,2\n",
            {"header": False},
            "csv:1: column 0 is not a number: 'a' .if the first line holds the",
        ),
        ("a,b\nred,1\nblue,2\n", {"bad_rows": "skip"}, "no rows, 2 are skipped; the first: .*leave a column"),
    ],
)
def test_a_remedy_is_one_for_all_rows_where_all_are_wrong(
    path: Path, text: str, config: dict[str, object], words: str
) -> None:
    with pytest.raises(ComponentError, match=words):
        construct(path, text, **config)


def test_a_first_line_of_numbers_is_no_header(ctx: Ctx, path: Path) -> None:
    for config in ({}, {"columns": [0]}):
        with pytest.raises(ComponentError, match=r"holds numbers alone \(1.5, 2\).*set header = false"):
            construct(path, "1.5,2\n3,4\n", **config)
    assert everything(construct(path, "1.5,2\n3,4\n", header=False), ctx)[0] == [[1.5, 2], [3, 4]]
    # Names all the same: those that tools give columns without any, and those that the settings use.
    assert everything(construct(path, "0,1\n3,4\n"), ctx)[0] == [[3, 4]]
    assert everything(construct(path, "2023,2024\n3,4\n", columns=["2024"]), ctx)[0] == [[4]]


@pytest.mark.parametrize(
    ("start", "kind"),
    [(b"PK\x03\x04\n", "a zip archive, as .npz and .xlsx are"), (b"\x1f\x8b\x08\n", "packed by gzip")],
)
def test_a_file_of_another_kind_is_called_what_it_is(path: Path, start: bytes, kind: str) -> None:
    with pytest.raises(ComponentError, match=f"is {kind}, not CSV.*export it as CSV"):
        construct(path, start)


def test_a_label_that_is_a_feature_by_another_spelling_is_refused_with_its_name(path: Path) -> None:
    with pytest.raises(ComponentError, match="column 'b' is the label, and one of the features"):
        construct(path, "a,b\n1,2\n", columns=[0, 1], label="b")


@pytest.mark.parametrize(
    ("text", "place"),
    [("a,b\n1,0\n2,3\n", "pump.csv:3"), ("a,b\n\n1,0\n2,3\n", "sample 1")],
    ids=["each line is a row", "a blank line, so that samples alone are counted"],
)
def test_a_label_that_is_no_class_is_found_by_its_line(path: Path, text: str, place: str) -> None:
    found = construct(path, text, label="b").wrong_label(3, -1)
    assert found is not None
    assert found[0].endswith(f"{place} has label 3, the model has 3 classes, 0 to 2")
    assert construct(path, text, label="b").wrong_label(3, 3) is None  # the number of no class
    assert construct(path, text, label="b").wrong_label(4, -1) is None


def test_a_class_by_which_a_missing_value_goes_is_a_class(ctx: Ctx, path: Path) -> None:
    source = construct(path, "a,b\n1,none\n2,some\n", label="b", classes=["none", "some"])
    assert everything(source, ctx)[1] == [0, 1]
