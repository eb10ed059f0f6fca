"""Which parameters of another program's model fit, and what is said of each that does not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from bb_edge.components import GraphModel
from bb_edge.components.parameter_adoption import adopt_parameters
from bb_edge.components.state import StateReader, pack_array, pack_state
from bb_edge.ir.tensors import Array
from bb_edge.roles import ComponentStateError
from bb_edge.roles.adoption import Adoption

MODEL = GraphModel({"w": np.zeros((2, 3), np.float32)})


def read(tensors: Mapping[str, tuple[int, ...]], size: int, **vectors: int) -> StateReader:
    """A state of these tensors: `params` counts from 1, each of `vectors` from its number."""
    fields: dict[str, object] = {
        "params": pack_array(np.arange(1, size + 1, dtype=np.float32)),
        "tensors": [[name, list(shape)] for name, shape in tensors.items()],
    }
    for name, first in vectors.items():
        fields[name] = pack_array(np.arange(first, first + size, dtype=np.float32))
    return StateReader(MODEL, 1, pack_state(MODEL, 1, fields))


def zeros(dtype: type = np.float32, **shapes: tuple[int, ...]) -> dict[str, Array]:
    return {name: np.zeros(shape, dtype) for name, shape in shapes.items()}


def test_each_tensor_has_its_own_numbers_and_what_the_optimizer_keeps_of_it() -> None:
    own = zeros(w=(2, 3), b=(3,), s=())
    kept = {name: zeros(w=(2, 3), b=(3,), s=()) for name in ("velocity", "mean", "square")}
    shapes = {"w": (2, 3), "b": (3,), "s": ()}
    found = adopt_parameters(read(shapes, 10, velocity=100, mean=200, square=300), own, kept)
    assert found == Adoption(
        (
            "3 tensors with 10 numbers",
            "momentum of 3 tensors with 10 numbers",
            "Adam's mean of gradients of 3 tensors with 10 numbers",
            "Adam's mean of their squares of 3 tensors with 10 numbers",
        )
    )
    for first, arrays in ((1, own), (100, kept["velocity"]), (200, kept["mean"]), (300, kept["square"])):
        assert arrays["w"].tolist() == [
            [first + 0, first + 1, first + 2],
            [first + 3, first + 4, first + 5],
        ]
        assert arrays["b"].tolist() == [first + 6, first + 7, first + 8]
        assert arrays["s"] == first + 9


def test_what_does_not_fit_is_named_with_both_forms_and_left_as_it_is() -> None:
    own = {**zeros(w=(2, 3), b=(4,), s=(), new=(1,)), **zeros(np.float64, v=(2,))}
    shapes = {"gone": (1,), "w": (3, 2), "b": (), "s": (1,), "v": (2,)}
    found = adopt_parameters(read(shapes, 11), own, {})
    assert found == Adoption(
        (),
        (
            "tensor gone: the model has none of that name",
            "tensor w: it was 3x2, here it is 2x3",
            "tensor b: it was a scalar, here it is 4",
            "tensor s: it was 1, here it is a scalar",
            "tensor v: it was float32, here it is float64",
            "tensor new: it is new, and begins as the artifact has it",
        ),
    )
    assert all(not array.any() for array in own.values())


def test_a_tensor_between_others_that_do_not_fit_has_its_own_numbers() -> None:
    own = zeros(b=(2,), w=(5,))
    kept = {"velocity": zeros(b=(2,), w=(5,))}
    found = adopt_parameters(read({"w": (2, 2), "b": (2,), "z": (3,)}, 9, velocity=50), own, kept)
    assert found.taken == ("1 tensor with 2 numbers", "momentum of 1 tensor with 2 numbers")
    assert found.left == (
        "tensor w: it was 2x2, here it is 5",
        "tensor z: the model has none of that name",
    )
    assert own["b"].tolist() == [5, 6] and kept["velocity"]["b"].tolist() == [54, 55]
    assert not own["w"].any() and not kept["velocity"]["w"].any()


def test_large_numbers_are_told_with_commas() -> None:
    found = adopt_parameters(read({"w": (50, 100)}, 5000), zeros(w=(50, 100)), {})
    assert found == Adoption(("1 tensor with 5,000 numbers",))


def test_what_this_optimizer_does_not_keep_is_named_and_what_follows_is_taken() -> None:
    own, kept = zeros(w=(2,)), {"square": zeros(w=(2,))}
    found = adopt_parameters(read({"w": (2,)}, 2, velocity=5, mean=6, square=7, gradient=8), own, kept)
    assert found.taken == (
        "1 tensor with 2 numbers",
        "Adam's mean of their squares of 1 tensor with 2 numbers",
    )
    assert found.left == (
        "momentum: this program has none",
        "Adam's mean of gradients: this program has none",
        "a gradient that no step has applied: it belongs to an execution of the old program",
    )
    assert own["w"].tolist() == [1, 2] and kept["square"]["w"].tolist() == [7, 8]


def test_where_nothing_fits_nothing_is_kept() -> None:
    kept = {"velocity": zeros(b=(2,))}
    found = adopt_parameters(read({"w": (2,)}, 2, velocity=5), zeros(b=(2,)), kept)
    assert found.taken == () and len(found.left) == 2
    assert not kept["velocity"]["b"].any()


@pytest.mark.parametrize("vectors", [{}, {"velocity": 3}])
def test_vectors_of_another_length_are_refused_before_anything_is_written(vectors: dict[str, int]) -> None:
    own = zeros(w=(2,))
    state = read({"w": (2,)}, 3, **vectors)
    wrong = "state of bb.GraphModel: its tensors have 2 numbers, its vectors others"
    with pytest.raises(ComponentStateError, match=f"^{re.escape(wrong)}$"):
        adopt_parameters(state, own, {"velocity": zeros(w=(2,))})
    assert not own["w"].any()


@pytest.mark.parametrize("row", [7, ["w"], ["w", 2], ["w", ["two"]], ["w", [2], 1]])
def test_a_damaged_list_of_tensors_is_refused(row: object) -> None:
    fields = {"params": pack_array(np.zeros(2, np.float32)), "tensors": [row]}
    wrong = "state of bb.GraphModel: its list of tensors is damaged"
    with pytest.raises(ComponentStateError, match=f"^{re.escape(wrong)}$"):
        adopt_parameters(StateReader(MODEL, 1, pack_state(MODEL, 1, fields)), zeros(w=(2,)), {})


def test_names_are_read_as_texts_and_sizes_as_whole_numbers() -> None:
    fields = {"params": pack_array(np.array([4, 5], np.float32)), "tensors": [[3, ["2"]]]}
    own = zeros(**{"3": (2,)})
    assert adopt_parameters(StateReader(MODEL, 1, pack_state(MODEL, 1, fields)), own, {}).left == ()
    assert own["3"].tolist() == [4, 5]


def test_layers_of_a_clients_own_come_over_also_where_they_become_so(ctx: Any) -> None:
    tensors = {"head": np.zeros(2, np.float32), "body": np.zeros(3, np.float32)}
    old = GraphModel(tensors, personal_tensors=1, momentum=0.5)
    old.step(ctx, np.arange(1, 6, dtype=np.float32))
    learned = old.named_parameters()
    assert old.params(ctx).size == 3 and learned["head"].all()
    for personal in (1, 0):
        new = GraphModel(tensors, personal_tensors=personal, momentum=0.5, learning_rate=0.5)
        assert new.adopt(old.serialize()) == Adoption(
            ("2 tensors with 5 numbers", "momentum of 2 tensors with 5 numbers")
        )
        for name, array in new.named_parameters().items():
            np.testing.assert_array_equal(array, learned[name])
        assert new.params(ctx).size == (3 if personal else 5)
