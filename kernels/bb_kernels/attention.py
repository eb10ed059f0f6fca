"""Transformer pieces: Attention, RotaryEmbedding, and TensorScatter for key/value caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .errors import KernelAttributeError, KernelShapeError, UnsupportedDtypeError
from .indexing import take
from .registry import Call, kernel
from .shapes import axis_of, bounded, require_broadcast_to
from .spec import BOOL, FLOAT, Array, Prepared, TensorSpec
from .ufuncs import add_reduce, max_reduce


class _Heads(NamedTuple):
    """The shape [batch, heads, length, size] of a tensor of attention.

    Tensors [batch, length, heads·size] are split into it.
    """

    batch: int
    heads: int
    length: int
    size: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Return the four dimensions."""
        return (self.batch, self.heads, self.length, self.size)

    def view(self, x: Array) -> Array:
        """Return the four-axis view of a tensor in either form; a copy where strides allow no view."""
        if x.ndim == 4:
            return x
        split: Array = x.reshape(self.batch, self.length, self.heads, self.size).transpose(0, 2, 1, 3)
        return split


def _heads(call: Call, index: int, count: str) -> _Heads:
    """Return the heads of an input; KernelShapeError where its last axis does not divide by ``count``."""
    shape = call.spec(index).shape
    if len(shape) == 4:
        return _Heads(*shape)
    heads = call.int_attr(count, 0)
    if len(shape) != 3 or heads < 1 or shape[2] % heads:
        raise KernelShapeError(f"{call.op_type}: input {index} {shape} cannot be split by {count}={heads}")
    return _Heads(shape[0], heads, shape[1], shape[2] // heads)


class _Frontier(NamedTuple):
    """Which keys a query may see by position alone: causal order and a window around its position."""

    queries: int
    keys: int
    causal: bool
    left: int
    right: int

    @property
    def open(self) -> bool:
        """Whether every query may see every key."""
        return not self.causal and self.left < 0 and self.right < 0

    def allowed(self, offset: Array) -> Array:
        """Return bool [..., queries, keys]: whether a query may see a key.

        ``offset`` [...] is the number of keys that precede the queries. Allocates the result.
        """
        at = np.arange(self.queries)[:, None] + offset[..., None, None]
        key = np.arange(self.keys)
        seen = np.ones(np.broadcast_shapes(at.shape, key.shape), np.bool_)
        if self.causal:
            seen &= key <= at
        if self.left >= 0:
            seen &= key >= at - self.left
        if self.right >= 0:
            seen &= key <= at + self.right
        return seen


_ATTENTION = "is_causal kv_num_heads q_num_heads qk_matmul_output_mode scale softcap softmax_precision"


def _attention(call: Call) -> Prepared:
    """Attention (opset 23, opset 24+ with lengths) weighs values by how well their keys match a query.

    Q[N,H,L,E] or [N,L,H·E], K[N,G,S,E], V[N,G,S,F] likewise, mask?, past_key?, past_value?, lengths[N]? → Y
    like Q with F for E, present_key?, present_value?, scores[N,H,L,P+S]? at the stage of
    ``qk_matmul_output_mode``; floats (float16 via float32), mask bool or float. H is a multiple of G. Shapes
    that do not fit raise KernelShapeError, a mask of another type UnsupportedDtypeError. Run allocates
    nothing, except masks [N,L,P+S] where lengths come in.
    """
    q, k, v = _heads(call, 0, "q_num_heads"), _heads(call, 1, "kv_num_heads"), _heads(call, 2, "kv_num_heads")
    dtype = call.spec(0).dtype
    past = _past_of(call, q, k, v)
    if call.int_attr("softmax_precision", 1) not in (1, 10, 11):
        raise KernelAttributeError("Attention: softmax_precision must name float32, float16 or float64")
    keys, has_past = past + k.length, call.has(4)
    group = q.heads // k.heads
    scores_shape = (q.batch, q.heads, q.length, keys)
    scale = np.array(call.float_attr("scale", 1.0 / float(np.sqrt(q.size))), dtype)
    cap = np.array(call.float_attr("softcap", 0.0), dtype)
    mode = call.int_attr("qk_matmul_output_mode", 0)
    frontier = _Frontier(
        q.length, keys, call.int_attr("is_causal", 0) != 0,
        call.int_attr("left_window_size", -1), call.int_attr("right_window_size", -1),
    )  # fmt: skip
    if not frontier.open:
        bounded(call, q.length * keys, "scores to mask")
    low = np.array(-np.inf, dtype)
    hide = _hiding(call, frontier, past, scores_shape, low)
    n, n_out = len(call.inputs), call.n_outputs

    def run(*arrays: Any) -> None:
        query, key, value, mask, past_key, past_value, lengths = arrays[:n] + (None,) * (7 - n)
        outs = [*arrays[n : n + n_out], *(None,) * (4 - n_out)]
        scaled, whole_k, whole_v, scores, row, result, flags, hidden = arrays[n + n_out :]
        key, value = k.view(key), v.view(value)
        if has_past:
            key = np.concatenate((past_key, key), 2, out=whole_k)
            value = np.concatenate((past_value, value), 2, out=whole_v)
        for target, source in ((outs[1], key), (outs[2], value)):
            if target is not None:
                np.copyto(target, source)
        np.multiply(q.view(query), scale, scaled)
        grouped = scores.reshape(q.batch, k.heads, group, q.length, keys)
        np.matmul(
            scaled.reshape(q.batch, k.heads, group, q.length, q.size),
            key[:, :, None].swapaxes(-1, -2),
            grouped,
        )
        _tap(outs[3], scores, mode == 0)
        if cap > 0:
            np.divide(scores, cap, scores)
            np.tanh(scores, scores)
            np.multiply(scores, cap, scores)
        _tap(outs[3], scores, mode == 1)
        hide(scores, mask, lengths, hidden)
        _tap(outs[3], scores, mode == 2)
        _softmax(scores, row, flags, low)
        _tap(outs[3], scores, mode == 3)
        np.matmul(grouped, value[:, :, None], result.reshape(q.batch, k.heads, group, q.length, v.size))
        if outs[0] is not None:
            if outs[0].ndim == 4:
                np.copyto(outs[0], result)
            else:
                np.copyto(
                    outs[0].reshape(q.batch, q.length, q.heads, v.size), result.transpose(0, 2, 1, 3)
                )  # fmt: skip

    split = len(call.spec(0).shape) == 4
    y_shape = (*q.shape[:3], v.size) if split else (q.batch, q.length, q.heads * v.size)
    present = ((*k.shape[:2], keys, k.size), (*v.shape[:2], keys, v.size))
    outputs = tuple(TensorSpec(dtype, s) for s in (y_shape, *present, scores_shape))[:n_out]
    row_shape = (*scores_shape[:3], 1)
    scratch = (q.shape, *present, scores_shape, row_shape, (*q.shape[:3], v.size))
    inverted = call.spec(3).shape if call.has(3) and call.spec(3).dtype == BOOL else ()
    masks = (TensorSpec(BOOL, row_shape), TensorSpec(BOOL, inverted))
    return Prepared(outputs, run, (*(TensorSpec(dtype, s) for s in scratch), *masks))


def _past_of(call: Call, q: _Heads, k: _Heads, v: _Heads) -> int:
    """Return how many keys come from the past; raise where the inputs of Attention do not fit each other."""
    if k.heads < 1 or q.heads % k.heads or (k.batch, k.heads, k.length) != (v.batch, v.heads, v.length):
        raise KernelShapeError(f"Attention: Q {q.shape}, K {k.shape} and V {v.shape} do not fit")
    if k.size != q.size or k.batch != q.batch:
        raise KernelShapeError(f"Attention: Q {q.shape} and K {k.shape} do not fit")
    has_past = call.has(4)
    past = call.spec(4).shape[2] if has_past else 0
    if has_past != call.has(5) or (has_past and call.has(6)):
        raise KernelShapeError(
            "Attention: past_key and past_value go together, and not with nonpad_kv_seqlen"
        )
    if has_past and (
        call.spec(4).shape != (k.batch, k.heads, past, k.size)
        or call.spec(5).shape != (*v.shape[:2], past, v.size)
    ):
        raise KernelShapeError(
            f"Attention: past {call.spec(4).shape} and {call.spec(5).shape} do not fit K and V"
        )
    return past


def _hiding(
    call: Call, frontier: _Frontier, past: int, scores_shape: tuple[int, ...], low: Array
) -> Callable[[Array, Array | None, Array | None, Array], None]:
    """Return ``hide(scores, mask, lengths, hidden)``: writes ``low`` where a query may not see a key.

    A mask of floats is added instead. ``hidden`` is room for a mask of bools, inverted.
    """
    queries, keys = scores_shape[-2:]
    padded = call.has(6)
    static_mask = None if frontier.open or padded else ~frontier.allowed(np.array(past))
    if call.has(3):
        _check_mask(call, scores_shape)
    mask_keys = call.spec(3).shape[-1] if call.has(3) and call.spec(3).shape else keys
    places = np.arange(bounded(call, keys, "keys") if padded else 0)

    def hide(scores: Array, mask: Array | None, lengths: Array | None, hidden: Array) -> None:
        if static_mask is not None:
            np.copyto(scores, low, where=static_mask)
        if lengths is not None:
            seen = places < lengths[:, None, None]
            if not frontier.open:
                seen = seen & frontier.allowed(lengths.astype(np.int64) - queries)
            np.copyto(scores, low, where=~seen[:, None])
        if mask is None:
            return
        part = scores[..., :mask_keys] if mask_keys not in (1, keys) else scores
        if mask.dtype == BOOL:
            np.logical_not(mask, hidden)
            np.copyto(part, low, where=hidden)
        else:
            np.add(part, mask, part, casting="unsafe")
        if part is not scores:
            np.copyto(scores[..., mask_keys:], low)

    return hide


def _softmax(scores: Array, row: Array, flags: Array, low: Array) -> None:
    """Turn scores into weights in place, along the last axis; ``row`` and ``flags`` are scratch of one key.

    A query that sees no key gets weights of 0, not NaN.
    """
    max_reduce(scores, 3, None, row, True)
    np.equal(row, low, flags)
    np.copyto(row, 0, where=flags)
    np.subtract(scores, row, scores)
    np.exp(scores, scores)
    add_reduce(scores, 3, None, row, True)
    np.equal(row, 0, flags)
    np.copyto(row, 1, where=flags)
    np.divide(scores, row, scores)


def _tap(target: Array | None, scores: Array, here: bool) -> None:
    """Copy the scores to an output if this is the stage that it asks for."""
    if here and target is not None:
        np.copyto(target, scores)


def _check_mask(call: Call, scores: tuple[int, ...]) -> None:
    """Raise unless the mask is bool or float and broadcasts to the scores, or to their first keys."""
    mask = call.spec(3)
    if mask.dtype != BOOL and mask.dtype not in FLOAT:
        raise UnsupportedDtypeError(f"Attention: mask of element type {mask.dtype} must be bool or float")
    last = mask.shape[-1] if mask.shape else 1
    if last > scores[-1]:
        raise KernelShapeError(f"Attention: mask {mask.shape} is longer than {scores[-1]} keys")
    require_broadcast_to(call, mask.shape, (*scores[:3], last))


kernel(
    "Attention",
    "T T T A? T? T?",
    since=23,
    until=23,
    dtypes=FLOAT,
    half=True,
    attrs=_ATTENTION,
    max_outputs=4,
)(_attention)
kernel(
    "Attention", "T T T A? T? T? I?", since=24, dtypes=FLOAT, half=True, max_outputs=4,
    attrs=_ATTENTION + " left_window_size@25 right_window_size@25",
)(_attention)  # fmt: skip


@kernel(
    "RotaryEmbedding", "T T T I?", since=23, dtypes=FLOAT, half=True,
    attrs="interleaved num_heads rotary_embedding_dim",
)  # fmt: skip
def _rotary(call: Call) -> Prepared:
    """RotaryEmbedding (opset 23+) rotates pairs of the last axis by the angle of their position.

    X[N,H,L,E] or [N,L,H·E], cos, sin [positions,half] with position_ids[N,L], else [N,L,half] → Y like X;
    floats (float16 via float32). Pairs are neighbours (``interleaved``) or halves apart. Caches that do not
    fit raise KernelShapeError, as does a position outside of them at run. Run allocates nothing, except a
    copy of int32 ids.
    """
    spec = call.spec(0)
    x = _heads(call, 0, "num_heads")
    width = call.int_attr("rotary_embedding_dim", 0) or x.size
    half = width // 2
    cache = call.spec(1).shape
    by_id = call.has(3)
    rows = (*cache[:1], half) if by_id else (x.batch, x.length, half)
    if width % 2 or width > x.size or cache != rows or call.spec(2).shape != cache:
        raise KernelShapeError(
            f"RotaryEmbedding: caches {cache} and {call.spec(2).shape} do not fit input {spec.shape}"
        )
    if by_id and call.spec(3).shape != (x.batch, x.length):
        raise KernelShapeError(
            f"RotaryEmbedding: position_ids {call.spec(3).shape} do not fit input {spec.shape}"
        )
    if call.int_attr("interleaved", 0):
        first, second = slice(0, width, 2), slice(1, width, 2)
    else:
        first, second = slice(0, half), slice(half, width)
    n = len(call.inputs)

    def run(data: Array, cos: Array, sin: Array, *rest: Array) -> None:
        out, temp = rest[n - 3 : n - 1]
        if by_id:
            if rest[0].size and (rest[0].min() < 0 or rest[0].max() >= cache[0]):
                raise KernelShapeError(
                    f"RotaryEmbedding: a position is outside of the {cache[0]} in the caches"
                )
            for source, own in zip((cos, sin), rest[n - 1 :], strict=True):
                take(source, rest[0], 0, own)
            cos, sin = rest[n - 1 :]
        c, s = cos[:, None], sin[:, None]
        source, target = x.view(data), x.view(out)
        np.copyto(target, source)
        a, b = source[..., first], source[..., second]
        np.multiply(a, c, target[..., first])
        np.multiply(b, s, temp)
        np.subtract(target[..., first], temp, target[..., first])
        np.multiply(a, s, target[..., second])
        np.multiply(b, c, temp)
        np.add(target[..., second], temp, target[..., second])

    angles = (TensorSpec(call.spec(1).dtype, (x.batch, x.length, half)),) * 2 if by_id else ()
    return Prepared((spec,), run, (TensorSpec(spec.dtype, (*x.shape[:3], half)), *angles))


@kernel("TensorScatter", "T T I?", since=24, attrs="axis mode")
def _tensor_scatter(call: Call) -> Prepared:
    """TensorScatter (opset 24+) writes an update into a cache along its sequence axis.

    past[N,…,S,…], update[N,…,L,…], write_indices[N]? → present like past; any type. Each batch entry has its
    own index; ``mode`` circular wraps round. An update that does not fit raises KernelShapeError, also at
    run. Run allocates the L indices of one batch entry.
    """
    cache, update = call.spec(0), call.spec(1)
    rank = len(cache.shape)
    axis = axis_of(call, call.int_attr("axis", -2), rank)
    circular = call.str_attr("mode", "linear", ("linear", "circular")) == "circular"
    room = cache.shape[axis]
    count = update.shape[axis] if len(update.shape) == rank else -1
    if (
        axis == 0
        or not 0 <= count <= room
        or update.shape != (*cache.shape[:axis], count, *cache.shape[axis + 1 :])
    ):
        raise KernelShapeError(
            f"TensorScatter: update {update.shape} does not fit cache {cache.shape} on axis {axis}"
        )
    if call.has(2) and call.spec(2).shape != cache.shape[:1]:
        raise KernelShapeError(
            f"TensorScatter: write_indices {call.spec(2).shape} do not fit a batch of {cache.shape[0]}"
        )
    n = len(call.inputs)
    steps = np.arange(bounded(call, count, "steps"))
    front = np.zeros(bounded(call, cache.shape[0], "batch entries"), np.int64)

    def run(past: Array, fresh: Array, *rest: Array) -> None:
        out = rest[n - 2]
        starts = rest[0] if n > 2 else front
        if starts.size and (starts.min() < 0 or (not circular and starts.max() + count > room)):
            raise KernelShapeError(
                f"TensorScatter: an update of {count} does not fit into {room} from its index"
            )
        np.copyto(out, past)
        for i, start in enumerate(starts):
            at = (start + steps) % room
            out[i].swapaxes(0, axis - 1)[at] = fresh[i].swapaxes(0, axis - 1)

    return Prepared((cache,), run, inplace=(0,))
