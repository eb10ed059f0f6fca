"""What components found odd when they were built: `run` logs it, `check` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bb_edge.ir import keys

if TYPE_CHECKING:
    from bb_edge.node import Node


def chosen_backends(node: Node) -> list[str]:
    """What runs each model of a TFLite backend."""
    return [
        text
        for target in node.targets
        for slot in node.program.targets[target].bindings
        for text in getattr(node.component(slot, target), "chosen", ())
        if node.component(slot, target).ROLE == keys.ROLE_BACKEND
    ]


def component_notes(node: Node, backends: bool = True) -> list[str]:
    """The notes of components: what is odd about data and settings; of `backends`, what they cannot run."""
    return [
        note
        for target in node.targets
        for slot in node.program.targets[target].bindings
        if backends or node.component(slot, target).ROLE != keys.ROLE_BACKEND
        for note in node.component(slot, target).notes
    ]
