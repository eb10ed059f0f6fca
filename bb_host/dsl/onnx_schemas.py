"""ONNX's own schemas of the recorded opset, as far as recording asks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import onnx.defs

from bb_edge.ir import keys, types
from bb_edge.ir.opsets import ONNX_ALIASES, AttrKind
from bb_edge.ir.opsets import onnx as onnx_catalog
from bb_edge.ir.types import TypeNode
from bb_host.dsl.names import snake

_REPLACED = {"Scatter": "ScatterElements", "Upsample": "Resize", **ONNX_ALIASES}
"""Names that authors use and the recorded opset has no longer, or never had."""


@dataclass(frozen=True, slots=True)
class Formal:
    name: str
    type_str: str
    optional: bool
    variadic: bool
    homogeneous: bool
    least: int  # values that a variadic one takes at least
    node: TypeNode | None  # where the schema fixes the type
    is_tensor: bool  # no sequence, optional or map


@dataclass(frozen=True, slots=True)
class Schema:
    name: str
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    attrs: Mapping[str, AttrKind]
    required: tuple[str, ...]
    hint: str
    """What its results are called."""
    fewest: int
    """Outputs that it cannot do without."""
    usual: int
    """Outputs that a call has which asks for no number of them."""


def _formal(formal: Any, only: Mapping[str, str]) -> Formal:
    option = onnx.defs.OpSchema.FormalParameterOption
    return Formal(
        formal.name,
        formal.type_str,
        formal.option == option.Optional,
        formal.option == option.Variadic,
        formal.is_homogeneous,
        formal.min_arity,
        _fixed(only.get(formal.type_str, formal.type_str)),
        not formal.type_str.startswith(("seq", "optional", "map")),
    )


_ELEMENTS = {
    "float": "F32",
    "double": "F64",
    "float16": "F16",
    "bfloat16": "BF16",
    **{
        f"{sign}int{bits}": f"{letter}{bits}"
        for sign, letter in (("", "I"), ("u", "U"))
        for bits in (8, 16, 32, 64)
    },
    "bool": "BOOL",
}


def _fixed(type_str: str) -> TypeNode | None:
    if type_str.startswith("tensor("):
        return types.by_id(f"Tensor<{_ELEMENTS.get(type_str[7:-1], '')}>")
    return None


@lru_cache(maxsize=1)
def operator_names() -> dict[str, str]:
    """Every operator by its name without case and underscores."""
    found = {
        s.name.lower(): s.name for s in onnx.defs.get_all_schemas() if s.domain == "" and not s.deprecated
    }
    found.update({alias.lower(): op for alias, op in _REPLACED.items() if op != "Constant"})
    return found


@lru_cache(maxsize=1024)
def onnx_name(spelling: str) -> str | None:
    """`reduce_sum`, `ReduceSum`, `and_` → ONNX's name; None where ONNX has no such operator."""
    return operator_names().get(spelling.replace("_", "").lower())


@lru_cache(maxsize=512)
def schema_of(name: str) -> Schema | None:
    try:
        schema = onnx.defs.get_schema(name, onnx_catalog.VERSION, keys.ONNX_DOMAIN)
    except onnx.defs.SchemaError:
        return None
    # A type parameter with one type to choose from is no parameter.
    only = {
        c.type_param_str: c.allowed_type_strs[0]
        for c in schema.type_constraints
        if len(c.allowed_type_strs) == 1
    }
    outputs = tuple(_formal(f, only) for f in schema.outputs)
    return Schema(
        name,
        tuple(_formal(f, only) for f in schema.inputs),
        outputs,
        {n: _kind(a) for n, a in schema.attributes.items()},
        tuple(n for n, a in schema.attributes.items() if a.required),
        snake(name) if name != "Constant" else "const",
        sum(not f.optional and not f.variadic for f in outputs),
        max(1, sum(not f.optional for f in outputs)),
    )


def _kind(attribute: Any) -> AttrKind:
    number = int(attribute.type.value if hasattr(attribute.type, "value") else attribute.type)
    return AttrKind(number) if number in AttrKind._value2member_map_ else AttrKind.ANY
