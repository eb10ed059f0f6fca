"""The opset catalog, the one table of every op that a program may hold.

The DSL's helpers, the validator, the type solver, the engine's dispatch and the documentation's page of ops
all read it. A domain's table is built when it is first looked up, so that a device pays only for what its
artifact uses.
"""

from __future__ import annotations

import importlib
from functools import cache

from bb_edge.ir import keys
from bb_edge.ir.opsets.records import (
    REQUIRED,
    Attr,
    AttrKind,
    Effect,
    OpDef,
    OpKind,
    Opset,
    Port,
    Ready,
    Table,
)

__all__ = [
    "FRAMEWORK_DOMAINS",
    "ONNX_ALIASES",
    "REQUIRED",
    "Attr",
    "AttrKind",
    "Effect",
    "OpDef",
    "OpKind",
    "Opset",
    "Port",
    "Ready",
    "Table",
    "lookup",
    "normalize_domain",
    "opset",
]

_MODULES = {
    keys.SYSCALL_DOMAIN: "syscall",
    keys.WIRE_DOMAIN: "wire",
    keys.GATE_DOMAIN: "wire",
    keys.COMPOSITE_DOMAIN: "wire",
    keys.ADDRESS_BOOK_DOMAIN: "wire",
    keys.ONNX_DOMAIN: "onnx",
    **dict.fromkeys(keys.ROLE_DOMAINS, "roles"),
}
FRAMEWORK_DOMAINS = tuple(d for d in _MODULES if d)

ONNX_ALIASES = {"Dot": "MatMul", "Zeros": "Constant", "Ones": "Constant"}
"""Operators that authors may name and that are recorded as other operators, because ONNX has no such op."""


def normalize_domain(domain: str) -> str:
    """Returns the spelling of a domain that files use: ONNX's own domain has two."""
    return keys.ONNX_DOMAIN if domain == keys.ONNX_DOMAIN_ALIAS else domain


@cache
def opset(domain: str) -> Opset | None:
    """Returns the catalog's table of a domain, or None where the domain is not in the catalog."""
    module = _MODULES.get(normalize_domain(domain))
    if module is None:
        return None
    tables: dict[str, Opset] = importlib.import_module(f"bb_edge.ir.opsets.{module}").OPSETS
    return tables[normalize_domain(domain)]


def lookup(domain: str, name: str) -> OpDef | None:
    """Returns the catalog's row of an op, or None where it has none."""
    table = opset(domain)
    return None if table is None else table.ops.get(name)
