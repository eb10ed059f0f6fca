"""Finds which backend runs the tensor ops of a program, and which operators its class has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from bb_edge.backends import NumPyBackend, TFLiteBackend
from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_edge.ir.fault_lines import fault_line
from bb_edge.registry import RegistryError, default_registry
from bb_host.errors import BindingError
from bb_host.ir.program import Program
from bb_host.passes.options import Options

Supports: TypeAlias = "Callable[[str, int], bool]"
"""Whether a backend has an operator of ONNX's own domain at an opset version."""

_ON_KERNELS = frozenset({NumPyBackend.TYPE_NAME, TFLiteBackend.TYPE_NAME})
"""Backends that run on the NumPy kernels what they do not run otherwise."""

_on_numpy = lru_cache(maxsize=1024)(NumPyBackend().supports)


def runs_on_kernels(program: Program, options: Options) -> bool:
    """Whether the NumPy kernels run every tensor op: no other backend is bound or concrete."""
    named = {b.type_name for b in options.bindings if b.role == keys.ROLE_BACKEND}
    named.update(
        slot.concrete_type
        for function in program.functions
        for slot in function.slots.values()
        if slot.role == keys.ROLE_BACKEND and slot.is_concrete
    )
    return named <= _ON_KERNELS


def supports_of(type_name: str, component: type | None = None) -> Supports | None:
    """What a backend of that type says of operators, None where only the device can say it.

    A class is asked where its `supports` is a class method; without `component` the registry is.
    """
    if type_name in _ON_KERNELS:
        return _on_numpy
    if component is None:
        try:
            component = default_registry().lookup(type_name)
        except (RegistryError, ImportError, AttributeError):
            return None
    found = getattr(component, "supports", None)
    if not inspect.ismethod(found):
        return None
    ask: Supports = found

    def supports(op_type: str, version: int) -> bool:
        try:
            return bool(ask(op_type, version))
        except BBError:
            raise
        except Exception as error:  # the backend author's code
            line = fault_line(error)
            raise BindingError(
                f"{type_name} cannot say whether it has {op_type}: {type(error).__name__}: {error}"
                + (f", at {line}" if line else ""),
                f"backend {type_name}",
                "let supported_ops() return a frozenset of operator names",
            ) from error

    return supports
