"""Conv, ConvTranspose, pooling, Resize, DepthToSpace: everything that lives channels last.

A series (batch, channels, length) is an image of height one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bb_host.ir.program import Array, Op
from bb_host.tflite import computed
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.lowering import Compute, Layout, Region, Rule, Shape, dynamic
from bb_host.tflite.schema import VALID
from bb_host.tflite.windows import Window, padded, pads_of, pair_of, window_of


def _filter(region: Region, op: Op) -> Array:
    """The weights, of four dimensions."""
    weight = region.constant(op, 1)
    assert weight is not None
    return weight[:, :, None] if weight.ndim == 3 else weight


def _is_computed(region: Region, op: Op) -> bool:
    """Whether its weights or biases are not constants."""
    return any(region.fact(name).value is None for name in op.inputs[1:3] if name)


def _conv(region: Region, op: Op) -> None:
    if _is_computed(region, op):
        computed.conv(region, op)
        return
    layout, (_, height, width, channels) = region.image(op)
    weight, bias = _filter(region, op), region.constant(op, 2)
    n_out, per_group, kh, kw = weight.shape
    result = region.result(op, layout)
    window = window_of(op, (height, width), (result[1], result[2]), (kh, kw))
    groups = op.integer("group", 1)
    if bias is None:
        bias = np.zeros(n_out, np.float32)
    x, padding = padded(region, region.read(op.inputs[0], layout), window)
    if groups == 1:
        w = region.weight(weight.transpose(0, 2, 3, 1), op.inputs[1], 0, 0)
        y = _dense(region, x, w, bias, window, padding, result)
    elif per_group == 1 and groups == channels:
        options = _strides(window, padding) | _dilations(window)
        w = region.weight(weight.reshape(n_out, kh, kw).transpose(1, 2, 0)[None], op.inputs[1], 0, 3)
        y = region.op(
            "DEPTHWISE_CONV_2D",
            [x, w, region.graph.constant(bias)],
            result,
            multiplier=n_out // groups,
            **options,
        )
    else:
        parts = []
        each = n_out // groups
        _, h, w_, _ = region.graph.shape(x)
        for g in range(groups):
            size = (region.graph.shape(x)[0], h, w_, per_group)
            begin = region.ints([0, 0, 0, g * per_group])
            part = region.op("SLICE", [x, begin, region.ints([-1, h, w_, per_group])], size)
            own = slice(g * each, (g + 1) * each)
            w = region.weight(weight[own].transpose(0, 2, 3, 1), op.inputs[1], 0, 0, part=own)
            parts.append(_dense(region, part, w, bias[own], window, padding, (*result[:3], each)))
        y = region.op("CONCATENATION", parts, result, axis=3)
    region.give(op.outputs[0], y, layout)


def _dense(
    region: Region, x: int, w: int, bias: Array, window: Window, padding: int, result: tuple[int, ...]
) -> int:
    inputs = [x, w, region.graph.constant(np.ascontiguousarray(bias))]
    options = _strides(window, padding) | _dilations(window)
    return region.op("CONV_2D", inputs, result, **options)


def _strides(window: Window, padding: int) -> dict[str, Any]:
    return {"padding": padding, "stride_h": window.strides[0], "stride_w": window.strides[1]}


def _dilations(window: Window) -> dict[str, Any]:
    return {"dilation_h": window.dilations[0], "dilation_w": window.dilations[1]}


def _is_beyond(op: Op) -> bool:
    """Whether a transposed convolution has what TRANSPOSE_CONV has not: groups, dilation, padded output."""
    below, beside = pair_of(op, "output_padding", 0)
    _, _, bottom, right = pads_of(op)
    groups = op.integer("group", 1)
    return groups != 1 or pair_of(op, "dilations", 1) != (1, 1) or below > bottom or beside > right


def _conv_transpose(region: Region, op: Op) -> None:
    if _is_computed(region, op) or (region.gradient and _is_beyond(op)):
        computed.conv_transpose(region, op)
        return
    layout, shape = region.image(op)
    weight, bias = _filter(region, op), region.constant(op, 2)
    n_in, n_out, kh, kw = weight.shape
    strides = pair_of(op, "strides", 1)
    if op.integer("group", 1) != 1 or pair_of(op, "dilations", 1) != (1, 1):
        raise NotLowered("it is grouped or dilated")
    if op.attrs.get("output_shape"):
        raise NotLowered("its output's shape is given")
    if op.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise NotLowered("auto_pad")
    top, left, bottom, right = pads = pads_of(op)
    if min(pads) < 0:
        raise NotLowered("its pads cut away")
    below, beside = pair_of(op, "output_padding", 0)
    if below > bottom or beside > right:
        raise NotLowered("its output is padded")
    n, h, w = shape[0], (shape[1] - 1) * strides[0] + kh, (shape[2] - 1) * strides[1] + kw
    result = region.result(op, layout)
    x = region.read(op.inputs[0], layout)
    if strides == (kh, kw) and kw > 1 and kh in (1, kw):
        # Windows that don't overlap: one product per pixel, laid out as a block. Open batches too.
        product = weight.transpose(2, 3, 1, 0).reshape(kh * kw * n_out, 1, 1, n_in)
        zeros = np.zeros(kh * kw * n_out, np.float32) if bias is None else np.tile(bias, kh * kw)
        spread = region.op(
            "CONV_2D",
            [x, region.weight(product, op.inputs[1], 1, 0, repeat=kh * kw), region.graph.constant(zeros)],
            (*shape[:3], kh * kw * n_out),
            padding=VALID, stride_h=1, stride_w=1, dilation_h=1, dilation_w=1,
        )  # fmt: skip
        if kh == 1:
            y = region.reshaped(spread, (n, h, w, n_out))
        else:
            y = region.op("DEPTH_TO_SPACE", [spread], (n, h, w, n_out), block=kh)
    elif dynamic(shape):
        raise NotLowered("its batch is open")
    else:
        kernel = region.weight(weight.transpose(1, 2, 3, 0), op.inputs[1], 1, 0)
        added = [] if bias is None else [region.graph.constant(np.ascontiguousarray(bias))]
        y = region.op(
            "TRANSPOSE_CONV",
            [region.ints([n, h, w, n_out]), kernel, x, *added],
            (n, h, w, n_out),
            padding=VALID, stride_h=strides[0], stride_w=strides[1],
        )  # fmt: skip
    if (h, w) != result[1:3]:
        y = region.op("SLICE", [y, region.ints([0, top, left, 0]), region.ints([-1, *result[1:]])], result)
    region.give(op.outputs[0], y, layout)


def _pool_window(region: Region, op: Op) -> tuple[Layout, Window]:
    layout, (_, height, width, _) = region.image(op)
    result = region.result(op, layout)
    kernel = pair_of(op, "kernel_shape", 1)
    window = window_of(op, (height, width), (result[1], result[2]), kernel)
    if window.dilations != (1, 1):
        raise NotLowered("it is dilated")
    return layout, window


def _pool(region: Region, kind: str, x: int, window: Window, padding: int, result: tuple[int, ...]) -> int:
    options = {"filter_h": window.kernel[0], "filter_w": window.kernel[1], **_strides(window, padding)}
    return region.op(kind, [x], result, **options)


def _max_pool(region: Region, op: Op) -> None:
    layout, window = _pool_window(region, op)
    x, padding = padded(region, region.read(op.inputs[0], layout), window, lowest=True)
    y = _pool(region, "MAX_POOL_2D", x, window, padding, region.result(op, layout))
    region.give(op.outputs[0], y, layout)


def _average_pool(region: Region, op: Op) -> None:
    layout, window = _pool_window(region, op)
    counts = bool(op.attrs.get("count_include_pad", 0)) and window.is_padded
    if counts and op.attrs.get("ceil_mode", 0):
        raise NotLowered("ceil_mode with counted padding")
    result = region.result(op, layout)
    x = region.read(op.inputs[0], layout)
    size = region.graph.shape(x)[1:3]
    x, padding = padded(region, x, window._replace(is_same=window.is_same and not counts))
    y = _pool(region, "AVERAGE_POOL_2D", x, window, padding, result)
    if window.is_padded and not counts and not window.is_same:
        # The zeros around were counted: what each mean is short of.
        gain = window.kernel[0] * window.kernel[1] / _covered(window, size, result[1:3])
        y = region.op("MUL", [y, region.floats(gain[None, :, :, None])], result)
    region.give(op.outputs[0], y, layout)


def _covered(window: Window, size: tuple[int, ...], result: tuple[int, ...]) -> Array:
    """How much of the image each window sees: [height, width] of the result."""
    along = []
    for axis in range(2):
        first = np.arange(result[axis]) * window.strides[axis] - window.before[axis]
        last = np.minimum(first + window.kernel[axis], size[axis])
        along.append(last - np.maximum(first, 0))
    return np.outer(*along)


def _of_image(compute: Compute) -> Rule:
    """The rule for an image that is computed of one, both channels last."""

    def rule(region: Region, op: Op) -> None:
        layout, _ = region.image(op)
        x = region.read(op.inputs[0], layout)
        region.give(op.outputs[0], compute(region, op, x, region.result(op, layout)), layout)

    return rule


def _global_pool(kind: str) -> Rule:
    return _of_image(
        lambda region, op, x, result: region.op(kind, [x, region.ints([1, 2])], result, keep_dims=True)
    )


@_of_image
def _resize(region: Region, op: Op, x: int, result: Shape) -> int:
    shape = region.graph.shape(x)
    if shape[0] != result[0] or shape[3] != result[3]:
        raise NotLowered("it resizes more than height and width")
    whole = not any(result[axis] % shape[axis] for axis in (1, 2))
    mode = op.text("mode", "nearest")
    place = op.text("coordinate_transformation_mode", "half_pixel")
    rounding = op.text("nearest_mode", "round_prefer_floor")
    if op.op_type == "Upsample":
        place, rounding = "asymmetric", "floor"
    if op.attrs.get("axes") or op.attrs.get("antialias"):
        raise NotLowered("axes or antialiasing")
    if place == "pytorch_half_pixel":
        place = "half_pixel"  # they differ where an axis shrinks to a length of one
    half = place == "half_pixel"
    if not whole and (mode == "nearest" or not _is_by_size(region, op)):
        raise NotLowered("it does not enlarge by whole numbers, and asks for the nearest or says a scale")
    if mode == "nearest":
        if (place, rounding) not in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")):
            raise NotLowered(f"nearest, {place}, {rounding}")
        kind = "RESIZE_NEAREST_NEIGHBOR"
    elif mode == "linear" and place in ("half_pixel", "asymmetric", "align_corners"):
        kind = "RESIZE_BILINEAR"
    else:
        raise NotLowered(f"{mode}, {place}")
    corners, size = place == "align_corners", region.ints(result[1:3])
    return region.op(kind, [x, size], result, align_corners=corners, half_pixel_centers=half)


def _is_by_size(region: Region, op: Op) -> bool:
    """Whether the scale is that of the sizes, which is TFLite's: not a number that was rounded to them."""
    if region.version < 11 or len(op.inputs) < 4 or not op.inputs[3]:
        return False
    scales = region.constant(op, 2)
    stretched = op.text("keep_aspect_ratio_policy", "stretch") == "stretch"
    return (scales is None or not scales.size) and stretched


