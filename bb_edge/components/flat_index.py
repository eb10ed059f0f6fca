"""`bb.FlatIndex`: exact nearest neighbours by Euclidean distance, over all vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bb_edge.components.state import StateReader, pack_array, pack_state
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.contracts import Index
from bb_edge.roles.errors import ComponentError
from bb_edge.roles.settings import Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bb_edge.ir.tensors import Array
    from bb_edge.roles.context import Ctx

__all__ = ["FlatIndex"]

_VERSION = 1
_FIRST_ROWS = 64
"""Rows that are allocated for the first vectors; the array doubles when it is full."""


class FlatIndex(Index):
    """Finds exact nearest neighbours by comparing a query with all vectors; distances are Euclidean (L2).

    Configuration: `capacity`, vectors at most (65 536); `dim`, numbers per vector, 0 = as many as the first
    one has (0). Ids count up from 0 in the order of addition and are never reused. Where there are fewer than
    `k` vectors, `search` fills up with id -1 and distance inf.
    """

    TYPE_NAME: ClassVar[str] = "bb.FlatIndex"
    CONFIG: ClassVar[Mapping[str, Setting]] = {
        "capacity": Setting.integer(65_536, 1),
        "dim": Setting.integer(0, 0, 1 << 20),
    }

    def __init__(self, *, where: str = "", capacity: int = 65_536, dim: int = 0) -> None:
        self._where = where
        self._capacity = capacity
        self._vectors = np.empty((0, dim), np.float32)
        self._norms = np.empty(0, np.float32)
        self._ids = np.empty(0, np.int64)
        self._n = 0
        self._next_id = 0

    @classmethod
    def construct(cls, env: ComponentEnv) -> FlatIndex:
        read = env.settings(cls)
        return cls(where=f"slot {env.slot!r}", capacity=read["capacity"], dim=read["dim"])

    @classmethod
    def port_types(cls, config: Mapping[str, object], tensors: Mapping[str, Array]) -> Mapping[str, str]:
        """Returns that vectors have `dim` numbers, where the configuration says so."""
        dim = config.get("dim")
        if not isinstance(dim, int) or dim < 1:
            return {}
        return dict.fromkeys(("Add.vec", "Search.query"), f"Tensor[…,{dim}]")

    def add(self, ctx: Ctx, vec: Array) -> None:
        rows = self._rows(vec, "the vector")
        if self._n + len(rows) > self._capacity:
            raise self._error(
                f"it holds {self._n} vectors, {len(rows)} more exceed its capacity of {self._capacity}"
            )
        self._reserve(self._n + len(rows), rows.shape[1])
        end = self._n + len(rows)
        self._vectors[self._n : end] = rows
        self._norms[self._n : end] = np.einsum("ij,ij->i", rows, rows)
        self._ids[self._n : end] = np.arange(self._next_id, self._next_id + len(rows))
        self._n = end
        self._next_id += len(rows)

    def search(self, ctx: Ctx, query: Array, *, k: int) -> tuple[Array, Array]:
        if k < 1:
            raise self._error(f"k must be at least 1, not {k}")
        rows = self._rows(query, "the query")
        ids = np.full((len(rows), k), -1, np.int64)
        distances = np.full((len(rows), k), np.inf, np.float32)
        hits = min(k, self._n)
        if hits:
            # |q - v|² = |q|² - 2 q·v + |v|²: one matrix product instead of a difference per pair.
            squared = rows @ self._vectors[: self._n].T
            squared *= -2.0
            squared += self._norms[: self._n]
            squared += np.einsum("ij,ij->i", rows, rows)[:, None]
            nearest = np.argpartition(squared, hits - 1, axis=1)[:, :hits]
            near = np.take_along_axis(squared, nearest, 1)
            # Equal distances come in the order of ids.
            order = np.lexsort((self._ids[nearest], near), axis=1)
            nearest = np.take_along_axis(nearest, order, 1)
            ids[:, :hits] = self._ids[nearest]
            distances[:, :hits] = np.sqrt(np.maximum(np.take_along_axis(near, order, 1), 0.0))
        return (ids[0], distances[0]) if query.ndim == 1 else (ids, distances)

    def remove(self, ctx: Ctx, id: Array) -> None:
        """Removes vectors by id, and ignores ids that it does not hold."""
        kept = ~np.isin(self._ids[: self._n], np.asarray(id).reshape(-1).astype(np.int64))
        n = int(kept.sum())
        for array in (self._vectors, self._norms, self._ids):
            array[:n] = array[: self._n][kept]
        self._n = n

    def _rows(self, vectors: Array, what: str) -> Array:
        rows = vectors.reshape(1, -1) if vectors.ndim == 1 else vectors
        dim = self._vectors.shape[1]
        if rows.ndim != 2 or rows.dtype.kind != "f" or (dim and rows.shape[1] != dim) or not rows.shape[1]:
            takes = f"[{dim}] or [n, {dim}]" if dim else "[d] or [n, d]"
            raise self._error(f"{what} is {vectors.dtype}{list(vectors.shape)}, expected floats {takes}")
        return rows.astype(np.float32, copy=False)

    def _reserve(self, n: int, dim: int) -> None:
        size = len(self._ids)
        if n <= size:
            return
        size = min(self._capacity, max(n, 2 * size, _FIRST_ROWS))
        vectors, norms, ids = (
            np.empty((size, dim), np.float32),
            np.empty(size, np.float32),
            np.empty(size, np.int64),
        )
        if self._n:
            vectors[: self._n], norms[: self._n] = self._vectors[: self._n], self._norms[: self._n]
            ids[: self._n] = self._ids[: self._n]
        self._vectors, self._norms, self._ids = vectors, norms, ids

    def _error(self, what: str) -> ComponentError:
        return ComponentError(what, self._where)

    def serialize(self) -> bytes:
        fields = {
            "vectors": pack_array(self._vectors[: self._n]),
            "ids": pack_array(self._ids[: self._n]),
            "next_id": self._next_id,
        }
        return pack_state(self, _VERSION, fields)

    def restore(self, state: bytes) -> None:
        read = StateReader(self, _VERSION, state)
        vectors, ids, next_id = read.array("vectors"), read.array("ids"), read.integer("next_id")
        dim = self._vectors.shape[1]
        if vectors.ndim != 2 or ids.shape != vectors.shape[:1] or vectors.dtype != np.float32:
            raise read.error("its vectors and ids do not fit each other")
        if len(ids) > self._capacity or (dim and len(ids) and vectors.shape[1] != dim):
            raise read.error(f"it holds {list(vectors.shape)} vectors, which this index does not take")
        self._vectors, self._ids, self._next_id, self._n = vectors, ids.astype(np.int64), next_id, len(ids)
        self._norms = np.einsum("ij,ij->i", vectors, vectors)
