"""Rows of a CSV file as numbers: which columns, what is missing, and what a wrong row is.

A row is one line. Quoted cells may hold the delimiter, no line break: a file that is still being written
could not be told from a damaged one otherwise.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bb_edge.components import csv_remedies
from bb_edge.components.cell_times import MILLISECONDS, is_iso_time, number_of, seconds
from bb_edge.components.csv_settings import classes_of, label_among_features, listed, time_of
from bb_edge.components.feature_scaling import numbers
from bb_edge.ir.suggestions import suggestion
from bb_edge.roles.errors import ComponentError

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.component import ComponentEnv

__all__ = ["MAX_LINE", "CsvRows", "Row", "RowError", "Rows"]

MAX_LINE = 1 << 20
"""Bytes of the longest line: 50,000 numbers fit, a file without line ends does not fill the memory."""

_MISSING = frozenset(("", "na", "n/a", "#na", "#n/a", "<na>", "nan", "null", "none", "?"))
"""Cells that hold no value, in lower case."""

_MOST_F32 = 3.4028235e38

_EXACT_F32 = float(1 << 24)
"""Up to it float32 holds every whole number."""


class RowError(ComponentError):
    """A row of a CSV file that is not as configured; `where` is the file and the line."""


class _Absent(RowError):
    """A row with a cell without a value, where such rows are skipped."""


class Row(NamedTuple):
    """A row's features, and its labels where there are any."""

    features: list[float]
    labels: list[Any]  # all int, or all float


class Rows:
    """Collects rows, and gives them as arrays: `x` f32 [n, features], `y` i64 or f32 [n] or [n, labels]."""

    def __init__(self, table: CsvRows) -> None:
        from array import array

        self._table = table
        self._x, self._y = array("f"), array("f" if table.label_dtype == np.float32 else "q")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """What the arrays take."""
        return len(self._x) * self._x.itemsize + len(self._y) * self._y.itemsize

    def add(self, row: Row) -> None:
        """Adds one row."""
        self._x.extend(row.features)
        self._y.extend(row.labels)
        self._count += 1

    def arrays(self) -> tuple[Array, Array | None]:
        """Returns all of them as arrays of their own."""
        table, n = self._table, self._count
        x = np.array(self._x, np.float32).reshape(n, table.features)
        if not table.labels:
            return x, None
        y = np.array(self._y, table.label_dtype)
        return x, y.reshape(n, table.labels) if table.labels > 1 else y