@_of_image
def _depth_to_space(region: Region, op: Op, x: int, result: Shape) -> int:
    block, channels = op.integer("blocksize"), region.graph.shape(x)[3]
    if op.text("mode", "DCR") == "CRD":
        # Blocks inside of channels (PixelShuffle); TFLite's are around them.
        order = np.arange(channels, dtype=np.int32).reshape(-1, block * block).T.ravel()
        picked = region.graph.constant(np.ascontiguousarray(order))
        x = region.op("GATHER", [x, picked], region.graph.shape(x), axis=3, batch_dims=0)
    return region.op("DEPTH_TO_SPACE", [x], result, block=block)


@_of_image
def _space_to_depth(region: Region, op: Op, x: int, result: Shape) -> int:
    """Every so manyth pixel, from each place in a block, one after the other."""
    block, (n, height, width, channels) = op.integer("blocksize"), region.graph.shape(x)
    size = (n, height // block, width // block, channels)
    parts = []
    for i in range(block):
        for j in range(block):
            end = region.ints([1, height, width, channels])
            part = region.op(
                "STRIDED_SLICE",
                [x, region.ints([0, i, j, 0]), end, region.ints([1, block, block, 1])],
                size,
                begin_mask=0, end_mask=1, ellipsis_mask=0, new_axis_mask=0, shrink_mask=0,
            )  # fmt: skip
            parts.append(part)
    return region.op("CONCATENATION", parts, result, axis=3)


RULES: dict[str, Rule] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_pool("MEAN"),
    "GlobalMaxPool": _global_pool("REDUCE_MAX"),
    "Resize": _resize,
    "Upsample": _resize,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
}
