"""Calibration data: read, checked against a program's inputs, and run.

1. Data are arrays by input name, `<target>.<input>` or `<input>`; the first axis counts samples. An array
of the input's own rank is cut along its batch (open batches into at most `BATCH`, fixed ones into their
size); one of a rank more holds whole inputs. All arrays of a target have equally many samples.
2. A target's calls of backend functions are run in order on the device's own NumPy backend. What a call
reads is data, a constant, or an earlier call's result. A call that reads anything else is not observed;
whether that matters is the reader's to say (`Observation.missing`).
3. Ranges are smallest and largest values over all samples. A value that was ever not finite, or that is not
float32, has no range.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bb_edge.array_files import ArrayFileError, read_arrays
from bb_edge.backends import NumPyBackend
from bb_edge.input_files import FileRefused
from bb_edge.ir import keys
from bb_edge.ir.suggestions import suggestion
from bb_edge.ir.types import ValueType, dtype_of_elem
from bb_edge.roles.errors import BackendError
from bb_host.errors import CalibrationError
from bb_host.ir.program import Array, Function, FunctionKey, Op, Program
from bb_host.ir.proto import function_to_proto
from bb_host.ir.queries import is_onnx, reads
from bb_host.ir.values import constant_array

BATCH = 32
"""Samples run at once where the batch is open; all intermediate values of so many are held together."""

HEADROOM = 1 / 8
"""Enough for most of what calibration has not seen; where it was not needed a grid is an eighth coarser."""

Range = tuple[float, float]


@dataclass(slots=True)
class Observation:
    """Of one target: ranges by function and value; `vectors`: values of one number per sample and channel;
    `missing`: what calls lack to be run, by function.
    """

    ranges: dict[FunctionKey, dict[str, Range]] = field(default_factory=dict)
    vectors: dict[FunctionKey, set[str]] = field(default_factory=dict)
    missing: dict[FunctionKey, tuple[str, ...]] = field(default_factory=dict)
    samples: int = 0

    def with_headroom(self, key: FunctionKey) -> dict[str, Range]:
        """Ranges of a function, those of vectors `HEADROOM` wider at each end.

        Of an image the samples show thousands of numbers, of a vector a few hundred: the next one's largest
        often lies beyond, and what is cut off there no later layer averages away.
        """
        vectors = self.vectors.get(key, set())
        return {
            name: (low * (1 + HEADROOM), high * (1 + HEADROOM)) if name in vectors else (low, high)
            for name, (low, high) in self.ranges.get(key, {}).items()
        }


def read_calibration(path: str | Path) -> dict[str, Array]:
    """The arrays of an `.npz` file. CalibrationError where it is none, or holds objects."""
    hint = "write it with numpy.savez"
    try:
        arrays = read_arrays(path)
    except (ArrayFileError, FileRefused) as error:
        raise CalibrationError(f"no .npz file of arrays: {error.what}", str(path), hint) from error
    except OSError as error:
        raise CalibrationError(error.strerror or str(error), str(path)) from error
    if "" in arrays:
        raise CalibrationError("no .npz file of arrays: it holds one without a name", str(path), hint)
    return arrays


def batches(data: Mapping[str, Array], main: Function, target: str) -> Iterator[dict[str, Array]]:
    """The data of one target, cut into runs. CalibrationError for what does not fit."""
    inputs = {name: _find(data, name, target) for name in _readable(main)}
    known = {name: array for name, array in inputs.items() if array is not None}
    counts = {name: _samples(name, array, main.types.get(name)) for name, array in known.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise CalibrationError(f"inputs have different numbers of samples: {told}", f"target {target}")
    if not known:
        return
    floats = {name: array for name, array in known.items() if array.dtype.kind == "f"}
    if floats and all(array.min() == array.max() for array in floats.values()):
        told = ", ".join(f"{name} is {array.flat[0]} throughout" for name, array in floats.items())
        hint = "give samples of what the device will see; ranges of what never varies are empty"
        raise CalibrationError(told, f"calibration of target {target}", hint)
    size, fixed = _batch(known, main)
    total = next(iter(counts.values()))
    if fixed and total % size:
        raise CalibrationError(
            f"{total} samples are not a multiple of the batch of {size}", f"target {target}"
        )
    for begin in range(0, total, size):
        part = {}
        for name, array in known.items():
            whole = _is_whole(array, main.types.get(name))
            part[name] = np.ascontiguousarray(array[begin] if whole else array[begin : begin + size])
        yield part


def runs(
    program: Program, main: Function, given: Mapping[str, Array], observed: Mapping[FunctionKey, Function]
) -> Iterator[tuple[FunctionKey, dict[str, Array]]]:
    """One run of a target's tensor work: for each call that can be run, its function and all its values.

    `observed` are the functions as they are to be run, their results named by `observed_values`.
    """
    backend = NumPyBackend()
    values: dict[str, Array] = dict(given)
    for op in main.ops:
        array = constant_array(op)
        if array is not None:
            values[op.outputs[0]] = array
        function = program.function(op.domain, op.op_type)
        if function is None or function.key not in observed or any(n and n not in values for n in op.inputs):
            continue
        body = observed[function.key]
        inputs = dict(zip(body.inputs, (values[name] for name in op.inputs), strict=True))
        try:
            found = backend.execute(function_to_proto(body), inputs)
        except BackendError as error:
            raise CalibrationError(
                f"it does not run on the data: {error}", f"function {function.name}"
            ) from error
        values.update((o, found[n]) for o, n in zip(op.outputs, function.outputs, strict=True) if o)
        yield function.key, {**inputs, **found}


def observed_values(function: Function) -> Function:
    """The function with every value that its ops make as a result."""
    made = [v for op in function.ops if not is_onnx(op, "Constant") for v in op.outputs if v]
    return dataclasses.replace(function, outputs=tuple(dict.fromkeys((*function.outputs, *made))))


def observed_bodies(program: Program) -> dict[FunctionKey, Function]:
    """A program's backend functions, so."""
    return {f.key: observed_values(f) for f in program.functions if f.domain == keys.BACKEND_DOMAIN}


