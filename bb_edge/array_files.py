"""Reads arrays of numbers from `.npy` and `.npz` files that somebody else wrote.

What a header announces is compared with the bytes that are there before anything is allocated; Python
objects (pickles) are never read.
"""

from __future__ import annotations

import os
import zipfile
from math import prod
from typing import IO, TYPE_CHECKING, Any, BinaryIO

import numpy as np

from bb_edge.input_files import open_regular
from bb_edge.ir.errors import BBError

if TYPE_CHECKING:
    from collections.abc import Collection

    from bb_edge.ir.tensors import Array

__all__ = ["NUMBERS", "ArrayFileError", "TooManyBytes", "read_arrays", "unpacked"]

NUMBERS = "biufcUS"
"""The kinds of NumPy's dtypes that are read: numbers, and text."""
_MAX_HEADER = 10_000
"""Bytes of a header; NumPy writes some 100."""


class ArrayFileError(BBError):
    """A file that holds no arrays of numbers: damaged, too large, or of another kind."""


class TooManyBytes(ArrayFileError):
    """The arrays take more memory than the caller allows; `nbytes` is what they take."""

    def __init__(self, nbytes: int, most: int, where: str) -> None:
        self.nbytes = nbytes
        super().__init__(f"it holds {nbytes} bytes of arrays, {most} are allowed", where)


def read_arrays(
    path: str | os.PathLike[str], most: int | None = None, names: Collection[str] | None = None
) -> dict[str, Array]:
    """Returns the arrays of an `.npz` file by name; the one of an `.npy` file has the name "".

    `names` are those that are read, without it all. `most` bounds the bytes that they take in memory. Raises
    ArrayFileError, FileRefused for what is not a regular file, and OSError where it cannot be opened.
    """
    where = os.fspath(path)
    with open_regular(path) as file:
        return unpacked(file, where, most, names)


def unpacked(
    file: BinaryIO, where: str, most: int | None = None, names: Collection[str] | None = None
) -> dict[str, Array]:
    """Does what `read_arrays` does, for a file that is open."""
    start = file.read(len(_NPY))
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    try:
        if start == _NPY:
            _bounded(size, most, where)
            return {"": _array(file, size, where)}
        with zipfile.ZipFile(file) as archive:
            held = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = {name: info for name, info in held.items() if names is None or name in names}
            _bounded(sum(info.file_size for info in wanted.values()), most, where)
            arrays = {}
            for name, info in wanted.items():
                with archive.open(info) as member:
                    arrays[name] = _array(member, info.file_size, where, name)
            return arrays
    except BBError:
        raise
    # Zip archives and NumPy's headers raise many kinds where bytes are damaged, MemoryError among them.
    except Exception as error:
        raise ArrayFileError(
            f"it is damaged, or not an .npy or .npz file of numbers: {error}", where, _WRITE
        ) from error


_NPY = b"\x93NUMPY"
_WRITE = "write it with np.savez(path, name=array)"


def _bounded(nbytes: int, most: int | None, where: str) -> None:
    if most is not None and nbytes > most:
        raise TooManyBytes(nbytes, most, where)


def _array(stream: IO[bytes], size: int, where: str, name: str = "") -> Array:
    """Reads one array of `size` bytes, header included."""
    whose = f"array {name!r}" if name else "the array"
    if stream.read(len(_NPY)) != _NPY:
        raise ArrayFileError(f"{whose} is not in NumPy's format", where, _WRITE)
    version = tuple(stream.read(2))
    if version not in ((1, 0), (2, 0)):
        raise ArrayFileError(f"{whose} is not an array of numbers", where, _WRITE)
    read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else _header_2_0
    shape, fortran, dtype = read(stream, max_header_size=_MAX_HEADER)
    if dtype.hasobject or dtype.kind not in NUMBERS:
        raise ArrayFileError(f"{whose} holds {dtype}, not numbers", where, _WRITE)
    announced = prod(shape) * dtype.itemsize
    there = size - stream.tell()
    if announced != there:
        raise ArrayFileError(
            f"{whose} has shape {list(shape)} and {dtype}, which is {announced} bytes; {there} are there",
            where,
            "copy the file again",
        )
    flat = np.empty(prod(shape), dtype)
    if flat.nbytes:
        _fill(stream, flat.view(np.uint8), whose, where)
    array: Array = flat.reshape(shape[::-1]).transpose() if fortran else flat.reshape(shape)
    return array


_header_2_0: Any = np.lib.format.read_array_header_2_0


def _fill(stream: IO[bytes], target: Array, whose: str, where: str) -> None:
    done = 0
    while done < len(target):
        chunk = stream.read(min(len(target) - done, 1 << 20))
        if not chunk:
            raise ArrayFileError(f"{whose} is cut off", where, "copy the file again")
        target[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
        done += len(chunk)
