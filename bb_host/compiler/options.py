"""What a pass gets beside the program: the options of this compilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bb_edge.ir.types import TypeNode
from bb_host.diagnostics import ProgramWarning
from bb_host.program import AttrValue, Function

if TYPE_CHECKING:
    from bb_host.compiler.bound_types import Promise


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """One `bind_<role>` declaration, its construction state made.

    `target` is a partition's name, or None for all. `component` is the class where it is at hand;
    `storage_types` are the types that it promises for outputs (`"Compress.code"` → node). `where` is the
    author's line of the declaration, `warnings` what its configuration says about itself. `port_types` are
    the types that the class names for inputs and outputs under this configuration.
    """

    role: str
    slot: str
    type_name: str
    target: str | None = None
    state: AttrValue = b"\xa0"
    functions: tuple[Function, ...] = ()
    component: type | None = None
    storage_types: Mapping[str, TypeNode] = field(default_factory=dict)
    where: str = ""
    warnings: tuple[ProgramWarning, ...] = ()
    port_types: Mapping[str, Promise] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """One compilation's options. `per_hop_budget_ns` of 0 declares none."""

    module: str = "Module"
    bindings: tuple[Binding, ...] = ()
    strict_types: bool = True
    per_hop_budget_ns: int = 0

    def binding(self, slot: str, target: str) -> Binding | None:
        """What is bound to a slot in a partition: the target's own binding first, else the general one."""
        general = None
        for binding in self.bindings:
            if binding.slot == slot:
                if binding.target == target:
                    return binding
                if binding.target is None:
                    general = binding
        return general

    def sole_binding(self, slot: str) -> Binding | None:
        """The slot's binding where all targets have the same one."""
        found = [b for b in self.bindings if b.slot == slot]
        return found[0] if len(found) == 1 else None
