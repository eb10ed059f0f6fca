"""What a launch gives to the TFLite backends of its targets, and what it logs of components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bb_edge.ir import keys

if TYPE_CHECKING:
    from bb_edge.engine.program.program import Program
    from bb_edge.node import Node


def component_notes(node: Node, backends: bool = True) -> list[str]:
    """The notes of components: what is odd about data and settings; of `backends`, what runs each model."""
    return [
        note
        for target in node.targets
        for slot in node.program.targets[target].bindings
        if backends or node.component(slot, target).ROLE != keys.ROLE_BACKEND
        for note in node.component(slot, target).notes
    ]


def with_tuning(
    components: Mapping[str, Mapping[str, object]], program: Program, targets: Sequence[str], artifact: Path
) -> dict[str, Mapping[str, object]]:
    """Adds the file that `bb-edge bench --tune` wrote beside the artifact to each TFLite backend."""
    from bb_edge.backends.tflite.tuning_files import tuning_of

    configured: dict[str, Mapping[str, object]] = dict(components)
    place = tuning_of(artifact)
    for name in targets if place is not None else ():
        target = program.targets.get(name)
        for slot, binding in ({} if target is None else target.bindings).items():
            if binding.type_name == "bb.TFLiteBackend":
                configured[slot] = {"tuning": place, **configured.get(slot, {})}
    return configured
