"""Which module calls which, with their ports: the tree that a recorded program's functions hold."""

from __future__ import annotations

from dataclasses import dataclass

from bb_edge.ir import keys
from bb_host.ir.program import Function, Program, walk_ops


@dataclass(frozen=True, slots=True)
class ModuleTreeNode:
    """One use of a module. `ports` are its network ports; `children` the modules that it calls, in order.

    Equal modules share a function, and stand here once for each call.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ports: tuple[str, ...]
    slots: tuple[str, ...]
    children: tuple[ModuleTreeNode, ...]

    def lines(self, depth: int = 0) -> list[str]:
        """The tree as indented text, a module a line."""
        ports = f" ports {', '.join(self.ports)}" if self.ports else ""
        own = f"{'  ' * depth}{self.name}({', '.join(self.inputs)}) -> ({', '.join(self.outputs)}){ports}"
        return [own, *(line for child in self.children for line in child.lines(depth + 1))]


def module_tree(program: Program) -> ModuleTreeNode:
    """The tree of a recorded program, its root module first. Bodies only: bootstraps call nobody's body."""
    functions = {f.key: f for f in program.functions}

    def node(function: Function) -> ModuleTreeNode:
        ports: dict[str, None] = {}
        children = []
        for op in walk_ops(function.ops):
            if op.domain == keys.WIRE_DOMAIN and (port := op.facts.port):
                ports[port] = None
            if (callee := functions.get((op.domain, op.op_type))) is not None:
                children.append(node(callee))
        slots = tuple(name for name, slot in function.slots.items() if slot.role)
        return ModuleTreeNode(
            function.name, function.inputs, function.outputs, tuple(ports), slots, tuple(children)
        )

    return node(program.functions[0])
