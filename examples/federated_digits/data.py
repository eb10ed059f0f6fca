"""The digits, and how they are dealt to the clients of a federation.

Everything is seeded: the same arguments give the same shards, byte for byte.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

DATA_FILE = Path(__file__).resolve().parent.parent / "data" / "optdigits.csv.gz"
PIXELS = 64
CLASSES = 10
MAX_INK = 16
"""The darkest a pixel gets: all 4x4 pixels of the scan it stands for."""

BATCH = 32
"""A shard smaller than one batch can't take a training step."""

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64]


class DataError(Exception):
    """The data can't be read or can't be split as asked; the message says what would work."""


@dataclass(frozen=True, slots=True)
class Split:
    """Row numbers: what the server scores on, and one shard per client. No row is in two places."""

    test: Indices
    shards: tuple[Indices, ...]


def load_digits(path: Path = DATA_FILE) -> tuple[Floats, Labels]:
    """Read the digits: `x` float32 [n, 64] scaled to 0..1, `y` int64 [n] in 0..9.

    Raises:
        DataError: the file is missing or isn't rows of 64 pixels and a digit.
    """
    try:
        with gzip.open(path, "rt", encoding="ascii") as lines:
            table = np.loadtxt(lines, dtype=np.int64, delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(
            f"{path.name}: not readable as digits ({error}); restore it from the repository"
        ) from error
    if table.shape[1] != PIXELS + 1:
        raise DataError(f"{path.name}: {table.shape[1]} columns, expected {PIXELS} pixels and a digit")
    pixels, labels = table[:, :PIXELS], table[:, PIXELS]
    if pixels.min() < 0 or pixels.max() > MAX_INK or labels.min() < 0 or labels.max() >= CLASSES:
        raise DataError(f"{path.name}: pixels must be 0..{MAX_INK} and digits 0..{CLASSES - 1}")
    return pixels.astype(np.float32) / np.float32(MAX_INK), np.ascontiguousarray(labels)


def split(
    labels: Labels,
    clients: int,
    alpha: float | None = None,
    seed: int = 0,
    test_fraction: float = 0.2,
    min_samples: int = BATCH,
) -> Split:
    """Deal samples to the server's test set and to `clients` shards.

    The test set is stratified: every class gives the same fraction. With `alpha` None the shards are alike:
    every class is dealt evenly and sizes differ by one at most. Otherwise every class is divided in
    proportions drawn from a symmetric Dirichlet(alpha), the usual model of clients that see different things:
    100 is nearly even, 0.1 leaves most clients with a few classes. Clients then short of `min_samples` take
    from the largest shards.

    Args:
        labels: int64 [n], one class per sample.
        clients: how many shards, at least 1.
        alpha: concentration of the Dirichlet distribution, > 0, or None for even shards.
        seed: of everything random here.
        test_fraction: share of each class that the server keeps, 0 <= f < 1.
        min_samples: every shard has at least that many; one batch unless told otherwise.

    Raises:
        DataError: an argument is out of range, or there aren't `clients` x `min_samples` samples to deal.
    """
    if len(labels) == 0:
        raise DataError("no samples to deal")
    if clients < 1:
        raise DataError(f"clients={clients}: needs at least one")
    if alpha is not None and not (np.isfinite(alpha) and alpha > 0):
        raise DataError(f"alpha={alpha}: needs a positive number, or None for even shards")
    if not 0 <= test_fraction < 1:
        raise DataError(f"test_fraction={test_fraction}: needs 0 <= f < 1")

    rng = np.random.default_rng(seed)
    test: list[Indices] = []
    hands: list[list[Indices]] = [[] for _ in range(clients)]
    dealt = 0
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label)).astype(np.int64)
        kept = round(len(members) * test_fraction)
        test.append(members[:kept])
        members = members[kept:]
        if alpha is None:
            # Start each class where the last one ended, or the first clients would collect every remainder.
            parts = [members[(client - dealt) % clients :: clients] for client in range(clients)]
            dealt += len(members)
        else:
            shares = rng.dirichlet(np.full(clients, alpha))
            parts = np.split(members, np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64))
        for hand, part in zip(hands, parts, strict=True):
            hand.append(part)

    shards = [rng.permutation(np.concatenate(hand)) for hand in hands]
    total = sum(map(len, shards))
    if total < clients * min_samples:
        raise DataError(
            f"{clients} clients x {min_samples} samples are more than the {total} left for training: "
            f"at most {total // max(min_samples, 1)} clients, or a smaller min_samples or test_fraction"
        )
    _level(shards, min_samples)
    return Split(test=np.sort(np.concatenate(test)), shards=tuple(shards))


def _level(shards: list[Indices], min_samples: int) -> None:
    """Move samples from the largest shards to those below `min_samples`, as few as possible."""
    for client in range(len(shards)):
        while (missing := min_samples - len(shards[client])) > 0:
            rich = max(range(len(shards)), key=lambda other: len(shards[other]))
            # The giver keeps its own minimum; the total suffices, so the loop ends.
            moved = min(missing, len(shards[rich]) - min_samples)
            shards[client] = np.concatenate([shards[client], shards[rich][-moved:]])
            shards[rich] = shards[rich][:-moved]


def write_shards(folder: Path, x: Floats, y: Labels, parts: Split) -> tuple[Path, tuple[Path, ...]]:
    """Write `server.npz` and `client-<k>.npz` (arrays `x` and `y`) and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, rows: Indices) -> Path:
        path = folder / name
        np.savez(path, x=x[rows], y=y[rows])
        return path

    return write("server.npz", parts.test), tuple(
        write(f"client-{client}.npz", rows) for client, rows in enumerate(parts.shards)
    )


def read_shard(path: Path) -> tuple[Floats, Labels]:
    """Read one shard written by `write_shards`: `x` float32 [n, 64], `y` int64 [n].

    Raises:
        DataError: the file is missing or isn't a shard.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["x"], arrays["y"]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise DataError(f"{path}: not a shard ({error})") from error


def class_counts(labels: Labels, rows: Sequence[int] | Indices) -> Indices:
    """How often each of the ten digits occurs among `rows`: int64 [10]."""
    chosen = labels[np.asarray(rows, dtype=np.int64)].astype(np.intp)  # 32-bit machines count nothing wider
    return np.bincount(chosen, minlength=CLASSES).astype(np.int64)
