"""What a pass gets beside the program: the options of this compilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bb_edge.ir.types import TypeNode, ValueType
from bb_host.diagnostics import ProgramWarning
from bb_host.ir.program import AttrValue, Function
from bb_host.ir.text.printer import print_type


@dataclass(frozen=True, slots=True)
class PortPromise:
    """One port's type, as a bound component says it.

    `leading` allows any dimensions before those of the shape, `or_empty` an empty vector in its place.
    `floating` leaves of a Tensor those of floating point. `like` is another port of the slot
    (`Contribute.contribution`): the value has the shape of what comes there, or is an empty vector.
    """

    type: ValueType
    leading: bool = False
    or_empty: bool = False
    floating: bool = False
    like: str = ""

    def opened(self) -> ValueType:
        """The type of any value of the port: sizes that differ from op to op are open."""
        node, shape = self.type
        if shape is None or self.leading:
            return ValueType(node)
        return ValueType(node, tuple(d if isinstance(d, int) and not self.or_empty else None for d in shape))

    def __str__(self) -> str:
        node, shape = self.type
        if self.floating:
            return "F32, F64 or F16"
        if shape is None:
            return print_type(self.type)
        dims = ["?" if not isinstance(d, int) else str(d) for d in shape]
        name = print_type(ValueType(node))
        return f"{name}[{','.join(['…', *dims] if self.leading else dims)}]"


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """One `bind_<role>` declaration, its construction state made.

    `target` is a partition's name, or None for all. `component` is the class where it is at hand;
    `storage_types` are the types that it promises for outputs (`"Compress.code"` → node). `where` is the
    author's line of the declaration, `warnings` what its configuration says about itself. `port_types` are
    the types that the class names for inputs and outputs under this configuration. `config` is what was
    bound, for graphs that hang on the ops that run on the slot (`construction.graphs_for`).
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
    port_types: Mapping[str, PortPromise] = field(default_factory=dict)
    config: object = None


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
