"""`bb.CsvDataSource`: batches of the rows of a CSV file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, ClassVar

from bb_edge.components.csv_rows import MAX_LINE, CsvRows, RowError, Rows
from bb_edge.components.csv_settings import CSV, wrong_csv_settings
from bb_edge.components.replay_buffer import ReplayBuffer
from bb_edge.components.stored_samples import BATCHES, StoredSamples
from bb_edge.input_files import FileRefused, open_regular
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.errors import ComponentError
from bb_edge.roles.settings import Misfit, Setting

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["CsvDataSource", "csv_ports", "opened"]

_AT_ONCE = 1024
"""Rows that are read before they go to a buffer."""


class CsvDataSource(StoredSamples):
    """Yields batches of rows of a CSV file: features f32, [rows, features], and labels where there are any.

    The file is read once, at the start, line by line. `CsvRows` documents the settings of columns,
    how batches are formed as for every `StoredSamples`. Besides:

    - `bad_rows`: what a row that cannot be read does: `refuse`, it is an error that names file and line
      (default); `skip`, it is left out, and how many are is said at the start.
    - `keep`: which rows are kept: `all` of them, a larger file than `max_bytes` is refused (default);
      the `newest` that fit; a fair sample of all of them, drawn from the seed (`reservoir`).
    - `max_bytes`: the most bytes that the rows may take in memory (64 MiB).

    `bb.CsvStreamDataSource` follows a file that grows.
    """

    TYPE_NAME: ClassVar[str] = "bb.CsvDataSource"
    CONFIG: ClassVar[Mapping[str, Setting]] = {
        **CSV,
        "bad_rows": Setting.text("refuse", ("refuse", "skip")),
        "keep": Setting.text("all", ("all", "newest", "reservoir")),
        "max_bytes": Setting.integer(1 << 26, 1),
        **BATCHES,
    }
    _first_line = "", 0

    @classmethod
    def construct(cls, env: ComponentEnv) -> CsvDataSource:
        read = env.settings(cls)
        table = CsvRows(env, read)
        batching = cls.batching(env, read)
        kept = None
        if read["keep"] != "all":
            kept = ReplayBuffer(read["max_bytes"], read["keep"], batching["seed"], batching["where"])
        skipped = _Skipped(table, read["bad_rows"] == "skip")
        with opened(env, table.path) as file:
            try:
                x, y, lines = _read(env, file, table, skipped, kept, read["max_bytes"])
            except OSError as error:
                raise env.error(f"{table.path} cannot be read: {error.strerror or error}", "path") from error
        source = cls(x, y, **batching)
        if kept is None and lines == len(x):  # each line is a row: none is blank, or left out
            source._first_line = f"{table.path}:", 1 + table.header
        source.notes = [*source.notes, *skipped.notes(batching["where"])]
        source.notes += [f"{batching['where']}: {text}" for text in table.rounded]
        return source

    def _place_of(self, sample: int) -> str:
        path, first = self._first_line
        return f"{path}{first + sample}" if path else super()._place_of(sample)

    @classmethod
    def port_types(cls, config: Mapping[str, object], tensors: Mapping[str, Array]) -> Mapping[str, str]:
        """Returns the kinds of numbers; how many features there are, the file says."""
        return csv_ports(config)

    @classmethod
    def wrong_settings(cls, config: Mapping[str, object], complete: bool) -> Sequence[Misfit]:
        """Returns keys of columns, labels and scaling that cannot be."""
        return tuple(wrong_csv_settings(config, complete))


def csv_ports(config: Mapping[str, object]) -> dict[str, str]:
    """Returns the port types that the configuration of a CSV source fixes."""
    columns, label = config.get("columns"), config.get("label")
    width = len(columns) if isinstance(columns, list | tuple) else "?"
    ports = {"NextBatch.batch": f"F32[?,{width}]"}
    classes = config.get("one_hot")
    if isinstance(classes, int) and classes > 0:
        ports["NextBatch.labels"] = f"F32[?,{classes}]"
    elif label is not None:
        kind = "I64" if config.get("label_type", "integer") == "integer" else "F32"
        several = isinstance(label, list | tuple) and len(label) > 1
        ports["NextBatch.labels"] = f"{kind}[?,{len(label)}]" if several else f"{kind}[?]"  # type: ignore[arg-type]
    return ports


def opened(env: ComponentEnv, path: str) -> BinaryIO:
    """Opens the file of a source. ComponentError, which names the slot, where that cannot be."""
    try:
        return open_regular(path)
    except FileNotFoundError as error:
        raise env.error(f"there is no file {path}", "path", f"--set {env.slot}.path=FILE") from error
    except FileRefused as error:
        raise env.error(f"{path} cannot be read: {error.what}", "path", error.hint) from error
    except OSError as error:
        raise env.error(f"{path} cannot be read: {error.strerror or error}", "path") from error


class _Skipped:
    """Counts the rows that were left out, and remembers why the first of them was."""

    def __init__(self, table: CsvRows, bad_rows: bool) -> None:
        self._table, self._bad_rows = table, bad_rows
        self.rows, self.first, self.hint = 0, "", ""

    def take(self, error: RowError) -> None:
        """Counts a row, or raises what is wrong with it."""
        if not self._bad_rows and not self._table.absent(error):
            raise error
        self.rows += 1
        if not self.first:
            self.first, self.hint = f"{error.where}: {error.what}", error.hint

    def notes(self, where: str) -> list[str]:
        """One line, where anything was left out."""
        return [f"{where}: {self.rows} rows are skipped; the first: {self.first}"] if self.rows else []


def _read(
    env: ComponentEnv, file: BinaryIO, table: CsvRows, skipped: _Skipped, kept: ReplayBuffer | None, most: int
) -> tuple[Array, Array | None, int]:
    """Returns the rows of a file that are kept, and how many lines of rows and blanks it has."""
    rows, number, came = Rows(table), 0, 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if number == 1:
            table.begin(line)
            rows = Rows(table)
            if table.header:
                continue
        try:
            if len(line) > MAX_LINE:
                _pass_over(file)
            row = table.row(line, number)
        except RowError as error:
            skipped.take(error)
            continue
        if row is None:
            continue
        came += 1
        rows.add(row)
        if kept is not None and len(rows) >= _AT_ONCE:
            kept.add(*rows.arrays())
            rows = Rows(table)
        elif kept is None and rows.nbytes > most:
            hint = "raise max_bytes, or set keep to 'newest' or 'reservoir'"
            raise env.error(f"the rows of {table.path} take more than {most} bytes", "max_bytes", hint)
    if not came:
        why = f", {skipped.rows} are skipped; the first: {skipped.first}" if skipped.rows else ""
        hint = skipped.hint or "is it the right file?"
        raise ComponentError(f"{table.path} holds no rows{why}", f"slot {env.slot!r}", hint)
    lines = number - table.header
    if kept is None:
        return (*rows.arrays(), lines)
    import numpy as np

    kept.add(*rows.arrays())
    return (*kept.take(np.arange(len(kept))), lines)


def _pass_over(file: BinaryIO) -> None:
    """Reads to the end of a line that is too long."""
    while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
        pass
