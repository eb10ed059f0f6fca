"""What the author of a compiler pass imports: the program's records, stages, errors and warnings.

docs/how-to/components.md shows a pass. Names are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bb_edge.ir import keys
    from bb_edge.ir.errors import BBError, CompileError
    from bb_edge.ir.types import TypeNode, ValueType
    from bb_host.compiler.driver import Compilation
    from bb_host.diagnostics import ProgramWarning
    from bb_host.errors import ConstructionError, PassError, StageError
    from bb_host.ir.program import AttrValue, Function, Op, Program, Slot, Subgraph, walk_ops
    from bb_host.ir.proto import from_proto, to_proto
    from bb_host.ir.text.printer import print_program
    from bb_host.learn.trainable import Construction
    from bb_host.passes.analysis.flow import is_send_flavored as is_send
    from bb_host.passes.analysis.flow import is_wire
    from bb_host.passes.analysis.flow import payload_inputs as sent_values
    from bb_host.passes.one_pass import PassReport, Stats
    from bb_host.passes.options import Binding, Options
    from bb_host.passes.pipeline import CANONICAL_PASS_NAMES, Stage

__all__ = [
    # the program between passes
    "Program",
    "Function",
    "Op",
    "Slot",
    "Subgraph",
    "AttrValue",
    "walk_ops",
    "TypeNode",
    "ValueType",
    "keys",
    "from_proto",
    "to_proto",
    "print_program",
    # passes
    "Stage",
    "Options",
    "Binding",
    "Stats",
    "CANONICAL_PASS_NAMES",
    "Compilation",
    "PassReport",
    # questions about wire ops
    "is_send",
    "sent_values",
    "is_wire",
    # configurations that make their own construction state
    "Construction",
    "ConstructionError",
    # errors and warnings
    "BBError",
    "CompileError",
    "PassError",
    "StageError",
    "ProgramWarning",
]

_PROGRAM = ("Program", "Function", "Op", "Slot", "Subgraph", "AttrValue", "walk_ops")
_HOMES = {
    **dict.fromkeys(_PROGRAM, "bb_host.ir.program"),
    **dict.fromkeys(("TypeNode", "ValueType"), "bb_edge.ir.types"),
    "keys": "bb_edge.ir:keys",
    **dict.fromkeys(("from_proto", "to_proto"), "bb_host.ir.proto"),
    "print_program": "bb_host.ir.text.printer",
    **dict.fromkeys(("Stage", "CANONICAL_PASS_NAMES"), "bb_host.passes.pipeline"),
    **dict.fromkeys(("Options", "Binding"), "bb_host.passes.options"),
    **dict.fromkeys(("Stats", "PassReport"), "bb_host.passes.one_pass"),
    "Compilation": "bb_host.compiler.driver",
    "is_send": "bb_host.passes.analysis.flow:is_send_flavored",
    "sent_values": "bb_host.passes.analysis.flow:payload_inputs",
    "is_wire": "bb_host.passes.analysis.flow",
    "Construction": "bb_host.learn.trainable",
    **dict.fromkeys(("ConstructionError", "PassError", "StageError"), "bb_host.errors"),
    **dict.fromkeys(("BBError", "CompileError"), "bb_edge.ir.errors"),
    "ProgramWarning": "bb_host.diagnostics",
}
"""Name → module, or module:name where it is called otherwise there."""


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        from bb_edge.ir.suggestions import suggestion

        hint = suggestion(name, _HOMES, "it has ")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: {hint}")
    module, _, own = home.partition(":")
    value: object = getattr(importlib.import_module(module), own or name)
    globals()[name] = value  # kept, so that this runs once per name
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
