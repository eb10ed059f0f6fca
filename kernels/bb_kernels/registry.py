"""The table of kernels: which function prepares which operator, from which opset version on.

A kernel registers with ``@kernel(...)``. What can be said as data is said there and checked in this module:
the input signature, the element types, the attribute names, and which inputs must be known when preparing. A
signature is one token per input: ``T`` (the operator's main type; all ``T`` inputs agree), ``U`` (a second
type), ``I`` (int32 or int64), ``B`` (bool), ``A`` (any type), followed by ``?`` when the input may be omitted
or ``*`` when it repeats (last token only, once or more).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np

from .catalog import load, load_all
from .errors import (
    KernelAttributeError,
    KernelMemoryError,
    KernelShapeError,
    UnsupportedDtypeError,
    UnsupportedOpError,
)
from .spec import ALL, BOOL, F16, F32, I32, I64, Array, Dtype, Prepared, TensorSpec

#: Opset versions covered: 7 brought NumPy-style broadcasting, the newest is the last one checked.
OLDEST_OPSET = 7
NEWEST_OPSET = 28

_DOMAINS = ("", "ai.onnx")


class Call(NamedTuple):
    """A node as a kernel's prepare function sees it: checked against the registration, never mutated."""

    op_type: str
    version: int
    attrs: Mapping[str, object]
    inputs: tuple[TensorSpec | None, ...]
    constants: tuple[Array | None, ...]
    n_outputs: int
    #: Bytes that tables may take which are made when preparing; 0 for any number.
    most: int = 0

    def has(self, index: int) -> bool:
        """Whether input ``index`` is there and not omitted."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def spec(self, index: int) -> TensorSpec:
        """Return the spec of an input; KernelShapeError where it is omitted."""
        spec = self.inputs[index] if index < len(self.inputs) else None
        if spec is None:
            raise KernelShapeError(f"{self.op_type}: input {index} is required")
        return spec

    def constant(self, index: int) -> Array | None:
        """Return the value of an input where it is known when preparing, else None."""
        return self.constants[index] if index < len(self.constants) else None

    def int_list(self, index: int) -> list[int] | None:
        """Return a constant input (shape, axes, starts, …) as a list of ints; None where it is omitted."""
        value = self.constant(index)
        return None if value is None else [int(v) for v in value.reshape(-1)]

    def int_attr(self, name: str, default: int | None = None) -> int:
        """Return an int attribute; KernelAttributeError for another type and without value or default."""
        value = self.attrs.get(name, default)
        if not isinstance(value, (int, np.integer)):
            raise KernelAttributeError(f"{self.op_type}: attribute {name} must be an int, got {value!r}")
        return int(value)

    def float_attr(self, name: str, default: float | None = None) -> float:
        """Return a float attribute; KernelAttributeError for another type and without value or default."""
        value = self.attrs.get(name, default)
        if not isinstance(value, (int, float, np.floating, np.integer)):
            raise KernelAttributeError(f"{self.op_type}: attribute {name} must be a float, got {value!r}")
        return float(value)

    def str_attr(self, name: str, default: str | None = None, choices: Sequence[str] = ()) -> str:
        """Return a string attribute, one of ``choices`` if there are any; KernelAttributeError otherwise."""
        value = self.attrs.get(name, default)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if not isinstance(value, str):
            raise KernelAttributeError(f"{self.op_type}: attribute {name} must be a string, got {value!r}")
        if choices and value not in choices:
            raise KernelAttributeError(f"{self.op_type}: {name}={value!r} is not one of {', '.join(choices)}")
        return value

    def ints_attr(self, name: str) -> list[int] | None:
        """Return an attribute that is a list of ints, None without; KernelAttributeError for another type."""
        value = self.attrs.get(name)
        if value is None:
            return None
        if not isinstance(value, (list, tuple, np.ndarray)) or not all(
            isinstance(v, (int, np.integer)) for v in value
        ):
            raise KernelAttributeError(
                f"{self.op_type}: attribute {name} must be a list of ints, got {value!r}"
            )
        return [int(v) for v in value]

    def floats_attr(self, name: str) -> list[float] | None:
        """Return an attribute that is a list of floats, None without; KernelAttributeError otherwise."""
        value = self.attrs.get(name)
        if value is None:
            return None
        if not isinstance(value, (list, tuple, np.ndarray)) or not all(
            isinstance(v, (int, float, np.integer, np.floating)) for v in value
        ):
            raise KernelAttributeError(
                f"{self.op_type}: attribute {name} must be a list of floats, got {value!r}"
            )
        return [float(v) for v in value]


PrepareFn = Callable[[Call], Prepared]
_F = TypeVar("_F", bound=PrepareFn)


class Kernel:
    """A registration: an operator over a range of opset versions."""

    # A plain class: making a NamedTuple takes thirty times as long, and every cold start waits for it.
    __slots__ = (
        *("attrs", "build", "dtypes", "dtypes2", "half", "max_outputs", "needs", "op_type", "signature"),
        *("since", "until"),
    )

    def __init__(
        self,
        op_type: str,
        since: int,
        until: int,
        build: PrepareFn,
        signature: tuple[str, ...],
        dtypes: frozenset[Dtype],
        dtypes2: frozenset[Dtype],
        attrs: tuple[tuple[str, int], ...],
        needs: tuple[int, ...],
        half: bool,
        max_outputs: int,
    ) -> None:
        """Keep the arguments of ``kernel``; ``attrs`` are (name, first opset version)."""
        self.op_type = op_type
        self.since = since
        self.until = until
        self.build = build
        self.signature = signature
        self.dtypes = dtypes
        self.dtypes2 = dtypes2
        self.attrs = attrs
        self.needs = needs
        self.half = half
        self.max_outputs = max_outputs

    def attributes(self, version: int) -> frozenset[str]:
        """Return the names of the attributes that the operator has at an opset version."""
        return frozenset(name for name, since in self.attrs if since <= version)


_TABLE: dict[str, list[Kernel]] = {}


def kernel(
    op_type: str,
    signature: str,
    *,
    since: int = OLDEST_OPSET,
    until: int = NEWEST_OPSET,
    dtypes: frozenset[Dtype] = ALL,
    dtypes2: frozenset[Dtype] = ALL,
    attrs: str = "",
    needs: tuple[int, ...] = (),
    half: bool = False,
    max_outputs: int = 1,
) -> Callable[[_F], _F]:
    """Register a prepare function.

    ``since``/``until``: first and last opset version (inclusive). ``attrs``: space-separated attribute names,
    ``name@12`` for one that came with opset 12; any other is refused. ``needs``: inputs whose value decides
    the output shape or the program; where such an input is there but not constant, the node becomes dynamic.
    ``half``: float16 is computed in float32. Raises ValueError where two kernels claim the same opset
    version.
    """

    def register(build: _F) -> _F:
        named = tuple(
            (name, int(since_ or 0)) for name, _, since_ in (a.partition("@") for a in attrs.split())
        )
        entry = Kernel(
            op_type,
            since,
            until,
            build,
            tuple(signature.split()),
            dtypes,
            dtypes2,
            named,
            needs,
            half,
            max_outputs,
        )
        rows = _TABLE.setdefault(op_type, [])
        if any(row.since <= until and since <= row.until for row in rows):
            raise ValueError(f"{op_type}: two kernels claim the same opset version")
        rows.append(entry)
        return build

    return register


def find(op_type: str, version: int, domain: str = "") -> Kernel | None:
    """Return the registration of an operator at an opset version, or None."""
    if domain not in _DOMAINS:
        return None
    if op_type not in _TABLE:
        load(op_type)
    for row in _TABLE.get(op_type, ()):
        if row.since <= version <= row.until:
            return row
    return None


def supported(op_type: str, version: int, domain: str = "") -> bool:
    """Whether ``prepare`` knows the operator at this opset version."""
    return find(op_type, version, domain) is not None


def supported_ops(domain: str = "") -> Mapping[str, tuple[tuple[int, int], ...]]:
    """Return the inclusive ranges of opset versions of every operator, in ascending order."""
    if domain not in _DOMAINS:
        return MappingProxyType({})
    load_all()
    return MappingProxyType(
        {op: tuple(sorted((row.since, row.until) for row in rows)) for op, rows in sorted(_TABLE.items())}
    )


def prepare(
    op_type: str,
    version: int,
    attrs: Mapping[str, object],
    inputs: Sequence[TensorSpec | None],
    constants: Sequence[Array | None] = (),
    n_outputs: int = 1,
    domain: str = "",
    most: int = 0,
) -> Prepared:
    """Fit the kernel of an operator to its inputs.

    ``most`` bounds the bytes that this allocates for tables, 0 does not; KernelMemoryError comes before them.
    ``version`` is the opset version that the model imports; ``inputs`` has None for an omitted optional
    input; ``constants[i]`` is the value of input i where it is known now. Raises UnsupportedOpError,
    UnsupportedDtypeError, KernelShapeError or KernelAttributeError. After that a run can only fail by index
    values (KernelShapeError).
    """
    entry = find(op_type, version, domain)
    if entry is None:
        ranges = "" if domain not in _DOMAINS else ", ".join(
            f"{row.since}..{row.until}" for row in sorted(_TABLE.get(op_type, ()), key=lambda r: r.since)
        )  # fmt: skip
        raise UnsupportedOpError(
            op_type, version, domain, f"it is implemented at opsets {ranges}" if ranges else ""
        )
    specs = tuple([s and TensorSpec(np.dtype(s.dtype), tuple(map(int, s.shape))) for s in inputs])
    while specs and specs[-1] is None:
        specs = specs[:-1]
    known = tuple(None if c is None else np.asarray(c) for c in constants)[: len(specs)]
    call = Call(op_type, version, attrs, specs, known, n_outputs, most)
    _check(entry, call)
    if entry.needs and any(call.has(i) and call.constant(i) is None for i in entry.needs):
        return _dynamic(entry, call)
    return _build(entry, call)


def _build(entry: Kernel, call: Call) -> Prepared:
    """Call the prepare function, around float16 if it asks for that; every failure is a KernelError."""
    try:
        if entry.half and any(s is not None and s.dtype == F16 for s in call.inputs):
            return _widened(entry, call)
        return entry.build(call)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # The second net: kernels check what they know to check, but attributes and constants are data from
        # elsewhere, and what arithmetic trips over is a refusal of the node, not a crash of the caller.
        raise KernelShapeError(
            f"{entry.op_type}: cannot be prepared with these inputs and attributes ({error})"
        ) from error


def _check(entry: Kernel, call: Call) -> None:
    """Check a node against the registration: attributes, numbers and types of inputs and outputs."""
    op, tokens = entry.op_type, entry.signature
    if call.attrs and (unknown := sorted(set(call.attrs) - entry.attributes(call.version))):
        raise KernelAttributeError(
            f"{op}: attribute {', '.join(unknown)} is not known at opset {call.version}"
        )
    if not 0 < call.n_outputs <= entry.max_outputs:
        count = "1 output" if entry.max_outputs == 1 else f"1 to {entry.max_outputs} outputs"
        raise KernelShapeError(f"{op}: expected {count}, got {call.n_outputs}")
    repeats = bool(tokens) and tokens[-1].endswith("*")
    if len(call.inputs) > len(tokens) and not repeats:
        raise KernelShapeError(f"{op}: expected at most {len(tokens)} inputs, got {len(call.inputs)}")
    main: dict[str, Dtype] = {}
    for i in range(max(len(call.inputs), len(tokens))):
        token = tokens[min(i, len(tokens) - 1)]
        spec = call.inputs[i] if i < len(call.inputs) else None
        if spec is None:
            if not token.endswith("?"):
                raise KernelShapeError(f"{op}: input {i} is required")
            continue
        kind = token[0]
        allowed = entry.dtypes if kind == "T" else entry.dtypes2 if kind == "U" else _FIXED.get(kind, ALL)
        if spec.dtype not in allowed:
            names = ", ".join(sorted(str(d) for d in allowed))
            raise UnsupportedDtypeError(f"{op}: input {i} has element type {spec.dtype}, expected {names}")
        if kind in "TU" and main.setdefault(kind, spec.dtype) != spec.dtype:
            raise UnsupportedDtypeError(
                f"{op}: input {i} is {spec.dtype}, expected {main[kind]} like the inputs before it"
            )
        value = call.constant(i)
        if value is not None and (value.dtype != spec.dtype or value.shape != spec.shape):
            raise KernelShapeError(
                f"{op}: the constant of input {i} must have the type and shape of the input"
            )


_FIXED: Mapping[str, frozenset[Dtype]] = {"I": frozenset({I32, I64}), "B": frozenset({BOOL})}
"""Element types of inputs by the token's first letter, where no registration chooses them."""


