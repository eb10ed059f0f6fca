"""`bb.FlatIndex` against distances computed pair by pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bb_edge.components import FlatIndex
from bb_edge.roles import ComponentEnv, ComponentError, ComponentStateError

Ctx = Any
RNG = np.random.default_rng(4)
VECTORS = RNG.standard_normal((200, 8)).astype(np.float32)
QUERIES = RNG.standard_normal((5, 8)).astype(np.float32)


def filled(ctx: Ctx) -> FlatIndex:
    index = FlatIndex()
    index.add(ctx, VECTORS[:150])
    index.add(ctx, VECTORS[150])
    index.add(ctx, VECTORS[151:])
    return index


def test_the_nearest_are_found_nearest_first(ctx: Ctx) -> None:
    ids, distances = filled(ctx).search(ctx, QUERIES, k=7)
    exact = np.linalg.norm(QUERIES[:, None].astype(np.float64) - VECTORS[None], axis=-1)
    np.testing.assert_array_equal(ids, np.argsort(exact, axis=1)[:, :7])
    np.testing.assert_allclose(distances, np.sort(exact, axis=1)[:, :7], rtol=1e-4)
    assert ids.dtype == np.int64 and distances.dtype == np.float32


def test_one_query_gives_one_row(ctx: Ctx) -> None:
    index = filled(ctx)
    ids, distances = index.search(ctx, VECTORS[17], k=1)
    assert ids.shape == distances.shape == (1,)
    assert ids[0] == 17 and distances[0] < 1e-2


def test_missing_neighbours_have_no_id(ctx: Ctx) -> None:
    index = FlatIndex(dim=2)
    ids, distances = index.search(ctx, np.zeros(2, np.float32), k=2)
    np.testing.assert_array_equal(ids, [-1, -1])
    assert np.isinf(distances).all()
    index.add(ctx, np.ones(2, np.float32))
    np.testing.assert_array_equal(index.search(ctx, np.zeros(2, np.float32), k=2)[0], [0, -1])


def test_equal_distances_come_in_the_order_of_ids(ctx: Ctx) -> None:
    index = FlatIndex()
    index.add(ctx, np.ones((4, 2), np.float32))
    np.testing.assert_array_equal(index.search(ctx, np.zeros(2, np.float32), k=4)[0], [0, 1, 2, 3])


def test_removed_vectors_are_gone_and_their_ids_not_given_again(ctx: Ctx) -> None:
    index = filled(ctx)
    index.remove(ctx, np.array([17, 3, 17, 9999]))
    assert index.search(ctx, VECTORS[17], k=1)[0][0] != 17
    index.add(ctx, VECTORS[17])
    assert index.search(ctx, VECTORS[17], k=1)[0][0] == 200


@pytest.mark.parametrize("n", [9, 10, 11])
def test_capacity(ctx: Ctx, n: int) -> None:
    index = FlatIndex(capacity=10)
    if n <= 10:
        index.add(ctx, VECTORS[:n])
        return
    index.add(ctx, VECTORS[:10])
    with pytest.raises(ComponentError, match="capacity of 10"):
        index.add(ctx, VECTORS[0])
    assert index.search(ctx, VECTORS[9], k=1)[0][0] == 9


@pytest.mark.parametrize(
    "bad", [np.zeros((2, 7), np.float32), np.zeros((1, 1, 8), np.float32), np.zeros(8, int)]
)
def test_what_does_not_fit_is_refused(ctx: Ctx, bad: np.ndarray) -> None:
    index = filled(ctx)
    for call in (lambda: index.add(ctx, bad), lambda: index.search(ctx, bad, k=1)):
        with pytest.raises(ComponentError, match="expected floats"):
            call()
    with pytest.raises(ComponentError, match="k must be"):
        index.search(ctx, QUERIES, k=0)


def test_a_snapshot_goes_on_where_it_stopped(ctx: Ctx) -> None:
    index, restored = filled(ctx), FlatIndex.construct(ComponentEnv("index"))
    index.remove(ctx, np.array([0]))
    restored.restore(index.serialize())
    for i in (index, restored):
        i.add(ctx, QUERIES[0])
        np.testing.assert_array_equal(i.search(ctx, QUERIES[0], k=1)[0], [200])
    np.testing.assert_array_equal(index.search(ctx, QUERIES, k=9)[0], restored.search(ctx, QUERIES, k=9)[0])
    with pytest.raises(ComponentStateError):
        FlatIndex(capacity=5).restore(index.serialize())
