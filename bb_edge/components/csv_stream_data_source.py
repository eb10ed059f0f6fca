"""`bb.CsvStreamDataSource`: batches of a CSV file that a logger appends to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bb_edge.components.csv_data_source import csv_ports, opened
from bb_edge.components.csv_rows import MAX_LINE, CsvRows, Row, RowError, Rows
from bb_edge.components.csv_settings import CSV, wrong_csv_settings
from bb_edge.components.feature_scaling import SCALING, Scaling
from bb_edge.components.generators import generator_of
from bb_edge.components.growing_file import GrowingFile, Line
from bb_edge.components.replay_buffer import ReplayBuffer
from bb_edge.components.state import StateReader, pack_state
from bb_edge.components.stored_samples import MOST_CLASSES, one_hot_rows
from bb_edge.input_files import FileRefused
from bb_edge.ir.opsets import Opset, Table
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.contracts import DataSource, LeftOut, ProtocolComponent
from bb_edge.roles.errors import ComponentError
from bb_edge.roles.settings import Misfit, Setting

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.completion import Later
    from bb_edge.roles.context import Ctx, ProtocolCtx

__all__ = ["CsvStreamDataSource", "NotEnoughRows"]

_VERSION = 1
_MS = 1_000_000

_AT_ONCE = 4096
"""Lines that one call reads at most: some milliseconds, so that a long file does not stop the node."""


class NotEnoughRows(ComponentError):
    """A file that grows has not had enough rows for a batch, for as long as the source was to wait."""


class CsvStreamDataSource(DataSource, ProtocolComponent):
    """Yields batches of a CSV file that grows: features f32, [batch_size, features], and labels.

    `CsvRows` documents the settings of columns. Each row is read once. The position in the file,
    the rows that are held and the statistics are in the state, so a restart goes on where it stopped. A last
    line without line end waits until it is whole. A file that is rotated is read to its end under its new
    name, in the same folder; one that is truncated or written anew is read from its beginning.

    - `order`: `random`, a batch is drawn from the rows that are held, none of them twice (default);
      `arrival`, every row comes once, in the order of the file, which is read as batches are asked for;
      `latest`, the newest rows.
    - `batch_size`: rows per batch (32).
    - `keep`: which rows are held where there is no room for all: the `newest` (default), or a fair sample of
      all that came, `reservoir`. `max_bytes`: what they may take (1 MiB); they are part of each snapshot.
    - `wait_ms`: how long a batch waits for rows that are missing before it fails with NotEnoughRows (10,000;
      0: not at all); `poll_ms`: how often the file is looked at meanwhile (200).
    - `bad_rows`: `skip`, rows that cannot be read are left out, counted and told (default); `refuse`, the
      batch fails until the row is mended.
    - `seed`: of what is drawn (the slot's). `one_hot`: the number of classes; 0 = labels as they are (0).
    - `scale`, `scale_offset`, `scale_divisor`, `scale_rows`: as `bb.CsvDataSource` has them; statistics
      follow the rows as they come, unless `scale_rows` ends that.
    """

    TYPE_NAME: ClassVar[str] = "bb.CsvStreamDataSource"
    CONFIG: ClassVar[Mapping[str, Setting]] = {
        **CSV,
        "order": Setting.text("random", ("random", "arrival", "latest")),
        "batch_size": Setting.integer(32, 1, 1 << 20),
        "keep": Setting.text("newest", ("newest", "reservoir")),
        "max_bytes": Setting.integer(1 << 20, 1),
        "wait_ms": Setting.integer(10_000, 0, 86_400_000),
        "poll_ms": Setting.integer(200, 1, 60_000),
        "bad_rows": Setting.text("skip", ("skip", "refuse")),
        "seed": Setting.integer(None, 0, 2**64 - 1),
        "one_hot": Setting.integer(0, 0, MOST_CLASSES),
        **SCALING,
    }
    restartable: ClassVar[bool] = True

    def __init__(
        self, table: CsvRows, file: GrowingFile, header: bytes, read: Mapping[str, Any], seed: int, where: str
    ) -> None:
        self._table, self._header, self._where = table, header, where
        self._order: str = read["order"]
        self._batch: int = read["batch_size"]
        self._refuses = read["bad_rows"] == "refuse"
        self._one_hot: int = read["one_hot"]
        self._wait_ns, self._poll_ns = read["wait_ms"] * _MS, read["poll_ms"] * _MS
        self._seed = seed
        self._file = file
        x, y = self._empty()
        row_bytes = x.nbytes + (0 if y is None else y.nbytes)
        most = read["max_bytes"]
        if self._order != "random":
            most = min(most, self._batch * row_bytes)  # a batch's rows are all that is ever read
        self._buffer = ReplayBuffer(most, read["keep"], seed, where)
        self._scaling = Scaling.of(read, table.features, where)
        self._draws = 0  # batches that were given, and the rows of them in the order of arrival
        self._given = 0
        self._skipped, self._first_skipped = 0, ""
        self._waiting: tuple[Later, int] | None = None  # a batch that was asked for, and until when
        room = self._buffer.room(x, y)
        if room < self._batch:
            hint = "raise max_bytes, or lower batch_size"
            raise ComponentError(f"max_bytes holds {room} rows, batch_size is {self._batch}", where, hint)

    @classmethod
    def construct(cls, env: ComponentEnv) -> CsvStreamDataSource:
        read = env.settings(cls)
        table = CsvRows(env, read)
        try:
            with opened(env, table.path) as file:
                header = file.readline(MAX_LINE + 1)
                grown = GrowingFile(table.path, MAX_LINE, file)
        except OSError as error:
            raise env.error(f"{table.path} cannot be read: {error.strerror or error}", "path") from error
        if not header.endswith(b"\n"):
            hint = "start the logger first: its first line says which columns there are"
            raise env.error(f"{table.path} has no whole line yet", "path", hint)
        table.begin(header)
        seed = env.seed if read["seed"] is None else read["seed"]
        return cls(table, grown, header, read, seed, f"slot {env.slot!r}")

    @classmethod
    def port_types(cls, config: Mapping[str, object], tensors: Mapping[str, Array]) -> Mapping[str, str]:
        """Returns the kinds of numbers; how many features there are, the file says."""
        return csv_ports(config)

    @classmethod
    def wrong_settings(cls, config: Mapping[str, object], complete: bool) -> Sequence[Misfit]:
        """Returns keys of columns, labels and scaling that cannot be."""
        wrong = [*wrong_csv_settings(config, complete)]
        if config["keep"] == "reservoir" and config["order"] != "random":
            what = f"keep is 'reservoir', and order {config['order']!r}"
            wrong.append(Misfit("keep", what, "leave one of the two out"))
        return wrong

    @classmethod
    def atomic_opset(cls) -> Opset:
        """Has no ops of its own: it is a protocol for the sake of its timer."""
        return Table(cls.TYPE_NAME).opset()

    # --- the Contract ---------------------------------------------------------------------------------

    def next_batch(self, ctx: Ctx) -> tuple[Array, Array | None] | Later:
        self._read_on()
        if self._short <= 0:
            return self._take()
        if not self._wait_ns:
            raise self._too_few()
        later = ctx.later(self._wait_ns + 2 * self._poll_ns)  # it fails by itself, and says why
        self._waiting = later, ctx.now_ns + self._wait_ns
        ctx.scheduler.after(self._poll_ns, self.look)
        return later

    def look(self, ctx: ProtocolCtx) -> None:
        """Looks whether the rows have come that a batch waits for."""
        if self._waiting is None or self._waiting[0].handle.settled:
            self._waiting = None
            return
        later, until_ns = self._waiting
        try:
            self._read_on()
            if self._short > 0 and ctx.now_ns < until_ns:
                ctx.scheduler.after(self._poll_ns, self.look)
                return
            self._waiting = None
            if self._short > 0:
                raise self._too_few()
            later.complete(self._take())
        except ComponentError as error:
            self._waiting = None
            later.fail(error)

    def batch_like(self) -> tuple[Array, ...]:
        arrays = (array for array in self._shaped(*self._empty()) if array is not None)
        return tuple(np.broadcast_to(array, (self._batch, *array.shape[1:])) for array in arrays)

    def num_samples(self, ctx: Ctx) -> Array:
        """Returns how many rows are held; in the order of arrival, how many have come."""
        self._read_on()
        return np.array(self._buffer.came if self._order == "arrival" else len(self._buffer), np.int64)

    def take_left_out(self) -> Sequence[LeftOut]:
        left_out = [LeftOut(why) for why in self._file.breaks]
        if self._skipped:
            why = f"{self._skipped} rows are skipped; the first: {self._first_skipped}"
            left_out.append(LeftOut(why, self._skipped))
        self._file.breaks.clear()
        self._skipped, self._first_skipped = 0, ""
        return left_out

    def take_notes(self) -> Sequence[str]:
        notes = tuple(self._table.rounded)
        self._table.rounded.clear()
        return notes

    # --- batches --------------------------------------------------------------------------------------

    @property
    def _short(self) -> int:
        """How many rows a batch lacks; 0 or less where it lacks none."""
        if self._order == "arrival":
            return self._batch - (self._buffer.came - self._given)
        return self._batch - len(self._buffer)

    def _take(self) -> tuple[Array, Array | None]:
        held = len(self._buffer)
        if self._order == "random":
            chosen = generator_of(self._seed, self._draws).choice(held, self._batch, replace=False)
        else:
            chosen = np.arange(held - self._batch, held)  # in the order of arrival nothing newer was read
        self._draws += 1
        self._given = self._buffer.came
        return self._shaped(*self._buffer.take(chosen))

    def _shaped(self, x: Array, y: Array | None) -> tuple[Array, Array | None]:
        if self._scaling is not None:
            x = self._scaling.apply(x)
        return x, one_hot_rows(y, self._one_hot, self._where) if self._one_hot else y

    def _empty(self) -> tuple[Array, Array | None]:
        """One row of zeros."""
        rows = Rows(self._table)
        rows.add(Row([0.0] * self._table.features, [0] * self._table.labels))
        return rows.arrays()

    def _too_few(self) -> NotEnoughRows:
        held, waited = self._batch - self._short, self._wait_ns // _MS
        return NotEnoughRows(
            f"{self._table.path} has {held} rows for a batch of {self._batch}, after {waited} ms",
            self._where,
            "does the logger write? Else ask less often, lower batch_size, or raise wait_ms",
        )

    # --- the file -------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        """Reads the lines that are new; in the order of arrival as many as a batch lacks. ComponentError."""
        left = _AT_ONCE
        while left > 0:
            most = min(left, self._short) if self._order == "arrival" else left
            read = self._read(most) if most > 0 else 0
            if not read:
                return
            left -= read

    def _read(self, most: int) -> int:
        """Reads so many lines at most, and returns how many it read. ComponentError."""
        before = self._file.save()
        try:
            lines = self._file.read(most)
        except (OSError, FileRefused) as error:
            what = error.what if isinstance(error, FileRefused) else error.strerror or str(error)
            raise ComponentError(f"{self._table.path} cannot be read: {what}", self._where) from error
        rows, wrong = Rows(self._table), None
        for n, line in enumerate(lines):
            try:
                row = self._row(line)
            except ComponentError as error:
                skips = isinstance(error, RowError) and (not self._refuses or self._table.absent(error))
                if not skips:
                    wrong = error
                    self._file.go_to(before)
                    breaks = list(self._file.breaks)
                    self._file.read(n)  # it stays before the wrong row, in the file that has it
                    self._file.breaks[:] = breaks  # each is told once
                    break
                self._skipped += 1
                self._first_skipped = self._first_skipped or f"{error.where}: {error.what}"
                continue
            if row is not None:
                rows.add(row)
        if len(rows):
            x, y = rows.arrays()
            if self._scaling is not None:
                self._scaling.fit(x)
            self._buffer.add(x, y)
        if wrong is not None:
            raise wrong
        return len(lines)

    def _row(self, line: Line) -> Any:
        """The row of a line; None for a blank one, and for a header."""
        if not line.whole:
            hint = "is it a CSV file?"
            raise RowError(f"a line of more than {MAX_LINE} bytes", f"{self._table.path}:{line.number}", hint)
        if line.number == 1:
            self._begin(line.text)
        if self._table.header and (line.number == 1 or line.text == self._header):
            return None  # a logger that begins again writes it again
        try:
            return self._table.row(line.text, line.number)
        except RowError:
            if not self._table.is_header(line.text):
                raise
            self._begin(line.text)  # of another version of the logger
            return None

    def _begin(self, header: bytes) -> None:
        """Takes a header. ComponentError where it has not the columns of the former one."""
        if header == self._header:
            return
        features = self._table.features
        try:
            self._table.begin(header)
        except RowError as error:
            raise ComponentError(error.what, error.where, error.hint) from error
        if self._table.features != features:
            what = f"{self._table.path} has {self._table.features} features now, it had {features}"
            raise ComponentError(what, self._where, "name the columns: columns")
        self._header = header

    # --- state ----------------------------------------------------------------------------------------

    def serialize(self) -> bytes:
        fields: dict[str, object] = {
            "file": self._file.save(),
            "header": self._header,
            "order": self._table.first_order,
            "last": self._table.last,
            "buffer": self._buffer.save(),
            "draws": self._draws,
            "given": self._given,
            "scaling": None if self._scaling is None else self._scaling.save(),
        }
        return pack_state(self, _VERSION, fields)

    def restore(self, state: bytes) -> None:
        read = StateReader(self, _VERSION, state)
        x, y = self._empty()
        self._file.load(read.mapping("file"), read)
        self._table.first_order = list(map(str, read.optional_items("order")))
        self._header = b""  # what the file begins with may be the same, and read in another order
        self._begin(read.data("header"))
        last = read.items("last")
        if len(last) != self._table.features or not all(v is None or isinstance(v, float) for v in last):
            raise read.error(f"its rows have not the {self._table.features} features of this file")
        self._table.last = last  # type: ignore[assignment]  # floats, as was just seen
        self._buffer.load(read.mapping("buffer"), read, x, y)
        self._draws, self._given = read.integer("draws"), read.integer("given")
        if self._draws < 0 or not 0 <= self._given <= self._buffer.came:
            raise read.error("it counts more rows than came")
        scaling = self._scaling
        if scaling is not None and not (read.has("scaling") and scaling.load(read.mapping("scaling"), read)):
            scaling.fit(self._buffer.take(np.arange(len(self._buffer)))[0] if len(self._buffer) else x)
