"""Reads the inputs of bootstraps from a configuration and from flags, and words for their state.

A value is a number, a list of numbers, or the path of an `.npy` or `.npz` file. Each is checked against what
the bootstrap declares before a node is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.array_files import ArrayFileError, read_arrays
from bb_edge.cli.arguments import ArgumentError, given_value
from bb_edge.engine.entries.bootstrap import BootstrapState, BootstrapStatus, seconds
from bb_edge.input_files import FileRefused, read_regular
from bb_edge.ir import types
from bb_edge.ir.errors import BBError
from bb_edge.ir.host_arrays import ArrayMisfitError, numbers_as
from bb_edge.ir.suggestions import suggestion
from bb_edge.ir.types import ValueType
from bb_edge.ir.values import TRIGGER

if TYPE_CHECKING:
    from bb_edge.cli.render import Log
    from bb_edge.engine.program.program import Program, Target

Array = np.ndarray[Any, np.dtype[Any]]
MAX_BYTES = 1 << 30
"""Bytes of the largest file that is given for an input of bytes: what a board could hold at all."""

RawInputs = Mapping[str, Mapping[str, object]]
"""Target → input → a number, a list, or the `Path` of a file."""

FLAG = "--bootstrap TARGET.INPUT=VALUE"


class BootstrapInputError(BBError):
    """An input of a bootstrap is missing, unknown or unreadable, or not what the bootstrap declares."""


class BootstrapFlagError(BootstrapInputError, ArgumentError):
    """A flag is not TARGET.INPUT=VALUE, or gives an input that another one gives."""


def parse_flags(texts: Sequence[str]) -> dict[str, dict[str, object]]:
    """Parses flags `TARGET.INPUT=VALUE`, where a value is a number or list in JSON, else a path.

    Raises BootstrapFlagError for anything else, and for an input that is given twice.
    """
    values: dict[str, dict[str, object]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        target, dot, port = name.rpartition(".")
        if not equals or not dot or not target or not port or not value:
            raise BootstrapFlagError(f"{text!r} is not TARGET.INPUT=VALUE", "--bootstrap", f"write {FLAG}")
        parsed = given_value(f"--bootstrap {name}", value)
        inputs = values.setdefault(target, {})
        if port in inputs:
            raise BootstrapFlagError(f"{name} is given twice", "--bootstrap", "leave one of the two out")
        inputs[port] = parsed if not isinstance(parsed, str) else Path(parsed)
    return values


def read_inputs(program: Program, targets: Sequence[Target], raw: RawInputs) -> dict[str, dict[str, object]]:
    """Returns the inputs of all bootstraps of these targets, as `Node.keep_bootstrapping` takes them.

    Raises BootstrapInputError, which names the target and the input and says how to give it.
    """
    resolved: dict[str, Mapping[str, object]] = {}
    by_name = {name: target for target in targets for name in (target.name, target.name.partition("#")[0])}
    for name, inputs in raw.items():
        target = by_name.get(name)
        if target is None:
            near = suggestion(name, [t.name for t in targets], "this node runs: ")
            raise BootstrapInputError(f"this node runs no target {name!r}", "bootstrap", near)
        if target.bootstrap is None:
            raise BootstrapInputError(
                "the target has no bootstrap with inputs", f"bootstrap.{name}", "leave the input out"
            )
        resolved[target.name] = inputs
    values: dict[str, dict[str, object]] = {}
    for target in targets:
        formals = formals_of(program, target)
        inputs = resolved.get(target.name, {})
        for port in inputs:
            if port not in formals:
                raise BootstrapInputError(
                    f"the bootstrap has no input {port!r}",
                    f"bootstrap.{target.name}",
                    suggestion(port, formals, "it has: ") or "it has no inputs",
                )
        for port, declared in formals.items():
            where = f"bootstrap.{target.name}.{port}"
            if port not in inputs:
                raise BootstrapInputError(
                    f"missing: the bootstrap of {target.name} needs its input {port!r}, {declared}",
                    where,
                    f"give it: --bootstrap {target.name}.{port}=VALUE (a number, a list, a .npy file), "
                    f'or "bootstrap": {{"{target.name}": {{"{port}": …}}}} in the file of --config',
                )
            values.setdefault(target.name, {})[port] = _value(inputs[port], declared, port, where)
    return values


def inputs_of(
    program: Program,
    targets: Sequence[Target],
    raw: RawInputs,
    states: Sequence[BootstrapState],
    log: Log,
) -> dict[str, dict[str, object]]:
    """Does what `read_inputs` does, unless a restart has found every bootstrap done; then nothing is read."""
    if states and all(state.status.over for state in states):
        if raw:
            log("info", "the bootstraps are done: their inputs are not read", targets=", ".join(raw))
        return {}
    return read_inputs(program, targets, raw)


def formals_of(program: Program, target: Target) -> Mapping[str, ValueType]:
    """The inputs that a target's bootstrap declares; empty if it has no bootstrap."""
    return {} if target.bootstrap is None else program.graphs[target.bootstrap].input_types


def own_bootstraps(target: Target) -> tuple[str, ...]:
    """The slots of a target whose components have a bootstrap; types that are not registered are skipped."""
    from bb_edge.registry import RegistryError, default_registry
    from bb_edge.roles import Component

    slots = []
    for slot, binding in sorted(target.bindings.items()):
        try:
            kind = default_registry().lookup(binding.type_name, f"slot {slot!r}")
        except RegistryError:
            continue
        if kind.bootstrap is not Component.bootstrap:
            slots.append(slot)
    return tuple(slots)


