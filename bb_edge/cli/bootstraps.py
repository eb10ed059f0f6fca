"""The inputs of bootstraps, as a configuration and `--bootstrap TARGET.INPUT=VALUE` give them; their state.

A value is a number, a list of numbers, or the path of an `.npy` or `.npz` file. Everything is held against
what the bootstrap declares before a node is made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.engine.entries.bootstrap import seconds
from bb_edge.engine.entries.bootstrap_requests import BootstrapState, BootstrapStatus
from bb_edge.ir import types
from bb_edge.ir.errors import BBError
from bb_edge.ir.suggestions import suggestion
from bb_edge.ir.types import ValueType
from bb_edge.ir.values import TRIGGER

if TYPE_CHECKING:
    from bb_edge.cli.render import Output
    from bb_edge.engine.program.program import Program, Target

Array = np.ndarray[Any, np.dtype[Any]]
Given = Mapping[str, Mapping[str, object]]
"""By target and input: a number, a list, or the `Path` of a file."""

FLAG = "--bootstrap TARGET.INPUT=VALUE"


class BootstrapInputError(BBError):
    """An input of a bootstrap is missing, unknown, unreadable, or not what the bootstrap declares."""


def parse_flags(texts: Sequence[str]) -> dict[str, dict[str, object]]:
    """`TARGET.INPUT=VALUE` each: a number or list as JSON writes it, else a path. BootstrapInputError."""
    found: dict[str, dict[str, object]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        target, dot, port = name.rpartition(".")
        if not equals or not dot or not target or not port or not value:
            raise BootstrapInputError(f"{text!r}", "--bootstrap", f"write {FLAG}")
        try:
            parsed: object = json.loads(value)
        except ValueError:
            parsed = Path(value)
        inputs = found.setdefault(target, {})
        if port in inputs:
            raise BootstrapInputError(f"{name} is given twice", "--bootstrap", "leave one of the two out")
        inputs[port] = parsed if not isinstance(parsed, str) else Path(parsed)
    return found


def read_inputs(program: Program, targets: Sequence[Target], given: Given) -> dict[str, dict[str, object]]:
    """The inputs of all bootstraps of these targets, as `Node.keep_bootstrapping` takes them.

    BootstrapInputError names the target and the input, and says how to give it.
    """
    resolved: dict[str, Mapping[str, object]] = {}
    by_name = {name: target for target in targets for name in (target.name, target.name.partition("#")[0])}
    for name, inputs in given.items():
        target = by_name.get(name)
        if target is None:
            near = suggestion(name, [t.name for t in targets], "this node runs: ")
            raise BootstrapInputError(f"no target {name!r} runs here", "bootstrap", near)
        if target.bootstrap is None:
            raise BootstrapInputError(
                "the target has no bootstrap with inputs", f"bootstrap.{name}", "leave the input out"
            )
        resolved[target.name] = inputs
    found: dict[str, dict[str, object]] = {}
    for target in targets:
        formals = formals_of(program, target)
        inputs = resolved.get(target.name, {})
        for port in inputs:
            if port not in formals:
                raise BootstrapInputError(
                    f"no input {port!r}",
                    f"bootstrap.{target.name}",
                    suggestion(port, formals, "it has: ") or "it has none",
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
            found.setdefault(target.name, {})[port] = _value(inputs[port], declared, port, where)
    return found


def inputs_of(
    program: Program,
    targets: Sequence[Target],
    given: Given,
    states: Sequence[BootstrapState],
    output: Output,
) -> dict[str, dict[str, object]]:
    """`read_inputs`, unless a restart has found every bootstrap done: then none is read, and it says so."""
    if states and all(state.status.over for state in states):
        if given:
            output.log("info", "the bootstraps are done: their inputs are not read", targets=", ".join(given))
        return {}
    return read_inputs(program, targets, given)


def formals_of(program: Program, target: Target) -> Mapping[str, ValueType]:
    """What a target's bootstrap wants to be given; empty where it has none."""
    return {} if target.bootstrap is None else program.graphs[target.bootstrap].input_types


def own_bootstraps(target: Target) -> tuple[str, ...]:
    """The slots of a target whose component has a bootstrap of its own; unregistered types are left out."""
    from bb_edge.registry import RegistryError, default_registry
    from bb_edge.roles import Component

    found = []
    for slot, binding in sorted(target.bindings.items()):
        try:
            kind = default_registry().lookup(binding.type_name, f"slot {slot!r}")
        except RegistryError:
            continue
        if kind.bootstrap is not Component.bootstrap:
            found.append(slot)
    return tuple(found)


def told(state: BootstrapState, now_ns: int) -> str:
    """`pending`, `running`, `failed (next try in 4 s)`, `done`."""
    if state.status in (BootstrapStatus.READY, BootstrapStatus.QUEUED):
        return "pending"
    if state.status is BootstrapStatus.FAILED and state.next_try_ns:
        return f"failed (next try in {seconds(state.next_try_ns - now_ns)})"
    text: str = state.status.value
    return text


def summary(states: Sequence[BootstrapState], now_ns: int) -> str:
    """All of them in one phrase: the one that is furthest from done. Empty where there are none."""
    order = (
        BootstrapStatus.FAILED,
        BootstrapStatus.READY,
        BootstrapStatus.QUEUED,
        BootstrapStatus.RUNNING,
        BootstrapStatus.DONE,
    )
    if not states:
        return ""
    return f"bootstrap: {told(min(states, key=lambda s: order.index(s.status)), now_ns)}"


