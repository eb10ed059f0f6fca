"""What a launch gives to the TFLite backends of its targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bb_edge.engine.program.program import Program


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
