"""`bb.ArrayDataSource`: batches of a shard that is one .npz file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from bb_edge.array_files import ArrayFileError, TooManyBytes, read_arrays
from bb_edge.components.stored_samples import BATCHES, StoredSamples, rows_of
from bb_edge.input_files import FileRefused
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.settings import Setting

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["ArrayDataSource"]


_NUMBERS = "biufc"
"""The kinds of NumPy's dtypes that are numbers."""


_WIDEST = 8
"""Bytes of the widest number that a tensor has."""


class ArrayDataSource(StoredSamples):
    """Yields batches of samples, and their labels where there are any, from arrays in memory.

    Configuration, with defaults in parentheses; the rest is that of every `StoredSamples`:

    - `path`: an .npz file with `x`, [samples, …], and, where there are labels, `y`, [samples, …]. Without a
      path the arrays are the tensors `x` and `y` of the construction state, or its only tensor.
    - `max_bytes`: the most bytes that the arrays may take in memory (1 GiB).
    """

    TYPE_NAME: ClassVar[str] = "bb.ArrayDataSource"
    CONFIG: ClassVar[Mapping[str, Setting]] = {
        "path": Setting.text(None),
        **BATCHES,
        "max_bytes": Setting.integer(1 << 30, 1),
    }

    @classmethod
    def construct(cls, env: ComponentEnv) -> ArrayDataSource:
        read = env.settings(cls)
        if read["path"] is not None:
            x, y = cls._load(env, Path(read["path"]), read["max_bytes"])
        elif "x" in env.tensors:
            x, y = env.tensors["x"], env.tensors.get("y")
        elif "value" in env.tensors:
            x, y = env.tensors["value"], None
        else:
            raise env.error("no data", "path", f"name an .npz file: --set {env.slot}.path=FILE")
        batching = cls.batching(env, read)
        if read["path"] is not None:
            batching["where"] += f", {read['path']}"
        return cls(x, y, **batching)

    @classmethod
    def read_file(cls, path: Path, max_bytes: int) -> Mapping[str, Array]:
        """Returns `x` and `y` of a file, as far as it has them. Raises what `read_arrays` raises."""
        return read_arrays(path, max_bytes, ("x", "y"))

    @classmethod
    def port_types(cls, config: Mapping[str, object], tensors: Mapping[str, Array]) -> Mapping[str, str]:
        """Returns the samples' types where the artifact holds them; the batch size is the device's to set."""
        ports: dict[str, str] = {}
        x, y, classes = tensors.get("x", tensors.get("value")), tensors.get("y"), config.get("one_hot")
        if x is not None and x.ndim:
            scaled = config.get("scale", "none") != "none"
            ports["NextBatch.batch"] = rows_of(x[:0].astype("float32") if scaled else x)
        if isinstance(classes, int) and classes > 0:
            ports["NextBatch.labels"] = f"F32[?,{classes}]"
        elif y is not None and y.ndim:
            ports["NextBatch.labels"] = rows_of(y)
        return ports

    @classmethod
    def _load(cls, env: ComponentEnv, path: Path, max_bytes: int) -> tuple[Array, Array | None]:
        try:
            arrays = cls.read_file(path, max_bytes)
        except FileNotFoundError as error:
            raise env.error(f"there is no file {path.absolute()}", "path") from error
        except TooManyBytes as error:
            hint = "raise max_bytes, or save fewer samples"
            raise env.error(
                f"{path} holds {error.nbytes} bytes, max_bytes is {max_bytes}", "max_bytes", hint
            ) from error
        except (ArrayFileError, FileRefused) as error:
            text = path.suffix.lower() in (".csv", ".tsv", ".txt")
            hint = "bind CsvDataSource, which reads CSV" if text else error.hint
            raise env.error(f"{path} cannot be read: {error.what}", "path", hint) from error
        except OSError as error:
            raise env.error(f"{path} cannot be read: {error.strerror or error}", "path") from error
        if "x" not in arrays:
            raise env.error(f"{path} holds no array 'x'", "path", "save it with np.savez(path, x=…, y=…)")
        x, y = arrays["x"], arrays.get("y")
        for name, array in (("x", x), ("y", y)):
            if array is None:
                continue
            if array.dtype.kind == "c" or (array.dtype.kind == "f" and array.dtype.itemsize > _WIDEST):
                hint = f"save {name}.astype(np.float64)"
                if array.dtype.kind == "c":
                    hint = f"save real numbers: np.stack([{name}.real, {name}.imag], axis=-1)"
                what = f"array {name!r} of {path} holds {array.dtype}, which no tensor has"
                raise env.error(what, "path", hint)
            if array.dtype.kind not in _NUMBERS:
                hint = (
                    "number the classes: names, y = np.unique(texts, return_inverse=True), and keep the names"
                    if name == "y"
                    else "save what the model is given: numbers"
                )
                raise env.error(
                    f"array {name!r} of {path} holds text ({array.dtype}), not numbers", "path", hint
                )
        if y is not None and (y.ndim == 0 or len(y) != len(x)):
            raise env.error(
                f"array 'x' of {path} holds {len(x)} samples, and 'y', their labels, has the shape"
                f" {list(y.shape)}",
                "path",
                f"save one label per sample: y of the shape [{len(x)}, …]",
            )
        return x, y
