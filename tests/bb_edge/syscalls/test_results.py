"""What ops take from components: results of two tensors, call by call."""

from __future__ import annotations

import numpy as np
import pytest

from bb_edge.ir import types
from bb_edge.ir.keys import ROLE_DATA_LOADER_DOMAIN
from bb_edge.ir.opsets import lookup
from bb_edge.ir.types import ValueType
from bb_edge.syscalls.results import ResultError, checker

BATCH = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)


def check(*declared):
    definition = lookup(ROLE_DATA_LOADER_DOMAIN, "NextBatch")
    assert definition is not None
    return checker(definition, declared)


@pytest.mark.parametrize(
    ("result", "what"),
    [
        ((BATCH[0].astype(np.complex64), BATCH[1]), r"output 'batch': gave an array of complex64\[2, 3\]"),
        ((BATCH[0], BATCH[1].astype("M8[s]")), r"output 'labels': gave an array of datetime64\[s\]\[2\]"),
        ((np.ma.masked_array(BATCH[0]), BATCH[1]), "a masked array"),
        ((BATCH[0], [0, 1]), "gave a list of 2"),
        ((BATCH[0], BATCH[1], BATCH[1]), "gave 3 values, 2 are expected"),
        (BATCH[0], r"gave Tensor<F32>\[2, 3\], a tuple of 2 values is expected"),
        ((None, BATCH[1]), "output 'batch': gave None"),
    ],
)
def test_a_wrong_batch_is_refused_behind_right_ones(result, what):
    take = check()
    for _ in range(2):
        assert take(BATCH) == BATCH
    with pytest.raises(ResultError) as refused:
        take(result)
    assert what.replace("\\", "") in str(refused.value)
    assert take(BATCH) == BATCH


def test_batches_may_change_dtype_where_none_is_declared_and_labels_may_be_missing():
    take = check()
    others = BATCH[0].astype(np.float64), BATCH[1].astype(np.uint8)
    for batch in (BATCH, others, (BATCH[0], None), others, BATCH):
        assert take(batch) == batch
    (alone,) = take([BATCH[0]])
    assert alone is BATCH[0]


def test_numbers_of_numpy_and_subclasses_become_arrays_each_time():
    take = check()
    for _ in range(2):
        batch, labels = take((BATCH[0].view(np.recarray), np.int64(3)))
        assert type(batch) is type(labels) is np.ndarray
        assert labels.shape == ()


def test_declared_dtypes_and_ranks_are_held_in_each_batch():
    take = check(ValueType(types.tensor_of_elem(1), (-1, 3)), ValueType(types.tensor_of_elem(7), (-1,)))
    for _ in range(2):
        assert take(BATCH) == BATCH
    with pytest.raises(ResultError, match="expected Tensor<F32>"):
        take((BATCH[0].astype(np.float64), BATCH[1]))
    with pytest.raises(ResultError, match="2 dimensions"):
        take((BATCH[0][0], BATCH[1]))
    with pytest.raises(ResultError, match="1 dimensions"):
        take((BATCH[0], BATCH[1][:, None]))
    empty = np.zeros(0, np.float32), BATCH[1]
    assert take(empty) == empty
