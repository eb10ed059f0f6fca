"""The calls that authors write, made of tables: methods of slots, syscalls by natural names, ONNX operators.

Editors and type checkers read `named_calls.pyi`, which `tools/generate_stubs.py` writes from `call_tables`,
the catalog and ONNX's schemas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from bb_edge.ir import keys, opsets
from bb_edge.ir.opsets import Opset
from bb_host.dsl.call_tables import (
    DOCS,
    FLAGS,
    NATURAL_NAMES,
    OPERATORS,
    check_counts,
    convert_flags,
    natural_row,
)
from bb_host.dsl.calls import graph_method, row_of, slot_method
from bb_host.dsl.names import snake
from bb_host.dsl.onnx_ops import onnx_row
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.slot_calls import SLOT_CALLS, SlotCall
from bb_host.ir.facts import NO_FACTS, OpFacts

_C = TypeVar("_C", bound=type)

# --- slots


def _role(domain: str) -> Callable[[_C], _C]:
    """Class decorator: each op of a role's opset is a method."""

    def decorate(cls: _C) -> _C:
        cls.DOMAIN = domain  # type: ignore[attr-defined]
        for op in (opsets.opset(domain) or Opset("", 0)).ops.values():
            spoken = f"{cls.__name__.removesuffix('Ops')}Slot.{snake(op.name)}"
            call = SLOT_CALLS.get(spoken, SlotCall())
            method = slot_method(spoken, row_of(op), call.signature, call.choose)
            method.__doc__ = call.doc or method.__doc__
            setattr(cls, snake(op.name), method)
        return cls

    return decorate


@_role(keys.ROLE_MODEL_DOMAIN)
class ModelOps:
    """The methods of a ModelSlot."""


@_role(keys.ROLE_AGGREGATOR_DOMAIN)
class AggregatorOps:
    """The methods of an AggregatorSlot."""


@_role(keys.ROLE_DATA_LOADER_DOMAIN)
class DataSourceOps:
    """The methods of a DataSourceSlot."""


@_role(keys.ROLE_PEER_SELECTOR_DOMAIN)
class PeerSelectorOps:
    """The methods of a PeerSelectorSlot."""


@_role(keys.ROLE_COMPRESSOR_DOMAIN)
class CodecOps:
    """The methods of a CodecSlot."""


@_role(keys.ROLE_INDEX_DOMAIN)
class IndexOps:
    """The methods of an IndexSlot."""


class Syscalls:
    """The framework's own ops under their natural names."""

    _facts: OpFacts = NO_FACTS

    def __init__(self, graph: Recorder) -> None:
        self._graph = graph


class Operators:
    """ONNX operators with parameters in order."""

    def __init__(self, graph: Recorder, facts: OpFacts = NO_FACTS) -> None:
        self._graph = graph
        self._facts = facts


def _methods() -> None:
    for name, call in NATURAL_NAMES.items():
        op_type, _, signature = call.removesuffix(")").partition("(")
        row = natural_row(op_type)
        check = check_counts if any(a == "n" or a.endswith("_ns") for a in row.attr_names) else None
        method: Any = graph_method(f"SyscallOps.{name}", row, signature, check)
        method.__doc__ = DOCS.get(name, method.__doc__)
        setattr(Syscalls, name, method)
    for name, call in OPERATORS.items():
        op_type, _, signature = call.removesuffix(")").partition("(")
        operator = onnx_row(op_type)
        assert operator is not None, op_type
        needs = operator.name == "Cast" or not operator.attr_names.keys().isdisjoint(FLAGS)
        method = graph_method(f"OnnxOps.{name}", operator, signature, convert_flags if needs else None)
        setattr(Operators, name, method)


_methods()
