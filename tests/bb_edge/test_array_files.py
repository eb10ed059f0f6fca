"""`.npy` and `.npz` files of others: numbers, or a typed error before anything is allocated."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bb_edge.array_files import ArrayFileError, TooManyBytes, read_arrays
from bb_edge.components import ArrayDataSource
from bb_edge.roles import ComponentEnv, ComponentError


def npz(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    written = io.BytesIO()
    fields = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(written, fields)
    return written.getvalue()


def npy(array: np.ndarray) -> bytes:
    written = io.BytesIO()
    np.save(written, array)
    return written.getvalue()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.zeros((0, 3), np.float64),
        np.array(7, np.int8),
        np.array([True, False]),
        np.arange(4, dtype=">i2"),
        np.array("text"),
        np.random.default_rng(0).standard_normal((700, 500)),  # more than one chunk
    ],
    ids=str,
)
@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_come_back(array: np.ndarray, compressed: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    (np.savez_compressed if compressed else np.savez)(path, x=array, y=array)
    found = read_arrays(path)
    assert sorted(found) == ["x", "y"]
    np.testing.assert_array_equal(found["x"], array)
    assert found["x"].dtype == array.dtype
    np.save(tmp_path / "a.npy", array)
    np.testing.assert_array_equal(read_arrays(tmp_path / "a.npy")[""], array)


def test_only_the_arrays_that_are_asked_for_are_read_and_bounded(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", {"x.npy": npy(np.zeros(4)), "z.npy": b"no array", "w": b"x" * 10_000})
    assert list(read_arrays(path, 1000, ("x", "y"))) == ["x"]
    with pytest.raises(TooManyBytes) as caught:
        read_arrays(path, 100, ("x",))
    assert caught.value.nbytes == len(npy(np.zeros(4)))


HOSTILE = {
    "not .npy": ({"x": b"hello"}, "not in NumPy's format"),
    "a raw pickle": ({"x": pickle.dumps([1, 2])}, "not in NumPy's format"),
    "empty": ({"x.npy": b""}, "not in NumPy's format"),
    "objects": ({"x.npy": npy(np.array([{}, None]))}, "not numbers"),
    "records": ({"x.npy": npy(np.zeros(2, "f4,i4"))}, "not numbers"),
    "2^50 elements": ({"x.npy": header((2**50,))}, "0 are there"),
    "2^200 elements": ({"x.npy": header((2**100, 2**100))}, "0 are there"),
    "a negative shape": ({"x.npy": header((-1,)) + b"1234"}, "there"),
    "fewer bytes": ({"x.npy": header((4,)) + b"123"}, "3 are there"),
    "more bytes": ({"x.npy": header((4,)) + b"1" * 17}, "17 are there"),
    "rank 100": ({"x.npy": header((1,) * 100) + b"1234"}, "damaged"),
    "version 9": ({"x.npy": b"\x93NUMPY\x09\x00" + header((1,))[8:]}, "not an array of numbers"),
    "a deep header": ({"x.npy": b"\x93NUMPY\x01\x00\xe8\x03" + b"(" * 1000}, "damaged"),
    "code in the header": (
        {"x.npy": b"\x93NUMPY\x01\x00\x30\x00" + b"__import__('os').abort()".ljust(48)},
        "damaged",
    ),
}


@pytest.mark.parametrize(("members", "words"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_a_typed_error(members: dict[str, bytes], words: str, tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", members)
    with pytest.raises(ArrayFileError, match=words) as caught:
        read_arrays(path)
    assert caught.value.where == str(path)
    assert caught.value.hint
    env = ComponentEnv("shard", config={"path": str(path)})
    with pytest.raises(ComponentError, match=words):
        ArrayDataSource.construct(env)


def test_a_file_of_another_kind_is_a_typed_error(tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"PK\x03\x04", b"\x93NUMPY", b"[1, 2]")):
        path = tmp_path / f"{number}"
        path.write_bytes(content)
        with pytest.raises(ArrayFileError):
            read_arrays(path)
