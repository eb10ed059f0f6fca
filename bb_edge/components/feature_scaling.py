"""Scaling of features on the device: fixed by configuration, or by statistics of the data it has seen.

The statistics come from one pass over the rows, in chunks of any size (Welford 1962; the joining of chunks is
that of Chan, Golub and LeVeque 1979), in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.roles.errors import ComponentError
from bb_edge.roles.settings import Misfit, Setting

if TYPE_CHECKING:
    from bb_edge.components.state import StateReader
    from bb_edge.ir.tensors import Array

__all__ = ["SCALING", "Scaling", "numbers", "wrong_numbers", "wrong_scaling"]

SCALING: Mapping[str, Setting] = {
    "scale": Setting.text("none", ("none", "fixed", "standard", "minmax")),
    "scale_offset": Setting.anything(),
    "scale_divisor": Setting.anything(),
    "scale_rows": Setting.integer(0),
}
"""The configuration keys of a data source that scales its features."""

_CHUNK = 4096
"""Rows whose statistics are taken at once: their float64 copy stays small."""


class Scaling:
    """Maps features to `(x - offset) / divisor`, f32; the last axis of an array has one feature per place.

    `how` is `fixed` (offset and divisor as configured), `standard` (mean and standard deviation of the rows
    that `fit` has seen) or `minmax` (minimum and range, so that these rows lie in 0 to 1). Statistics follow
    the data until `rows` rows have been seen, and stay then; 0 follows for ever. A feature that has not
    varied is shifted and not divided.
    """

    def __init__(
        self,
        how: str,
        features: int,
        offset: Array | None = None,
        divisor: Array | None = None,
        rows: int = 0,
    ) -> None:
        self.how = how
        self._most = rows
        self._seen = 0
        self._joined = 0  # numbers per feature that the statistics are of: rows, times the axes between
        self._mean = np.zeros(features)
        self._squares = np.zeros(features)
        self._low, self._high = np.full(features, np.inf), np.full(features, -np.inf)
        self._offset = np.zeros(features) if offset is None else offset
        self._divisor = np.ones(features) if divisor is None else divisor

    @classmethod
    def of(cls, read: Mapping[str, object], features: int, where: str = "") -> Scaling | None:
        """Returns what a configuration with the keys of `SCALING` asks for; None for no scaling.

        ComponentError, which names the key, for what is not a number, and for other than one number per
        feature.
        """
        for key, what, hint in wrong_scaling(read, features):
            raise ComponentError(what, f"{where}, key {key!r}", hint)
        how, rows = read["scale"], read["scale_rows"]
        assert isinstance(how, str) and isinstance(rows, int)
        if how != "fixed":
            return None if how == "none" else cls(how, features, rows=rows)
        offset = numbers(read["scale_offset"], features, "scale_offset", where, 0.0)
        divisor = numbers(read["scale_divisor"], features, "scale_divisor", where, 1.0)
        return cls(how, features, offset, divisor)

    @property
    def learns(self) -> bool:
        """Whether `fit` changes anything now."""
        return self.how != "fixed" and not (self._most and self._seen >= self._most)

    def fit(self, rows: Array) -> None:
        """Adds rows, [n, …, features], to the statistics; those beyond the configured number are left."""
        if not self.learns:
            return
        rows = rows[: self._most - self._seen] if self._most else rows
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            self._join(chunk.reshape(-1, len(self._mean)).astype(np.float64), len(chunk))
        if not self._seen:
            return
        if self.how == "minmax":
            self._offset, spread = self._low, self._high - self._low
        else:
            self._offset, spread = self._mean, np.sqrt(self._squares / self._joined)
        self._divisor = np.where(spread > 0, spread, 1.0)

    def _join(self, values: Array, rows: int) -> None:
        mean, count = values.mean(axis=0), len(values)
        whole = self._joined + count
        apart = mean - self._mean
        self._mean = self._mean + apart * (count / whole)
        self._squares = (
            self._squares
            + np.square(values - mean).sum(axis=0)
            + np.square(apart) * (self._joined * count / whole)
        )
        self._low = np.minimum(self._low, values.min(axis=0))
        self._high = np.maximum(self._high, values.max(axis=0))
        self._joined, self._seen = whole, self._seen + rows

    def apply(self, rows: Array) -> Array:
        """Returns the scaled rows, f32, of the shape that came."""
        scaled: Array = ((rows - self._offset) / self._divisor).astype(np.float32)
        return scaled

    # --- state ----------------------------------------------------------------------------------------

    def save(self) -> dict[str, object]:
        """Returns the statistics as plain values, for a state."""
        return {
            "how": self.how,
            "seen": self._seen,
            "joined": self._joined,
            "rows": [[float(v) for v in row] for row in self._table()],
        }

    def load(self, saved: Mapping[object, object], reader: StateReader) -> bool:
        """Takes what `save` gave, and returns whether it is of this scaling: the configuration is newer.

        ComponentStateError for statistics of other features.
        """
        if saved.get("how") != self.how:
            return False
        rows, seen, joined = saved.get("rows"), saved.get("seen"), saved.get("joined")
        fits = isinstance(rows, list) and len(rows) == 6 and all(_is_row(r, len(self._mean)) for r in rows)
        if not fits or not isinstance(seen, int) or not isinstance(joined, int):
            raise reader.error(f"its statistics are not of {len(self._mean)} features scaled by {self.how!r}")
        if self.how == "fixed":
            return True  # the configuration says what they are
        assert isinstance(rows, list)
        self._seen, self._joined = seen, joined
        table = np.array(rows, np.float64)
        self._mean, self._squares, self._low, self._high, self._offset, self._divisor = table
        return True

    def _table(self) -> tuple[Array, ...]:
        return self._mean, self._squares, self._low, self._high, self._offset, self._divisor


def wrong_scaling(config: Mapping[str, object], features: int | None = None) -> Iterator[Misfit]:
    """Yields the keys of `SCALING` whose values cannot be, or contradict others.

    `features` is how many there are, None where that is not known yet.
    """
    how = config.get("scale", "none")
    given = [key for key in ("scale_offset", "scale_divisor") if config.get(key) is not None]
    if how != "fixed":
        if given:
            hint = "write scale = 'fixed' beside them, or leave them out"
            yield Misfit(given[0], f"{' and '.join(given)} are given, and scale is {how!r}", hint)
        return
    if not given:
        hint = "give scale_offset, scale_divisor, or both; where each device has its own, it sets scale too"
        yield Misfit("scale", "scale is 'fixed', and no numbers are given", hint)
    for key in given:
        wrong = wrong_numbers(key, config[key], features)
        if wrong is not None:
            yield wrong
        elif key == "scale_divisor" and 0 in _listed(config[key], 1):
            yield Misfit(key, "a divisor is 0", "give other numbers")


def wrong_numbers(key: str, given: object, count: int | None) -> Misfit | None:
    """Returns what is wrong with a setting that is a number, or a list of `count` numbers; None for nothing.

    None for `count` takes a list of any length.
    """
    if given is None:
        return None
    listed = _listed(given, 1)
    for value in listed:
        wrong = Setting.number().wrong(value)
        if wrong:
            return Misfit(key, wrong, "give a number, or a list of numbers")
    if not _is_list(given) or count is None or len(listed) == count:
        return None
    hint = "give one number for all, or one per feature"
    return Misfit(key, f"{len(listed)} numbers for {count} features", hint)


def numbers(given: object, count: int, key: str, where: str, default: float) -> Array:
    """Returns `count` numbers, f64, of a setting: a list of so many, or one number for all of them.

    ComponentError, which names the key, for anything else.
    """
    wrong = wrong_numbers(key, given, count)
    if wrong is not None:
        raise ComponentError(wrong.what, f"{where}, key {key!r}", wrong.hint)
    return np.array(_listed(default if given is None else given, count), np.float64)


def _listed(given: object, count: int) -> list[Any]:
    return list(given) if _is_list(given) else [given] * count  # type: ignore[call-overload]


def _is_list(given: object) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str)


def _is_row(row: object, features: int) -> bool:
    return isinstance(row, list) and len(row) == features and all(isinstance(v, float) for v in row)