def word_of(state: BootstrapState, now_ns: int) -> str:
    """The state as logs show it: `pending`, `running`, `failed (next try in 4 s)` or `done`."""
    if state.status in (BootstrapStatus.READY, BootstrapStatus.QUEUED):
        return "pending"
    if state.status is BootstrapStatus.FAILED and state.next_try_ns:
        return f"failed (next try in {seconds(state.next_try_ns - now_ns)})"
    text: str = state.status.value
    return text


def summary(states: Sequence[BootstrapState], now_ns: int) -> str:
    """One phrase for all bootstraps: the state that is furthest from done; empty if there are none."""
    order = (
        BootstrapStatus.FAILED,
        BootstrapStatus.READY,
        BootstrapStatus.QUEUED,
        BootstrapStatus.RUNNING,
        BootstrapStatus.DONE,
    )
    if not states:
        return ""
    return f"bootstrap: {word_of(min(states, key=lambda s: order.index(s.status)), now_ns)}"


def counts(states: Sequence[BootstrapState]) -> dict[str, int]:
    """How many bootstraps are in each state, as gauges; empty if there are no bootstraps."""
    numbers = dict.fromkeys(("pending", "running", "failed", "done"), 0) if states else {}
    for state in states:
        numbers[word_of(state, 0).partition(" ")[0]] += 1
    return {f"bootstraps.{name}": count for name, count in numbers.items()}


# --- values -------------------------------------------------------------------------------------------


def _value(raw: object, declared: ValueType, port: str, where: str) -> object:
    node = declared.node
    if node == types.TRIGGER:
        if raw is not True:
            raise BootstrapInputError(f"expected a trigger, got {_shown(raw)}", where, "write true")
        return TRIGGER
    if node == types.BYTES:
        if not isinstance(raw, Path):
            raise BootstrapInputError(f"expected bytes, got {_shown(raw)}", where, "give the path of a file")
        return _bytes_of(raw, where)
    if types.is_subtype(node, types.SCALAR):
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            raise BootstrapInputError(f"expected {node}, got {_shown(raw)}", where, "write a number")
        return raw
    if node != types.ANY and not types.is_subtype(node, types.TENSOR):
        raise BootstrapInputError(
            f"{node} cannot be written in a configuration",
            where,
            "start the node with --no-bootstrap from a host that calls Node.run_bootstrap",
        )
    dtype = None if node.elem_type is None else types.dtype_of_elem(node.elem_type)
    array = _array_of(raw, port, where) if isinstance(raw, Path) else _numbers(raw, dtype, where)
    if dtype is not None and array.dtype != dtype:
        raise BootstrapInputError(
            f"expected dtype {dtype}, got {array.dtype} in {raw}",
            where,
            f"save it as np.save(file, array.astype('{dtype}'))",
        )
    shape = declared.shape
    if shape is not None and (
        len(shape) != array.ndim or any(isinstance(d, int) and d != n for d, n in zip(shape, array.shape))  # noqa: B905 (just compared)
    ):
        raise BootstrapInputError(
            f"expected {declared}, got shape {list(array.shape)}", where, "give an array of that shape"
        )
    return array


def _shown(raw: object) -> str:
    return f"the file {raw}" if isinstance(raw, Path) else f"{raw!r:.60}"


def _bytes_of(path: Path, where: str) -> bytes:
    try:
        return read_regular(path, MAX_BYTES)
    except FileRefused as error:
        raise _unreadable(path, error.what, where) from error
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error), where) from error


def _unreadable(path: Path, why: str, where: str) -> BootstrapInputError:
    return BootstrapInputError(f"{path} cannot be read: {why}", where, "give a number, a list or a .npy file")


def _array_of(path: Path, port: str, where: str) -> Array:
    """The array of an `.npy` file; of an `.npz` file the one named like the input, else its only one."""
    try:
        arrays = read_arrays(path, MAX_BYTES)
    except (ArrayFileError, FileRefused) as error:
        raise _unreadable(path, error.what, where) from error
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error), where) from error
    name = port if port in arrays else next(iter(arrays)) if len(arrays) == 1 else None
    if name is not None:
        return arrays[name]
    held = ", ".join(arrays)
    if not held:
        raise BootstrapInputError(f"{path} holds no array", where, "write it with np.savez")
    raise BootstrapInputError(
        f"{path} holds several arrays, and none is named {port!r}",
        where,
        f"it holds {held}: name one {port!r}",
    )


def _numbers(value: object, dtype: np.dtype[Any] | None, where: str) -> Array:
    """A number or a list of numbers as an array of the declared dtype, F32 for floats where none is."""
    try:
        array = numbers_as(value, dtype)
    except ArrayMisfitError as error:
        raise BootstrapInputError(error.what, where, f"{error.hint}, or the path of a .npy file") from error
    if dtype is None:
        return array.astype(np.float32) if array.dtype.kind == "f" else array
    if array.size and _holds_bools(value) != (dtype.kind == "b"):  # true is not a number, and 1 is not true
        raise BootstrapInputError(f"{_shown(value)} does not fit {dtype}", where, f"write values of {dtype}")
    return array


def _holds_bools(value: object) -> bool:
    return any(map(_holds_bools, value)) if isinstance(value, list) else isinstance(value, bool)
