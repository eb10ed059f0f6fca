"""What to record where an author writes a method or a function of NumPy."""

from __future__ import annotations

from bb_host.dsl.names import snake
from bb_host.dsl.onnx_names import onnx_name

_ALTERNATIVES = {
    "T": "use g.onnx.transpose(x)",
    "all": "use g.onnx.reduce_min(g.onnx.cast(x, to='I32')), 1 where all hold",
    "amax": "use g.onnx.reduce_max(x, axes)",
    "amin": "use g.onnx.reduce_min(x, axes)",
    "any": "use g.onnx.reduce_max(g.onnx.cast(x, to='I32')), 1 where one holds",
    "append": "use g.onnx.concat(x, y, axis=0)",
    "argmax": "use g.onnx.arg_max(x, axis=0)",
    "argmin": "use g.onnx.arg_min(x, axis=0)",
    "argsort": "use g.onnx.top_k(x, [k], outputs=2)",
    "array": "use g.constant(…) for numbers",
    "astype": "use g.onnx.cast(x, to='F32')",
    "concatenate": "use g.onnx.concat(x, y, axis=0)",
    "copy": "values do not change: use x again",
    "cumsum": "use g.onnx.cum_sum(x, axis)",
    "detach": "gradients come from ModelSlot.backward alone: use x",
    "dot": "use x @ y",
    "dtype": "read x.node; g.onnx.cast(x, to='F32') changes it",
    "fill": "use g.onnx.expand(value, shape)",
    "flatten": "use g.onnx.reshape(x, [-1])",
    "item": "a value has no number while a program is recorded; send it to the host: g.app_emit(name, x)",
    "max": "use g.onnx.reduce_max(x, axes)",
    "maximum": "use g.onnx.max(x, y)",
    "mean": "use g.onnx.reduce_mean(x, axes)",
    "min": "use g.onnx.reduce_min(x, axes)",
    "minimum": "use g.onnx.min(x, y)",
    "ndim": "len(x.shape), where the shape is known",
    "numpy": "a value has no numbers while a program is recorded; send it to the host: g.app_emit(name, x)",
    "prod": "use g.onnx.reduce_prod(x, axes)",
    "ravel": "use g.onnx.reshape(x, [-1])",
    "repeat": "use g.onnx.tile(x, repeats)",
    "reshape": "use g.onnx.reshape(x, shape)",
    "shape": "read x.shape, or g.onnx.shape(x) where it is not known",
    "size": "use g.onnx.size(x)",
    "sort": "use g.onnx.top_k(x, [k], outputs=2)",
    "stack": "use g.onnx.concat of values with g.onnx.unsqueeze(x, [0])",
    "std": "use g.onnx.sqrt of the mean of squares: g.onnx.reduce_mean((x - mean) ** 2)",
    "sum": "use g.onnx.reduce_sum(x, axes)",
    "swapaxes": "use g.onnx.transpose(x, perm)",
    "take": "use g.onnx.gather(x, indices)",
    "to": "use g.onnx.cast(x, to='F32')",
    "tolist": "a value has no numbers while a program is recorded; send it to the host: g.app_emit(name, x)",
    "var": "use g.onnx.reduce_mean((x - mean) ** 2)",
    "view": "use g.onnx.reshape(x, shape)",
    "where": "use g.onnx.where(condition, x, y)",
    "vstack": "use g.onnx.concat(x, y, axis=0)",
}


def numpy_alternative(name: str) -> str:
    """The hint for NumPy's (or torch's) name; empty where ONNX has nothing of that kind."""
    known = _ALTERNATIVES.get(name)
    if known is not None:
        return known
    op_type = onnx_name(name)
    return "" if op_type is None else f"use g.onnx.{snake(op_type)}(…)"
