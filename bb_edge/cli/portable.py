"""The portable model in the place of a target's artifact: it runs, and costs what the artifact saves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bb_edge.engine.program.program import Program


def portable_doubt(program: Program, artifact: Path) -> str:
    """What to say of an artifact of several targets that was never stripped for a device; else ""."""
    if program.stripped or len(program.targets) == 1:
        return ""
    stripped = (_stripped_of(artifact, target) for target in program.targets)
    beside = [path for path in stripped if path.is_file()]
    there = (
        ", ".join(path.name for path in beside) or f"what `bb-host compile` writes as {_pattern(artifact)}"
    )
    return (
        f"{artifact.name} is the portable model: it holds every target's graphs, is larger than a device"
        f" needs and has no digest that would show damage (give a target's own artifact: {there})"
    )


def _stripped_of(artifact: Path, target: str) -> Path:
    return artifact.with_name(f"{artifact.stem}.{target}.edge.onnx")


def _pattern(artifact: Path) -> str:
    return f"{artifact.stem}.TARGET.edge.onnx"