def refuse_unknown(program: Program, data: Mapping[str, Array], where: str) -> None:
    """CalibrationError for an array that no target reads; nor is one read where each target has its own."""
    known: dict[str, None] = {}
    worked_on, read = set[str](), set[str]()
    for main in (f for f in program.functions if f.facts.entry):
        readable = _readable(main)
        for name in (*main.inputs, *readable):
            known.update({name: None, f"{main.name}.{name}": None})
        for name in readable:
            own = f"{main.name}.{name}"
            read.add(own if own in data else name)
        for name in _worked_on(program, main):
            worked_on.update((name, f"{main.name}.{name}"))
    for name in data:
        if name not in known:
            hint = suggestion(name, [n for n in known if "." not in n], "inputs: ")
            raise CalibrationError(f"{name!r} is not an input", where, hint or "leave it out")
        if name not in worked_on:
            what = f"{name!r} is not used: no tensor work reads this input"
            raise CalibrationError(what, where, "leave it out")
        if name not in read:
            what = f"{name!r} is not used: each target that has this input has an array of its own"
            raise CalibrationError(what, where, "leave it out, or leave theirs out")


def observe(program: Program, main: Function, target: str, data: Mapping[str, Array]) -> Observation:
    """Runs all samples and keeps the ranges."""
    bodies = observed_bodies(program)
    found = Observation(missing=_unreached(main, target, data, bodies))
    lost: set[tuple[FunctionKey, str]] = set()
    for given in batches(data, main, target):
        found.samples += 1
        for key, values in runs(program, main, given, bodies):
            ranges, vectors = found.ranges.setdefault(key, {}), found.vectors.setdefault(key, set())
            for name, array in values.items():
                if array.dtype != np.float32 or not array.size:
                    continue
                low, high = float(array.min()), float(array.max())
                if not np.isfinite(low) or not np.isfinite(high):
                    lost.add((key, name))
                    continue
                old = ranges.get(name, (low, high))
                ranges[name] = min(low, old[0]), max(high, old[1])
                if all(n == 1 for n in array.shape[2:]):
                    vectors.add(name)
    for key, name in lost:
        found.ranges[key].pop(name, None)
    return found


