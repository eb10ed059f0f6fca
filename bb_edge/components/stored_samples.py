"""Batches of samples that are in memory: their order, their epochs, and where a restart goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from bb_edge.components.class_targets import first_wrong, remedy
from bb_edge.components.feature_scaling import SCALING, Scaling, wrong_scaling
from bb_edge.components.generators import generator_of
from bb_edge.components.state import StateReader, pack_state
from bb_edge.ir.tensors import Array
from bb_edge.ir.types import tensor_type
from bb_edge.ir.values import TRIGGER, Trigger
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.contracts import DataSource
from bb_edge.roles.errors import ComponentError
from bb_edge.roles.settings import Misfit, Setting

if TYPE_CHECKING:
    from bb_edge.roles.context import Ctx

__all__ = ["BATCHES", "MOST_CLASSES", "NOT_FINITE", "StoredSamples", "hot", "one_hot_rows", "rows_of"]

_VERSION, _UNSCALED = 2, 1
"""Of the state; the older one has no statistics of a scaling."""

MOST_CLASSES = 1 << 20
"""That `one_hot` makes rows of."""

BATCHES: Mapping[str, Setting] = {
    "batch_size": Setting.integer(0),
    "shuffle": Setting.flag(True),
    "seed": Setting.integer(None, 0, 2**64 - 1),
    "remainder": Setting.text("drop", ("drop", "wrap")),
    "one_hot": Setting.integer(0, 0, MOST_CLASSES),
    **SCALING,
}
"""The configuration keys of every source of stored samples."""


class StoredSamples(DataSource):
    """Batches are whole, so shapes never change, and every epoch has every sample once.

    - `batch_size`: samples per batch, 0 = all of them (0).
    - `shuffle`: a new order every epoch, drawn from `seed` (the slot's) and the epoch's number (true).
    - `remainder`: what happens to samples that do not fill a batch: `drop`, they wait for another epoch
      (default); `wrap`, the next epoch fills the batch.
    - `one_hot`: the number of classes; integer labels become f32 rows with a 1 at the class; 0 = labels as
      they are (0).
    - `scale`: `none` (default); `fixed`, features become (x − `scale_offset`) / `scale_divisor`, one number
      for all or one per feature; `standard`, by the mean and standard deviation of the data; `minmax`, by
      their minimum and range. The statistics are those of the first `scale_rows` samples (0: of all), and
      stay in the state: a restart with other data scales as before, one with another `scale` anew. Devices
      that train one model together should scale alike: give them `fixed`.

    A restart goes on in its epoch; with another number of samples a new one begins, and a note says so.
    """

    def __init__(
        self,
        x: Array,
        y: Array | None = None,
        *,
        where: str = "",
        batch_size: int = 0,
        shuffle: bool = True,
        seed: int = 0,
        remainder: str = "drop",
        one_hot: int = 0,
        scaling: Mapping[str, object] | None = None,
    ) -> None:
        if x.ndim == 0 or len(x) == 0:
            raise ComponentError("the shard holds no samples", where)
        if y is not None and (y.ndim == 0 or len(y) != len(x)):
            what = f"x holds {len(x)} samples, and y, their labels, has the shape {list(y.shape)}"
            raise ComponentError(what, where, f"give one label per sample: y of the shape [{len(x)}, …]")
        if batch_size > len(x):
            raise ComponentError(
                f"batch_size {batch_size}, and the shard holds {len(x)} samples", where, "lower batch_size"
            )
        self.notes = [note for note in (_not_finite("x", x, where), _not_finite("y", y, where)) if note]
        if one_hot:
            y = one_hot_rows(y, one_hot, where)
        self._scaling = None if scaling is None else _fitted(scaling, x, where)
        # No call for what changes nothing, at each batch.
        self._is_plain = self._scaling is None and type(self)._scaled is StoredSamples._scaled
        self._x, self._y = _frozen(x), None if y is None else _frozen(y)
        self._samples = len(x)
        self._batch = batch_size or len(x)
        self._whole = self._batch == len(x)
        self._shuffle = shuffle
        self._seed = seed
        self._wrap = remainder == "wrap"
        self._epoch = 0
        self._position = 0
        self._count = _frozen(np.array(len(x), np.int64))
        self._order: Array | None = None
        self.untold: list[str] = []  # of a state that was taken

    @staticmethod
    def batching(env: ComponentEnv, read: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments of `__init__` that a configuration with the keys of `BATCHES` gives."""
        return {
            "where": f"slot {env.slot!r}",
            "batch_size": read["batch_size"],
            "shuffle": read["shuffle"],
            "seed": env.seed if read["seed"] is None else read["seed"],
            "remainder": read["remainder"],
            "one_hot": read["one_hot"],
            "scaling": {key: read[key] for key in SCALING},
        }

    @classmethod
    def wrong_settings(cls, config: Mapping[str, object], complete: bool) -> Sequence[Misfit]:
        """Returns keys of the scaling that cannot be."""
        return tuple(wrong_scaling(config))

    # --- the Contract ----------------------------------------------------------------------------------

    def next_batch(self, ctx: Ctx) -> tuple[Array, Array | None]:
        x, y = self._chosen(None if self._whole else self._take())
        return x if self._is_plain else self._scaled(x), y

    def batch_like(self) -> tuple[Array, ...]:
        if type(self).next_batch is not StoredSamples.next_batch:
            return ()  # what a subclass makes of its samples is not known
        x, y = self._chosen(None if self._whole else np.arange(self._batch))
        batch = self._scaled(x)
        return (batch,) if y is None else (batch, y)

    def wrong_label(self, classes: int, ignored: int) -> tuple[str, str] | None:
        labels = self._labels()
        if labels is None or (sample := first_wrong(labels, classes, ignored)) is None:
            return None
        label = labels[sample]
        shown = f"label {label}" if label.ndim == 0 else f"labels {label.tolist()!r:.60}"
        what = f"{self._place_of(sample)} has {shown}, the model has {classes} classes, 0 to {classes - 1}"
        return what, remedy(ignored)

    def _labels(self) -> Array | None:
        """Returns the labels of all samples, None for samples without labels."""
        return self._y

    def _place_of(self, sample: int) -> str:
        return f"sample {sample}"

    def num_samples(self, ctx: Ctx) -> Array:
        return self._count

    def reset(self, ctx: Ctx, trigger: Trigger) -> Trigger:
        """Goes back to the first batch of the first epoch, so that the same batches come again."""
        self._seek(0, 0)
        return TRIGGER

    def on_data_loaded(self, ctx: Ctx) -> Trigger:
        """Returns the trigger at once: the data was loaded when the component was built."""
        return TRIGGER

    def _chosen(self, numbers: Array | None) -> tuple[Array, Array | None]:
        """Returns the samples of these numbers, not scaled, with their labels; all of them for None."""
        x, y = self._x, self._y
        if numbers is None:
            return x, y
        return x.take(numbers, 0), None if y is None else y.take(numbers, 0)

    def _scaled(self, batch: Array) -> Array:
        return batch if self._scaling is None else self._scaling.apply(batch)

    # --- order -----------------------------------------------------------------------------------------

    def _take(self) -> Array:
        n, size = self._samples, self._batch
        left = n - self._position
        if left >= size:
            chosen = self._ordered()[self._position : self._position + size]
            self._position += size
            return chosen
        kept = self._ordered()[self._position :] if self._wrap else None
        self._seek(self._epoch + 1, 0)
        if kept is None or not left:
            self._position = size
            return self._ordered()[:size]
        self._position = size - left
        return np.concatenate((kept, self._ordered()[: self._position]))

    def _ordered(self) -> Array:
        """Returns this epoch's order of samples.

        It depends on seed and epoch alone, so that a restored node goes on with the same order.
        """
        if self._order is None:
            if self._shuffle:
                self._order = generator_of(self._seed, self._epoch).permutation(self._samples)
            else:
                self._order = np.arange(self._samples)
        return self._order

    def _seek(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position
        if self._shuffle:
            self._order = None

    def serialize(self) -> bytes:
        fields: dict[str, object] = {
            "epoch": self._epoch,
            "position": self._position,
            "samples": self._samples,
            "scaling": None if self._scaling is None else self._scaling.save(),
        }
        return pack_state(self, _VERSION, fields)

    def restore(self, state: bytes) -> None:
        read = StateReader(self, _VERSION, state, _UNSCALED)
        epoch, position, samples = read.integer("epoch"), read.integer("position"), read.integer("samples")
        if not 0 <= position <= samples or epoch < 0:
            raise read.error(f"it stands at sample {position} of {samples}, in epoch {epoch}")
        if self._scaling is not None and read.version != _UNSCALED and read.has("scaling"):
            self._scaling.load(read.mapping("scaling"), read)
        self._order = None
        if samples == self._samples:
            self._seek(epoch, position)
            return
        self._seek(epoch + 1, 0)
        had = f"the shard has {self._samples} samples, and had {samples} when the state was written"
        self.untold[:] = [f"{had}: a new epoch begins"]

    def take_notes(self) -> Sequence[str]:
        notes = tuple(self.untold)
        self.untold.clear()
        return notes


def rows_of(array: Array) -> str:
    """Returns the port type of a batch of an array's rows."""
    return f"{tensor_type(array.dtype).id}[{','.join(['?', *map(str, array.shape[1:])])}]"


def _fitted(scaling: Mapping[str, object], x: Array, where: str) -> Scaling | None:
    """Returns the scaling of a shard, with the shard's statistics where it takes any."""
    features = x.shape[-1] if x.ndim > 1 else 1
    scale = Scaling.of(scaling, features, where)
    if scale is not None:
        if x.dtype.kind not in "biuf":
            hint = "leave scale out, or save numbers"
            raise ComponentError(f"the samples are {x.dtype}, which cannot be scaled", where, hint)
        scale.fit(x)
    return scale


def _not_finite(name: str, array: Array | None, where: str) -> str:
    """How many samples of an array hold NaN or infinities, and where; empty for none.

    No array of its size is made.
    """
    if array is None or array.dtype.kind not in "fc" or not array.size:
        return ""
    if array.dtype.kind == "f" and np.isfinite(array.min()) and np.isfinite(array.max()):
        return ""
    strange, first = 0, -1
    columns: set[int] = set()
    for number, sample in enumerate(array):
        finite = np.isfinite(sample)
        if finite.all():
            continue
        strange += 1
        first = number if first < 0 else first
        if sample.ndim == 1 and len(columns) <= _NAMED:
            columns.update(np.flatnonzero(~finite).tolist())
    if not strange:
        return ""
    listed = ", ".join(map(str, sorted(columns)[:_NAMED])) + (", …" if len(columns) > _NAMED else "")
    whose = f" in column{'s' if len(columns) > 1 else ''} {listed}" if columns else ""
    return (
        f"{where}: {strange} of {len(array)} samples of {name} {NOT_FINITE}{whose}, the first is"
        f" sample {first}; training spreads them to all parameters: repair them, or leave them out"
    )


NOT_FINITE = "hold NaN or infinities"
"""What a note says of such samples, by which others know it."""

_NAMED = 5
"""How many columns a note names."""


def _frozen(array: Array) -> Array:
    """Returns a contiguous, read-only view: whole batches are handed out without a copy."""
    frozen: Array = np.ascontiguousarray(array).reshape(array.shape).view()
    frozen.setflags(write=False)
    return frozen


def one_hot_rows(y: Array | None, classes: int, where: str) -> Array:
    """Returns f32 rows with a 1 at the class. ComponentError for labels that are not classes."""
    if y is None:
        raise ComponentError(
            f"one_hot is {classes} classes, and there are no labels",
            where,
            "give labels (y in the .npz, label of a CSV source), or leave one_hot out",
        )
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise ComponentError(
            f"one_hot takes whole numbers in one dimension, and the labels are {y.dtype}"
            f" [{', '.join(map(str, y.shape))}]",
            where,
            "leave one_hot out where they are one-hot rows already, or save y.astype(np.int64)",
        )
    if y.min() < 0 or y.max() >= classes:
        raise ComponentError(
            f"labels lie in [{y.min()}, {y.max()}], one_hot is {classes} classes;"
            f" sample {first_wrong(y, classes, 0)} is the first beyond them",
            where,
            f"number the labels from 0, or raise one_hot (here to {int(y.max()) + 1})"
            if y.min() >= 0 and y.max() < MOST_CLASSES
            else "number the labels from 0: names, y = np.unique(y, return_inverse=True), and keep the names",
        )
    return hot(y, classes)


_FEW_CLASSES = 64
"""Up to which the rows of all classes are kept, 16 KB at most: copies take a third of the time."""


@lru_cache(maxsize=4)
def _rows_of_all(classes: int) -> Array:
    return np.eye(classes, dtype=np.float32)


def hot(y: Array, classes: int) -> Array:
    """Returns the rows of labels that are classes."""
    if classes <= _FEW_CLASSES:
        of_all = _rows_of_all(classes)
        if y.dtype.kind == "i":
            return of_all.take(y, 0)
        return cast("Array", of_all[y])  # `take` refuses labels that are uint64
    rows: Array = np.zeros((len(y), classes), np.float32)
    rows[np.arange(len(y)), y] = 1.0
    return rows
