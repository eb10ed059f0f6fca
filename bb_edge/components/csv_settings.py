"""The settings of sources that read CSV: their keys, and which values of them cannot be.

Host and device ask the same functions: `wrong_settings` of a source when it is bound, and when it is built.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bb_edge.components.cell_times import MILLISECONDS, seconds
from bb_edge.components.feature_scaling import wrong_numbers, wrong_scaling
from bb_edge.roles.settings import Misfit, Setting

__all__ = ["CSV", "classes_of", "label_among_features", "listed", "time_of", "wrong_csv_settings"]

CSV: Mapping[str, Setting] = {
    "path": Setting.text(),
    "columns": Setting.anything(),
    "label": Setting.anything(),
    "label_type": Setting.text("integer", ("integer", "number")),
    "classes": Setting.anything(),
    "header": Setting.flag(True),
    "delimiter": Setting.text(","),
    "missing": Setting.text("refuse", ("refuse", "skip", "fill", "last")),
    "fill": Setting.anything(),
    "times": Setting.anything(),
    "times_from": Setting.anything(),
}
"""The configuration keys of every source that reads CSV."""


def wrong_csv_settings(config: Mapping[str, object], complete: bool) -> Iterator[Misfit]:
    """Yields the keys of a CSV source whose values cannot be, or contradict others.

    Each value is of its setting's kind. Without `complete` a device may add what is missing.
    """
    delimiter = config.get("delimiter", ",")
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n\ufeff':
        hint = r"give what stands between cells: ',' (the default), ';', or '\t' for a tab"
        yield Misfit("delimiter", f"{delimiter!r} is not one character", hint)
    wrong = [found for key in ("columns", "label", "times") if (found := _wrong_list(key, config.get(key)))]
    yield from wrong
    if wrong:
        return
    columns, labels, times = (listed(config.get(key)) for key in ("columns", "label", "times"))
    twice = [name for name in labels or () if name in (columns or ()) and name not in (times or ())]
    if twice:
        yield Misfit("columns", *label_among_features(repr(twice[0])))
    yield from _wrong_classes(config.get("classes"), labels, complete)
    yield from _wrong_time(config.get("times_from"), times, complete)
    features = None if columns is None else len(columns)
    if config.get("fill") is not None and config.get("missing", "refuse") != "fill":
        yield Misfit("fill", "fill is given, and missing is not 'fill'", "set missing = 'fill'")
    elif found := wrong_numbers("fill", config.get("fill"), features):
        yield found
    yield from wrong_scaling(config, features)


def label_among_features(column: str) -> tuple[str, str]:
    """What is wrong with a label that is a feature as well, and what to do."""
    return (
        f"{column} is the label, and one of the features: the model would be told what it is to find",
        "leave it out of columns; without columns, all but the labels are features",
    )


def listed(given: object) -> list[Any] | None:
    """Returns the columns of a setting, names and indexes: it is one, or a list of them."""
    if given is None:
        return None
    return [given] if isinstance(given, str | int) or not isinstance(given, Sequence) else [*given]


def time_of(given: object) -> float | None:
    """Returns the seconds since 1970 that a setting means; None for what is not a time."""
    try:
        if isinstance(given, str | int | float) and not isinstance(given, bool):
            found = seconds(str(given))
            if math.isfinite(found) and abs(found) < MILLISECONDS:
                return found
    except (ValueError, OverflowError):
        pass
    return None


def classes_of(given: Sequence[str] | None) -> dict[str, int] | None:
    """Returns the number of each class."""
    return None if given is None else {name: place for place, name in enumerate(given)}


def _wrong_list(key: str, given: object) -> Misfit | None:
    names = listed(given)
    if names is None:
        return None
    wrong = [v for v in names if isinstance(v, bool) or not isinstance(v, str | int)]
    if wrong:
        return Misfit(key, f"{wrong[0]!r:.60} is not a column", "give a name, an index, or a list of them")
    if len(set(names)) < len(names) or not names:
        return Misfit(key, f"{names!r:.60} names none, or one twice", "name each column once")
    return None


def _wrong_classes(given: object, labels: Sequence[object] | None, complete: bool) -> Iterator[Misfit]:
    if given is None:
        return
    texts = isinstance(given, Sequence) and not isinstance(given, str)
    if not texts or not all(isinstance(v, str) for v in given):  # type: ignore[attr-defined]
        yield Misfit("classes", "must be a list of texts", 'give ["normal", "fault"]')
        return
    assert isinstance(given, Sequence)
    if (complete or labels is not None) and len(labels or ()) != 1:
        yield Misfit("classes", "classes need one label column", "name it: label")
    twice = [name for n, name in enumerate(given) if name in given[:n]]
    if twice:
        yield Misfit("classes", f"a class is named twice: {twice[0]!r:.60}", "name each once")


def _wrong_time(given: object, times: Sequence[object] | None, complete: bool) -> Iterator[Misfit]:
    if given is None:
        return
    if complete and not times:
        yield Misfit("times_from", "times_from is given, and no column is named in times", "name it: times")
    elif time_of(given) is None:
        hint = 'give "2026-01-01", or seconds since 1970'
        yield Misfit("times_from", f"{given!r:.60} is not a time", hint)
