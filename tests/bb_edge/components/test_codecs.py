"""The codecs: what comes back, and how far off it may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bb_edge.components import Float16Codec, ScalarQuantizer
from bb_edge.roles import ComponentEnv, ComponentError, ComponentStateError

Ctx = Any


def test_float16_halves_the_bytes_and_keeps_three_digits(ctx: Ctx) -> None:
    codec = Float16Codec.construct(ComponentEnv("codec"))
    t = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    codec.train_codebook(ctx, t)
    code = codec.compress(ctx, t)
    assert code.nbytes * 2 == t.nbytes
    np.testing.assert_allclose(codec.decompress(ctx, code), t, rtol=2**-11, atol=1e-7)
    huge = codec.compress(ctx, np.array([1e9, -1e9], np.float32))
    np.testing.assert_array_equal(codec.decompress(ctx, huge), [65504, -65504])


def test_the_quantizer_is_off_by_half_a_level_at_most(ctx: Ctx) -> None:
    codec = ScalarQuantizer.construct(ComponentEnv("codec"))
    t = (np.random.default_rng(0).standard_normal((50, 4)) * 7).astype(np.float32)
    codec.train_codebook(ctx, t)
    code = codec.compress(ctx, t)
    assert code.dtype == np.uint8 and code.nbytes * 4 == t.nbytes
    level = (t.max() - t.min()) / 255
    assert np.abs(codec.decompress(ctx, code) - t).max() <= 0.5 * level * 1.001


def test_the_quantizer_clips_to_its_range(ctx: Ctx) -> None:
    codec = ScalarQuantizer(0.0, 1.0)
    found = codec.decompress(ctx, codec.compress(ctx, np.array([-5, 0, 1, 5], np.float32)))
    np.testing.assert_array_equal(found, [0, 0, 1, 1])


def test_a_constant_sample_is_exact(ctx: Ctx) -> None:
    codec = ScalarQuantizer()
    sample = np.full(3, 0.25, np.float32)
    codec.train_codebook(ctx, sample)
    np.testing.assert_array_equal(codec.decompress(ctx, codec.compress(ctx, sample)), sample)


def test_both_sides_agree_after_a_snapshot(ctx: Ctx) -> None:
    codec, other = ScalarQuantizer(), ScalarQuantizer()
    codec.train_codebook(ctx, np.array([-3.5, 12.25], np.float32))
    other.restore(codec.serialize())
    code = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(codec.decompress(ctx, code), other.decompress(ctx, code))
    with pytest.raises(ComponentStateError):
        other.restore(codec.serialize()[:-1])


@pytest.mark.parametrize("codec", [Float16Codec(), ScalarQuantizer()])
def test_other_types_are_refused(ctx: Ctx, codec: Any) -> None:
    for call in (codec.compress, codec.decompress):
        with pytest.raises(ComponentError, match="got float64"):
            call(ctx, np.zeros(3))


@pytest.mark.parametrize(
    "sample", [np.empty(0, np.float32), np.array([1, np.inf], np.float32), np.array([1])]
)
def test_a_sample_that_says_nothing_is_refused(ctx: Ctx, sample: np.ndarray) -> None:
    with pytest.raises(ComponentError, match="finite floats"):
        ScalarQuantizer().train_codebook(ctx, sample)


def test_nan_has_no_code(ctx: Ctx) -> None:
    with pytest.raises(ComponentError, match="nan"):
        ScalarQuantizer().compress(ctx, np.array([np.nan], np.float32))


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ComponentError, match="range is empty"):
        ScalarQuantizer.construct(ComponentEnv("codec", config={"low": 1.0, "high": 1.0}))
