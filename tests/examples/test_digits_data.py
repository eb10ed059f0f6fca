"""The digits as they are in the repository, and the seeded split of them."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federated_digits.data import (
    BATCH,
    DATA_FILE,
    DataError,
    class_counts,
    load_digits,
    read_shard,
    split,
    write_shards,
)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    return load_digits()


def test_the_file_is_the_one_its_readme_describes() -> None:
    readme = (DATA_FILE.parent / "README.md").read_text()
    compressed = DATA_FILE.read_bytes()
    documented = re.findall(r"`([0-9a-f]{64})`", readme)
    assert documented == [
        hashlib.sha256(compressed).hexdigest(),
        hashlib.sha256(gzip.decompress(compressed)).hexdigest(),
    ]
    assert "CC BY 4.0" in readme


def test_shapes_types_and_ranges(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits
    assert (x.shape, x.dtype) == ((1797, 64), np.float32)
    assert (y.shape, y.dtype) == ((1797,), np.int64)
    assert (x.min(), x.max()) == (0.0, 1.0)
    assert np.array_equal(x * 16, np.rint(x * 16))
    assert class_counts(y, range(len(y))).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


@pytest.mark.parametrize("alpha", [None, 100.0, 1.0, 0.1, 0.01])
@pytest.mark.parametrize("clients", [1, 2, 4, 10, 40])
def test_every_sample_goes_to_exactly_one_place(
    digits: tuple[np.ndarray, np.ndarray], clients: int, alpha: float | None
) -> None:
    _, y = digits
    parts = split(y, clients, alpha=alpha, seed=7)
    rows = np.concatenate([parts.test, *parts.shards])
    assert np.array_equal(np.sort(rows), np.arange(len(y)))
    assert len(parts.shards) == clients
    assert min(map(len, parts.shards)) >= BATCH


def test_the_test_set_is_stratified(digits: tuple[np.ndarray, np.ndarray]) -> None:
    _, y = digits
    counts = class_counts(y, split(y, 4, alpha=0.1, seed=3).test)
    assert counts.tolist() == [round(n * 0.2) for n in class_counts(y, range(len(y)))]


def test_even_shards_are_alike(digits: tuple[np.ndarray, np.ndarray]) -> None:
    _, y = digits
    shards = split(y, 7, seed=5).shards
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    counts = np.stack([class_counts(y, shard) for shard in shards])
    assert int((counts.max(axis=0) - counts.min(axis=0)).max()) <= 1


def test_a_small_alpha_separates_the_classes(digits: tuple[np.ndarray, np.ndarray]) -> None:
    _, y = digits

    def largest_class(alpha: float | None) -> float:
        counts = [class_counts(y, shard) for shard in split(y, 8, alpha=alpha, seed=11).shards]
        return float(np.mean([count.max() / count.sum() for count in counts]))

    assert largest_class(None) < 0.15 < largest_class(1.0) < largest_class(0.05)


def test_the_seed_decides(digits: tuple[np.ndarray, np.ndarray]) -> None:
    _, y = digits
    for alpha in (None, 0.5):
        first, again, other = (split(y, 4, alpha=alpha, seed=seed) for seed in (1, 1, 2))
        assert all(np.array_equal(a, b) for a, b in zip(first.shards, again.shards, strict=True))
        assert np.array_equal(first.test, again.test)
        assert not np.array_equal(first.test, other.test)


def test_shards_survive_the_disk_and_are_deterministic_files(
    digits: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    x, y = digits
    parts = split(y, 3, seed=1)
    server, clients = write_shards(tmp_path / "a", x, y, parts)
    for path, rows in zip((server, *clients), (parts.test, *parts.shards), strict=True):
        shard_x, shard_y = read_shard(path)
        assert np.array_equal(shard_x, x[rows]) and np.array_equal(shard_y, y[rows])
    again, _ = write_shards(tmp_path / "b", x, y, parts)
    assert again.read_bytes() == server.read_bytes()


def test_every_client_gets_its_minimum_when_there_is_just_enough() -> None:
    labels = np.repeat(np.arange(10), 32)
    shards = split(labels, 10, alpha=0.05, seed=0, test_fraction=0.0).shards
    assert [len(shard) for shard in shards] == [32] * 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clients": 0}, "clients=0"),
        ({"clients": 4, "alpha": 0.0}, "alpha=0.0"),
        ({"clients": 4, "alpha": float("nan")}, "alpha=nan"),
        ({"clients": 4, "test_fraction": 1.0}, "test_fraction=1.0"),
        ({"clients": 4, "test_fraction": -0.1}, "test_fraction=-0.1"),
        ({"clients": 46}, "at most 44 clients"),
    ],
)
def test_what_cannot_be_dealt_is_refused(
    digits: tuple[np.ndarray, np.ndarray], arguments: dict[str, float], message: str
) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        split(digits[1], **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "contents",
    [None, b"1,2,3\n", b"a,b\n", b"17," * 64 + b"1\n"],
    ids=["not gzip", "too few columns", "letters", "out of range"],
)
def test_a_damaged_file_is_a_data_error(tmp_path: Path, contents: bytes | None) -> None:
    path = tmp_path / "digits.csv.gz"
    path.write_bytes(b"not gzip" if contents is None else gzip.compress(contents))
    with pytest.raises(DataError):
        load_digits(path)
    with pytest.raises(DataError):
        read_shard(path)


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=10),
    clients=st.integers(1, 12),
    alpha=st.none() | st.floats(1e-3, 1e3),
    minimum=st.integers(0, 8),
    seed=st.integers(0, 2**32),
)
def test_any_split_is_a_partition_or_a_refusal(
    sizes: list[int], clients: int, alpha: float | None, minimum: int, seed: int
) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    try:
        parts = split(labels, clients, alpha=alpha, seed=seed, min_samples=minimum)
    except DataError:
        trained = sum(size - round(size * 0.2) for size in sizes)
        assert trained < clients * minimum or sum(sizes) == 0
        return
    rows = np.concatenate([parts.test, *parts.shards])
    assert np.array_equal(np.sort(rows), np.arange(len(labels)))
    assert min(map(len, parts.shards)) >= minimum