def _dynamic(entry: Kernel, call: Call) -> Prepared:
    """Prepare again in every run, with the values at hand: for shapes that only the data knows."""

    def run(*inputs: Array | None, most: int = 0) -> tuple[Array, ...]:
        specs = tuple(None if a is None else TensorSpec(a.dtype, a.shape) for a in inputs)
        known = tuple(a if i in entry.needs else call.constant(i) for i, a in enumerate(inputs))
        prepared = _build(entry, call._replace(inputs=specs, constants=known, most=most))
        if most:
            allow(entry.op_type, prepared.nbytes, most)
        return evaluate(prepared, inputs, most)

    return Prepared(outputs=(), run=run, dynamic=True)


def allow(op_type: str, requested: int, most: int) -> None:
    """Raise KernelMemoryError where a run needs more than ``most`` bytes; 0 allows any number."""
    if most and requested > most:
        raise KernelMemoryError(op_type, requested, most)


def evaluate(prepared: Prepared, inputs: Sequence[Array | None], most: int = 0) -> tuple[Array, ...]:
    """Run a prepared kernel once on freshly allocated outputs and scratch, and return the outputs.

    ``most`` bounds the bytes that a dynamic kernel allocates, 0 does not; KernelMemoryError beyond it. Of
    other kernels the caller knows the bytes beforehand. KernelShapeError where NumPy cannot make the arrays.
    """
    if prepared.dynamic:
        fresh = prepared.run(*inputs, most=most)
        assert isinstance(fresh, tuple)
        return fresh
    try:
        outputs = tuple(np.empty(s.shape, s.dtype) for s in prepared.outputs)
        scratch = [np.empty(s.shape, s.dtype) for s in prepared.scratch]
    except (MemoryError, ValueError) as error:  # there is no such memory, or no such array
        raise KernelShapeError(f"{prepared.nbytes} bytes cannot be allocated ({error})") from error
    prepared.run(*inputs, *outputs, *scratch)
    return outputs


