"""Replaces aliases by the ops that they stand for, and writes default attributes out.

1. An op of our own opsets gets every attribute that it leaves out and that has a default. ONNX operators keep
   theirs implicit: what they mean depends on the imported version, and the backend knows it.
2. A required attribute that is missing is refused, and one that the op does not have: `MalformedOp`.
3. The aliases of the required subset become what they stand for: `Dot` is MatMul, `Zeros` and `Ones` with a
   `shape` are constants.
4. A Constant whose value refers to an attribute of its function takes that attribute's default.
5. Idempotent: an op that says everything already is left as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from bb_edge.ir import keys, opsets
from bb_edge.ir.onnx_pb2 import AttributeProto
from bb_edge.ir.suggestions import suggestion
from bb_host.errors import MalformedOp
from bb_host.ir.program import AttrValue, Function, Op, Program, RawAttribute
from bb_host.passes.analysis import flow
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options

_MOST_ELEMENTS = 1 << 24
"""A constant that `Zeros` or `Ones` would become may not be larger: 64 MiB."""


def run(program: Program, options: Options, stats: Stats) -> Program:
    stats.count("expansion_count", 0)
    functions = tuple(
        f if f.domain == keys.COMPONENT_DOMAIN else _expand(f, stats) for f in program.functions
    )
    return program.with_functions(functions)


def _expand(function: Function, stats: Stats) -> Function:
    kinds = flow.summary(function.ops).kinds
    rows = {kind: row for kind in kinds if (row := _expansion(*kind)) is not None}
    if not rows or (not function.slots and {*rows.values()} == {_constant}):  # which would refer to a slot
        return function
    changed: dict[int, Op] = {}
    row_of = rows.get
    for index, op in enumerate(function.ops):
        row = row_of((op.domain, op.op_type))
        if row is not None:
            new = row(op, function)
            if new is not op:
                changed[index] = new
    if not changed:
        return function
    stats.count("expansion_count", len(changed))
    return function.with_ops(flow.spliced(function.ops, {index: (op,) for index, op in changed.items()}))


_Expansion: TypeAlias = "Callable[[Op, Function], Op]"
"""The same op where nothing is to be done."""


class _Defaults:
    """Fills in what an op of the catalog leaves out."""

    def __init__(
        self, defaults: Mapping[str, AttrValue], required: tuple[str, ...], known: frozenset[str]
    ) -> None:
        self._defaults = defaults
        self._required = required
        self._known = known

    def __call__(self, op: Op, function: Function) -> Op:
        attrs = op.attrs
        for name in self._required:
            if name not in attrs:
                raise MalformedOp(f"attribute {name!r} is missing", op=op)
        if not self._known.issuperset(attrs):
            unknown = next(n for n in attrs if n not in self._known)
            if not unknown.startswith(keys.DEST_SUFFIX_ATTR_PREFIX):
                hint = suggestion(unknown, self._known, "it has: ")
                raise MalformedOp(f"there is no attribute {unknown!r}", hint=hint, op=op)
        missing = {n: v for n, v in self._defaults.items() if n not in attrs}
        if missing:
            op = dataclasses.replace(op, attrs={**attrs, **missing})
        return _constant(op, function) if op.op_type == "Constant" else op


@lru_cache(maxsize=1024)
def _expansion(domain: str, name: str) -> _Expansion | None:
    """The table: what is to be done for an op, None for most."""
    domain = opsets.normalize_domain(domain)
    if domain == keys.ONNX_DOMAIN:
        return _ALIASES.get(name)
    row = opsets.lookup(domain, name)
    if row is None:
        return None
    required = tuple(a.name for a in row.attrs if a.required)
    defaults: dict[str, AttrValue] = {}
    for attr in row.attrs:
        if not attr.required and attr.default is not None:
            assert isinstance(attr.default, (int, float, str))
            defaults[attr.name] = attr.default.encode() if isinstance(attr.default, str) else attr.default
    return _Defaults(defaults, required, frozenset(a.name for a in row.attrs)) if row.attrs else None


def _constant(op: Op, function: Function) -> Op:
    """Rule 4."""
    found: dict[str, AttrValue] = {}
    for name, value in op.attrs.items():
        if isinstance(value, RawAttribute):
            referred = AttributeProto.FromString(value.data).ref_attr_name
            slot = function.slots.get(referred) if referred else None
            if slot is not None and slot.state is not None:
                found[name] = slot.state
    return dataclasses.replace(op, attrs={**op.attrs, **found}) if found else op


def _dot(op: Op, function: Function) -> Op:
    return dataclasses.replace(op, op_type=opsets.ONNX_ALIASES["Dot"])


def _filled(op: Op, function: Function) -> Op:
    shape = op.attrs.get("shape", [])
    if not isinstance(shape, list) or not all(isinstance(d, int) and d >= 0 for d in shape):
        raise MalformedOp("attribute 'shape' is a list of sizes", op=op)
    sizes = [int(d) for d in shape if isinstance(d, int)]
    if int(np.prod(sizes, dtype=object)) > _MOST_ELEMENTS:
        raise MalformedOp(f"{sizes} elements are too many for a constant", op=op)
    value = np.full(sizes, 0 if op.op_type == "Zeros" else 1, np.float32)
    return dataclasses.replace(op, op_type="Constant", attrs={"value": value})


_ALIASES: dict[str, _Expansion] = {"Dot": _dot, "Zeros": _filled, "Ones": _filled, "Constant": _constant}