class CsvRows:
    """Reads lines of one CSV file into rows. The first line says what there is: `begin`.

    - `columns`: the features, by name or by index from 0, in the order in which they are wanted; without it
      all but the labels.
    - `label`: a column of labels, or a list of columns, by name or index. `label_type`: `integer`, i64
      (default), or `number`, f32. `classes`: the texts of a label column; the label is the text's place.
    - `header`: whether the first line holds names (true). `delimiter`: one character (`,`).
    - `missing`: what a feature cell without value (empty, NA, N/A, #N/A, nan, null, none, ?) does: `refuse`,
      it is an error (default); `skip`, its row is left out, and counted; `fill`, it reads as `fill`, one
      number for all or one per feature (0); `last`, it reads as the last value of its column; rows before
      the first whole one are left out, and counted. Labels are never filled.
    - `times`: columns that hold times, by name or index: ISO 8601 (UTC where no zone is given), or seconds
      since 1970. An integer label is the whole seconds since 1970; a feature, and a label of type `number`,
      is the seconds since `times_from`, a time as well. f32 tells seconds apart for half a year around that.
    """

    def __init__(self, env: ComponentEnv, read: Mapping[str, Any]) -> None:
        self._env = env
        self.path: str = read["path"]
        self.header: bool = read["header"]
        self.first_order: list[str] = []
        """The names of features that no setting names, in the order of the first header."""
        self._delimiter: str = read["delimiter"]
        self._wanted: list[str | int] | None = listed(read["columns"])
        self._labels: list[str | int] = listed(read["label"]) or []
        self._classes = classes_of(read["classes"])
        self._integers = read["label_type"] == "integer"
        self.label_dtype: type[np.generic] = np.int64 if self._integers else np.float32
        self._missing: str = read["missing"]
        self._given_fill = read["fill"]
        self._times: list[str | int] = listed(read["times"]) or []
        self._from = time_of(read["times_from"])
        self.names: list[str] = []
        self.rounded: list[str] = []
        """Of columns whose digits f32 does not hold, what was first cut off; for the source to tell."""
        self._rounds: set[int] = set()
        self._width = 0
        self._first = ""
        self._time_picks: set[int] = set()
        self._picks: list[int] = []
        self._label_picks: list[int] = []
        self._fill: list[float] = []
        self._last: list[float | None] = []
        self._any_read = False

    @property
    def features(self) -> int:
        """How many features a row has; known once `begin` was called."""
        return len(self._picks)

    @property
    def labels(self) -> int:
        """How many labels a row has."""
        return len(self._labels)

    @property
    def last(self) -> list[float | None]:
        """The last value of each feature, for a state."""
        return list(self._last)

    @last.setter
    def last(self, values: list[float | None]) -> None:
        self._last = values

    def begin(self, line: bytes) -> None:
        """Takes the first line: the names, or a row that says how many cells rows have.

        ComponentError, which names the key, for columns that are not there; RowError for a line that is not a
        row.
        """
        if kind := csv_remedies.known_format(line):
            raise self._env.error(f"{self.path} is {kind}, not CSV", "path", csv_remedies.EXPORT)
        if remedy := csv_remedies.for_separator_line(line):
            what = f"the first line of {self.path} is {line.decode().strip()!r}, a note to a spreadsheet"
            raise self._env.error(what, "delimiter", remedy)
        cells = self._cells(line, 1)
        self._width = len(cells)
        self._first = cells[0]
        self.names = cells if self.header else []
        self._refuse_row_as_names()
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        self._label_picks = [self._index("label", wanted, twice) for wanted in self._labels]
        if self._wanted is None:
            self._picks = self._in_first_order([n for n in range(self._width) if n not in self._label_picks])
        else:
            self._picks = [self._index("columns", wanted, twice) for wanted in self._wanted]
        if not self._picks:
            raise self._env.error(f"{self.path} has no column but the labels", "columns", "name a feature")
        self._time_picks = {self._index("times", wanted, twice) for wanted in self._times}
        for pick in self._label_picks:
            if pick in self._picks and pick not in self._time_picks:
                what, hint = label_among_features(self._column(pick))
                raise self._env.error(what, "columns", hint)
        relative = {*self._picks, *(() if self._integers else self._label_picks)}
        if self._from is None and self._time_picks & relative:
            column = self._column(min(self._time_picks & relative))
            hint = 'give the time that it counts from: times_from = "2026-01-01"'
            raise self._env.error(
                f"{column} is a time, and f32 does not hold seconds since 1970", "times_from", hint
            )
        where = f"slot {self._env.slot!r}"
        self._fill = [float(v) for v in numbers(self._given_fill, self.features, "fill", where, 0.0)]
        self._last = [None] * self.features

    def _in_first_order(self, picks: list[int]) -> list[int]:
        """The features in the order of the first header, where a later one has the same names in another."""
        names = [self.names[pick] for pick in picks] if self.header else []
        known = self.first_order = self.first_order or names
        if not names or len({*names}) < len(names) or sorted(names) != sorted(known):
            return picks
        return [picks[names.index(name)] for name in known]

    def is_header(self, line: bytes) -> bool:
        """Whether a line holds the names of all columns that are read, in whatever order."""
        try:
            cells = self._cells(line, 0)
        except RowError:
            return False
        return self.header and {self.names[n] for n in (*self._picks, *self._label_picks)} <= set(cells)

    def row(self, line: bytes, number: int) -> Row | None:
        """Returns the row of a line; None for a blank line. RowError, which names file and line."""
        if line.isspace():
            return None
        cells = self._cells(line, number)
        if len(cells) != self._width:
            first_row = not self._any_read
            hint = csv_remedies.for_other_width(cells, self._width, self._delimiter, first_row)
            raise RowError(f"{len(cells)} cells, the first line has {self._width}", self._at(number), hint)
        labels = [self._label(cells[pick], pick, number) for pick in self._label_picks]
        features = [self._feature(cells[pick], place, number) for place, pick in enumerate(self._picks)]
        self._last[:] = features
        self._any_read = True
        return Row(features, labels)

    # --- cells ------------------------------------------------------------------------------------------

    def _cells(self, line: bytes, number: int) -> list[str]:
        if len(line) > MAX_LINE:
            raise RowError(f"a line of more than {MAX_LINE} bytes", self._at(number), "is it a CSV file?")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            if '"' in text:
                cells = next(csv.reader((text,), delimiter=self._delimiter, strict=True))
            else:
                cells = text.split(self._delimiter)
        except UnicodeDecodeError as error:
            raise RowError(f"it cannot be read: {error}", self._at(number), "save it as UTF-8") from error
        except csv.Error as error:
            what, hint = csv_remedies.for_quotes(text)
            raise RowError(what, self._at(number), hint) from error
        return [cell.strip() for cell in cells]

    def _feature(self, cell: str, place: int, number: int) -> float:
        pick = self._picks[place]
        is_time = pick in self._time_picks
        try:
            value = self._seconds(cell, pick, number) if is_time else number_of(cell)
            absent = value != value
        except ValueError:
            value, absent = 0.0, cell.lower() in _MISSING
            if not absent:
                kind = "time" if is_time else "number"
                hint = self._undivided(cell) or csv_remedies.for_no_number(
                    cell, is_time, not self._any_read, self.header
                )
                what = f"{self._column(pick)} is not a {kind}: {cell!r:.60}"
                raise RowError(what, self._at(number), hint) from None
        if absent:
            return self._filled(place, number)
        if not -_MOST_F32 <= value <= _MOST_F32:
            what = f"{self._column(pick)} is beyond float32: {cell!r:.60}"
            raise RowError(what, self._at(number), csv_remedies.REPAIR)
        if not -_EXACT_F32 <= value <= _EXACT_F32 and pick not in self._rounds:
            self._tell_rounding(value, pick)
        return value

    def _seconds(self, cell: str, pick: int, number: int) -> float:
        """The seconds of a time, since `times_from` where it is given. ValueError for what is not a time."""
        value = seconds(cell)
        if abs(value) >= MILLISECONDS:
            raise RowError(
                f"{self._column(pick)} is milliseconds since 1970, or finer, by its size: {cell!r:.60}",
                self._at(number),
                "times are read in seconds since 1970, or as ISO 8601: divide the column by 1000"
                " (microseconds by 1,000,000)",
            )
        return value - (self._from or 0.0)

    def _refuse_row_as_names(self) -> None:
        """ComponentError for a header that looks like a row, unless the settings use the names.

        `0,1,2` are the names that tools give columns without any.
        """
        wanted = [*(self._wanted or ()), *self._labels, *self._times]
        if any(isinstance(name, str) for name in wanted):
            return
        if self.names == [str(n) for n in range(len(self.names))]:
            return
        if self.names and all(map(_is_number, self.names)):
            raise self._env.error(
                f"the first line of {self.path} holds numbers alone ({', '.join(self.names):.60}), and is"
                " taken for the names of the columns",
                "header",
                "set header = false if it is a row; if these are names, give those that you want in columns",
            )

    def _tell_rounding(self, value: float, pick: int) -> None:
        """Notes, once per column, that float32 has fewer digits than its cells."""
        kept = float(np.float32(value))
        if kept == value:
            return
        self._rounds.add(pick)
        remedy = (
            "bring times_from nearer"
            if pick in self._time_picks
            else "make it an integer label, or name it in times if it holds times"
        )
        self.rounded.append(f"digits of {self._column(pick)}: {value!r} is {kept!r} as float32; {remedy}")

    def _filled(self, place: int, number: int) -> float:
        if self._missing == "fill":
            return self._fill[place]
        last = self._last[place]
        if self._missing == "last" and last is not None:
            return last
        what = f"{self._column(self._picks[place])} has no value"
        if self._missing == "refuse":
            hint = "repair it, or set missing to 'skip', 'fill' or 'last'"
            raise RowError(what, self._at(number), hint)
        raise _Absent(what, self._at(number), "it is skipped")

    def _label(self, cell: str, pick: int, number: int) -> float:
        if self._classes is not None:
            place = self._classes.get(cell)
            if place is None:
                if cell.lower() in _MISSING:
                    raise self._no_label(pick, number)
                hint = suggestion(cell, self._classes, "classes: ")
                raise RowError(f"{self._column(pick)} is not a class: {cell!r:.60}", self._at(number), hint)
            return place
        is_time = pick in self._time_picks
        try:
            if is_time and self._integers:
                return math.floor(self._seconds(cell, pick, number) + (self._from or 0.0))
            value = self._seconds(cell, pick, number) if is_time else number_of(cell)
            if not self._integers and -_MOST_F32 <= value <= _MOST_F32:
                if not -_EXACT_F32 <= value <= _EXACT_F32 and pick not in self._rounds:
                    self._tell_rounding(value, pick)
                return value
            whole = int(cell) if cell.lstrip("+-").isdigit() else int(value) if value.is_integer() else None
            if self._integers and whole is not None and -(2**63) <= whole < 2**63:
                return whole
        except (ValueError, OverflowError):
            pass
        if cell.lower() in _MISSING:
            raise self._no_label(pick, number)
        if self._integers and csv_remedies.is_whole(cell):
            what = f"{self._column(pick)} is beyond 64 bits: {cell!r:.60}"
            hint = (
                f"an integer label is one of {-(2**63)} to {2**63 - 1}: repair it, or set bad_rows = 'skip'"
            )
            raise RowError(what, self._at(number), hint)
        kind = "a whole number" if self._integers else "a finite number"
        if is_time or is_iso_time(cell):
            kind, hint = ("a time", "repair it") if is_time else (kind, "name the column in times")
            raise RowError(f"{self._column(pick)} is not {kind}: {cell!r:.60}", self._at(number), hint)
        hint = "set label_type = 'number', or name the texts in classes" if self._integers else "repair it"
        hint = csv_remedies.for_separated(cell) or hint
        raise RowError(f"{self._column(pick)} is not {kind}: {cell!r:.60}", self._at(number), hint)

    def _no_label(self, pick: int, number: int) -> RowError:
        hint = "give each row a label, or leave such rows out: bad_rows = 'skip'; missing is for features"
        return RowError(f"{self._column(pick)} has no value, and is a label", self._at(number), hint)

    def absent(self, error: RowError) -> bool:
        """Whether a row failed for a missing value, where such rows are skipped."""
        return isinstance(error, _Absent)

    # --- columns ----------------------------------------------------------------------------------------

    def _index(self, key: str, wanted: str | int, twice: Sequence[str]) -> int:
        if isinstance(wanted, int):
            if 0 <= wanted < self._width:
                return wanted
            raise self._env.error(
                f"{self.path} has no column {wanted}",
                key,
                self._undivided(self._first) or f"it has {self._width}, numbered from 0",
            )
        if wanted in twice:
            raise self._env.error(
                f"{self.path} has several columns {wanted!r}", key, "give their index, from 0"
            )
        if wanted in self.names:
            return self.names.index(wanted)
        hint = suggestion(wanted, self.names, "columns: ") if self.header else "give its index, from 0"
        hint = self._undivided(self._first) or hint
        raise self._env.error(f"{self.path} has no column {wanted!r:.60}", key, hint)

    def _undivided(self, line: str) -> str:
        return csv_remedies.for_undivided(line, self._width, self._delimiter)

    def _column(self, pick: int) -> str:
        return f"column {self.names[pick]!r:.60}" if self.names else f"column {pick}"

    def _at(self, number: int) -> str:
        return f"{self.path}:{number}"


def _is_number(cell: str) -> bool:
    try:
        number_of(cell)
    except ValueError:
        return False
    return cell.lower() not in _MISSING
