"""The compiler: `Compiler` binds components and compiles; its passes are pure, over the light form."""

from __future__ import annotations

from bb_host.compiler.driver import Compilation, Compiler
from bb_host.passes.one_pass import PassReport, Stats
from bb_host.passes.options import Binding, Options
from bb_host.passes.pipeline import CANONICAL_PASS_NAMES, Stage

__all__ = [
    "CANONICAL_PASS_NAMES",
    "Binding",
    "Compilation",
    "Compiler",
    "Options",
    "PassReport",
    "Stage",
    "Stats",
]