# --- checks ---------------------------------------------------------------------------------------


def _calls(main: Function) -> Iterator[Op]:
    return (op for op in main.ops if op.domain == keys.BACKEND_DOMAIN)


def _readable(main: Function) -> tuple[str, ...]:
    """What calls read and no call makes: the names that data may have."""
    made = {v for op in _calls(main) for v in op.outputs}
    made.update(op.outputs[0] for op in main.ops if constant_array(op) is not None)
    return tuple(dict.fromkeys(v for op in _calls(main) for v in op.inputs if v and v not in made))


def _worked_on(program: Program, main: Function) -> Iterator[str]:
    """What an op in a called function reads: an input of a model may go to none."""
    for call in _calls(main):
        body = program.function(call.domain, call.op_type)
        if body is None:
            continue
        needed = {*body.outputs, *(name for op in body.ops for name in reads(op))}
        yield from (name for name, own in zip(call.inputs, body.inputs, strict=False) if own in needed)


def _unreached(
    main: Function,
    target: str,
    data: Mapping[str, Array],
    bodies: Mapping[FunctionKey, Function],
) -> dict[FunctionKey, tuple[str, ...]]:
    there = {name for name in _readable(main) if _find(data, name, target) is not None}
    there.update(op.outputs[0] for op in main.ops if constant_array(op) is not None)
    missing: dict[FunctionKey, tuple[str, ...]] = {}
    for op in _calls(main):
        absent = tuple(v for v in op.inputs if v and v not in there)
        key = (op.domain, op.op_type)
        if absent and key in bodies:
            missing[key] = absent
        elif not absent:
            there.update(op.outputs)
    return missing


def _find(data: Mapping[str, Array], name: str, target: str) -> Array | None:
    found = data.get(f"{target}.{name}")
    return data.get(name) if found is None else found


def _dims(value: ValueType | None) -> tuple[int | str | None, ...] | None:
    return None if value is None or value.shape is None else tuple(value.shape)


def _is_whole(array: Array, value: ValueType | None) -> bool:
    """Whether each entry of the first axis is a whole input, not a row of its batch."""
    dims = _dims(value)
    return dims is not None and array.ndim == len(dims) + 1


def _batch(known: Mapping[str, Array], main: Function) -> tuple[int, bool]:
    """Samples per run, and whether the inputs say so."""
    if any(_is_whole(array, main.types.get(name)) for name, array in known.items()):
        return 1, False
    first = [d[0] for name in known if (d := _dims(main.types.get(name)))]
    sizes = {d for d in first if isinstance(d, int)}
    if len(sizes) > 1:
        told = ", ".join(str(size) for size in sorted(sizes))
        raise CalibrationError(
            f"inputs have fixed batches of {told}", "calibration", "give whole inputs, one per sample"
        )
    return (sizes.pop(), True) if sizes else (BATCH, False)


def _samples(name: str, array: Array, value: ValueType | None) -> int:
    where = f"calibration of {name!r}"
    dtype = None if value is None else dtype_of_elem(value.node.elem_type or 0)
    if dtype is not None and array.dtype != dtype:
        raise CalibrationError(
            f"{array.dtype}, the input is {np.dtype(dtype)}", where, "convert it before saving"
        )
    if not array.ndim or not array.size:
        raise CalibrationError("no samples", where, "the first axis counts samples")
    dims = _dims(value)
    if dims is not None:
        own = dims if array.ndim == len(dims) + 1 else dims[1:]
        if array.ndim not in (len(dims), len(dims) + 1) or any(
            isinstance(d, int) and d != n for d, n in zip(own, array.shape[1:], strict=True)
        ):
            want = ", ".join("?" if not isinstance(d, int) else str(d) for d in dims)
            raise CalibrationError(f"shape {list(array.shape)}, the input is [{want}]", where)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise CalibrationError("NaN or infinite values", where, "remove these samples")
    return len(array)