def counts(states: Sequence[BootstrapState]) -> dict[str, int]:
    """Gauges for metrics and the summary; empty where there are no bootstraps."""
    found = dict.fromkeys(("pending", "running", "failed", "done"), 0) if states else {}
    for state in states:
        found[told(state, 0).partition(" ")[0]] += 1
    return {f"bootstraps.{name}": count for name, count in found.items()}


# --- values -------------------------------------------------------------------------------------------


def _value(given: object, declared: ValueType, port: str, where: str) -> object:
    node = declared.node
    if node == types.TRIGGER:
        if given is not True:
            raise BootstrapInputError(f"{_said(given)}, a trigger is expected", where, "write true")
        return TRIGGER
    if node == types.BYTES:
        if not isinstance(given, Path):
            raise BootstrapInputError(f"{_said(given)}, bytes are expected", where, "give the path of a file")
        return _bytes_of(given, where)
    if types.is_subtype(node, types.SCALAR):
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise BootstrapInputError(f"{_said(given)}, {node} is expected", where, "write a number")
        return given
    if node != types.ANY and not types.is_subtype(node, types.TENSOR):
        raise BootstrapInputError(
            f"{node} cannot be written in a configuration",
            where,
            "start the node with --no-bootstrap from a host that calls Node.run_bootstrap",
        )
    dtype = None if node.elem_type is None else types.dtype_of_elem(node.elem_type)
    array = _array_of(given, port, where) if isinstance(given, Path) else _numbers(given, dtype, where)
    if dtype is not None and array.dtype != dtype:
        raise BootstrapInputError(
            f"dtype {array.dtype} in {given}, {dtype} is expected",
            where,
            f"save it as np.save(file, array.astype('{dtype}'))",
        )
    shape = declared.shape
    if shape is not None and (
        len(shape) != array.ndim or any(isinstance(d, int) and d != n for d, n in zip(shape, array.shape))  # noqa: B905 (just compared)
    ):
        raise BootstrapInputError(
            f"shape {list(array.shape)}, {declared} is expected", where, "give an array of that shape"
        )
    return array


def _said(given: object) -> str:
    return f"the file {given}" if isinstance(given, Path) else f"{given!r:.60}"


def _bytes_of(path: Path, where: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error), where) from error


def _unreadable(path: Path, why: str, where: str) -> BootstrapInputError:
    return BootstrapInputError(f"{path} cannot be read: {why}", where, "give a number, a list or a .npy file")


def _array_of(path: Path, port: str, where: str) -> Array:
    """The array of an `.npy` file; of an `.npz` the one that is named after the input, else its only one."""
    try:
        with path.open("rb") as stream:  # np.load leaves a damaged one open
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            name = port if port in loaded.files else loaded.files[0] if len(loaded.files) == 1 else None
            if name is not None:
                found: Array = loaded[name]
                return found
            held = ", ".join(loaded.files)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error), where) from error
    except Exception as error:  # zipfile and NumPy raise what they please on damaged files
        raise _unreadable(path, "it is damaged, or no .npy or .npz file of numbers", where) from error
    if not held:
        raise BootstrapInputError(f"{path} has no array", where, "write it with np.savez")
    raise BootstrapInputError(
        f"{path} has several arrays, and none is called {port!r}", where, f"it has: {held}; name one {port!r}"
    )


def _numbers(given: object, dtype: np.dtype[Any] | None, where: str) -> Array:
    """A number or a list of them, in the declared dtype; nothing is rounded to a whole number or cut off."""
    try:
        array = np.asarray(given)
        if array.dtype == object and dtype is not None and dtype.kind == "f":
            array = np.asarray(given, np.float64)  # whole numbers beyond 64 bits
    except ValueError as error:
        raise BootstrapInputError(
            f"{_said(given)}: rows of different lengths", where, "make all rows of a list equally long"
        ) from error
    except (TypeError, OverflowError):
        pass
    if array.dtype == object and all(isinstance(number, int) for number in array.flat):
        raise BootstrapInputError(
            f"{_said(given)} does not fit {dtype or 'int64'}", where, "write smaller numbers"
        )
    if array.dtype.kind not in "biuf":
        raise BootstrapInputError(
            f"{_said(given)} is no number and no list of numbers", where, "or give the path of a .npy file"
        )
    if dtype is None:
        return array.astype(np.float32) if array.dtype.kind == "f" else array
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    # Decimal fractions are rounded to the float they name; all else must come through as it is.
    same = _holds_bools(given) == (dtype.kind == "b")  # true is no number, and 1 is not true
    if dtype.kind == "f":
        exact = same and np.array_equal(np.isfinite(array), np.isfinite(cast))
    else:
        exact = same and array.dtype.kind in "biu" and np.array_equal(cast, array)
    if array.size and not exact:
        raise BootstrapInputError(f"{_said(given)} does not fit {dtype}", where, f"write values of {dtype}")
    return cast


def _holds_bools(given: object) -> bool:
    return any(map(_holds_bools, given)) if isinstance(given, list) else isinstance(given, bool)
