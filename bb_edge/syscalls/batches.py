"""`NextBatch`: what a data source gives is held against the program, and what it leaves out is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.engine import steps
from bb_edge.engine.binding import OpContext
from bb_edge.engine.errors import OpError
from bb_edge.engine.run.bound import BoundOp, OfData
from bb_edge.ir import keys, types
from bb_edge.ir.fault_lines import line_of
from bb_edge.ir.stamped_parts import misfits, read_parts
from bb_edge.ir.stamped_shapes import shape_text
from bb_edge.roles import Composite, DataSource
from bb_edge.syscalls import data_shapes
from bb_edge.syscalls.notes import Notes, is_shipped, kept_notes, tell
from bb_edge.syscalls.results import described
from bb_edge.wire.codecs import wire_type_hash

if TYPE_CHECKING:
    from bb_edge.engine.program.program import OpSpec, Program, Target
    from bb_edge.ir.once import Once
    from bb_edge.ir.stamped_parts import StampedPart
    from bb_edge.ir.stamped_shapes import StampedShape
    from bb_edge.ir.tensors import Array

Method = Callable[..., object]


def bind(
    op: BoundOp, component: DataSource, slot: str, method: Method, once: Once, of_data: dict[int, OfData]
) -> tuple[Method, Notes | None]:
    """Returns the `next_batch` that runs, and its notes, unless it tells them itself.

    OpError where a shard's batches are not what the program takes.
    What batches look like is noted in `of_data`, by site, where every one of them does.

    A source that does not say what its batches are (`batch_like`) has each of them looked at. So has an
    author's: what `next_batch` gives may differ from what `batch_like` says.
    """
    text = op.spec.meta.get(keys.PARTS_KEY, "")
    try:
        parts = once(("parts", text), lambda: read_parts(text))
    except ValueError as error:
        raise OpError(f"a stamp is damaged: {error}", where=op.spec.name, hint="compile it again") from error
    stamped = parts[0] if parts else None
    arrays = component.batch_like()
    _hold_rows(op, arrays, slot)
    _hold_labels(op, component, slot)
    shipped = is_shipped(method)
    if shipped:
        data_shapes.begin(op, of_data, arrays, slot)
    elif arrays:
        method = _as_promised(arrays, component, method)
    if stamped is not None:
        if arrays:
            _hold(arrays, stamped, slot)
        if not (arrays and shipped):
            method = _holding(stamped, slot, method)
    notes = kept_notes(component, slot, steps.DataNoted)
    if notes is None or type(component).take_left_out is not DataSource.take_left_out:
        return _telling(component, slot, method), None
    return method, notes


def _hold(given: Sequence[Array | None], stamped: Sequence[StampedPart], slot: str) -> None:
    """OpError where a batch or its labels are not as stamped."""
    for name, array, part in zip_longest(("batches", "labels"), given[:2], stamped[:2]):
        type_hash, shape, _ = part or (0, None, None)
        wanted = (
            f"{types.by_wire_hash(type_hash) or types.TENSOR}{'' if shape is None else shape_text(shape)}"
        )
        if array is None:
            if type_hash or shape:
                hint = "give it data with labels: y in the .npz of bb.ArrayDataSource, label= of a CSV source"
                raise OpError(f"it gives no {name}, the program takes {wanted}", f"slot {slot!r}", hint)
        elif part is not None and misfits(Composite(((wire_type_hash(array), array),)), (part,)):
            raise OpError(
                f"it gives {name} of {described(array)}, the program takes {wanted}",
                f"slot {slot!r}",
                _other_rows(array, shape)
                or _remedy(array, type_hash, classes=shape if name == "labels" else None),
            )


def _other_rows(array: Array, wanted: StampedShape | None) -> str:
    """What to do about a batch that has another number of rows than a model takes alone; else empty."""
    if not wanted or wanted[0] < 0 or array.ndim != len(wanted) or len(array) == wanted[0]:
        return ""
    return (
        f"configure batch_size={wanted[0]}, or export the model with a dynamic batch dimension: its file"
        f" takes batches of {wanted[0]} alone"
    )


def _remedy(array: Array, type_hash: int, classes: StampedShape | None) -> str:
    """What to do about data of another type, or shape; `classes` is the shape that labels need."""
    node = types.by_wire_hash(type_hash)
    dtype = None if node is None or node.elem_type is None else types.dtype_of_elem(node.elem_type)
    if classes is not None and len(classes) == 2 and array.ndim == 1:
        if classes[1] == 1:
            return "give them a column: y.reshape(-1, 1)"
        if array.dtype.kind in "iu" and dtype is not None and dtype.kind == "f":
            count = classes[1] if classes[1] > 0 else "the number of classes"
            return f"are they numbers of classes? one_hot: {count}, or loss='sparse_softmax_cross_entropy'"
    if dtype is None or dtype == array.dtype:
        return "give it the data that the program was compiled for, or compile it for these"
    instead = (
        "compare values, x > 0"
        if dtype.kind == "b"
        else f"cast it, g.onnx.cast(x, to=…), where {dtype} is needed"
    )
    return f"save the data as {dtype}, x.astype({dtype.name!r}), or in the program {instead}"


def _holding(stamped: Sequence[StampedPart], slot: str, method: Method) -> Method:
    """Returns a `next_batch` whose every result is held."""

    def next_batch(ctx: OpContext) -> object:
        result: Any = method(ctx)
        several = isinstance(result, (tuple, list))  # else it is refused, or comes later
        if several and all(array is None or isinstance(array, np.ndarray) for array in result):
            _hold(result, stamped, slot)
        return result

    return next_batch


def _as_promised(arrays: Sequence[Array], component: DataSource, method: Method) -> Method:
    """Returns a `next_batch` whose results have the dtypes that the source's `batch_like` says.

    Sizes may differ: a last batch has fewer rows, and where others matter the program's stamp says them.
    """

    def next_batch(ctx: OpContext) -> object:
        result = method(ctx)
        if isinstance(result, (tuple, list)):
            for name, array, like in zip(("batches", "labels"), result, arrays, strict=False):
                if isinstance(array, np.ndarray) and array.dtype == like.dtype:
                    continue
                if array is None or isinstance(array, np.ndarray):
                    came = "no labels" if array is None else f"{name} of {described(array)}"
                    cast = "" if array is None else f"give x.astype({like.dtype.name!r}), or "
                    raise OpError(
                        f"next_batch gives {came}, batch_like of the same source says {described(like)}",
                        line_of(component.next_batch),
                        f"{cast}correct batch_like",
                    )
        return result

    return next_batch


def _hold_rows(op: BoundOp, arrays: Sequence[Array], slot: str) -> None:
    """OpError where batches have fewer rows than the model needs that is trained on them."""
    text = op.spec.meta.get(keys.FEWEST_ROWS_KEY, "0")
    if not text.isdecimal():
        what = f"a stamp is damaged: it needs {text!r} rows"
        raise OpError(what, where=op.spec.name, hint="compile it again")
    fewest = int(text)
    rows = arrays[0].shape[0] if arrays and arrays[0].ndim else fewest
    if rows < fewest:
        raise OpError(
            f"it gives batches of {rows} of the {fewest} rows that the normalizations of the model need",
            f"slot {slot!r}",
            "raise batch_size; where it is 0, a batch is all samples: give it more of them",
        )


def _hold_labels(op: BoundOp, component: DataSource, slot: str) -> None:
    """OpError where a label that the source knows is not a class of the model that takes it."""
    stamped = _classes(op.spec)
    wrong = None if stamped is None else component.wrong_label(*stamped)
    if wrong is not None:
        raise OpError(wrong[0], f"slot {slot!r}", wrong[1])


def _classes(op: OpSpec) -> tuple[int, int] | None:
    """The classes of the model that takes an op's labels, and the label of none; None where it takes none."""
    text = op.meta.get(keys.LABEL_CLASSES_KEY)
    if text is None:
        return None
    try:
        classes, ignored = map(int, text.split(","))
    except ValueError:
        what = f"a stamp is damaged: {text!r} are not classes"
        raise OpError(what, where=op.name, hint="compile it again") from None
    return classes, ignored


