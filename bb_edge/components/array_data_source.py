"""`bb.ArrayDataSource`: batches of a shard that is one .npz file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bb_edge.array_files import ArrayFileError, TooManyBytes, read_arrays
from bb_edge.components.state import StateReader, pack_state
from bb_edge.input_files import FileRefused
from bb_edge.ir.types import tensor_type
from bb_edge.ir.values import TRIGGER, Trigger
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.contracts import DataSource
from bb_edge.roles.errors import ComponentError
from bb_edge.roles.settings import Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bb_edge.ir.tensors import Array
    from bb_edge.roles.context import Ctx

__all__ = ["ArrayDataSource"]

_VERSION = 1


class ArrayDataSource(DataSource):
    """Yields batches of samples, and their labels where there are any, from arrays in memory.

    Configuration, with defaults in parentheses:

    - `path`: an .npz file with `x`, [samples, …], and, where there are labels, `y`, [samples, …]. Without a
      path the arrays are the tensors `x` and `y` of the construction state, or its only tensor.
    - `batch_size`: samples per batch, 0 = all of them (0).
    - `shuffle`: a new order every epoch, drawn from `seed` (the slot's) and the epoch's number (true).
    - `remainder`: what happens to samples that do not fill a batch: `drop`, they wait for another epoch
      (default); `wrap`, the next epoch fills the batch. Batches are always whole, so shapes never change.
    - `one_hot`: the number of classes; integer labels become f32 rows with a 1 at the class; 0 = labels as
      they are (0).
    - `max_bytes`: the most bytes that the arrays may take in memory (1 GiB).
    """

    TYPE_NAME: ClassVar[str] = "bb.ArrayDataSource"
    CONFIG: ClassVar[Mapping[str, Setting]] = {
        "path": Setting.text(None),
        "batch_size": Setting.integer(0),
        "shuffle": Setting.flag(True),
        "seed": Setting.integer(None, 0, 2**64 - 1),
        "remainder": Setting.text("drop", ("drop", "wrap")),
        "one_hot": Setting.integer(0, 0, 1 << 20),
        "max_bytes": Setting.integer(1 << 30, 1),
    }

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
    ) -> None:
        if x.ndim == 0 or len(x) == 0:
            raise ComponentError("the shard holds no samples", where)
        if y is not None and (y.ndim == 0 or len(y) != len(x)):
            raise ComponentError(f"{len(x)} samples, labels of shape {list(y.shape)}", where)
        if batch_size > len(x):
            raise ComponentError(
                f"batch_size {batch_size}, and the shard holds {len(x)} samples", where, "lower batch_size"
            )
        self.notes = [note for note in (_not_finite("x", x, where), _not_finite("y", y, where)) if note]
        if one_hot:
            y = _one_hot(y, one_hot, where)
        self._x, self._y = _frozen(x), None if y is None else _frozen(y)
        self._batch = batch_size or len(x)
        self._whole = self._batch == len(x)
        self._shuffle = shuffle
        self._seed = seed
        self._wrap = remainder == "wrap"
        self._epoch = 0
        self._position = 0
        self._count = _frozen(np.array(len(x), np.int64))
        self._order: Array | None = None

    @classmethod
    def construct(cls, env: ComponentEnv) -> ArrayDataSource:
        read = env.settings(cls)
        if read["path"] is not None:
            x, y = _load(env, Path(read["path"]), read["max_bytes"])
        elif "x" in env.tensors:
            x, y = env.tensors["x"], env.tensors.get("y")
        elif "value" in env.tensors:
            x, y = env.tensors["value"], None
        else:
            raise env.error("no data", "path", f"name an .npz file: --set {env.slot}.path=FILE")
        return cls(
            x,
            y,
            where=f"slot {env.slot!r}",
            batch_size=read["batch_size"],
            shuffle=read["shuffle"],
            seed=env.seed if read["seed"] is None else read["seed"],
            remainder=read["remainder"],
            one_hot=read["one_hot"],
        )

    @classmethod
    def port_types(cls, config: Mapping[str, object], tensors: Mapping[str, Array]) -> Mapping[str, str]:
        """Returns the samples' types where the artifact holds them; the batch size is the device's to set."""
        ports: dict[str, str] = {}
        x, y, classes = tensors.get("x", tensors.get("value")), tensors.get("y"), config.get("one_hot")
        if x is not None and x.ndim:
            ports["NextBatch.batch"] = _rows_of(x)
        if isinstance(classes, int) and classes > 0:
            ports["NextBatch.labels"] = f"F32[?,{classes}]"
        elif y is not None and y.ndim:
            ports["NextBatch.labels"] = _rows_of(y)
        return ports

    # --- the Contract ----------------------------------------------------------------------------------

    def next_batch(self, ctx: Ctx) -> tuple[Array, Array | None]:
        if self._whole:
            return self._x, self._y
        chosen = self._take()
        return self._x.take(chosen, 0), None if self._y is None else self._y.take(chosen, 0)

    def batch_like(self) -> tuple[Array, ...]:
        if type(self).next_batch is not ArrayDataSource.next_batch:
            return ()  # what a subclass makes of its samples is not known
        batch = self._x[: self._batch]
        return (batch,) if self._y is None else (batch, self._y[: self._batch])

    def num_samples(self, ctx: Ctx) -> Array:
        return self._count

    def reset(self, ctx: Ctx, trigger: Trigger) -> Trigger:
        """Goes back to the first batch of the first epoch, so that the same batches come again."""
        self._seek(0, 0)
        return TRIGGER

    def on_data_loaded(self, ctx: Ctx) -> Trigger:
        """Returns the trigger at once: the data was loaded when the component was built."""
        return TRIGGER

    # --- order -----------------------------------------------------------------------------------------

    def _take(self) -> Array:
        n, size = len(self._x), self._batch
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
                rng = np.random.default_rng((self._seed & (2**64 - 1), self._epoch))
                self._order = rng.permutation(len(self._x))
            else:
                self._order = np.arange(len(self._x))
        return self._order

    def _seek(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position
        if self._shuffle:
            self._order = None

    def serialize(self) -> bytes:
        fields = {"epoch": self._epoch, "position": self._position, "samples": len(self._x)}
        return pack_state(self, _VERSION, fields)

    def restore(self, state: bytes) -> None:
        read = StateReader(self, _VERSION, state)
        epoch, position = read.integer("epoch"), read.integer("position")
        if read.integer("samples") != len(self._x) or not 0 <= position <= len(self._x) or epoch < 0:
            raise read.error(f"it was written over another shard than this one of {len(self._x)} samples")
        self._order = None
        self._seek(epoch, position)


def _rows_of(array: Array) -> str:
    """Returns the port type of a batch of an array's rows."""
    return f"{tensor_type(array.dtype).id}[{','.join(['?', *map(str, array.shape[1:])])}]"


def _not_finite(name: str, array: Array | None, where: str) -> str:
    """How many samples of an array hold NaN or infinities; empty for none. No array of its size is made."""
    if array is None or array.dtype.kind != "f" or not array.size:
        return ""
    if np.isfinite(array.min()) and np.isfinite(array.max()):
        return ""
    strange = sum(not np.isfinite(sample).all() for sample in array)
    return (
        f"{where}: {strange} of {len(array)} samples of {name} hold NaN or infinities, which training spreads"
    )


def _frozen(array: Array) -> Array:
    """Returns a contiguous, read-only view: whole batches are handed out without a copy."""
    frozen: Array = np.ascontiguousarray(array).reshape(array.shape).view()
    frozen.setflags(write=False)
    return frozen


def _one_hot(y: Array | None, classes: int, where: str) -> Array:
    if y is None or y.ndim != 1 or y.dtype.kind not in "iu":
        raise ComponentError("one_hot needs integer labels in one dimension", where)
    if y.min() < 0 or y.max() >= classes:
        raise ComponentError(f"labels lie in [{y.min()}, {y.max()}], one_hot is {classes} classes", where)
    rows = np.zeros((len(y), classes), np.float32)
    rows[np.arange(len(y)), y] = 1.0
    return rows


def _load(env: ComponentEnv, path: Path, max_bytes: int) -> tuple[Array, Array | None]:
    try:
        arrays = read_arrays(path, max_bytes, ("x", "y"))
    except FileNotFoundError as error:
        raise env.error(f"there is no file {path.absolute()}", "path") from error
    except TooManyBytes as error:
        hint = "raise max_bytes, or save fewer samples"
        raise env.error(
            f"{path} holds {error.nbytes} bytes, max_bytes is {max_bytes}", "max_bytes", hint
        ) from error
    except (ArrayFileError, FileRefused) as error:
        raise env.error(f"{path} cannot be read: {error.what}", "path", error.hint) from error
    except OSError as error:
        raise env.error(f"{path} cannot be read: {error.strerror or error}", "path") from error
    if "x" not in arrays:
        raise env.error(f"{path} holds no array 'x'", "path", "save it with np.savez(path, x=…, y=…)")
    return arrays["x"], arrays.get("y")