def _widened(entry: Kernel, call: Call) -> Prepared:
    """Return the kernel for float32 with conversions from and to float16 around it, in scratch."""
    specs = tuple(TensorSpec(F32, s.shape) if s is not None and s.dtype == F16 else s for s in call.inputs)
    known = tuple(c.astype(F32) if c is not None and c.dtype == F16 else c for c in call.constants)
    inner = entry.build(call._replace(inputs=specs, constants=known))
    n_in, n_out = len(specs), len(inner.outputs)
    narrow_in = [i for i, s in enumerate(call.inputs) if s is not None and s.dtype == F16]
    narrow_out = [i for i, s in enumerate(inner.outputs) if s.dtype == F32]
    if inner.dynamic:

        def run_dynamic(*inputs: Array | None, most: int = 0) -> tuple[Array, ...]:
            wide = [None if a is None else a.astype(F32) if a.dtype == F16 else a for a in inputs]
            fresh = evaluate(inner, wide, most)
            return tuple(a.astype(F16) if a.dtype == F32 else a for a in fresh)

        return Prepared(outputs=(), run=run_dynamic, dynamic=True)

    def bind(*arrays: Array | None) -> Callable[[], object]:
        args = list(arrays)
        wide = args[n_in + n_out :]
        loads: list[tuple[Array, Array]] = []
        stores: list[tuple[Array, Array]] = []
        for position, index in enumerate(narrow_in + [n_in + i for i in narrow_out]):
            own, temp = args[index], wide[position]
            if own is None:
                continue
            assert temp is not None
            (loads if index < n_in else stores).append((temp, own) if index < n_in else (own, temp))
            args[index] = temp
        bound = inner.bind(*args[: n_in + n_out], *wide[len(narrow_in) + len(narrow_out) :])

        def run() -> None:
            for target, source in loads:
                np.copyto(target, source)
            bound()
            for target, source in stores:
                np.copyto(target, source, casting="unsafe")

        return run

    wide_specs = [TensorSpec(F32, call.spec(i).shape) for i in narrow_in]
    wide_specs += [TensorSpec(F32, inner.outputs[i].shape) for i in narrow_out]
    return Prepared(
        outputs=tuple(TensorSpec(F16, s.shape) if s.dtype == F32 else s for s in inner.outputs),
        run=lambda *arrays: bind(*arrays)(),
        scratch=(*wide_specs, *inner.scratch),
        inplace=inner.inplace,
        binder=bind,
        working=inner.working,
    )