def classes_of(program: Program, target: Target, slot: str) -> Iterator[tuple[int, int]]:
    """Yields for each op that reads a slot's labels how many classes its model has, and the label of none."""
    todo = [key for key in (target.main, target.bootstrap) if key is not None]
    seen = set(todo)
    while todo:
        for op in program.graphs[todo.pop()].ops:
            stamped = _classes(op) if op.meta.get(keys.SLOT_KEY) == slot else None
            if stamped is not None:
                yield stamped
            called = [key for key in op.callees if key in program.graphs and key not in seen]
            seen.update(called)
            todo += called


def _telling(component: DataSource, slot: str, method: Callable[..., object]) -> Callable[..., object]:
    """Returns a `next_batch` that afterwards reports what the source has left out, and what it notes."""
    kind = type(component)
    leaves_out = kind.take_left_out is not DataSource.take_left_out
    if not leaves_out and kind.take_notes is DataSource.take_notes:
        return method

    def next_batch(ctx: OpContext) -> object:
        try:
            return method(ctx)
        finally:
            for left_out in component.take_left_out() if leaves_out else ():
                if left_out.samples:
                    ctx.runtime.count("data.left_out", left_out.samples)
                else:
                    ctx.runtime.count("data.breaks")
                ctx.runtime.emit(steps.DataLeftOut(ctx.target, slot, *left_out))
            tell(component, slot, steps.DataNoted, ctx)

    return next_batch
